//! A node is lost. Without a gateway nothing changes for clients of the others. Without the first node
//! everything local is served by the others, requests in progress through them go on, and another node takes
//! the remote-backed buckets over.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use mlgw_common::time::{Instant, timeout};
use tempfile::TempDir;

use super::testbed::{
    BUCKET, FIRST, GATEWAY, STORAGE, TestCluster, assert_reads, assert_reads_before, keys_before, node_of,
    node_of_head, put, until_served, wait_until,
};
use super::writers::{TestWriter, WrittenObject, assert_all_stored};
use crate::content::TestContent;
use crate::raw::{RawExchange, RawHttpResponse};
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::server::{ServerProcess, ServerSetup};

const MIB: usize = 1 << 20;
/// Body of an upload during which the first node is killed.
const UPLOADED: TestContent = TestContent { id: 70, length: 8 * MIB };
/// Bytes of that body that are sent before the kill.
const SENT: usize = MIB;
/// Body of a download during which the first node is killed: more than all buffers on the way.
const DOWNLOADED: TestContent = TestContent { id: 71, length: 64 * MIB };
/// Body of the object of the remote-backed bucket.
const REMOTE: TestContent = TestContent { id: 72, length: 300_000 };
/// The remote-backed bucket, and the bucket of its origin.
const BOUND: &str = "remote-backed";
const ORIGIN_BUCKET: &str = "lake";
/// Longest time until a request is refused that no node can serve. The aim is 2 s, and the rest is for a busy
/// machine. A request that waits for the take-over instead takes longer.
const REFUSAL_MAX: Duration = Duration::from_secs(15);
/// Longest time until a request ends. It is reached only if something is broken.
const END_MAX: Duration = Duration::from_secs(30);

#[test]
fn the_loss_of_a_node_that_only_forwards_stops_no_request() {
    let mut cluster = TestCluster::whole();
    let mut written: Vec<String> = keys_before().collect();
    cluster.kill(GATEWAY);
    cluster.assert_all_serve();
    let left = cluster.clients();
    assert_eq!(left.len(), STORAGE.len());
    cluster.block_on(async {
        for (number, client) in left.iter().enumerate() {
            let key = format!("without-{GATEWAY}-{number}");
            put(client, &key).await.expect("stored");
            for reader in &left {
                assert_reads(reader, &key).await;
            }
            written.push(key);
        }
    });
    for id in STORAGE {
        wait_until(&format!("node {id} reports the loss of the gateway"), || {
            cluster.view(id).node(GATEWAY).is_some_and(|node| node.reachable == Some(false))
        });
    }
    cluster.start(GATEWAY);
    wait_until("the gateway catches up", || cluster.is_caught_up(GATEWAY));
    let returned = cluster.client(GATEWAY);
    cluster.block_on(async {
        for key in &written {
            assert_reads(&returned, key).await;
        }
    });
}

#[test]
fn without_the_first_node_the_others_serve_and_nothing_acknowledged_is_lost() {
    let mut cluster = TestCluster::whole();
    let _origin = bind_bucket(&mut cluster);
    let gateway = cluster.client(GATEWAY);
    cluster.block_on(gateway.put(BUCKET, "downloaded", full_body(DOWNLOADED.bytes()))).expect("stored");
    let requests: Vec<RequestInProgress> =
        cluster.ids().into_iter().map(|id| RequestInProgress::begin(&cluster, id)).collect();
    let start = |id| TestWriter::start(&cluster, id, "written");
    let writers: Vec<TestWriter> = cluster.ids().into_iter().map(start).collect();
    writers.iter().for_each(TestWriter::until_more);
    cluster.kill(FIRST);
    // The writer through the first node is the first one, and its connection is cut.
    writers[1..].iter().for_each(TestWriter::until_more);
    let uploaded = cluster.block_on(end_requests(requests));
    let mut written = Vec::new();
    for (writer, id) in writers.into_iter().zip(cluster.ids()) {
        let log = writer.end(&cluster);
        match id {
            FIRST => log.assert_kept_but_for_unanswered(),
            _ => log.assert_kept(),
        }
        written.extend(log.stored);
    }
    everything_local_is_served(&cluster);
    the_remote_backed_bucket_is_refused_at_once_or_served(&cluster);
    the_others_are_ready_and_lead(&cluster);
    let served = the_remote_backed_bucket_is_served(&cluster);
    assert!(!served.contains(&FIRST), "{served:?}");
    everything_is_there(&cluster, &written, &uploaded);

    cluster.start(FIRST);
    cluster.until_settled();
    cluster.assert_all_serve();
    everything_is_there(&cluster, &written, &uploaded);
    the_remote_backed_bucket_is_served(&cluster);
}

