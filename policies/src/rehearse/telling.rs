//! Plans of a generated workload: what each caller would tell beforehand if it told all that it will read.

use super::scene::{Request, Scene};
use crate::access::Op;
use crate::engine::Who;
use crate::plan::{Plan, Reading, WrongPlan};
use std::collections::BTreeMap;

/// What a caller tells.
#[derive(Clone, Debug)]
pub struct Told {
    /// Who.
    pub who: Who,
    /// The bucket that it reads.
    pub bucket: u64,
    /// What it reads there.
    pub plan: Plan,
}

/// What callers that read tell: their keys in the order in which they begin them, epoch after epoch, for each
/// bucket.
///
/// # Errors
/// When somebody reads more than a plan may say.
pub fn told(scene: &Scene, requests: impl Iterator<Item = Request>) -> Result<Vec<Told>, WrongPlan> {
    let mut read: BTreeMap<(u16, u64), Vec<u32>> = BTreeMap::new();
    for request in requests.filter(|request| request.op == Op::Read && request.range.start == 0) {
        let keys = read.entry((request.caller, scene.keys.bucket(request.key))).or_default();
        keys.push(request.key);
    }
    let told = read.into_iter().map(|((caller, bucket), keys)| {
        let names = keys.iter().map(|key| scene.keys.name(*key));
        let plan = Plan::new(names, Reading::default())?;
        Ok(Told { who: Who::Caller(scene.callers[usize::from(caller)].id), bucket, plan })
    });
    told.collect()
}
