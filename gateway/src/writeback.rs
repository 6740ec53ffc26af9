//! Write-back: writes to bound buckets that are acknowledged when they are durable here, and sent to their
//! origins afterwards.
//!
//! A write that its origin has not is an object record of the bucket, under a name of its own ([`record`]),
//! with its bytes in the hot tier like any object's: replicated, compacted and scrubbed as those are, never
//! evicted, and there after a restart. In memory is only which there are, in which order they go ([`order`])
//! and how much room is left ([`room`]); a start reads that from the records.
//!
//! Always: a write is in memory before it is acknowledged, so that who asks then sees it; its record goes
//! when the origin has it, and only then it is forgotten here, so that it is seen in one place or the other.
//! What was sent before a crash is known again by its mark.

mod doubt;
mod judge;
mod order;
mod orphans;
mod parts;
mod persist;
pub mod record;
mod room;
mod turns;

pub use order::Write;
pub(crate) use persist::{describe, describe_as, prove};
pub use room::Place;
pub use turns::Turn;

use mlgw_common::{BucketId, Clock, Incarnation, ObjectKey};
use mlgw_metadata::schema::{BindMode, Binding, Bucket, ObjectVersion};
use mlgw_metadata::{Catalogue, ReadError};
use mlgw_tiering::bound::{Bound, BoundBucket};
use mlgw_tiering::upstream::Budget;
use mlgw_tiering::{Decisions, Tiers};
use order::Order;
use parking_lot::Mutex;
use record::{Facts, Timelines};
use room::Room;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound as RangeBound;
use std::sync::Arc;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use turns::Turns;

/// Writes to one upstream that are sent at once. At 20 ms each that is 1,600 small objects a second; each
/// holds at most two pieces of 1 MiB.
const SENT_AT_ONCE: usize = 32;
/// Writes that wait for somebody to decide that are named to him.
const NAMED_MAX: usize = 100;

/// What write-back works with.
pub struct Means {
    /// Where the records are.
    pub catalogue: Catalogue,
    /// Where the bytes are.
    pub tiers: Tiers,
    /// Where both are to go.
    pub bound: Bound,
    /// Where it is recorded what was sent, and what was not.
    pub decisions: Decisions,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Bytes that may be dirty.
    pub bytes_max: u64,
    /// Bytes that may be sent in a second, by upstream.
    pub budgets: HashMap<String, u64>,
}

/// Write-back of a node. Clones are the same.
#[derive(Clone)]
pub struct WriteBack {
    inner: Arc<Inner>,
}

struct Inner {
    catalogue: Catalogue,
    tiers: Tiers,
    bound: Bound,
    decisions: Decisions,
    clock: Arc<dyn Clock>,
    room: Room,
    queues: Mutex<HashMap<BucketId, Arc<Queue>>>,
    upstreams: Mutex<HashMap<String, Arc<Way>>>,
    budgets: HashMap<String, u64>,
    timelines: Arc<Timelines>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// The way to an upstream.
struct Way {
    slots: Arc<Semaphore>,
    budget: Budget,
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
    /// Finds what is dirty, and begins to send it. Called within a tokio runtime.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub fn open(means: Means) -> Result<Self, ReadError> {
        let Means { catalogue, tiers, bound, decisions, clock, bytes_max, budgets } = means;
        let timelines = Arc::new(timelines(&catalogue)?);
        let inner = Inner {
            timelines,
            catalogue,
            tiers,
            bound,
            decisions,
            clock,
            room: Room::new(bytes_max),
            queues: Mutex::default(),
            upstreams: Mutex::default(),
            budgets,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
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
        Ok(writeback)
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
        persist::begin(&self.inner, &queue);
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
    pub async fn discard(&self, queue: &Queue) -> Result<u64, mlgw_metadata::ProposeError> {
        let foreign = queue.order.lock().foreign(None);
        for write in &foreign {
            self.inner.remove(queue, write).await?;
        }
        Ok(foreign.len() as u64)
    }

    /// Forgets a bucket that is bound no more, or elsewhere.
    pub fn forget(&self, bucket: BucketId) {
        if let Some(queue) = self.inner.queues.lock().remove(&bucket) {
            queue.changed.notify_waiters();
        }
    }

    /// Sends nothing more; what is dirty stays so until the next start.
    pub async fn stop(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
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
