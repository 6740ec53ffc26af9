//! Read-ahead: fetches the blocks that the policy engine expects a sequence of reads to need next.
//!
//! A fetched block waits in memory for its reader, whose request decides whether it is kept: read-ahead
//! changes no decision. Invariants: at most [`mlgw_common::limits::AHEAD_OBJECTS_MAX`] objects are read ahead
//! at the same time, and enough memory for blocks is left to requests. An unknown object is requested from
//! its origin together with its first block, in one round trip.

use super::BoundBucket;
use super::block;
use super::fetch::{Asker, Source};
use crate::policy::Keeper;
use mlgw_common::ObjectKey;
use mlgw_common::limits::COPY_BLOCK_BYTES;
use mlgw_formats::schema::ObjectVersion;
use mlgw_policies::engine::{Next, Outcome};
use mlgw_remote::origin::{OriginError, Part};

impl BoundBucket {
    /// Begins to fetch the blocks expected after a read of an object of `size` bytes. If the reader's own
    /// object is present, only known keys are fetched, and no key is guessed.
    pub(super) fn fetch_ahead(&self, keeper: &Keeper, all: Vec<Next>, is_here: bool, size: u64) {
        for next in all {
            let place = self.inner.ahead.clone().try_acquire_owned().ok();
            let key = ObjectKey::new(&next.key).ok().filter(|_| next.bucket == self.id.0);
            let key = key.filter(|key| !is_here || self.inner.copies.find(self.id, key).is_some());
            let (Some(place), Some(key)) = (place, key) else {
                keeper.declines(&next);
                continue;
            };
            // The expectation is recorded before the request, because the reader may arrive at any time.
            keeper.expects(&next, self.id, &key);
            let (bucket, keeper) = (self.clone(), keeper.clone());
            tokio::spawn(async move {
                bucket.fetch_next(&keeper, &key, &next, size).await;
                drop(place);
            });
        }
    }

    async fn fetch_next(&self, keeper: &Keeper, key: &ObjectKey, next: &Next, size: u64) {
        let numbers = u64::from(next.first)..u64::from(next.first) + u64::from(next.blocks);
        let object = match self.object_ahead(key, numbers.start, size).await {
            Ok(object) => object,
            Err(error) => {
                let absent = matches!(error, OriginError::NoSuchKey);
                let outcome = if absent { Outcome::Absent } else { Outcome::Declined };
                return numbers.for_each(|number| keeper.became(self.id, key, number, outcome));
            }
        };
        let mut under_way = Vec::new();
        for number in numbers {
            let bytes = block::range(number, object.size);
            let is_there = bytes.is_empty() || self.inner.copies.block(&object, number).is_some();
            let is_begun = !is_there && self.is_under_way(&object, number);
            if is_there || !is_begun && !self.has_spare_memory(bytes.end - bytes.start) {
                keeper.became(self.id, key, number, Outcome::Declined);
                continue;
            }
            match self.source(key, &object, number, &mut Asker::Ahead).await {
                Ok(Source::Filling(fill)) => under_way.push((number, fill)),
                Ok(_) => keeper.came(self.id, key, number),
                Err(_) => keeper.became(self.id, key, number, Outcome::Declined),
            }
        }
        for (number, fill) in under_way {
            if fill.whole().await {
                keeper.came(self.id, key, number);
            } else {
                keeper.became(self.id, key, number, Outcome::Declined);
            }
        }
    }

    /// Returns the metadata of an object whose block is to be fetched. An unknown object is assumed to have
    /// `size` bytes.
    async fn object_ahead(
        &self,
        key: &ObjectKey,
        number: u64,
        size: u64,
    ) -> Result<ObjectVersion, OriginError> {
        match self.known(key)? {
            Some(copy) if self.is_fresh(&copy) => Ok(copy.object),
            known => {
                let first = number * COPY_BLOCK_BYTES;
                let block = Part::Range { first, end: first + COPY_BLOCK_BYTES };
                let is_small = number == 0 && size <= COPY_BLOCK_BYTES;
                let part = if is_small { Part::Whole } else { block };
                let opened = self.contact(key, Some(part), known).await;
                if opened.as_ref().is_err_and(|error| matches!(error, OriginError::NoSuchKey)) {
                    // Only this server asked: a client that requests the key soon after the object was
                    // created at the origin must find it.
                    self.inner.absent.remove(&(self.id, key.clone()));
                }
                let opened = opened?;
                opened.claim.lock().iter().for_each(|claim| claim.wait_for_reader());
                Ok(opened.object)
            }
        }
    }
}
