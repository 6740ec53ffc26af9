//! Two servers that share a prefix of an upstream: a clone of a directory, a restored copy, a foreign server,
//! and one whose owner mark cannot be read. Nothing that another server refers to is ever deleted.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::{Objects, filled, reads_back, runtime};
use crate::proxy::{Fault, FaultProxy, Rule};
use crate::s3::whole;
use crate::server::{Server, Setup};

use super::BUCKET;

/// The bucket for segments.
const THERE: &str = "segments";
/// The owner mark of the prefix.
const MARK: &str = "pre/mlgw-owner";

struct Bench {
    room: tempfile::TempDir,
    store: Server,
    proxy: FaultProxy,
}

impl Bench {
    fn new() -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let store = Setup::new(room.path().join("store")).start();
        runtime().block_on(store.client().create_bucket(THERE)).expect("made");
        let proxy = FaultProxy::start(store.s3);
        Self { room, store, proxy }
    }

    /// A server on the directory `name` that spills to the prefix shared by all of them.
    fn setup(&self, name: &str) -> Setup {
        Setup::new(self.room.path().join(name))
            .with_upstream("far", self.proxy.addr(), THERE, "2s")
            .with("upstream.far.prefix", "pre/")
            .with("cold.upstream", "far")
            .with("cold.move_bytes_per_second", "10GiB")
            .with("hot.segment_bytes", "1MiB")
            .with("hot.compact_interval", "20ms")
            .with("memory.capacity", "0")
    }

    fn path(&self, name: &str) -> String {
        self.room.path().join(name).display().to_string()
    }

    /// A server whose segments are all in the upstream.
    fn spilled(&self, name: &str) -> (Server, Objects) {
        let (server, objects) = filled(&self.setup(name));
        done(&self.setup(name), &["tier", "drain", "hot", "--wait"]);
        (server, objects)
    }

    /// Restores the directory `back` from a backup of the closed directory `name`.
    fn restore(&self, name: &str, back: &str) {
        let copy = format!("{back}-copy");
        let setup = self.setup(name);
        done(&setup, &["store", "backup", &self.path(name), &self.path(&copy), "--leave-upstreams"]);
        done(&setup, &["store", "restore", &self.path(&copy), &self.path(back)]);
    }

    /// Names of the segment objects in the store.
    async fn segments(&self) -> Vec<String> {
        let listed = self.store.client().list(THERE, 1000).await.expect("listed");
        let keys = listed.into_iter().map(|object| object.key);
        keys.filter(|key| key.starts_with("pre/segments/")).collect()
    }
}

fn done(setup: &Setup, words: &[&str]) -> String {
    let (said, status) = setup.command(words);
    assert_eq!(status, Some(0), "{words:?}: {said}");
    said
}

fn json(setup: &Setup, words: &[&str]) -> Value {
    let said = done(setup, &[&["--output", "json"], words].concat());
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn owner(setup: &Setup) -> String {
    json(setup, &["upstream", "show", "far"])["owner"].as_str().expect("a word").to_owned()
}

/// The identity of a server, from its `node.json`.
fn identity(setup: &Setup) -> String {
    let text = std::fs::read_to_string(setup.data_dir.join("node.json")).expect("described");
    let node: Value = serde_json::from_str(&text).expect("JSON");
    let id = |name: &str| node[name].as_str().expect("an id").to_owned();
    format!("{}-{}-{}", id("cluster"), id("node"), id("incarnation"))
}

/// Deletes every object, so that all segments become removable.
async fn delete_all(server: &Server, objects: &Objects) {
    for key in objects.keys() {
        server.client().delete(BUCKET, key).await.expect("deleted");
    }
}

/// Waits until a condition is true.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("never: {what}");
}

/// Waits until the server has tried to remove `all` objects and was not allowed to.
fn until_leftovers(setup: &Setup, all: usize) {
    until("its objects are left over", || {
        json(setup, &["tier", "drain", "upstream", "--wait"])["leftover_objects"].as_u64() == Some(all as u64)
    });
}

