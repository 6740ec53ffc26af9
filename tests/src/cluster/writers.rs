//! Clients that store one object after the other through a node, while nodes are killed, and keep what they
//! observe.
//!
//! No key is written twice, so an object that was acknowledged once must be read ever after. A request that
//! got a 503 or no response is not repeated: its object may exist or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mlgw_common::time::{Instant, sleep, timeout};
use tokio::task::JoinHandle;

use super::testbed::{BUCKET, SPREAD, TestCluster, content_of, wait_until};
use crate::s3::{CallFailure, S3TestClient, full_body};

/// Objects that a writer stores in each of its buckets before something happens, and again before the next
/// event.
const WRITES_MIN: usize = 20;
/// Pause of a writer. Without it a gigabyte would be written during a test.
const WRITE_PAUSE: Duration = Duration::from_millis(10);
/// Pause of a writer after a failure.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Longest time until a request ends. It is reached only if something is broken.
const END_MAX: Duration = Duration::from_secs(30);

/// An object that was acknowledged.
#[derive(Clone, Debug)]
pub(super) struct WrittenObject {
    bucket: &'static str,
    key: String,
}

impl WrittenObject {
    /// Asserts that a node returns the object.
    pub(super) async fn assert_stored(&self, client: &S3TestClient) {
        let Self { bucket, key } = self;
        let read = client.get(bucket, key).await;
        let read = read.unwrap_or_else(|failure| panic!("{bucket}/{key}: {failure:?}"));
        assert_eq!(content_of(key).difference(&read.body), None, "{bucket}/{key}");
    }
}

impl WrittenObject {
    /// Asserts that a server returns the object, or that `listing` names it because its bytes are lost.
    pub(super) async fn assert_stored_or_listed(&self, client: &S3TestClient, listing: &str) {
        let Self { bucket, key } = self;
        match client.get(bucket, key).await {
            Ok(read) => assert_eq!(content_of(key).difference(&read.body), None, "{bucket}/{key}"),
            Err(failure) => {
                assert!(listing.contains(&format!("s3://{bucket}/{key}\n")), "{bucket}/{key}: {failure:?}");
            }
        }
    }
}

/// Reads these objects through a node.
pub(super) fn assert_all_stored(cluster: &TestCluster, node: usize, written: &[WrittenObject]) {
    let client = cluster.client(node);
    cluster.block_on(async {
        for object in written {
            object.assert_stored(&client).await;
        }
    });
}

/// Observations of a writer.
#[derive(Debug, Default)]
pub(super) struct WriterLog {
    /// The objects that were acknowledged.
    pub(super) stored: Vec<WrittenObject>,
    /// Responses that break a promise: refusals other than a 503, and reads without the acknowledged bytes.
    failures: Vec<String>,
    /// Number of writes without a response.
    unanswered: usize,
    /// The longest time without an acknowledged object.
    longest_gap: Duration,
}

impl WriterLog {
    /// Asserts that every request was answered, no write was refused except with a 503, and every read
    /// returned what was acknowledged.
    pub(super) fn assert_kept(&self) {
        assert_eq!(self.unanswered, 0, "writes without a response");
        self.assert_kept_but_for_unanswered();
    }

    /// Like [`WriterLog::assert_kept`], for a writer whose node was killed.
    pub(super) fn assert_kept_but_for_unanswered(&self) {
        assert_eq!(self.failures, Vec::<String>::new());
    }
}

/// A client that stores one object after the other.
pub(super) struct TestWriter {
    node: usize,
    task: JoinHandle<WriterLog>,
    is_over: Arc<AtomicBool>,
    /// Number of acknowledged objects in each bucket.
    stored: Arc<[AtomicUsize]>,
}

impl TestWriter {
    /// Starts a writer through a node. A cluster has at most one at a time for each node and label.
    pub(super) fn start(cluster: &TestCluster, node: usize, label: &str) -> Self {
        Self::begin(cluster, node, label, WriterScope { buckets: &[BUCKET], readers: Vec::new() })
    }

    /// Starts a writer through a node in the buckets [`SPREAD`]. It reads each acknowledged object through
    /// another running node at once.
    pub(super) fn start_spread(cluster: &TestCluster, node: usize, label: &str) -> Self {
        let others = cluster.running().into_iter().filter(|other| *other != node);
        let readers = others.map(|other| cluster.client(other)).collect();
        Self::begin(cluster, node, label, WriterScope { buckets: &SPREAD, readers })
    }

