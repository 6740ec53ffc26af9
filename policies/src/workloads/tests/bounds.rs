//! Memory is bounded, and the workloads that have been idle longest are evicted first.

use super::program;
use crate::access::{Access, Caller, Op};
use crate::engine::{CacheEngine, Options};
use crate::workloads::workload::{CALLERS_MAX, DATASETS_MAX};
use crate::workloads::{
    AccessContext, DatasetUse, TEXT_BYTES_MAX, TrackedWorkload, WorkloadIdentity, WorkloadLimits, Workloads,
};

#[test]
fn a_workload_takes_less_than_eight_kibibytes() {
    let texts = (2 + DATASETS_MAX) * TEXT_BYTES_MAX;
    let bytes =
        size_of::<TrackedWorkload>() + DATASETS_MAX * size_of::<DatasetUse>() + CALLERS_MAX * 16 + texts;
    assert!(bytes <= 8192, "{bytes}");
}

#[test]
fn many_workloads_and_datasets_stay_within_the_limits() {
    let program = program();
    let options = Options { capacity_bytes: 1 << 20, blocks_max: 1 << 10, block_bytes: 8 << 20, seed: 0 };
    let mut engine = CacheEngine::new(options);
    let mut known = Workloads::new(WorkloadLimits { workloads_max: 50, ..WorkloadLimits::default() });
    let long = "x".repeat(10_000);
    for at in 0..5000_u64 {
        // Family 1 sends requests regularly and is therefore kept.
        let family = if at.is_multiple_of(7) { 1 } else { at };
        let key = format!("{long}-{}/{}/a", at % 97, char::from(b'a' + (at % 23) as u8));
        let caller = Caller { id: at.wrapping_mul(0x9e37_79b9_7f4a_7c15), family };
        let op = if at.is_multiple_of(11) { Op::Write } else { Op::Read };
        let access = Access { at_us: at, caller, bucket: 1, key: &key, op, size: 10, range: 0..10 };
        let seen = engine.observe(&access);
        if !known.has_identity(family) {
            let identity = WorkloadIdentity {
                name: Some(long.as_str().into()),
                user_agent: Some(long.as_str().into()),
                batch_size: Some(0),
                gpu_count: Some(0),
            };
            known.set_identity(at, family, identity, &engine, &program);
        }
        known.record(
            &access,
            &AccessContext {
                engine: &engine,
                seen,
                program: &program,
                checkpoint: None,
                is_validation: false,
            },
        );
        assert!(known.iter().count() <= 50);
    }
    let regular = known.get(1).unwrap();
    assert!(regular.datasets.len() <= DATASETS_MAX && regular.workers(5000, 5000) <= CALLERS_MAX);
    let texts = [regular.identity.name.as_deref(), regular.identity.user_agent.as_deref()];
    assert!(
        texts
            .iter()
            .flatten()
            .chain(regular.datasets.iter().map(|set| &*set.name).collect::<Vec<_>>().iter())
            .all(|text| text.len() <= TEXT_BYTES_MAX)
    );
    assert!(known.get(2).is_none() && known.totals(&engine, 5000, 0).workloads <= 50);
}
