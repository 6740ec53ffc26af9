//! Decision to resume an interrupted read. Pure.

use mlgw_remote::origin::OriginError;

/// Maximum number of tries without progress.
const TRIES: u32 = 3;
/// Progress after which a timeout no longer counts. An origin that trickles delivers less than this before
/// each timeout.
const PROGRESS_BYTES_MIN: u64 = 1 << 20;

/// Failures of one read.
#[derive(Debug, Default)]
pub(super) struct ReadResumeState {
    failures: u32,
    /// Offset of the last failure.
    at: u64,
}

impl ReadResumeState {
    /// Records that a read that began at `begun` broke off at `at`. Returns true if it may be resumed there.
    pub(super) fn may_resume(&mut self, error: &OriginError, begun: u64, at: u64) -> bool {
        assert!(begun <= at, "a read breaks off no earlier than it began");
        let since = at - begun.max(self.at.min(at));
        let is_forgiven = match error {
            OriginError::TimedOut => since >= PROGRESS_BYTES_MIN,
            _ => since > 0,
        };
        self.failures = if is_forgiven { 1 } else { self.failures + 1 };
        self.at = at;
        error.is_transient() && self.failures < TRIES
    }
}

#[cfg(test)]
mod tests {
    use super::{PROGRESS_BYTES_MIN, ReadResumeState};
    use mlgw_remote::origin::OriginError;

    /// Counts how often a read is resumed that makes `progress` bytes of progress each time.
    fn resumptions(error: &OriginError, progress: u64) -> usize {
        let mut tries = ReadResumeState::default();
        (0..50).take_while(|n| tries.may_resume(error, 0, progress * (n + 1))).count()
    }

    #[test]
    fn an_interrupted_read_is_resumed_as_long_as_it_makes_progress() {
        let broken = OriginError::Unreachable("reset".into());
        assert_eq!((resumptions(&broken, 1), resumptions(&broken, 0)), (50, 2));
    }

    #[test]
    fn a_trickle_is_given_up_although_it_makes_progress() {
        let timed_out = OriginError::TimedOut;
        assert_eq!((resumptions(&timed_out, 1000), resumptions(&timed_out, PROGRESS_BYTES_MIN)), (2, 50));
    }

    #[test]
    fn what_will_not_change_is_asked_once() {
        assert_eq!(resumptions(&OriginError::Changed, 1000), 0);
    }
}
