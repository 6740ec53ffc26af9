//! Each test makes one call fail once with EIO, for each kind of call.
//!
//! A failed write or sync of a segment is retried in a new segment without an error to the client; a failed
//! read fails that read alone; a failed write or sync of log or catalogue acknowledges nothing and stops the
//! server. In each case the next start is clean and every promise is kept, also after a power cut, in which a
//! failed sync has left the unsynced data permanently undecided.

use std::sync::Arc;

use tokio::runtime::Runtime;

use super::recorded::{RecordedRun, history_of, setup};
use super::states::{cuts, recover_all};
use super::{classes, runtime};
use crate::check::{BUCKET, check};
use crate::content::TestContent;
use crate::disk::{DiskCall, DiskFault};
use crate::history::{ExpectedBody, History, HistoryItem, ItemValue, NOW};
use crate::mount::Mount;
use crate::power_cut::{CutStyle, NO_SYNCS_IGNORED};
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::seed::{Rng, seeded_rng};
use crate::server::ServerProcess;
use crate::workload::create_bucket;

/// Power cuts tried on the recording of each fault.
const STATES: usize = 15;

/// Upper bound of the writes before a fault of log or catalogue is hit: enough for several flushes.
const PUTS_MAX: u64 = 3000;

#[test]
fn a_failed_segment_write_is_retried_without_an_error_to_the_client() {
    assert_retried(DiskCall::Write);
}

#[test]
fn a_failed_segment_sync_is_retried_without_an_error_to_the_client() {
    assert_retried(DiskCall::Sync);
}

#[test]
fn a_failed_segment_read_fails_that_read_and_the_next_one_works() {
    let bench = FaultBench::new("segment read");
    let content = TestContent { id: 1, length: 300_000 };
    let server = bench.start();
    bench.runtime.block_on(async {
        create_bucket(&server.client(), &bench.history).await.expect("made");
        bench.put(&server.client(), content).await.expect("stored");
    });
    server.stop();
    let server = bench.start();
    bench.fail(DiskCall::Read, classes::is_first_segment, 0);
    bench.runtime.block_on(async {
        let client = server.client();
        let failure = client.get(BUCKET, &key(content)).await.expect_err("the read fails");
        assert!(matches!(failure.status(), Some(500) | None), "{failure:?}");
        let body = client.get(BUCKET, &key(content)).await.expect("the next read succeeds").body;
        assert_eq!(content.difference(&body), None);
    });
    assert_eq!(bench.failed_calls(), 1);
    server.stop();
    bench.assert_promises_kept();
}

#[test]
fn a_failed_log_write_acknowledges_nothing_and_stops_the_server() {
    assert_stops_server("log write", DiskCall::Write, classes::is_log_file);
}

#[test]
fn a_failed_log_sync_acknowledges_nothing_and_stops_the_server() {
    assert_stops_server("log sync", DiskCall::Sync, classes::is_log_file);
}

#[test]
fn a_failed_catalogue_write_stops_the_server() {
    assert_stops_server("catalogue write", DiskCall::Write, classes::is_state_file);
}

#[test]
fn a_failed_catalogue_sync_stops_the_server() {
    assert_stops_server("catalogue sync", DiskCall::Sync, classes::is_state_file);
}

fn assert_retried(call: DiskCall) {
    let bench = FaultBench::new(&format!("segment {call:?}"));
    let server = bench.start();
    bench.runtime.block_on(async {
        let client = server.client();
        create_bucket(&client, &bench.history).await.expect("made");
        for id in 0..30 {
            if id == 10 {
                bench.fail(call, classes::is_segment, 0);
            }
            let content = TestContent { id, length: 3_000 * usize::try_from(id).expect("small") };
            bench.put(&client, content).await.expect("the client sees no error");
        }
        let live = check(&client, &bench.history, NOW, &mut Rng::new(0)).await;
        assert_eq!(live.err(), None, "while the server runs");
    });
    assert_eq!(bench.failed_calls(), 1, "the fault occurred");
    drop(server);
    bench.assert_promises_kept();
}

fn assert_stops_server(what: &str, call: DiskCall, matches: fn(&str) -> bool) {
    let bench = FaultBench::new(what);
    let mut server = bench.start();
    bench.runtime.block_on(async {
        let client = server.client();
        create_bucket(&client, &bench.history).await.expect("made");
        for id in 0..20 {
            bench.put(&client, TestContent { id, length: 500 }).await.expect("stored");
        }
        bench.fail(call, matches, 0);
        let mut id = 20;
        let end = loop {
            id += 1;
            assert!(id < PUTS_MAX, "the fault occurs, or the server continues after it");
            if let Err(failure) = bench.put(&client, TestContent { id, length: 500 }).await {
                break failure;
            }
        };
        eprintln!("faults: {what}: the server stops after {id} writes: {end:?}");
    });
    assert_eq!(bench.failed_calls(), 1, "the fault occurred");
    let status = server.wait_exit();
    assert!(!status.success(), "a failed {what} ends in {status:?}\n{}", server.log());
    assert!(server.log().contains("Input/output error"), "the log names the cause:\n{}", server.log());
    bench.assert_promises_kept();
}

fn key(content: TestContent) -> String {
    format!("key-{:04}", content.id)
}

/// A mounted disk with a history.
struct FaultBench {
    mount: Mount,
    history: Arc<History>,
    runtime: Runtime,
    seed: u64,
}

impl FaultBench {
    fn new(what: &str) -> Self {
        let seed = seeded_rng(&format!("faults, {what}"), 5).next();
        let mount = Mount::new();
        let history = history_of(&mount);
        Self { mount, history, runtime: runtime(), seed }
    }

    fn start(&self) -> ServerProcess {
        setup(&self.mount).start()
    }

    fn fail(&self, call: DiskCall, matches: fn(&str) -> bool, skip: usize) {
        self.mount.disk().fail_once(DiskFault { call, matches, skip });
    }

    fn failed_calls(&self) -> usize {
        self.mount.disk().failed_paths().len()
    }

    async fn put(&self, client: &S3TestClient, content: TestContent) -> Result<(), CallFailure> {
        let item = HistoryItem::Object(key(content));
        let act = self.history.send(item, ItemValue::Present(Some(ExpectedBody::plain(content))));
        client.put(BUCKET, &key(content), full_body(content.bytes())).await?;
        self.history.acknowledge(act);
        Ok(())
    }

    /// Checks all promises after a restart on the same disk, and after power cuts at positions before it.
    fn assert_promises_kept(self) {
        let recording = self.mount.disk().recording().clone();
        let server = self.start();
        let mut rng = Rng::new(self.seed);
        let found = self.runtime.block_on(check(&server.client(), &self.history, NOW, &mut rng));
        assert_eq!(found.err(), None, "after a restart\n{}", server.log());
        server.stop();
        let recorded = RecordedRun { recording, history: self.history, seed: self.seed, server_start: 0 };
        let cuts = cuts(&recorded, STATES, CutStyle::choose);
        let (broken, _) = recover_all(&recorded, &cuts, NO_SYNCS_IGNORED, 1);
        let shown: Vec<String> = broken.iter().map(ToString::to_string).collect();
        assert!(broken.is_empty(), "{}", shown.join("\n"));
    }
}
