//! Block fetches: each block is fetched once, however many readers need it, and kept if it is complete and
//! the policy engine decides so.

use super::block_fetch::{BlockFetch, BlockRetention, ReaderClaim};
use super::pass_through::PassThroughRead;
use super::response_tail::{ResponseHandoff, ResponseTail, RunningResponse};
use super::resume::ReadResumeState;
use super::verification::{is_compared_by_block, withheld_from};
use super::{CachedBucket, block};
use crate::copies::{block_id, is_same_version};
use crate::policy_driver::PolicyRead;
use futures_util::StreamExt as _;
use mlgw_common::ObjectKey;
use mlgw_common::limits::{
    COPY_BLOCK_BYTES, FETCH_BLOCKS_RESERVED, FETCH_SMALL_BYTES_MAX, ORIGIN_QUERIES_MAX,
};
use mlgw_formats::schema::{CopyRecord, Extent, ObjectVersion};
use mlgw_remote::origin::{
    GetQuery, Md5Check, ObjectPart, OriginError, OriginObject, md5_of, strong_validator,
};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Compares times by the second, because headers have whole seconds and listings have milliseconds.
pub(super) fn differ_in_seconds(one_ms: i64, other_ms: i64) -> bool {
    one_ms.div_euclid(1000) != other_ms.div_euclid(1000)
}

/// Last bytes of an object, for one reader and not kept.
pub(super) type TailRead = Option<Arc<Mutex<Option<OriginObject>>>>;

/// Fetches that a lookup started.
#[derive(Clone, Default)]
pub(super) struct StartedFetch {
    pub(super) tail: TailRead,
    /// Claim on the block that is fetched with the response; its readers decide whether it is kept.
    pub(super) reader_claim: Option<Arc<ReaderClaim>>,
    /// Rest of the response after that block.
    pub(super) response_tail: Option<Arc<ResponseTail>>,
}

/// Party that requests a block.
pub(super) enum BlockRequester<'a> {
    /// A client request; the policy engine decides.
    Reader(&'a mut PolicyRead),
    /// The server itself; kept as far as the engine considers it worthwhile.
    Server,
    /// Read-ahead for an expected reader; the block waits for that reader, whose request decides whether it
    /// is kept.
    ReadAhead,
}

/// Place from which a block is read.
pub(super) enum BlockSource {
    Kept(Vec<Extent>),
    Fetching(Arc<BlockFetch>),
    /// For one reader that needs some bytes of the block; not kept.
    PassThrough(Box<PassThroughRead>),
}

impl CachedBucket {
    /// Takes over the response of a lookup as the fetch of its first block, or returns it as a tail if it
    /// holds no whole block.
    pub(super) async fn take_response(
        &self,
        key: &ObjectKey,
        copy: &CopyRecord,
        got: OriginObject,
        permit: OwnedSemaphorePermit,
    ) -> Result<StartedFetch, OriginError> {
        let number = block::number_at(got.range.start);
        let whole = block::range(number, copy.object.size);
        if got.range.start != whole.start || got.range.end < whole.end {
            return Ok(StartedFetch {
                tail: Some(Arc::new(Mutex::new(Some(got)))),
                ..StartedFetch::default()
            });
        }
        if !whole.is_empty() && self.inner.copies.block_extents(&copy.object, number).is_none() {
            let is_small = whole.end - whole.start <= FETCH_SMALL_BYTES_MAX;
            let memory = if is_small { permit } else { self.acquire(&self.inner.block_permits).await? };
            let has_more = got.range.end > whole.end;
            let rest = has_more.then(|| Arc::new(ResponseTail::after_block(number)));
            let begun = Some(FetchStart { got: Some(got), rest: rest.clone() });
            let (_, claim) = self.start_fetch(key, &copy.object, number, memory, begun);
            // Without a policy engine every block is kept.
            let claim = self.inner.policy_driver.is_some().then(|| Arc::new(claim));
            return Ok(StartedFetch { tail: None, reader_claim: claim, response_tail: rest });
        }
        Ok(StartedFetch::default())
    }

