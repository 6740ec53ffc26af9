//! Pins of segments by readers, and segments that are closed to pins because they are being released.
//!
//! A reader of several pieces pins the segments of its body first. A segment is released only if it is not
//! pinned, and from that decision on it cannot be pinned any more: the reader must look its body up again,
//! which has moved by then. A read of one piece needs no pin: an open file stays readable after it is
//! unlinked, and a reader that finds no file looks the body up again. Pins are in memory: after a restart
//! there are no readers.
//!
//! The owner of a segment asks the other nodes before it releases the segment. Each of them closes the
//! segment when it answers that no reader has pinned it. That closure ends by itself, since the owner does
//! not report if it released the segment. Once it has, there is no record, and the segment cannot be pinned
//! either.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use mlgw_common::ids::SegmentId;
use mlgw_common::time::Instant;
use mlgw_formats::member_calls::READERS_BODIES_MAX;
use parking_lot::Mutex;

/// Time for which a segment stays closed after its owner on another node has asked about its readers: longer
/// than the owner takes to remove the record.
pub(super) const ELSEWHERE_CLOSED_MAX: Duration = Duration::from_secs(10);

/// Maximum number of segments that are closed for their owners at a time: several full questions.
const ELSEWHERE_CLOSURES_MAX: usize = 8 * READERS_BODIES_MAX;

#[derive(Debug, Default)]
pub(super) struct SegmentPins(Mutex<SegmentPinsState>);

#[derive(Debug, Default)]
struct SegmentPinsState {
    readers: HashMap<SegmentId, u32>,
    closed: HashSet<SegmentId>,
    /// Segments of other nodes that are closed for their owners, with the times at which this ends.
    closed_for_owners: HashMap<SegmentId, Instant>,
    /// Number of pins on all segments.
    global_pins: u32,
}

impl SegmentPinsState {
    fn is_pinned(&self, segment: SegmentId) -> bool {
        self.global_pins > 0 || self.readers.contains_key(&segment)
    }

    fn is_closed(&self, segment: SegmentId) -> bool {
        let until = self.closed_for_owners.get(&segment);
        self.closed.contains(&segment) || until.is_some_and(|until| Instant::now() < *until)
    }
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
        if segments.iter().any(|segment| state.is_closed(*segment) || !exists(*segment)) {
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
        self.0.lock().is_pinned(segment)
    }

    /// Closes a segment to pins if it is not pinned. Returns true if it did.
    pub(super) fn close_if_unpinned(&self, segment: SegmentId) -> bool {
        let mut state = self.0.lock();
        let free = !state.is_pinned(segment);
        if free {
            state.closed.insert(segment);
        }
        free
    }

    /// Closes a segment of another node to pins for [`ELSEWHERE_CLOSED_MAX`], from `now` on, if it is not
    /// pinned. Returns true if it did; false also if too many segments are closed, and the owner asks again.
    pub(super) fn close_if_unpinned_for(&self, segment: SegmentId, now: Instant) -> bool {
        let mut state = self.0.lock();
        if state.is_pinned(segment) {
            return false;
        }
        if state.closed_for_owners.len() >= ELSEWHERE_CLOSURES_MAX {
            state.closed_for_owners.retain(|_, until| now < *until);
        }
        let is_known = state.closed_for_owners.contains_key(&segment);
        if !is_known && state.closed_for_owners.len() >= ELSEWHERE_CLOSURES_MAX {
            return false;
        }
        state.closed_for_owners.insert(segment, now + ELSEWHERE_CLOSED_MAX);
        true
    }

    /// Ends the closure: the segment was released, or stays after all. A closure for an owner on another node
    /// continues.
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
    use super::{ELSEWHERE_CLOSED_MAX, ELSEWHERE_CLOSURES_MAX, SegmentPins};
    use mlgw_common::ids::SegmentId;
    use mlgw_common::time::{Instant, sleep};
    use std::sync::Arc;
    use std::time::Duration;

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

    #[tokio::test(start_paused = true)]
    async fn a_segment_that_is_closed_for_its_owner_is_not_pinned_until_that_ends() {
        let pins = Arc::new(SegmentPins::default());
        let (one, two) = (SegmentId(1), SegmentId(2));
        let close = || pins.close_if_unpinned_for(one, Instant::now());
        let can_pin = || pins.pin(vec![two, one], |_| true).is_some();
        let reader = pins.pin(vec![one], |_| true).unwrap();
        assert!(!close() && can_pin(), "a pinned segment is not closed");
        drop(reader);
        let all = pins.pin_all();
        assert!(!close() && can_pin(), "all are pinned");
        drop(all);
        assert!(close() && !can_pin() && !pins.is_pinned(two), "none is pinned if one is closed");
        // A sweep of this node ends its own closure only.
        assert!(pins.close_if_unpinned(one));
        pins.end_closure(one);
        sleep(ELSEWHERE_CLOSED_MAX - Duration::from_secs(1)).await;
        assert!(!can_pin() && close(), "the owner asks again");
        sleep(ELSEWHERE_CLOSED_MAX - Duration::from_secs(1)).await;
        assert!(!can_pin(), "the time begins again");
        sleep(Duration::from_secs(2)).await;
        assert!(can_pin());
    }

    #[test]
    fn closures_for_owners_are_bounded_and_those_that_ended_make_room() {
        let (pins, begin) = (Arc::new(SegmentPins::default()), Instant::now());
        for id in 0..ELSEWHERE_CLOSURES_MAX as u64 {
            assert!(pins.close_if_unpinned_for(SegmentId(id), begin));
        }
        let further = SegmentId(1 << 40);
        let end = begin + ELSEWHERE_CLOSED_MAX;
        assert!(!pins.close_if_unpinned_for(further, end - Duration::from_millis(1)));
        assert!(pins.pin(vec![further], |_| true).is_some(), "it was not closed");
        assert!(pins.close_if_unpinned_for(SegmentId(0), end - Duration::from_millis(1)), "it is closed");
        assert!(pins.close_if_unpinned_for(further, end));
        assert_eq!(pins.0.lock().closed_for_owners.len(), 2, "the others have ended");
    }
}
