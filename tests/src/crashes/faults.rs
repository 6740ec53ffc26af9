//! Each test makes one call fail once with EIO, for each kind of call.
//!
//! A failed write or sync of a segment is retried in a new segment without an error to the client; a failed
//! read fails that read alone; a failed write or sync of log or catalogue acknowledges nothing and stops the
//! server. In each case the next start is clean and every promise is kept, also after a power cut, in which a
//! failed sync has left the unsynced data permanently undecided.

use std::sync::Arc;

use tokio::runtime::Runtime;

use super::recorded::{Recorded, history_of, setup};
use super::states::{cuts, recover_all};
use super::{classes, runtime};
use crate::check::{BUCKET, check};
use crate::content::Content;
use crate::disk::{Call, Fault};
use crate::history::{History, NOW, Stored, Thing, Value};
use crate::mount::Mount;
use crate::power_cut::{NONE_IGNORED, Style};
use crate::s3::{Client, Failure, whole};
use crate::seed::{Rng, announce};
use crate::server::Server;
use crate::workload::create_bucket;

/// Power cuts tried on the recording of each fault.
const STATES: usize = 15;

/// Upper bound of the writes before a fault of log or catalogue is hit: enough for several flushes.
const PUTS_MAX: u64 = 3000;

#[test]
fn a_failed_segment_write_is_retried_without_an_error_to_the_client() {
    is_retried(Call::Write);
}

#[test]
fn a_failed_segment_sync_is_retried_without_an_error_to_the_client() {
    is_retried(Call::Sync);
}

#[test]
fn a_failed_segment_read_fails_that_read_and_the_next_one_works() {
    let bench = Bench::new("segment read");
    let content = Content { id: 1, length: 300_000 };
    let server = bench.start();
    bench.runtime.block_on(async {
        create_bucket(&server.client(), &bench.history).await.expect("made");
        bench.put(&server.client(), content).await.expect("stored");
    });
    server.stop();
    let server = bench.start();
    bench.fail(Call::Read, classes::segment, 0);
    bench.runtime.block_on(async {
        let client = server.client();
        let failure = client.get(BUCKET, &key(content)).await.expect_err("the read fails");
        assert!(matches!(failure.status(), Some(500) | None), "{failure:?}");
        let body = client.get(BUCKET, &key(content)).await.expect("the next one works").body;
        assert_eq!(content.difference(&body), None);
    });
    assert_eq!(bench.failed(), 1);
    server.stop();
    bench.every_promise_is_kept();
}

#[test]
fn a_failed_log_write_acknowledges_nothing_and_stops_the_server() {
    stops("log write", Call::Write, classes::log_file);
}

#[test]
fn a_failed_log_sync_acknowledges_nothing_and_stops_the_server() {
    stops("log sync", Call::Sync, classes::log_file);
}

#[test]
fn a_failed_catalogue_write_stops_the_server() {
    stops("catalogue write", Call::Write, classes::state_file);
}

#[test]
fn a_failed_catalogue_sync_stops_the_server() {
    stops("catalogue sync", Call::Sync, classes::state_file);
}

fn is_retried(call: Call) {
    let bench = Bench::new(&format!("segment {call:?}"));
    let server = bench.start();
    bench.runtime.block_on(async {
        let client = server.client();
        create_bucket(&client, &bench.history).await.expect("made");
        for id in 0..30 {
            if id == 10 {
                bench.fail(call, classes::segment, 0);
            }
            let content = Content { id, length: 3_000 * usize::try_from(id).expect("small") };
            bench.put(&client, content).await.expect("the client notices nothing");
        }
        let live = check(&client, &bench.history, NOW, &mut Rng::new(0)).await;
        assert_eq!(live.err(), None, "while it runs");
    });
    assert_eq!(bench.failed(), 1, "the fault was met");
    drop(server);
    bench.every_promise_is_kept();
}

fn stops(what: &str, call: Call, matches: fn(&str) -> bool) {
    let bench = Bench::new(what);
    let mut server = bench.start();
    bench.runtime.block_on(async {
        let client = server.client();
        create_bucket(&client, &bench.history).await.expect("made");
        for id in 0..20 {
            bench.put(&client, Content { id, length: 500 }).await.expect("stored");
        }
        bench.fail(call, matches, 0);
        let mut id = 20;
        let end = loop {
            id += 1;
            assert!(id < PUTS_MAX, "the fault is met, or the server goes on after it");
            if let Err(failure) = bench.put(&client, Content { id, length: 500 }).await {
                break failure;
            }
        };
        eprintln!("faults: {what}: the server stops after {id} writes: {end:?}");
    });
    assert_eq!(bench.failed(), 1, "the fault was met");
    let status = server.wait_exit();
    assert!(!status.success(), "a failed {what} ends in {status:?}\n{}", server.log());
    assert!(server.log().contains("Input/output error"), "it says why:\n{}", server.log());
    bench.every_promise_is_kept();
}

fn key(content: Content) -> String {
    format!("key-{:04}", content.id)
}

/// A mounted disk with a history.
struct Bench {
    mount: Mount,
    history: Arc<History>,
    runtime: Runtime,
    seed: u64,
}

impl Bench {
    fn new(what: &str) -> Self {
        let seed = announce(&format!("faults, {what}"), 5).next();
        let mount = Mount::new();
        let history = history_of(&mount);
        Self { mount, history, runtime: runtime(), seed }
    }

    fn start(&self) -> Server {
        setup(&self.mount).start()
    }

    fn fail(&self, call: Call, matches: fn(&str) -> bool, skip: usize) {
        self.mount.disk().fail_once(Fault { call, matches, skip });
    }

    fn failed(&self) -> usize {
        self.mount.disk().failed().len()
    }

    async fn put(&self, client: &Client, content: Content) -> Result<(), Failure> {
        let thing = Thing::Object(key(content));
        let act = self.history.send(thing, Value::Present(Some(Stored::plain(content))));
        client.put(BUCKET, &key(content), whole(content.bytes())).await?;
        self.history.acknowledge(act);
        Ok(())
    }

    /// Checks all promises after a restart on the same disk, and after power cuts at positions before it.
    fn every_promise_is_kept(self) {
        let recording = self.mount.disk().recording().clone();
        let server = self.start();
        let mut rng = Rng::new(self.seed);
        let found = self.runtime.block_on(check(&server.client(), &self.history, NOW, &mut rng));
        assert_eq!(found.err(), None, "after a restart\n{}", server.log());
        server.stop();
        let recorded = Recorded { recording, history: self.history, seed: self.seed, start: 0 };
        let cuts = cuts(&recorded, STATES, Style::choose);
        let (broken, _) = recover_all(&recorded, &cuts, NONE_IGNORED, 1);
        let shown: Vec<String> = broken.iter().map(ToString::to_string).collect();
        assert!(broken.is_empty(), "{}", shown.join("\n"));
    }
}
