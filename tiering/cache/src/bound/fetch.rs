//! Block fetches: each block is fetched once, however many readers need it, and kept if it is complete and
//! the policy engine decides so.

use super::contact::is_other_second;
use super::fill::{Claim, Fill, Wanted};
use super::passing::Passing;
use super::proof::{held_from, is_compared_by_block};
use super::rest::{Holding, Rest, Running};
use super::tries::Tries;
use super::{BoundBucket, block};
use crate::copies::{block_id, is_same};
use crate::policy::Reading;
use futures_util::StreamExt as _;
use mlgw_common::ObjectKey;
use mlgw_common::limits::{COPY_BLOCK_BYTES, FETCH_BLOCKS_SPARE, FETCH_CONTACTS_MAX, FETCH_SMALL_BYTES_MAX};
use mlgw_formats::schema::{Copy, Extent, ObjectVersion};
use mlgw_remote::origin::{GetQuery, Got, Md5Check, OriginError, Part, md5_of, strong_validator};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Last bytes of an object, for one reader and not kept.
pub(super) type Tail = Option<Arc<Mutex<Option<Got>>>>;

/// Fetches that a lookup started.
#[derive(Clone, Default)]
pub(super) struct Begun {
    pub(super) tail: Tail,
    /// Claim on the block that is fetched with the response; its readers decide whether it is kept.
    pub(super) claim: Option<Arc<Claim>>,
    /// Rest of the response after that block.
    pub(super) rest: Option<Arc<Rest>>,
}

/// Party that requests a block.
pub(super) enum Asker<'a> {
    /// A client request; the policy engine decides.
    Reader(&'a mut Reading),
    /// The server itself; kept as far as the engine considers it worthwhile.
    Server,
    /// Read-ahead for an expected reader; the block waits for that reader, whose request decides whether it
    /// is kept.
    Ahead,
}

/// Place from which a block is read.
pub(super) enum Source {
    Kept(Vec<Extent>),
    Filling(Arc<Fill>),
    /// For one reader that needs some bytes of the block; not kept.
    Passing(Box<Passing>),
}

impl BoundBucket {
    /// Takes over the response of a lookup as the fetch of its first block, or returns it as a tail if it
    /// holds no whole block.
    pub(super) async fn take(
        &self,
        key: &ObjectKey,
        copy: &Copy,
        got: Got,
        asking: OwnedSemaphorePermit,
    ) -> Result<Begun, OriginError> {
        let number = block::of(got.range.start);
        let whole = block::range(number, copy.object.size);
        if got.range.start != whole.start || got.range.end < whole.end {
            return Ok(Begun { tail: Some(Arc::new(Mutex::new(Some(got)))), ..Begun::default() });
        }
        if !whole.is_empty() && self.inner.copies.block(&copy.object, number).is_none() {
            let is_small = whole.end - whole.start <= FETCH_SMALL_BYTES_MAX;
            let memory = if is_small { asking } else { self.place(&self.inner.blocks).await? };
            let has_more = got.range.end > whole.end;
            let rest = has_more.then(|| Arc::new(Rest::behind(number)));
            if let Some(rest) = &rest {
                self.inner.rests.add(copy.object.body(), rest);
            }
            let begun = Some(Begin { got: Some(got), rest: rest.clone() });
            let (_, claim) = self.begin_fill(key, &copy.object, number, memory, begun);
            // Without a policy engine every block is kept.
            let claim = self.inner.keeper.is_some().then(|| Arc::new(claim));
            return Ok(Begun { tail: None, claim, rest });
        }
        Ok(Begun::default())
    }

    /// Returns the retention request of a requester for a block.
    pub(super) fn wanted(&self, asker: &mut Asker<'_>, number: u64) -> Wanted {
        match asker {
            _ if self.inner.keeper.is_none() => Wanted::Yes,
            Asker::Server => Wanted::Adopted,
            Asker::Ahead => Wanted::No,
            Asker::Reader(reading) => {
                if reading.keeps(number) {
                    Wanted::Yes
                } else {
                    Wanted::No
                }
            }
        }
    }

