//! Fetching blocks: each once, however many want it, and kept when it is whole.

use super::fill::Fill;
use super::{BoundBucket, block};
use crate::copies::is_same;
use crate::origin::{GetQuery, Got, OriginError, Part};
use futures_util::StreamExt as _;
use mlgw_common::ObjectKey;
use mlgw_common::limits::FETCH_SMALL_BYTES_MAX;
use mlgw_metadata::schema::{Copy, Extent, ObjectVersion};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// The end of an object, which is read by one reader and not kept.
pub(super) type Tail = Option<Arc<Mutex<Option<Got>>>>;

/// Where a block comes from.
pub(super) enum Source {
    Kept(Vec<Extent>),
    Filling(Arc<Fill>),
}

/// How often a block is asked for that brings nothing new.
const TRIES: u32 = 3;

impl BoundBucket {
    /// Takes an answer that has begun as the block that it is; or gives it back, when it is no whole block.
    pub(super) async fn take(
        &self,
        key: &ObjectKey,
        copy: &Copy,
        got: Got,
        asking: OwnedSemaphorePermit,
    ) -> Result<Tail, OriginError> {
        let number = block::of(got.range.start);
        let whole = block::range(number, copy.object.size);
        if got.range.start != whole.start || got.range.end < whole.end {
            return Ok(Some(Arc::new(Mutex::new(Some(got)))));
        }
        if !whole.is_empty() && self.inner.copies.block(&copy.object, number).is_none() {
            let is_small = whole.end - whole.start <= FETCH_SMALL_BYTES_MAX;
            let memory = if is_small { asking } else { self.place(&self.inner.blocks).await? };
            self.begin_fill(key, &copy.object, number, memory, Some(got));
        }
        Ok(None)
    }

    /// Where a block is to be had: where it is kept, or as it is fetched. That is begun if nobody has, as soon as there is memory for it.
    pub(super) async fn source(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
    ) -> Result<Source, OriginError> {
        if let Some(source) = self.found(key, object, number) {
            return Ok(source);
        }
        if let Some(asked) = self.asked_for(key) {
            // Its answer may begin with this very block. What else came of it concerns who asked.
            asked.await;
        }
        let memory = self.place(&self.inner.blocks).await?;
        let found = self.found(key, object, number);
        Ok(found.unwrap_or_else(|| Source::Filling(self.begin_fill(key, object, number, memory, None))))
    }

    /// Where a block is to be had already.
    pub(super) fn found(&self, key: &ObjectKey, object: &ObjectVersion, number: u64) -> Option<Source> {
        let under_way = self.inner.fills.lock().get(&(object.body(), number)).cloned();
        if let Some(fill) = under_way {
            return Some(Source::Filling(fill));
        }
        // Looked up after that, as of now: what is not fetched any more is kept by then.
        let copy = self.inner.copies.find(self.id, key)?;
        let same = copy.object.body_id == object.body_id;
        same.then(|| self.inner.copies.block(&copy.object, number)).flatten().map(Source::Kept)
    }

    /// As [`BoundBucket::source`], for a block that is not needed yet: only if there is memory for it now, and nobody asks for what may be it.
    pub(super) fn source_ahead(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
    ) -> Option<Source> {
        if let Some(source) = self.found(key, object, number) {
            return Some(source);
        }
        if self.asked_for(key).is_some() {
            return None;
        }
        let memory = self.inner.blocks.clone().try_acquire_owned().ok()?;
        Some(Source::Filling(self.begin_fill(key, object, number, memory, None)))
    }

    fn begin_fill(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        memory: OwnedSemaphorePermit,
        begun: Option<Got>,
    ) -> Arc<Fill> {
        let place = (object.body(), number);
        let fill = Arc::new(Fill::new(block::range(number, object.size), memory));
        {
            let mut fills = self.inner.fills.lock();
            if let Some(other) = fills.get(&place) {
                return other.clone();
            }
            fills.insert(place, fill.clone());
        }
        let (bucket, key, object, filled) = (self.clone(), key.clone(), object.clone(), fill.clone());
        tokio::spawn(async move {
            bucket.fetch(&key, &object, number, &filled, begun).await;
            bucket.inner.fills.lock().remove(&place);
            filled.close();
        });
        fill
    }

    /// Fetches a block and keeps it.
    async fn fetch(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        fill: &Fill,
        begun: Option<Got>,
    ) {
        let fetched = self.fetch_bytes(key, object, fill, begun).await;
        if let Err(error) = &fetched {
            tracing::debug!(origin = self.origin.name(), %error, "a block was not fetched");
        }
        if fetched == Err(OriginError::Changed) || fetched == Err(OriginError::NoSuchKey) {
            self.inner.copies.forget(self.id, key);
        }
        let is_whole = fetched.is_ok();
        fill.finish(fetched);
        if is_whole
            && let Some(extents) =
                self.inner.copies.keep(self.id, key, object, number, fill.pieces(), self.why).await
        {
            fill.kept(extents);
        }
    }

    async fn fetch_bytes(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        fill: &Fill,
        mut begun: Option<Got>,
    ) -> Result<(), OriginError> {
        let mut tries = 0;
        loop {
            let at = fill.at();
            let poured = match begun.take() {
                Some(got) => pour(got, fill).await,
                None => self.fetch_from(key, object, at, fill).await,
            };
            if fill.at() == fill.range.end {
                return Ok(());
            }
            let error = poured.err().unwrap_or_else(|| OriginError::Unreachable("it ended early".into()));
            tries = if fill.at() > at { 1 } else { tries + 1 };
            if !error.is_transient() || tries >= TRIES {
                return Err(error);
            }
        }
    }

    /// Fetches what is missing of a block, of this version and of no other.
    async fn fetch_from(
        &self,
        key: &ObjectKey,
        object: &ObjectVersion,
        at: u64,
        fill: &Fill,
    ) -> Result<(), OriginError> {
        let part = Part::Range { first: at, end: fill.range.end };
        let query = GetQuery { if_match: Some(object.etag.clone()), ..GetQuery::of(part) };
        let got = self.origin.get(&self.there(key), &query).await?;
        if !is_same(&got.object, object) || got.range.start != at {
            return Err(OriginError::Changed);
        }
        pour(got, fill).await
    }
}

/// Takes what comes until the block is whole.
async fn pour(mut got: Got, fill: &Fill) -> Result<(), OriginError> {
    while fill.at() < fill.range.end {
        match got.body.next().await {
            Some(piece) => fill.push(piece?),
            None => break,
        }
    }
    Ok(())
}