    /// Returns the retention request of a requester for a block.
    pub(super) fn retention_request(
        &self,
        requester: &mut BlockRequester<'_>,
        number: u64,
    ) -> BlockRetention {
        match requester {
            _ if self.inner.policy_driver.is_none() => BlockRetention::Required,
            BlockRequester::Server => BlockRetention::IfWorthwhile,
            BlockRequester::ReadAhead => BlockRetention::NotRequested,
            BlockRequester::Reader(reading) => {
                if reading.should_keep(number) {
                    BlockRetention::Required
                } else {
                    BlockRetention::NotRequested
                }
            }
        }
    }

    /// Merges a requester's retention request into an in-flight fetch.
    fn merge_request(&self, fill: &BlockFetch, requester: &mut BlockRequester<'_>, number: u64) {
        fill.want(self.retention_request(requester, number));
        match requester {
            BlockRequester::ReadAhead => fill.wait_for_reader(),
            BlockRequester::Reader(reading) => {
                reading.ruling().sharing.iter().for_each(|of| fill.wait_for_others(*of))
            }
            BlockRequester::Server => {}
        }
    }

    /// Returns the place from which a block can be read: its copy or its fetch. A fetch is started if there
    /// is none, as soon as there is memory for it.
    pub(super) async fn source_of(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        requester: &mut BlockRequester<'_>,
    ) -> Result<BlockSource, OriginError> {
        if let Some(source) = self.existing_source_for(key, object, number, requester) {
            return Ok(source);
        }
        if let Some(lookup) = self.lookup_in_flight(key) {
            // The response may begin with this very block. Any other result concerns only its own caller.
            lookup.await;
        }
        let memory = self.acquire(self.permits_for(object, number)).await?;
        if let Some(source) = self.existing_source_for(key, object, number, requester) {
            return Ok(source);
        }
        let (fill, _claim) = self.start_fetch(key, object, number, memory, None);
        self.merge_request(&fill, requester, number);
        Ok(BlockSource::Fetching(fill))
    }

    /// Returns the existing source of a block, and records the requester's retention request.
    pub(super) fn existing_source_for(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        requester: &mut BlockRequester<'_>,
    ) -> Option<BlockSource> {
        let source = self.existing_source(key, object, number)?;
        match &source {
            BlockSource::Fetching(fill) => self.merge_request(fill, requester, number),
            _ => drop(self.retention_request(requester, number)),
        }
        Some(source)
    }

    /// Returns the semaphore that limits the memory of a block.
    fn permits_for(&self, object: &ObjectVersion, number: u64) -> &Arc<Semaphore> {
        let bytes = block::range(number, object.size);
        let is_small = bytes.end - bytes.start <= FETCH_SMALL_BYTES_MAX;
        if is_small { &self.inner.request_permits } else { &self.inner.block_permits }
    }

    /// True if enough memory is left for client requests when a block of `bytes` bytes is held for a reader
    /// that has not arrived.
    pub(super) fn has_idle_memory(&self, bytes: u64) -> bool {
        if bytes <= FETCH_SMALL_BYTES_MAX {
            self.inner.request_permits.available_permits() >= ORIGIN_QUERIES_MAX / 2
        } else {
            self.inner.block_permits.available_permits() >= FETCH_BLOCKS_RESERVED
        }
    }

    /// True if a block that was fetched for a reader is complete in memory.
    pub(super) fn is_in_memory(&self, object: &ObjectVersion, number: u64) -> bool {
        self.inner.fetches.lock().get(&(object.body(), number)).is_some_and(|fill| fill.is_whole())
    }

    /// True if the block is being fetched.
    pub(super) fn is_being_fetched(&self, object: &ObjectVersion, number: u64) -> bool {
        self.inner.fetches.lock().contains_key(&(object.body(), number))
    }

