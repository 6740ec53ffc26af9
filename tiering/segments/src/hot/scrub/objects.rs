//! Second half of a scrub pass: compares some objects as a whole with their checksums in the catalogue.
//!
//! A pass selects the objects whose body, by a hash, falls into its share of [`OBJECT_PASSES`], so that each
//! object is compared once in that many passes, and a pass reads that fraction of all bytes. Objects that
//! differed before are compared in every pass. The position is in the state file of the scrub, so that a pass
//! continues after a restart.

use mlgw_common::time::Instant;
use std::io;
use std::ops::Bound;

use mlgw_common::ObjectKey;
use mlgw_common::ids::BucketId;
use mlgw_common::limits::QUARANTINED_MAX;
use mlgw_formats::schema::{Extent, ObjectVersion};
use serde::{Deserialize, Serialize};

use super::quarantine::BadBlock;
use super::{CHECK_INTERVAL, ScrubShared};

/// Number of passes in which every object is compared once: 2 % of the objects per pass on average, and at
/// least 1 % for typical sequences of ids.
pub const OBJECT_PASSES: u64 = 50;
/// Keys visited between two writes of the state file.
const KEYS_PER_STEP: usize = 10_000;

/// The result of comparing an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectComparison {
    /// The object's bytes match its checksums.
    Right,
    /// They do not match; with a description.
    Wrong(String),
    /// The object has no checksum that can be compared, or cannot be read here.
    Nothing,
    /// The scrub is stopping.
    Stopped,
}

/// Compares objects with the checksums in the catalogue.
pub trait ObjectVerifier: Send + Sync {
    /// Returns false while another node compares the objects.
    fn is_due(&self) -> bool {
        true
    }

    /// Compares an object. `may_read` is called after bytes were read: it throttles the reads to their rate
    /// and returns false when the scrub stops. Blocks the calling thread.
    fn compare(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
        may_read: &(dyn Fn(u64) -> bool + Sync),
    ) -> ObjectComparison;
}

/// Position of a pass among the objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ObjectPosition {
    /// Name of the bucket; buckets are visited in order of their names.
    bucket: String,
    /// The last key that was visited; empty before the first.
    key: String,
}

/// True if a body belongs to a pass.
fn is_due(body: u64, pass: u64) -> bool {
    // The finalizer of splitmix64, since ids are sequential, and ids of small objects and of parts may
    // alternate.
    let mut mixed = body;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % OBJECT_PASSES == pass % OBJECT_PASSES
}

impl ScrubShared {
    /// Compares objects after the position of the pass, for a limited time. Returns the new position; `None`
    /// at the end.
    pub(super) fn compare_some(&self, place: &ObjectPosition) -> io::Result<Option<ObjectPosition>> {
        let Some(proofs) = self.options.proofs.as_ref().filter(|proofs| proofs.is_due()) else {
            return Ok(None);
        };
        let (pass, listed) = {
            let state = self.state.lock();
            (state.status.passes, state.status.whole_objects())
        };
        let begun = Instant::now();
        let mut looked_at = 0;
        let buckets = self.catalogue.buckets(None, None, usize::MAX);
        for bucket in buckets.iter().filter(|bucket| bucket.name >= place.bucket) {
            let same = bucket.name == place.bucket && !place.key.is_empty();
            let from = if same { Bound::Excluded(place.key.as_bytes()) } else { Bound::Unbounded };
            let reader = self.catalogue.background_reader();
            let mut objects = reader.scan(bucket.bucket_id(), from).of_own_groups();
            for found in objects.by_ref() {
                let (key, entry) = found.map_err(io::Error::other)?;
                let object = entry.version().map_err(io::Error::other)?;
                let is_listed = listed.contains(&object.body_id);
                if is_due(object.body_id, pass) || is_listed {
                    match proofs.compare(bucket.bucket_id(), &key, &object, &|bytes| self.throttle(bytes)) {
                        ObjectComparison::Stopped => return Ok(Some(place.clone())),
                        ObjectComparison::Wrong(what) if !is_listed => {
                            self.list_object(bucket.bucket_id(), &key, &object, what);
                        }
                        ObjectComparison::Right if is_listed => self.remove_object(object.body_id),
                        _ => {}
                    }
                    self.state.lock().status.compared_objects += 1;
                }
                looked_at += 1;
                if looked_at >= KEYS_PER_STEP || begun.elapsed() >= CHECK_INTERVAL {
                    let key = key.as_str().to_owned();
                    return Ok(Some(ObjectPosition { bucket: bucket.name.clone(), key }));
                }
            }
            let skipped = objects.skipped_ranges();
            if skipped > 0 {
                tracing::info!(bucket = bucket.name, skipped, "ranges of other nodes are not compared here");
            }
        }
        Ok(None)
    }

    /// Throttles reads to their rate. Returns false when the scrub stops.
    fn throttle(&self, bytes: u64) -> bool {
        if self.options.bytes_per_second > 0 {
            let due = self.state.lock().pace.due_at(Instant::now(), bytes, self.options.bytes_per_second);
            self.wait_until(due);
        }
        !self.state.lock().stop
    }

    fn list_object(&self, bucket: BucketId, key: &ObjectKey, object: &ObjectVersion, what: String) {
        let Some((part, extent)) = self.first_extent(bucket, key, object) else { return };
        let bad = BadBlock {
            segment: extent.segment,
            offset: extent.offset,
            record: extent.offset,
            bucket: bucket.0,
            key: key.as_str().to_owned(),
            body: object.body_id,
            part,
            begin: 0,
            first: 0,
            last: object.size.max(1) - 1,
            what,
            whole: true,
        };
        tracing::error!(bad.key, bad.what, "an object does not match its checksum; quarantined");
        self.hot.count_corrupt(1);
        let mut state = self.state.lock();
        if state.status.bad.len() < QUARANTINED_MAX {
            state.status.bad.push(bad);
        }
    }

    fn remove_object(&self, body: u64) {
        self.state.lock().status.bad.retain(|bad| !bad.whole || bad.body != body);
    }

    /// Returns the first extent of an object, and the number of its part; 0 for an object without parts.
    fn first_extent(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
    ) -> Option<(u16, Extent)> {
        if let Some(extent) = object.extents.first() {
            return Some((0, extent.clone()));
        }
        let reader = self.catalogue.background_reader();
        let (_, page) = reader.extent_pages(bucket, key, object.body(), 0).next()?.ok()?;
        if let Some(extent) = page.extents.first() {
            return Some((0, extent.clone()));
        }
        let number = mlgw_common::ids::PartNumber::new(page.parts.first()?.number)?;
        let part = self.catalogue.part(bucket, key, object.body(), number).ok()??;
        Some((number.get(), part.extents.first()?.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::{OBJECT_PASSES, is_due};

    #[test]
    fn each_object_is_due_once_in_all_passes_and_one_percent_in_each() {
        for step in [1, 2, 50, 64, 100] {
            let bodies = || (1..=10_000_u64).map(|number| number * step);
            for pass in 0..OBJECT_PASSES {
                let due = bodies().filter(|body| is_due(*body, pass)).count();
                assert!(due >= 100, "{due} of ids in steps of {step}");
            }
            assert!(
                bodies().all(|body| (7..7 + OBJECT_PASSES).filter(|pass| is_due(body, *pass)).count() == 1)
            );
        }
    }
}
