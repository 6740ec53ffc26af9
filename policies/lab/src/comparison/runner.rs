//! Runs the mlgw engine in a comparison: it receives one request after another, as in a server.

use super::{AccessBatch, Score, Scoring};
use crate::blocks::touched;
use crate::caller_plans::CallerPlan;
use mlgw_policies::BLOCK_ID_SEED;
use mlgw_policies::DecisionFingerprint;
use mlgw_policies::PolicyEngine;
use mlgw_policies::access::{Access, Op};
use mlgw_policies::engine::{Advice, CacheEngine, Options, TooManyPlans};
use mlgw_policies::language::{NoFacts, Program};
use mlgw_policies::workloads::WorkloadIdentity;
use std::hint::black_box;
use std::sync::Arc;

/// An engine with its score and the fingerprint of its decisions.
pub struct EngineReplay {
    policy: ReplayedPolicy,
    block_bytes: u32,
    score: Score,
    fingerprint: DecisionFingerprint,
}

/// Policy that makes the decisions.
enum ReplayedPolicy {
    /// The engine without rules.
    Engine(Box<CacheEngine>),
    /// The engine with rules, as in a server.
    PolicyEngine(Box<PolicyEngine>),
}

impl ReplayedPolicy {
    fn engine(&mut self) -> &mut CacheEngine {
        match self {
            Self::Engine(engine) => engine,
            Self::PolicyEngine(decider) => &mut decider.engine,
        }
    }

    /// Forwards to [`PolicyEngine::prefetch_memory`], or looks up the first block in the engine.
    fn prefetch_memory(&self, access: &Access<'_>) {
        match self {
            Self::Engine(engine) => {
                let id = engine.block_id(access.bucket, access.key, 0);
                black_box(engine.is_kept(id));
            }
            Self::PolicyEngine(decider) => decider.prefetch_memory(access),
        }
    }
}

/// Minimum number of blocks that an engine tracks.
const BLOCKS_MIN: usize = 1 << 16;

impl EngineReplay {
    /// Creates an engine without history, with a capacity of `capacity_bytes`, that tracks `blocks` blocks
    /// and [`BLOCKS_MIN`] more.
    #[must_use]
    pub fn new(capacity_bytes: u64, block_bytes: u32, blocks: usize) -> Self {
        let engine = CacheEngine::new(options(capacity_bytes, block_bytes, blocks));
        Self::from_policy(ReplayedPolicy::Engine(Box::new(engine)), block_bytes)
    }

    /// Like [`EngineReplay::new`], with rules. Writes are observed as in a server: they update statistics,
    /// and their blocks are not cached.
    #[must_use]
    pub fn with_rules(capacity_bytes: u64, block_bytes: u32, blocks: usize, program: Arc<Program>) -> Self {
        let decider = PolicyEngine::new(options(capacity_bytes, block_bytes, blocks), program);
        Self::from_policy(ReplayedPolicy::PolicyEngine(Box::new(decider)), block_bytes)
    }

    fn from_policy(mind: ReplayedPolicy, block_bytes: u32) -> Self {
        Self {
            policy: mind,
            block_bytes,
            score: Score::default(),
            fingerprint: DecisionFingerprint::default(),
        }
    }

    fn engine(&mut self) -> &mut CacheEngine {
        self.policy.engine()
    }

    /// Registers access plans before the first read.
    ///
    /// # Errors
    /// If there are too many plans.
    pub fn put_plans(&mut self, plans: &[CallerPlan]) -> Result<(), TooManyPlans> {
        for (number, caller) in plans.iter().enumerate() {
            self.engine().put_plan(number as u64, caller.who, caller.bucket, caller.plan.clone())?;
        }
        Ok(())
    }

    /// Number of these plans that the engine trusts, because reads follow them.
    #[must_use]
    pub fn trusted_plans(&mut self, plans: &[CallerPlan]) -> usize {
        let engine = self.engine();
        let is_trusted =
            |number: &usize| engine.plan_progress(*number as u64).is_some_and(|plan| plan.is_trusted);
        (0..plans.len()).filter(is_trusted).count()
    }

    /// Processes the accesses of a batch with the same result as one after another.
    pub fn process_batch(&mut self, batch: &AccessBatch) {
        batch.iter().for_each(|(access, _)| self.policy.prefetch_memory(&access));
        for (access, scoring) in batch.iter() {
            self.process(&access, scoring);
        }
    }

