//! Remote-backed buckets: a gateway with an origin, and between them a proxy that injects faults.
//!
//! - `read_through`: reads return the origin's objects, with as few requests as promised;
//! - `keeping`: the policy engine decides which blocks are kept;
//! - `learning`: the outcomes of copies are recorded and adjust bounds;
//! - `lies`: origins with wrong responses, and correct ones with unusual ETags and times;
//! - `origin_faults`: an origin that is slow, wrong, disconnects or is unreachable;
//! - `ruling`: rules have their effects;
//! - `write_through`: an acknowledged write is at the origin, and reads return it;
//! - `write_back`: a write is visible here immediately, and at the origin in its order.

mod keeping;
mod learning;
mod lies;
mod origin_faults;
mod read_through;
mod ruling;
mod write_back;
mod write_through;

use std::time::Duration;

use bytes::Bytes;

use crate::content::Content;
use crate::proxy::FaultProxy;
use crate::s3::{Client, encode, whole};
use crate::server::{Server, Setup, runtime};

/// The bucket at the origin, and the key prefix in it that is bound.
const THERE: &str = "lake";
const PREFIX: &str = "set/";
/// The bucket here.
const HERE: &str = "bound";
const MIB: usize = 1 << 20;
/// Lengths of bodies that are sent from memory, and of bodies that are streamed.
const LENGTHS: [usize; 6] = [0, 1, 5_000, 300_000, 3 * MIB, 9 * MIB + 7];

/// An origin, a proxy in front of it, and a gateway with a bucket that is bound to it.
struct Bench {
    room: tempfile::TempDir,
    origin: Server,
    proxy: FaultProxy,
    setup: Setup,
    gateway: Server,
}

impl Bench {
    /// Starts the servers; metadata of the origin stays valid for `ttl`.
    fn new(ttl: &str) -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let origin = Setup::new(room.path().join("origin")).start();
        let proxy = FaultProxy::start(origin.s3);
        runtime().block_on(origin.client().create_bucket(THERE)).expect("made");
        let setup = Setup::new(room.path().join("gateway"));
        let setup = setup.with_upstream("far", proxy.addr(), THERE, "5s");
        let gateway = setup.start();
        let bench = Self { room, origin, proxy, setup, gateway };
        bench.bind(HERE, ttl, "read-through");
        bench
    }

    /// Starts the servers with a second bucket, bound to the same prefix in another mode. Metadata of the
    /// origin stays valid for an hour, so that stale results are detected.
    fn of_mode(bucket: &str, mode: &str) -> Self {
        let bench = Self::new("1h");
        bench.bind(bucket, "1h", mode);
        bench
    }

    fn bind(&self, bucket: &str, ttl: &str, mode: &str) {
        let bind = ["bucket", "bind", bucket, "--upstream", "far", "--prefix", PREFIX, "--ttl", ttl];
        let (said, status) = self.setup.command(&[&bind[..], &["--mode", mode]].concat());
        assert_eq!(status, Some(0), "{said}");
        self.proxy.clear_log();
    }

    fn here(&self) -> Client {
        self.gateway.client()
    }

    fn there(&self) -> Client {
        self.origin.client()
    }

    /// Puts an object at the origin.
    async fn put(&self, key: &str, content: Content) -> Bytes {
        let bytes = content.bytes();
        self.there().put(THERE, &there(key), whole(bytes.clone())).await.expect("stored");
        bytes
    }

    /// Returns the requests that reached the proxy since the last call.
    fn asked(&self) -> Vec<String> {
        let lines = self.proxy.log();
        self.proxy.clear_log();
        let line = |line: crate::proxy::LogLine| {
            let range = line.range.map(|range| format!(" {range}")).unwrap_or_default();
            format!("{}{range}", line.method)
        };
        lines.into_iter().map(line).collect()
    }
}

/// Returns the key at the origin of a key here.
fn there(key: &str) -> String {
    format!("{PREFIX}{key}")
}

/// Returns the path of a key of a bucket.
fn path(bucket: &str, key: &str) -> String {
    format!("/{bucket}/{}", key.split('/').map(encode).collect::<Vec<_>>().join("/"))
}

fn bytes(id: u64, length: usize) -> Bytes {
    Content { id, length }.bytes()
}

/// Waits until a condition holds.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..1000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}
