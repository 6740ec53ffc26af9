//! Every storage node serves requests itself: what one node acknowledged, the others return and list at once,
//! and conditions hold between requests to different nodes. A node whose copy of a segment is bad or missing
//! returns the bytes of another one.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;
use futures_util::future::{join, join_all};
use futures_util::stream;
use http::Method;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::sync::oneshot;

use super::segment_files::{MINUTELY_MAX, have_equal_segments, segment_files, until_copied};
use super::testbed::{
    BUCKET, FIRST, GATEWAY, SPREAD, STORAGE, TestCluster, node_of, wait_at_most, wait_until,
};
use crate::content::TestContent;
use crate::s3::{CallFailure, ClientBody, S3TestClient, full_body};
use crate::server::ServerSetup;

const MIB: usize = 1 << 20;
/// Lengths of objects of one chunk, of one whole chunk, and of so many that their list has pages of its own.
const LENGTHS: [usize; 3] = [40, MIB, 9 * MIB + 7];
/// Parts of an upload, in the order of their numbers.
const PARTS: [TestContent; 3] = [
    TestContent { id: 3_001, length: 5 * MIB },
    TestContent { id: 3_002, length: 6 * MIB + 3 },
    TestContent { id: 3_003, length: 100_000 },
];
/// Object of several segments, and a part of its content that is searched in the files.
const REPLICATED: TestContent = TestContent { id: 3_100, length: 8 * MIB + 5 };
const SEARCHED: std::ops::Range<usize> = MIB + 100..MIB + 164;
/// Rounds of races for one key.
const RACES: usize = 20;
/// Rounds in which a bucket is deleted and created again.
const REPLACEMENTS: usize = 30;
/// Most attempts to replace a bucket while the rows of a node are recent.
const REPLACEMENTS_MAX: usize = 200;
/// Rounds of listings after a change.
const LISTINGS: usize = 10;

/// Compresses texts, by a fact about the node that stores them.
const POLICY: &str = "
version: 1
rules:
  - id: text
    conditions:
      - {type: file_pattern, property: key, operator: matches, value: 'text-**'}
      - {type: system_context, property: tier_fill.hot, operator: less_than, value: 100%}
    actions: [{type: compress, parameters: {level: 3, min_ratio: 1.5}}]
";

/// Settings for many segments.
fn small_segments(setup: ServerSetup) -> ServerSetup {
    setup.with("hot.segment_bytes", "4MiB")
}

/// A node, and a client of it.
struct NodeClient {
    id: usize,
    client: S3TestClient,
}

/// Clients of all nodes.
fn nodes_of(cluster: &TestCluster) -> Vec<NodeClient> {
    cluster.ids().into_iter().map(|id| NodeClient { id, client: cluster.client(id) }).collect()
}

impl NodeClient {
    /// Asserts that this node returns these bytes, and that it serves the request itself if it stores
    /// objects.
    async fn assert_returns(&self, bucket: &str, key: &str, expected: &Bytes) {
        let read = self.client.get(bucket, key).await;
        let read = read.unwrap_or_else(|failure| panic!("{key} through node {}: {failure:?}", self.id));
        let length = read.body.len();
        assert!(read.body == expected, "{key} through node {}: {length} other bytes", self.id);
        let served = node_of(&read);
        let is_expected = if self.id == GATEWAY { STORAGE.contains(&served) } else { served == self.id };
        assert!(is_expected, "{key} through node {} was served by node {served}", self.id);
    }

    /// True if a listing of the bucket through this node has the key.
    async fn lists(&self, bucket: &str, key: &str) -> bool {
        let listed = self.client.list(bucket, 1000).await.expect("listed");
        listed.iter().any(|row| row.key == key)
    }

    /// True if the list of buckets through this node has the bucket.
    async fn lists_bucket(&self, bucket: &str) -> bool {
        let listed = self.client.call(Method::GET, "/", &[], full_body("")).await.expect("listed");
        String::from_utf8_lossy(&listed.body).contains(&format!("<Name>{bucket}</Name>"))
    }
}

/// Returns text that is easily compressed.
pub(super) fn text(writer: usize) -> Bytes {
    let line = |number: usize| format!("node {writer} step {number} loss 0.25 rate 0.0003\n").into_bytes();
    (0..).flat_map(line).take(3 * MIB + 11).collect::<Vec<u8>>().into()
}