    /// Merges a requester's retention request into an in-flight fetch.
    fn say(&self, fill: &Fill, asker: &mut Asker<'_>, number: u64) {
        fill.want(self.wanted(asker, number));
        match asker {
            Asker::Ahead => fill.wait_for_reader(),
            Asker::Reader(reading) => {
                reading.ruling().sharing.iter().for_each(|of| fill.wait_for_others(*of))
            }
            Asker::Server => {}
        }
    }

    /// Returns the place from which a block can be read: its copy or its fetch. A fetch is started if there
    /// is none, as soon as there is memory for it.
    pub(super) async fn source(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        asker: &mut Asker<'_>,
    ) -> Result<Source, OriginError> {
        if let Some(source) = self.found_for(key, object, number, asker) {
            return Ok(source);
        }
        if let Some(asked) = self.asked_for(key) {
            // The response may begin with this very block. Any other result concerns only its own caller.
            asked.await;
        }
        let memory = self.place(self.memory_for(object, number)).await?;
        if let Some(source) = self.found_for(key, object, number, asker) {
            return Ok(source);
        }
        let (fill, _claim) = self.begin_fill(key, object, number, memory, None);
        self.say(&fill, asker, number);
        Ok(Source::Filling(fill))
    }

    /// Returns the existing source of a block, and records the requester's retention request.
    pub(super) fn found_for(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        asker: &mut Asker<'_>,
    ) -> Option<Source> {
        let source = self.found(key, object, number)?;
        match &source {
            Source::Filling(fill) => self.say(fill, asker, number),
            _ => drop(self.wanted(asker, number)),
        }
        Some(source)
    }

    /// Returns the semaphore that limits the memory of a block.
    fn memory_for(&self, object: &ObjectVersion, number: u64) -> &Arc<Semaphore> {
        let bytes = block::range(number, object.size);
        let is_small = bytes.end - bytes.start <= FETCH_SMALL_BYTES_MAX;
        if is_small { &self.inner.asking } else { &self.inner.blocks }
    }

    /// True if enough memory is left for client requests when a block of `bytes` bytes is held for a reader
    /// that has not arrived.
    pub(super) fn has_spare_memory(&self, bytes: u64) -> bool {
        if bytes <= FETCH_SMALL_BYTES_MAX {
            self.inner.asking.available_permits() >= FETCH_CONTACTS_MAX / 2
        } else {
            self.inner.blocks.available_permits() >= FETCH_BLOCKS_SPARE
        }
    }

    /// True if a block that was fetched for a reader is complete in memory.
    pub(super) fn is_in_memory(&self, object: &ObjectVersion, number: u64) -> bool {
        self.inner.fills.lock().get(&(object.body(), number)).is_some_and(|fill| fill.is_whole())
    }

    /// True if the block is being fetched.
    pub(super) fn is_under_way(&self, object: &ObjectVersion, number: u64) -> bool {
        self.inner.fills.lock().contains_key(&(object.body(), number))
    }

    /// Returns the existing source of a block.
    fn found(&self, key: &ObjectKey, object: &ObjectVersion, number: u64) -> Option<Source> {
        let under_way = self.inner.fills.lock().get(&(object.body(), number)).cloned();
        if let Some(fill) = under_way {
            return Some(Source::Filling(fill));
        }
        // The copy is looked up after the fetch: a block whose fetch has ended is already kept.
        let copy = self.inner.copies.find(self.id, key)?;
        let same = copy.object.body_id == object.body_id;
        same.then(|| self.inner.copies.block(&copy.object, number)).flatten().map(Source::Kept)
    }

    /// Like [`BoundBucket::source`] for a block that is not needed yet: starts a fetch only if there is
    /// memory for it now and no lookup is in flight whose response may be the block.
    pub(super) fn source_ahead(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        asker: &mut Asker<'_>,
    ) -> Option<Source> {
        if let Some(source) = self.found_for(key, object, number, asker) {
            return Some(source);
        }
        if self.asked_for(key).is_some() {
            return None;
        }
        let memory = self.memory_for(object, number).clone().try_acquire_owned().ok()?;
        let (fill, _claim) = self.begin_fill(key, object, number, memory, None);
        self.say(&fill, asker, number);
        Some(Source::Filling(fill))
    }

