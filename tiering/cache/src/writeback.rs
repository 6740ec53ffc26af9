//! Write-back queue: writes to remote-backed buckets that are durable here and not yet at their origins.
//!
//! Such a write is an object record of the bucket, under a name of its own ([`record`]), with its bytes in
//! the hot tier like those of any object: replicated, compacted and scrubbed, never evicted, and present
//! after a restart. Only the set of writes, their order ([`send_order`]) and the remaining budget
//! ([`dirty_budget`]) are in memory; a start reads them from the records. A sender, in another package, takes
//! writes from the queue.
//!
//! Invariants: a write is in memory before it is acknowledged, so that readers see it from then on. Its
//! record is removed once the origin has the write, and only then is the write removed from memory, so that
//! it is always visible in one of the two places. A write that was sent before a crash is recognized by its
//! mark.

mod dirty_budget;
mod key_turns;
pub mod record;
mod send_order;

pub use dirty_budget::DirtyShare;
pub use key_turns::KeyTurn;
pub use send_order::DirtyWrite;

use crate::remote_backed::{CachedBucket, RemoteBackedBuckets};
use dirty_budget::DirtyBudget;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use key_turns::KeyTurns;
use mlgw_common::{BucketId, Clock, Incarnation, ObjectKey};
use mlgw_formats::command::update_object::Update;
use mlgw_formats::command::{Command, Conditions, DeleteObject, ObjectChange, Reject, Replace, UpdateObject};
use mlgw_formats::schema::{BindMode, Binding, Bucket, ObjectVersion};
use mlgw_metadata::{Catalogue, ProposeError, ReadError};
use mlgw_remote::upstream::UpstreamBudget;
use parking_lot::Mutex;
use record::{Timelines, WriteFacts};
use send_order::SendOrder;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound as RangeBound;
use std::sync::Arc;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, Semaphore, mpsc};

/// Maximum number of concurrent writes to one upstream. At 20 ms each that is 1,600 small objects a second;
/// each holds at most two pieces of 1 MiB.
const CONCURRENT_SENDS: usize = 32;
/// Maximum number of keys that are listed by name in [`DirtySummary`].
const LISTED_KEYS_MAX: usize = 100;

/// Components and limits from which write-back is built.
pub struct WriteBackParts {
    /// Catalogue, which holds the records.
    pub catalogue: Catalogue,
    /// Remote-backed buckets.
    pub remote_backed: RemoteBackedBuckets,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Maximum number of dirty bytes.
    pub bytes_max: u64,
    /// Maximum bytes sent per second, by upstream.
    pub budgets: HashMap<String, u64>,
    /// Term of the duty node of a cluster, which changes of records carry.
    pub duty_term: Option<u64>,
}

/// Receiver of new queues, for the sender.
pub type NewWriteBackQueues = mpsc::UnboundedReceiver<Arc<WriteBackQueue>>;

/// Write-back of a node. Clones share their state.
#[derive(Clone)]
pub struct WriteBack {
    inner: Arc<WriteBackShared>,
}

struct WriteBackShared {
    catalogue: Catalogue,
    remote_backed: RemoteBackedBuckets,
    clock: Arc<dyn Clock>,
    dirty_budget: DirtyBudget,
    queues: Mutex<HashMap<BucketId, Arc<WriteBackQueue>>>,
    limits_by_upstream: Mutex<HashMap<String, Arc<UpstreamSendLimits>>>,
    budgets: HashMap<String, u64>,
    duty_term: Option<u64>,
    timelines: Arc<Timelines>,
    /// Channel of new queues to the sender, in the order of their creation. It holds at most one per bucket.
    new_queues: mpsc::UnboundedSender<Arc<WriteBackQueue>>,
}

/// Limits of sending to an upstream, shared by its buckets.
pub struct UpstreamSendLimits {
    /// Permits for concurrent writes.
    pub slots: Arc<Semaphore>,
    /// Bytes per second.
    pub budget: UpstreamBudget,
}

/// Dirty writes of a bucket.
pub struct WriteBackQueue {
    bucket: Arc<Bucket>,
    timelines: Arc<Timelines>,
    bucket_at_origin: CachedBucket,
    limits: Arc<UpstreamSendLimits>,
    send_order: Mutex<SendOrder>,
    key_turns: KeyTurns,
    /// Turns of writes with conditions.
    condition_turns: KeyTurns,
    changed: Notify,
    /// Error of the last attempt, if it failed.
    last_error: Mutex<Option<String>>,
    /// Numbers of the writes that the origin acknowledged at the last attempt and did not show.
    unconfirmed: Mutex<BTreeSet<u64>>,
}

