//! The queue of write-back: writes to remote-backed buckets that are durable here and not at their origins yet.
//!
//! Such a write is an object record of the bucket, under a name of its own ([`record`]), with its bytes in the
//! hot tier like any object's: replicated, compacted and scrubbed as those are, never evicted, and there after
//! a restart. Only the set of writes, their order ([`order`]) and the room that is left ([`room`]) are in
//! memory; a start reads them from the records. A sender, in another package, takes writes from the queue.
//!
//! Always: a write is in memory before it is acknowledged, so that a reader sees it from then on; its record is
//! removed once the origin has the write, and only then is the write removed here, so that it is seen in one
//! place or the other. A write that was sent before a crash is recognized by its mark.

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

/// Writes to one upstream that are sent at once. At 20 ms each that is 1,600 small objects a second; each
/// holds at most two pieces of 1 MiB.
const SENT_AT_ONCE: usize = 32;
/// Writes that wait for somebody to decide that are named to him.
const NAMED_MAX: usize = 100;

/// The parts of the server that the queue works with.
pub struct Means {
    /// The catalogue, which has the records.
    pub catalogue: Catalogue,
    /// Remote-backed buckets.
    pub bound: Bound,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Bytes that may be dirty.
    pub bytes_max: u64,
    /// Bytes that may be sent in a second, by upstream.
    pub budgets: HashMap<String, u64>,
}

/// Queues that were made, for the sender.
pub type NewQueues = mpsc::UnboundedReceiver<Arc<Queue>>;

/// Write-back of a node. Clones are the same.
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
    /// Queues for the sender, in the order of their making. As many as there are buckets.
    made: mpsc::UnboundedSender<Arc<Queue>>,
}

/// The limits of sending to an upstream, shared by its buckets.
pub struct Way {
    /// Writes that are sent at once.
    pub slots: Arc<Semaphore>,
    /// Bytes per second.
    pub budget: Budget,
}

/// What is dirty in a bucket.
pub struct Queue {
    bucket: Arc<Bucket>,
    timelines: Arc<Timelines>,
    bound: BoundBucket,
    way: Arc<Way>,
    order: Mutex<Order>,
    turns: Turns,
    /// Of writes with conditions.
    turns_of_conditions: Turns,
    changed: Notify,
    /// Why the last try failed, if it did.
    trouble: Mutex<Option<String>>,
    /// The numbers of those that the origin claimed to have at the last try and did not show.
    doubts: Mutex<BTreeSet<u64>>,
}

/// What is dirty, for those who look after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Writes.
    pub writes: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the oldest began, as milliseconds since 1970.
    pub oldest_ms: Option<i64>,
    /// Keys that somebody else has written at the origin since, the first of them.
    pub foreign: Vec<String>,
    /// Writes of such keys.
    pub foreign_writes: u64,
    /// Why the last try failed, if it did.
    pub trouble: Option<String>,
    /// The first keys that the origin claimed to have at the last try and did not show.
    pub unconfirmed: Vec<String>,
    /// Whether nothing goes on: all that could be sent was, and the origin does not confirm it.
    pub stuck: bool,
}

impl WriteBack {
    /// Reads the dirty writes from the catalogue. Returns the queues, and a receiver of each of them for the
    /// sender.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
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

    /// The queue of a bucket, if it is bound write-back to an upstream that is configured.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub fn queue(&self, bucket: &Arc<Bucket>) -> Result<Option<Arc<Queue>>, ReadError> {
        if !bucket.binding.as_ref().is_some_and(is_written_back) {
            return Ok(None);
        }
        let mut queues = self.inner.queues.lock();
        if let Some(queue) = queues.get(&bucket.bucket_id()) {
            return Ok(Some(queue.clone()));
        }
        // As it is bound now: who asks may have looked it up before it was bound elsewhere.
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

    /// The incarnation that marks writes, and those before it.
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

    /// Whether so many bytes could ever be dirty.
    #[must_use]
    pub fn fits(&self, bytes: u64) -> bool {
        self.inner.room.fits(bytes)
    }

    /// A place for a write of so many bytes, as soon as there is one; none when that takes too long.
    pub async fn place(&self, bytes: u64) -> Option<Place> {
        self.inner.room.place(bytes).await
    }

    /// What is dirty, by bucket.
    #[must_use]
    pub fn dirty(&self) -> Vec<Dirty> {
        self.inner.queues.lock().values().map(|queue| queue.dirty()).collect()
    }

    /// Gives up the writes of a bucket that met something foreign: what is at the origin stays. Returns how
    /// many there were.
    ///
    /// # Errors
    /// Why they could not be.
    pub async fn discard(&self, queue: &Queue) -> Result<u64, ProposeError> {
        let foreign = queue.order.lock().foreign(None);
        for write in &foreign {
            self.remove(queue, write).await?;
        }
        Ok(foreign.len() as u64)
    }

    /// Forgets a bucket that is bound no more, or elsewhere.
    pub fn forget(&self, bucket: BucketId) {
        if let Some(queue) = self.inner.queues.lock().remove(&bucket) {
            queue.changed.notify_waiters();
        }
    }

    /// Returns whether a queue is the current one of its bucket: the bucket was neither unbound nor bound
    /// elsewhere since it was made.
    #[must_use]
    pub fn is_current(&self, queue: &Arc<Queue>) -> bool {
        let now = self.inner.queues.lock().get(&queue.bucket.bucket_id()).cloned();
        now.is_some_and(|now| Arc::ptr_eq(&now, queue))
    }

