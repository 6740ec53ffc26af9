//! Two servers that share a prefix of an upstream: a clone of a directory, a restored copy, a foreign server,
//! and one whose owner mark cannot be read. Nothing that another server refers to is ever deleted.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::{TierObjects, assert_reads_back, filled, runtime};
use crate::proxy::{Fault, FaultProxy, Rule};
use crate::s3::full_body;
use crate::server::{ServerProcess, ServerSetup};

use super::BUCKET;

/// The bucket for segments.
const SEGMENT_BUCKET: &str = "segments";
/// The owner mark of the prefix.
const MARK: &str = "pre/mlgw-owner";

struct OwnerBench {
    temp_dir: tempfile::TempDir,
    store: ServerProcess,
    proxy: FaultProxy,
}

impl OwnerBench {
    fn new() -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let store = ServerSetup::new(room.path().join("store")).start();
        runtime().block_on(store.client().create_bucket(SEGMENT_BUCKET)).expect("made");
        let proxy = FaultProxy::start(store.s3);
        Self { temp_dir: room, store, proxy }
    }

    /// A server on the directory `name` that spills to the prefix shared by all of them.
    fn setup(&self, name: &str) -> ServerSetup {
        ServerSetup::new(self.temp_dir.path().join(name))
            .with_upstream("far", self.proxy.addr(), SEGMENT_BUCKET, "2s")
            .with("upstream.far.prefix", "pre/")
            .with("cold.upstream", "far")
            .with("cold.move_bytes_per_second", "10GiB")
            .with("hot.segment_bytes", "1MiB")
            .with("hot.compact_interval", "20ms")
            .with("memory.capacity", "0")
    }

    fn path(&self, name: &str) -> String {
        self.temp_dir.path().join(name).display().to_string()
    }

    /// A server whose segments are all in the upstream.
    fn spilled(&self, name: &str) -> (ServerProcess, TierObjects) {
        let (server, objects) = filled(&self.setup(name));
        run_command(&self.setup(name), &["tier", "drain", "hot", "--wait"]);
        (server, objects)
    }

    /// Restores the directory `back` from a backup of the closed directory `name`.
    fn restore(&self, name: &str, back: &str) {
        let copy = format!("{back}-copy");
        let setup = self.setup(name);
        run_command(&setup, &["store", "backup", &self.path(name), &self.path(&copy), "--leave-upstreams"]);
        run_command(&setup, &["store", "restore", &self.path(&copy), &self.path(back)]);
    }

    /// Names of the segment objects in the store.
    async fn segments(&self) -> Vec<String> {
        let listed = self.store.client().list(SEGMENT_BUCKET, 1000).await.expect("listed");
        let keys = listed.into_iter().map(|object| object.key);
        keys.filter(|key| key.starts_with("pre/segments/")).collect()
    }
}

fn run_command(setup: &ServerSetup, words: &[&str]) -> String {
    let (output, status) = setup.command(words);
    assert_eq!(status, Some(0), "{words:?}: {output}");
    output
}

fn run_json(setup: &ServerSetup, words: &[&str]) -> Value {
    let output = run_command(setup, &[&["--output", "json"], words].concat());
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
}

fn owner(setup: &ServerSetup) -> String {
    run_json(setup, &["upstream", "show", "far"])["owner"].as_str().expect("a word").to_owned()
}

/// The identity of a server, from its `node.json`.
fn identity(setup: &ServerSetup) -> String {
    let text = std::fs::read_to_string(setup.data_dir.join("node.json")).expect("described");
    let node: Value = serde_json::from_str(&text).expect("JSON");
    let id = |name: &str| node[name].as_str().expect("an id").to_owned();
    format!("{}-{}-{}", id("cluster"), id("node"), id("incarnation"))
}

/// Deletes every object, so that all segments become removable.
async fn delete_all(server: &ServerProcess, objects: &TierObjects) {
    for key in objects.keys() {
        server.client().delete(BUCKET, key).await.expect("deleted");
    }
}

/// Waits until a condition is true.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if is_so() {
            return;
        }
        mlgw_common::time::block_for(Duration::from_millis(20));
    }
    panic!("never: {what}");
}

/// Waits until the server has tried to remove `all` objects and was not allowed to.
fn wait_until_leftovers(setup: &ServerSetup, all: usize) {
    wait_until("its objects are left over", || {
        run_json(setup, &["tier", "drain", "upstream", "--wait"])["leftover_objects"].as_u64()
            == Some(all as u64)
    });
}

