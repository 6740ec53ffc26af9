//! Decision to resume an interrupted read. Pure.

use mlgw_remote::origin::OriginError;

/// Maximum number of tries without progress.
const TRIES: u32 = 3;
/// Progress after which a timeout no longer counts. An origin that trickles delivers less than this before
/// each timeout.
const FORGIVEN_BYTES: u64 = 1 << 20;

/// Failures of one read.
#[derive(Debug, Default)]
pub(super) struct Tries {
    failures: u32,
    /// Offset of the last failure.
    at: u64,
}

impl Tries {
    /// Records that a read that began at `begun` broke off at `at`. Returns true if it may be resumed there.
    pub(super) fn may_go_on(&mut self, error: &OriginError, begun: u64, at: u64) -> bool {
        let since = at - begun.max(self.at.min(at));
        let is_forgiven = match error {
            OriginError::TimedOut => since >= FORGIVEN_BYTES,
            _ => since > 0,
        };
        self.failures = if is_forgiven { 1 } else { self.failures + 1 };
        self.at = at;
        error.is_transient() && self.failures < TRIES
    }
}

#[cfg(test)]
mod tests {
    use super::{FORGIVEN_BYTES, Tries};
    use mlgw_remote::origin::OriginError;

    /// Counts how often a read is resumed that makes `progress` bytes of progress each time.
    fn goes_on(error: &OriginError, progress: u64) -> usize {
        let mut tries = Tries::default();
        (0..50).take_while(|n| tries.may_go_on(error, 0, progress * (n + 1))).count()
    }

    #[test]
    fn an_interrupted_read_is_resumed_as_long_as_it_makes_progress() {
        let broken = OriginError::Unreachable("reset".into());
        assert_eq!((goes_on(&broken, 1), goes_on(&broken, 0)), (50, 2));
    }

    #[test]
    fn a_trickle_is_given_up_although_it_makes_progress() {
        let timed_out = OriginError::TimedOut;
        assert_eq!((goes_on(&timed_out, 1000), goes_on(&timed_out, FORGIVEN_BYTES)), (2, 50));
    }

    #[test]
    fn what_will_not_change_is_asked_once() {
        assert_eq!(goes_on(&OriginError::Changed, 1000), 0);
    }
}
