//! Sequential reader of a remote-backed object: reads copies if they exist, and otherwise blocks as they are
//! fetched, a few of them ahead.

use super::fetch::{Asker, Source};
use super::fill::Next;
use super::passing::Passing;
use super::rest::Rest;
use super::{BoundBucket, Opened, block};
use crate::policy::Reading;
use bytes::Bytes;
use futures_util::StreamExt as _;
use mlgw_common::ObjectKey;
use mlgw_common::limits::{COPY_BLOCK_BYTES, FETCH_AHEAD_BLOCKS, FETCH_BLOCKS_MAX, INLINE_READ_BYTES_MAX};
use mlgw_formats::schema::{Extent, ObjectVersion};
use mlgw_remote::origin::{Got, Md5Check, OriginError, md5_of};
use mlgw_segments::fair::Turn;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of unreadable copies that are fetched again within one response.
const LOST_MAX: u32 = 8;

/// Returns the requester of the blocks of a read.
fn asker(reading: &mut Option<Reading>) -> Asker<'_> {
    reading.as_mut().map_or(Asker::Server, Asker::Reader)
}

/// Reader of a range of one version of an object.
pub struct BoundReader {
    bucket: BoundBucket,
    key: ObjectKey,
    object: ObjectVersion,
    at: u64,
    end: u64,
    /// Last bytes of the object, received with its metadata; read once and not kept.
    tail: Option<Got>,
    /// Block that is read, and the blocks behind it.
    sources: VecDeque<(u64, Source)>,
    lost: u32,
    turn: Turn,
    /// Policy context of a client read; `None` for reads of the server itself.
    reading: Option<Reading>,
    /// MD5 check of all bytes; `None` if the blocks are compared separately or were compared before.
    check: Option<Md5Check>,
    /// Rest of the opening response after its first block; the response continues while this is held.
    _rest: Option<Arc<Rest>>,
}

impl BoundReader {
    pub(super) fn new(
        bucket: BoundBucket,
        key: ObjectKey,
        opened: &Opened,
        range: Range<u64>,
        mut reading: Option<Reading>,
    ) -> Self {
        if let Some(claim) = opened.claim.lock().take().filter(|_| !range.is_empty()) {
            // The request is stated at once: the memory of the block waits for it, and this reader may have
            // to wait for memory.
            claim.want(bucket.wanted(&mut asker(&mut reading), block::of(range.start)));
        }
        let tail = opened.tail.as_ref().and_then(|tail| tail.lock().take());
        let tail = tail.filter(|got| got.range == range);
        let (object, sources) = (opened.object.clone(), VecDeque::new());
        let is_compared = range == (0..object.size)
            && object.size > COPY_BLOCK_BYTES
            && bucket.inner.compared.get(&object.body()).is_none();
        let check = md5_of(&object).filter(|_| is_compared).map(Md5Check::new);
        let (at, end, turn, rest) = (range.start, range.end, Turn::default(), opened.rest.clone());
        Self { bucket, key, object, at, end, tail, sources, lost: 0, turn, reading, check, _rest: rest }
    }

    /// Schedules subsequent reads of copies with `turn`, unless a rule assigns another rank.
    pub fn set_turn(&mut self, turn: Turn) {
        let ruled = self.reading.as_ref().and_then(Reading::rank);
        self.turn = turn.ruled(ruled);
    }

    /// Returns the next bytes; `None` at the end.
    ///
    /// # Errors
    /// The errors of the origin; [`OriginError::Changed`] if the object is another version there by now.
    pub async fn next(&mut self) -> Result<Option<Bytes>, OriginError> {
        if self.at == self.end {
            return Ok(None);
        }
        if let Some(tail) = &mut self.tail {
            let piece = tail.body.next().await;
            let piece = piece.unwrap_or_else(|| Err(OriginError::Unreachable("it ended early".into())))?;
            self.at += piece.len() as u64;
            return Ok(Some(piece));
        }
        loop {
            self.look_ahead().await?;
            let Some((number, source)) = self.sources.front_mut() else { return Ok(None) };
            let number = *number;
            let piece = match source {
                Source::Passing(passing) => passing.next(&self.bucket, &self.key, &self.object).await?,
                Source::Kept(extents) => {
                    let extents = std::mem::take(extents);
                    self.kept(number, extents).await
                }
                Source::Filling(fill) => match fill.next(self.at).await? {
                    Next::Bytes(piece) => Some(piece),
                    Next::Kept(extents) => {
                        *source = Source::Kept(extents);
                        None
                    }
                },
            };
            if let Some(piece) = piece {
                let piece = self.taken(number, piece);
                self.compare(&piece).await?;
                return Ok(Some(piece));
            }
        }
    }

