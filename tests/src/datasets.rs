//! Datasets and their jobs: a gateway with an origin, and between them a proxy that counts requests and
//! injects faults.
//!
//! - `warming`: a warmed dataset is read without the origin, also after a crash during the job, until it is
//!   cleared;
//! - `controls`: one job at a time, cancellation, schedules, pins, and refused commands;
//! - `syncing`: repeated imports from several sources, also after a crash during the job;
//! - `native`: datasets of local buckets;
//! - `migrating`: remote-backed buckets that are moved to another upstream.

mod controls;
mod local;
mod migrating;
mod syncing;
mod warming;

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use crate::content::TestContent;
use crate::proxy::{FaultProxy, Rule};
use crate::s3::{S3TestClient, full_body};
use crate::server::{ServerProcess, ServerSetup, runtime};

/// Buckets at the origin. The second belongs to another upstream.
const ORIGIN_BUCKET: &str = "lake";
const OTHER_ORIGIN_BUCKET: &str = "pond";
/// The remote-backed bucket here, bound to the first.
const BUCKET: &str = "bound";
const MIB: usize = 1 << 20;

/// An origin, a proxy in front of it, and a gateway with a bucket that is bound to it.
struct DatasetBench {
    _dir: tempfile::TempDir,
    origin: ServerProcess,
    proxy: FaultProxy,
    setup: ServerSetup,
    gateway: Option<ServerProcess>,
}

impl DatasetBench {
    fn new() -> Self {
        Self::with_setup(|setup| setup)
    }

    /// Starts the servers with changed settings of the gateway.
    fn with_setup(change: impl FnOnce(ServerSetup) -> ServerSetup) -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let origin = ServerSetup::new(room.path().join("origin")).start();
        let proxy = FaultProxy::start(origin.s3);
        for bucket in [ORIGIN_BUCKET, OTHER_ORIGIN_BUCKET] {
            runtime().block_on(origin.client().create_bucket(bucket)).expect("made");
        }
        let mut setup = ServerSetup::new(room.path().join("gateway"));
        for (upstream, bucket) in [("far", ORIGIN_BUCKET), ("near", OTHER_ORIGIN_BUCKET)] {
            setup = setup.with_upstream(upstream, proxy.addr(), bucket, "30s");
        }
        let setup = change(setup);
        let gateway = Some(setup.start());
        let bench = Self { _dir: room, origin, proxy, setup, gateway };
        bench.run(&["bucket", "bind", BUCKET, "--upstream", "far", "--ttl", "1h"]);
        bench.proxy.clear_log();
        bench
    }

    fn server(&self) -> &ServerProcess {
        self.gateway.as_ref().expect("the gateway runs")
    }

    fn client(&self) -> S3TestClient {
        self.server().client()
    }

    fn origin_client(&self) -> S3TestClient {
        self.origin.client()
    }

    /// Puts an object at the origin.
    async fn put(&self, bucket: &str, key: &str, id: u64, length: usize) -> Bytes {
        let bytes = TestContent { id, length }.bytes();
        self.origin_client().put(bucket, key, full_body(bytes.clone())).await.expect("stored");
        bytes
    }

    /// Kills the gateway and restarts it behind a proxy with these rules.
    fn crash(&mut self, rules: Vec<Rule>) {
        self.gateway.as_mut().expect("the gateway runs").kill();
        self.gateway = None;
        self.proxy.set_rules(rules);
        self.gateway = Some(self.setup.start());
    }

    /// Runs a command, which must succeed, and returns its output.
    fn run(&self, words: &[&str]) -> Value {
        let (output, status) = self.setup.command(&[&["--output", "json", "--yes"], words].concat());
        assert_eq!(status, Some(0), "{words:?}: {output}");
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{words:?}: {error}: {output}"))
    }

    /// Runs a command, which must fail with this exit status and a message that contains `what`.
    fn assert_refused(&self, words: &[&str], status: i32, what: &str) {
        let (output, found) = self.setup.command(words);
        assert!(found == Some(status) && output.contains(what), "{words:?}: {found:?} {output}");
    }

    fn job(&self, id: u64) -> Value {
        self.run(&["job", "show", &id.to_string()])
    }

    /// Returns the requests that contain `part` and reached the proxy since the last call.
    fn take_requests(&self, part: &str) -> Vec<String> {
        let lines = self.proxy.log();
        self.proxy.clear_log();
        let shown = lines.into_iter().map(|line| format!("{} {}", line.method, line.target));
        shown.filter(|line| line.contains(part)).collect()
    }
}

/// Returns the id of a job.
fn id_of(job: &Value) -> u64 {
    job["id"].as_u64().unwrap_or_else(|| panic!("a job: {job}"))
}

/// Waits until a condition holds.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if is_so() {
            return;
        }
        mlgw_common::time::block_for(Duration::from_millis(20));
    }
    panic!("never: {what}");
}