    /// Returns the existing source of a block.
    fn existing_source(&self, key: &ObjectKey, object: &ObjectVersion, number: u64) -> Option<BlockSource> {
        let under_way = self.inner.fetches.lock().get(&(object.body(), number)).cloned();
        if let Some(fill) = under_way {
            return Some(BlockSource::Fetching(fill));
        }
        // The copy is looked up after the fetch: a block whose fetch has ended is already kept.
        let copy = self.inner.copies.find(self.id, key)?;
        let same = copy.object.body_id == object.body_id;
        same.then(|| self.inner.copies.block_extents(&copy.object, number)).flatten().map(BlockSource::Kept)
    }

    /// Like [`CachedBucket::source_of`] for a block that is not needed yet: starts a fetch only if there is
    /// memory for it now and no lookup is in flight whose response may be the block.
    pub(super) fn source_ahead(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        requester: &mut BlockRequester<'_>,
    ) -> Option<BlockSource> {
        if let Some(source) = self.existing_source_for(key, object, number, requester) {
            return Some(source);
        }
        if self.lookup_in_flight(key).is_some() {
            return None;
        }
        let memory = self.permits_for(object, number).clone().try_acquire_owned().ok()?;
        let (fill, _claim) = self.start_fetch(key, object, number, memory, None);
        self.merge_request(&fill, requester, number);
        Some(BlockSource::Fetching(fill))
    }

    /// Starts the fetch of a block, or joins the one in flight. The returned claim must be dropped after the
    /// retention request is recorded.
    fn start_fetch(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        memory: OwnedSemaphorePermit,
        begun: Option<FetchStart>,
    ) -> (Arc<BlockFetch>, ReaderClaim) {
        let block_key = (object.body(), number);
        let range = block::range(number, object.size);
        assert!(!range.is_empty(), "a block that is fetched has bytes");
        let held_from = withheld_from(object, &range);
        let fill = Arc::new(BlockFetch::new(range, held_from, memory));
        let claim = fill.claim();
        {
            let mut fills = self.inner.fetches.lock();
            if let Some(other) = fills.get(&block_key) {
                return (other.clone(), other.claim());
            }
            // A rest is added only with its own fetch: another one would not pass it on, and the blocks
            // assigned to it would wait for ever.
            if let Some(rest) = begun.as_ref().and_then(|begun| begun.rest.as_ref()) {
                self.inner.response_tails.add(object.body(), rest);
            }
            fills.insert(block_key, fill.clone());
        }
        if object.size > COPY_BLOCK_BYTES {
            self.inner.verified.remove(&object.body());
        }
        // The tail is assigned here, because blocks begin in the order in which they are requested.
        let begun = begun
            .or_else(|| self.inner.response_tails.assign(object.body(), number).map(FetchStart::at_tail));
        let (bucket, key, object, filled) = (self.clone(), key.clone(), object.clone(), fill.clone());
        tokio::spawn(async move { bucket.fetch_and_keep(&key, &object, number, &filled, begun).await });
        (fill, claim)
    }

    /// Fetches a block, and keeps it if requested.
    async fn fetch_and_keep(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        fill: &BlockFetch,
        begun: Option<FetchStart>,
    ) {
        let is_whole = self.fetch(key, object, fill, begun).await;
        let mut is_kept = false;
        if is_whole {
            let wanted = fill.decided_retention().await;
            is_kept = self.keep(key, object, number, fill, wanted).await;
            if !is_kept && fill.has_wait() && self.has_idle_memory(fill.range.end - fill.range.start) {
                let later = fill.wait_for_readers(wanted, &self.inner.shared_bytes).await;
                is_kept = later > wanted && self.keep(key, object, number, fill, later).await;
            }
        }
        let removed = self.inner.fetches.lock().remove(&(object.body(), number));
        assert!(removed.is_some_and(|of| std::ptr::eq(&*of, fill)), "a block has one fetch in flight");
        fill.close();
        if let Some(driver) = &self.inner.policy_driver {
            let id = block_id(self.id, key, number);
            match fill.retention() {
                BlockRetention::NotRequested if !is_kept => {}
                // A block of another version may be cached by now, which is the same block to the engine.
                _ if is_kept || self.is_kept_now(key, number) => driver.on_kept(id),
                _ => driver.on_not_kept(id),
            }
        }
    }

