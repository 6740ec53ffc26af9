//! Fetching blocks: each once, however many want it, and kept when it is whole and the engine says so.

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

/// The end of an object, which is read by one reader and not kept.
pub(super) type Tail = Option<Arc<Mutex<Option<Got>>>>;

/// What of an answer is not in its head.
#[derive(Clone, Default)]
pub(super) struct Begun {
    pub(super) tail: Tail,
    /// The block that is being fetched with it, of which its readers are to say whether it is kept.
    pub(super) claim: Option<Arc<Claim>>,
    /// The rest of the answer behind that block.
    pub(super) rest: Option<Arc<Rest>>,
}

/// Who has a block fetched.
pub(super) enum Asker<'a> {
    /// A request: the engine says what it gets.
    Reader(&'a mut Reading),
    /// The server itself: kept as far as that is worth it.
    Server,
    /// The server, for somebody who is about to ask: it waits for him, who says whether it is kept.
    Ahead,
}

/// Where a block comes from.
pub(super) enum Source {
    Kept(Vec<Extent>),
    Filling(Arc<Fill>),
    /// For one reader alone, who needs some bytes of it, and not kept.
    Passing(Box<Passing>),
}

impl BoundBucket {
    /// Takes an answer that has begun as the block that it is; or gives it back, when it is no whole block.
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
            // Where nobody decides all is kept.
            let claim = self.inner.keeper.is_some().then(|| Arc::new(claim));
            return Ok(Begun { tail: None, claim, rest });
        }
        Ok(Begun::default())
    }

    /// Who wants a block that somebody asks for.
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

    /// Says of a block that is being fetched what who asks for it wants of it.
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

    /// Where a block is to be had: where it is kept, or as it is fetched. That is begun if nobody has, as
    /// soon as there is memory for it.
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
            // Its answer may begin with this very block. What else came of it concerns who asked.
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

    /// Where a block is to be had already, for somebody who then has asked for it.
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

    /// Of which memory a block takes a place.
    fn memory_for(&self, object: &ObjectVersion, number: u64) -> &Arc<Semaphore> {
        let bytes = block::range(number, object.size);
        let is_small = bytes.end - bytes.start <= FETCH_SMALL_BYTES_MAX;
        if is_small { &self.inner.asking } else { &self.inner.blocks }
    }

    /// Whether enough memory is left to those who have asked, when a block of so many bytes waits for
    /// somebody who has not.
    pub(super) fn has_spare_memory(&self, bytes: u64) -> bool {
        if bytes <= FETCH_SMALL_BYTES_MAX {
            self.inner.asking.available_permits() >= FETCH_CONTACTS_MAX / 2
        } else {
            self.inner.blocks.available_permits() >= FETCH_BLOCKS_SPARE
        }
    }

    /// Whether all of a block is in memory, that was fetched for somebody.
    pub(super) fn is_in_memory(&self, object: &ObjectVersion, number: u64) -> bool {
        self.inner.fills.lock().get(&(object.body(), number)).is_some_and(|fill| fill.is_whole())
    }

    /// Whether a block is being fetched.
    pub(super) fn is_under_way(&self, object: &ObjectVersion, number: u64) -> bool {
        self.inner.fills.lock().contains_key(&(object.body(), number))
    }

    /// Where a block is to be had already.
    fn found(&self, key: &ObjectKey, object: &ObjectVersion, number: u64) -> Option<Source> {
        let under_way = self.inner.fills.lock().get(&(object.body(), number)).cloned();
        if let Some(fill) = under_way {
            return Some(Source::Filling(fill));
        }
        // Looked up after that, as of now: what is not fetched any more is kept by then.
        let copy = self.inner.copies.find(self.id, key)?;
        let same = copy.object.body_id == object.body_id;
        same.then(|| self.inner.copies.block(&copy.object, number)).flatten().map(Source::Kept)
    }

    /// As [`BoundBucket::source`], for a block that is not needed yet: only if there is memory for it now,
    /// and nobody asks for what may be it.
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

    /// Has a block be fetched, if nobody does so. What comes with it is to be dropped when it is said who
    /// wants it.
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
        // Assigned here, where blocks begin in the order in which they are asked for.
        let begun = begun.or_else(|| self.inner.rests.assign(object.body(), number).map(Begin::behind));
        let (bucket, key, object, filled) = (self.clone(), key.clone(), object.clone(), fill.clone());
        tokio::spawn(async move { bucket.fetch_and_keep(&key, &object, number, &filled, begun).await });
        (fill, claim)
    }

    /// Fetches a block, and keeps it if it is wanted.
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
                // A block of another version may be here by now, and it is the same one to the engine.
                _ if is_kept || self.is_here(key, number) => keeper.was_kept(id),
                _ => keeper.was_not_kept(id),
            }
        }
    }

    /// Whether a block of the version that is known of an object is kept.
    fn is_here(&self, key: &ObjectKey, number: u64) -> bool {
        let copy = self.inner.copies.find(self.id, key);
        copy.is_some_and(|copy| self.inner.copies.block(&copy.object, number).is_some())
    }

    /// Fetches a block. Says whether all of it came.
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
        // The object may not be what its origin stated. A 304 would confirm its ETag only, so nothing of it
        // is kept and the next read asks for everything.
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

    /// Keeps a block of which all came, if it is wanted. Says whether it is kept.
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

    /// Fetches a block. A block that is the whole of an object with a known MD5 is compared with it. If it
    /// differs and no reader has seen any of it, it is fetched once more.
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

    /// Asks for bytes of an object, of this version and of no other.
    pub(super) async fn get(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        range: Range<u64>,
    ) -> Result<Got, OriginError> {
        let part = Part::Range { first: range.start, end: range.end };
        let query = GetQuery { if_match: strong_validator(object), ..GetQuery::of(part) };
        let got = self.origin.get(&self.there(key), &query).await?;
        // A weak ETag was no condition, and may stay when the bytes change.
        let is_weak = query.if_match.is_none();
        let is_other = is_weak && is_other_second(got.object.modified_ms, object.modified_ms);
        if is_other || !is_same(&got.object, object) || got.range.start != range.start {
            return Err(OriginError::Changed);
        }
        Ok(got)
    }
}

