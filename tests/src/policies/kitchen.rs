//! A gateway before an origin, with a cold tier, to try policies on as a person does.

use super::acting::{Bench, content};
use crate::s3::{Client, whole};
use crate::server::{Server, Setup, runtime};
use http::Method;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Our own bucket, one that fronts the bucket of the origin, and that.
pub(super) const OWN: &str = "lake";
pub(super) const FRONT: &str = "front";
const THERE: &str = "there";
/// Bytes of each object.
pub(super) const BYTES: usize = 5000;

/// See the module.
pub(super) struct Kitchen {
    pub(super) bench: Bench,
    origin: Server,
    pub(super) server: Server,
}

impl Kitchen {
    pub(super) fn new() -> Self {
        Self::of(|setup| setup)
    }

    /// One whose server is set up further.
    pub(super) fn of(further: impl FnOnce(Setup) -> Setup) -> Self {
        let bench = Bench::new();
        let origin = Setup::new(bench.room.path().join("origin")).start();
        runtime().block_on(origin.client().create_bucket(THERE)).expect("made");
        let setup = further(bench.setup.with_upstream("far", origin.s3, THERE, "5s"));
        let bench = Bench { setup, ..bench };
        let server = bench.setup.start();
        runtime().block_on(server.client().create_bucket(OWN)).expect("made");
        bench.say(&["bucket", "bind", FRONT, "--upstream", "far", "--ttl", "1h"]);
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
        let path = self.bench.room.path().join("p.yaml");
        fs::write(&path, text).expect("written");
        self.apply(&path);
    }

    pub(super) fn apply(&self, path: &Path) {
        self.bench.say(&["policy", "apply", &path.display().to_string()]);
    }

    pub(super) fn client(&self) -> Client {
        self.server.client()
    }

    /// An object comes to the origin.
    pub(super) fn there(&self, key: &str) {
        let object = whole(content(key, BYTES));
        runtime().block_on(self.origin.client().put(THERE, key, object)).expect("stored");
    }

    /// An object comes into our own bucket.
    pub(super) fn put_tagged(&self, key: &str, tags: &str) {
        let headers = [("x-amz-tagging", tags.to_owned())];
        let body = whole(content(key, BYTES));
        let path = format!("/{OWN}/{key}");
        runtime().block_on(self.client().call(Method::PUT, &path, &headers, body)).expect("stored");
    }

    /// Reads an object of the origin through the gateway, and says whether it was kept here.
    pub(super) fn is_hit(&self, key: &str) -> bool {
        self.is_hit_for(key, &[])
    }

    /// The same for a client that sends these headers, too.
    pub(super) fn is_hit_for(&self, key: &str, headers: &[(&'static str, String)]) -> bool {
        let path = format!("/{FRONT}/{key}");
        let answer = runtime().block_on(self.client().call(Method::GET, &path, headers, whole("")));
        let answer = answer.expect("read");
        assert_eq!(answer.body, content(key, BYTES), "{key}");
        answer.header("x-mlgw-cache").expect("it says so").starts_with("hit; tier=hot")
    }

    /// Reads an object of the origin for the first time, and says how much is kept by whom.
    pub(super) fn kept_by(&self, rule: &str, key: &str) -> u64 {
        self.there(key);
        assert!(!self.is_hit(key));
        self.kept(rule)
    }

    /// How much was kept because of a rule.
    pub(super) fn kept(&self, rule: &str) -> u64 {
        let told = self.bench.ask(&["policy", "outcomes"]);
        let rules = told["rules"].as_array().expect("rules").iter();
        let of_rule = rules.filter(|one| one["rule"] == rule).map(|one| one["kept_bytes"].as_u64());
        of_rule.map(|kept| kept.expect("bytes")).sum()
    }

    /// Reads an object of the origin for the first time, and says whether it was decided to keep it.
    pub(super) fn is_kept(&self, key: &str) -> bool {
        self.there(key);
        let before = self.figure("mlgw_policy_blocks_total{decision=\"keep\"}");
        assert!(!self.is_hit(key));
        self.figure("mlgw_policy_blocks_total{decision=\"keep\"}") > before
    }

    pub(super) fn figure(&self, name: &str) -> u64 {
        let metrics = self.bench.say(&["status", "--metrics"]);
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}: {metrics}")).trim().parse().expect("a number")
    }

    pub(super) fn pinned(&self, place: &str) -> Value {
        self.bench.ask(&["policy", "explain", place])["kept"]["pinned"].clone()
    }
}