/// Asserts that status, log and response describe the problem with the upstream and name both identities.
fn names_both(server: &Server, setup: &Setup, other: &Setup) {
    let (ours, theirs) = (identity(setup), identity(other));
    let shown = done(setup, &["upstream", "show", "far"]);
    let (status, _) = setup.command(&["status"]);
    for said in [shown, status, server.log()] {
        // A line of the status is as wide as the terminal.
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(&ours) && said.contains(&theirs), "{ours}, {theirs}: {said}");
        assert!(said.contains("mlgw upstream adopt far"), "{said}");
    }
}

#[test]
fn the_original_destroys_nothing_after_a_clone_of_its_directory_has_started() {
    let bench = Bench::new();
    let (original, clone) = (bench.setup("original"), bench.setup("clone"));
    let (server, objects) = bench.spilled("original");
    server.stop();
    let server = original.start();
    until("the prefix is claimed", || owner(&original) == "own");
    let copied = Command::new("cp").args(["-a", &bench.path("original"), &bench.path("clone")]).status();
    assert!(copied.expect("cp").success());
    let cloned = clone.start();
    until("the prefix is claimed", || owner(&clone) == "own");
    runtime().block_on(async {
        let before = bench.segments().await;
        delete_all(&server, &objects).await;
        until("the original finds out", || owner(&original) == "superseded");
        until_leftovers(&original, before.len());
        assert_eq!(bench.segments().await, before);
        reads_back(&cloned.client(), &objects).await;
    });
    names_both(&server, &original, &clone);
    // The clone continues, and the original does as soon as an operator adopts the prefix.
    done(&original, &["upstream", "adopt", "far"]);
    runtime().block_on(async {
        delete_all(&cloned, &objects).await;
        until("the clone finds out", || owner(&clone) == "superseded");
    });
    assert_eq!(owner(&original), "own");
    server.stop();
    cloned.stop();
}

#[test]
fn a_restored_copy_destroys_nothing_of_its_original_before_it_adopts() {
    let bench = Bench::new();
    let (original, restored) = (bench.setup("original"), bench.setup("restored"));
    let (server, objects) = bench.spilled("original");
    server.stop();
    bench.restore("original", "restored");
    let (server, copy) = (original.start(), restored.start());
    until("the mark was compared", || owner(&restored) == "earlier" && owner(&original) == "own");
    let before = runtime().block_on(async {
        let before = bench.segments().await;
        reads_back(&copy.client(), &objects).await;
        delete_all(&copy, &objects).await;
        until_leftovers(&restored, before.len());
        assert_eq!(bench.segments().await, before);
        reads_back(&server.client(), &objects).await;
        before
    });
    names_both(&copy, &restored, &original);
    // Segments that the copy stores itself have its incarnation in their names.
    copy.stop();
    let (copy, newer) = filled_again(&restored);
    let incarnation = identity(&restored)[34..].to_owned();
    runtime().block_on(async {
        let stored = bench.segments().await;
        let own: Vec<_> = stored.iter().filter(|name| name.contains(&incarnation)).collect();
        assert!(!own.is_empty() && stored.len() == before.len() + own.len(), "{stored:?}");
        reads_back(&copy.client(), &newer).await;
        reads_back(&server.client(), &objects).await;
    });
    server.stop();
    done(&restored, &["upstream", "adopt", "far"]);
    assert_eq!(owner(&restored), "own");
    done(&restored, &["tier", "drain", "upstream", "--wait"]);
    runtime().block_on(async {
        until("all is removed", || runtime_segments(&bench).is_empty());
        reads_back(&copy.client(), &newer).await;
    });
    copy.stop();
}

/// The same bucket with other objects, all of them in the upstream.
fn filled_again(setup: &Setup) -> (Server, Objects) {
    let server = setup.start();
    let mut objects = Objects::new();
    runtime().block_on(async {
        for n in 0..8u8 {
            let (key, bytes) = (format!("newer-{n}"), vec![n; 400_000]);
            server.client().put(BUCKET, &key, whole(bytes.clone())).await.expect("stored");
            objects.insert(key, bytes.into());
        }
    });
    server.stop();
    let server = setup.start();
    done(setup, &["tier", "drain", "hot", "--wait"]);
    (server, objects)
}

