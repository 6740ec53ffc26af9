//! Appends to open segments are replicated: what was acknowledged is there after the loss of any one node,
//! also of the owner of the segments and its disk. A third storage node that is late or lost stops no writes;
//! without a second one they are refused with a reason.

use std::fs;
use std::time::Duration;

use mlgw_common::time::{Instant, timeout};

use super::segment_files::until_copied;
use super::testbed::{
    BUCKET, FIRST, STORAGE, TestCluster, assert_reads_before, content_of, keys_before, put, until_served,
    wait_at_most, wait_until,
};
use super::writers::{TestWriter, WrittenObject, assert_all_stored};
use crate::content::TestContent;
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::server::ServerSetup;

const MIB: usize = 1 << 20;
/// Lengths of objects of one chunk, of several, and of several segments.
const LENGTHS: [usize; 5] = [40, 5_000, 300_000, MIB + 7, 6 * MIB + 1];
/// Objects of these lengths, in turn.
const OBJECTS: usize = 31;
/// Body with segments of its own.
const OWN: TestContent = TestContent { id: 2_000, length: 70 * MIB + 5 };
/// Parts of an upload.
const PARTS: [TestContent; 3] = [
    TestContent { id: 2_001, length: 5 * MIB },
    TestContent { id: 2_002, length: 6 * MIB + 3 },
    TestContent { id: 2_003, length: 100_000 },
];

/// Time for which a node is stopped.
const STOPPED: Duration = Duration::from_secs(15);
/// Longest time until the open segments of a lost node are sealed: it is waited for 10 s.
const RECOVERY_MAX: Duration = Duration::from_secs(40);
/// Longest time until writes are accepted after the second storage node has returned.
const RETURN_MAX: Duration = Duration::from_secs(20);
/// Longest time until a request ends. It is reached only if something is broken.
const END_MAX: Duration = Duration::from_secs(30);

/// Settings of nodes with many segments.
fn small_segments(setup: ServerSetup) -> ServerSetup {
    setup.with("hot.segment_bytes", "4MiB")
}

#[test]
fn everything_acknowledged_outlives_the_first_node_and_its_disk() {
    everything_acknowledged_outlives(FIRST);
}

#[test]
fn everything_acknowledged_outlives_another_storage_node_and_its_disk() {
    everything_acknowledged_outlives(2);
}

/// Kills a node during writes through it, and removes its segments. Everything that was acknowledged is read
/// through the others, at once and after they have sealed its open segments, and through it when it returned.
fn everything_acknowledged_outlives(lost: usize) {
    let mut cluster = TestCluster::three_with(small_segments);
    let clients = STORAGE.map(|id| cluster.client(id));
    let objects = cluster.block_on(put_objects(&clients));
    let others: Vec<usize> = STORAGE.into_iter().filter(|id| *id != lost).collect();
    // From here on only the node that will be lost has open segments.
    cluster.restart(&others);
    let writer = TestWriter::start(&cluster, lost, "written");
    writer.until_more();
    wait_until("a segment is open", || cluster.view(others[0]).copies.open_segments > 0);
    cluster.kill(lost);
    let log = writer.end(&cluster);
    log.assert_kept_but_for_unanswered();
    for id in &others {
        until_readable(&cluster, *id);
        everything_is_there(&cluster, *id, &objects, &log.stored);
    }
    wait_at_most(RECOVERY_MAX, "the other nodes have sealed the open segments", || {
        cluster.view(others[0]).copies.open_segments == 0
    });

    remove_all_but_mark(&cluster, lost);
    cluster.adopt_segments(lost);
    cluster.start(lost);
    cluster.until_settled();
    until_copied(&cluster, &STORAGE);
    for id in [lost, 3] {
        everything_is_there(&cluster, id, &objects, &log.stored);
    }
}

#[test]
fn a_follower_that_hangs_stops_no_writes() {
    const HANGING: usize = 2;
    let mut cluster = TestCluster::three_with(small_segments);
    let writer = TestWriter::start(&cluster, FIRST, "written");
    writer.until_more();
    let stopped = Instant::now();
    cluster.pause(HANGING);
    writer.until_more();
    wait_until("the node was stopped for long enough", || stopped.elapsed() >= STOPPED);
    writer.until_more();
    cluster.resume(HANGING);
    wait_until("the node catches up", || cluster.is_caught_up(HANGING));
    writer.until_more();
    let log = writer.end(&cluster);
    log.assert_kept();

    // A stop seals the segments without the node.
    cluster.restart(&[FIRST]);
    cluster.until_settled();
    until_copied(&cluster, &STORAGE);
    everything_is_there(&cluster, HANGING, &[], &log.stored);
}

#[test]
fn followers_that_are_killed_in_turn_stop_no_writes() {
    let mut cluster = TestCluster::three_with(small_segments);
    let writer = TestWriter::start(&cluster, FIRST, "written");
    for killed in [2, 3] {
        writer.until_more();
        cluster.kill(killed);
        writer.until_more();
        cluster.start(killed);
        wait_until(&format!("node {killed} catches up"), || cluster.is_caught_up(killed));
    }
    writer.until_more();
    let log = writer.end(&cluster);
    log.assert_kept();
    everything_is_there(&cluster, 3, &[], &log.stored);
}

