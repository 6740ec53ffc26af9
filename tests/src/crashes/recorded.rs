//! Load on a recording file system, over several lives of the server.
//!
//! The settings are small ones, so that within a second or two segments are sealed and begun, the log is
//! rolled, the state flushed and the log purged: every path that syncs is in the recording.

use std::sync::Arc;

use crate::check::check;
use crate::history::{History, NOW};
use crate::mount::Mount;
use crate::recording::Recording;
use crate::seed::Rng;
use crate::server::Setup;
use crate::workload::{self, Plan};

/// Where the data directory lies below the mount: the server makes it, so its name too must be synced.
pub(super) const DATA_DIR: &str = "mlgw-data";

/// What happened, and what was promised when.
pub(super) struct Recorded {
    pub(super) recording: Recording,
    pub(super) history: Arc<History>,
    pub(super) seed: u64,
}

/// A server whose disk is `mount`, with small settings.
pub(super) fn setup(mount: &Mount) -> Setup {
    small(Setup::new(mount.path().join(DATA_DIR)))
}

/// Settings that make everything roll early.
pub(super) fn small(setup: Setup) -> Setup {
    setup
        .with("hot.segment_bytes", "16MiB")
        .with("hot.reserve_bytes", "1MiB")
        .with("catalogue.log_bytes_max", "64KiB")
        .with("catalogue.cache_bytes", "16MiB")
}

/// A history whose clock is the recording of `mount`.
pub(super) fn history_of(mount: &Mount) -> Arc<History> {
    let disk = mount.shared_disk();
    let position = move || disk.lock().expect("the file system never panics").recording().position();
    Arc::new(History::new(Box::new(position)))
}

/// Records two or three lives of a server under load, ended by SIGTERM or `kill -9`.
pub(super) fn record(seed: u64, durability: &str) -> Recorded {
    let mut rng = Rng::new(seed);
    let mount = Mount::new();
    let history = history_of(&mount);
    let setup = setup(&mount).with("durability", durability);
    let runtime = super::runtime();
    let lives = 2 + rng.below(2);
    for life in 0..lives {
        let mut server = setup.start();
        let client = server.client();
        if life == 0 {
            runtime.block_on(workload::create_bucket(&client, &history)).expect("the bucket is made");
        }
        let sizes = *rng.pick(&[SMALL, MIXED]);
        let steps = 10 + rng.index(12);
        let workers = 2 + rng.below(3);
        let plan = Plan { round: life + 1, workers, steps, sizes, full_part_in: 20 };
        let failures = runtime.block_on(workload::run(&client, &history, &plan, &rng));
        assert!(failures.is_empty(), "under load: {failures:?}\n{}", server.log());
        let live = runtime.block_on(check(&client, &history, NOW, &mut rng));
        assert_eq!(live.err(), None, "without any crash");
        if rng.chance(1, 2) { server.stop() } else { server.kill() }
    }
    let recording = mount.disk().recording().clone();
    Recorded { recording, history, seed }
}

/// Many acts, few bytes.
const SMALL: &[u64] = &[1, 300, 5_000, 70_000];

/// Bodies of several chunks among them.
const MIXED: &[u64] = &[300, 5_000, 70_000, 200_000, 2_500_000];
