//! Segments with appends in flight: bytes are in them that their request has not named yet.
//!
//! A segment is held by its writer as long as it is open, and by every request that appended to it
//! until the request is over. A held segment is neither compacted nor released, so a request whose
//! command was refused because the segment was fenced can read its bytes back and append them again.
//! Holds live in memory: after a restart there are no requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use mlgw_common::ids::SegmentId;
use parking_lot::Mutex;

/// Keeps a segment from being compacted and released, until it is dropped.
#[derive(Clone, Debug)]
pub struct Hold(Arc<Held>);

#[derive(Debug)]
struct Held {
    segment: SegmentId,
    /// Synced length, while it is written.
    bytes: AtomicU64,
    given_up: AtomicBool,
}

impl Hold {
    /// The segment.
    #[must_use]
    pub fn segment(&self) -> SegmentId {
        self.0.segment
    }

    /// The segment's synced length is `bytes` now.
    pub(super) fn written(&self, bytes: u64) {
        self.0.bytes.store(bytes, Relaxed);
    }

    /// How many others hold the segment.
    pub(super) fn others(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// Whether the writer should begin another segment.
    pub(super) fn is_given_up(&self) -> bool {
        self.0.given_up.load(Relaxed)
    }
}

/// The holds of all segments.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<HashMap<SegmentId, Weak<Held>>>);

impl Holds {
    /// The first hold of a segment that was just made.
    pub(super) fn begin(&self, segment: SegmentId) -> Hold {
        let held = Arc::new(Held { segment, bytes: AtomicU64::new(0), given_up: AtomicBool::new(false) });
        let mut holds = self.0.lock();
        holds.retain(|_, held| held.strong_count() > 0);
        holds.insert(segment, Arc::downgrade(&held));
        Hold(held)
    }

    /// Whether anybody holds the segment.
    pub(super) fn is_held(&self, segment: SegmentId) -> bool {
        self.0.lock().get(&segment).is_some_and(|held| held.strong_count() > 0)
    }

    /// The segment's synced length, while it is held.
    pub(super) fn bytes(&self, segment: SegmentId) -> Option<u64> {
        let held = self.0.lock().get(&segment)?.upgrade()?;
        Some(held.bytes.load(Relaxed))
    }

    /// Has the segment's writer begin another one.
    pub(super) fn give_up(&self, segment: SegmentId) {
        if let Some(held) = self.0.lock().get(&segment).and_then(Weak::upgrade) {
            held.given_up.store(true, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Holds;
    use mlgw_common::ids::SegmentId;

    #[test]
    fn a_segment_is_held_until_the_last_hold_goes() {
        let holds = Holds::default();
        let (one, two) = (SegmentId(1), SegmentId(2));
        let writer = holds.begin(one);
        let request = writer.clone();
        writer.written(500);
        assert!(holds.is_held(one) && !holds.is_held(two));
        assert_eq!((holds.bytes(one), holds.bytes(two)), (Some(500), None));
        holds.give_up(one);
        assert!(request.is_given_up());
        drop(writer);
        assert!(holds.is_held(one));
        drop(request);
        assert!(!holds.is_held(one));
        assert_eq!(holds.bytes(one), None);
        let _two = holds.begin(two);
        assert_eq!(holds.0.lock().len(), 1, "what nobody holds is forgotten");
    }
}
