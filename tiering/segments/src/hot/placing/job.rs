//! State machine that moves one segment between tiers. Pure.
//!
//! The order of the steps protects the only copy: no record names a copy before it is verified, and the old
//! file is removed only after the record's change survives power loss. Every step is idempotent, so an
//! interrupted job, also by a crash, starts anew.

use mlgw_common::ids::SegmentId;

use crate::hot::catalogue::HOT;

/// Source and destination tier of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::hot) struct Way {
    pub(in crate::hot) from: u32,
    pub(in crate::hot) to: u32,
}

/// The next step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum Step {
    /// Spill only: append chunks that stay elsewhere in the hot tier.
    PickOut,
    /// Copy the file, store it as an object or fetch it, and verify the copy.
    Copy,
    /// Change the record to name the new location.
    Place,
    /// Wait until that change survives power loss.
    Settle,
    /// Check that no pin on all segments needs the old file.
    Drain,
    /// Remove the old file or object.
    Unlink,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum Event {
    /// The step succeeded.
    Done,
    /// Result of [`Step::Drain`]: all segments are pinned; retry later.
    Busy,
}

/// The move of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) struct Job {
    pub(in crate::hot) segment: SegmentId,
    pub(in crate::hot) way: Way,
    next: Option<Step>,
}

impl Job {
    /// Creates a job for a chosen segment.
    pub(in crate::hot) fn new(segment: SegmentId, way: Way) -> Self {
        let first = if way.from == HOT { Step::PickOut } else { Step::Copy };
        Self { segment, way, next: Some(first) }
    }

    /// Returns the next step; `None` when the move is complete.
    pub(in crate::hot) fn next(&self) -> Option<Step> {
        self.next
    }

    /// Advances the job after a step.
    ///
    /// # Panics
    /// When the step has no such result: a bug in the driver.
    pub(in crate::hot) fn on(&mut self, event: Event) {
        self.next = match (self.next, event) {
            (Some(Step::PickOut), Event::Done) => Some(Step::Copy),
            (Some(Step::Copy), Event::Done) => Some(Step::Place),
            (Some(Step::Place), Event::Done) => Some(Step::Settle),
            (Some(Step::Settle), Event::Done) | (Some(Step::Drain), Event::Busy) => Some(Step::Drain),
            (Some(Step::Drain), Event::Done) => Some(Step::Unlink),
            (Some(Step::Unlink), Event::Done) => None,
            (step, event) => panic!("{step:?} has no outcome {event:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot::catalogue::COLD;

    #[test]
    fn the_old_file_is_removed_last_and_not_while_pinned() {
        let (spill, promote) = (Way { from: HOT, to: COLD }, Way { from: COLD, to: HOT });
        let mut job = Job::new(SegmentId(1), spill);
        let mut taken = Vec::new();
        let mut busy = 2;
        while let Some(step) = job.next() {
            taken.push(step);
            let wait = step == Step::Drain && busy > 0;
            busy -= u32::from(wait);
            job.on(if wait { Event::Busy } else { Event::Done });
        }
        use Step::{Copy, Drain, PickOut, Place, Settle, Unlink};
        assert_eq!(Job::new(SegmentId(1), promote).next(), Some(Copy));
        assert_eq!(taken, [PickOut, Copy, Place, Settle, Drain, Drain, Drain, Unlink]);
    }
}