/// Asserts that status, log and response describe the problem with the upstream and name both identities.
fn assert_names_both(server: &ServerProcess, setup: &ServerSetup, other: &ServerSetup) {
    let (ours, theirs) = (identity(setup), identity(other));
    let shown = run_command(setup, &["upstream", "show", "far"]);
    let (status, _) = setup.command(&["status"]);
    for text in [shown, status, server.log()] {
        // A line of the status is as wide as the terminal.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&ours) && text.contains(&theirs), "{ours}, {theirs}: {text}");
        assert!(text.contains("mlgw upstream adopt far"), "{text}");
    }
}

#[test]
fn the_original_destroys_nothing_after_a_clone_of_its_directory_has_started() {
    let bench = OwnerBench::new();
    let (original, clone) = (bench.setup("original"), bench.setup("clone"));
    let (server, objects) = bench.spilled("original");
    server.stop();
    let server = original.start();
    wait_until("the prefix is claimed", || owner(&original) == "own");
    let copied = Command::new("cp").args(["-a", &bench.path("original"), &bench.path("clone")]).status();
    assert!(copied.expect("cp").success());
    let cloned = clone.start();
    wait_until("the prefix is claimed", || owner(&clone) == "own");
    runtime().block_on(async {
        let before = bench.segments().await;
        delete_all(&server, &objects).await;
        wait_until("the original finds out", || owner(&original) == "superseded");
        wait_until_leftovers(&original, before.len());
        assert_eq!(bench.segments().await, before);
        assert_reads_back(&cloned.client(), &objects).await;
    });
    assert_names_both(&server, &original, &clone);
    // The clone continues, and the original does as soon as an operator adopts the prefix.
    run_command(&original, &["upstream", "adopt", "far"]);
    runtime().block_on(async {
        delete_all(&cloned, &objects).await;
        wait_until("the clone finds out", || owner(&clone) == "superseded");
    });
    assert_eq!(owner(&original), "own");
    server.stop();
    cloned.stop();
}

#[test]
fn a_restored_copy_destroys_nothing_of_its_original_before_it_adopts() {
    let bench = OwnerBench::new();
    let (original, restored) = (bench.setup("original"), bench.setup("restored"));
    let (server, objects) = bench.spilled("original");
    server.stop();
    bench.restore("original", "restored");
    let (server, copy) = (original.start(), restored.start());
    wait_until("the mark was compared", || owner(&restored) == "earlier" && owner(&original) == "own");
    let before = runtime().block_on(async {
        let before = bench.segments().await;
        assert_reads_back(&copy.client(), &objects).await;
        delete_all(&copy, &objects).await;
        wait_until_leftovers(&restored, before.len());
        assert_eq!(bench.segments().await, before);
        assert_reads_back(&server.client(), &objects).await;
        before
    });
    assert_names_both(&copy, &restored, &original);
    // Segments that the copy stores itself have its incarnation in their names.
    copy.stop();
    let (copy, newer) = filled_again(&restored);
    let incarnation = identity(&restored)[34..].to_owned();
    runtime().block_on(async {
        let stored = bench.segments().await;
        let own: Vec<_> = stored.iter().filter(|name| name.contains(&incarnation)).collect();
        assert!(!own.is_empty() && stored.len() == before.len() + own.len(), "{stored:?}");
        assert_reads_back(&copy.client(), &newer).await;
        assert_reads_back(&server.client(), &objects).await;
    });
    server.stop();
    run_command(&restored, &["upstream", "adopt", "far"]);
    assert_eq!(owner(&restored), "own");
    run_command(&restored, &["tier", "drain", "upstream", "--wait"]);
    runtime().block_on(async {
        wait_until("all is removed", || list_segments_blocking(&bench).is_empty());
        assert_reads_back(&copy.client(), &newer).await;
    });
    copy.stop();
}

/// The same bucket with other objects, all of them in the upstream.
fn filled_again(setup: &ServerSetup) -> (ServerProcess, TierObjects) {
    let server = setup.start();
    let mut objects = TierObjects::new();
    runtime().block_on(async {
        for n in 0..8u8 {
            let (key, bytes) = (format!("newer-{n}"), vec![n; 400_000]);
            server.client().put(BUCKET, &key, full_body(bytes.clone())).await.expect("stored");
            objects.insert(key, bytes.into());
        }
    });
    server.stop();
    let server = setup.start();
    run_command(setup, &["tier", "drain", "hot", "--wait"]);
    (server, objects)
}

fn list_segments_blocking(bench: &OwnerBench) -> Vec<String> {
    std::thread::scope(|scope| scope.spawn(|| runtime().block_on(bench.segments())).join().expect("listed"))
}