#[test]
fn without_the_second_of_two_storage_nodes_writes_are_refused_with_a_reason() {
    let mut cluster = TestCluster::first();
    cluster.join("storage");
    cluster.until_active(2);
    let client = cluster.client(FIRST);
    let stored = ["with-both", "through-the-second", "returned"].map(StoredObject::small);
    for (object, id) in stored.iter().zip([FIRST, 2]) {
        let client = cluster.client(id);
        wait_until("writes are accepted", || try_put(&cluster, &client, &object.key).is_ok());
    }
    cluster.kill(2);
    for key in ["refused-1", "refused-2"] {
        let ended = try_put(&cluster, &client, key);
        let Err(CallFailure::Refused { status, body }) = ended else { panic!("{key}: {ended:?}") };
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("<Reason>TooFewReplicas</Reason>"), "{body}");
    }
    everything_is_there(&cluster, FIRST, &stored[..2], &[]);
    let refused = cluster.block_on(client.get(BUCKET, "refused-1"));
    assert!(refused.as_ref().is_err_and(CallFailure::is_not_found), "{refused:?}");

    cluster.start(2);
    wait_at_most(RETURN_MAX, "writes are accepted again", || try_put(&cluster, &client, "returned").is_ok());
    everything_is_there(&cluster, 2, &stored, &[]);
}

/// Puts the object with this key; panics if the request does not end.
fn try_put(cluster: &TestCluster, client: &S3TestClient, key: &str) -> Result<String, CallFailure> {
    let ended = cluster.block_on(async { timeout(END_MAX, put(client, key)).await });
    ended.unwrap_or_else(|_| panic!("the PUT of {key} hangs"))
}

/// An object, and the contents of its parts.
struct StoredObject {
    key: String,
    parts: Vec<TestContent>,
}

impl StoredObject {
    /// The object that [`put`] stores under this key.
    fn small(key: &str) -> Self {
        Self { key: key.to_owned(), parts: vec![content_of(key)] }
    }

    async fn assert_stored(&self, client: &S3TestClient) {
        let key = &self.key;
        let read = client.get(BUCKET, key).await.unwrap_or_else(|failure| panic!("{key}: {failure:?}"));
        let mut begin = 0;
        for part in &self.parts {
            let end = read.body.len().min(begin + part.length);
            assert_eq!(part.difference(&read.body[begin..end]), None, "{key} from {begin}");
            begin = end;
        }
        assert_eq!(read.body.len(), begin, "{key}");
    }
}

/// Stores objects of all lengths and an upload, through these nodes in turn.
async fn put_objects(nodes: &[S3TestClient]) -> Vec<StoredObject> {
    let mixed = (0..OBJECTS).zip(1_000..).map(|(number, id)| StoredObject {
        key: format!("mixed-{number:02}"),
        parts: vec![TestContent { id, length: LENGTHS[number % LENGTHS.len()] }],
    });
    let own = StoredObject { key: "own".to_owned(), parts: vec![OWN] };
    let mut objects: Vec<StoredObject> = mixed.chain([own]).collect();
    for (object, node) in objects.iter().zip(nodes.iter().cycle()) {
        node.put(BUCKET, &object.key, full_body(object.parts[0].bytes())).await.expect("stored");
    }
    let key = "uploaded";
    let upload = nodes[0].create_upload(BUCKET, key).await.expect("begun");
    let mut etags = Vec::new();
    for ((number, part), node) in (1..).zip(PARTS).zip(nodes.iter().cycle()) {
        let body = full_body(part.bytes());
        etags.push((number, node.put_part(BUCKET, key, &upload, number, body).await.expect("stored")));
    }
    nodes[1].complete(BUCKET, key, &upload, &etags).await.expect("completed");
    objects.push(StoredObject { key: key.to_owned(), parts: PARTS.to_vec() });
    objects
}

/// Waits until a node serves reads: one of the others may be elected first.
fn until_readable(cluster: &TestCluster, node: usize) {
    let (client, key) = (cluster.client(node), keys_before().next().expect("a key"));
    cluster.block_on(until_served("a read after the loss", async || client.get(BUCKET, &key).await));
}

/// Reads these objects, and those that exist before the cluster, through a node.
fn everything_is_there(
    cluster: &TestCluster,
    node: usize,
    objects: &[StoredObject],
    written: &[WrittenObject],
) {
    let client = cluster.client(node);
    cluster.block_on(async {
        for object in objects {
            object.assert_stored(&client).await;
        }
        assert_reads_before(&client).await;
    });
    assert_all_stored(cluster, node, written);
}

/// Removes the files of a stopped node's segments. The mark stays.
fn remove_all_but_mark(cluster: &TestCluster, id: usize) {
    for entry in fs::read_dir(cluster.segments_dir(id)).expect("listed") {
        let entry = entry.expect("an entry");
        if entry.file_name() != "owner" && entry.file_type().expect("a type").is_file() {
            fs::remove_file(entry.path()).expect("removed");
        }
    }
}