/// Summary of dirty writes, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirtySummary {
    /// Number of writes.
    pub writes: u64,
    /// Bytes of these writes.
    pub bytes: u64,
    /// Start of the oldest write in milliseconds since 1970.
    pub oldest_ms: Option<i64>,
    /// First keys that another program has written at the origin since.
    pub foreign: Vec<String>,
    /// Number of writes of such keys.
    pub foreign_writes: u64,
    /// Error of the last attempt, if it failed.
    pub trouble: Option<String>,
    /// First keys that the origin acknowledged at the last attempt and did not show.
    pub unconfirmed: Vec<String>,
    /// True if there is no progress: everything that could be sent was sent, and the origin does not confirm
    /// it.
    pub stuck: bool,
}

impl WriteBack {
    /// Reads the dirty writes from the catalogue. Returns the write-back, and the receiver of its queues for
    /// the sender.
    ///
    /// # Errors
    /// The catalogue cannot be read.
    pub fn open(means: WriteBackParts) -> Result<(Self, NewWriteBackQueues), ReadError> {
        let (writeback, new_queues) = Self::new(means)?;
        for bucket in writeback.inner.catalogue.buckets(None, None, usize::MAX) {
            if writeback.queue(&bucket)?.is_none() && bucket.binding.as_ref().is_some_and(is_written_back) {
                tracing::warn!(
                    bucket = bucket.name,
                    "the upstream of the bucket is not configured; dirty objects stay on this server"
                );
            }
        }
        Ok((writeback, new_queues))
    }

    /// Returns the write-back of a node on which no bucket is remote-backed: another one has the queues.
    ///
    /// # Errors
    /// The catalogue cannot be read.
    pub fn elsewhere(means: WriteBackParts) -> Result<Self, ReadError> {
        assert!(means.remote_backed.upstreams().is_empty(), "no origin is used on two nodes");
        Ok(Self::new(means)?.0)
    }

    fn new(means: WriteBackParts) -> Result<(Self, NewWriteBackQueues), ReadError> {
        let WriteBackParts { catalogue, remote_backed: bound, clock, bytes_max, budgets, duty_term } = means;
        let (made, new_queues) = mpsc::unbounded_channel();
        let timelines = Arc::new(timelines(&catalogue)?);
        let inner = WriteBackShared {
            timelines,
            catalogue,
            remote_backed: bound,
            clock,
            dirty_budget: DirtyBudget::new(bytes_max),
            queues: Mutex::default(),
            limits_by_upstream: Mutex::default(),
            budgets,
            duty_term,
            new_queues: made,
        };
        Ok((Self { inner: Arc::new(inner) }, new_queues))
    }

    /// Returns the queue of a bucket, if it is bound in write-back mode to an upstream that is configured.
    ///
    /// # Errors
    /// The catalogue cannot be read.
    pub fn queue(&self, bucket: &Arc<Bucket>) -> Result<Option<Arc<WriteBackQueue>>, ReadError> {
        if !bucket.binding.as_ref().is_some_and(is_written_back) {
            return Ok(None);
        }
        let mut queues = self.inner.queues.lock();
        if let Some(queue) = queues.get(&bucket.bucket_id()) {
            return Ok(Some(queue.clone()));
        }
        // The current binding is used, because the caller may have looked the bucket up before it was bound
        // elsewhere.
        let Some(bucket) = self.inner.catalogue.bucket(&bucket.name) else { return Ok(None) };
        let Some(binding) = &bucket.binding else { return Ok(None) };
        let Some(bound) = self.inner.remote_backed.bucket(&bucket, binding) else { return Ok(None) };
        let queue = Arc::new(WriteBackQueue {
            bucket: bucket.clone(),
            timelines: self.inner.timelines.clone(),
            bucket_at_origin: bound,
            limits: self.limits_of(&binding.upstream),
            send_order: Mutex::new(self.inner.load_order(&bucket)?),
            key_turns: KeyTurns::default(),
            condition_turns: KeyTurns::default(),
            changed: Notify::new(),
            last_error: Mutex::default(),
            unconfirmed: Mutex::default(),
        });
        queues.insert(bucket.bucket_id(), queue.clone());
        // Without a sender, as in tests, nothing is sent.
        drop(self.inner.new_queues.send(queue.clone()));
        Ok(Some(queue))
    }