#[test]
fn the_original_destroys_nothing_after_a_restored_copy_has_adopted_the_prefix() {
    let bench = OwnerBench::new();
    let (original, restored) = (bench.setup("original"), bench.setup("restored"));
    let (server, objects) = bench.spilled("original");
    server.stop();
    bench.restore("original", "restored");
    let (server, copy) = (original.start(), restored.start());
    wait_until("the mark was compared", || owner(&original) == "own");
    run_command(&restored, &["upstream", "adopt", "far"]);
    runtime().block_on(async {
        let before = bench.segments().await;
        delete_all(&server, &objects).await;
        wait_until("the original finds out", || owner(&original) == "superseded");
        wait_until_leftovers(&original, before.len());
        assert_eq!(bench.segments().await, before);
        assert_reads_back(&copy.client(), &objects).await;
    });
    assert_names_both(&server, &original, &restored);
    // The same holds after a restart.
    server.stop();
    let server = original.start();
    wait_until("the mark was compared", || owner(&original) == "superseded");
    runtime().block_on(assert_reads_back(&copy.client(), &objects));
    server.stop();
    copy.stop();
}

#[test]
fn the_prefix_of_another_server_is_left_unchanged() {
    let bench = OwnerBench::new();
    let (original, stranger) = (bench.setup("original"), bench.setup("stranger"));
    let (server, objects) = bench.spilled("original");
    let (other, theirs) = filled(&stranger);
    let before = runtime().block_on(bench.segments());
    let (output, status) = stranger.command(&["tier", "drain", "hot", "--wait"]);
    assert!(status == Some(1) && output.contains("could not be moved"), "{output}");
    assert_names_both(&other, &stranger, &original);
    let (output, status) = stranger.command(&["upstream", "adopt", "far"]);
    assert!(status != Some(0) && output.contains(&identity(&original)), "{output}");
    runtime().block_on(async {
        assert_eq!(bench.segments().await, before);
        assert_reads_back(&server.client(), &objects).await;
        assert_reads_back(&other.client(), &theirs).await;
        // The advice for a server that is gone permanently: delete its mark.
        bench.store.client().delete(SEGMENT_BUCKET, MARK).await.expect("deleted");
    });
    run_command(&stranger, &["upstream", "adopt", "far"]);
    run_command(&stranger, &["tier", "drain", "hot", "--wait"]);
    runtime().block_on(async {
        delete_all(&server, &objects).await;
        wait_until("the original finds out", || owner(&original) == "foreign");
        assert_reads_back(&other.client(), &theirs).await;
    });
    server.stop();
    other.stop();
}

#[test]
fn a_server_that_cannot_read_the_mark_serves_reads_and_destroys_nothing() {
    let bench = OwnerBench::new();
    let setup = bench.setup("data");
    let (server, objects) = bench.spilled("data");
    server.stop();
    for fault in [
        Fault::Status { status: 503, code: "SlowDown".to_owned() },
        Fault::Status { status: 403, code: "AccessDenied".to_owned() },
        Fault::Refuse,
    ] {
        bench.proxy.set_rules(vec![Rule::new(fault).path("mlgw-owner")]);
        let server = setup.start();
        runtime().block_on(async {
            assert_reads_back(&server.client(), &objects).await;
            server.client().put(BUCKET, "here", full_body(vec![7; 100])).await.expect("stored");
        });
        server.stop();
    }
    let server = setup.start();
    runtime().block_on(async {
        let before = bench.segments().await;
        delete_all(&server, &objects).await;
        wait_until("the attempt is shown", || {
            run_json(&setup, &["upstream", "show", "far"])["advice"].as_str().is_some()
        });
        assert_eq!(owner(&setup), "unchecked");
        assert_eq!(bench.segments().await, before);
        bench.proxy.set_rules(Vec::new());
        wait_until("the mark was compared", || owner(&setup) == "own");
        wait_until("all is removed", || list_segments_blocking(&bench).is_empty());
    });
    server.stop();
}

#[test]
fn an_upstream_used_only_by_remote_backed_buckets_gets_no_mark() {
    let bench = OwnerBench::new();
    let setup = bench.setup("data").with("cold.upstream", "");
    let server = setup.start();
    run_command(&setup, &["bucket", "bind", "bound", "--upstream", "far"]);
    assert_eq!(owner(&setup), "unchecked");
    server.stop();
    let listed = runtime().block_on(bench.store.client().list(SEGMENT_BUCKET, 10)).expect("listed");
    assert!(listed.is_empty(), "{:?}", listed.iter().map(|object| &object.key).collect::<Vec<_>>());
}
