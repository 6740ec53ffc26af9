//! Tests: plans are followed through gaps, repeats and restarts, and a dropped plan leaves nothing behind.

use crate::access::{Access, Caller, Op};
use crate::engine::{CacheEngine, LISTS_MAX, Options, PLANS_MAX, PlanProgress, PlanReaders};
use crate::plan::{Plan, PlanSchedule, Sampler};

const BLOCK_BYTES: u32 = 8 << 20;

/// Returns the reads of a job: each rank has its own speed, workers overtake each other, some keys are left
/// out and some are requested twice.
fn disordered(order: &[u32], ranks: usize, random: &mut fastrand::Rng) -> Vec<u32> {
    let mut at: Vec<(f64, u32)> = Vec::new();
    for (place, key) in order.iter().enumerate() {
        let rank = place % ranks;
        let speed = 1.0 + 0.002 * rank as f64;
        let when = place as f64 / speed + 40.0 * random.f64();
        match random.u8(..) {
            0..5 => {}
            5..10 => at.extend([(when, *key), (when + 20.0, *key)]),
            _ => at.push((when, *key)),
        }
    }
    at.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    at.into_iter().map(|(_, key)| key).collect()
}

const KEYS: u32 = 3000;

fn sampled(epochs: u32) -> Plan {
    let keys: Vec<String> = (0..KEYS).map(|number| format!("train/{number}")).collect();
    let reading = PlanSchedule {
        sampler: Sampler::TorchDistributed,
        seed: 9,
        epochs,
        ranks: 8,
        ..PlanSchedule::default()
    };
    Plan::new(keys.iter().map(String::as_str), reading).unwrap()
}

/// An engine with a plan, to which reads of keys are applied; each read returns the plan's progress.
struct PlanPlayback {
    engine: CacheEngine,
    at_us: u64,
}

impl PlanPlayback {
    fn new(plan: Plan) -> Self {
        let options = Options {
            capacity_bytes: 500 << 10,
            blocks_max: 1 << 13,
            block_bytes: BLOCK_BYTES.into(),
            seed: 1,
        };
        let mut engine = CacheEngine::new(options);
        engine.put_plan(7, PlanReaders::Family(5), 1, plan).unwrap();
        Self { engine, at_us: 0 }
    }

    fn read(&mut self, key: u32) -> PlanProgress {
        self.at_us += 1000;
        let key = format!("train/{key}");
        let caller = Caller { id: self.at_us % 8, family: 5 };
        let access = Access {
            at_us: self.at_us,
            caller,
            bucket: 1,
            key: &key,
            op: Op::Read,
            size: 1024,
            range: 0..1024,
        };
        let seen = self.engine.observe(&access);
        self.engine.read(seen, &access, 0);
        self.engine.check();
        self.engine.plan_progress(7).unwrap()
    }
}

#[test]
fn ranks_workers_gaps_and_repeats_are_followed_through_all_epochs() {
    let plan = sampled(6);
    let mut random = fastrand::Rng::with_seed(4);
    let mut played = PlanPlayback::new(plan.clone());
    for (epoch, order) in plan.epochs().enumerate() {
        let reads = disordered(&order, 8, &mut random);
        for (number, key) in reads.iter().enumerate() {
            let followed = played.read(*key);
            if number > 100 && number + 100 < reads.len() {
                assert!(followed.is_trusted, "{epoch} {number} {followed:?}");
                assert_eq!(followed.epoch as usize, epoch, "{number} {followed:?}");
                assert!(followed.read.abs_diff(number as u32) < 120, "{number} {followed:?}");
            }
        }
    }
}

#[test]
fn a_job_found_midway_or_restarted_is_followed_again() {
    let plan = sampled(10);
    let orders: Vec<Vec<u32>> = plan.epochs().collect();
    let mut played = PlanPlayback::new(plan);
    // A server that has just started observes the job in its eighth epoch.
    for (number, key) in orders[7].iter().chain(&orders[8][..1000]).enumerate() {
        let followed = played.read(*key);
        assert!(number < 1000 || followed.is_trusted, "{number} {followed:?}");
    }
    assert_eq!(played.engine.plan_progress(7).unwrap().epoch, 8);
    // The job is started again.
    for (number, key) in orders[0].iter().enumerate() {
        let followed = played.read(*key);
        assert!(
            number < 300 || number == 2999 || followed.is_trusted && followed.epoch == 0,
            "{number} {followed:?}"
        );
    }
}

#[test]
fn a_plan_that_is_dropped_leaves_nothing_behind() {
    let plan = sampled(3);
    let orders: Vec<Vec<u32>> = plan.epochs().collect();
    let mut played = PlanPlayback::new(plan.clone());
    for key in &orders[0] {
        played.read(*key);
    }
    assert_eq!(played.engine.plans.heap.len(), 500);
    assert!(played.engine.drop_plan(7) && !played.engine.drop_plan(7));
    played.engine.put_plan(7, PlanReaders::Caller(999), 1, plan.clone()).unwrap();
    for key in &orders[1][..600] {
        played.read(*key);
    }
    assert_eq!(played.engine.plans.heap.len(), 0, "its kept blocks returned to the groups");
    for number in 0..PLANS_MAX as u64 {
        let more = played.engine.put_plan(number, PlanReaders::Caller(1), 1, plan.clone());
        assert_eq!(more.is_ok(), number < PLANS_MAX as u64, "{number}");
    }
    assert!(played.engine.put_plan(PLANS_MAX as u64, PlanReaders::Caller(1), 1, plan.clone()).is_err());
    for number in 0..LISTS_MAX as u64 {
        played.engine.put_plan(number, PlanReaders::Caller(1), number + 1, plan.clone()).unwrap();
    }
    assert!(
        played.engine.put_plan(1, PlanReaders::Caller(1), 99, plan.clone()).is_ok(),
        "its list is then free"
    );
    assert!(played.engine.put_plan(60, PlanReaders::Caller(1), 98, plan).is_err());
}
