//! Write-back queue: writes to remote-backed buckets that are durable here and not yet at their origins.
//!
//! Such a write is an object record of the bucket, under a name of its own ([`record`]), with its bytes in
//! the hot tier like those of any object: replicated, compacted and scrubbed, never evicted, and present
//! after a restart. Only the set of writes, their order ([`order`]) and the remaining budget ([`room`]) are
//! in memory; a start reads them from the records. A sender, in another package, takes writes from the queue.
//!
//! Invariants: a write is in memory before it is acknowledged, so that readers see it from then on. Its
//! record is removed once the origin has the write, and only then is the write removed from memory, so that
//! it is always visible in one of the two places. A write that was sent before a crash is recognised by its
//! mark.

mod order;
pub mod record;
mod room;
mod turns;

pub use order::Write;
pub use room::Place;
pub use turns::Turn;

use crate::bound::{Bound, BoundBucket};
use mlgw_common::{BucketId, Clock, Incarnation, ObjectKey};
use mlgw_formats::command::update_object::Update;
use mlgw_formats::command::{Command, Conditions, DeleteObject, ObjectChange, Reject, Replace, UpdateObject};
use mlgw_formats::schema::{BindMode, Binding, Bucket, ObjectVersion};
use mlgw_metadata::{Catalogue, ProposeError, ReadError};
use mlgw_remote::upstream::Budget;
use order::Order;
use parking_lot::Mutex;
use record::{Facts, Timelines};
use room::Room;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound as RangeBound;
use std::sync::Arc;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, Semaphore, mpsc};
use turns::Turns;

/// Maximum number of concurrent writes to one upstream. At 20 ms each that is 1,600 small objects a second;
/// each holds at most two pieces of 1 MiB.
const SENT_AT_ONCE: usize = 32;
/// Maximum number of keys that are listed by name in [`Dirty`].
const NAMED_MAX: usize = 100;

/// Components and limits from which write-back is built.
pub struct Means {
    /// Catalogue, which holds the records.
    pub catalogue: Catalogue,
    /// Remote-backed buckets.
    pub bound: Bound,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Maximum number of dirty bytes.
    pub bytes_max: u64,
    /// Maximum bytes sent per second, by upstream.
    pub budgets: HashMap<String, u64>,
}

/// Receiver of new queues, for the sender.
pub type NewQueues = mpsc::UnboundedReceiver<Arc<Queue>>;

/// Write-back of a node. Clones share their state.
#[derive(Clone)]
pub struct WriteBack {
    inner: Arc<Inner>,
}

struct Inner {
    catalogue: Catalogue,
    bound: Bound,
    clock: Arc<dyn Clock>,
    room: Room,
    queues: Mutex<HashMap<BucketId, Arc<Queue>>>,
    upstreams: Mutex<HashMap<String, Arc<Way>>>,
    budgets: HashMap<String, u64>,
    timelines: Arc<Timelines>,
    /// Channel of new queues to the sender, in the order of their creation. It holds at most one per bucket.
    made: mpsc::UnboundedSender<Arc<Queue>>,
}

/// Limits of sending to an upstream, shared by its buckets.
pub struct Way {
    /// Permits for concurrent writes.
    pub slots: Arc<Semaphore>,
    /// Bytes per second.
    pub budget: Budget,
}

/// Dirty writes of a bucket.
pub struct Queue {
    bucket: Arc<Bucket>,
    timelines: Arc<Timelines>,
    bound: BoundBucket,
    way: Arc<Way>,
    order: Mutex<Order>,
    turns: Turns,
    /// Turns of writes with conditions.
    turns_of_conditions: Turns,
    changed: Notify,
    /// Error of the last attempt, if it failed.
    trouble: Mutex<Option<String>>,
    /// Numbers of the writes that the origin acknowledged at the last attempt and did not show.
    doubts: Mutex<BTreeSet<u64>>,
}

