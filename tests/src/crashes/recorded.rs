//! Load on a recording file system, over several lives of the server.
//!
//! The settings are small, so that within one or two seconds segments are sealed, begun, compacted and
//! removed, the log is rolled, the state is flushed and the log is purged: the recording contains every path
//! that syncs or destroys data.

use std::sync::Arc;

use crate::check::check;
use crate::disk::Disk;
use crate::history::{History, HistoryItem, ItemValue, NOW, PositionClock};
use crate::mount::Mount;
use crate::power_cut::{NO_SYNCS_IGNORED, PowerCut, crash_state};
use crate::recording::Recording;
use crate::seed::Rng;
use crate::server::ServerSetup;
use crate::workload::{self, KillPoint, WorkloadPlan};

/// Path of the data directory below the mount: the server creates it, so its name must be synced too.
pub(super) const DATA_DIR: &str = "mlgw-data";

/// A recording, and the promises made at each position of it.
pub(super) struct RecordedRun {
    pub(super) recording: Recording,
    pub(super) history: Arc<History>,
    pub(super) seed: u64,
    /// Position of the server's first event: earlier events set up its disk.
    pub(super) server_start: usize,
}

/// A server whose disk is `mount`, with small settings.
pub(super) fn setup(mount: &Mount) -> ServerSetup {
    with_small_settings(ServerSetup::new(mount.path().join(DATA_DIR)))
}

/// Settings that make segments and logs roll early.
pub(super) fn with_small_settings(setup: ServerSetup) -> ServerSetup {
    setup
        .with("hot.segment_bytes", "256KiB")
        .with("hot.compact_dead_percent", "5")
        .with("hot.compact_interval", "20ms")
        .with("hot.compact_bytes_per_second", "1GiB")
        .with("hot.reserve_bytes", "1MiB")
        .with("catalogue.log_bytes_max", "64KiB")
        // With such a short log there would be little but checkpoints; `sigkill` covers checkpoints.
        .with("catalogue.checkpoint_interval", "0s")
        .with("catalogue.cache_bytes", "16MiB")
}

/// A clock that returns the current position in the recording of `mount`.
fn clock_of(mount: &Mount) -> PositionClock {
    let disk = mount.shared_disk();
    Box::new(move || disk.lock().expect("the file system task does not panic").recording().position())
}

/// A history whose clock is the recording of `mount`.
pub(super) fn history_of(mount: &Mount) -> Arc<History> {
    Arc::new(History::new(clock_of(mount)))
}

/// Records several lives of a server on an empty disk.
pub(super) fn record(seed: u64, durability: &str) -> RecordedRun {
    let mount = Mount::new();
    let history = history_of(&mount);
    run_lives(&mount, &history, seed, durability);
    let recording = mount.disk().recording().clone();
    RecordedRun { recording, history, seed, server_start: 0 }
}

/// Records several lives of a server on the state that a power cut left of an earlier recording. The
/// recording includes the recovery, so the second of two cuts may come at any time.
pub(super) fn record_after(before: &RecordedRun, cut: PowerCut, seed: u64) -> RecordedRun {
    let disk = Disk::from_tree(&crash_state(&before.recording, cut, NO_SYNCS_IGNORED));
    let start = disk.recording().position();
    let mount = Mount::of_disk(disk);
    let history = Arc::new(before.history.after_cut(cut.at, clock_of(&mount)));
    run_lives(&mount, &history, seed, "full");
    let recording = mount.disk().recording().clone();
    RecordedRun { recording, history, seed, server_start: start }
}

/// Runs several lives under load, each ended by SIGTERM, or by `kill -9` when idle or in the middle.
fn run_lives(mount: &Mount, history: &Arc<History>, seed: u64, durability: &str) {
    let mut rng = Rng::new(seed);
    let setup = setup(mount).with("durability", durability);
    let runtime = super::runtime();
    for life in 0..2 + rng.below(2) {
        let mut server = setup.start();
        let client = server.client();
        let found = runtime.block_on(check(&client, history, NOW, &mut rng));
        let found = found.unwrap_or_else(|broken| panic!("{}\n{}", broken.join("\n"), server.log()));
        history.observe(&found);
        if history.allowed(&HistoryItem::Bucket, NOW) == [ItemValue::Absent] {
            runtime.block_on(workload::create_bucket(&client, history)).expect("the bucket is created");
        }
        let sizes = *rng.pick(&[SMALL_SIZES, MIXED_SIZES]);
        let steps = 10 + rng.index(12);
        let workers = 2 + rng.below(3);
        // Distinct rounds give distinct bodies in all lives, including those before a cut.
        let round = seed % 1000 * 10 + life;
        let plan = WorkloadPlan { round, workers, steps, sizes, full_part_in: 20, is_written_back: false };
        let end = rng.below(4);
        if end == 0 {
            let kill = KillPoint::choose(&mut rng, 60);
            let plan = WorkloadPlan { steps: usize::MAX, ..plan };
            runtime.block_on(workload::run_until_killed(&mut server, history, &plan, &rng, kill));
            continue;
        }
        let failures = runtime.block_on(workload::run(&client, history, &plan, &rng));
        assert!(failures.is_empty(), "under load: {failures:?}\n{}", server.log());
        if end == 1 { server.kill() } else { server.stop() }
    }
}

/// Sizes for many operations with few bytes.
const SMALL_SIZES: &[u64] = &[1, 300, 5_000, 70_000];

/// Sizes that include bodies of several chunks.
const MIXED_SIZES: &[u64] = &[300, 5_000, 70_000, 200_000, 2_500_000];
