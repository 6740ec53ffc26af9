//! Warming and clearing: the operations of jobs on a remote-backed bucket.
//!
//! An object is fetched through the same blocks as for a reader, so a concurrent reader waits for the same
//! bytes, and present blocks are not fetched again. Part of the memory for blocks in flight is left to
//! readers: a job passes its own semaphore with at most [`mlgw_common::limits::JOB_BLOCKS_MAX`] permits.

use super::block_fetch::{BlockFetch, BlockRetention};
use super::fetch::{BlockRequester, BlockSource};
use super::{CacheState, CachedBucket, block};
use crate::copies::{DroppedCopies, is_same_version};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use mlgw_common::limits::{COPY_BLOCK_BYTES, FETCH_SMALL_BYTES_MAX, JOB_BLOCKS_MAX};
use mlgw_common::{ObjectKey, Timestamp};
use mlgw_formats::decision_words::DecisionKind;
use mlgw_formats::schema::{CopyRecord, ObjectVersion};
use mlgw_remote::origin::{ObjectPart, OriginError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Copies per page of a scan.
const PAGE: usize = 1000;

/// Result of warming an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmedObject {
    /// Bytes fetched for the object.
    pub fetched_bytes: u64,
    /// Bytes fetched and not kept for lack of space.
    pub refused_bytes: u64,
}

/// Starting state of the warming of a block.
struct WarmBlockStart {
    /// True if the block was requested together with the object.
    is_requested: bool,
    /// Permit that is already held.
    permit: Option<OwnedSemaphorePermit>,
}

/// Result of one page of a scan over copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyScanPage {
    /// Objects that have copies here (or had, in a scan that drops them).
    pub objects: u64,
    /// Bytes of these copies.
    pub bytes: u64,
    /// Key after which the next page begins; `None` at the end.
    pub next: Option<ObjectKey>,
}