/// Summary of dirty writes, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
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
    pub fn open(means: Means) -> Result<(Self, NewQueues), ReadError> {
        let Means { catalogue, bound, clock, bytes_max, budgets } = means;
        let (made, new_queues) = mpsc::unbounded_channel();
        let timelines = Arc::new(timelines(&catalogue)?);
        let inner = Inner {
            timelines,
            catalogue,
            bound,
            clock,
            room: Room::new(bytes_max),
            queues: Mutex::default(),
            upstreams: Mutex::default(),
            budgets,
            made,
        };
        let writeback = Self { inner: Arc::new(inner) };
        for bucket in writeback.inner.catalogue.buckets(None, None, usize::MAX) {
            if writeback.queue(&bucket)?.is_none() && bucket.binding.as_ref().is_some_and(is_written_back) {
                tracing::warn!(
                    bucket = bucket.name,
                    "its upstream is not configured: what is dirty stays here"
                );
            }
        }
        Ok((writeback, new_queues))
    }

    /// Returns the queue of a bucket, if it is bound in write-back mode to an upstream that is configured.
    ///
    /// # Errors
    /// The catalogue cannot be read.
    pub fn queue(&self, bucket: &Arc<Bucket>) -> Result<Option<Arc<Queue>>, ReadError> {
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
        let Some(bound) = self.inner.bound.bucket(&bucket, binding) else { return Ok(None) };
        let queue = Arc::new(Queue {
            bucket: bucket.clone(),
            timelines: self.inner.timelines.clone(),
            bound,
            way: self.way(&binding.upstream),
            order: Mutex::new(self.inner.find(&bucket)?),
            turns: Turns::default(),
            turns_of_conditions: Turns::default(),
            changed: Notify::new(),
            trouble: Mutex::default(),
            doubts: Mutex::default(),
        });
        queues.insert(bucket.bucket_id(), queue.clone());
        // Without a sender, as in tests, nothing is sent.
        drop(self.inner.made.send(queue.clone()));
        Ok(Some(queue))
    }

    /// Returns the incarnation that marks writes, and its ancestors.
    #[must_use]
    pub fn timelines(&self) -> &Arc<Timelines> {
        &self.inner.timelines
    }

    fn way(&self, upstream: &str) -> Arc<Way> {
        let bytes_per_second = self.inner.budgets.get(upstream).copied().unwrap_or(0);
        let way = || {
            let slots = Arc::new(Semaphore::new(SENT_AT_ONCE));
            Arc::new(Way { slots, budget: Budget::new(bytes_per_second, 0) })
        };
        self.inner.upstreams.lock().entry(upstream.to_owned()).or_insert_with(way).clone()
    }

    /// True if a write of this size can ever be accepted.
    #[must_use]
    pub fn fits(&self, bytes: u64) -> bool {
        self.inner.room.fits(bytes)
    }

    /// Waits for a share of the dirty budget for a write of `bytes` bytes; `None` if that takes too long.
    pub async fn place(&self, bytes: u64) -> Option<Place> {
        self.inner.room.place(bytes).await
    }

    /// Returns the summaries of all queues.
    #[must_use]
    pub fn dirty(&self) -> Vec<Dirty> {
        self.inner.queues.lock().values().map(|queue| queue.dirty()).collect()
    }

    /// Discards the writes of a bucket that conflict with a foreign write: the objects at the origin stay.
    /// Returns their number.
    ///
    /// # Errors
    /// The errors of the catalogue.
    pub async fn discard(&self, queue: &Queue) -> Result<u64, ProposeError> {
        let foreign = queue.order.lock().foreign(None);
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
    pub fn is_current(&self, queue: &Arc<Queue>) -> bool {
        let now = self.inner.queues.lock().get(&queue.bucket.bucket_id()).cloned();
        now.is_some_and(|now| Arc::ptr_eq(&now, queue))
    }

    /// Removes the record of a write, and then the write.
    ///
    /// # Errors
    /// The errors of the catalogue.
    pub async fn remove(&self, queue: &Queue, write: &Write) -> Result<(), ProposeError> {
        let change = ObjectChange::Delete(DeleteObject { conditions: Conditions::default() });
        self.change(queue, write, change).await?;
        queue.order.lock().remove(write.seq);
        queue.changed.notify_waiters();
        Ok(())
    }

    /// Changes the facts in the record of a write, if the record exists; the rest of the record stays. The
    /// record then has another `seq`.
    ///
    /// # Errors
    /// The errors of the catalogue.
    pub async fn note(
        &self,
        queue: &Queue,
        write: &Write,
        note: impl FnOnce(&mut Facts),
    ) -> Result<(), ProposeError> {
        let Ok(Some(version)) = self.inner.catalogue.object(queue.bucket.bucket_id(), &write.name) else {
            return Ok(());
        };
        let mut headers = version.headers.clone();
        if let Some(mut facts) = Facts::take(&mut headers) {
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

    async fn change(&self, queue: &Queue, write: &Write, change: ObjectChange) -> Result<(), ProposeError> {
        // The epoch of the bucket may have risen since.
        let bucket = self.inner.catalogue.bucket(&queue.bucket.name).unwrap_or_else(|| queue.bucket.clone());
        let command = Command::object(&bucket, &write.name, self.inner.clock.now(), change);
        match self.inner.catalogue.propose(command).await {
            Ok(_) | Err(ProposeError::Rejected(Reject::NoSuchBucket)) => Ok(()),
            Err(error) => Err(error),
        }
    }
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

impl Inner {
    /// Reads the dirty writes of a bucket from its records.
    fn find(&self, bucket: &Bucket) -> Result<Order, ReadError> {
        let mut order = Order::default();
        let reader = self.catalogue.reader();
        for found in reader.scan(bucket.bucket_id(), RangeBound::Unbounded) {
            let (name, entry) = found?;
            let mut version = entry.version()?;
            let Some(facts) = Facts::take(&mut version.headers) else {
                tracing::error!(bucket = bucket.name, %name, "a record is that of no write; it stays as it is");
                continue;
            };
            let place = Some(self.room.place_of_old(version.size));
            let seq = facts.number(version.seq);
            order.add(Arc::new(write_of(name, facts, seq, &version, place)));
        }
        if order.len() > 0 {
            tracing::info!(bucket = bucket.name, writes = order.len(), bytes = order.bytes(), "found dirty");
        }
        Ok(order)
    }
}

/// Returns the write that a record describes.
#[must_use]
pub fn write_of(
    name: ObjectKey,
    facts: Facts,
    seq: u64,
    version: &ObjectVersion,
    place: Option<Place>,
) -> Write {
    let (size, began_ms, etag) = (version.size, version.modified_ms, version.etag.clone());
    let upload = Mutex::new(facts.upload.as_ref().map(|upload| upload.id.clone()));
    let begins = Mutex::new(facts.begins.clone());
    Write { seq, name, facts, size, began_ms, etag, place, upload, begins }
}

impl Queue {
    /// Returns the bucket, as it was bound when the queue was created.
    #[must_use]
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// Returns the bucket at its origin.
    #[must_use]
    pub fn bound(&self) -> &BoundBucket {
        &self.bound
    }

    /// Returns the limits of sending to its upstream.
    #[must_use]
    pub fn way(&self) -> &Way {
        &self.way
    }

    /// Completes at the next change of the queue.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Returns the next write that may be sent, and marks it as in flight.
    #[must_use]
    pub fn start(&self) -> Option<Arc<Write>> {
        self.order.lock().start()
    }

    /// Returns the earlier writes of the key of `write` that conflict with a foreign object.
    #[must_use]
    pub fn foreign_before(&self, write: &Write) -> Vec<Arc<Write>> {
        self.order.lock().foreign(Some((&write.facts.key, write.seq)))
    }

    /// Takes a write out of the order, because a foreign object with this ETag is at the origin.
    pub fn set_aside(&self, write: &Write, etag: &str) {
        self.set_doubt(write, false);
        self.order.lock().set_aside(write.seq, etag);
        self.changed.notify_waiters();
    }

    /// Sets whether the origin acknowledged a write at the last attempt and did not show it.
    pub fn set_doubt(&self, write: &Write, is_in_doubt: bool) {
        let mut doubts = self.doubts.lock();
        if is_in_doubt {
            doubts.insert(write.seq);
        } else {
            doubts.remove(&write.seq);
        }
    }

    /// Sets the error of the last attempt, or clears it.
    pub fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }

    /// Returns the incarnation that marks writes, and its ancestors.
    #[must_use]
    pub fn timelines(&self) -> &Timelines {
        &self.timelines
    }

    /// Returns the greatest acknowledged number; a write that begins now is ordered after it.
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.order.lock().acked()
    }

    /// Waits for the turn to number a write of a key. The turn must be held until the write is added: if a
    /// greater number of the key were added first, it would be sent first, and then be overwritten at the
    /// origin by the older write.
    pub async fn turn(&self, key: &ObjectKey) -> Turn {
        self.turns.take(key.as_str()).await
    }

    /// Waits for the turn to check the conditions of a write of a key, whether the origin or this gateway
    /// checks them. The turn must be held until the write is done.
    pub async fn turn_of_conditions(&self, key: &ObjectKey) -> Turn {
        self.turns_of_conditions.take(key.as_str()).await
    }

    /// Adds a durable write; it may be acknowledged when this returns.
    pub fn add(&self, write: Write) {
        self.order.lock().add(Arc::new(write));
        self.changed.notify_waiters();
    }

    /// Returns the last dirty write of a key.
    #[must_use]
    pub fn latest(&self, key: &ObjectKey) -> Option<Arc<Write>> {
        self.order.lock().latest(key.as_str()).cloned()
    }

    /// Returns the ETag of the last object of the origin under a key that this server has seen. A write that
    /// arrives now replaces that object.
    #[must_use]
    pub fn known_etag(&self, key: &ObjectKey) -> Option<String> {
        let met = self.order.lock().met(key.as_str()).map(str::to_owned);
        met.or_else(|| self.bound.known_etag(key))
    }

    /// True if a dirty write of the key conflicts with a foreign object, and no operator has decided yet.
    #[must_use]
    pub fn is_contested(&self, key: &ObjectKey) -> bool {
        !self.order.lock().foreign(Some((key, u64::MAX))).is_empty()
    }

    /// Returns the last writes of the first `max` dirty keys after `after` that begin with `prefix`.
    #[must_use]
    pub fn behind(&self, after: RangeBound<&str>, prefix: &str, max: usize) -> Vec<Arc<Write>> {
        self.order.lock().behind(after, prefix).take(max).cloned().collect()
    }

    /// Waits until the origin has every write up to a number, except for those that conflict with foreign
    /// objects.
    pub async fn through(&self, until: u64) {
        loop {
            let changed = self.changed.notified();
            if self.order.lock().is_through(until) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the summary of the queue.
    #[must_use]
    pub fn dirty(&self) -> Dirty {
        let order = self.order.lock();
        let doubts = self.doubts.lock();
        let unconfirmed = doubts.iter().filter_map(|seq| order.get(*seq)).take(NAMED_MAX);
        let foreign = order.foreign(None);
        let names = foreign.iter().take(NAMED_MAX).map(|write| write.facts.key.as_str().to_owned());
        Dirty {
            writes: order.len() as u64,
            bytes: order.bytes(),
            oldest_ms: order.oldest_ms(),
            foreign: names.collect(),
            foreign_writes: foreign.len() as u64,
            trouble: self.trouble.lock().clone(),
            unconfirmed: unconfirmed.map(|write| write.facts.key.as_str().to_owned()).collect(),
            stuck: order.waits_only_for(&doubts),
        }
    }
}
