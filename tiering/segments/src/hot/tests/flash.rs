//! Tests of the flash budget: postponable work waits and is recorded as waiting; work that frees needed space
//! does not wait.

use super::bench::{Bench, BenchOptions};
use crate::decisions::DecisionFilter;
use crate::flash::FlashWriteCause;
use crate::hot::CompactionSettings;
use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionReason};
use std::time::Duration;

/// A bench with sealed segments that are two thirds dead, and a budget that is used up.
async fn over_budget(tuned: BenchOptions) -> Bench {
    let bench = Bench::tuned(tuned).await;
    let name = |n: usize| format!("object-{n}");
    for n in 0..60 {
        bench.put(&name(n), 10_000).await;
    }
    for n in (0..60).filter(|n| n % 3 != 0) {
        bench.delete(&name(n)).await;
    }
    let bench = bench.reopen().await;
    bench.tier.flash().set_budget(24 * 1000);
    bench.tier.flash().record_write(FlashWriteCause::Client, 1 << 40);
    let settings = CompactionSettings {
        interval: Duration::from_secs(3600),
        bytes_per_second: u64::MAX,
        patience: Duration::ZERO,
        ..CompactionSettings::default()
    };
    bench.tier.set_compaction(settings);
    bench
}

/// Waits for two unrequested passes: the first may have started before.
async fn rounds(bench: &Bench) {
    let until = bench.tier.compaction().passes + 2;
    while bench.tier.compaction().passes < until {
        bench.tier.inner.compaction.wake_now();
        mlgw_common::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_waits_for_the_budget_and_records_it() {
    let bench = over_budget(BenchOptions::default()).await;
    rounds(&bench).await;
    assert_eq!(bench.tier.compaction().moved_bytes, 0);
    let filter = DecisionFilter { limit: 10, kind: Some(DecisionKind::Relocate), bucket: None };
    let listed = bench.tier.inner.decisions.list(filter);
    assert!(
        !listed.is_empty() && listed.iter().all(|one| one.outcome == DecisionOutcome::OverBudget),
        "{listed:?}"
    );
    bench.tier.flash().set_budget(0);
    rounds(&bench).await;
    let moved = bench.tier.compaction().moved_bytes;
    let written = bench.tier.flash().written()[FlashWriteCause::Compaction as usize].1;
    assert!(moved >= 100_000 && written >= moved, "{moved} {written}");
    let done = bench.tier.inner.decisions.list(filter);
    assert_eq!((done[0].outcome, done[0].reason), (DecisionOutcome::Done, DecisionReason::Compaction));
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_ignores_the_budget_when_space_is_short() {
    let bench = over_budget(BenchOptions { capacity_bytes: 700_000, ..BenchOptions::default() }).await;
    rounds(&bench).await;
    assert!(!bench.tier.flash().can_start_own_write() && bench.tier.compaction().moved_bytes >= 100_000);
    bench.close().await;
}