    /// Returns the incarnation that marks writes, and its ancestors.
    #[must_use]
    pub fn timelines(&self) -> &Arc<Timelines> {
        &self.inner.timelines
    }

    fn limits_of(&self, upstream: &str) -> Arc<UpstreamSendLimits> {
        let bytes_per_second = self.inner.budgets.get(upstream).copied().unwrap_or(0);
        let way = || {
            let slots = Arc::new(Semaphore::new(CONCURRENT_SENDS));
            Arc::new(UpstreamSendLimits { slots, budget: UpstreamBudget::new(bytes_per_second, 0) })
        };
        self.inner.limits_by_upstream.lock().entry(upstream.to_owned()).or_insert_with(way).clone()
    }

    /// True if a write of this size can ever be accepted.
    #[must_use]
    pub fn fits(&self, bytes: u64) -> bool {
        self.inner.dirty_budget.fits(bytes)
    }

    /// Waits for a share of the dirty budget for a write of `bytes` bytes; `None` if that takes too long.
    pub async fn acquire_share(&self, bytes: u64) -> Option<DirtyShare> {
        self.inner.dirty_budget.acquire(bytes).await
    }

    /// Returns the summaries of all queues.
    #[must_use]
    pub fn dirty(&self) -> Vec<DirtySummary> {
        self.inner.queues.lock().values().map(|queue| queue.dirty()).collect()
    }

    /// Discards the writes of a bucket that conflict with a foreign write: the objects at the origin stay.
    /// Returns their number.
    ///
    /// # Errors
    /// The errors of the catalogue.
    pub async fn discard(&self, queue: &WriteBackQueue) -> Result<u64, ProposeError> {
        let foreign = queue.send_order.lock().foreign(None);
        for write in &foreign {
            self.remove(queue, write).await?;
        }
        Ok(foreign.len() as u64)
    }

    /// Forgets the queue of a bucket that is unbound or bound elsewhere.
    pub fn forget(&self, bucket: BucketId) {
        if let Some(queue) = self.inner.queues.lock().remove(&bucket) {
            queue.changed.notify_waiters();
        }
    }

    /// Returns true if a queue is the current one of its bucket: the bucket was neither unbound nor bound
    /// elsewhere since the queue was created.
    #[must_use]
    pub fn is_current(&self, queue: &Arc<WriteBackQueue>) -> bool {
        let now = self.inner.queues.lock().get(&queue.bucket.bucket_id()).cloned();
        now.is_some_and(|now| Arc::ptr_eq(&now, queue))
    }

    /// Removes the record of a write, and then the write.
    ///
    /// # Errors
    /// The errors of the catalogue.
    pub async fn remove(&self, queue: &WriteBackQueue, write: &DirtyWrite) -> Result<(), ProposeError> {
        let change = ObjectChange::Delete(DeleteObject { conditions: Conditions::default() });
        self.change(queue, write, change).await?;
        queue.send_order.lock().remove(write.seq);
        queue.changed.notify_waiters();
        Ok(())
    }

    /// Changes the facts in the record of a write, if the record exists; the rest of the record stays. The
    /// record then has another `seq`.
    ///
    /// # Errors
    /// The errors of the catalogue.
    pub async fn update_facts(
        &self,
        queue: &WriteBackQueue,
        write: &DirtyWrite,
        note: impl FnOnce(&mut WriteFacts),
    ) -> Result<(), ProposeError> {
        let Ok(Some(version)) = self.inner.catalogue.object(queue.bucket.bucket_id(), &write.name) else {
            return Ok(());
        };
        let mut headers = version.headers.clone();
        if let Some(mut facts) = WriteFacts::take(&mut headers) {
            note(&mut facts);
            facts.put(&mut headers);
        }
        let replace = Replace {
            headers,
            metadata: version.metadata.clone(),
            tags: None,
            modified_ms: version.modified_ms,
            storage_class: version.storage_class.clone(),
        };
        let change = ObjectChange::Update(UpdateObject {
            expected_body: version.body_id,
            update: Some(Update::Replace(replace)),
            conditions: Conditions::default(),
        });
        self.change(queue, write, change).await
    }

