//! Remote-backed buckets: local buckets that present a bucket of another object store without an import.
//!
//! An object is fetched from its origin once, and kept as a clean copy, block by block, while it is passed
//! on. Invariants: a response has the bytes of one version, that of its first byte; each block is fetched
//! once, however many readers need it; metadata of the origin is valid for a bounded time ([`Freshness`]),
//! after which it is revalidated in one round trip. If the local disk fails, objects are still passed on.
//!
//! A bucket may be written through to its origin. A read that begins after a write of this gateway was
//! acknowledged then returns that write or a newer one ([`order`]).
//!
//! A crash interrupts fetches, which start anew. The interrupted writes are not known, so for a bucket that
//! is written through, metadata from before the start is revalidated.

mod ahead;
mod block;
mod contact;
mod fetch;
mod fill;
mod fresh;
mod moving;
mod order;
mod passing;
mod proof;
mod reader;
mod rest;
#[cfg(test)]
mod tests;
mod tries;
mod warm;
mod write;

pub use fresh::Freshness;
pub use moving::{Changed, Frozen, Listening, Pass};
pub use reader::BoundReader;
pub use warm::{Walked, Warmed};
pub use write::{MARK, MARK_HEADER};

use crate::copies::{Copies, PinnedCopies};
use crate::policy::{self, Asking, Keeper};
use contact::Contacts;
use fill::Fill;
use mlgw_common::ids::{BodyId, BucketId};
use mlgw_common::limits::{AHEAD_OBJECTS_MAX, FETCH_BLOCKS_MAX, FETCH_CONTACTS_MAX};
use mlgw_common::{Clock, ObjectKey, Timestamp};
use mlgw_formats::decision_entry::Why;
use mlgw_formats::decision_words::Reason;
use mlgw_formats::schema::{BindMode, Binding, Bucket, Copy, ObjectVersion};
use mlgw_policies::Op;
use mlgw_remote::origin::{ListPage, ListQuery, Origin, OriginError, OriginMetrics, Part};
use moving::Moving;
use order::Order;
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;
use rest::{Rest, Rests};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Minimum interval between two recorded read times of an object: at most one row is written per object and
/// minute.
const READ_NOTED_EVERY: Duration = Duration::from_mins(1);
/// Maximum number of keys remembered as absent at the origin.
const ABSENT_MAX: usize = 100_000;
/// Maximum number of keys remembered because their bytes did not match their ETag.
const SUSPECTS_MAX: usize = 10_000;
/// Maximum number of bodies remembered as verified against their ETag; others are compared again.
const COMPARED_MAX: usize = 100_000;
/// Copies per page of a refresh.
const REFRESHED_AT_ONCE: usize = 1000;

/// All remote-backed buckets of a node. Clones share their state.
#[derive(Clone, Default)]
pub struct Bound {
    /// `None` if no upstream is configured that can be an origin.
    inner: Option<Arc<Inner>>,
}

struct Inner {
    origins: HashMap<String, Arc<dyn Origin>>,
    copies: Copies,
    /// Driver of the policy engine, which decides which blocks are kept; without one all blocks that are read
    /// are kept.
    keeper: Option<Keeper>,
    clock: Arc<dyn Clock>,
    freshness: RwLock<Freshness>,
    /// Permits for large blocks in memory, one for each block.
    blocks: Arc<Semaphore>,
    /// Permits for objects requested from an origin, one for each object, held until its small block is kept.
    /// A holder may wait for one of `block_permits`, never the other way round.
    asking: Arc<Semaphore>,
    /// Permits for read-ahead, one for each object.
    ahead: Arc<Semaphore>,
    fills: Mutex<HashMap<(BodyId, u64), Arc<Fill>>>,
    /// Bytes of blocks that wait for further readers.
    shared_bytes: AtomicU64,
    contacts: Contacts,
    /// Times at which origins reported a key as absent.
    absent: Cache<(BucketId, ObjectKey), Timestamp>,
    /// MD5s of the bytes received last under an ETag that is a different MD5.
    suspects: Cache<(BucketId, ObjectKey), [u8; 16]>,
    /// Bodies of several blocks that were compared with their ETag as a whole.
    compared: Cache<BodyId, ()>,
    /// Responses that carry more than the block that was taken from them.
    rests: Rests,
    /// Responses by [`CacheState`].
    answers: [AtomicU64; 4],
    order: Order,
    moving: Moving,
    /// Start of this instance.
    started: Timestamp,
}

