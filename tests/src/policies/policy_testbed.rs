//! A gateway with an origin and a cold tier, on which policies are tried as a user would.

use super::acting::{TieredBench, content};
use crate::s3::{S3TestClient, full_body};
use crate::server::{ServerProcess, ServerSetup, runtime};
use http::Method;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The local bucket, the remote-backed bucket, and the bucket at the origin.
pub(super) const LOCAL_BUCKET: &str = "lake";
pub(super) const REMOTE_BUCKET: &str = "front";
const ORIGIN_BUCKET: &str = "there";
/// Size of each object in bytes.
pub(super) const BYTES: usize = 5000;

/// An origin, and a gateway in front of it with policies.
pub(super) struct PolicyTestbed {
    pub(super) bench: TieredBench,
    origin: ServerProcess,
    pub(super) server: ServerProcess,
}

impl PolicyTestbed {
    pub(super) fn new() -> Self {
        Self::with_setup(|setup| setup)
    }

    /// Starts one with further settings of its server.
    pub(super) fn with_setup(further: impl FnOnce(ServerSetup) -> ServerSetup) -> Self {
        let bench = TieredBench::new();
        let origin = ServerSetup::new(bench.dir.path().join("origin")).start();
        runtime().block_on(origin.client().create_bucket(ORIGIN_BUCKET)).expect("made");
        let setup = further(bench.setup.with_upstream("far", origin.s3, ORIGIN_BUCKET, "5s"));
        let bench = TieredBench { setup, ..bench };
        let server = bench.setup.start();
        runtime().block_on(server.client().create_bucket(LOCAL_BUCKET)).expect("made");
        bench.run(&["bucket", "bind", REMOTE_BUCKET, "--upstream", "far", "--ttl", "1h"]);
        Self { bench, origin, server }
    }

    pub(super) fn with_recipe(name: &str) -> Self {
        let kitchen = Self::new();
        kitchen.apply_recipe(name);
        kitchen
    }

    pub(super) fn apply_recipe(&self, name: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/recipes").join(name);
        self.apply(&path.with_extension("yaml"));
    }

    pub(super) fn apply_text(&self, text: &str) {
        let path = self.bench.dir.path().join("p.yaml");
        fs::write(&path, text).expect("written");
        self.apply(&path);
    }

    pub(super) fn apply(&self, path: &Path) {
        self.bench.run(&["policy", "apply", &path.display().to_string()]);
    }

    pub(super) fn client(&self) -> S3TestClient {
        self.server.client()
    }

    /// Puts an object at the origin.
    pub(super) fn put_at_origin(&self, key: &str) {
        let object = full_body(content(key, BYTES));
        runtime().block_on(self.origin.client().put(ORIGIN_BUCKET, key, object)).expect("stored");
    }

    /// Puts an object with tags into the local bucket.
    pub(super) fn put_tagged(&self, key: &str, tags: &str) {
        let headers = [("x-amz-tagging", tags.to_owned())];
        let body = full_body(content(key, BYTES));
        let path = format!("/{LOCAL_BUCKET}/{key}");
        runtime().block_on(self.client().call(Method::PUT, &path, &headers, body)).expect("stored");
    }

    /// Reads an object of the origin through the gateway. Returns true if it was cached.
    pub(super) fn is_hit(&self, key: &str) -> bool {
        self.is_hit_for(key, &[])
    }

    /// The same for a client that sends these headers in addition.
    pub(super) fn is_hit_for(&self, key: &str, headers: &[(&'static str, String)]) -> bool {
        let path = format!("/{REMOTE_BUCKET}/{key}");
        let answer = runtime().block_on(self.client().call(Method::GET, &path, headers, full_body("")));
        let answer = answer.expect("read");
        assert_eq!(answer.body, content(key, BYTES), "{key}");
        answer.header("x-mlgw-cache").expect("header is present").starts_with("hit; tier=hot")
    }

    /// Reads an object of the origin for the first time. Returns the bytes that are kept because of a rule.
    pub(super) fn kept_by_first_read(&self, rule: &str, key: &str) -> u64 {
        self.put_at_origin(key);
        assert!(!self.is_hit(key));
        self.kept(rule)
    }

    /// Returns the bytes that were kept because of a rule.
    pub(super) fn kept(&self, rule: &str) -> u64 {
        let outcomes = self.bench.run_json(&["policy", "outcomes"]);
        let rules = outcomes["rules"].as_array().expect("rules").iter();
        let of_rule = rules.filter(|one| one["rule"] == rule).map(|one| one["kept_bytes"].as_u64());
        of_rule.map(|kept| kept.expect("bytes")).sum()
    }

    /// Reads an object of the origin for the first time. Returns true if the engine decided to keep it.
    pub(super) fn is_decided_to_keep(&self, key: &str) -> bool {
        self.put_at_origin(key);
        let before = self.figure("mlgw_policy_blocks_total{decision=\"keep\"}");
        assert!(!self.is_hit(key));
        self.figure("mlgw_policy_blocks_total{decision=\"keep\"}") > before
    }

    pub(super) fn figure(&self, name: &str) -> u64 {
        let metrics = self.bench.run(&["status", "--metrics"]);
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}: {metrics}")).trim().parse().expect("a number")
    }

    pub(super) fn pinned(&self, place: &str) -> Value {
        self.bench.run_json(&["policy", "explain", place])["kept"]["pinned"].clone()
    }
}
