//! State machine that moves one segment between tiers. Pure.
//!
//! The order of the steps protects the only copy: no record names a copy before it is verified, and the old
//! file is removed only after the record's change survives power loss. Every step is idempotent, so an
//! interrupted job, also by a crash, starts anew.

use mlgw_common::ids::SegmentId;

use mlgw_common::SegmentTier;

/// Source and destination tier of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::hot) struct SegmentMove {
    pub(in crate::hot) from: SegmentTier,
    pub(in crate::hot) to: SegmentTier,
}

/// The next step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum MoveStep {
    /// Spill only: append chunks that stay elsewhere in the hot tier.
    RelocateStaying,
    /// Copy the file, store it as an object or fetch it, and verify the copy.
    Copy,
    /// Change the record to name the new location.
    UpdateRecord,
    /// Wait until that change survives power loss.
    Sync,
    /// Check that no pin on all segments needs the old file.
    Drain,
    /// Remove the old file or object.
    Unlink,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum MoveEvent {
    /// The step succeeded.
    Done,
    /// Result of [`MoveStep::Drain`]: all segments are pinned; retry later.
    Busy,
}

/// The move of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) struct MoveJob {
    pub(in crate::hot) segment: SegmentId,
    pub(in crate::hot) way: SegmentMove,
    next: Option<MoveStep>,
}

impl MoveJob {
    /// Creates a job for a chosen segment.
    pub(in crate::hot) fn new(segment: SegmentId, way: SegmentMove) -> Self {
        assert_ne!(way.from, way.to, "a move changes the tier");
        let first = if way.from == SegmentTier::Hot { MoveStep::RelocateStaying } else { MoveStep::Copy };
        Self { segment, way, next: Some(first) }
    }

    /// Returns the next step; `None` when the move is complete.
    pub(in crate::hot) fn next(&self) -> Option<MoveStep> {
        self.next
    }

    /// Advances the job after a step.
    ///
    /// # Panics
    /// When the step has no such result: a bug in the driver.
    pub(in crate::hot) fn advance(&mut self, event: MoveEvent) {
        self.next = match (self.next, event) {
            (Some(MoveStep::RelocateStaying), MoveEvent::Done) => Some(MoveStep::Copy),
            (Some(MoveStep::Copy), MoveEvent::Done) => Some(MoveStep::UpdateRecord),
            (Some(MoveStep::UpdateRecord), MoveEvent::Done) => Some(MoveStep::Sync),
            (Some(MoveStep::Sync), MoveEvent::Done) | (Some(MoveStep::Drain), MoveEvent::Busy) => {
                Some(MoveStep::Drain)
            }
            (Some(MoveStep::Drain), MoveEvent::Done) => Some(MoveStep::Unlink),
            (Some(MoveStep::Unlink), MoveEvent::Done) => None,
            (step, event) => panic!("{step:?} has no outcome {event:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlgw_common::SegmentTier;

    #[test]
    fn the_old_file_is_removed_last_and_not_while_pinned() {
        let (spill, promote) = (
            SegmentMove { from: SegmentTier::Hot, to: SegmentTier::Cold },
            SegmentMove { from: SegmentTier::Cold, to: SegmentTier::Hot },
        );
        let mut job = MoveJob::new(SegmentId(1), spill);
        let mut taken = Vec::new();
        let mut busy = 2;
        while let Some(step) = job.next() {
            taken.push(step);
            let wait = step == MoveStep::Drain && busy > 0;
            busy -= u32::from(wait);
            job.advance(if wait { MoveEvent::Busy } else { MoveEvent::Done });
        }
        use MoveStep::{Copy, Drain, RelocateStaying, Sync, Unlink, UpdateRecord};
        assert_eq!(MoveJob::new(SegmentId(1), promote).next(), Some(Copy));
        assert_eq!(taken, [RelocateStaying, Copy, UpdateRecord, Sync, Drain, Drain, Drain, Unlink]);
    }
}
