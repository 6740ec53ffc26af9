//! Validity of certificates: a year, renewed at two thirds, with an alert in the last 30 days. Pure.

use mlgw_common::Timestamp;
use mlgw_common::limits::{CERTIFICATE_ALERT_DAYS, CERTIFICATE_BACKDATED_SECS, CERTIFICATE_DAYS};
use serde::{Deserialize, Serialize};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Time in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validity {
    /// Its begin, in milliseconds since the Unix epoch; whole seconds.
    pub not_before_ms: i64,
    /// Its end, in milliseconds since the Unix epoch; whole seconds.
    pub not_after_ms: i64,
}

/// Age of a certificate, by what is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateAge {
    /// The clock of this machine is before its begin.
    NotYetValid,
    /// Nothing is to be done.
    Fresh,
    /// It is to be renewed.
    RenewalDue,
    /// It is to be renewed, and an operator is to be alerted: it ends in at most 30 days.
    ExpiresSoon,
    /// It is not valid any more.
    Expired,
}

impl Validity {
    /// Validity of a certificate of a node that is signed now. It begins a little earlier, for nodes whose
    /// clocks are behind.
    #[must_use]
    pub const fn of_node(now: Timestamp) -> Self {
        Self::of_days(now, CERTIFICATE_DAYS)
    }

    /// Validity of `days` from now.
    #[must_use]
    pub(crate) const fn of_days(now: Timestamp, days: i64) -> Self {
        let now_ms = now.as_secs().saturating_mul(1000);
        Self {
            not_before_ms: now_ms.saturating_sub(CERTIFICATE_BACKDATED_SECS * 1000),
            not_after_ms: now_ms.saturating_add(days * DAY_MS),
        }
    }

    /// Age at a time.
    #[must_use]
    pub const fn age(&self, now: Timestamp) -> CertificateAge {
        let now_ms = now.as_millis();
        if now_ms < self.not_before_ms {
            CertificateAge::NotYetValid
        } else if now_ms >= self.not_after_ms {
            CertificateAge::Expired
        } else if self.not_after_ms - now_ms <= CERTIFICATE_ALERT_DAYS * DAY_MS {
            CertificateAge::ExpiresSoon
        } else if now_ms >= self.renewal_ms() {
            CertificateAge::RenewalDue
        } else {
            CertificateAge::Fresh
        }
    }

    /// Time at which two thirds of the validity have passed, in milliseconds since the Unix epoch.
    #[must_use]
    pub const fn renewal_ms(&self) -> i64 {
        let length_ms = self.not_after_ms.saturating_sub(self.not_before_ms);
        self.not_before_ms.saturating_add(length_ms / 3 * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::{CertificateAge, DAY_MS, Validity};
    use mlgw_common::Timestamp;

    #[test]
    fn renewal_is_due_at_two_thirds_and_the_alert_at_thirty_days() {
        let now = Timestamp(1_800_000_000_123);
        let validity = Validity::of_node(now);
        let hour_ms = 3_600_000;
        assert_eq!(validity.not_before_ms, 1_800_000_000_000 - hour_ms);
        assert_eq!(validity.not_after_ms, 1_800_000_000_000 + 365 * DAY_MS);
        let renewal_ms = validity.not_before_ms + (365 * DAY_MS + hour_ms) / 3 * 2;
        for (at_ms, age) in [
            (validity.not_before_ms - 1, CertificateAge::NotYetValid),
            (validity.not_before_ms, CertificateAge::Fresh),
            (now.0, CertificateAge::Fresh),
            (renewal_ms - 1, CertificateAge::Fresh),
            (renewal_ms, CertificateAge::RenewalDue),
            (validity.not_after_ms - 30 * DAY_MS - 1, CertificateAge::RenewalDue),
            (validity.not_after_ms - 30 * DAY_MS, CertificateAge::ExpiresSoon),
            (validity.not_after_ms - 1, CertificateAge::ExpiresSoon),
            (validity.not_after_ms, CertificateAge::Expired),
        ] {
            assert_eq!(validity.age(Timestamp(at_ms)), age, "{at_ms}");
        }
    }

    #[test]
    fn times_at_the_ends_of_the_range_do_not_overflow() {
        for now in [Timestamp(i64::MIN), Timestamp(0), Timestamp(i64::MAX)] {
            let validity = Validity::of_node(now);
            assert!(validity.not_before_ms <= validity.not_after_ms);
            let _ = validity.age(Timestamp(i64::MIN));
        }
    }
}
