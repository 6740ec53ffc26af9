//! Bound buckets: buckets here that front a bucket of somebody else's, without an import.
//!
//! An object is asked for at its origin once and kept as a clean copy, block by block, while it is passed on.
//! Always: what an answer carries is of one version, that of its first byte; each block is fetched once
//! however many want it; what the origin said holds for a bounded time ([`Freshness`]), and then it is asked
//! again, with one round trip. When the disk here fails, objects are passed on all the same.
//!
//! A bucket may be written through to its origin. Then a read that begins after a write of ours was
//! acknowledged shows what that wrote, or something newer ([`order`]).
//!
//! What a crash interrupts is a fetch: it begins anew. Which writes it interrupts is not known, so what an
//! origin said before the start is asked for once more where writes pass.

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

/// A read is noted when the last one that was is so long ago: a row written for each object that is read,
/// once a minute.
const READ_NOTED_EVERY: Duration = Duration::from_mins(1);
/// Keys of which it is remembered that the origin has none.
const ABSENT_MAX: usize = 100_000;
/// Most keys that are remembered as having had bytes which did not match their ETag.
const SUSPECTS_MAX: usize = 10_000;
/// Most bodies that are remembered as verified against their ETag; others are compared again.
const COMPARED_MAX: usize = 100_000;
/// Most copies that are looked at between two looks at the clock while a bucket is refreshed.
const REFRESHED_AT_ONCE: usize = 1000;

/// All bound buckets of a node. Clones are the same.
#[derive(Clone, Default)]
pub struct Bound {
    /// None where no upstream is configured that could be fronted.
    inner: Option<Arc<Inner>>,
}

struct Inner {
    origins: HashMap<String, Arc<dyn Origin>>,
    copies: Copies,
    /// Who decides what is kept; all of what is read where nobody does.
    keeper: Option<Keeper>,
    clock: Arc<dyn Clock>,
    freshness: RwLock<Freshness>,
    /// One for each large block that is in memory.
    blocks: Arc<Semaphore>,
    /// One for each object that an origin is asked about, and for its small block until that is kept. Who has
    /// one may wait for one of `blocks`, never the other way round.
    asking: Arc<Semaphore>,
    /// One for each object that is fetched before anybody asks for it.
    ahead: Arc<Semaphore>,
    fills: Mutex<HashMap<(BodyId, u64), Arc<Fill>>>,
    /// Bytes of those that wait for others who read them.
    shared_bytes: AtomicU64,
    contacts: Contacts,
    /// When origins said that there is no such key.
    absent: Cache<(BucketId, ObjectKey), Timestamp>,
    /// The MD5s of the bytes that came last under an ETag that is another MD5.
    suspects: Cache<(BucketId, ObjectKey), [u8; 16]>,
    /// Bodies of several blocks that were compared with their ETag as a whole.
    compared: Cache<BodyId, ()>,
    /// Answers that carry more than the block that was taken from them.
    rests: Rests,
    /// By [`CacheState`].
    answers: [AtomicU64; 4],
    order: Order,
    moving: Moving,
    /// When this began.
    started: Timestamp,
}

impl Bound {
    /// Bound buckets over `origins`, by the names of their upstreams. Of what is read that is kept which
    /// `keeper` say; they keep books of these copies.
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

    /// Bounds the blocks that are fetched at once, and held in memory until they are read or kept, to
    /// `blocks`.
    pub fn limit_fetches(&self, blocks: usize) {
        if let Some(inner) = &self.inner {
            inner.blocks.forget_permits(inner.blocks.available_permits().saturating_sub(blocks));
        }
    }

    /// The bucket that a binding makes; nothing when no upstream of its name is configured.
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

    /// An upstream that can be fronted, itself.
    #[must_use]
    pub fn origin(&self, upstream: &str) -> Option<Arc<dyn Origin>> {
        self.inner.as_ref()?.origins.get(upstream).cloned()
    }

    /// The names of the upstreams that can be fronted.
    #[must_use]
    pub fn upstreams(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.inner.iter().flat_map(|inner| inner.origins.keys()).map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// What was asked of each upstream.
    #[must_use]
    pub fn origin_metrics(&self) -> Vec<(&str, OriginMetrics)> {
        let origins = self.inner.iter().flat_map(|inner| &inner.origins);
        origins.map(|(name, origin)| (name.as_str(), origin.metrics())).collect()
    }

    /// Answers by how they came about.
    #[must_use]
    pub fn answers(&self) -> [(CacheState, u64); 4] {
        let count = |state: CacheState| {
            let inner = self.inner.as_ref();
            (state, inner.map_or(0, |inner| inner.answers[state as usize].load(Relaxed)))
        };
        [CacheState::Hit, CacheState::Shared, CacheState::Miss, CacheState::Stale].map(count)
    }

    /// Who decides what is kept of them.
    #[must_use]
    pub fn keeper(&self) -> Option<&Keeper> {
        self.inner.as_ref()?.keeper.as_ref()
    }

    /// The copies that are kept of them.
    #[must_use]
    pub fn copies(&self) -> Option<&Copies> {
        self.inner.as_ref().map(|inner| &inner.copies)
    }

    /// From now on these copies stay, as far as they may be kept.
    pub fn set_pins(&self, pins: Vec<PinnedCopies>) {
        let Some(inner) = &self.inner else { return };
        if let Some(keeper) = &inner.keeper {
            keeper.set_pins(pins.clone(), inner.copies.pinned_bytes_max());
        }
        inner.copies.set_pins(pins);
    }

    /// From now on what origins say holds so long.
    pub fn set_freshness(&self, freshness: Freshness) {
        if let Some(inner) = &self.inner {
            *inner.freshness.write() = freshness;
        }
    }
}

/// How an answer came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheState {
    /// From a copy that holds.
    Hit,
    /// From memory: it was fetched for somebody else, and is not kept, or not yet.
    Shared,
    /// From the origin.
    Miss,
    /// From a copy that holds no more, because the origin cannot be asked.
    Stale,
}