impl Bound {
    /// Creates the remote-backed buckets over `origins`, by upstream name. The driver of the policy engine
    /// decides which blocks that are read are kept, and accounts for the copies.
    #[must_use]
    pub fn new(
        origins: HashMap<String, Arc<dyn Origin>>,
        copies: Copies,
        keeper: Option<Keeper>,
        freshness: Freshness,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let inner = Inner {
            origins,
            copies,
            keeper,
            started: clock.now(),
            clock,
            freshness: RwLock::new(freshness),
            blocks: Arc::new(Semaphore::new(FETCH_BLOCKS_MAX)),
            asking: Arc::new(Semaphore::new(FETCH_CONTACTS_MAX)),
            ahead: Arc::new(Semaphore::new(AHEAD_OBJECTS_MAX)),
            fills: Mutex::default(),
            shared_bytes: AtomicU64::default(),
            contacts: Contacts::default(),
            absent: Cache::new(ABSENT_MAX),
            suspects: Cache::new(SUSPECTS_MAX),
            compared: Cache::new(COMPARED_MAX),
            rests: Rests::default(),
            answers: Default::default(),
            order: Order::default(),
            moving: Moving::default(),
        };
        Self { inner: Some(Arc::new(inner)) }
    }

    /// Limits the number of blocks that are fetched at the same time, and held in memory until they are read
    /// or kept.
    pub fn limit_fetches(&self, blocks: usize) {
        if let Some(inner) = &self.inner {
            inner.blocks.forget_permits(inner.blocks.available_permits().saturating_sub(blocks));
        }
    }

    /// Returns the bucket of a binding; `None` if no upstream of its name is configured.
    #[must_use]
    pub fn bucket(&self, bucket: &Bucket, binding: &Binding) -> Option<BoundBucket> {
        let inner = self.inner.as_ref()?;
        let moved = inner.moving.moved(bucket.bucket_id());
        let trusted = match binding.mode() {
            BindMode::ReadThrough => Timestamp::default(),
            BindMode::WriteThrough | BindMode::WriteBack => inner.started,
        };
        Some(BoundBucket {
            inner: inner.clone(),
            id: bucket.bucket_id(),
            origin: inner.origins.get(&binding.upstream)?.clone(),
            prefix: binding.prefix.as_str().into(),
            moved,
            trusted: trusted.max(moved),
            ttl: binding.ttl_ms.map(Duration::from_millis),
            why: Reason::Read.into(),
        })
    }

    /// Returns the client of an upstream that can be an origin.
    #[must_use]
    pub fn origin(&self, upstream: &str) -> Option<Arc<dyn Origin>> {
        self.inner.as_ref()?.origins.get(upstream).cloned()
    }

    /// Returns the names of the upstreams that can be origins.
    #[must_use]
    pub fn upstreams(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.inner.iter().flat_map(|inner| inner.origins.keys()).map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Returns the counters of each upstream.
    #[must_use]
    pub fn origin_metrics(&self) -> Vec<(&str, OriginMetrics)> {
        let origins = self.inner.iter().flat_map(|inner| &inner.origins);
        origins.map(|(name, origin)| (name.as_str(), origin.metrics())).collect()
    }

    /// Returns the number of responses by cache state.
    #[must_use]
    pub fn answers(&self) -> [(CacheState, u64); 4] {
        let count = |state: CacheState| {
            let inner = self.inner.as_ref();
            (state, inner.map_or(0, |inner| inner.answers[state as usize].load(Relaxed)))
        };
        [CacheState::Hit, CacheState::Shared, CacheState::Miss, CacheState::Stale].map(count)
    }

    /// Returns the driver of the policy engine.
    #[must_use]
    pub fn keeper(&self) -> Option<&Keeper> {
        self.inner.as_ref()?.keeper.as_ref()
    }

    /// Returns the store of clean copies.
    #[must_use]
    pub fn copies(&self) -> Option<&Copies> {
        self.inner.as_ref().map(|inner| &inner.copies)
    }

    /// Replaces the pinned copies, which stay as far as the pin budget allows.
    pub fn set_pins(&self, pins: Vec<PinnedCopies>) {
        let Some(inner) = &self.inner else { return };
        if let Some(keeper) = &inner.keeper {
            keeper.set_pins(pins.clone(), inner.copies.pinned_bytes_max());
        }
        inner.copies.set_pins(pins);
    }

    /// Replaces the validity times of metadata.
    pub fn set_freshness(&self, freshness: Freshness) {
        if let Some(inner) = &self.inner {
            *inner.freshness.write() = freshness;
        }
    }
}

/// Source of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheState {
    /// A valid copy.
    Hit,
    /// Memory: the block was fetched for another reader and is not kept, or not yet.
    Shared,
    /// The origin.
    Miss,
    /// A copy that is no longer valid, because the origin cannot be reached.
    Stale,
}

