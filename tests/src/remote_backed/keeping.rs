//! The policy engine decides which blocks of a remote-backed bucket are kept, and a simulation decides the
//! same.

use http::Method;
use serde_json::Value;

use super::{BUCKET, MIB, ORIGIN_BUCKET, RemoteBench, path, runtime, wait_until};
use crate::content::TestContent;
use crate::proxy::FaultProxy;
use crate::s3::full_body;
use crate::seed::Rng;
use crate::server::ServerSetup;

const OBJECTS: u64 = 40;

pub(super) fn key(n: u64) -> String {
    format!("train/{n:05}.bin")
}

impl RemoteBench {
    /// Starts a gateway with a cache of this many bytes.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self::with_capacity_and_setup(bytes, |setup| setup)
    }

    /// The same, with further settings.
    pub(super) fn with_capacity_and_setup(
        bytes: usize,
        more: impl FnOnce(ServerSetup) -> ServerSetup,
    ) -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let origin = ServerSetup::new(room.path().join("origin")).start();
        let proxy = FaultProxy::start(origin.s3);
        runtime().block_on(origin.client().create_bucket(ORIGIN_BUCKET)).expect("made");
        let setup = ServerSetup::new(room.path().join("gateway")).with("bound.capacity", bytes);
        let setup = more(setup.with_upstream("far", proxy.addr(), ORIGIN_BUCKET, "5s"));
        let gateway = setup.start();
        let bench = Self { dir: room, origin, proxy, setup, gateway };
        bench.bind(BUCKET, "1h", "read-through");
        bench
    }

    /// Reads an object, or a range of it. Returns true if it was cached.
    pub(super) async fn is_hit(&self, key: &str, range: Option<&str>) -> bool {
        let headers: Vec<_> = range.map(|range| ("range", range.to_owned())).into_iter().collect();
        let answer =
            self.client().call(Method::GET, &path(BUCKET, key), &headers, full_body("")).await.expect("read");
        answer.header("x-mlgw-cache").expect("header is present").starts_with("hit; tier=hot")
    }

    /// Runs a command and returns its output, parsed as JSON.
    pub(super) fn document(&self, words: &[&str]) -> Value {
        let (output, status) = self.setup.command(&[words, &["--output", "json"]].concat());
        assert_eq!(status, Some(0), "{output}");
        serde_json::from_str(&output).unwrap_or_else(|_| panic!("{output}"))
    }
}

#[test]
fn over_epochs_as_much_is_found_here_as_fits() {
    let bench = RemoteBench::with_capacity(32 * MIB);
    runtime().block_on(async {
        for n in 0..OBJECTS {
            bench.put(&key(n), TestContent { id: n, length: MIB }).await;
        }
        let mut rng = Rng::new(3);
        let mut hits = Vec::new();
        for _ in 0..4 {
            let mut left: Vec<u64> = (0..OBJECTS).collect();
            let mut found = 0;
            while !left.is_empty() {
                let n = left.swap_remove(rng.index(left.len()));
                found += u32::from(bench.is_hit(&key(n), None).await);
            }
            hits.push(found);
        }
        // 92 % of the cache are for blocks: 29 of them. Eviction by age finds about 15.
        assert!(hits[0] == 0 && hits[2..].iter().all(|hits| (26..=30).contains(hits)), "{hits:?}");
    });
}

#[test]
fn a_simulation_of_a_recorded_trace_makes_the_same_decisions() {
    // The cache is much larger than the copies evicted while others arrive, so that nothing is refused for
    // lack of space.
    let bench = RemoteBench::with_capacity(128 * MIB);
    bench.document(&["trace", "start", "one"]);
    let (output, status) = bench.setup.command(&["trace", "start", "two"]);
    assert!(status == Some(4) && output.contains("\"one\" is being recorded"), "{output}");
    runtime().block_on(async {
        for n in 0..150 {
            // Objects of one block and of two.
            let length = if n % 10 == 0 { 9 * MIB } else { MIB + n as usize };
            bench.put(&key(n), TestContent { id: n, length }).await;
        }
        let mut rng = Rng::new(5);
        for n in 0..400 {
            let number = rng.below(150);
            let range = (n % 3 == 0).then_some("bytes=1000-70000");
            bench.is_hit(&key(number), range).await;
        }
    });
    let stopped = bench.document(&["trace", "stop"]);
    assert!(stopped["accesses"] == 400 && stopped["decisions"].as_u64() > Some(400), "{stopped}");
    let file = bench.dir.path().join("trace");
    let file = file.to_str().expect("a path");
    assert_eq!(bench.document(&["trace", "export", "one", file])["accesses"], 400);
    let cache = format!("{}B", stopped["capacity_bytes"]);
    let words = ["policy", "simulate", "--trace", file, "--cache", &cache, "--policy", "mlgw,lru"];
    let simulated = bench.document(&words);
    assert_eq!(simulated[0]["decisions_hash"], stopped["decisions_hash"], "{simulated}");
    assert_eq!(simulated[1]["decisions_hash"], Value::Null);
    let other = format!("{}B", stopped["capacity_bytes"].as_u64().expect("a number") / 2);
    let words = ["policy", "simulate", "--trace", file, "--cache", &other, "--policy", "mlgw"];
    assert_ne!(bench.document(&words)[0]["decisions_hash"], stopped["decisions_hash"]);
    let list = bench.document(&["trace", "list"]);
    assert!(list["traces"][0]["name"] == "one" && list["traces"][0]["recording_since"].is_null(), "{list}");
}

#[test]
fn only_the_read_range_is_fetched_of_objects_that_do_not_fit() {
    let bench = RemoteBench::with_capacity(32 * MIB);
    runtime().block_on(async {
        for n in 0..20 {
            bench.put(&key(n), TestContent { id: n, length: 4 * MIB }).await;
        }
        for n in (0..20).chain(0..20) {
            bench.is_hit(&key(n), None).await;
        }
        let mut passing = Vec::new();
        for n in 0..20 {
            if !bench.is_hit(&key(n), Some("bytes=0-0")).await {
                passing.push(n);
            }
        }
        assert!(passing.len() > 10, "{passing:?}");
        bench.take_requests();
        for n in &passing {
            bench.is_hit(&key(*n), Some("bytes=1000-2999")).await;
        }
        let requests = bench.take_requests();
        assert_eq!(requests.len(), passing.len());
        assert!(requests.iter().all(|request| request == "GET bytes=1000-2999"), "{requests:?}");
    });
}

#[test]
fn a_pinned_dataset_stays() {
    let bench = RemoteBench::with_capacity(48 * MIB);
    runtime().block_on(async {
        for n in 0..60 {
            bench.put(&key(n), TestContent { id: n, length: MIB }).await;
        }
        for n in 0..10 {
            bench.put(&format!("val/{n}"), TestContent { id: n, length: MIB }).await;
        }
    });
    bench.document(&["dataset", "create", "val", "--bucket", BUCKET, "--prefix", "val/"]);
    bench.document(&["dataset", "pin", "val", "--bytes-max", "10MiB"]);
    runtime().block_on(async {
        for n in 0..10 {
            bench.is_hit(&format!("val/{n}"), None).await;
        }
        for _ in 0..3 {
            for n in 0..60 {
                bench.is_hit(&key(n), None).await;
            }
        }
        wait_until("all objects are kept", async || {
            let mut hits = 0;
            for n in 0..10 {
                hits += u32::from(bench.is_hit(&format!("val/{n}"), None).await);
            }
            hits == 10
        })
        .await;
    });
}
