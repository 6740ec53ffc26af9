//! Which copies stay however old they are: pure decisions.
//!
//! Room is made segment after segment, the oldest first, and what stays is appended again; so once in a lap
//! of the queue every copy comes up. What is appended during a lap comes up in a later one. In one lap each
//! pin keeps as many bytes as it may, and all of them together no more than their share of the room there is:
//! what is beyond that goes like anything else, and every lap makes room.

use mlgw_common::ids::{BucketId, SegmentId};
use mlgw_common::limits::PINNED_PERCENT_MAX;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// Copies that are not to be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedCopies {
    /// Of this bucket.
    pub bucket: BucketId,
    /// Whose keys begin with one of these; all of them when there is none.
    pub slices: Vec<String>,
    /// Only these keys, when they are said one by one.
    pub keys: Option<Arc<HashSet<String>>>,
    /// As long as they are no more than so many bytes.
    pub bytes_max: u64,
}

impl PinnedCopies {
    /// Whether it is about a key.
    #[must_use]
    pub fn holds(&self, bucket: BucketId, key: &str) -> bool {
        let is_within = |slice: &String| key.starts_with(slice.as_str());
        self.bucket == bucket
            && (self.slices.is_empty() || self.slices.iter().any(is_within))
            && self.keys.as_ref().is_none_or(|keys| keys.contains(key))
    }
}

/// The pins, and what they kept in the lap that is under way.
#[derive(Debug, Default)]
pub(super) struct Pins {
    pins: Vec<PinnedCopies>,
    /// Bytes that each kept.
    kept: Vec<u64>,
    /// Bytes that all together may still keep.
    left: u64,
    /// Segments that are still to come up in this lap: those that were sealed when it began.
    lap: BTreeSet<SegmentId>,
}

impl Pins {
    pub(super) fn set(&mut self, pins: Vec<PinnedCopies>) {
        *self = Self { kept: vec![0; pins.len()], pins, ..Self::default() };
    }

    /// A segment comes up, while these are `sealed` and copies have `room_bytes` in all. One that is not of
    /// this lap begins the next.
    pub(super) fn come_to(&mut self, segment: SegmentId, sealed: &[SegmentId], room_bytes: u64) {
        if !self.lap.remove(&segment) {
            self.lap = sealed.iter().copied().filter(|other| *other != segment).collect();
            self.kept.fill(0);
            self.left = room_bytes / 100 * PINNED_PERCENT_MAX;
        }
    }

    /// Whether a chunk of `bytes` is kept; it counts then.
    pub(super) fn keeps(&mut self, bucket: BucketId, key: &str, bytes: u64) -> bool {
        if bytes > self.left {
            return false;
        }
        let held = self.pins.iter().zip(&mut self.kept);
        let fits = |(pin, kept): &(&PinnedCopies, &mut u64)| {
            pin.holds(bucket, key) && **kept + bytes <= pin.bytes_max
        };
        let Some((_, kept)) = held.into_iter().find(fits) else { return false };
        *kept += bytes;
        self.left -= bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{PinnedCopies, Pins};
    use mlgw_common::ids::{BucketId, SegmentId};

    fn pins(of: &[(u64, &[&str], u64)]) -> Pins {
        let pin = |(bucket, slices, bytes_max): &(u64, &[&str], u64)| PinnedCopies {
            bucket: BucketId(*bucket),
            slices: slices.iter().map(|&slice| slice.to_owned()).collect(),
            keys: None,
            bytes_max: *bytes_max,
        };
        let mut pins = Pins::default();
        pins.set(of.iter().map(pin).collect());
        pins.come_to(SegmentId(1), &sealed(1..10), 1000);
        pins
    }

    fn sealed(ids: std::ops::Range<u64>) -> Vec<SegmentId> {
        ids.map(SegmentId).collect()
    }

    #[test]
    fn a_pin_keeps_its_slices_and_no_others() {
        let mut pins = pins(&[(1, &["a/", "b/"], 500), (2, &[], 500)]);
        let mut keeps = |bucket, key| pins.keeps(BucketId(bucket), key, 1);
        assert!(keeps(1, "a/x") && keeps(1, "b/x") && keeps(2, "anything"));
        assert!(!keeps(1, "c/x") && !keeps(3, "a/x"));
    }

    #[test]
    fn a_pin_of_single_keys_keeps_these_alone() {
        let keys = ["a", "b"].map(str::to_owned).into();
        let pin = PinnedCopies {
            bucket: BucketId(1),
            slices: Vec::new(),
            keys: Some(std::sync::Arc::new(keys)),
            bytes_max: 9,
        };
        let holds = |bucket, key| pin.holds(BucketId(bucket), key);
        assert!(holds(1, "a") && holds(1, "b") && !holds(1, "ab") && !holds(2, "a"));
    }

    #[test]
    fn in_one_lap_it_keeps_no_more_than_it_may_and_in_the_next_one_as_much_again() {
        let mut pins = pins(&[(1, &[], 100)]);
        let mut come_to = |segment, end| {
            pins.come_to(SegmentId(segment), &sealed(segment..end), 1000);
            (0..20).filter(|_| pins.keeps(BucketId(1), "k", 10)).count()
        };
        assert_eq!((come_to(2, 20), come_to(9, 20)), (10, 0));
        // The tenth was open when the lap began: what was kept may be in it.
        assert_eq!((come_to(10, 20), come_to(19, 20), come_to(20, 40)), (10, 0, 10));
    }

    #[test]
    fn all_together_keep_half_of_the_room_at_most() {
        let mut pins = pins(&[(1, &[], 400), (2, &[], 400)]);
        let kept =
            |pins: &mut Pins, bucket| (0..50).filter(|_| pins.keeps(BucketId(bucket), "k", 10)).count();
        assert_eq!((kept(&mut pins, 1), kept(&mut pins, 2)), (40, 10));
    }
}
