//! The move of one segment, step by step: a pure decision.
//!
//! The order is what keeps the only copy: nothing is named before it is proven, nothing goes before the new
//! name survives power loss. Every step may be repeated, so a job that was interrupted, by a crash too,
//! begins anew.

use mlgw_common::ids::SegmentId;

use crate::hot::catalogue::HOT;

/// Which way a segment goes: from one tier to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::hot) struct Way {
    pub(in crate::hot) from: u32,
    pub(in crate::hot) to: u32,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum Step {
    /// Of a spill: append elsewhere in the hot tier what of it is read so much that it stays there.
    PickOut,
    /// Copy the file, or store it as an object or fetch it as one, and prove the copy.
    Copy,
    /// Have the record name the new place.
    Place,
    /// Wait until that survives power loss.
    Settle,
    /// See that nobody who copies segments needs the old file.
    Drain,
    /// Remove the old file or object.
    Unlink,
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum Event {
    /// It was done.
    Done,
    /// Of [`Step::Drain`]: somebody copies segments; ask again later.
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
    /// A job for a segment that was chosen.
    pub(in crate::hot) fn new(segment: SegmentId, way: Way) -> Self {
        let first = if way.from == HOT { Step::PickOut } else { Step::Copy };
        Self { segment, way, next: Some(first) }
    }

    /// The next step; nothing when all is done.
    pub(in crate::hot) fn next(&self) -> Option<Step> {
        self.next
    }

    /// Goes on after a step.
    ///
    /// # Panics
    /// When the step has no such outcome: a mistake of the driver's.
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
    fn the_old_file_goes_last_and_not_while_somebody_copies() {
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
