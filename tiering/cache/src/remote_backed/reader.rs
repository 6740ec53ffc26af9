//! Sequential reader of a remote-backed object: reads copies if they exist, and otherwise blocks as they are
//! fetched, a few of them ahead.

use super::block_fetch::FetchedContent;
use super::fetch::{BlockRequester, BlockSource};
use super::pass_through::PassThroughRead;
use super::response_tail::ResponseTail;
use super::{CachedBucket, OpenedObject, block};
use crate::policy_driver::PolicyRead;
use bytes::Bytes;
use futures_util::StreamExt as _;
use mlgw_common::ObjectKey;
use mlgw_common::limits::{COPY_BLOCK_BYTES, FETCH_AHEAD_BLOCKS, FETCH_BLOCKS_MAX, INLINE_READ_BYTES_MAX};
use mlgw_formats::schema::{Extent, ObjectVersion};
use mlgw_remote::origin::{Md5Check, OriginError, OriginObject, md5_of};
use mlgw_segments::fair::ServiceClass;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of unreadable copies that are fetched again within one response.
const UNREADABLE_MAX: u32 = 8;

/// Returns the requester of the blocks of a read.
fn requester_of(reading: &mut Option<PolicyRead>) -> BlockRequester<'_> {
    reading.as_mut().map_or(BlockRequester::Server, BlockRequester::Reader)
}

/// Reader of a range of one version of an object.
pub struct CachedObjectReader {
    bucket: CachedBucket,
    key: ObjectKey,
    object: ObjectVersion,
    at: u64,
    end: u64,
    /// Last bytes of the object, received with its metadata; read once and not kept.
    tail: Option<OriginObject>,
    /// Block that is read, and the blocks after it.
    sources: VecDeque<(u64, BlockSource)>,
    unreadable: u32,
    turn: ServiceClass,
    /// Policy context of a client read; `None` for reads of the server itself.
    policy_read: Option<PolicyRead>,
    /// MD5 check of all bytes; `None` if the blocks are compared separately or were compared before.
    check: Option<Md5Check>,
    /// Rest of the opening response after its first block; the response continues while this is held.
    _rest: Option<Arc<ResponseTail>>,
}

impl CachedObjectReader {
    pub(super) fn new(
        bucket: CachedBucket,
        key: ObjectKey,
        opened: &OpenedObject,
        range: Range<u64>,
        mut reading: Option<PolicyRead>,
    ) -> Self {
        let is_within = range.start <= range.end && range.end <= opened.object.size;
        assert!(is_within, "a range to read lies within its object");
        if let Some(claim) = opened.reader_claim.lock().take().filter(|_| !range.is_empty()) {
            // The request is stated at once: the memory of the block waits for it, and this reader may have
            // to wait for memory.
            claim.want(
                bucket.retention_request(&mut requester_of(&mut reading), block::number_at(range.start)),
            );
        }
        let tail = opened.tail.as_ref().and_then(|tail| tail.lock().take());
        let tail = tail.filter(|got| got.range == range);
        let (object, sources) = (opened.object.clone(), VecDeque::new());
        let is_compared = range == (0..object.size)
            && object.size > COPY_BLOCK_BYTES
            && bucket.inner.verified.get(&object.body()).is_none();
        let check = md5_of(&object).filter(|_| is_compared).map(Md5Check::new);
        let (at, end, turn, rest) =
            (range.start, range.end, ServiceClass::default(), opened.response_tail.clone());
        Self {
            bucket,
            key,
            object,
            at,
            end,
            tail,
            sources,
            unreadable: 0,
            turn,
            policy_read: reading,
            check,
            _rest: rest,
        }
    }

    /// Schedules subsequent reads of copies with `turn`, unless a rule assigns another rank.
    pub fn set_turn(&mut self, turn: ServiceClass) {
        let ruled = self.policy_read.as_ref().and_then(PolicyRead::rank);
        self.turn = turn.with_rule_rank(ruled);
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
            let piece =
                piece.unwrap_or_else(|| Err(OriginError::Unreachable("the response ended early".into())))?;
            self.at += piece.len() as u64;
            return Ok(Some(piece));
        }
        loop {
            self.prepare_sources().await?;
            let Some((number, source)) = self.sources.front_mut() else { return Ok(None) };
            let number = *number;
            let piece = match source {
                BlockSource::PassThrough(passing) => {
                    passing.next(&self.bucket, &self.key, &self.object).await?
                }
                BlockSource::Kept(extents) => {
                    let extents = std::mem::take(extents);
                    self.read_kept(number, extents).await
                }
                BlockSource::Fetching(fill) => match fill.next(self.at).await? {
                    FetchedContent::Bytes(piece) => Some(piece),
                    FetchedContent::Kept(extents) => {
                        *source = BlockSource::Kept(extents);
                        None
                    }
                },
            };
            if let Some(piece) = piece {
                let piece = self.consume(number, piece);
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
            self.bucket.handle_md5_mismatch(&self.key, &self.object, sum).await?;
        }
        self.bucket.inner.verified.insert(self.object.body(), ());
        Ok(())
    }

