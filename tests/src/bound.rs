//! Bound buckets: a gateway before an origin, with a proxy between them that does harm.
//!
//! - `read_through`: what is read is what the origin has, asked for as seldom as promised;
//! - `origin_faults`: an origin that is slow, lies, hangs up or is away;
//! - `write_through`: what is written is at the origin when it is acknowledged, and is what is read;
//! - `write_back`: what is written is seen here at once, and at the origin in its turn.

mod origin_faults;
mod read_through;
mod write_back;
mod write_through;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Runtime;

use crate::content::Content;
use crate::proxy::FaultProxy;
use crate::s3::{Client, whole};
use crate::server::{ACCESS_KEY, SECRET_KEY, Server, Setup};

/// The bucket at the origin, and what keys in it begin with that are bound.
const THERE: &str = "lake";
const PREFIX: &str = "set/";
/// The bucket here.
const HERE: &str = "bound";
const MIB: usize = 1 << 20;

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
        let setup = gateway(&room.path().join("gateway"), &proxy);
        let gateway = setup.start();
        let bench = Self { room, origin, proxy, setup, gateway };
        let bind = ["bucket", "bind", HERE, "--upstream", "far", "--prefix", PREFIX, "--ttl", ttl];
        let (said, status) = bench.setup.command(&bind);
        assert_eq!(status, Some(0), "{said}");
        bench.proxy.clear_log();
        bench
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
        let key = format!("{PREFIX}{key}");
        self.there().put(THERE, &key, whole(bytes.clone())).await.expect("stored");
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

fn gateway(data_dir: &Path, proxy: &FaultProxy) -> Setup {
    Setup::new(data_dir)
        .with("upstream.far.endpoint", format!("http://{}", proxy.addr()))
        .with("upstream.far.bucket", THERE)
        .with("upstream.far.credentials", "static")
        .with("upstream.far.access_key", ACCESS_KEY)
        .with("upstream.far.secret_key", SECRET_KEY)
        .with("upstream.far.timeout", "5s")
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
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
