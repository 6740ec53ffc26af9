//! The end of one segment, step by step: a pure decision.
//!
//! The order is what keeps referenced bytes. Nothing is counted before the fence, as only after it
//! the count can no longer grow; nothing goes before the count is zero and readers are done; and the
//! file goes last, when the removal of its record and whatever freed its bytes survive power loss.
//! Every step may be repeated, so a job that was interrupted, by a crash too, begins anew.

use mlgw_common::ids::SegmentId;

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum Step {
    /// Refuse new references in every object group.
    Fence,
    /// Count what refers to it.
    Count,
    /// Append elsewhere what is referred to, and rename it.
    Move,
    /// Let it go if no reader has it pinned.
    Drain,
    /// Remove its record.
    Remove,
    /// Wait until everything so far survives power loss.
    Settle,
    /// Remove its file.
    Unlink,
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum Event {
    /// It was done.
    Done,
    /// Of [`Step::Count`]: so many extents refer to it.
    References(u64),
    /// Of [`Step::Drain`]: somebody reads it; ask again later.
    Busy,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum End {
    /// The segment is no more.
    Released,
    /// So many extents could not be moved; the segment stays as it is, fenced.
    HeldBack(u64),
}

/// The end of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) struct Job {
    segment: SegmentId,
    state: Result<Step, End>,
    moved: bool,
}

impl Job {
    /// A job for a segment that was chosen.
    pub(in crate::hot) fn new(segment: SegmentId) -> Self {
        Self { segment, state: Ok(Step::Fence), moved: false }
    }

    pub(in crate::hot) fn segment(&self) -> SegmentId {
        self.segment
    }

    /// The next step, or how it ended.
    pub(in crate::hot) fn next(&self) -> Result<Step, End> {
        self.state
    }

    /// Goes on after a step.
    ///
    /// # Panics
    /// When the step has no such outcome: a mistake of the driver's.
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
    fn a_dead_segment_is_released_without_being_read() {
        let expected = [Step::Fence, Step::Count, Step::Drain, Step::Remove, Step::Settle, Step::Unlink];
        assert_eq!(steps(&[0]), (expected.to_vec(), End::Released));
    }

    #[test]
    fn a_living_one_is_emptied_once_and_counted_again() {
        let (taken, end) = steps(&[7, 0]);
        assert_eq!(taken[..4], [Step::Fence, Step::Count, Step::Move, Step::Count]);
        assert_eq!((taken[4], end), (Step::Drain, End::Released));
        assert_eq!(steps(&[7, 2]).1, End::HeldBack(2));
    }

    #[test]
    fn a_reader_is_waited_for() {
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
