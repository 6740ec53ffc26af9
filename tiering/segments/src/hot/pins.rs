//! Pins of segments by readers, and segments that are closed to pins because they are being released.
//!
//! A reader of several pieces pins the segments of its body first. A segment is released only if it is not
//! pinned, and from that decision on it cannot be pinned any more: the reader must look its body up again,
//! which has moved by then. A read of one piece needs no pin: an open file stays readable after it is
//! unlinked, and a reader that finds no file looks the body up again. Pins are in memory: after a restart
//! there are no readers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mlgw_common::ids::SegmentId;
use parking_lot::Mutex;

#[derive(Debug, Default)]
pub(super) struct SegmentPins(Mutex<SegmentPinsState>);

#[derive(Debug, Default)]
struct SegmentPinsState {
    readers: HashMap<SegmentId, u32>,
    closed: HashSet<SegmentId>,
    /// Number of pins on all segments.
    global_pins: u32,
}

/// Pins every segment that is not being released yet, until it is dropped.
#[derive(Debug)]
pub struct AllSegmentsPin(Arc<SegmentPins>);

impl Drop for AllSegmentsPin {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        assert!(state.global_pins > 0, "a pin on all segments is counted");
        state.global_pins -= 1;
    }
}

/// Prevents the release of segments until it is dropped.
#[derive(Debug)]
pub struct SegmentPin {
    pins: Arc<SegmentPins>,
    segments: Vec<SegmentId>,
}

impl SegmentPins {
    /// Pins all of `segments`, or none if one of them is being released or `exists` is false for it.
    pub(super) fn pin(
        self: &Arc<Self>,
        segments: Vec<SegmentId>,
        exists: impl Fn(SegmentId) -> bool,
    ) -> Option<SegmentPin> {
        let mut state = self.0.lock();
        if segments.iter().any(|segment| state.closed.contains(segment) || !exists(*segment)) {
            return None;
        }
        for segment in &segments {
            *state.readers.entry(*segment).or_default() += 1;
        }
        drop(state);
        Some(SegmentPin { pins: self.clone(), segments })
    }

    /// Pins every segment.
    pub(super) fn pin_all(self: &Arc<Self>) -> AllSegmentsPin {
        self.0.lock().global_pins += 1;
        AllSegmentsPin(self.clone())
    }

    /// True if there is a pin on all segments.
    pub(super) fn has_global_pin(&self) -> bool {
        self.0.lock().global_pins > 0
    }

    /// True if a reader has pinned the segment, or all segments are pinned.
    pub(super) fn is_pinned(&self, segment: SegmentId) -> bool {
        let state = self.0.lock();
        state.global_pins > 0 || state.readers.contains_key(&segment)
    }

    /// Closes a segment to pins if it is not pinned. Returns true if it did.
    pub(super) fn close_if_unpinned(&self, segment: SegmentId) -> bool {
        let mut state = self.0.lock();
        let free = state.global_pins == 0 && !state.readers.contains_key(&segment);
        if free {
            state.closed.insert(segment);
        }
        free
    }

    /// Ends the closure: the segment was released, or stays after all.
    pub(super) fn end_closure(&self, segment: SegmentId) {
        self.0.lock().closed.remove(&segment);
    }
}

impl Drop for SegmentPin {
    fn drop(&mut self) {
        let mut state = self.pins.0.lock();
        for segment in &self.segments {
            let readers = state.readers.entry(*segment).or_default();
            assert!(*readers > 0, "a pinned segment has readers");
            *readers -= 1;
            if *readers == 0 {
                state.readers.remove(segment);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SegmentPins;
    use mlgw_common::ids::SegmentId;
    use std::sync::Arc;

    #[test]
    fn a_pinned_segment_is_not_closed_and_a_closed_one_not_pinned() {
        let pins = Arc::new(SegmentPins::default());
        let (one, two) = (SegmentId(1), SegmentId(2));
        let first = pins.pin(vec![one, two, one], |_| true).unwrap();
        let second = pins.pin(vec![one], |_| true).unwrap();
        drop(first);
        assert!(pins.is_pinned(one) && !pins.close_if_unpinned(one));
        drop(second);
        assert!(pins.close_if_unpinned(one));
        assert!(pins.pin(vec![two, one], |_| true).is_none());
        assert!(pins.close_if_unpinned(two), "a pin of other segments does not count");
        pins.end_closure(two);
        assert!(pins.pin(vec![two], |_| true).is_some());
        assert!(pins.pin(vec![two], |_| false).is_none());
    }
}
