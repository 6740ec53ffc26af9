//! Storage nodes are killed while clients use all nodes: requests through the others go on, and nothing that
//! was acknowledged is lost. Each node leads an object group, and the first one the system group too, so
//! every kind of leader is killed.

use bytes::Bytes;

use super::testbed::{
    GATEWAY, SPREAD, STORAGE, SYSTEM_GROUP, TestCluster, assert_reads_before, content_of, node_of,
    until_served, wait_until,
};
use super::writers::{TestWriter, assert_all_stored};
use crate::content::TestContent;
use crate::s3::{S3TestClient, full_body};

const MIB: usize = 1 << 20;
/// Parts of an upload.
const PARTS: [TestContent; 4] = [
    TestContent { id: 4_001, length: 5 * MIB },
    TestContent { id: 4_002, length: 6 * MIB + 3 },
    TestContent { id: 4_003, length: 5 * MIB + 1 },
    TestContent { id: 4_004, length: 100_000 },
];
/// Requests through the gateway after each loss.
const GATEWAY_REQUESTS: usize = 30;

#[test]
fn any_storage_node_may_be_killed_while_clients_write_through_all_nodes() {
    let mut cluster = TestCluster::spread();
    let mut written = Vec::new();
    for killed in STORAGE {
        let led = cluster.groups_led_by(killed);
        eprintln!("node {killed} leads the groups {led:?}");
        assert!(led.iter().any(|group| *group != SYSTEM_GROUP), "node {killed} leads no group of objects");
        let start = |id| TestWriter::start_spread(&cluster, id, &format!("without-{killed}"));
        let writers: Vec<TestWriter> = cluster.ids().into_iter().map(start).collect();
        writers.iter().for_each(TestWriter::until_more);
        cluster.kill(killed);
        let others = writers.iter().zip(cluster.ids()).filter(|(_, id)| *id != killed);
        others.for_each(|(writer, _)| writer.until_more());
        let mut stored = Vec::new();
        for (writer, id) in writers.into_iter().zip(cluster.ids()) {
            let log = writer.end(&cluster);
            if id == killed {
                log.assert_kept_but_for_unanswered();
            } else {
                log.assert_kept();
            }
            stored.extend(log.stored);
        }
        for id in cluster.running() {
            assert_all_stored(&cluster, id, &stored);
        }
        cluster.start(killed);
        wait_until(&format!("node {killed} catches up"), || cluster.is_caught_up(killed));
        cluster.until_settled();
        assert_all_stored(&cluster, killed, &stored);
        written.extend(stored);
    }
    cluster.assert_all_serve();
    for id in cluster.ids() {
        assert_all_stored(&cluster, id, &written);
    }
}

#[test]
fn a_gateway_goes_on_without_any_one_storage_node() {
    let mut cluster = TestCluster::spread();
    let client = cluster.client(GATEWAY);
    for killed in STORAGE {
        cluster.kill(killed);
        cluster.block_on(async {
            for bucket in SPREAD {
                let key = format!("first-without-{killed}");
                let body = || full_body(content_of(&key).bytes());
                let what = format!("a PUT without node {killed}");
                until_served(&what, async || client.put(bucket, &key, body()).await).await;
            }
            for number in 0..GATEWAY_REQUESTS {
                let key = format!("without-{killed}-{number}");
                the_gateway_serves(&client, SPREAD[number % SPREAD.len()], &key, killed).await;
            }
            assert_reads_before(&client).await;
        });
        cluster.start(killed);
        wait_until(&format!("node {killed} catches up"), || cluster.is_caught_up(killed));
        cluster.until_settled();
    }
}

/// Puts and reads an object through the gateway; another node than the killed one serves that.
async fn the_gateway_serves(client: &S3TestClient, bucket: &str, key: &str, killed: usize) {
    let content = content_of(key);
    client.put(bucket, key, full_body(content.bytes())).await.expect("stored");
    let read = client.get(bucket, key).await.expect("read");
    assert_eq!(content.difference(&read.body), None, "{bucket}/{key}");
    let served = node_of(&read);
    assert!(STORAGE.contains(&served) && served != killed, "node {served} served {key}");
}

#[test]
fn an_upload_is_completed_after_the_loss_of_the_node_on_which_it_began() {
    let mut cluster = TestCluster::spread();
    for killed in STORAGE {
        let others: Vec<usize> = STORAGE.into_iter().filter(|id| *id != killed).collect();
        let [begun, second, third] = [killed, others[0], others[1]].map(|id| cluster.client(id));
        let bucket = SPREAD[killed % SPREAD.len()];
        let mut upload =
            TestUpload { bucket, key: format!("without-{killed}"), id: String::new(), etags: vec![] };
        cluster.block_on(async {
            upload.id = begun.create_upload(bucket, &upload.key).await.expect("begun");
            upload.put_part(&second).await;
            upload.put_part(&begun).await;
        });
        cluster.kill(killed);
        cluster.block_on(async {
            upload.put_part(&third).await;
            upload.put_part(&second).await;
            let listed = third.list_parts(bucket, &upload.key, &upload.id).await.expect("listed");
            assert_eq!(listed.len(), PARTS.len());
            third.complete(bucket, &upload.key, &upload.id, &upload.etags).await.expect("completed");
        });
        let whole: Bytes = PARTS.map(TestContent::bytes).concat().into();
        for id in cluster.running() {
            assert_returns(&cluster, id, &upload, &whole);
        }
        cluster.start(killed);
        wait_until(&format!("node {killed} catches up"), || cluster.is_caught_up(killed));
        cluster.until_settled();
        assert_returns(&cluster, killed, &upload, &whole);
    }
}

/// An upload whose parts go through several nodes.
struct TestUpload {
    bucket: &'static str,
    key: String,
    id: String,
    /// ETags of the parts that are stored.
    etags: Vec<(u32, String)>,
}

impl TestUpload {
    /// Puts the next part through a node. A part may be sent again, so a 503 is repeated.
    async fn put_part(&mut self, client: &S3TestClient) {
        let Self { bucket, key, id, etags } = self;
        let (part, number) = (PARTS[etags.len()], u32::try_from(etags.len() + 1).expect("small"));
        let put = async || client.put_part(bucket, key, id, number, full_body(part.bytes())).await;
        let etag = until_served(&format!("part {number} of {key}"), put).await;
        etags.push((number, etag));
    }
}

/// Asserts that a node returns the completed upload.
fn assert_returns(cluster: &TestCluster, node: usize, upload: &TestUpload, whole: &Bytes) {
    let client = cluster.client(node);
    let read = cluster.block_on(client.get(upload.bucket, &upload.key));
    let read = read.unwrap_or_else(|failure| panic!("{} through node {node}: {failure:?}", upload.key));
    assert!(read.body == whole, "{} through node {node}: {} other bytes", upload.key, read.body.len());
}
