//! `kill -9` at random moments: acknowledged writes are present, unacknowledged writes are absent or whole.

use std::sync::Arc;

use super::runtime;
use crate::check::check;
use crate::history::{History, NOW};
use crate::seed::{Rng, seeded_rng, setting};
use crate::server::{ServerProcess, ServerSetup};
use crate::store::assert_undamaged;
use crate::workload::{self, KillPoint, SIZES, WorkloadPlan};

const ROUNDS: u64 = 20;
const WORKERS: u64 = 6;
const ANSWERS_MAX: u64 = 300;

#[test]
fn after_kill_9_under_load_every_promise_is_kept() {
    let mut rng = seeded_rng("sigkill", 1);
    let rounds = setting("MLGW_CRASH_ROUNDS", ROUNDS);
    let runtime = runtime();
    let mut run = KillRun::new();
    for round in 0..rounds {
        if round > 0 && rng.chance(1, 7) {
            run.end(&runtime, &mut rng);
            run = KillRun::new();
        }
        let server = run.start_and_check(&runtime, &mut rng, round);
        let acknowledged = runtime.block_on(run.load_until_killed(server, round, &mut rng));
        eprintln!("sigkill: round {} of {rounds}: killed after {acknowledged} answers", round + 1);
    }
    run.end(&runtime, &mut rng);
}

/// A data directory over its rounds.
struct KillRun {
    dir: tempfile::TempDir,
    history: Arc<History>,
}

impl KillRun {
    fn new() -> Self {
        // On a disk, not in memory: `kill -9` keeps the page cache, so only the paths differ.
        let dir = tempfile::tempdir().expect("a directory");
        Self { dir, history: Arc::new(History::new(Box::new(|| 0))) }
    }

    fn setup(&self) -> ServerSetup {
        ServerSetup::new(self.dir.path().join("mlgw-data"))
            .with("hot.segment_bytes", "1MiB")
            .with("hot.compact_dead_percent", "10")
            .with("hot.compact_interval", "20ms")
            .with("hot.compact_bytes_per_second", "1GiB")
            .with("catalogue.log_bytes_max", "256KiB")
    }

    /// Reads directly after the start and before any write, then takes the observed values as the new truth.
    fn start_and_check(&self, runtime: &tokio::runtime::Runtime, rng: &mut Rng, round: u64) -> ServerProcess {
        let server = self.setup().start();
        let found = runtime.block_on(check(&server.client(), &self.history, NOW, rng));
        match found {
            Ok(found) => self.history.reset_to(found),
            Err(broken) => {
                panic!(
                    "before round {}: guarantees violated:\n{}\n{}",
                    round + 1,
                    broken.join("\n"),
                    server.log()
                )
            }
        }
        server
    }

    /// Runs load until a random number of responses and a random delay after it, then `kill -9`.
    async fn load_until_killed(&self, mut server: ServerProcess, round: u64, rng: &mut Rng) -> usize {
        let client = server.client();
        if self.history.allowed(&crate::history::HistoryItem::Bucket, NOW)
            == [crate::history::ItemValue::Absent]
        {
            workload::create_bucket(&client, &self.history).await.expect("the bucket is created");
        }
        let kill = KillPoint::choose(rng, ANSWERS_MAX);
        let plan = WorkloadPlan {
            round: round + 1,
            workers: WORKERS,
            steps: usize::MAX,
            sizes: SIZES,
            full_part_in: 6,
            is_written_back: false,
        };
        let acknowledged = workload::run_until_killed(&mut server, &self.history, &plan, rng, kill).await;
        assert_undamaged(&self.dir.path().join("mlgw-data"));
        acknowledged
    }

    fn end(&self, runtime: &tokio::runtime::Runtime, rng: &mut Rng) {
        self.start_and_check(runtime, rng, 0).stop();
        let server = self.setup().start();
        let again = runtime.block_on(check(&server.client(), &self.history, NOW, rng));
        assert_eq!(again.err(), None, "after SIGTERM");
        server.stop();
    }
}