    /// Processes an access.
    pub fn process(&mut self, access: &Access<'_>, scoring: Scoring) {
        let (seen, ruling) = match &mut self.policy {
            ReplayedPolicy::Engine(engine) => (engine.observe(access), None),
            ReplayedPolicy::PolicyEngine(decider) => {
                let seen = decider.observe(access, WorkloadIdentity::default);
                (seen, Some(decider.ruling_on_copies(seen, access, &NoFacts)))
            }
        };
        let is_read = access.op == Op::Read;
        if access.op == Op::Delete || ruling.is_some() && !is_read {
            return;
        }
        for (number, bytes) in touched(access.size, &access.range, self.block_bytes) {
            let advice = match (&mut self.policy, &ruling) {
                (ReplayedPolicy::PolicyEngine(decider), Some(ruling)) => {
                    decider.read(seen, access, number, ruling)
                }
                _ => self.engine().read(seen, access, number),
            };
            self.record_decision(access, number, advice);
            self.score.written_bytes += u64::from(bytes) * u64::from(is_read && advice == Advice::Keep);
            if is_read && scoring == Scoring::Counted {
                match advice {
                    Advice::Kept => self.score.count_hit(bytes),
                    Advice::Keep | Advice::Bypass => self.score.count_miss(bytes),
                }
            }
        }
    }

    fn record_decision(&mut self, access: &Access<'_>, number: u32, advice: Advice) {
        let id = self.engine().block_id(access.bucket, access.key, number);
        if access.op == Op::Read {
            self.fingerprint.add_read(id, advice);
        }
        let fingerprint = &mut self.fingerprint;
        match &mut self.policy {
            ReplayedPolicy::Engine(engine) => {
                engine.take_evicted().for_each(|id| fingerprint.add_eviction(id))
            }
            ReplayedPolicy::PolicyEngine(decider) => {
                decider.take_evicted().for_each(|id| fingerprint.add_eviction(id))
            }
        }
    }

    /// Fingerprint of all decisions so far.
    #[must_use]
    pub fn fingerprint(&self) -> DecisionFingerprint {
        self.fingerprint
    }

    /// Score of all accesses so far.
    #[must_use]
    pub fn score(&self) -> Score {
        self.score
    }
}

fn options(capacity_bytes: u64, block_bytes: u32, blocks: usize) -> Options {
    // The same seed as in a server, so that decisions can be compared with those of the server.
    let seed = BLOCK_ID_SEED;
    Options { capacity_bytes, blocks_max: blocks + BLOCKS_MIN, block_bytes: u64::from(block_bytes), seed }
}

#[cfg(test)]
mod tests {
    use super::{Access, AccessBatch, EngineReplay, Op, Program, Scoring};
    use mlgw_policies::access::Caller;
    use std::sync::Arc;

    #[test]
    fn batched_accesses_give_the_same_result_as_single_ones() {
        let program = Arc::new(Program::compile_built_in().unwrap());
        let alone = || EngineReplay::new(1 << 20, 4096, 1000);
        let ruled = || EngineReplay::with_rules(1 << 20, 4096, 1000, Arc::clone(&program));
        let keys: Vec<String> = (0..300).map(|n| format!("train/{n}.jpg")).collect();
        for (mut one, mut all) in [(alone(), alone()), (ruled(), ruled())] {
            let (mut batch, mut random) = (AccessBatch::default(), fastrand::Rng::with_seed(7));
            for at_us in 0..5000 {
                let (key, caller) = (&keys[random.usize(..keys.len())], Caller { id: 1, family: 1 });
                let op = [Op::Write, Op::Delete].get(random.usize(..10)).copied().unwrap_or(Op::Read);
                let access = Access { at_us, caller, bucket: 1, key, op, size: 9000, range: 0..9000 };
                one.process(&access, Scoring::Counted);
                if batch.push(&access, Scoring::Counted) {
                    all.process_batch(&batch);
                    batch.clear();
                }
            }
            all.process_batch(&batch);
            assert_eq!((one.score(), one.fingerprint()), (all.score(), all.fingerprint()));
            assert!(one.score().hits > 0 && one.score().hits < one.score().reads, "{:?}", one.score());
        }
    }
}
