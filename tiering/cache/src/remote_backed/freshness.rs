//! Validity time of an origin's metadata. Pure.

use mlgw_remote::origin::OriginError;
use std::time::Duration;

/// Validity times of an origin's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// Metadata of an object.
    pub positive: Duration,
    /// Absence of a key.
    pub negative: Duration,
    /// Metadata of an object while the origin cannot be reached.
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
    /// True if metadata of this age is still valid.
    pub(super) fn is_fresh(&self, age: Duration) -> bool {
        age < self.positive
    }

    /// True if expired metadata of this age may be served although the origin request failed with `error`. It
    /// may not if the origin answered that access is denied or the object does not exist.
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
    fn expired_metadata_is_used_only_if_the_origin_cannot_be_reached() {
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
