//! A small simulation of references: groups add and end references to a segment while it is decided if all of
//! them lie within a surviving prefix.

use super::violation::{Violation, ViolationKind};
use crate::references::{PrefixDecision, ReferrerFacts, sum_extents};
use crate::rules::{ReplicationRule, ReplicationRules};
use fastrand::Rng;
use mlgw_common::GroupId;
use std::collections::BTreeSet;

/// Records of the segment, and of its surviving prefix.
const RECORDS: u32 = 6;

/// A group and the records that its rows refer to.
#[derive(Debug)]
struct SimReferrer {
    is_fenced: bool,
    records: BTreeSet<u32>,
}

struct References {
    rng: Rng,
    groups: Vec<SimReferrer>,
}

impl References {
    /// References end, and groups that are not fenced add some.
    fn go_on(&mut self) {
        for _ in 0..self.rng.u8(0..3) {
            let (group, record) = (self.rng.usize(0..self.groups.len()), self.rng.u32(0..RECORDS));
            let adds = self.rng.bool();
            let group = &mut self.groups[group];
            if adds && !group.is_fenced {
                group.records.insert(record);
            } else {
                group.records.remove(&record);
            }
        }
    }

    fn facts(&mut self, rules: ReplicationRules) -> Vec<ReferrerFacts> {
        let mut facts = Vec::new();
        for group in 0..self.groups.len() {
            self.go_on();
            let SimReferrer { is_fenced, records } = &self.groups[group];
            let is_fenced = *is_fenced || !rules.has(ReplicationRule::FenceBeforeCount);
            let number = u32::try_from(group).expect("there are few groups");
            facts.push(ReferrerFacts { group: GroupId(number), is_fenced, extents: records.len() as u64 });
        }
        facts
    }

    /// Records of the prefix that some group refers to, looked up one after the other.
    fn lookups(&mut self, prefix: u32) -> u64 {
        let mut found = 0;
        for record in 0..prefix {
            self.go_on();
            found += u64::from(self.groups.iter().any(|group| group.records.contains(&record)));
        }
        found
    }
}

/// Decides about a prefix in a schedule. Returns a reference beyond the prefix that a seal would lose.
pub(super) fn run(seed: u64, rules: ReplicationRules) -> Result<(), Violation> {
    let mut rng = Rng::with_seed(seed);
    let prefix = rng.u32(0..RECORDS);
    let group = |rng: &mut Rng| SimReferrer {
        is_fenced: rng.bool(),
        records: (0..RECORDS).filter(|_| rng.bool()).collect(),
    };
    let groups = (0..rng.usize(1..4)).map(|_| group(&mut rng)).collect();
    let mut world = References { rng, groups };
    let (summed, found) = if rules.has(ReplicationRule::ExtentsBeforeLookup) {
        let facts = world.facts(rules);
        (sum_extents(&facts), world.lookups(prefix))
    } else {
        let found = world.lookups(prefix);
        (sum_extents(&world.facts(rules)), found)
    };
    let decision = summed.map_or(PrefixDecision::Wait, |summed| summed.decide(found));
    let mut left = world.groups.iter().flat_map(|group| &group.records);
    match (decision, left.find(|record| **record >= prefix)) {
        (PrefixDecision::SealAtSurvivor, Some(lost)) => {
            let what = format_args!("record {lost} is referenced and lost");
            Err(Violation::new(ViolationKind::Loss, what))
        }
        _ => Ok(()),
    }
}