    /// Removes the record of a write, and then the write.
    ///
    /// # Errors
    /// Those of the catalogue.
    pub async fn remove(&self, queue: &Queue, write: &Write) -> Result<(), ProposeError> {
        let change = ObjectChange::Delete(DeleteObject { conditions: Conditions::default() });
        self.change(queue, write, change).await?;
        queue.order.lock().remove(write.seq);
        queue.changed.notify_waiters();
        Ok(())
    }

    /// Changes the facts in the record of a write, if there is one; the rest of the record stays. The record
    /// has another `seq` then.
    ///
    /// # Errors
    /// Those of the catalogue.
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
        // Its epoch may have risen since.
        let bucket = self.inner.catalogue.bucket(&queue.bucket.name).unwrap_or_else(|| queue.bucket.clone());
        let command = Command::object(&bucket, &write.name, self.inner.clock.now(), change);
        match self.inner.catalogue.propose(command).await {
            Ok(_) | Err(ProposeError::Rejected(Reject::NoSuchBucket)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The incarnation of a catalogue, and those that it descends from.
fn timelines(catalogue: &Catalogue) -> Result<Timelines, ReadError> {
    let Some((own, earlier)) = catalogue.timelines()? else { return Ok(Timelines::default()) };
    let ended = earlier.ended.into_iter().map(|one| (Incarnation(one.incarnation), one.bodies_before));
    Ok(Timelines::new(Incarnation(own.incarnation), ended.collect()))
}

/// Whether writes to a bucket that is bound so are sent later.
fn is_written_back(binding: &Binding) -> bool {
    binding.mode() == BindMode::WriteBack
}

impl Inner {
    /// What is dirty in a bucket, by its records.
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

/// The write that a record is of.
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
    /// The bucket, as it was bound when the queue was made.
    #[must_use]
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// The bucket's origin.
    #[must_use]
    pub fn bound(&self) -> &BoundBucket {
        &self.bound
    }

    /// The limits of sending to its upstream.
    #[must_use]
    pub fn way(&self) -> &Way {
        &self.way
    }

    /// Completes at the next change of the queue.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Returns the next write that may be sent, and marks it as on its way.
    #[must_use]
    pub fn start(&self) -> Option<Arc<Write>> {
        self.order.lock().start()
    }

    /// Returns the writes of the key of `write` before it that met somebody else's object.
    #[must_use]
    pub fn foreign_before(&self, write: &Write) -> Vec<Arc<Write>> {
        self.order.lock().foreign(Some((&write.facts.key, write.seq)))
    }

    /// Takes a write out of the order: somebody else's object with this ETag is at the origin.
    pub fn set_aside(&self, write: &Write, etag: &str) {
        self.set_doubt(write, false);
        self.order.lock().set_aside(write.seq, etag);
        self.changed.notify_waiters();
    }

    /// Sets whether the origin claimed at the last attempt to have a write, and did not show it.
    pub fn set_doubt(&self, write: &Write, is_in_doubt: bool) {
        let mut doubts = self.doubts.lock();
        if is_in_doubt {
            doubts.insert(write.seq);
        } else {
            doubts.remove(&write.seq);
        }
    }

    /// Sets why the last attempt failed, if it did.
    pub fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }

    /// The incarnation that marks writes, and those before it.
    #[must_use]
    pub fn timelines(&self) -> &Timelines {
        &self.timelines
    }

    /// The greatest number that was acknowledged: who begins now goes after it.
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.order.lock().acked()
    }

    /// Waits for the turn to give a write of a key its number, which is held until it is added: a greater
    /// number of the key that was added first would be sent first, and overwritten at the origin by what is
    /// older.
    pub async fn turn(&self, key: &ObjectKey) -> Turn {
        self.turns.take(key.as_str()).await
    }

    /// Waits for the turn to look at the conditions of a write of a key, which is held until the write is
    /// done: those that its origin looks at, and those that are looked at here.
    pub async fn turn_of_conditions(&self, key: &ObjectKey) -> Turn {
        self.turns_of_conditions.take(key.as_str()).await
    }

    /// A write is durable, and may be acknowledged when this returns.
    pub fn add(&self, write: Write) {
        self.order.lock().add(Arc::new(write));
        self.changed.notify_waiters();
    }

    /// The last write of a key, if the origin has it not.
    #[must_use]
    pub fn latest(&self, key: &ObjectKey) -> Option<Arc<Write>> {
        self.order.lock().latest(key.as_str()).cloned()
    }

    /// The ETag of the last object of the origin under a key that this server has seen. A write that comes
    /// now replaces that object.
    #[must_use]
    pub fn known_etag(&self, key: &ObjectKey) -> Option<String> {
        let met = self.order.lock().met(key.as_str()).map(str::to_owned);
        met.or_else(|| self.bound.known_etag(key))
    }

    /// Whether somebody else wrote a key at the origin before what was written here was there, and nobody has
    /// decided yet.
    #[must_use]
    pub fn is_contested(&self, key: &ObjectKey) -> bool {
        !self.order.lock().foreign(Some((key, u64::MAX))).is_empty()
    }

    /// The last writes of the first `max` dirty keys behind `after` that begin with `prefix`.
    #[must_use]
    pub fn behind(&self, after: RangeBound<&str>, prefix: &str, max: usize) -> Vec<Arc<Write>> {
        self.order.lock().behind(after, prefix).take(max).cloned().collect()
    }

    /// Waits until the origin has everything up to a number, but for what met something foreign.
    pub async fn through(&self, until: u64) {
        loop {
            let changed = self.changed.notified();
            if self.order.lock().is_through(until) {
                return;
            }
            changed.await;
        }
    }

    /// What is dirty.
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
