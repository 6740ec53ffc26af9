//! `kill -9` while clients write, segments move between tiers and upstreams that fail now and then, copies
//! come and go, and dirty objects are written back to their origin. In every mix, acknowledged writes are
//! present and each read returns one version of an object.
//!
//! - `native`: segments of a local bucket move to the cold tier and to an upstream and come back;
//! - `write-through`: copies are warmed, dropped and fetched again;
//! - `write-back`: the same happens to the copies of a write-back bucket.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::check::{BUCKET, check};
use crate::history::{History, HistoryItem, ItemValue, NOW};
use crate::proxy::{Fault, FaultProxy, Rule};
use crate::seed::{Rng, seeded_rng, setting};
use crate::server::{ServerProcess, ServerSetup, binary, runtime};
use crate::stop_on_drop::StopOnDrop;
use crate::workload::{self, KillPoint, WorkloadPlan};

const ROUNDS: u64 = 5;
const WORKERS: u64 = 4;
const ANSWERS_MAX: u64 = 600;
const SIZES: &[u64] = &[1, 300, 5_000, 70_000, 200_000, 2_500_000];
/// The bucket for segments, on another server.
const SEGMENT_BUCKET: &str = "attic";

/// Commands that run repeatedly beside the clients, by kind of bucket.
const SEGMENT_COMMANDS: &[&[&str]] = &[
    &["tier", "drain", "hot"],
    &["tier", "drain", "cold"],
    &["tier", "drain", "upstream"],
    &["tier", "compact", "hot", "--dead-percent", "5"],
];
const COPY_COMMANDS: &[&[&str]] = &[
    &["dataset", "warm", "all"],
    &["dataset", "clear", "all"],
    &["dataset", "evict", "all", "--older-than", "0s"],
    &["bucket", "refresh", BUCKET],
    &["tier", "drain", "hot"],
    &["tier", "drain", "cold"],
];

#[test]
fn kills_while_segments_go_between_tiers_break_no_promise() {
    TierRun::new("native").run_rounds("crash while segments move", 1);
}

#[test]
fn kills_while_a_bucket_is_written_through_break_no_promise() {
    TierRun::new("write-through").run_rounds("crash while written through", 2);
}

#[test]
fn kills_while_a_bucket_is_written_back_break_no_promise() {
    TierRun::new("write-back").run_rounds("crash while written back", 3);
}

/// A data directory and the stores behind it, over several kills.
struct TierRun {
    temp_dir: tempfile::TempDir,
    mode: &'static str,
    origin: ServerProcess,
    /// Proxies before the origin and before the store of segments.
    origin_proxy: FaultProxy,
    segment_proxy: FaultProxy,
    history: Arc<History>,
}

impl TierRun {
    fn new(mode: &'static str) -> Self {
        let temp_dir = tempfile::tempdir().expect("a directory");
        let origin = ServerSetup::new(temp_dir.path().join("origin")).start();
        runtime().block_on(async {
            for bucket in [BUCKET, SEGMENT_BUCKET] {
                origin.client().create_bucket(bucket).await.expect("made");
            }
        });
        let (origin_proxy, segment_proxy) = (FaultProxy::start(origin.s3), FaultProxy::start(origin.s3));
        Self {
            temp_dir,
            mode,
            origin,
            origin_proxy,
            segment_proxy,
            history: Arc::new(History::new(Box::new(|| 0))),
        }
    }

    fn is_remote_backed(&self) -> bool {
        self.mode != "native"
    }

    fn data(&self) -> PathBuf {
        self.temp_dir.path().join("data")
    }

    fn setup(&self) -> ServerSetup {
        let cold = self.temp_dir.path().join("cold");
        std::fs::create_dir_all(&cold).expect("a directory");
        let setup = ServerSetup::new(self.data())
            .with_upstream("far", self.origin_proxy.addr(), BUCKET, "5s")
            .with_upstream("attic", self.segment_proxy.addr(), SEGMENT_BUCKET, "2s")
            .with("cold.dirs", cold.display())
            .with("cold.move_bytes_per_second", "10GiB")
            .with("hot.segment_bytes", "1MiB")
            .with("hot.compact_dead_percent", "10")
            .with("hot.compact_interval", "20ms")
            .with("hot.compact_bytes_per_second", "1GiB")
            .with("catalogue.log_bytes_max", "256KiB");
        // For a remote-backed bucket the origin is the source of truth, and dirty objects stay local.
        if self.is_remote_backed() { setup } else { setup.with("cold.upstream", "attic") }
    }

    fn run_rounds(&self, name: &str, seed: u64) {
        let mut rng = seeded_rng(name, seed);
        for round in 0..setting("MLGW_CRASH_ROUNDS", ROUNDS) {
            let server = self.start_and_check(&mut rng, round);
            if round == 0 {
                self.make_bucket(&server);
            }
            self.set_faults(&mut rng);
            let answers = self.load_until_killed(server, round, &mut rng);
            eprintln!("{name}: round {round}: killed after {answers} answers");
        }
        let server = self.start_and_check(&mut rng, 99);
        if self.mode == "write-back" {
            let (output, status) = self.setup().command(&["--quiet", "bucket", "flush", BUCKET]);
            assert!(status == Some(0), "{output}");
        }
        if self.is_remote_backed() {
            runtime().block_on(self.assert_origin_matches(&server));
        }
        server.stop();
        self.assert_undamaged();
    }