fn runtime_segments(bench: &Bench) -> Vec<String> {
    std::thread::scope(|scope| scope.spawn(|| runtime().block_on(bench.segments())).join().expect("listed"))
}

#[test]
fn the_original_destroys_nothing_after_a_restored_copy_has_adopted_the_prefix() {
    let bench = Bench::new();
    let (original, restored) = (bench.setup("original"), bench.setup("restored"));
    let (server, objects) = bench.spilled("original");
    server.stop();
    bench.restore("original", "restored");
    let (server, copy) = (original.start(), restored.start());
    until("the mark was compared", || owner(&original) == "own");
    done(&restored, &["upstream", "adopt", "far"]);
    runtime().block_on(async {
        let before = bench.segments().await;
        delete_all(&server, &objects).await;
        until("the original finds out", || owner(&original) == "superseded");
        until_leftovers(&original, before.len());
        assert_eq!(bench.segments().await, before);
        reads_back(&copy.client(), &objects).await;
    });
    names_both(&server, &original, &restored);
    // The same holds after a restart.
    server.stop();
    let server = original.start();
    until("the mark was compared", || owner(&original) == "superseded");
    runtime().block_on(reads_back(&copy.client(), &objects));
    server.stop();
    copy.stop();
}

#[test]
fn the_prefix_of_another_server_is_left_unchanged() {
    let bench = Bench::new();
    let (original, stranger) = (bench.setup("original"), bench.setup("stranger"));
    let (server, objects) = bench.spilled("original");
    let (other, theirs) = filled(&stranger);
    let before = runtime().block_on(bench.segments());
    let (said, status) = stranger.command(&["tier", "drain", "hot", "--wait"]);
    assert!(status == Some(1) && said.contains("could not be moved"), "{said}");
    names_both(&other, &stranger, &original);
    let (said, status) = stranger.command(&["upstream", "adopt", "far"]);
    assert!(status != Some(0) && said.contains(&identity(&original)), "{said}");
    runtime().block_on(async {
        assert_eq!(bench.segments().await, before);
        reads_back(&server.client(), &objects).await;
        reads_back(&other.client(), &theirs).await;
        // The advice for a server that is gone permanently: delete its mark.
        bench.store.client().delete(THERE, MARK).await.expect("deleted");
    });
    done(&stranger, &["upstream", "adopt", "far"]);
    done(&stranger, &["tier", "drain", "hot", "--wait"]);
    runtime().block_on(async {
        delete_all(&server, &objects).await;
        until("the original finds out", || owner(&original) == "foreign");
        reads_back(&other.client(), &theirs).await;
    });
    server.stop();
    other.stop();
}

#[test]
fn a_server_that_cannot_read_the_mark_serves_reads_and_destroys_nothing() {
    let bench = Bench::new();
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
            reads_back(&server.client(), &objects).await;
            server.client().put(BUCKET, "here", whole(vec![7; 100])).await.expect("stored");
        });
        server.stop();
    }
    let server = setup.start();
    runtime().block_on(async {
        let before = bench.segments().await;
        delete_all(&server, &objects).await;
        until("the attempt is shown", || {
            json(&setup, &["upstream", "show", "far"])["advice"].as_str().is_some()
        });
        assert_eq!(owner(&setup), "unchecked");
        assert_eq!(bench.segments().await, before);
        bench.proxy.set_rules(Vec::new());
        until("the mark was compared", || owner(&setup) == "own");
        until("all is removed", || runtime_segments(&bench).is_empty());
    });
    server.stop();
}

#[test]
fn an_upstream_used_only_by_remote_backed_buckets_gets_no_mark() {
    let bench = Bench::new();
    let setup = bench.setup("data").with("cold.upstream", "");
    let server = setup.start();
    done(&setup, &["bucket", "bind", "bound", "--upstream", "far"]);
    assert_eq!(owner(&setup), "unchecked");
    server.stop();
    let listed = runtime().block_on(bench.store.client().list(THERE, 10)).expect("listed");
    assert!(listed.is_empty(), "{:?}", listed.iter().map(|object| &object.key).collect::<Vec<_>>());
}