#[test]
fn each_node_returns_at_once_what_another_one_stored() {
    let cluster = TestCluster::spread();
    let file = cluster.file("compress.yaml", POLICY);
    let (output, status) = cluster.member(FIRST).setup.command(&["policy", "apply", &file]);
    assert_eq!(status, Some(0), "{output}");
    for id in STORAGE {
        until_compressing(&cluster, id);
    }
    let nodes = nodes_of(&cluster);
    cluster.block_on(async {
        for writer in &nodes {
            for bucket in SPREAD {
                bodies_are_returned(writer, &nodes, bucket).await;
            }
            an_upload_is_returned(writer, &nodes).await;
        }
    });
    for writer in &nodes {
        let key = format!("text-{}", writer.id);
        assert!(is_compressed(&cluster, &key), "{key} is compressed");
    }
}

/// Waits until a node follows the policy: a text that it stores is compressed.
fn until_compressing(cluster: &TestCluster, id: usize) {
    let (client, key) = (cluster.client(id), format!("text-first-{id}"));
    wait_until(&format!("node {id} compresses texts"), || {
        cluster.block_on(client.put(BUCKET, &key, full_body(text(id)))).expect("stored");
        is_compressed(cluster, &key)
    });
}

/// True if the first node knows an object as compressed.
fn is_compressed(cluster: &TestCluster, key: &str) -> bool {
    let object = format!("s3://{BUCKET}/{key}");
    let words = ["--output", "json", "object", "show", &object];
    let (output, status) = cluster.member(FIRST).setup.command(&words);
    status == Some(0) && output.contains("\"zstd\"")
}

/// Puts bodies of all kinds through a node, and reads each through all nodes.
async fn bodies_are_returned(writer: &NodeClient, nodes: &[NodeClient], bucket: &str) {
    let noise = (0..).zip(LENGTHS).map(|(number, length)| {
        let content = TestContent { id: 3_200 + number * 100 + writer.id as u64, length };
        (format!("noise-{}-{length}", writer.id), content.bytes())
    });
    for (key, body) in noise.chain([(format!("text-{}", writer.id), text(writer.id))]) {
        writer.client.put(bucket, &key, full_body(body.clone())).await.expect("stored");
        for reader in nodes {
            reader.assert_returns(bucket, &key, &body).await;
        }
    }
}

/// Uploads parts through all nodes. `writer` begins and completes the upload.
async fn an_upload_is_returned(writer: &NodeClient, nodes: &[NodeClient]) {
    let (key, client) = (format!("parts-{}", writer.id), &writer.client);
    let upload = client.create_upload(BUCKET, &key).await.expect("begun");
    let (mut parts, mut whole) = (Vec::new(), Vec::new());
    for ((number, part), node) in (1..).zip(PARTS).zip(nodes.iter().cycle().skip(writer.id)) {
        let body = full_body(part.bytes());
        let stored = node.client.put_part(BUCKET, &key, &upload, number, body).await;
        parts.push((number, stored.expect("stored")));
        whole.extend_from_slice(&part.bytes());
    }
    client.complete(BUCKET, &key, &upload, &parts).await.expect("completed");
    let whole = Bytes::from(whole);
    for reader in nodes {
        reader.assert_returns(BUCKET, &key, &whole).await;
    }
}

#[test]
fn of_conditional_puts_through_all_nodes_exactly_one_wins() {
    let cluster = TestCluster::spread();
    let nodes = nodes_of(&cluster);
    cluster.block_on(async {
        for race in 0..RACES {
            let bucket = SPREAD[race % SPREAD.len()];
            let key = format!("race-{race}");
            let etag = one_put_wins(&nodes, bucket, &key, ("if-none-match", "*")).await;
            one_put_wins(&nodes, bucket, &key, ("if-match", &format!("\"{etag}\""))).await;
        }
    });
}