    /// True if a block of the known version of an object is kept.
    fn is_kept_now(&self, key: &ObjectKey, number: u64) -> bool {
        let copy = self.inner.copies.find(self.id, key);
        copy.is_some_and(|copy| self.inner.copies.block_extents(&copy.object, number).is_some())
    }

    /// Fetches a block. Returns true if it is complete.
    async fn fetch(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        fill: &BlockFetch,
        begun: Option<FetchStart>,
    ) -> bool {
        let fetched = self.fetch_verified(key, object, fill, begun).await;
        if let Err(error) = &fetched {
            tracing::debug!(origin = self.origin.name(), %error, "failed to fetch a block");
        }
        // The object may differ from the metadata that its origin stated. A 304 would confirm its ETag only,
        // so the copy is forgotten and the next read requests everything.
        let is_doubtful = |error: &OriginError| {
            matches!(
                error,
                OriginError::Changed
                    | OriginError::NoSuchKey
                    | OriginError::OutOfRange(_)
                    | OriginError::InvalidResponse(_)
            )
        };
        if fetched.as_ref().is_err_and(is_doubtful) {
            self.inner.copies.forget(self.id, key);
        }
        let is_whole = fetched.is_ok();
        fill.finish(fetched);
        is_whole
    }

    /// Keeps a complete block if requested. Returns true if it is kept.
    async fn keep(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        fill: &BlockFetch,
        wanted: BlockRetention,
    ) -> bool {
        if !self.should_keep(key, object, number, wanted) {
            return false;
        }
        let kept = self.inner.copies.keep(self.id, key, object, number, fill.pieces(), self.reason).await;
        let is_kept = kept.is_some();
        if let Some(extents) = kept {
            fill.set_kept(extents);
        }
        is_kept
    }

    fn should_keep(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        wanted: BlockRetention,
    ) -> bool {
        match (&self.inner.policy_driver, wanted) {
            (None, _) | (Some(_), BlockRetention::Required) => true,
            (Some(_), BlockRetention::NotRequested) => false,
            (Some(driver), BlockRetention::IfWorthwhile) => driver.adopt(self.id, key, object.size, number),
        }
    }