/// Starts an origin, binds a bucket to it, and puts an object into that bucket through the gateway. Returns
/// the origin, which runs until it is dropped.
fn bind_bucket(cluster: &mut TestCluster) -> TestOrigin {
    let room = tempfile::tempdir().expect("a directory");
    let server = ServerSetup::new(room.path().join("origin")).start();
    cluster.block_on(server.client().create_bucket(ORIGIN_BUCKET)).expect("made");
    for id in STORAGE {
        cluster.add_upstream(id, "origin", &server, ORIGIN_BUCKET);
    }
    cluster.restart(&STORAGE);
    cluster.until_settled();
    cluster.until_first_has_duty();
    let words = ["bucket", "bind", BOUND, "--upstream", "origin", "--mode", "write-through"];
    let (output, status) = cluster.member(FIRST).setup.command(&words);
    assert_eq!(status, Some(0), "{output}");
    let gateway = cluster.client(GATEWAY);
    cluster.block_on(gateway.put(BOUND, "object", full_body(REMOTE.bytes()))).expect("stored");
    assert_eq!(the_remote_backed_bucket_is_served(cluster), [FIRST].into());
    TestOrigin { _server: server, _room: room }
}

/// A server with the objects of the remote-backed bucket.
struct TestOrigin {
    _server: ServerProcess,
    _room: TempDir,
}

/// Reads the object of the remote-backed bucket through every running node. Returns the nodes that served it:
/// the duty node, and another one if the duty moves meanwhile.
fn the_remote_backed_bucket_is_served(cluster: &TestCluster) -> BTreeSet<usize> {
    let mut served = BTreeSet::new();
    for id in cluster.running() {
        let client = cluster.client(id);
        let what = format!("{BOUND} is served through node {id}");
        let read = cluster.block_on(until_served(&what, async || client.get(BOUND, "object").await));
        assert_eq!(REMOTE.difference(&read.body), None, "through node {id}");
        served.insert(node_of(&read));
    }
    served
}

/// An upload and a download through a node. A part of each was transferred.
struct RequestInProgress {
    id: usize,
    upload: RawExchange,
    download: RawExchange,
    /// The response to the download, with the first bytes of its body.
    begun: RawHttpResponse,
}

impl RequestInProgress {
    fn begin(cluster: &TestCluster, id: usize) -> Self {
        let (client, addr) = (cluster.client(id), cluster.process(id).s3);
        cluster.block_on(async {
            let target = format!("/{}", Self::path(id));
            let length = UPLOADED.length as u64;
            let begun = RawExchange::begin(&client, addr, Method::PUT, &target, length).await;
            let mut upload = begun.expect("connected");
            upload.send(&UPLOADED.bytes()[..SENT]).await.expect("sent");
            let target = format!("/{BUCKET}/downloaded");
            let begun = RawExchange::begin(&client, addr, Method::GET, &target, 0).await;
            let mut download = begun.expect("connected");
            let begun = download.answer().await.expect("begun");
            assert_eq!(begun.status, 200, "through node {id}");
            Self { id, upload, download, begun }
        })
    }

    /// Bucket and key of the upload through a node.
    fn path(id: usize) -> String {
        format!("{BUCKET}/{}", uploaded_key(id))
    }