    /// Starts the fetch of a block, or joins the one in flight. The returned claim must be dropped after the
    /// retention request is recorded.
    fn begin_fill(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        memory: OwnedSemaphorePermit,
        begun: Option<Begin>,
    ) -> (Arc<Fill>, Claim) {
        let place = (object.body(), number);
        let range = block::range(number, object.size);
        let held_from = held_from(object, &range);
        let fill = Arc::new(Fill::new(range, held_from, memory));
        let claim = fill.claim();
        {
            let mut fills = self.inner.fills.lock();
            if let Some(other) = fills.get(&place) {
                return (other.clone(), other.claim());
            }
            fills.insert(place, fill.clone());
        }
        if object.size > COPY_BLOCK_BYTES {
            self.inner.compared.remove(&object.body());
        }
        // The tail is assigned here, because blocks begin in the order in which they are requested.
        let begun = begun.or_else(|| self.inner.rests.assign(object.body(), number).map(Begin::behind));
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
        fill: &Fill,
        begun: Option<Begin>,
    ) {
        let is_whole = self.fetch(key, object, fill, begun).await;
        let mut is_kept = false;
        if is_whole {
            let wanted = fill.decided().await;
            is_kept = self.keep(key, object, number, fill, wanted).await;
            if !is_kept && fill.waits() && self.has_spare_memory(fill.range.end - fill.range.start) {
                let later = fill.wait_out(wanted, &self.inner.shared_bytes).await;
                is_kept = later > wanted && self.keep(key, object, number, fill, later).await;
            }
        }
        self.inner.fills.lock().remove(&(object.body(), number));
        fill.close();
        if let Some(keeper) = &self.inner.keeper {
            let id = block_id(self.id, key, number);
            match fill.wanted() {
                Wanted::No if !is_kept => {}
                // A block of another version may be cached by now, which is the same block to the engine.
                _ if is_kept || self.is_here(key, number) => keeper.was_kept(id),
                _ => keeper.was_not_kept(id),
            }
        }
    }

    /// True if a block of the known version of an object is kept.
    fn is_here(&self, key: &ObjectKey, number: u64) -> bool {
        let copy = self.inner.copies.find(self.id, key);
        copy.is_some_and(|copy| self.inner.copies.block(&copy.object, number).is_some())
    }