    /// Provides the sources of the current block and of those that are read ahead.
    async fn prepare_sources(&mut self) -> Result<(), OriginError> {
        let blocks = block::touched_by(&(self.at..self.end));
        if self.sources.is_empty() {
            let source = self.first_source(blocks.start).await?;
            self.sources.push_back((blocks.start, source));
        }
        let next = self.sources.back().map_or(blocks.start, |(number, _)| number + 1);
        for number in next..blocks.end.min(blocks.start + self.ahead_blocks()) {
            if self.pass_through_range(number).is_some() {
                break;
            }
            let mut requester = requester_of(&mut self.policy_read);
            let source = match self.bucket.inner.copies.block_extents(&self.object, number) {
                Some(extents) => {
                    self.bucket.retention_request(&mut requester, number);
                    BlockSource::Kept(extents)
                }
                None => match self.bucket.source_ahead(&self.key, &self.object, number, &mut requester) {
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
        let ruled = self.policy_read.as_ref().and_then(|reading| reading.ruling().stream_ahead);
        ruled.map_or(FETCH_AHEAD_BLOCKS, |ahead| u64::from(ahead) + 1).min(FETCH_BLOCKS_MAX as u64 / 2)
    }

    /// Returns the source of the current block.
    async fn first_source(&mut self, number: u64) -> Result<BlockSource, OriginError> {
        let passing = self.pass_through_range(number);
        let (bucket, key, object) = (&self.bucket, &self.key, &self.object);
        let mut requester = requester_of(&mut self.policy_read);
        if let Some(extents) = bucket.inner.copies.block_extents(object, number) {
            bucket.retention_request(&mut requester, number);
            return Ok(BlockSource::Kept(extents));
        }
        match passing {
            Some(range) => {
                let found = bucket.existing_source_for(key, object, number, &mut requester);
                Ok(found.unwrap_or_else(|| BlockSource::PassThrough(Box::new(PassThroughRead::new(range)))))
            }
            None => bucket.source_of(key, object, number, &mut requester).await,
        }
    }

    /// Returns the range to read of a block that is read partially and not to be kept, so that its remaining
    /// bytes are not needed. If the reader shares its blocks and reads half of this one or more, the whole
    /// block is fetched instead.
    fn pass_through_range(&mut self, number: u64) -> Option<Range<u64>> {
        let whole = block::range(number, self.object.size);
        let range = self.at.max(whole.start)..self.end.min(whole.end);
        let reading = self.policy_read.as_mut().filter(|_| range != whole)?;
        if reading.ruling().sharing.is_some() && (range.end - range.start) * 2 >= whole.end - whole.start {
            return None;
        }
        (!reading.should_keep(number)).then_some(range)
    }

    /// Returns the next bytes of a kept block. An unreadable copy is dropped and fetched again.
    async fn read_kept(&mut self, number: u64, extents: Vec<Extent>) -> Option<Bytes> {
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
                self.sources[0].1 = BlockSource::Kept(extents);
                Some(piece)
            }
            unreadable => {
                self.unreadable += 1;
                if let Err(error) = unreadable
                    && self.unreadable <= UNREADABLE_MAX
                {
                    tracing::debug!(%error, "cannot read a copy; fetching it again");
                }
                let copies = &self.bucket.inner.copies;
                copies.invalidate_block(self.bucket.id, &self.key, &self.object, number, &extents);
                self.object.extents.clear();
                self.sources.clear();
                self.policy_read.iter_mut().for_each(PolicyRead::forget_last);
                None
            }
        }
    }

    /// Cuts a piece to the requested bytes; finishes the block at its last byte.
    fn consume(&mut self, number: u64, mut piece: Bytes) -> Bytes {
        piece.truncate(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        self.at += piece.len() as u64;
        if self.at >= block::range(number, self.object.size).end
            && let Some((_, BlockSource::Fetching(fill))) = self.sources.pop_front()
        {
            fill.mark_consumed();
        }
        piece
    }
}
