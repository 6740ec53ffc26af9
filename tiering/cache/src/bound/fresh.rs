//! How long what an origin said holds: pure decisions.

use mlgw_remote::origin::OriginError;
use std::time::Duration;

/// How long what origins say holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// What they say of an object.
    pub positive: Duration,
    /// That there is none.
    pub negative: Duration,
    /// What they said of an object, while they cannot be asked.
    pub stale: Duration,
}

impl Default for Freshness {
    fn default() -> Self {
        Self {
            positive: Duration::from_secs(30),
            negative: Duration::from_secs(2),
            stale: Duration::from_hours(24),
        }
    }
}

impl Freshness {
    /// Whether what was said so long ago still holds.
    pub(super) fn is_fresh(&self, age: Duration) -> bool {
        age < self.positive
    }

    /// Whether what was said so long ago may be said again although asking failed so: never when the origin
    /// answered that it may not or is not.
    pub(super) fn may_be_stale(&self, age: Duration, error: &OriginError) -> bool {
        error.is_transient() && age < self.stale
    }
}

#[cfg(test)]
mod tests {
    use super::Freshness;
    use mlgw_remote::origin::OriginError;
    use std::time::Duration;

    #[test]
    fn what_an_origin_said_is_repeated_only_when_it_cannot_be_asked() {
        let fresh = Freshness::default();
        let hour = Duration::from_hours(1);
        assert!(fresh.is_fresh(Duration::from_secs(29)) && !fresh.is_fresh(Duration::from_secs(30)));
        for error in [OriginError::TimedOut, OriginError::Failed(500), OriginError::Throttled(None)] {
            assert!(fresh.may_be_stale(hour, &error) && !fresh.may_be_stale(25 * hour, &error));
        }
        for error in [OriginError::NoSuchKey, OriginError::Denied("no".into()), OriginError::NoSuchBucket] {
            assert!(!fresh.may_be_stale(hour, &error), "{error}");
        }
    }
}
