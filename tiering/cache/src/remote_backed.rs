//! Remote-backed buckets: local buckets that present a bucket of another object store without an import.
//!
//! An object is fetched from its origin once, and kept as a clean copy, block by block, while it is passed
//! on. Invariants: a response has the bytes of one version, that of its first byte; each block is fetched
//! once, however many readers need it; metadata of the origin is valid for a bounded time ([`Freshness`]),
//! after which it is revalidated in one round trip. If the local disk fails, objects are still passed on.
//!
//! A bucket may be written through to its origin. A read that begins after a write of this gateway was
//! acknowledged then returns that write or a newer one ([`write_order`]).
//!
//! A crash interrupts fetches, which start anew. The interrupted writes are not known, so for a bucket that
//! is written through, metadata from before the start is revalidated.

mod block;
mod block_fetch;
mod fetch;
mod freshness;
mod lookup;
mod pass_through;
mod read_ahead;
mod reader;
mod rebinding;
mod response_tail;
mod resume;
#[cfg(test)]
mod tests;
mod verification;
mod warm;
mod write;
mod write_order;

pub use freshness::Freshness;
pub use reader::CachedObjectReader;
pub use rebinding::{BucketFreezeGuard, BucketWriteGuard, TrackedKeys, WriteTracker};
pub use warm::{CopyScanPage, WarmedObject};

use crate::copies::{Copies, PinnedCopies};
use crate::policy_driver::{self, PolicyDriver, PolicyRequestContext};
use block_fetch::BlockFetch;
use lookup::OriginLookups;
use mlgw_common::ids::{BodyId, BucketId};
use mlgw_common::limits::{FETCH_BLOCKS_MAX, ORIGIN_QUERIES_MAX, READ_AHEAD_OBJECTS_MAX};
use mlgw_common::{Clock, ObjectKey, Timestamp};
use mlgw_formats::decision_entry::DecisionCause;
use mlgw_formats::decision_words::DecisionReason;
use mlgw_formats::schema::{BindMode, Binding, Bucket, CopyRecord, ObjectVersion};
use mlgw_policies::Op;
use mlgw_remote::origin::{ListPage, ListQuery, ObjectPart, Origin, OriginError, OriginFence, OriginMetrics};
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;
use rebinding::BucketRebinding;
use response_tail::{ResponseTail, ResponseTails};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use write_order::WriteOrdering;

/// Minimum interval between two recorded read times of an object: at most one row is written per object and
/// minute.
const READ_TIME_INTERVAL: Duration = Duration::from_mins(1);
/// Maximum number of keys remembered as absent at the origin.
const ABSENT_MAX: usize = 100_000;
/// Maximum number of keys remembered because their bytes did not match their ETag.
const SUSPECTS_MAX: usize = 10_000;
/// Maximum number of bodies remembered as verified against their ETag; others are compared again.
const VERIFIED_MAX: usize = 100_000;
/// Copies per page of a refresh.
const REFRESH_PAGE: usize = 1000;

/// All remote-backed buckets of a node. Clones share their state.
#[derive(Clone, Default)]
pub struct RemoteBackedBuckets {
    /// `None` if no upstream is configured that can be an origin.
    inner: Option<Arc<RemoteBackedState>>,
}

struct RemoteBackedState {
    origins: HashMap<String, Arc<dyn Origin>>,
    copies: Copies,
    /// Driver of the policy engine, which decides which blocks are kept; without one all blocks that are read
    /// are kept.
    policy_driver: Option<PolicyDriver>,
    clock: Arc<dyn Clock>,
    freshness: RwLock<Freshness>,
    /// Permits for large blocks in memory, one for each block.
    block_permits: Arc<Semaphore>,
    /// Permits for objects requested from an origin, one for each object, held until its small block is kept.
    /// A holder may wait for one of `block_permits`, never the other way round.
    request_permits: Arc<Semaphore>,
    /// Permits for read-ahead, one for each object.
    read_ahead_permits: Arc<Semaphore>,
    fetches: Mutex<HashMap<(BodyId, u64), Arc<BlockFetch>>>,
    /// Bytes of blocks that wait for further readers.
    shared_bytes: AtomicU64,
    contacts: OriginLookups,
    /// Times at which origins reported a key as absent.
    absent: Cache<(BucketId, ObjectKey), Timestamp>,
    /// MD5s of the bytes received last under an ETag that is a different MD5.
    suspects: Cache<(BucketId, ObjectKey), [u8; 16]>,
    /// Bodies of several blocks that were compared with their ETag as a whole.
    verified: Cache<BodyId, ()>,
    /// Responses that carry more than the block that was taken from them.
    response_tails: ResponseTails,
    /// Responses by [`CacheState`].
    answers: [AtomicU64; 4],
    write_order: WriteOrdering,
    rebinding: BucketRebinding,
    /// Permission of this node of a cluster.
    fence: OnceLock<OriginFence>,
    /// Start of this instance.
    started: Timestamp,
}