/// Object with the metadata known now.
pub struct Opened {
    /// Metadata of the object.
    pub object: ObjectVersion,
    /// Time since the origin confirmed the metadata.
    pub age: Duration,
    /// Source of the metadata.
    pub state: CacheState,
    /// Last recorded read time.
    read: Timestamp,
    /// Last bytes of the object, fetched with the metadata.
    tail: fetch::Tail,
    /// Rest of the response after its first block.
    rest: Option<Arc<Rest>>,
    /// Claim on the block that was fetched with the metadata, until its reader has stated whether it is kept.
    claim: Mutex<Option<Arc<fill::Claim>>>,
}

/// Remote-backed bucket.
#[derive(Clone)]
pub struct BoundBucket {
    inner: Arc<Inner>,
    id: BucketId,
    origin: Arc<dyn Origin>,
    prefix: Arc<str>,
    /// Time of the move to this origin, if the bucket was moved while the server runs.
    moved: Timestamp,
    /// Metadata confirmed before this time is not valid.
    trusted: Timestamp,
    ttl: Option<Duration>,
    /// Reason recorded for fetches and evictions through this handle.
    why: Why,
}

impl BoundBucket {
    /// Returns the same bucket with the reason of a job.
    #[must_use]
    pub fn of_job(mut self, job: u64) -> Self {
        self.why = Why::job(job);
        self
    }