    /// Fetches a block. Returns true if it is complete.
    async fn fetch(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        fill: &Fill,
        begun: Option<Begin>,
    ) -> bool {
        let fetched = self.fetch_right_bytes(key, object, fill, begun).await;
        if let Err(error) = &fetched {
            tracing::debug!(origin = self.origin.name(), %error, "a block was not fetched");
        }
        // The object may differ from the metadata that its origin stated. A 304 would confirm its ETag only,
        // so the copy is forgotten and the next read requests everything.
        let is_doubtful = |error: &OriginError| {
            matches!(
                error,
                OriginError::Changed
                    | OriginError::NoSuchKey
                    | OriginError::OutOfRange(_)
                    | OriginError::Nonsense(_)
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
        fill: &Fill,
        wanted: Wanted,
    ) -> bool {
        if !self.is_to_be_kept(key, object, number, wanted) {
            return false;
        }
        let kept = self.inner.copies.keep(self.id, key, object, number, fill.pieces(), self.why).await;
        let is_kept = kept.is_some();
        if let Some(extents) = kept {
            fill.kept(extents);
        }
        is_kept
    }

    fn is_to_be_kept(&self, key: &ObjectKey, object: &ObjectVersion, number: u64, wanted: Wanted) -> bool {
        match (&self.inner.keeper, wanted) {
            (None, _) | (Some(_), Wanted::Yes) => true,
            (Some(_), Wanted::No) => false,
            (Some(keeper), Wanted::Adopted) => keeper.adopt(self.id, key, object.size, number),
        }
    }

    /// Fetches a block. A block that is the whole of an object with a known MD5 is compared with that MD5. If
    /// it differs and no reader has seen any of it, it is fetched once more.
    async fn fetch_right_bytes(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        fill: &Fill,
        mut begun: Option<Begin>,
    ) -> Result<(), OriginError> {
        let is_compared = is_compared_by_block(object);
        for may_restart in [true, false] {
            let mut fetching = Fetching {
                bucket: self,
                key,
                object,
                fill,
                check: md5_of(object).filter(|_| is_compared).map(Md5Check::new),
            };
            fetching.run(begun.take()).await?;
            let Some(Err(sum)) = fetching.check.map(Md5Check::end) else { break };
            match self.wrong_bytes(key, object, sum).await {
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
    pub(super) async fn get(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        range: Range<u64>,
    ) -> Result<Got, OriginError> {
        let part = Part::Range { first: range.start, end: range.end };
        let query = GetQuery { if_match: strong_validator(object), ..GetQuery::of(part) };
        let got = self.origin.get(&self.there(key), &query).await?;
        // A weak ETag cannot be a condition of the request, and may stay the same when the bytes change.
        let is_weak = query.if_match.is_none();
        let is_other = is_weak && is_other_second(got.object.modified_ms, object.modified_ms);
        if is_other || !is_same(&got.object, object) || got.range.start != range.start {
            return Err(OriginError::Changed);
        }
        Ok(got)
    }
}

/// Fetch of a block in progress, with the checksum of its bytes.
struct Fetching<'a> {
    bucket: &'a BoundBucket,
    key: &'a ObjectKey,
    object: &'a ObjectVersion,
    fill: &'a Fill,
    check: Option<Md5Check>,
}

impl Fetching<'_> {
    /// Fetches until the block is complete.
    async fn run(&mut self, begun: Option<Begin>) -> Result<(), OriginError> {
        let mut tries = Tries::default();
        let next = block::of(self.fill.range.start) + 1;
        let mut holding =
            begun.as_ref().and_then(|begun| begun.rest.clone()).map(|rest| Holding::new(rest, next));
        let mut running = match begun {
            Some(begun) => begun.running(next - 1).await,
            None => None,
        };
        // A response that has ended is not continued.
        holding = holding.filter(|_| running.is_some());
        loop {
            let at = self.fill.at();
            let poured = match running.take() {
                Some(running) => self.pour(running).await,
                None => self.fetch_from(at).await,
            };
            if self.fill.at() == self.fill.range.end {
                if let (Some(holding), Ok(running)) = (&mut holding, poured) {
                    holding.keep(running);
                }
                return Ok(());
            }
            // The response to a range is not the one that other blocks wait for.
            holding = None;
            let error = poured.err();
            let ended = OriginError::Unreachable("it ended early".into());
            if !tries.may_go_on(error.as_ref().unwrap_or(&ended), at, self.fill.at()) {
                let (at, end) = (self.fill.at(), self.fill.range.end);
                let short = || OriginError::Nonsense(format!("no byte {at} of a block that ends at {end}"));
                return Err(error.unwrap_or_else(short));
            }
        }
    }

    /// Fetches the missing bytes of the block, of this version only.
    async fn fetch_from(&mut self, at: u64) -> Result<Running, OriginError> {
        let got = self.bucket.get(self.key, self.object, at..self.fill.range.end).await?;
        if md5_of(&got.object).is_none() {
            self.check = None;
        }
        self.pour(Running::new(got)).await
    }

    /// Reads until the block is complete. Returns the response with its remaining bytes.
    async fn pour(&mut self, mut running: Running) -> Result<Running, OriginError> {
        while self.fill.at() < self.fill.range.end {
            let mut piece = match running.left_over.is_empty() {
                false => std::mem::take(&mut running.left_over),
                true => match running.got.body.next().await {
                    Some(piece) => piece?,
                    None => break,
                },
            };
            let left = usize::try_from(self.fill.range.end - self.fill.at()).unwrap_or(usize::MAX);
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
struct Begin {
    /// Response that begins with the block; `None` if the response is still at an earlier block.
    got: Option<Got>,
    /// Rest of the response.
    rest: Option<Arc<Rest>>,
}

impl Begin {
    /// Starts with a response that reaches the block after earlier ones.
    fn behind(rest: Arc<Rest>) -> Self {
        Self { got: None, rest: Some(rest) }
    }

    /// Returns the response as soon as it has reached the block.
    async fn running(self, number: u64) -> Option<Running> {
        match (self.got, self.rest) {
            (Some(got), _) => Some(Running::new(got)),
            (None, Some(rest)) => rest.take(number).await,
            (None, None) => None,
        }
    }
}
