//! Exemption of pinned copies from segment eviction. Pure.
//!
//! Segments are evicted oldest first, and pinned chunks are appended again; so every copy comes up once in a
//! lap of the queue. Chunks that are appended during a lap come up in a later one. In one lap each pin
//! retains at most its limit of bytes, and all pins together at most their share of the space; chunks beyond
//! that are evicted like others, and every lap makes room.

use mlgw_common::ids::{BucketId, SegmentId};
use mlgw_common::limits::PINNED_PERCENT_MAX;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// Copies exempt from eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedCopies {
    /// Bucket.
    pub bucket: BucketId,
    /// Key prefixes; empty means all keys.
    pub prefixes: Vec<String>,
    /// Only these keys, if they are listed individually.
    pub keys: Option<Arc<HashSet<String>>>,
    /// Maximum bytes.
    pub bytes_max: u64,
}

impl PinnedCopies {
    /// True if the pin includes a key.
    #[must_use]
    pub fn includes(&self, bucket: BucketId, key: &str) -> bool {
        let is_within = |slice: &String| key.starts_with(slice.as_str());
        self.bucket == bucket
            && (self.prefixes.is_empty() || self.prefixes.iter().any(is_within))
            && self.keys.as_ref().is_none_or(|keys| keys.contains(key))
    }
}

/// Pins, and the bytes that they retained in the current lap.
#[derive(Debug, Default)]
pub(super) struct PinLap {
    pins: Vec<PinnedCopies>,
    /// Bytes that each pin retained.
    retained: Vec<u64>,
    /// Bytes that all pins together may still retain.
    left: u64,
    /// Segments that have yet to come up in this lap: those that were sealed when it began.
    lap: BTreeSet<SegmentId>,
}

impl PinLap {
    pub(super) fn set(&mut self, pins: Vec<PinnedCopies>) {
        *self = Self { retained: vec![0; pins.len()], pins, ..Self::default() };
    }

    /// Records that a segment comes up, when the segments `sealed` exist and copies have `room_bytes` in
    /// total. A segment that does not belong to the current lap begins the next one.
    pub(super) fn visit(&mut self, segment: SegmentId, sealed: &[SegmentId], room_bytes: u64) {
        if !self.lap.remove(&segment) {
            self.lap = sealed.iter().copied().filter(|other| *other != segment).collect();
            self.retained.fill(0);
            self.left = room_bytes / 100 * PINNED_PERCENT_MAX;
        }
    }

    /// Returns true if a chunk of `bytes` bytes is retained, and counts it.
    pub(super) fn try_retain(&mut self, bucket: BucketId, key: &str, bytes: u64) -> bool {
        assert!(self.retained.len() == self.pins.len(), "each pin has its count of retained bytes");
        if bytes > self.left {
            return false;
        }
        let held = self.pins.iter().zip(&mut self.retained);
        let fits = |(pin, kept): &(&PinnedCopies, &mut u64)| {
            pin.includes(bucket, key) && **kept + bytes <= pin.bytes_max
        };
        let Some((_, kept)) = held.into_iter().find(fits) else { return false };
        *kept += bytes;
        self.left -= bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{PinLap, PinnedCopies};
    use mlgw_common::ids::{BucketId, SegmentId};

    fn pins(of: &[(u64, &[&str], u64)]) -> PinLap {
        let pin = |(bucket, slices, bytes_max): &(u64, &[&str], u64)| PinnedCopies {
            bucket: BucketId(*bucket),
            prefixes: slices.iter().map(|&slice| slice.to_owned()).collect(),
            keys: None,
            bytes_max: *bytes_max,
        };
        let mut pins = PinLap::default();
        pins.set(of.iter().map(pin).collect());
        pins.visit(SegmentId(1), &sealed(1..10), 1000);
        pins
    }

    fn sealed(ids: std::ops::Range<u64>) -> Vec<SegmentId> {
        ids.map(SegmentId).collect()
    }

    #[test]
    fn a_pin_retains_its_prefixes_only() {
        let mut pins = pins(&[(1, &["a/", "b/"], 500), (2, &[], 500)]);
        let mut keeps = |bucket, key| pins.try_retain(BucketId(bucket), key, 1);
        assert!(keeps(1, "a/x") && keeps(1, "b/x") && keeps(2, "anything"));
        assert!(!keeps(1, "c/x") && !keeps(3, "a/x"));
    }

    #[test]
    fn a_pin_of_single_keys_includes_only_these() {
        let keys = ["a", "b"].map(str::to_owned).into();
        let pin = PinnedCopies {
            bucket: BucketId(1),
            prefixes: Vec::new(),
            keys: Some(std::sync::Arc::new(keys)),
            bytes_max: 9,
        };
        let holds = |bucket, key| pin.includes(BucketId(bucket), key);
        assert!(holds(1, "a") && holds(1, "b") && !holds(1, "ab") && !holds(2, "a"));
    }

    #[test]
    fn a_pin_retains_its_limit_once_per_lap() {
        let mut pins = pins(&[(1, &[], 100)]);
        let mut come_to = |segment, end| {
            pins.visit(SegmentId(segment), &sealed(segment..end), 1000);
            (0..20).filter(|_| pins.try_retain(BucketId(1), "k", 10)).count()
        };
        assert_eq!((come_to(2, 20), come_to(9, 20)), (10, 0));
        // The tenth segment was open when the lap began: retained chunks may be in it.
        assert_eq!((come_to(10, 20), come_to(19, 20), come_to(20, 40)), (10, 0, 10));
    }

    #[test]
    fn all_pins_together_retain_half_of_the_space_at_most() {
        let mut pins = pins(&[(1, &[], 400), (2, &[], 400)]);
        let kept = |pins: &mut PinLap, bucket| {
            (0..50).filter(|_| pins.try_retain(BucketId(bucket), "k", 10)).count()
        };
        assert_eq!((kept(&mut pins, 1), kept(&mut pins, 2)), (40, 10));
    }
}