    fn begin(cluster: &TestCluster, node: usize, label: &str, scope: WriterScope) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let stored: Arc<[AtomicUsize]> = scope.buckets.iter().map(|_| AtomicUsize::new(0)).collect();
        let task = WriterTask {
            client: cluster.client(node),
            prefix: format!("{label}-{node}"),
            scope,
            is_over: Arc::clone(&is_over),
            stored: Arc::clone(&stored),
            log: WriterLog::default(),
            last: Instant::now(),
        };
        Self { node, task: cluster.runtime().spawn(task.run()), is_over, stored }
    }

    /// Waits until the writer has stored some more objects in each bucket.
    pub(super) fn until_more(&self) {
        let counts = || self.stored.iter().map(|count| count.load(Ordering::Relaxed));
        let wanted: Vec<usize> = counts().map(|count| count + WRITES_MIN).collect();
        wait_until(&format!("the writer through node {} stores some more objects", self.node), || {
            counts().zip(&wanted).all(|(count, wanted)| count >= *wanted)
        });
    }

    /// Ends the writer after its current request. Panics if that does not end.
    pub(super) fn end(self, cluster: &TestCluster) -> WriterLog {
        let Self { node, task, is_over, stored: _ } = self;
        is_over.store(true, Ordering::Relaxed);
        let ended = cluster.block_on(async { timeout(END_MAX, task).await });
        let log = ended.expect("no request hangs").expect("the writer does not panic");
        let (count, gap) = (log.stored.len(), log.longest_gap);
        eprintln!("writer through node {node}: {count} objects, at most {gap:?} without one");
        log
    }
}

/// Buckets of a writer, and the nodes through which it reads.
struct WriterScope {
    buckets: &'static [&'static str],
    readers: Vec<S3TestClient>,
}

/// The work of a writer.
struct WriterTask {
    client: S3TestClient,
    prefix: String,
    scope: WriterScope,
    is_over: Arc<AtomicBool>,
    stored: Arc<[AtomicUsize]>,
    log: WriterLog,
    /// Time of the last acknowledgement.
    last: Instant,
}

impl WriterTask {
    async fn run(mut self) -> WriterLog {
        for number in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let pause = self.write(number).await;
            sleep(pause).await;
        }
        self.log
    }

    /// Stores an object, and returns the pause that follows.
    async fn write(&mut self, number: usize) -> Duration {
        let at = number % self.scope.buckets.len();
        let object =
            WrittenObject { bucket: self.scope.buckets[at], key: format!("{}-{number}", self.prefix) };
        let body = full_body(content_of(&object.key).bytes());
        let ended = self.client.put(object.bucket, &object.key, body).await;
        self.log.longest_gap = self.log.longest_gap.max(self.last.elapsed());
        if let Err(failure) = ended {
            self.record_failure(&object, &failure);
            return RETRY_PAUSE;
        }
        self.last = Instant::now();
        self.read_elsewhere(&object, number).await;
        self.stored[at].fetch_add(1, Ordering::Relaxed);
        self.log.stored.push(object);
        WRITE_PAUSE
    }

    fn record_failure(&mut self, object: &WrittenObject, failure: &CallFailure) {
        match failure.status() {
            None => self.log.unanswered += 1,
            Some(503) => {}
            Some(_) => self.log.failures.push(format!("PUT {object:?}: {failure:?}")),
        }
    }

    /// Reads an acknowledged object through another node, which may be killed meanwhile.
    async fn read_elsewhere(&mut self, object: &WrittenObject, number: usize) {
        let WriterScope { buckets, readers } = &self.scope;
        if readers.is_empty() {
            return;
        }
        // Every bucket is read through every reader.
        let reader = &readers[number / buckets.len() % readers.len()];
        let failure = match reader.get(object.bucket, &object.key).await {
            Ok(read) => content_of(&object.key).difference(&read.body),
            Err(failure) if matches!(failure.status(), None | Some(503)) => None,
            Err(failure) => Some(format!("{failure:?}")),
        };
        let failed = failure.map(|failure| format!("GET {object:?}: {failure}"));
        self.log.failures.extend(failed);
    }
}
