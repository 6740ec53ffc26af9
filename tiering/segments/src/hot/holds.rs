//! Holds on segments with appends in flight, whose bytes the catalogue does not name yet.
//!
//! A segment is held by its writer while it is open, and by every request that appended to it until the
//! request ends. A held segment is neither compacted nor released, so a request whose command was refused
//! because the segment was fenced can read its bytes back and append them again. Holds are in memory: after a
//! restart there are no requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use mlgw_common::ids::SegmentId;
use parking_lot::Mutex;

/// Protects a segment from compaction and release until it is dropped.
#[derive(Clone, Debug)]
pub struct SegmentHold(Arc<SegmentHoldState>);

#[derive(Debug)]
struct SegmentHoldState {
    segment: SegmentId,
    /// Synced length while the segment is open.
    bytes: AtomicU64,
    given_up: AtomicBool,
}

impl SegmentHold {
    /// The segment.
    #[must_use]
    pub fn segment(&self) -> SegmentId {
        self.0.segment
    }

    /// Records the segment's synced length.
    pub(super) fn set_synced_bytes(&self, bytes: u64) {
        let before = self.0.bytes.swap(bytes, Relaxed);
        assert!(before <= bytes, "the synced length of a segment only grows");
    }

    /// Number of other holds on the segment.
    pub(super) fn others(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// True if the writer should begin another segment.
    pub(super) fn is_given_up(&self) -> bool {
        self.0.given_up.load(Relaxed)
    }
}

/// Holds on all segments.
#[derive(Debug, Default)]
pub(super) struct SegmentHolds(Mutex<HashMap<SegmentId, Weak<SegmentHoldState>>>);

impl SegmentHolds {
    /// Creates the first hold on a new segment.
    pub(super) fn begin(&self, segment: SegmentId) -> SegmentHold {
        let held = Arc::new(SegmentHoldState {
            segment,
            bytes: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
        });
        let mut holds = self.0.lock();
        holds.retain(|_, held| held.strong_count() > 0);
        let other = holds.insert(segment, Arc::downgrade(&held));
        assert!(other.is_none(), "a new segment has no hold yet");
        SegmentHold(held)
    }

    /// True if there is a hold on the segment.
    pub(super) fn is_held(&self, segment: SegmentId) -> bool {
        self.0.lock().get(&segment).is_some_and(|held| held.strong_count() > 0)
    }

    /// Returns the segment's synced length while it is held.
    pub(super) fn synced_bytes(&self, segment: SegmentId) -> Option<u64> {
        let held = self.0.lock().get(&segment)?.upgrade()?;
        Some(held.bytes.load(Relaxed))
    }

    /// Requests that the segment's writer begins another segment.
    pub(super) fn give_up(&self, segment: SegmentId) {
        if let Some(held) = self.0.lock().get(&segment).and_then(Weak::upgrade) {
            held.given_up.store(true, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SegmentHolds;
    use mlgw_common::ids::SegmentId;

    #[test]
    fn a_segment_is_held_until_its_last_hold_is_dropped() {
        let holds = SegmentHolds::default();
        let (one, two) = (SegmentId(1), SegmentId(2));
        let writer = holds.begin(one);
        let request = writer.clone();
        writer.set_synced_bytes(500);
        assert!(holds.is_held(one) && !holds.is_held(two));
        assert_eq!((holds.synced_bytes(one), holds.synced_bytes(two)), (Some(500), None));
        holds.give_up(one);
        assert!(request.is_given_up());
        drop(writer);
        assert!(holds.is_held(one));
        drop(request);
        assert!(!holds.is_held(one));
        assert_eq!(holds.synced_bytes(one), None);
        let _two = holds.begin(two);
        assert_eq!(holds.0.lock().len(), 1, "entries without holds are dropped");
    }
}