/// A block that is being fetched, and what its bytes are compared with.
struct Fetching<'a> {
    bucket: &'a BoundBucket,
    key: &'a ObjectKey,
    object: &'a ObjectVersion,
    fill: &'a Fill,
    check: Option<Md5Check>,
}

impl Fetching<'_> {
    /// Fetches until all of the block is there.
    async fn run(&mut self, begun: Option<Begin>) -> Result<(), OriginError> {
        let mut tries = Tries::default();
        let next = block::of(self.fill.range.start) + 1;
        let mut holding =
            begun.as_ref().and_then(|begun| begun.rest.clone()).map(|rest| Holding::new(rest, next));
        let mut running = match begun {
            Some(begun) => begun.running(next - 1).await,
            None => None,
        };
        // An answer that has ended is not continued.
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
            // An answer to a range is not the one that others wait for.
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

    /// Fetches what is missing of the block, of this version and of no other.
    async fn fetch_from(&mut self, at: u64) -> Result<Running, OriginError> {
        let got = self.bucket.get(self.key, self.object, at..self.fill.range.end).await?;
        if md5_of(&got.object).is_none() {
            self.check = None;
        }
        self.pour(Running::new(got)).await
    }

    /// Reads until the block is whole; returns the rest of the answer.
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

/// The source that a block begins with.
struct Begin {
    /// The answer that begins with it, or nothing where that is still at a block before.
    got: Option<Got>,
    /// The answer's rest.
    rest: Option<Arc<Rest>>,
}

impl Begin {
    /// A block that an answer comes to after those before it.
    fn behind(rest: Arc<Rest>) -> Self {
        Self { got: None, rest: Some(rest) }
    }

    /// The answer, as soon as it is at the block.
    async fn running(self, number: u64) -> Option<Running> {
        match (self.got, self.rest) {
            (Some(got), _) => Some(Running::new(got)),
            (None, Some(rest)) => rest.take(number).await,
            (None, None) => None,
        }
    }
}
