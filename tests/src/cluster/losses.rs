//! Nodes are killed. Without a node that only forwards nothing changes for clients of the others; without the
//! store every request is refused at once, and everything acknowledged is there when it returns.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use mlgw_common::time::{Instant, timeout};
use tokio::task::JoinHandle;

use super::testbed::{BUCKET, GATEWAY, STORE, TestCluster, assert_reads, keys_before, put, wait_until};
use crate::content::TestContent;
use crate::raw::{RawExchange, RawHttpResponse};
use crate::s3::{CallFailure, S3TestClient, full_body};

const MIB: usize = 1 << 20;
/// Body of an upload during which the store is killed.
const UPLOADED: TestContent = TestContent { id: 70, length: 8 * MIB };
/// Body of a download during which the store is killed: more than all buffers on the way.
const DOWNLOADED: TestContent = TestContent { id: 71, length: 64 * MIB };
/// Objects that each writer stores before the store is killed.
const WRITES_MIN: usize = 20;
/// Longest time until a request is refused that no node can serve.
const REFUSAL_MAX: Duration = Duration::from_secs(2);
/// Longest time until a request ends. It is reached only if something is broken.
const END_MAX: Duration = Duration::from_secs(30);

#[test]
fn the_loss_of_a_node_that_only_forwards_stops_no_request() {
    let mut cluster = TestCluster::whole();
    let mut written: Vec<String> = keys_before().collect();
    for lost in [2, 3, GATEWAY] {
        cluster.kill(lost);
        let left = cluster.clients();
        assert_eq!(left.len(), 3);
        cluster.block_on(async {
            for (number, client) in left.iter().enumerate() {
                let key = format!("without-{lost}-{number}");
                put(client, &key).await.expect("stored");
                for reader in &left {
                    assert_reads(reader, &key).await;
                }
                written.push(key);
            }
        });
        wait_until(&format!("the loss of node {lost} is reported"), || {
            cluster.view(STORE).node(lost).is_some_and(|node| node.reachable == Some(false))
        });
        cluster.start(lost);
        wait_until(&format!("node {lost} catches up"), || cluster.is_caught_up(lost));
        let returned = cluster.client(lost);
        cluster.block_on(async {
            for key in &written {
                assert_reads(&returned, key).await;
            }
        });
    }
}

#[test]
fn without_the_store_requests_are_refused_at_once_and_nothing_acknowledged_is_lost() {
    let mut cluster = TestCluster::whole();
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let gateway = (cluster.client(GATEWAY), cluster.process(GATEWAY).s3);
    let (upload, download) = cluster.block_on(async {
        let (client, addr) = &gateway;
        client.put(BUCKET, "downloaded", full_body(DOWNLOADED.bytes())).await.expect("stored");
        (begin_upload(client, *addr).await, begin_download(client, *addr).await)
    });
    let writers = start_writers(&cluster, &acknowledged);
    wait_until("every node has stored some objects", || {
        let keys = acknowledged.lock().expect("lock is not poisoned").clone();
        cluster.running().into_iter().all(|id| count_of(id, &keys) >= WRITES_MIN)
    });
    cluster.kill(STORE);
    cluster.block_on(async {
        the_upload_is_refused(upload).await;
        the_download_breaks_off(download).await;
        for writer in writers {
            let ended = timeout(END_MAX, writer).await.expect("no request hangs");
            ended.expect("no writer panicked");
        }
    });
    everything_is_refused_at_once(&cluster);
    the_others_name_the_store_and_elect(&cluster);

    cluster.start(STORE);
    let nodes = cluster.clients();
    wait_until("every node reaches the store", || {
        cluster.block_on(async {
            for node in &nodes {
                if node.head(BUCKET, "downloaded").await.is_err() {
                    return false;
                }
            }
            true
        })
    });
    cluster.until_settled();
    let acknowledged: Vec<String> = acknowledged.lock().expect("lock is not poisoned").clone();
    cluster.block_on(async {
        for (number, key) in acknowledged.iter().enumerate() {
            assert_reads(&nodes[number % nodes.len()], key).await;
        }
        for node in &nodes {
            for key in keys_before() {
                assert_reads(node, &key).await;
            }
        }
        let read = nodes[1].get(BUCKET, "downloaded").await.expect("read");
        assert_eq!(DOWNLOADED.difference(&read.body), None);
        let broken = nodes[2].get(BUCKET, "uploaded").await;
        assert!(broken.as_ref().is_err_and(CallFailure::is_not_found), "{broken:?}");
    });
}

/// Key of an object that is written through a node.
fn key_of(node: usize, number: usize) -> String {
    format!("written-{node}-{number}")
}

/// Number of these keys that were written through a node.
fn count_of(node: usize, keys: &[String]) -> usize {
    (0..keys.len()).take_while(|number| keys.contains(&key_of(node, *number))).count()
}

/// Writes through every node until a write fails; each acknowledged key is recorded.
fn start_writers(cluster: &TestCluster, acknowledged: &Arc<Mutex<Vec<String>>>) -> Vec<JoinHandle<()>> {
    let start = |id: usize| {
        let (client, acknowledged) = (cluster.client(id), Arc::clone(acknowledged));
        cluster.runtime().spawn(async move {
            for number in 0.. {
                let key = key_of(id, number);
                if put(&client, &key).await.is_err() {
                    break;
                }
                acknowledged.lock().expect("lock is not poisoned").push(key);
            }
        })
    };
    cluster.running().into_iter().map(start).collect()
}

