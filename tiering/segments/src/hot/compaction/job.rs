//! State machine that releases one segment. Pure.
//!
//! The order of the steps protects referenced bytes. References are counted after the fence, since only then
//! can the count no longer grow; the segment is released only when the count is zero and its readers are
//! done; and the file is removed last, when the removal of its record and all changes that freed its bytes
//! survive power loss. Every step is idempotent, so an interrupted job, also by a crash, starts anew.

use mlgw_common::ids::SegmentId;

/// The next step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum Step {
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
    Settle,
    /// Remove the segment's file.
    Unlink,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum Event {
    /// The step succeeded.
    Done,
    /// Result of [`Step::Count`]: number of extents that refer to the segment.
    References(u64),
    /// Result of [`Step::Drain`]: the segment has readers; retry later.
    Busy,
}

/// The result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum End {
    /// The segment was released.
    Released,
    /// This many extents could not be moved; the segment stays as it is, fenced.
    HeldBack(u64),
}

/// The release of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) struct Job {
    segment: SegmentId,
    state: Result<Step, End>,
    moved: bool,
}

impl Job {
    /// Creates a job for a chosen segment.
    pub(in crate::hot) fn new(segment: SegmentId) -> Self {
        Self { segment, state: Ok(Step::Fence), moved: false }
    }

    pub(in crate::hot) fn segment(&self) -> SegmentId {
        self.segment
    }

    /// Returns the next step, or the result of the job.
    pub(in crate::hot) fn next(&self) -> Result<Step, End> {
        self.state
    }

    /// Advances the job after a step.
    ///
    /// # Panics
    /// When the step has no such result: a bug in the driver.
    pub(in crate::hot) fn on(&mut self, event: Event) {
        self.state = match (self.state, event) {
            (Ok(Step::Fence), Event::Done) => Ok(Step::Count),
            (Ok(Step::Count), Event::References(0)) => Ok(Step::Drain),
            (Ok(Step::Count), Event::References(left)) if self.moved => Err(End::HeldBack(left)),
            (Ok(Step::Count), Event::References(_)) => Ok(Step::Move),
            (Ok(Step::Move), Event::Done) => {
                self.moved = true;
                Ok(Step::Count)
            }
            (Ok(Step::Drain), Event::Busy) => Ok(Step::Drain),
            (Ok(Step::Drain), Event::Done) => Ok(Step::Remove),
            (Ok(Step::Remove), Event::Done) => Ok(Step::Settle),
            (Ok(Step::Settle), Event::Done) => Ok(Step::Unlink),
            (Ok(Step::Unlink), Event::Done) => Err(End::Released),
            (state, event) => panic!("{state:?} has no outcome {event:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(references: &[u64]) -> (Vec<Step>, End) {
        let mut job = Job::new(SegmentId(1));
        let mut counts = references.iter();
        let mut steps = Vec::new();
        loop {
            match job.next() {
                Err(end) => return (steps, end),
                Ok(step) => {
                    steps.push(step);
                    job.on(match step {
                        Step::Count => Event::References(*counts.next().unwrap()),
                        _ => Event::Done,
                    });
                }
            }
        }
    }

    #[test]
    fn a_dead_segment_is_released_without_moving() {
        let expected = [Step::Fence, Step::Count, Step::Drain, Step::Remove, Step::Settle, Step::Unlink];
        assert_eq!(steps(&[0]), (expected.to_vec(), End::Released));
    }

    #[test]
    fn a_live_segment_is_emptied_once_and_counted_again() {
        let (taken, end) = steps(&[7, 0]);
        assert_eq!(taken[..4], [Step::Fence, Step::Count, Step::Move, Step::Count]);
        assert_eq!((taken[4], end), (Step::Drain, End::Released));
        assert_eq!(steps(&[7, 2]).1, End::HeldBack(2));
    }

    #[test]
    fn the_job_waits_for_readers() {
        let mut job = Job::new(SegmentId(1));
        job.on(Event::Done);
        job.on(Event::References(0));
        for _ in 0..3 {
            assert_eq!(job.next(), Ok(Step::Drain));
            job.on(Event::Busy);
        }
        job.on(Event::Done);
        assert_eq!(job.next(), Ok(Step::Remove));
    }
}