impl RemoteBackedBuckets {
    /// Creates the remote-backed buckets over `origins`, by upstream name. The driver of the policy engine
    /// decides which blocks that are read are kept, and accounts for the copies.
    #[must_use]
    pub fn new(
        origins: HashMap<String, Arc<dyn Origin>>,
        copies: Copies,
        policy_driver: Option<PolicyDriver>,
        freshness: Freshness,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let inner = RemoteBackedState {
            origins,
            copies,
            policy_driver,
            started: clock.now(),
            clock,
            freshness: RwLock::new(freshness),
            block_permits: Arc::new(Semaphore::new(FETCH_BLOCKS_MAX)),
            request_permits: Arc::new(Semaphore::new(ORIGIN_QUERIES_MAX)),
            read_ahead_permits: Arc::new(Semaphore::new(READ_AHEAD_OBJECTS_MAX)),
            fetches: Mutex::default(),
            shared_bytes: AtomicU64::default(),
            contacts: OriginLookups::default(),
            absent: Cache::new(ABSENT_MAX),
            suspects: Cache::new(SUSPECTS_MAX),
            verified: Cache::new(VERIFIED_MAX),
            response_tails: ResponseTails::default(),
            answers: Default::default(),
            write_order: WriteOrdering::default(),
            rebinding: BucketRebinding::default(),
            fence: OnceLock::new(),
        };
        Self { inner: Some(Arc::new(inner)) }
    }

    /// Serves the buckets only while `fence` has a lease: see [`CachedBucket::is_served_here`]. The origins
    /// are behind the same fence.
    pub fn set_fence(&self, fence: OriginFence) {
        if let Some(inner) = &self.inner {
            let is_new = inner.fence.set(fence).is_ok();
            debug_assert!(is_new, "an instance has one fence");
        }
    }

    /// Limits the number of blocks that are fetched at the same time, and held in memory until they are read
    /// or kept.
    pub fn limit_fetches(&self, blocks: usize) {
        if let Some(inner) = &self.inner {
            inner
                .block_permits
                .forget_permits(inner.block_permits.available_permits().saturating_sub(blocks));
        }
    }

