//! Back-off that doubles with each failure that follows soon after the last one.

use std::time::Duration;

/// First back-off.
pub(crate) const BACKOFF_MIN: Duration = Duration::from_secs(1);

/// Longest back-off. A failure after this long without one begins again with the first.
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Failures so far, and the end of the current back-off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// The last back-off; zero before the first.
    last: Duration,
    /// End of the last back-off.
    until: Duration,
}

impl Backoff {
    /// Begins a back-off.
    pub(crate) fn fail(&mut self, now: Duration) {
        let is_soon = self.last > Duration::ZERO && now < self.until + BACKOFF_MAX;
        self.last = if is_soon { (self.last * 2).min(BACKOFF_MAX) } else { BACKOFF_MIN };
        self.until = now + self.last;
    }

    /// True if the back-off is over.
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::{BACKOFF_MAX, Backoff};
    use std::time::Duration;

    #[test]
    fn it_doubles_up_to_its_maximum_and_begins_again_after_a_while() {
        let (mut backoff, mut now) = (Backoff::default(), Duration::ZERO);
        assert!(backoff.is_over(now));
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            backoff.fail(now);
            let last = now + Duration::from_secs(seconds);
            assert!(!backoff.is_over(last.saturating_sub(Duration::from_millis(1))));
            assert!(backoff.is_over(last), "{seconds}");
            now = last;
        }
        now += BACKOFF_MAX;
        backoff.fail(now);
        assert!(backoff.is_over(now + Duration::from_secs(1)));
    }
}
