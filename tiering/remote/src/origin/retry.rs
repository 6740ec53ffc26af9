//! Retry decision for failed requests. Pure.
//!
//! Exponential back-off with full jitter, as Brooker describes it ("Exponential Backoff And Jitter", AWS
//! Architecture Blog, 2015): clients that failed at the same moment do not retry at the same moment.

use super::OriginError;
use backon::ExponentialBuilder;
use std::time::Duration;

/// Longest waits before the four retries: 50, 100, 200 and 400 ms.
pub(super) const WAITS: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(50))
    .with_max_delay(Duration::from_secs(2))
    .with_max_times(4);
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

/// Returns the wait before the next try, or `None` if the request is given up. `longest` is the next item of
/// [`WAITS`], `chance` a random number from 0 to 1.
pub(super) fn jittered(error: &OriginError, longest: Option<Duration>, chance: f64) -> Option<Duration> {
    let wait = longest.filter(|_| error.is_transient())?.mul_f64(chance.clamp(0.0, 1.0));
    match error {
        OriginError::Throttled(Some(requested)) if *requested > RETRY_AFTER_MAX => None,
        OriginError::Throttled(Some(requested)) => Some(wait + *requested),
        _ => Some(wait),
    }
}

#[cfg(test)]
mod tests {
    use super::{RetrySafety, WAITS, jittered};
    use crate::origin::OriginError;
    use backon::BackoffBuilder as _;
    use std::time::Duration;

    const LONGEST: Option<Duration> = Some(Duration::from_millis(50));

    #[test]
    fn waits_double_and_end() {
        let longest = |wait| jittered(&OriginError::TimedOut, Some(wait), 1.0).map(|wait| wait.as_millis());
        let longest: Vec<_> = WAITS.build().map(longest).collect();
        assert_eq!(longest, [Some(50), Some(100), Some(200), Some(400)]);
        assert_eq!(jittered(&OriginError::TimedOut, None, 1.0), None);
        assert_eq!(jittered(&OriginError::TimedOut, LONGEST, 0.0), Some(Duration::ZERO));
    }

    #[test]
    fn permanent_errors_are_not_retried() {
        for error in [OriginError::NoSuchKey, OriginError::Denied("no".into()), OriginError::Changed] {
            assert_eq!(jittered(&error, LONGEST, 0.5), None);
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
        assert_eq!(jittered(&throttled(1), LONGEST, 0.0), Some(Duration::from_secs(1)));
        assert_eq!(jittered(&throttled(60), LONGEST, 0.0), None);
    }
}
