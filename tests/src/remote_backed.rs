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
mod origin_faults;
mod read_through;
mod ruling;
mod write_back;
mod write_through;
mod wrong_responses;

use std::time::Duration;

use bytes::Bytes;

use crate::content::TestContent;
use crate::proxy::FaultProxy;
use crate::s3::{S3TestClient, encode, full_body};
use crate::server::{ServerProcess, ServerSetup, runtime};

/// The bucket at the origin, and the key prefix in it that is bound.
const ORIGIN_BUCKET: &str = "lake";
const PREFIX: &str = "set/";
/// The bucket here.
const BUCKET: &str = "bound";
const MIB: usize = 1 << 20;
/// Lengths of bodies that are sent from memory, and of bodies that are streamed.
const LENGTHS: [usize; 6] = [0, 1, 5_000, 300_000, 3 * MIB, 9 * MIB + 7];

/// An origin, a proxy in front of it, and a gateway with a bucket that is bound to it.
struct RemoteBench {
    dir: tempfile::TempDir,
    origin: ServerProcess,
    proxy: FaultProxy,
    setup: ServerSetup,
    gateway: ServerProcess,
}

impl RemoteBench {
    /// Starts the servers; metadata of the origin stays valid for `ttl`.
    fn new(ttl: &str) -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let origin = ServerSetup::new(room.path().join("origin")).start();
        let proxy = FaultProxy::start(origin.s3);
        runtime().block_on(origin.client().create_bucket(ORIGIN_BUCKET)).expect("made");
        let setup = ServerSetup::new(room.path().join("gateway"));
        let setup = setup.with_upstream("far", proxy.addr(), ORIGIN_BUCKET, "5s");
        let gateway = setup.start();
        let bench = Self { dir: room, origin, proxy, setup, gateway };
        bench.bind(BUCKET, ttl, "read-through");
        bench
    }

    /// Starts the servers with a second bucket, bound to the same prefix in another mode. Metadata of the
    /// origin stays valid for an hour, so that stale results are detected.
    fn with_mode(bucket: &str, mode: &str) -> Self {
        let bench = Self::new("1h");
        bench.bind(bucket, "1h", mode);
        bench
    }

    fn bind(&self, bucket: &str, ttl: &str, mode: &str) {
        let bind = ["bucket", "bind", bucket, "--upstream", "far", "--prefix", PREFIX, "--ttl", ttl];
        let (output, status) = self.setup.command(&[&bind[..], &["--mode", mode]].concat());
        assert_eq!(status, Some(0), "{output}");
        self.proxy.clear_log();
    }

    fn client(&self) -> S3TestClient {
        self.gateway.client()
    }

    fn origin_client(&self) -> S3TestClient {
        self.origin.client()
    }

    /// Puts an object at the origin.
    async fn put(&self, key: &str, content: TestContent) -> Bytes {
        let bytes = content.bytes();
        self.origin_client()
            .put(ORIGIN_BUCKET, &origin_key(key), full_body(bytes.clone()))
            .await
            .expect("stored");
        bytes
    }

    /// Returns the requests that reached the proxy since the last call.
    fn take_requests(&self) -> Vec<String> {
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
fn origin_key(key: &str) -> String {
    format!("{PREFIX}{key}")
}

/// Returns the path of a key of a bucket.
fn path(bucket: &str, key: &str) -> String {
    format!("/{bucket}/{}", key.split('/').map(encode).collect::<Vec<_>>().join("/"))
}

fn bytes(id: u64, length: usize) -> Bytes {
    TestContent { id, length }.bytes()
}

/// Waits until a condition holds.
async fn wait_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..1000 {
        if is_so().await {
            return;
        }
        mlgw_common::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}
