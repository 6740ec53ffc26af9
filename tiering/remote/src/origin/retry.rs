//! When a failed request is tried again: a pure decision.
//!
//! Exponential back-off with full jitter, as Brooker describes it ("Exponential Backoff And Jitter", AWS
//! Architecture Blog, 2015): clients that failed together do not come back together.

use super::OriginError;
use std::time::Duration;

/// How often a request is tried, the first time included.
const ATTEMPTS: u32 = 5;
/// The longest wait after the first failure; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// The longest wait that an origin may ask for; then its error is passed on.
const ASKED_WAIT_MAX: Duration = Duration::from_secs(5);

/// What may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// What does the same when it is done twice.
    Always,
    /// What must not be done twice: only when it surely was not done.
    IfUndone,
}

impl Again {
    pub(super) const fn allows(self, error: &OriginError) -> bool {
        match self {
            Self::Always => true,
            Self::IfUndone => error.is_undone(),
        }
    }
}

/// How long to wait before a request is tried again that failed for the `failures`th time; nothing when it is
/// given up. `chance` is anything from 0 to 1.
pub(super) fn wait(error: &OriginError, failures: u32, chance: f64) -> Option<Duration> {
    if !error.is_transient() || failures >= ATTEMPTS {
        return None;
    }
    let longest = WAIT_MAX.min(FIRST_WAIT * 2u32.saturating_pow(failures - 1));
    let wait = longest.mul_f64(chance.clamp(0.0, 1.0));
    match error {
        OriginError::Throttled(Some(asked)) if *asked > ASKED_WAIT_MAX => None,
        OriginError::Throttled(Some(asked)) => Some(wait + *asked),
        _ => Some(wait),
    }
}

#[cfg(test)]
mod tests {
    use super::{ATTEMPTS, Again, wait};
    use crate::origin::OriginError;
    use std::time::Duration;

    #[test]
    fn waits_double_up_to_a_bound_and_end() {
        let longest = |failures| wait(&OriginError::TimedOut, failures, 1.0).map(|wait| wait.as_millis());
        assert_eq!([1, 2, 3, 4].map(longest), [Some(50), Some(100), Some(200), Some(400)]);
        assert_eq!(longest(ATTEMPTS), None);
        assert_eq!(wait(&OriginError::TimedOut, 2, 0.0), Some(Duration::ZERO));
    }

    #[test]
    fn what_will_not_change_is_not_tried_again() {
        for error in [OriginError::NoSuchKey, OriginError::Denied("no".into()), OriginError::Changed] {
            assert_eq!(wait(&error, 1, 0.5), None);
        }
    }

    #[test]
    fn what_must_not_be_done_twice_is_sent_again_only_when_it_was_not_done() {
        let broken = OriginError::Broken("reset".into());
        for error in [&broken, &OriginError::TimedOut, &OriginError::Failed(500)] {
            assert!(Again::Always.allows(error) && !Again::IfUndone.allows(error), "{error}");
        }
        for error in [OriginError::Throttled(None), OriginError::Unreachable("refused".into())] {
            assert!(Again::IfUndone.allows(&error), "{error}");
        }
    }

    #[test]
    fn a_wait_that_is_asked_for_is_kept_unless_it_is_long() {
        let throttled = |secs| OriginError::Throttled(Some(Duration::from_secs(secs)));
        assert_eq!(wait(&throttled(1), 1, 0.0), Some(Duration::from_secs(1)));
        assert_eq!(wait(&throttled(60), 1, 0.0), None);
    }
}