    /// Asserts that `store check` finds no damage in the directories; data at an upstream is not checked.
    fn assert_undamaged(&self) {
        let done = Command::new(binary())
            .args(["store", "check"])
            .arg(self.data())
            .env_clear()
            .env("MLGW_COLD__DIRS", self.temp_dir.path().join("cold"))
            .output()
            .expect("the binary runs");
        let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        assert_eq!(done.status.code(), Some(0), "{output}");
    }

    fn make_bucket(&self, server: &ServerProcess) {
        let bucket = HistoryItem::Bucket;
        match self.mode {
            "native" => {
                runtime().block_on(workload::create_bucket(&server.client(), &self.history)).expect("made");
            }
            mode => {
                let act = self.history.send(bucket, ItemValue::Present(None));
                self.run_command(&[
                    "bucket",
                    "bind",
                    BUCKET,
                    "--upstream",
                    "far",
                    "--mode",
                    mode,
                    "--ttl",
                    "1h",
                ]);
                self.history.acknowledge(act);
                self.run_command(&["dataset", "create", "all", "--bucket", BUCKET]);
            }
        }
    }

    fn run_command(&self, words: &[&str]) {
        let (output, status) = self.setup().command(words);
        assert_eq!(status, Some(0), "{words:?}: {output}");
    }

    /// Sets the faults of the stores for this round; clients must not be affected by them.
    fn set_faults(&self, rng: &mut Rng) {
        let slow_down = || Fault::Status { status: 503, code: "SlowDown".to_owned() };
        let seed = rng.next();
        let with_probability = |rule: Rule, probability: f64| rule.probability(probability, seed);
        let delay = Rule::new(Fault::Delay { by: Duration::from_millis(1 + rng.below(5)) });
        let segment_rules = vec![
            with_probability(Rule::new(slow_down()), 0.1),
            with_probability(Rule::new(Fault::CutAnswer { after: 50_000 }).method("GET"), 0.1),
            with_probability(Rule::new(Fault::CutRequest { after: 50_000 }).method("PUT"), 0.1),
            with_probability(Rule::new(Fault::Corrupt { at: 70_000 }).method("GET"), 0.1),
            with_probability(Rule::new(Fault::Truncate { after: 1000 }).method("GET"), 0.05),
        ];
        self.segment_proxy.set_rules(segment_rules);
        let mut object_rules = Vec::new();
        // Only requests of the background write-back fail: a failure of a forwarded request may reach the
        // client.
        for header in ["if-none-match", "if-match"].iter().filter(|_| self.mode == "write-back") {
            for fault in [slow_down(), Fault::CutBeforeAnswer, Fault::CutRequest { after: 100 }] {
                object_rules.push(with_probability(Rule::new(fault).method("PUT").header(header), 0.1));
            }
        }
        object_rules.push(with_probability(delay, 0.3));
        self.origin_proxy.set_rules(object_rules);
    }

    /// Reads directly after the start and before any write, with stores that work, then takes the observed
    /// values as the new truth.
    fn start_and_check(&self, rng: &mut Rng, round: u64) -> ServerProcess {
        self.segment_proxy.set_rules(vec![]);
        self.origin_proxy.set_rules(vec![]);
        let server = self.setup().start();
        match runtime().block_on(check(&server.client(), &self.history, NOW, rng)) {
            Ok(found) => self.history.reset_to(found),
            Err(broken) => {
                panic!("before round {round}: guarantees violated:\n{}\n{}", broken.join("\n"), server.log())
            }
        }
        server
    }

    /// Runs load, and moves beside it, until a random number of responses and a random delay after it, then
    /// `kill -9`.
    fn load_until_killed(&self, mut server: ServerProcess, round: u64, rng: &mut Rng) -> usize {
        let kill = KillPoint::choose(rng, ANSWERS_MAX);
        let plan = WorkloadPlan {
            round: round + 1,
            workers: WORKERS,
            steps: usize::MAX,
            sizes: SIZES,
            full_part_in: 6,
            is_written_back: self.mode == "write-back",
        };
        let (stop, mut moves) = (AtomicBool::new(false), rng.fork(round));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let all = if self.is_remote_backed() { COPY_COMMANDS } else { SEGMENT_COMMANDS };
                while !stop.load(Ordering::Relaxed) {
                    // A command is refused while another one of its kind runs, and after the server was
                    // killed.
                    let words: &[&str] = moves.pick::<&[&str]>(all);
                    drop(self.setup().command(words));
                    mlgw_common::time::block_for(Duration::from_millis(moves.below(60)));
                }
            });
            let _stopping = StopOnDrop(&stop);
            let load = workload::run_until_killed(&mut server, &self.history, &plan, rng, kill);
            runtime().block_on(load)
        })
    }

    /// Checks that the origin has exactly the objects that the server returns.
    async fn assert_origin_matches(&self, server: &ServerProcess) {
        let (here, there) = (server.client(), self.origin.client());
        let (listed, at_origin) = (here.list(BUCKET, 1000).await, there.list(BUCKET, 1000).await);
        let (listed, at_origin) = (listed.expect("listed"), at_origin.expect("listed"));
        assert_eq!(format!("{listed:?}"), format!("{at_origin:?}"));
        for row in listed {
            let read = here.get(BUCKET, &row.key).await.expect("here").body;
            let found = there.get(BUCKET, &row.key).await.expect("exists").body;
            assert!(
                read == found,
                "{:?}: {} bytes local, {} at the origin",
                row.key,
                read.len(),
                found.len()
            );
        }
    }
}