    /// Sends the rest of the upload and reads the rest of the download, after the first node was killed.
    /// Both succeed unless the first node served them. Returns true if the upload was acknowledged.
    async fn end(self) -> bool {
        let Self { id, upload, mut download, begun } = self;
        let served = node_of_head(&begun.head).expect("the response names its node");
        let rest = download.read_rest(&begun).await;
        match served {
            FIRST => assert!(rest.is_err(), "the download through node {id} breaks off"),
            _ => assert_eq!(DOWNLOADED.difference(&rest.expect("whole")), None, "through node {id}"),
        }
        let ended = end_upload(upload).await;
        match (id, ended) {
            (FIRST, ended) => {
                assert!(ended.is_err(), "the connection to the first node is cut: {ended:?}");
                false
            }
            // The gateway chose a node, which may have been the first one.
            (GATEWAY, Ok(UploadEnd { status: 503, body })) => {
                assert!(body.contains("<Reason>MemberLost</Reason>"), "{body}");
                false
            }
            (_, ended) => {
                let UploadEnd { status, body } = ended.expect("an answer");
                assert_eq!(status, 200, "through node {id}: {body}");
                true
            }
        }
    }
}

/// Key of the upload through a node.
fn uploaded_key(id: usize) -> String {
    format!("uploaded-{id}")
}

/// The answer to an upload.
#[derive(Debug)]
struct UploadEnd {
    status: u16,
    body: String,
}

/// Sends the rest of an upload, unless it is answered before, and reads the answer.
async fn end_upload(mut upload: RawExchange) -> std::io::Result<UploadEnd> {
    let answer = match upload.send_or_answer(&UPLOADED.bytes()[SENT..]).await? {
        Some(answer) => answer,
        None => upload.answer().await?,
    };
    let body = upload.read_rest(&answer).await?;
    Ok(UploadEnd { status: answer.status, body: String::from_utf8_lossy(&body).into_owned() })
}

/// Ends all requests. Returns the ids of the nodes through which an upload was acknowledged.
async fn end_requests(requests: Vec<RequestInProgress>) -> Vec<usize> {
    let mut acknowledged = Vec::new();
    for request in requests {
        let id = request.id;
        if timeout(END_MAX, request.end()).await.expect("it does not hang") {
            acknowledged.push(id);
        }
    }
    acknowledged
}

/// Reads everything that was acknowledged through every running node. Uploads that were not acknowledged are
/// absent, because their bodies did not arrive.
fn everything_is_there(cluster: &TestCluster, written: &[WrittenObject], uploaded: &[usize]) {
    for id in cluster.running() {
        assert_all_stored(cluster, id, written);
        let client = cluster.client(id);
        cluster.block_on(async {
            assert_reads_before(&client).await;
            let read = client.get(BUCKET, "downloaded").await.expect("read");
            assert_eq!(DOWNLOADED.difference(&read.body), None, "through node {id}");
            for upload in cluster.ids() {
                let read = client.get(BUCKET, &uploaded_key(upload)).await;
                if uploaded.contains(&upload) {
                    assert_eq!(UPLOADED.difference(&read.expect("read").body), None, "through node {id}");
                } else {
                    assert!(read.as_ref().is_err_and(CallFailure::is_not_found), "{read:?}");
                }
            }
        });
    }
}

/// A request with a body of this length.
struct RequestKind {
    method: Method,
    target: String,
    length: usize,
}

/// Every kind of request to a bucket, in an order in which each can succeed.
fn kinds_of_requests(bucket: &str, key: &str) -> Vec<RequestKind> {
    let kind = |method, target, length| RequestKind { method, target, length };
    let object = format!("/{bucket}/{key}");
    vec![
        kind(Method::PUT, object.clone(), 40),
        kind(Method::GET, object.clone(), 0),
        kind(Method::HEAD, object.clone(), 0),
        kind(Method::GET, format!("/{bucket}?list-type=2"), 0),
        kind(Method::DELETE, object, 0),
    ]
}

/// The response to a request, and the time that it took.
struct TimedAnswer {
    answer: RawHttpResponse,
    body: String,
    elapsed: Duration,
}