    /// Returns the metadata of an object, with its checksums if `with_checksums` is set.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn head(&self, key: &ObjectKey, with_checksums: bool) -> Result<Opened, OriginError> {
        match self.known(key)? {
            Some(copy) if self.is_fresh(&copy) && (copy.with_checksums || !with_checksums) => {
                Ok(self.opened(copy, CacheState::Hit))
            }
            known => self.contact(key, None, known).await,
        }
    }

    /// Opens an object to read `part` of it. If the origin must be contacted, the same round trip fetches
    /// some of that part.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn open(&self, key: &ObjectKey, part: Part) -> Result<Opened, OriginError> {
        match self.known(key)? {
            Some(copy) if self.is_fresh(&copy) => Ok(self.opened(copy, CacheState::Hit)),
            known => self.contact(key, Some(part), known).await,
        }
    }

    /// Returns the byte range of part `number` of an open object; `None` if it has no such part. The origin
    /// is contacted each time.
    ///
    /// # Errors
    /// The errors of the origin; [`OriginError::Changed`] if the object is another version there by now.
    pub async fn part(
        &self,
        key: &ObjectKey,
        opened: &Opened,
        number: u32,
    ) -> Result<Option<Range<u64>>, OriginError> {
        let object = &opened.object;
        if !(1..=object.part_count).contains(&number) {
            return Ok(None);
        }
        let (there, range) = self.origin.head_part(&self.there(key), number).await?;
        if there.etag != object.etag || there.size != object.size {
            self.inner.copies.forget(self.id, key);
            return Err(OriginError::Changed);
        }
        if object.part_count > 1 && range == (0..object.size) {
            return Err(OriginError::Nonsense("the whole object for one part of it".to_owned()));
        }
        Ok(Some(range))
    }

    /// Returns the cache state of a response for `range` of an open object, and counts it. It must be called
    /// once per response.
    #[must_use]
    pub fn state_of(&self, key: &ObjectKey, opened: &Opened, range: &Range<u64>) -> CacheState {
        if self.age(opened.read) >= READ_NOTED_EVERY {
            self.inner.copies.note_read(self.id, key, self.inner.clock.now());
        }
        let number = block::of(range.start);
        let is_kept = range.is_empty() || self.inner.copies.block(&opened.object, number).is_some();
        let state = match opened.state {
            CacheState::Hit if !is_kept && self.is_in_memory(&opened.object, number) => CacheState::Shared,
            CacheState::Hit if !is_kept => CacheState::Miss,
            state => state,
        };
        self.inner.answers[state as usize].fetch_add(1, Relaxed);
        state
    }

    /// Reads `range` of an open object, for a client or for the server itself.
    #[must_use]
    pub fn read(
        &self,
        key: &ObjectKey,
        opened: &Opened,
        range: Range<u64>,
        asking: Option<&Asking<'_>>,
    ) -> BoundReader {
        let reading = self.inner.keeper.as_ref().zip(asking).map(|(keeper, asking)| {
            let (bucket, op, size) = (self.id, Op::Read, opened.object.size);
            let (reading, next) =
                keeper.reading(&policy::Request { asking: *asking, bucket, key, op, size }, &range);
            if !next.is_empty() {
                let is_here = range.is_empty()
                    || self.inner.copies.block(&opened.object, block::of(range.start)).is_some();
                self.fetch_ahead(keeper, next, is_here, opened.object.size);
            }
            reading
        });
        BoundReader::new(self.clone(), key.clone(), opened, range, reading)
    }

    /// Lists a page of keys.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn list(&self, query: ListQuery) -> Result<ListPage, OriginError> {
        let there = |name: &str| format!("{}{name}", self.prefix);
        let start_after =
            if query.start_after.is_empty() { String::new() } else { there(&query.start_after) };
        let mut query = ListQuery { prefix: there(&query.prefix), start_after, ..query };
        let mut page = self.origin.list(&query).await?;
        // An origin may scan many keys and list no key.
        while page.lines.is_empty() && query.max_keys > 0 && page.next.is_some() {
            query = ListQuery { token: page.next, start_after: String::new(), ..query };
            page = self.origin.list(&query).await?;
        }
        for line in &mut page.lines {
            line.strip(&self.prefix)?;
        }
        Ok(page)
    }

    /// Marks the metadata of every object whose key begins with `prefix` as expired, so that the origin is
    /// contacted at the next read. Returns the number of objects known.
    pub fn refresh(&self, prefix: &str) -> u64 {
        let mut after: Option<ObjectKey> = None;
        let mut refreshed = 0;
        loop {
            let page = self.inner.copies.list(self.id, prefix, after.as_ref(), REFRESHED_AT_ONCE);
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (key, copy) in &page {
                self.inner.copies.note(self.id, key, Copy { validated_ms: 0, ..copy.clone() });
            }
            refreshed += page.len() as u64;
        }
        self.inner.absent.clear();
        refreshed
    }

    /// Forgets every copy, because the bucket was deleted.
    pub fn forget(&self) {
        self.inner.moving.forget(self.id);
        loop {
            let page = self.inner.copies.list(self.id, "", None, REFRESHED_AT_ONCE);
            if page.is_empty() {
                return;
            }
            page.iter().for_each(|(key, _)| self.inner.copies.forget(self.id, key));
        }
    }

    /// Returns the name of the upstream, for messages.
    #[must_use]
    pub fn upstream(&self) -> &str {
        self.origin.name()
    }

    /// Acquires a permit of a semaphore.
    async fn place(&self, those: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, OriginError> {
        let place = those.clone().acquire_owned().await;
        place.map_err(|_| OriginError::Unreachable("the server is stopping".into()))
    }

    /// Returns the locally known metadata of a key.
    ///
    /// # Errors
    /// [`OriginError::NoSuchKey`] if the key was recently reported as absent.
    fn known(&self, key: &ObjectKey) -> Result<Option<Copy>, OriginError> {
        let copy = self.inner.copies.find(self.id, key);
        if copy.is_none()
            && let Some(said) = self.inner.absent.get(&(self.id, key.clone()))
            && self.age(said) < self.freshness().negative
        {
            return Err(OriginError::NoSuchKey);
        }
        Ok(copy)
    }

    fn opened(&self, copy: Copy, state: CacheState) -> Opened {
        let age = self.age(Timestamp(copy.validated_ms));
        Opened {
            read: Timestamp(copy.read_ms),
            object: copy.object,
            age,
            state,
            tail: None,
            rest: None,
            claim: Mutex::default(),
        }
    }

    fn is_fresh(&self, copy: &Copy) -> bool {
        let said = Timestamp(copy.validated_ms);
        said >= self.trusted && self.freshness().is_fresh(self.age(said))
    }

    /// True if an expired copy may be served although the origin request failed with `error`.
    fn may_be_stale(&self, copy: &Copy, error: &OriginError) -> bool {
        let said = Timestamp(copy.validated_ms);
        said >= self.trusted && self.freshness().may_be_stale(self.age(said), error)
    }

    fn freshness(&self) -> Freshness {
        let general = *self.inner.freshness.read();
        Freshness { positive: self.ttl.unwrap_or(general.positive), ..general }
    }

    fn age(&self, said: Timestamp) -> Duration {
        let ms = self.inner.clock.now().as_millis().saturating_sub(said.as_millis());
        Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }

    /// Returns the key at the origin.
    fn there(&self, key: &ObjectKey) -> String {
        format!("{}{}", self.prefix, key.as_str())
    }
}