/// Puts an object through all nodes at the same time, under a condition that holds once. Returns the ETag of
/// the one that was stored.
async fn one_put_wins(
    nodes: &[NodeClient],
    bucket: &str,
    key: &str,
    condition: (&'static str, &str),
) -> String {
    let path = format!("/{bucket}/{key}");
    let puts = nodes.iter().map(|node| {
        let headers = [(condition.0, condition.1.to_owned())];
        let body = Bytes::from(format!("{key} through node {} if {}", node.id, condition.0));
        let path = &path;
        async move {
            let put = node.client.call(Method::PUT, path, &headers, full_body(body.clone())).await;
            (put.map(|answer| answer.etag()), body)
        }
    });
    let mut winners = Vec::new();
    for (ended, body) in join_all(puts).await {
        match ended {
            Ok(etag) => winners.push((etag, body)),
            Err(failure) => assert!(matches!(failure.status(), Some(409 | 412)), "{path}: {failure:?}"),
        }
    }
    assert_eq!(winners.len(), 1, "{path} if {condition:?}: {winners:?}");
    let (etag, body) = winners.remove(0);
    for reader in nodes {
        reader.assert_returns(bucket, key, &body).await;
    }
    etag
}

#[test]
fn a_listing_through_any_node_follows_each_change_through_another_one() {
    let cluster = TestCluster::spread();
    let nodes = nodes_of(&cluster);
    cluster.block_on(async {
        for number in 0..LISTINGS {
            let bucket = SPREAD[number % SPREAD.len()];
            for writer in &nodes {
                for reader in &nodes {
                    let key = format!("listed-{}-{}", writer.id, reader.id);
                    let body = full_body(format!("{number}"));
                    writer.client.put(bucket, &key, body).await.expect("stored");
                    assert!(reader.lists(bucket, &key).await, "{key} was stored");
                    writer.client.delete(bucket, &key).await.expect("deleted");
                    assert!(!reader.lists(bucket, &key).await, "{key} was deleted");
                }
            }
        }
    });
}

#[test]
fn a_bucket_is_created_used_deleted_and_created_again_through_different_nodes() {
    let cluster = TestCluster::spread();
    let mut nodes = nodes_of(&cluster);
    cluster.block_on(async {
        for turn in 0..nodes.len() {
            let bucket = format!("moving-{turn}");
            for round in 0..nodes.len() {
                a_bucket_lives_once(&nodes, &bucket, round).await;
                nodes.rotate_left(1);
            }
            nodes.rotate_left(1);
        }
    });
}

/// Creates a bucket through a node, uses it through the others, and deletes it through the last.
async fn a_bucket_lives_once(nodes: &[NodeClient], bucket: &str, round: usize) {
    let [first, second, third, fourth] = nodes else { panic!("a cluster of four nodes") };
    let key = format!("key-{round}");
    first.client.create_bucket(bucket).await.expect("made");
    let body = Bytes::from(format!("{bucket} in round {round}"));
    second.client.put(bucket, &key, full_body(body.clone())).await.expect("stored");
    for node in nodes {
        node.assert_returns(bucket, &key, &body).await;
        assert!(node.lists_bucket(bucket).await, "{bucket} was made");
        let listed = node.client.list(bucket, 1000).await.expect("listed");
        assert!(listed.len() == 1 && listed[0].key == key, "{listed:?}");
    }
    third.client.delete(bucket, &key).await.expect("deleted");
    let path = format!("/{bucket}");
    fourth.client.call(Method::DELETE, &path, &[], full_body("")).await.expect("deleted");
    for node in nodes {
        assert!(!node.lists_bucket(bucket).await, "{bucket} was deleted");
        let read = node.client.get(bucket, &key).await;
        assert!(read.as_ref().is_err_and(CallFailure::is_not_found), "{read:?}");
        let stored = node.client.put(bucket, &key, full_body("late")).await;
        assert!(stored.as_ref().is_err_and(CallFailure::is_not_found), "{stored:?}");
    }
}

#[test]
fn a_put_to_a_bucket_that_was_just_replaced_is_stored_or_to_be_sent_again() {
    let cluster = TestCluster::spread();
    let (first, second) = (cluster.client(FIRST), cluster.client(2));
    cluster.block_on(async {
        first.create_bucket("replaced").await.expect("made");
        for round in 0..REPLACEMENTS {
            let key = format!("key-{round}");
            // The second node has recent rows after this, of the bucket that is then replaced.
            second.put("replaced", "before", full_body("x")).await.expect("stored");
            second.delete("replaced", "before").await.expect("deleted");
            first.call(Method::DELETE, "/replaced", &[], full_body("")).await.expect("deleted");
            first.create_bucket("replaced").await.expect("made");
            match second.put("replaced", &key, full_body("x")).await {
                Ok(_) => first.delete("replaced", &key).await.expect("deleted"),
                Err(CallFailure::Refused { status, body })
                    if status == 503 && body.contains("BucketReplaced") => {}
                Err(failure) => panic!("round {round}: {failure:?}"),
            }
        }
    });
}

/// A body of one byte, which is sent when the sender is used.
fn withheld_body() -> (oneshot::Sender<()>, ClientBody) {
    let (send, sent) = oneshot::channel();
    let byte = stream::once(async move {
        drop(sent.await);
        Ok::<_, io::Error>(Frame::data(Bytes::from_static(b"x")))
    });
    (send, StreamBody::new(byte).boxed_unsync())
}

#[test]
fn a_put_whose_bucket_is_replaced_while_its_body_arrives_is_to_be_sent_again() {
    let cluster = TestCluster::spread();
    let (first, second) = (cluster.client(FIRST), cluster.client(2));
    let length = [("content-length", "1".to_owned())];
    cluster.block_on(async {
        first.create_bucket("replaced").await.expect("made");
        let mut is_sent_again = false;
        for _ in 0..REPLACEMENTS_MAX {
            // The second node has recent rows after this.
            second.put("replaced", "before", full_body("x")).await.expect("stored");
            second.delete("replaced", "before").await.expect("deleted");
            let (send, body) = withheld_body();
            let put = second.call(Method::PUT, "/replaced/key", &length, body);
            let replace = async {
                first.call(Method::DELETE, "/replaced", &[], full_body("")).await.expect("deleted");
                first.create_bucket("replaced").await.expect("made");
                let _ = send.send(());
            };
            match join(put, replace).await.0 {
                Err(CallFailure::Refused { status, body })
                    if status == 503 && body.contains("BucketReplaced") =>
                {
                    is_sent_again = true;
                    break;
                }
                // The rows were not recent any more, so it waited for the bucket of before.
                Err(failure) if failure.is_not_found() => {}
                Err(failure) => panic!("{failure:?}"),
                // Its head arrived when the bucket had been replaced.
                Ok(_) => first.delete("replaced", "key").await.expect("deleted"),
            }
        }
        assert!(is_sent_again, "each PUT waited for a bucket that does not exist any more");
        second.put("replaced", "key", full_body("x")).await.expect("stored");
    });
}

#[test]
fn a_node_with_a_damaged_copy_returns_the_bytes_of_another_one() {
    a_bad_copy_is_repaired(|cluster, id, name| {
        let path = cluster.segments_dir(id).join(name);
        let stored = fs::read(&path).expect("read");
        let at = offset_of_searched(&stored).expect("the file was found by it");
        let file = OpenOptions::new().write(true).open(&path).expect("opened");
        file.write_all_at(&[stored[at] ^ 1], at as u64).expect("written");
        file.sync_all().expect("synced");
    });
}

#[test]
fn a_node_without_its_copy_returns_the_bytes_of_another_one() {
    a_bad_copy_is_repaired(|cluster, id, name| {
        fs::remove_file(cluster.segments_dir(id).join(name)).expect("removed");
    });
}

/// Position of the searched bytes of [`REPLICATED`] in a file.
fn offset_of_searched(stored: &[u8]) -> Option<usize> {
    let content = REPLICATED.bytes();
    stored.windows(SEARCHED.len()).position(|window| *window == content[SEARCHED])
}

/// Stores an object through the first node and makes the copy on another running node bad. That node returns
/// the whole object, and gets an intact copy again.
fn a_bad_copy_is_repaired(make_bad: fn(&TestCluster, usize, &str)) {
    const BAD: usize = 2;
    let mut cluster = TestCluster::three_with(small_segments);
    let client = cluster.client(FIRST);
    cluster.block_on(client.put(BUCKET, "replicated", full_body(REPLICATED.bytes()))).expect("stored");
    // Nothing of the object is in the memory of a node that has just started, and its segments are sealed.
    cluster.restart(&STORAGE);
    cluster.until_settled();
    until_copied(&cluster, &STORAGE);
    let has_searched = |name: &String| {
        let stored = fs::read(cluster.segments_dir(BAD).join(name)).expect("read");
        offset_of_searched(&stored).is_some()
    };
    let name = segment_files(&cluster, BAD).into_keys().find(has_searched).expect("the bytes are stored");
    make_bad(&cluster, BAD, &name);
    assert!(!have_equal_segments(&cluster, &STORAGE), "the copy is bad");
    let node = NodeClient { id: BAD, client: cluster.client(BAD) };
    cluster.block_on(async {
        for _ in 0..3 {
            node.assert_returns(BUCKET, "replicated", &REPLICATED.bytes()).await;
        }
    });
    until_copied(&cluster, &STORAGE);
    wait_at_most(MINUTELY_MAX, "no copy is suspect", || cluster.view(FIRST).copies.suspect_segments == 0);
    cluster.block_on(node.assert_returns(BUCKET, "replicated", &REPLICATED.bytes()));
}