impl CachedBucket {
    /// Fetches all of an object that a listing described as `object` at the time `listed`. The callback
    /// receives the number of bytes of each block fetched.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn warm(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        listed: Timestamp,
        permits: &Arc<Semaphore>,
        on_fetched: &(dyn Fn(u64) + Sync),
    ) -> Result<WarmedObject, OriginError> {
        if !self.is_current() {
            return Err(OriginError::Unreachable("the bucket is now bound to another origin".into()));
        }
        let known = self.inner.copies.find(self.id, key);
        let (mut place, mut is_begun) = (None, false);
        let object = match known {
            // The listing has just confirmed the known metadata.
            Some(copy) if is_same_version(&copy.object, object) => {
                let validated_ms = copy.validated_ms.max(listed.as_millis());
                self.inner.copies.record_metadata(self.id, key, CopyRecord { validated_ms, ..copy }).object
            }
            known => {
                if object.size > FETCH_SMALL_BYTES_MAX {
                    place = Some(self.acquire(permits).await?);
                }
                // Blocks of a large object are fetched in parallel.
                let is_small = object.size <= COPY_BLOCK_BYTES;
                let part = if is_small { ObjectPart::Whole } else { ObjectPart::From(0) };
                let opened = self.look_up(key, Some(part), known).await?;
                if opened.state == CacheState::Stale {
                    return Err(OriginError::Unreachable("the cached copy may be stale".into()));
                }
                is_begun = opened.state == CacheState::Miss;
                opened.reader_claim.lock().iter().for_each(|claim| claim.want(BlockRetention::IfWorthwhile));
                opened.object
            }
        };
        if object.size == 0 {
            return Ok(WarmedObject::default());
        }
        let mut blocks = Vec::new();
        for number in block::touched_by(&(0..object.size)) {
            let begun = std::mem::take(&mut is_begun);
            blocks.push(self.warm_block(
                key,
                &object,
                number,
                WarmBlockStart { is_requested: begun, permit: place.take() },
                permits,
            ));
        }
        let warmed = stream::iter(blocks).buffer_unordered(JOB_BLOCKS_MAX);
        warmed
            .try_fold(WarmedObject::default(), |sum, one| async move {
                on_fetched(one.fetched_bytes);
                Ok(WarmedObject {
                    fetched_bytes: sum.fetched_bytes + one.fetched_bytes,
                    refused_bytes: sum.refused_bytes + one.refused_bytes,
                })
            })
            .await
    }

    async fn warm_block(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        at: WarmBlockStart,
        places: &Arc<Semaphore>,
    ) -> Result<WarmedObject, OriginError> {
        let under_way = self.inner.fetches.lock().get(&(object.body(), number)).cloned();
        // The copy is looked up after the fetch: a block is in one of the two, or in neither.
        let bytes = block::range(number, object.size);
        if under_way.is_none() && self.has_block(key, object, number) {
            let fetched_bytes = if at.is_requested { bytes.end - bytes.start } else { 0 };
            return Ok(WarmedObject { fetched_bytes, refused_bytes: 0 });
        }
        let (fill, _place): (Arc<BlockFetch>, _) = match under_way {
            Some(fill) => {
                fill.want(BlockRetention::IfWorthwhile);
                (fill, at.permit)
            }
            None => {
                let place = match at.permit {
                    Some(place) => place,
                    None => self.acquire(places).await?,
                };
                match self.source_of(key, object, number, &mut BlockRequester::Server).await? {
                    BlockSource::Fetching(fill) => (fill, Some(place)),
                    BlockSource::Kept(_) | BlockSource::PassThrough(_) => return Ok(WarmedObject::default()),
                }
            }
        };
        let is_kept = fill.wait_closed().await?;
        let fetched_bytes = bytes.end - bytes.start;
        Ok(WarmedObject { fetched_bytes, refused_bytes: if is_kept { 0 } else { fetched_bytes } })
    }

    /// True if a block of this version is kept now.
    fn has_block(&self, key: &ObjectKey, object: &ObjectVersion, number: u64) -> bool {
        let copy = self.inner.copies.find(self.id, key).filter(|copy| copy.object.body_id == object.body_id);
        copy.is_some_and(|copy| self.inner.copies.block_extents(&copy.object, number).is_some())
    }

    /// Counts the copies of keys that begin with `prefix`, one page after `after`. Blocking.
    #[must_use]
    pub fn count_copies(&self, prefix: &str, after: Option<&ObjectKey>) -> CopyScanPage {
        let copies = &self.inner.copies;
        let page = copies.list(self.id, prefix, after, PAGE);
        let bytes = page.iter().map(|(_, copy)| copies.kept_bytes(&copy.object)).filter(|bytes| *bytes > 0);
        let (objects, bytes) = bytes.fold((0, 0), |(objects, sum), bytes| (objects + 1, sum + bytes));
        CopyScanPage { objects, bytes, next: next_after(&page) }
    }

    /// Drops copies of keys that begin with `prefix`, one page after `after`: all of them, or those that were
    /// neither read nor fetched for the time `unread`. Read times have a resolution of one minute. Blocking.
    #[must_use]
    pub fn drop_copies(
        &self,
        prefix: &str,
        after: Option<&ObjectKey>,
        unread: Option<Duration>,
    ) -> CopyScanPage {
        let copies = &self.inner.copies;
        let page = copies.list(self.id, prefix, after, PAGE);
        let goes =
            |copy: &CopyRecord| unread.is_none_or(|unread| self.age(Timestamp(copy.read_ms)) >= unread);
        let mut walked = CopyScanPage { next: next_after(&page), ..CopyScanPage::default() };
        for (key, copy) in page.iter().filter(|(_, copy)| goes(copy)) {
            walked.bytes += copies.kept_bytes(&copy.object);
            walked.objects += 1;
            copies.forget(self.id, key);
        }
        if walked.objects > 0 {
            let kind = if unread.is_some() { DecisionKind::Evict } else { DecisionKind::Clear };
            let gone = DroppedCopies { kind, count: walked.objects, bytes: walked.bytes };
            copies.record_dropped(self.id, prefix, gone, self.reason);
        }
        walked
    }

    /// Releases the disk space of dropped copies, as far as their segments hold nothing else. Returns the
    /// number of bytes.
    pub async fn release(&self) -> u64 {
        self.inner.copies.reclaim_dead().await
    }
}

/// Returns the key after which the next page begins.
fn next_after(page: &[(ObjectKey, CopyRecord)]) -> Option<ObjectKey> {
    page.last().filter(|_| page.len() == PAGE).map(|(key, _)| key.clone())
}
