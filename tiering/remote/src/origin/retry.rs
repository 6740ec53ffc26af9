//! Retry decision for failed requests. Pure.
//!
//! Exponential back-off with full jitter, as Brooker describes it ("Exponential Backoff And Jitter", AWS
//! Architecture Blog, 2015): clients that failed at the same moment do not retry at the same moment.

use super::OriginError;
use std::time::Duration;

/// Maximum number of tries, the first one included.
const ATTEMPTS: u32 = 5;
/// Maximum wait after the first failure; doubles with each further failure.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// Upper bound of the back-off.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest wait that an origin may request; a longer one makes the error final.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);

/// Retry safety of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetrySafety {
    /// Idempotent: may be sent again after any transient error.
    Idempotent,
    /// Not idempotent: may be sent again only if the failed try certainly had no effect.
    IfUndone,
}

impl RetrySafety {
    pub(super) const fn allows(self, error: &OriginError) -> bool {
        match self {
            Self::Idempotent => true,
            Self::IfUndone => error.is_undone(),
        }
    }
}

/// Returns the wait before the next try after `failures` failures, or `None` if the request is given up.
/// `chance` is a random number from 0 to 1.
pub(super) fn backoff(error: &OriginError, failures: u32, chance: f64) -> Option<Duration> {
    assert!(failures > 0, "a wait follows a failure");
    if !error.is_transient() || failures >= ATTEMPTS {
        return None;
    }
    let longest = WAIT_MAX.min(FIRST_WAIT * 2u32.saturating_pow(failures - 1));
    let wait = longest.mul_f64(chance.clamp(0.0, 1.0));
    match error {
        OriginError::Throttled(Some(requested)) if *requested > RETRY_AFTER_MAX => None,
        OriginError::Throttled(Some(asked)) => Some(wait + *asked),
        _ => Some(wait),
    }
}

#[cfg(test)]
mod tests {
    use super::{ATTEMPTS, RetrySafety, backoff};
    use crate::origin::OriginError;
    use std::time::Duration;

    #[test]
    fn waits_double_up_to_a_bound_and_end() {
        let longest = |failures| backoff(&OriginError::TimedOut, failures, 1.0).map(|wait| wait.as_millis());
        assert_eq!([1, 2, 3, 4].map(longest), [Some(50), Some(100), Some(200), Some(400)]);
        assert_eq!(longest(ATTEMPTS), None);
        assert_eq!(backoff(&OriginError::TimedOut, 2, 0.0), Some(Duration::ZERO));
    }

    #[test]
    fn permanent_errors_are_not_retried() {
        for error in [OriginError::NoSuchKey, OriginError::Denied("no".into()), OriginError::Changed] {
            assert_eq!(backoff(&error, 1, 0.5), None);
        }
    }

    #[test]
    fn a_request_that_is_not_idempotent_is_retried_only_if_it_had_no_effect() {
        let broken = OriginError::ConnectionLost("reset".into());
        for error in [&broken, &OriginError::TimedOut, &OriginError::Failed(500)] {
            assert!(RetrySafety::Idempotent.allows(error) && !RetrySafety::IfUndone.allows(error), "{error}");
        }
        for error in [OriginError::Throttled(None), OriginError::Unreachable("refused".into())] {
            assert!(RetrySafety::IfUndone.allows(&error), "{error}");
        }
    }

    #[test]
    fn a_requested_wait_is_honoured_unless_it_is_long() {
        let throttled = |secs| OriginError::Throttled(Some(Duration::from_secs(secs)));
        assert_eq!(backoff(&throttled(1), 1, 0.0), Some(Duration::from_secs(1)));
        assert_eq!(backoff(&throttled(60), 1, 0.0), None);
    }
}
