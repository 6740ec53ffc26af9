//! State machine that releases one segment. Pure.
//!
//! The order of the steps protects referenced bytes. References are counted after the fence, since only then
//! can the count no longer grow; the segment is released only when the count is zero and its readers are
//! done; and the file is removed last, when the removal of its record and all changes that freed its bytes
//! survive power loss. Every step is idempotent, so an interrupted job, also by a crash, starts anew.

use mlgw_common::ids::SegmentId;

/// The next step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum CompactionStep {
    /// Refuse new references in every object group.
    Fence,
    /// Count the references to the segment.
    Count,
    /// Append referenced chunks elsewhere and change their references.
    Move,
    /// Close the segment for new pins if no reader has it pinned.
    Drain,
    /// Remove the segment's record.
    Remove,
    /// Wait until all changes so far survive power loss.
    Sync,
    /// Remove the segment's file.
    Unlink,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum CompactionEvent {
    /// The step succeeded.
    Done,
    /// Result of [`CompactionStep::Count`]: number of extents that refer to the segment.
    References(u64),
    /// Result of [`CompactionStep::Drain`] and of [`CompactionStep::Remove`]: the segment has readers; retry
    /// later.
    Busy,
}

/// The result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum CompactionEnd {
    /// The segment was released.
    Released,
    /// This many extents could not be moved; the segment stays as it is, fenced.
    HeldBack(u64),
}

/// The release of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) struct CompactionJob {
    segment: SegmentId,
    state: Result<CompactionStep, CompactionEnd>,
    moved: bool,
}

impl CompactionJob {
    /// Creates a job for a chosen segment.
    pub(in crate::hot) fn new(segment: SegmentId) -> Self {
        Self { segment, state: Ok(CompactionStep::Fence), moved: false }
    }

    pub(in crate::hot) fn segment(&self) -> SegmentId {
        self.segment
    }

    /// Returns the next step, or the result of the job.
    pub(in crate::hot) fn next(&self) -> Result<CompactionStep, CompactionEnd> {
        self.state
    }

    /// Advances the job after a step.
    ///
    /// # Panics
    /// When the step has no such result: a bug in the driver.
    pub(in crate::hot) fn advance(&mut self, event: CompactionEvent) {
        self.state = match (self.state, event) {
            (Ok(CompactionStep::Fence), CompactionEvent::Done) => Ok(CompactionStep::Count),
            (Ok(CompactionStep::Count), CompactionEvent::References(0)) => Ok(CompactionStep::Drain),
            (Ok(CompactionStep::Count), CompactionEvent::References(left)) if self.moved => {
                Err(CompactionEnd::HeldBack(left))
            }
            (Ok(CompactionStep::Count), CompactionEvent::References(_)) => Ok(CompactionStep::Move),
            (Ok(CompactionStep::Move), CompactionEvent::Done) => {
                self.moved = true;
                Ok(CompactionStep::Count)
            }
            (Ok(CompactionStep::Drain | CompactionStep::Remove), CompactionEvent::Busy) => {
                Ok(CompactionStep::Drain)
            }
            (Ok(CompactionStep::Drain), CompactionEvent::Done) => Ok(CompactionStep::Remove),
            (Ok(CompactionStep::Remove), CompactionEvent::Done) => Ok(CompactionStep::Sync),
            (Ok(CompactionStep::Sync), CompactionEvent::Done) => Ok(CompactionStep::Unlink),
            (Ok(CompactionStep::Unlink), CompactionEvent::Done) => Err(CompactionEnd::Released),
            (state, event) => panic!("{state:?} has no outcome {event:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(references: &[u64]) -> (Vec<CompactionStep>, CompactionEnd) {
        let mut job = CompactionJob::new(SegmentId(1));
        let mut counts = references.iter();
        let mut steps = Vec::new();
        loop {
            match job.next() {
                Err(end) => return (steps, end),
                Ok(step) => {
                    steps.push(step);
                    job.advance(match step {
                        CompactionStep::Count => CompactionEvent::References(*counts.next().unwrap()),
                        _ => CompactionEvent::Done,
                    });
                }
            }
        }
    }

    #[test]
    fn a_dead_segment_is_released_without_moving() {
        let expected = [
            CompactionStep::Fence,
            CompactionStep::Count,
            CompactionStep::Drain,
            CompactionStep::Remove,
            CompactionStep::Sync,
            CompactionStep::Unlink,
        ];
        assert_eq!(steps(&[0]), (expected.to_vec(), CompactionEnd::Released));
    }

    #[test]
    fn a_live_segment_is_emptied_once_and_counted_again() {
        let (taken, end) = steps(&[7, 0]);
        assert_eq!(
            taken[..4],
            [CompactionStep::Fence, CompactionStep::Count, CompactionStep::Move, CompactionStep::Count]
        );
        assert_eq!((taken[4], end), (CompactionStep::Drain, CompactionEnd::Released));
        assert_eq!(steps(&[7, 2]).1, CompactionEnd::HeldBack(2));
    }

    #[test]
    fn the_job_waits_for_readers() {
        let mut job = CompactionJob::new(SegmentId(1));
        job.advance(CompactionEvent::Done);
        job.advance(CompactionEvent::References(0));
        for _ in 0..3 {
            assert_eq!(job.next(), Ok(CompactionStep::Drain));
            job.advance(CompactionEvent::Busy);
        }
        job.advance(CompactionEvent::Done);
        assert_eq!(job.next(), Ok(CompactionStep::Remove));
    }

    #[test]
    fn a_segment_that_has_readers_when_it_is_removed_is_drained_again() {
        let mut job = CompactionJob::new(SegmentId(1));
        job.advance(CompactionEvent::Done);
        job.advance(CompactionEvent::References(0));
        job.advance(CompactionEvent::Done);
        assert_eq!(job.next(), Ok(CompactionStep::Remove));
        job.advance(CompactionEvent::Busy);
        assert_eq!(job.next(), Ok(CompactionStep::Drain));
    }
}
