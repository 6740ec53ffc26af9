//! Read-ahead: fetches the blocks that the policy engine expects a sequence of reads to need next.
//!
//! A fetched block waits in memory for its reader, whose request decides whether it is kept: read-ahead
//! changes no decision. Invariants: at most [`mlgw_common::limits::READ_AHEAD_OBJECTS_MAX`] objects are read
//! ahead at the same time, and enough memory for blocks is left to requests. An unknown object is requested
//! from its origin together with its first block, in one round trip.

use super::CachedBucket;
use super::block;
use super::fetch::{BlockRequester, BlockSource};
use crate::policy_driver::PolicyDriver;
use mlgw_common::ObjectKey;
use mlgw_common::limits::COPY_BLOCK_BYTES;
use mlgw_formats::schema::ObjectVersion;
use mlgw_policies::engine::{ReadAheadOutcome, ReadAheadRange};
use mlgw_remote::origin::{ObjectPart, OriginError};
use std::ops::Range;

impl CachedBucket {
    /// Begins to fetch the blocks expected after a read of `range` of `object`. If the first block of that
    /// range is kept, only known keys are fetched, and no key is guessed.
    pub(super) fn fetch_ahead(
        &self,
        policy_driver: &PolicyDriver,
        all: Vec<ReadAheadRange>,
        object: &ObjectVersion,
        range: &Range<u64>,
    ) {
        let number = block::number_at(range.start);
        let is_cached = range.is_empty() || self.inner.copies.block_extents(object, number).is_some();
        let size = object.size;
        for next in all {
            let place = self.inner.read_ahead_permits.clone().try_acquire_owned().ok();
            let key = ObjectKey::new(&next.key).ok().filter(|_| next.bucket == self.id.0);
            let key = key.filter(|key| !is_cached || self.inner.copies.find(self.id, key).is_some());
            let (Some(place), Some(key)) = (place, key) else {
                policy_driver.decline(&next);
                continue;
            };
            // The expectation is recorded before the request, because the reader may arrive at any time.
            policy_driver.expect(&next, self.id, &key);
            let (bucket, driver) = (self.clone(), policy_driver.clone());
            tokio::spawn(async move {
                bucket.fetch_next(&driver, &key, &next, size).await;
                drop(place);
            });
        }
    }

    async fn fetch_next(
        &self,
        policy_driver: &PolicyDriver,
        key: &ObjectKey,
        next: &ReadAheadRange,
        size: u64,
    ) {
        let numbers = u64::from(next.first)..u64::from(next.first) + u64::from(next.blocks);
        let object = match self.object_ahead(key, numbers.start, size).await {
            Ok(object) => object,
            Err(error) => {
                let absent = matches!(error, OriginError::NoSuchKey);
                let outcome = if absent { ReadAheadOutcome::Absent } else { ReadAheadOutcome::Declined };
                return numbers
                    .for_each(|number| policy_driver.end_expectation(self.id, key, number, outcome));
            }
        };
        let mut under_way = Vec::new();
        for number in numbers {
            let bytes = block::range(number, object.size);
            let is_there = bytes.is_empty() || self.inner.copies.block_extents(&object, number).is_some();
            let is_begun = !is_there && self.is_being_fetched(&object, number);
            if is_there || !is_begun && !self.has_idle_memory(bytes.end - bytes.start) {
                policy_driver.end_expectation(self.id, key, number, ReadAheadOutcome::Declined);
                continue;
            }
            match self.source_of(key, &object, number, &mut BlockRequester::ReadAhead).await {
                Ok(BlockSource::Fetching(fill)) => under_way.push((number, fill)),
                Ok(_) => policy_driver.on_arrival(self.id, key, number),
                Err(_) => policy_driver.end_expectation(self.id, key, number, ReadAheadOutcome::Declined),
            }
        }
        for (number, fill) in under_way {
            if fill.wait_complete().await {
                policy_driver.on_arrival(self.id, key, number);
            } else {
                policy_driver.end_expectation(self.id, key, number, ReadAheadOutcome::Declined);
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
                let block = ObjectPart::Range { first, end: first.saturating_add(COPY_BLOCK_BYTES) };
                let is_small = number == 0 && size <= COPY_BLOCK_BYTES;
                let part = if is_small { ObjectPart::Whole } else { block };
                let opened = self.look_up(key, Some(part), known).await;
                if opened.as_ref().is_err_and(|error| matches!(error, OriginError::NoSuchKey)) {
                    // Only this server asked: a client that requests the key soon after the object was
                    // created at the origin must find it.
                    self.inner.absent.remove(&(self.id, key.clone()));
                }
                let opened = opened?;
                opened.reader_claim.lock().iter().for_each(|claim| claim.wait_for_reader());
                Ok(opened.object)
            }
        }
    }
}