    /// Compares bytes before they are returned. The last ones are withheld if the whole does not match.
    async fn compare(&mut self, piece: &Bytes) -> Result<(), OriginError> {
        let Some(mut check) = self.check.take() else { return Ok(()) };
        check.add(piece);
        if self.at < self.end {
            self.check = Some(check);
            return Ok(());
        }
        if let Err(sum) = check.end() {
            self.bucket.wrong_bytes(&self.key, &self.object, sum).await?;
        }
        self.bucket.inner.compared.insert(self.object.body(), ());
        Ok(())
    }

    /// Provides the sources of the current block and of those that are read ahead.
    async fn look_ahead(&mut self) -> Result<(), OriginError> {
        let blocks = block::touched(&(self.at..self.end));
        if self.sources.is_empty() {
            let source = self.first_source(blocks.start).await?;
            self.sources.push_back((blocks.start, source));
        }
        let next = self.sources.back().map_or(blocks.start, |(number, _)| number + 1);
        for number in next..blocks.end.min(blocks.start + self.ahead_blocks()) {
            if self.passing(number).is_some() {
                break;
            }
            let mut asker = asker(&mut self.reading);
            let source = match self.bucket.inner.copies.block(&self.object, number) {
                Some(extents) => {
                    self.bucket.wanted(&mut asker, number);
                    Source::Kept(extents)
                }
                None => match self.bucket.source_ahead(&self.key, &self.object, number, &mut asker) {
                    Some(source) => source,
                    None => break,
                },
            };
            self.sources.push_back((number, source));
        }
        Ok(())
    }

    /// Returns the number of blocks that are prepared, the current one included.
    fn ahead_blocks(&self) -> u64 {
        let ruled = self.reading.as_ref().and_then(|reading| reading.ruling().stream_ahead);
        ruled.map_or(FETCH_AHEAD_BLOCKS, |ahead| u64::from(ahead) + 1).min(FETCH_BLOCKS_MAX as u64 / 2)
    }

    /// Returns the source of the current block.
    async fn first_source(&mut self, number: u64) -> Result<Source, OriginError> {
        let passing = self.passing(number);
        let (bucket, key, object) = (&self.bucket, &self.key, &self.object);
        let mut asker = asker(&mut self.reading);
        if let Some(extents) = bucket.inner.copies.block(object, number) {
            bucket.wanted(&mut asker, number);
            return Ok(Source::Kept(extents));
        }
        match passing {
            Some(range) => {
                let found = bucket.found_for(key, object, number, &mut asker);
                Ok(found.unwrap_or_else(|| Source::Passing(Box::new(Passing::new(range)))))
            }
            None => bucket.source(key, object, number, &mut asker).await,
        }
    }

    /// Returns the range to read of a block that is read partially and not to be kept, so that its remaining
    /// bytes are not needed. If the reader shares its blocks and reads half of this one or more, the whole
    /// block is fetched instead.
    fn passing(&mut self, number: u64) -> Option<Range<u64>> {
        let whole = block::range(number, self.object.size);
        let range = self.at.max(whole.start)..self.end.min(whole.end);
        let reading = self.reading.as_mut().filter(|_| range != whole)?;
        if reading.ruling().sharing.is_some() && (range.end - range.start) * 2 >= whole.end - whole.start {
            return None;
        }
        (!reading.keeps(number)).then_some(range)
    }

    /// Returns the next bytes of a kept block. An unreadable copy is dropped and fetched again.
    async fn kept(&mut self, number: u64, extents: Vec<Extent>) -> Option<Bytes> {
        let mut first = block::range(number, self.object.size).start;
        let mut holding = None;
        for extent in &extents {
            if self.at < first + extent.logical_bytes {
                holding = Some(extent);
                break;
            }
            first += extent.logical_bytes;
        }
        let read = match holding {
            Some(extent) => {
                let into = self.at - first;
                let end = extent.logical_bytes.min(into + INLINE_READ_BYTES_MAX).min(self.end - first);
                self.bucket.inner.copies.read(extent, self.object.body(), first, into..end, self.turn).await
            }
            None => Ok(Bytes::new()),
        };
        match read {
            Ok(piece) if !piece.is_empty() => {
                self.sources[0].1 = Source::Kept(extents);
                Some(piece)
            }
            unreadable => {
                self.lost += 1;
                if let Err(error) = unreadable
                    && self.lost <= LOST_MAX
                {
                    tracing::debug!(%error, "a copy cannot be read and is fetched again");
                }
                let place = (self.bucket.id, &self.key);
                self.bucket.inner.copies.lose_block(place, &self.object, number, &extents);
                self.object.extents.clear();
                self.sources.clear();
                self.reading.iter_mut().for_each(Reading::forget);
                None
            }
        }
    }

    /// Cuts a piece to the requested bytes; finishes the block at its last byte.
    fn taken(&mut self, number: u64, mut piece: Bytes) -> Bytes {
        piece.truncate(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        self.at += piece.len() as u64;
        if self.at >= block::range(number, self.object.size).end
            && let Some((_, Source::Filling(fill))) = self.sources.pop_front()
        {
            fill.take();
        }
        piece
    }
}
