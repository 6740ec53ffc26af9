//! The load of a round: clients that send one request after the other, each through a node and to a key that
//! the seed chooses, until the round ends.
//!
//! A client never repeats a request. After a request it pauses for a time that the seed chooses, often not
//! at all, so that requests to a key overlap. While a node is down, no client uses it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use mlgw_common::time::{sleep, timeout};
use tokio::task::JoinHandle;

use super::recorder::{HistoryRecorder, KeySlot, SLOTS};
use super::requests::{RecordedClient, RequestEnd, SlotObject, WriteCondition};
use crate::cluster::testbed::TestCluster;
use crate::s3::S3TestClient;
use crate::seed::Rng;

/// Number of clients.
const CLIENTS: usize = 8;
/// Pauses of a client after a request.
const PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::ZERO, Duration::from_millis(20), Duration::from_millis(200)];
/// Pause of a client while no node can be used, and after a request without a certain response.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Lengths of objects: those of bodies that are sent at once, and of streamed ones.
const LENGTHS: [usize; 8] = [40, 40, 40, 5_000, 5_000, 5_000, 100_000, 300_000];
/// Lengths of the parts of an upload, most often of one part.
const PART_LENGTHS: [&[usize]; 12] = [
    &[50],
    &[60_000],
    &[70],
    &[5_000],
    &[80],
    &[6_000],
    &[90],
    &[100_000],
    &[100],
    &[7_000],
    &[110],
    &[5 << 20, 120],
];
/// Longest time until a client ends. It is reached only if something is broken.
const END_MAX: Duration = Duration::from_secs(30);

/// Clients of the nodes that run, by the ids of the nodes.
#[derive(Default)]
pub(super) struct NodeEndpoints(Mutex<BTreeMap<usize, S3TestClient>>);

impl NodeEndpoints {
    pub(super) fn set(&self, node: usize, client: S3TestClient) {
        self.0.lock().expect("lock is not poisoned").insert(node, client);
    }

    pub(super) fn remove(&self, node: usize) {
        self.0.lock().expect("lock is not poisoned").remove(&node);
    }

    fn pick(&self, rng: &mut Rng) -> Option<(usize, S3TestClient)> {
        let nodes = self.0.lock().expect("lock is not poisoned");
        let at = rng.index(nodes.len().max(1));
        nodes.iter().nth(at).map(|(node, client)| (*node, client.clone()))
    }
}

/// The clients of a round.
pub(super) struct HistoryLoad {
    tasks: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl HistoryLoad {
    /// Starts the clients.
    pub(super) fn start(
        cluster: &TestCluster,
        rng: &Rng,
        recorder: &Arc<HistoryRecorder>,
        endpoints: &Arc<NodeEndpoints>,
    ) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let tasks = (0..CLIENTS).map(|number| {
            let client = LoadClient {
                number,
                rng: rng.fork(number as u64),
                recorder: Arc::clone(recorder),
                endpoints: Arc::clone(endpoints),
                is_over: Arc::clone(&is_over),
            };
            cluster.runtime().spawn(client.run())
        });
        Self { tasks: tasks.collect(), is_over }
    }

    /// Ends each client after its current request. Panics if that does not end.
    pub(super) fn end(self, cluster: &TestCluster) {
        self.is_over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            let ended = cluster.block_on(async { timeout(END_MAX, task).await });
            ended.expect("no request hangs").expect("the client does not panic");
        }
    }
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    Get,
    Head,
    List,
    Put,
    PutIfAbsent,
    PutIfMatch,
    Delete,
    Copy,
    Upload,
    /// A new bucket, and an object in it through another node.
    NewBucket,
}

impl RequestKind {
    fn choose(rng: &mut Rng) -> Self {
        match rng.below(100) {
            0..26 => Self::Get,
            26..36 => Self::Head,
            36..44 => Self::List,
            44..63 => Self::Put,
            63..72 => Self::PutIfAbsent,
            72..82 => Self::PutIfMatch,
            82..91 => Self::Delete,
            91..95 => Self::Copy,
            95..99 => Self::Upload,
            _ => Self::NewBucket,
        }
    }
}

