//! Bound buckets: a gateway before an origin, with a proxy between them that does harm.
//!
//! - `read_through`: what is read is what the origin has, asked for as seldom as promised;
//! - `keeping`: what is kept is what the policy engine says;
//! - `learning`: what becomes of it is told, and moves bounds;
//! - `lies`: origins with wrong answers, and correct ones with unusual ETags and times;
//! - `origin_faults`: an origin that is slow, lies, hangs up or is away;
//! - `ruling`: rules have their effects;
//! - `write_through`: what is written is at the origin when it is acknowledged, and is what is read;
//! - `write_back`: what is written is seen here at once, and at the origin in its turn.

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

/// The bucket at the origin, and what keys in it begin with that are bound.
const THERE: &str = "lake";
const PREFIX: &str = "set/";
/// The bucket here.
const HERE: &str = "bound";
const MIB: usize = 1 << 20;
/// Lengths on both sides of what is sent from memory and what as it comes.
const LENGTHS: [usize; 6] = [0, 1, 5_000, 300_000, 3 * MIB, 9 * MIB + 7];

/// An origin, a proxy before it, and a gateway whose bucket is bound to it.
struct Bench {
    room: tempfile::TempDir,
    origin: Server,
    proxy: FaultProxy,
    setup: Setup,
    gateway: Server,
}

impl Bench {
    /// With answers of the origin that hold for `ttl`.
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

    /// With a bucket of its own beside that, bound to the same in another mode; what an origin says holds for
    /// an hour, so that what is shown too long is found out.
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

    /// Requests that reached the proxy since it was last asked.
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

/// What is at the origin under a key here.
fn there(key: &str) -> String {
    format!("{PREFIX}{key}")
}

/// The path of a key of a bucket.
fn path(bucket: &str, key: &str) -> String {
    format!("/{bucket}/{}", key.split('/').map(encode).collect::<Vec<_>>().join("/"))
}

fn bytes(id: u64, length: usize) -> Bytes {
    Content { id, length }.bytes()
}

/// Waits until something is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..1000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}
