//! Many reads at once through a gateway share a connection to a member. Their answers are whole, also those
//! that are longer than such a connection carries, and reads go on when the member is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::task::JoinHandle;

use super::testbed::{BUCKET, GATEWAY, TestCluster, node_of, wait_until};
use crate::content::TestContent;
use crate::s3::{S3TestClient, full_body};

/// Enough that requests share a connection.
const READERS: usize = 24;
/// Around the length up to which one answer has the whole body.
const LENGTHS: [usize; 6] = [0, 1, 4_096, 16_000, 17_000, 400_000];
/// Reads in which every reader has read every length, as a rule.
const MORE_READS: usize = 4 * READERS * LENGTHS.len();

fn content(number: usize) -> (String, TestContent) {
    let at = number % LENGTHS.len();
    (format!("read-{at}"), TestContent { id: 6_001 + at as u64, length: LENGTHS[at] })
}

/// Readers of all objects through the gateway.
struct GatewayReaders {
    is_ending: Arc<AtomicBool>,
    reads: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<()>>,
}

impl GatewayReaders {
    fn start(cluster: &TestCluster) -> Self {
        let (is_ending, reads) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let tasks = (0..READERS).map(|first| {
            let (client, is_ending, reads) = (cluster.client(GATEWAY), is_ending.clone(), reads.clone());
            cluster.runtime().spawn(async move {
                for number in first.. {
                    if is_ending.load(Ordering::Relaxed) {
                        break;
                    }
                    reads.fetch_add(usize::from(read(&client, number).await), Ordering::Relaxed);
                }
            })
        });
        let tasks = tasks.collect();
        Self { is_ending, reads, tasks }
    }

    fn until_more(&self, when: &str) {
        let before = self.reads.load(Ordering::Relaxed);
        wait_until(&format!("reads go on {when}"), || {
            self.reads.load(Ordering::Relaxed) >= before + MORE_READS
        });
    }

    fn end(self, cluster: &TestCluster) {
        self.is_ending.store(true, Ordering::Relaxed);
        for task in self.tasks {
            cluster.block_on(task).expect("no reader panicked");
        }
    }
}

/// Reads an object. Returns false if there was no answer, or a 503: a member was killed.
async fn read(client: &S3TestClient, number: usize) -> bool {
    let (key, content) = content(number);
    match client.get(BUCKET, &key).await {
        Ok(read) => {
            assert_eq!(content.difference(&read.body), None, "{key}");
            true
        }
        Err(failure) => {
            assert!(matches!(failure.status(), None | Some(503)), "{key}: {failure:?}");
            false
        }
    }
}

#[test]
fn many_reads_at_once_are_whole_and_go_on_without_the_member_that_served_them() {
    let mut cluster = TestCluster::whole();
    let client = cluster.client(GATEWAY);
    cluster.block_on(async {
        for number in 0..LENGTHS.len() {
            let (key, content) = content(number);
            client.put(BUCKET, &key, full_body(content.bytes())).await.expect("stored");
        }
    });
    let readers = GatewayReaders::start(&cluster);
    readers.until_more("before a kill");
    for _ in 0..2 {
        let served = cluster.block_on(async {
            loop {
                if let Ok(read) = client.get(BUCKET, &content(2).0).await {
                    break node_of(&read);
                }
            }
        });
        cluster.kill(served);
        readers.until_more(&format!("without node {served}"));
        cluster.start(served);
        wait_until(&format!("node {served} catches up"), || cluster.is_caught_up(served));
        cluster.until_settled();
        readers.until_more(&format!("with node {served} again"));
    }
    readers.end(&cluster);
}