    /// Fetches a block. A block that is the whole of an object with a known MD5 is compared with that MD5. If
    /// it differs and no reader has seen any of it, it is fetched once more.
    async fn fetch_verified(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        fill: &BlockFetch,
        mut begun: Option<FetchStart>,
    ) -> Result<(), OriginError> {
        let is_compared = is_compared_by_block(object);
        for may_restart in [true, false] {
            let mut fetching = BlockDownload {
                bucket: self,
                key,
                object,
                fill,
                check: md5_of(object).filter(|_| is_compared).map(Md5Check::new),
            };
            fetching.run(begun.take()).await?;
            let Some(Err(sum)) = fetching.check.map(Md5Check::end) else { break };
            match self.handle_md5_mismatch(key, object, sum).await {
                Ok(()) => break,
                Err(OriginError::WrongBytes(_)) if may_restart && fill.restart() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Requests bytes of this version of an object from the origin.
    ///
    /// # Errors
    /// The errors of the origin; [`OriginError::Changed`] if the object is another version.
    pub(super) async fn get_version(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        range: Range<u64>,
    ) -> Result<OriginObject, OriginError> {
        let part = ObjectPart::Range { first: range.start, end: range.end };
        let query = GetQuery { if_match: strong_validator(object), ..GetQuery::unconditional(part) };
        let got = self.origin.get(&self.origin_key(key), &query).await?;
        // A weak ETag cannot be a condition of the request, and may stay the same when the bytes change.
        let is_weak = query.if_match.is_none();
        let is_other = is_weak && differ_in_seconds(got.object.modified_ms, object.modified_ms);
        if is_other || !is_same_version(&got.object, object) || got.range.start != range.start {
            return Err(OriginError::Changed);
        }
        Ok(got)
    }
}

/// Fetch of a block in progress, with the checksum of its bytes.
struct BlockDownload<'a> {
    bucket: &'a CachedBucket,
    key: &'a ObjectKey,
    object: &'a ObjectVersion,
    fill: &'a BlockFetch,
    check: Option<Md5Check>,
}

impl BlockDownload<'_> {
    /// Fetches until the block is complete.
    async fn run(&mut self, begun: Option<FetchStart>) -> Result<(), OriginError> {
        let mut tries = ReadResumeState::default();
        let next = block::number_at(self.fill.range.start) + 1;
        let mut holding =
            begun.as_ref().and_then(|begun| begun.rest.clone()).map(|rest| ResponseHandoff::new(rest, next));
        let mut running = match begun {
            Some(begun) => begun.running(next - 1).await,
            None => None,
        };
        // A response that has ended is not continued.
        holding = holding.filter(|_| running.is_some());
        loop {
            let at = self.fill.next_offset();
            let poured = match running.take() {
                Some(running) => self.fill_from(running).await,
                None => self.fetch_from(at).await,
            };
            if self.fill.next_offset() == self.fill.range.end {
                if let (Some(holding), Ok(running)) = (&mut holding, poured) {
                    holding.keep(running);
                }
                return Ok(());
            }
            // The response to a range is not the one that other blocks wait for.
            holding = None;
            let error = poured.err();
            let ended = OriginError::Unreachable("the response ended early".into());
            if !tries.may_resume(error.as_ref().unwrap_or(&ended), at, self.fill.next_offset()) {
                let (at, end) = (self.fill.next_offset(), self.fill.range.end);
                let short = || {
                    OriginError::InvalidResponse(format!(
                        "the response has no byte {at} of a block that ends at {end}"
                    ))
                };
                return Err(error.unwrap_or_else(short));
            }
        }
    }

    /// Fetches the missing bytes of the block, of this version only.
    async fn fetch_from(&mut self, at: u64) -> Result<RunningResponse, OriginError> {
        let got = self.bucket.get_version(self.key, self.object, at..self.fill.range.end).await?;
        if md5_of(&got.object).is_none() {
            self.check = None;
        }
        self.fill_from(RunningResponse::new(got)).await
    }

    /// Reads until the block is complete. Returns the response with its remaining bytes.
    async fn fill_from(&mut self, mut running: RunningResponse) -> Result<RunningResponse, OriginError> {
        while self.fill.next_offset() < self.fill.range.end {
            let mut piece = match running.left_over.is_empty() {
                false => std::mem::take(&mut running.left_over),
                true => match running.got.body.next().await {
                    Some(piece) => piece?,
                    None => break,
                },
            };
            let left = usize::try_from(self.fill.range.end - self.fill.next_offset()).unwrap_or(usize::MAX);
            if piece.len() > left {
                running.left_over = piece.split_off(left);
            }
            self.check.iter_mut().for_each(|check| check.add(&piece));
            self.fill.push(piece);
        }
        Ok(running)
    }
}

/// Source with which the fetch of a block begins.
struct FetchStart {
    /// Response that begins with the block; `None` if the response is still at an earlier block.
    got: Option<OriginObject>,
    /// Rest of the response.
    rest: Option<Arc<ResponseTail>>,
}

impl FetchStart {
    /// Starts with a response that reaches the block after earlier ones.
    fn at_tail(rest: Arc<ResponseTail>) -> Self {
        Self { got: None, rest: Some(rest) }
    }

    /// Returns the response as soon as it has reached the block.
    async fn running(self, number: u64) -> Option<RunningResponse> {
        match (self.got, self.rest) {
            (Some(got), _) => Some(RunningResponse::new(got)),
            (None, Some(rest)) => rest.take(number).await,
            (None, None) => None,
        }
    }
}
