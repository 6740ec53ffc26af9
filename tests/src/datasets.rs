//! Datasets and the jobs that are done with them: a gateway before an origin, with a proxy between them that
//! counts and does harm.
//!
//! - `warming`: what is warmed is read without the origin, also after a crash midway; and goes when it is let
//!   go of;
//! - `controls`: one job at a time, an end before its time, the clock, pins, and what is refused;
//! - `syncing`: imports from several sources, again and again, also after a crash midway;
//! - `native`: datasets of our own buckets;
//! - `migrating`: bound buckets that are moved to another upstream.

mod controls;
mod migrating;
mod native;
mod syncing;
mod warming;

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use crate::content::Content;
use crate::proxy::{FaultProxy, Rule};
use crate::s3::{Client, whole};
use crate::server::{Server, Setup, runtime};

/// The buckets at the origin: the second one is another upstream.
const THERE: &str = "lake";
const POND: &str = "pond";
/// The bucket here, bound to the first.
const HERE: &str = "bound";
const MIB: usize = 1 << 20;

/// An origin, a proxy before it, and a gateway whose bucket is bound to it.
struct Bench {
    _room: tempfile::TempDir,
    origin: Server,
    proxy: FaultProxy,
    setup: Setup,
    gateway: Option<Server>,
}

impl Bench {
    fn new() -> Self {
        Self::with(|setup| setup)
    }

    /// With other settings of the gateway.
    fn with(change: impl FnOnce(Setup) -> Setup) -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let origin = Setup::new(room.path().join("origin")).start();
        let proxy = FaultProxy::start(origin.s3);
        for bucket in [THERE, POND] {
            runtime().block_on(origin.client().create_bucket(bucket)).expect("made");
        }
        let mut setup = Setup::new(room.path().join("gateway"));
        for (upstream, bucket) in [("far", THERE), ("near", POND)] {
            setup = setup.with_upstream(upstream, proxy.addr(), bucket, "30s");
        }
        let setup = change(setup);
        let gateway = Some(setup.start());
        let bench = Self { _room: room, origin, proxy, setup, gateway };
        bench.done(&["bucket", "bind", HERE, "--upstream", "far", "--ttl", "1h"]);
        bench.proxy.clear_log();
        bench
    }

    fn server(&self) -> &Server {
        self.gateway.as_ref().expect("it runs")
    }

    fn here(&self) -> Client {
        self.server().client()
    }

    fn there(&self) -> Client {
        self.origin.client()
    }

    /// Puts an object at the origin.
    async fn put(&self, bucket: &str, key: &str, id: u64, length: usize) -> Bytes {
        let bytes = Content { id, length }.bytes();
        self.there().put(bucket, key, whole(bytes.clone())).await.expect("stored");
        bytes
    }

    /// Kills the gateway and starts it again, before a proxy with these rules.
    fn crash(&mut self, rules: Vec<Rule>) {
        self.gateway.as_mut().expect("it runs").kill();
        self.gateway = None;
        self.proxy.set_rules(rules);
        self.gateway = Some(self.setup.start());
    }

    /// What a command answers, which must do what it is asked.
    fn done(&self, words: &[&str]) -> Value {
        let (said, status) = self.setup.command(&[&["--output", "json", "--yes"], words].concat());
        assert_eq!(status, Some(0), "{words:?}: {said}");
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{words:?}: {error}: {said}"))
    }

    /// What a command says that must fail so.
    fn refused(&self, words: &[&str], status: i32, what: &str) {
        let (said, found) = self.setup.command(words);
        assert!(found == Some(status) && said.contains(what), "{words:?}: {found:?} {said}");
    }

    fn job(&self, id: u64) -> Value {
        self.done(&["job", "show", &id.to_string()])
    }

    /// Requests of this method that reached the proxy since it was last asked.
    fn asked(&self, part: &str) -> Vec<String> {
        let lines = self.proxy.log();
        self.proxy.clear_log();
        let shown = lines.into_iter().map(|line| format!("{} {}", line.method, line.target));
        shown.filter(|line| line.contains(part)).collect()
    }
}

/// The number of a job that was answered.
fn id_of(job: &Value) -> u64 {
    job["id"].as_u64().unwrap_or_else(|| panic!("a job: {job}"))
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("never: {what}");
}