/// An object as it is known now.
pub struct Opened {
    /// What it is like.
    pub object: ObjectVersion,
    /// How long ago the origin said so.
    pub age: Duration,
    /// Whether it was asked.
    pub state: CacheState,
    /// When it was read last, as far as that was noted.
    read: Timestamp,
    /// Bytes of its end, which were fetched with that.
    tail: fetch::Tail,
    /// The rest of the answer behind its first block.
    rest: Option<Arc<Rest>>,
    /// A block was fetched with that, until its reader has said whether it is kept.
    claim: Mutex<Option<Arc<fill::Claim>>>,
}

/// A bound bucket.
#[derive(Clone)]
pub struct BoundBucket {
    inner: Arc<Inner>,
    id: BucketId,
    origin: Arc<dyn Origin>,
    prefix: Arc<str>,
    /// When it was moved to this origin, if it was while the server runs.
    moved: Timestamp,
    /// What the origin said before then does not hold.
    trusted: Timestamp,
    ttl: Option<Duration>,
    /// Why what is fetched through this is fetched, and what goes is let go of.
    why: Why,
}

impl BoundBucket {
    /// The same bucket, for the work of a job.
    #[must_use]
    pub fn of_job(mut self, job: u64) -> Self {
        self.why = Why::job(job);
        self
    }

    /// What an object is like, with its checksums if they are wanted.
    ///
    /// # Errors
    /// Those of the origin.
    pub async fn head(&self, key: &ObjectKey, with_checksums: bool) -> Result<Opened, OriginError> {
        match self.known(key)? {
            Some(copy) if self.is_fresh(&copy) && (copy.with_checksums || !with_checksums) => {
                Ok(self.opened(copy, CacheState::Hit))
            }
            known => self.contact(key, None, known).await,
        }
    }

    /// What an object is like, of which `part` is about to be read: the round trip that asks fetches some of
    /// it, too.
    ///
    /// # Errors
    /// Those of the origin.
    pub async fn open(&self, key: &ObjectKey, part: Part) -> Result<Opened, OriginError> {
        match self.known(key)? {
            Some(copy) if self.is_fresh(&copy) => Ok(self.opened(copy, CacheState::Hit)),
            known => self.contact(key, Some(part), known).await,
        }
    }

    /// Which bytes of an object that was opened are its part `number`; nothing when it has no such part. The
    /// origin is asked each time.
    ///
    /// # Errors
    /// Those of the origin; [`OriginError::Changed`] when the object is another one there by now.
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

    /// How an answer of `range` of an object that was opened comes about. To be asked once for an answer: it
    /// is counted.
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

    /// Reads `range` of an object that was opened, for a caller or for the server itself.
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

    /// A page of keys.
    ///
    /// # Errors
    /// Those of the origin.
    pub async fn list(&self, query: ListQuery) -> Result<ListPage, OriginError> {
        let there = |name: &str| format!("{}{name}", self.prefix);
        let start_after =
            if query.start_after.is_empty() { String::new() } else { there(&query.start_after) };
        let mut query = ListQuery { prefix: there(&query.prefix), start_after, ..query };
        let mut page = self.origin.list(&query).await?;
        // An origin may look at many keys and show none of them.
        while page.lines.is_empty() && query.max_keys > 0 && page.next.is_some() {
            query = ListQuery { token: page.next, start_after: String::new(), ..query };
            page = self.origin.list(&query).await?;
        }
        for line in &mut page.lines {
            line.strip(&self.prefix)?;
        }
        Ok(page)
    }

    /// Has the origin be asked anew for every object whose key begins with `prefix`; returns how many are
    /// known.
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

    /// Lets go of every copy, for the bucket is gone.
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

    /// For messages: the upstream that it fronts.
    #[must_use]
    pub fn upstream(&self) -> &str {
        self.origin.name()
    }

    /// A place among `those`, as soon as there is one.
    async fn place(&self, those: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, OriginError> {
        let place = those.clone().acquire_owned().await;
        place.map_err(|_| OriginError::Unreachable("the server is stopping".into()))
    }

    /// What is known of a key here.
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

    /// Whether what is known may be said although asking failed so.
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

    /// Its key at the origin.
    fn there(&self, key: &ObjectKey) -> String {
        format!("{}{}", self.prefix, key.as_str())
    }
}