    async fn change(
        &self,
        queue: &WriteBackQueue,
        write: &DirtyWrite,
        change: ObjectChange,
    ) -> Result<(), ProposeError> {
        // The epoch of the bucket may have risen since.
        let bucket = self.inner.catalogue.bucket(&queue.bucket.name).unwrap_or_else(|| queue.bucket.clone());
        let command = Command::object(&bucket, &write.name, self.inner.clock.now(), change);
        match self.inner.catalogue.propose(command.of_term(self.inner.duty_term)).await {
            Ok(_) | Err(ProposeError::Rejected(Reject::NoSuchBucket)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Begins a term of duty: from now on changes of queues that carry an earlier term are rejected. So a write
/// that a former duty node made durable late, and did not acknowledge, is never sent.
///
/// # Errors
/// The errors of the catalogue.
pub async fn begin_term(catalogue: &Catalogue, duty_term: u64) -> Result<(), ProposeError> {
    let buckets = catalogue.buckets(None, None, usize::MAX).into_iter();
    let queued = buckets.filter(|bucket| bucket.binding.as_ref().is_some_and(is_written_back));
    let begun = queued.map(|bucket| catalogue.set_bucket_term(bucket.bucket_id(), duty_term));
    stream::iter(begun).buffer_unordered(CONCURRENT_SENDS).try_collect().await
}

/// Returns the incarnation of a catalogue, and its ancestors.
fn timelines(catalogue: &Catalogue) -> Result<Timelines, ReadError> {
    let Some((own, earlier)) = catalogue.timelines()? else { return Ok(Timelines::default()) };
    let ended = earlier.ended.into_iter().map(|one| (Incarnation(one.incarnation), one.bodies_before));
    Ok(Timelines::new(Incarnation(own.incarnation), ended.collect()))
}

/// True if writes to a bucket with this binding are sent later.
fn is_written_back(binding: &Binding) -> bool {
    binding.mode() == BindMode::WriteBack
}

impl WriteBackShared {
    /// Reads the dirty writes of a bucket from its records.
    fn load_order(&self, bucket: &Bucket) -> Result<SendOrder, ReadError> {
        let mut order = SendOrder::default();
        let reader = self.catalogue.background_reader();
        for found in reader.scan(bucket.bucket_id(), RangeBound::Unbounded) {
            let (name, entry) = found?;
            let mut version = entry.version()?;
            let Some(facts) = WriteFacts::take(&mut version.headers) else {
                tracing::error!(bucket = bucket.name, %name,
                    "a record is not a valid write-back record; left unchanged");
                continue;
            };
            let place = Some(self.dirty_budget.acquire_existing(version.size));
            let seq = facts.number(version.seq);
            order.add(Arc::new(write_of_record(name, facts, seq, &version, place)));
        }
        if order.len() > 0 {
            tracing::info!(
                bucket = bucket.name,
                writes = order.len(),
                bytes = order.bytes(),
                "found dirty objects"
            );
        }
        Ok(order)
    }
}

/// Returns the write that a record describes.
#[must_use]
pub fn write_of_record(
    name: ObjectKey,
    facts: WriteFacts,
    seq: u64,
    version: &ObjectVersion,
    place: Option<DirtyShare>,
) -> DirtyWrite {
    let (size, began_ms, etag) = (version.size, version.modified_ms, version.etag.clone());
    let upload = Mutex::new(facts.upload.as_ref().map(|upload| upload.id.clone()));
    let begins = Mutex::new(facts.pending_upload.clone());
    DirtyWrite { seq, name, facts, size, began_ms, etag, share: place, upload, pending_upload: begins }
}

impl WriteBackQueue {
    /// Returns the bucket, as it was bound when the queue was created.
    #[must_use]
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// Returns the bucket at its origin.
    #[must_use]
    pub fn bucket_at_origin(&self) -> &CachedBucket {
        &self.bucket_at_origin
    }

    /// Returns the limits of sending to its upstream.
    #[must_use]
    pub fn limits(&self) -> &UpstreamSendLimits {
        &self.limits
    }

    /// Completes at the next change of the queue.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Returns the next write that may be sent, and marks it as in flight.
    #[must_use]
    pub fn start_next(&self) -> Option<Arc<DirtyWrite>> {
        self.send_order.lock().start_next()
    }

    /// Returns the earlier writes of the key of `write` that conflict with a foreign object.
    #[must_use]
    pub fn foreign_before(&self, write: &DirtyWrite) -> Vec<Arc<DirtyWrite>> {
        self.send_order.lock().foreign(Some((&write.facts.key, write.seq)))
    }

    /// Takes a write out of the order, because a foreign object with this ETag is at the origin.
    pub fn set_aside(&self, write: &DirtyWrite, etag: &str) {
        self.clear_unconfirmed(write);
        self.send_order.lock().set_aside(write.seq, etag);
        self.changed.notify_waiters();
    }

    /// Records that the origin acknowledged a write at the last attempt and did not show it.
    pub fn mark_unconfirmed(&self, write: &DirtyWrite) {
        self.unconfirmed.lock().insert(write.seq);
    }

    /// Records that the last attempt of a write had another result, or that the write is over.
    pub fn clear_unconfirmed(&self, write: &DirtyWrite) {
        self.unconfirmed.lock().remove(&write.seq);
    }

    /// Sets the error of the last attempt, or clears it.
    pub fn set_last_error(&self, trouble: Option<String>) {
        *self.last_error.lock() = trouble;
    }

    /// Returns the incarnation that marks writes, and its ancestors.
    #[must_use]
    pub fn timelines(&self) -> &Timelines {
        &self.timelines
    }

    /// Returns the greatest acknowledged number; a write that begins now is ordered after it.
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.send_order.lock().acked()
    }

    /// Waits for the turn to number a write of a key. The turn must be held until the write is added: if a
    /// greater number of the key were added first, it would be sent first, and then be overwritten at the
    /// origin by the older write.
    pub async fn key_turn(&self, key: &ObjectKey) -> KeyTurn {
        self.key_turns.take(key.as_str()).await
    }

    /// Waits for the turn to check the conditions of a write of a key, whether the origin or this gateway
    /// checks them. The turn must be held until the write is done.
    pub async fn condition_turn(&self, key: &ObjectKey) -> KeyTurn {
        self.condition_turns.take(key.as_str()).await
    }

    /// Adds a durable write; it may be acknowledged when this returns.
    pub fn add(&self, write: DirtyWrite) {
        self.send_order.lock().add(Arc::new(write));
        self.changed.notify_waiters();
    }

    /// Returns the last dirty write of a key.
    #[must_use]
    pub fn latest(&self, key: &ObjectKey) -> Option<Arc<DirtyWrite>> {
        self.send_order.lock().latest(key.as_str()).cloned()
    }

    /// Returns the ETag of the last object of the origin under a key that this server has seen. A write that
    /// arrives now replaces that object.
    #[must_use]
    pub fn known_etag(&self, key: &ObjectKey) -> Option<String> {
        let met = self.send_order.lock().foreign_etag(key.as_str()).map(str::to_owned);
        met.or_else(|| self.bucket_at_origin.known_etag(key))
    }

    /// True if a dirty write of the key conflicts with a foreign object, and no operator has decided yet.
    #[must_use]
    pub fn is_contested(&self, key: &ObjectKey) -> bool {
        !self.send_order.lock().foreign(Some((key, u64::MAX))).is_empty()
    }

    /// Returns the last writes of the first `max` dirty keys after `after` that begin with `prefix`.
    #[must_use]
    pub fn latest_after(&self, after: RangeBound<&str>, prefix: &str, max: usize) -> Vec<Arc<DirtyWrite>> {
        self.send_order.lock().latest_after(after, prefix).take(max).cloned().collect()
    }

    /// Waits until the origin has every write up to a number, except for those that conflict with foreign
    /// objects.
    pub async fn wait_until_sent(&self, until: u64) {
        loop {
            let changed = self.changed.notified();
            if self.send_order.lock().is_sent_up_to(until) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the summary of the queue.
    #[must_use]
    pub fn dirty(&self) -> DirtySummary {
        let order = self.send_order.lock();
        let doubts = self.unconfirmed.lock();
        let unconfirmed = doubts.iter().filter_map(|seq| order.get(*seq)).take(LISTED_KEYS_MAX);
        let foreign = order.foreign(None);
        let names = foreign.iter().take(LISTED_KEYS_MAX).map(|write| write.facts.key.as_str().to_owned());
        DirtySummary {
            writes: order.len() as u64,
            bytes: order.bytes(),
            oldest_ms: order.oldest_ms(),
            foreign: names.collect(),
            foreign_writes: foreign.len() as u64,
            trouble: self.last_error.lock().clone(),
            unconfirmed: unconfirmed.map(|write| write.facts.key.as_str().to_owned()).collect(),
            stuck: order.is_waiting_only_for(&doubts),
        }
    }
}