/// Sends a request to a node, and reads the response. Panics if it does not end.
fn send(cluster: &TestCluster, id: usize, kind: &RequestKind) -> TimedAnswer {
    let (client, addr) = (cluster.client(id), cluster.process(id).s3);
    let what = format!("{} {} through node {id}", kind.method, kind.target);
    let begun = Instant::now();
    let ended = cluster.block_on(async { timeout(END_MAX, exchange(&client, addr, kind)).await });
    let answered = ended.unwrap_or_else(|_| panic!("{what} hangs"));
    let (answer, body) = answered.unwrap_or_else(|error| panic!("{what}: {error}"));
    TimedAnswer { answer, body, elapsed: begun.elapsed() }
}

/// Sends a request with its body, unless it is answered before, and reads the response.
async fn exchange(
    client: &S3TestClient,
    addr: SocketAddr,
    kind: &RequestKind,
) -> std::io::Result<(RawHttpResponse, String)> {
    let RequestKind { method, target, length } = kind;
    let has_body = *method != Method::HEAD;
    let mut exchange = RawExchange::begin(client, addr, method.clone(), target, *length as u64).await?;
    let answer = match exchange.send_or_answer(&vec![b'x'; *length]).await? {
        Some(answer) => answer,
        None => exchange.answer().await?,
    };
    let body = if has_body { exchange.read_rest(&answer).await? } else { Vec::new() };
    Ok((answer, String::from_utf8_lossy(&body).into_owned()))
}

/// Sends every kind of request to every running node. Each is served by a node that runs.
fn everything_local_is_served(cluster: &TestCluster) {
    cluster.assert_all_serve();
    for id in cluster.running() {
        let mut kinds = kinds_of_requests(BUCKET, &format!("raw-{id}"));
        kinds.push(RequestKind { method: Method::GET, target: "/".to_owned(), length: 0 });
        for kind in &kinds {
            let TimedAnswer { answer, body, .. } = send(cluster, id, kind);
            let what = format!("{} {} through node {id}", kind.method, kind.target);
            assert!([200, 204].contains(&answer.status), "{what}: {} {body}", answer.status);
            let served = node_of_head(&answer.head).expect("the response names its node");
            let is_expected = if id == GATEWAY { served != FIRST } else { served == id };
            assert!(is_expected, "{what} was served by node {served}");
        }
    }
}

/// Reads the remote-backed bucket through every running node in all ways, and copies from it. While another
/// node takes it over, each request is refused within the limit.
fn the_remote_backed_bucket_is_refused_at_once_or_served(cluster: &TestCluster) {
    for id in cluster.running() {
        let kinds = kinds_of_requests(BOUND, "object");
        // A change waits until it may reach the origin.
        for kind in kinds.iter().filter(|kind| [Method::GET, Method::HEAD].contains(&kind.method)) {
            let TimedAnswer { answer, body, elapsed } = send(cluster, id, kind);
            let what = format!("{} {} through node {id}", kind.method, kind.target);
            if answer.status == 503 {
                assert!(elapsed < REFUSAL_MAX, "{what} took {elapsed:?}");
                assert!(answer.head.to_lowercase().contains("\r\nretry-after: "), "{what}: {}", answer.head);
            } else {
                assert_eq!(answer.status, 200, "{what}: {body}");
            }
        }
        let source = [("x-amz-copy-source", format!("/{BOUND}/object"))];
        let (client, target) = (cluster.client(id), format!("/{BUCKET}/copied-by-{id}"));
        let what = format!("a copy through node {id}");
        cluster.block_on(until_served(&what, async || {
            let copy = client.call(Method::PUT, &target, &source, full_body(""));
            timeout(END_MAX, copy).await.expect("it does not hang")
        }));
    }
}

/// Waits until the other nodes report the loss of the first node, are ready, and lead all groups.
fn the_others_are_ready_and_lead(cluster: &TestCluster) {
    for id in cluster.running() {
        wait_until(&format!("node {id} reports the loss of the first node"), || {
            cluster.view(id).node(FIRST).is_some_and(|node| node.reachable == Some(false))
        });
        let probe = cluster.process(id).admin_client();
        let ready = cluster.block_on(probe.call(Method::GET, "/readyz", &[], full_body("")));
        assert!(ready.is_ok(), "node {id} serves, and is not ready: {ready:?}");
    }
    cluster.until_led();
}