    /// Returns the bucket of a binding; `None` if no upstream of its name is configured.
    #[must_use]
    pub fn bucket(&self, bucket: &Bucket, binding: &Binding) -> Option<CachedBucket> {
        let inner = self.inner.as_ref()?;
        let moved = inner.rebinding.rebound_at(bucket.bucket_id());
        let (trusted, is_written) = match binding.mode() {
            BindMode::ReadThrough => (Timestamp::default(), false),
            BindMode::WriteThrough | BindMode::WriteBack => (inner.started, true),
        };
        Some(CachedBucket {
            inner: inner.clone(),
            id: bucket.bucket_id(),
            origin: inner.origins.get(&binding.upstream)?.clone(),
            prefix: binding.prefix.as_str().into(),
            rebound_at: moved,
            valid_from: trusted.max(moved),
            is_written,
            ttl: binding.ttl_ms.map(Duration::from_millis),
            reason: DecisionReason::Read.into(),
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
    pub fn policy_driver(&self) -> Option<&PolicyDriver> {
        self.inner.as_ref()?.policy_driver.as_ref()
    }

    /// Returns the store of clean copies.
    #[must_use]
    pub fn copies(&self) -> Option<&Copies> {
        self.inner.as_ref().map(|inner| &inner.copies)
    }

    /// Replaces the pinned copies, which stay as far as the pin budget allows.
    pub fn set_pins(&self, pins: Vec<PinnedCopies>) {
        let Some(inner) = &self.inner else { return };
        if let Some(policy_driver) = &inner.policy_driver {
            policy_driver.set_pins(pins.clone(), inner.copies.pinned_bytes_max());
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
pub struct OpenedObject {
    /// Metadata of the object.
    pub object: ObjectVersion,
    /// Time since the origin confirmed the metadata.
    pub age: Duration,
    /// Source of the metadata.
    pub state: CacheState,
    /// Last recorded read time.
    last_read: Timestamp,
    /// Last bytes of the object, fetched with the metadata.
    tail: fetch::TailRead,
    /// Rest of the response after its first block.
    response_tail: Option<Arc<ResponseTail>>,
    /// Claim on the block that was fetched with the metadata, until its reader has stated whether it is kept.
    reader_claim: Mutex<Option<Arc<block_fetch::ReaderClaim>>>,
}

/// Remote-backed bucket.
#[derive(Clone)]
pub struct CachedBucket {
    inner: Arc<RemoteBackedState>,
    id: BucketId,
    origin: Arc<dyn Origin>,
    prefix: Arc<str>,
    /// Time of the move to this origin, if the bucket was moved while the server runs.
    rebound_at: Timestamp,
    /// Metadata confirmed before this time is not valid.
    valid_from: Timestamp,
    /// The nodes of this cluster may change it.
    is_written: bool,
    ttl: Option<Duration>,
    /// Reason recorded for fetches and evictions through this handle.
    reason: DecisionCause,
}

impl CachedBucket {
    /// Returns false if another node of the cluster may serve the bucket by now. A write that has no other
    /// proof must not be acknowledged then.
    #[must_use]
    pub fn is_served_here(&self) -> bool {
        self.inner.fence.get().is_none_or(OriginFence::holds)
    }

    /// Waits until this node of a cluster may change the origin: a node before it may still do so. Then the
    /// origin's present object is the one that a conditional change expects.
    pub async fn until_changes_allowed(&self) {
        if let Some(fence) = self.inner.fence.get() {
            fence.until_open().await;
        }
    }

    /// Returns the same bucket with the reason of a job.
    #[must_use]
    pub fn for_job(mut self, job: u64) -> Self {
        self.reason = DecisionCause::job(job);
        self
    }

    /// Returns the metadata of an object. Its checksums may be missing.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn head(&self, key: &ObjectKey) -> Result<OpenedObject, OriginError> {
        match self.known(key)? {
            Some(copy) if self.is_fresh(&copy) => Ok(self.opened(copy, CacheState::Hit)),
            known => self.look_up(key, None, known).await,
        }
    }

    /// Returns the metadata of an object with its checksums.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn head_with_checksums(&self, key: &ObjectKey) -> Result<OpenedObject, OriginError> {
        match self.known(key)? {
            Some(copy) if self.is_fresh(&copy) && copy.with_checksums => {
                Ok(self.opened(copy, CacheState::Hit))
            }
            known => self.look_up(key, None, known).await,
        }
    }

    /// Opens an object to read `part` of it. If the origin must be contacted, the same round trip fetches
    /// some of that part.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn open(&self, key: &ObjectKey, part: ObjectPart) -> Result<OpenedObject, OriginError> {
        match self.known(key)? {
            Some(copy) if self.is_fresh(&copy) => Ok(self.opened(copy, CacheState::Hit)),
            known => self.look_up(key, Some(part), known).await,
        }
    }

    /// Returns the byte range of part `number` of an open object; `None` if it has no such part. The origin
    /// is contacted each time.
    ///
    /// # Errors
    /// The errors of the origin; [`OriginError::Changed`] if the object is another version there by now.
    pub async fn part_range(
        &self,
        key: &ObjectKey,
        opened: &OpenedObject,
        number: u32,
    ) -> Result<Option<Range<u64>>, OriginError> {
        let object = &opened.object;
        if !(1..=object.part_count).contains(&number) {
            return Ok(None);
        }
        let (there, range) = self.origin.head_part(&self.origin_key(key), number).await?;
        if there.etag != object.etag || there.size != object.size {
            self.inner.copies.forget(self.id, key);
            return Err(OriginError::Changed);
        }
        if object.part_count > 1 && range == (0..object.size) {
            return Err(OriginError::InvalidResponse(
                "it returned the whole object for a part number".to_owned(),
            ));
        }
        Ok(Some(range))
    }

    /// Returns the cache state of a response for `range` of an open object, and counts it. It must be called
    /// once per response.
    #[must_use]
    pub fn record_response(&self, key: &ObjectKey, opened: &OpenedObject, range: &Range<u64>) -> CacheState {
        if self.age(opened.last_read) >= READ_TIME_INTERVAL {
            self.inner.copies.record_read(self.id, key, self.inner.clock.now());
        }
        let number = block::number_at(range.start);
        let is_kept = range.is_empty() || self.inner.copies.block_extents(&opened.object, number).is_some();
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
        opened: &OpenedObject,
        range: Range<u64>,
        read_context: Option<&PolicyRequestContext<'_>>,
    ) -> CachedObjectReader {
        let reading = self.inner.policy_driver.as_ref().zip(read_context).map(|(driver, context)| {
            let (bucket, op, size) = (self.id, Op::Read, opened.object.size);
            let (reading, next) = driver.begin_read(
                &policy_driver::ObservedRequest { context: *context, bucket, key, op, size },
                &range,
            );
            if !next.is_empty() {
                self.fetch_ahead(driver, next, &opened.object, &range);
            }
            reading
        });
        CachedObjectReader::new(self.clone(), key.clone(), opened, range, reading)
    }

    /// Lists a page of keys.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn list(&self, query: ListQuery) -> Result<ListPage, OriginError> {
        let origin_name = |name: &str| format!("{}{name}", self.prefix);
        let start_after =
            if query.start_after.is_empty() { String::new() } else { origin_name(&query.start_after) };
        let mut query = ListQuery { prefix: origin_name(&query.prefix), start_after, ..query };
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
            let page = self.inner.copies.list(self.id, prefix, after.as_ref(), REFRESH_PAGE);
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (key, copy) in &page {
                self.inner.copies.record_metadata(
                    self.id,
                    key,
                    CopyRecord { validated_ms: 0, ..copy.clone() },
                );
            }
            refreshed += page.len() as u64;
        }
        self.inner.absent.clear();
        refreshed
    }

    /// Forgets every copy, because the bucket was deleted.
    pub fn forget(&self) {
        self.inner.rebinding.forget(self.id);
        loop {
            let page = self.inner.copies.list(self.id, "", None, REFRESH_PAGE);
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
    async fn acquire(&self, permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, OriginError> {
        let place = permits.clone().acquire_owned().await;
        place.map_err(|_| OriginError::Unreachable("the server is stopping".into()))
    }

    /// Returns the locally known metadata of a key.
    ///
    /// # Errors
    /// [`OriginError::NoSuchKey`] if the key was recently reported as absent.
    fn known(&self, key: &ObjectKey) -> Result<Option<CopyRecord>, OriginError> {
        let copy = self.inner.copies.find(self.id, key);
        if copy.is_none()
            && let Some(reported) = self.inner.absent.get(&(self.id, key.clone()))
            && self.age(reported) < self.freshness().negative
        {
            return Err(OriginError::NoSuchKey);
        }
        Ok(copy)
    }

    fn opened(&self, copy: CopyRecord, state: CacheState) -> OpenedObject {
        let age = self.age(Timestamp(copy.validated_ms));
        OpenedObject {
            last_read: Timestamp(copy.read_ms),
            object: copy.object,
            age,
            state,
            tail: None,
            response_tail: None,
            reader_claim: Mutex::default(),
        }
    }

    fn is_fresh(&self, copy: &CopyRecord) -> bool {
        let validated = Timestamp(copy.validated_ms);
        validated >= self.valid_from && self.freshness().is_fresh(self.age(validated))
    }

    /// True if an expired copy may be served although the origin request failed with `error`.
    fn may_be_stale(&self, copy: &CopyRecord, error: &OriginError) -> bool {
        let validated = Timestamp(copy.validated_ms);
        validated >= self.valid_from && self.freshness().may_be_stale(self.age(validated), error)
    }

    fn freshness(&self) -> Freshness {
        let general = *self.inner.freshness.read();
        Freshness { positive: self.ttl.unwrap_or(general.positive), ..general }
    }

    fn age(&self, since: Timestamp) -> Duration {
        let ms = self.inner.clock.now().as_millis().saturating_sub(since.as_millis());
        Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }

    /// Returns the key at the origin.
    fn origin_key(&self, key: &ObjectKey) -> String {
        format!("{}{}", self.prefix, key.as_str())
    }
}