async fn begin_upload(client: &S3TestClient, addr: SocketAddr) -> RawExchange {
    let target = format!("/{BUCKET}/uploaded");
    let begun = RawExchange::begin(client, addr, Method::PUT, &target, UPLOADED.length as u64).await;
    let mut upload = begun.expect("connected");
    upload.send(&UPLOADED.bytes()[..MIB]).await.expect("sent");
    upload
}

async fn begin_download(client: &S3TestClient, addr: SocketAddr) -> RawExchange {
    let target = format!("/{BUCKET}/downloaded");
    let begun = RawExchange::begin(client, addr, Method::GET, &target, 0).await;
    let mut download = begun.expect("connected");
    assert_eq!(download.answer().await.expect("begun").status, 200);
    download
}

/// Reads the answer to the upload: it is refused, because its outcome is unknown.
async fn the_upload_is_refused(mut upload: RawExchange) {
    let refused = async {
        let answer = upload.answer().await?;
        let body = upload.read_rest(&answer).await?;
        Ok::<_, std::io::Error>((answer, String::from_utf8_lossy(&body).into_owned()))
    };
    let (answer, body) = timeout(END_MAX, refused).await.expect("it does not hang").expect("an answer");
    assert_eq!(answer.status, 503, "{body}");
    assert!(body.contains("<Reason>MemberLost</Reason>"), "{body}");
}

/// Reads the rest of the download: it breaks off.
async fn the_download_breaks_off(mut download: RawExchange) {
    let rest = async {
        let mut bytes = 0;
        while let Ok(read) = download.read_some(MIB).await {
            if read == 0 {
                break;
            }
            bytes += read;
        }
        bytes
    };
    let bytes = timeout(END_MAX, rest).await.expect("it does not hang");
    assert!(bytes < DOWNLOADED.length, "{bytes} bytes");
}

/// Sends every kind of request to every node that is left. Each is refused with its reason, within the limit.
fn everything_is_refused_at_once(cluster: &TestCluster) {
    let key = format!("/{BUCKET}/before-00");
    let bucket = format!("/{BUCKET}?list-type=2");
    let kinds = [
        (Method::GET, key.as_str(), 0),
        (Method::HEAD, key.as_str(), 0),
        (Method::PUT, key.as_str(), 40),
        (Method::DELETE, key.as_str(), 0),
        (Method::GET, bucket.as_str(), 0),
        (Method::GET, "/", 0),
    ];
    for id in cluster.running() {
        let (client, addr) = (cluster.client(id), cluster.process(id).s3);
        for (method, target, length) in &kinds {
            let what = format!("{method} {target} through node {id}");
            let begun = Instant::now();
            let exchange = exchange(&client, addr, method.clone(), target, *length);
            let ended = cluster.block_on(async { timeout(END_MAX, exchange).await });
            let (answer, body) =
                ended.unwrap_or_else(|_| panic!("{what} hangs")).unwrap_or_else(|e| panic!("{what}: {e}"));
            let elapsed = begun.elapsed();
            assert_eq!(answer.status, 503, "{what}: {body}");
            assert!(elapsed < REFUSAL_MAX, "{what} took {elapsed:?}");
            assert!(answer.head.to_lowercase().contains("\r\nretry-after: "), "{what}: {}", answer.head);
            let has_reason = body.contains("<Reason>NoMemberReachable</Reason>");
            assert!(has_reason || *method == Method::HEAD, "{what}: {body}");
        }
    }
}

/// Sends a request with a body of this length, unless it is answered before, and reads the response.
async fn exchange(
    client: &S3TestClient,
    addr: SocketAddr,
    method: Method,
    target: &str,
    length: usize,
) -> std::io::Result<(RawHttpResponse, String)> {
    let has_body = method != Method::HEAD;
    let mut exchange = RawExchange::begin(client, addr, method, target, length as u64).await?;
    let answer = match exchange.send_or_answer(&vec![b'x'; length]).await? {
        Some(answer) => answer,
        None => exchange.answer().await?,
    };
    let body = if has_body { exchange.read_rest(&answer).await? } else { Vec::new() };
    Ok((answer, String::from_utf8_lossy(&body).into_owned()))
}

/// Waits until the other nodes report that they are not ready, and why, and one of them leads.
fn the_others_name_the_store_and_elect(cluster: &TestCluster) {
    for id in cluster.running() {
        let probe = cluster.process(id).admin_client();
        wait_until(&format!("node {id} is not ready, and names the store"), || {
            let ready = cluster.block_on(probe.call(Method::GET, "/readyz", &[], full_body("")));
            let Err(CallFailure::Refused { status, body }) = ready else { return false };
            status == 503 && body.to_lowercase().contains("node 1")
        });
        wait_until(&format!("node {id} has another leader"), || {
            let groups = cluster.view(id).groups;
            groups.iter().any(|group| group.leader.is_some_and(|leader| leader != STORE))
        });
    }
}