struct LoadClient {
    number: usize,
    rng: Rng,
    recorder: Arc<HistoryRecorder>,
    endpoints: Arc<NodeEndpoints>,
    is_over: Arc<AtomicBool>,
}

impl LoadClient {
    async fn run(mut self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let end = self.request().await;
            let pause = if end == RequestEnd::Answered { *self.rng.pick(&PAUSES) } else { RETRY_PAUSE };
            sleep(pause).await;
        }
    }

    /// Sends one request.
    async fn request(&mut self) -> RequestEnd {
        let Some((node, client)) = self.endpoints.pick(&mut self.rng) else { return RequestEnd::Unanswered };
        let recorder = Arc::clone(&self.recorder);
        let sender = RecordedClient { recorder: &recorder, number: self.number, node, client };
        let kind = RequestKind::choose(&mut self.rng);
        let slot = KeySlot::new(self.rng.index(SLOTS));
        let object = SlotObject { slot, name: recorder.take_key(slot) };
        match kind {
            RequestKind::Get => sender.read(Method::GET, &object).await,
            RequestKind::Head => sender.read(Method::HEAD, &object).await,
            RequestKind::List => sender.list(&object.name).await,
            RequestKind::Put => self.put(&sender, &object, &WriteCondition::Always).await,
            RequestKind::PutIfAbsent => self.put(&sender, &object, &WriteCondition::IsAbsent).await,
            RequestKind::PutIfMatch => {
                let seen = recorder.last_seen(slot, &object.name);
                let condition = seen.map_or(WriteCondition::IsAbsent, WriteCondition::Is);
                self.put(&sender, &object, &condition).await
            }
            RequestKind::Delete => sender.delete(&object).await,
            RequestKind::Copy => self.copy(&sender, &object).await,
            RequestKind::Upload => {
                let lengths = PART_LENGTHS[self.rng.index(PART_LENGTHS.len())];
                sender.upload(&object, recorder.new_upload(lengths)).await
            }
            RequestKind::NewBucket => self.use_new_bucket(&sender).await,
        }
    }

    async fn put(
        &mut self,
        sender: &RecordedClient<'_>,
        object: &SlotObject,
        condition: &WriteCondition,
    ) -> RequestEnd {
        let value = self.recorder.new_value(*self.rng.pick(&LENGTHS));
        sender.put(object, value, condition).await
    }

    /// Creates a bucket, and stores and reads an object in it, each through a node that is chosen anew.
    async fn use_new_bucket(&mut self, creator: &RecordedClient<'_>) -> RequestEnd {
        let recorder = Arc::clone(&self.recorder);
        let Some(name) = recorder.new_bucket() else { return RequestEnd::Answered };
        // The key has no slot, so this one never has it.
        let object = SlotObject { slot: KeySlot::new(0), name };
        if !creator.create_bucket(&object).await {
            return RequestEnd::Unanswered;
        }
        let mut end = RequestEnd::Unanswered;
        for is_write in [true, false] {
            let picked = self.endpoints.pick(&mut self.rng);
            let Some((node, client)) = picked else { return RequestEnd::Unanswered };
            let sender = RecordedClient { recorder: &recorder, number: self.number, node, client };
            end = match is_write {
                true => self.put(&sender, &object, &WriteCondition::Always).await,
                false => sender.read(Method::GET, &object).await,
            };
        }
        end
    }

    /// Copies an object from another slot, if a client has seen one there that is no upload.
    async fn copy(&mut self, sender: &RecordedClient<'_>, target: &SlotObject) -> RequestEnd {
        let slot = KeySlot::new(self.rng.index(SLOTS));
        if slot == target.slot {
            return RequestEnd::Answered;
        }
        let source = SlotObject { slot, name: self.recorder.take_key(slot) };
        let seen = self.recorder.last_seen(slot, &source.name);
        match seen.filter(|value| !value.is_upload) {
            Some(value) => sender.copy(&source, value, target).await,
            None => RequestEnd::Answered,
        }
    }
}
