//! A token bucket of bytes that refills continuously over the day. Pure: all times are arguments.

/// Milliseconds of a day.
const DAY_MS: i64 = 24 * 3_600_000;
/// The capacity of the bucket, and the maximum debt from client writes, are one day's budget divided by this.
const HOURS_PER_DAY: u64 = 24;

/// Bytes that may be written.
#[derive(Clone, Debug)]
pub(super) struct FlashTokenBucket {
    /// Bytes per day; 0 is unlimited.
    per_day: u64,
    /// Remaining bytes as of `at_ms`.
    left: i64,
    /// Time of the last change of `left`; `None` before the first.
    at_ms: Option<i64>,
}

impl FlashTokenBucket {
    /// Creates a full bucket of `per_day` bytes; 0 is unlimited.
    pub(super) fn new(per_day: u64) -> Self {
        let mut bucket = Self { per_day, left: 0, at_ms: None };
        bucket.left = bucket.hour_bytes();
        bucket
    }

    pub(super) fn is_limited(&self) -> bool {
        self.per_day > 0
    }

    /// Restores the state that an earlier process saved.
    pub(super) fn restore(&mut self, left: i64, at_ms: i64) {
        (self.left, self.at_ms) = (left.min(self.hour_bytes()), Some(at_ms));
    }

    /// Changes the budget from now on.
    pub(super) fn set(&mut self, now_ms: i64, per_day: u64) {
        let is_new = !self.is_limited();
        self.left = self.remaining(now_ms);
        (self.per_day, self.at_ms) = (per_day, Some(now_ms));
        self.left = if is_new { self.hour_bytes() } else { self.left.min(self.hour_bytes()) };
    }

    /// Remaining bytes now, negative after overspending. A clock that goes back adds nothing.
    pub(super) fn remaining(&self, now_ms: i64) -> i64 {
        let passed_ms = self.at_ms.map_or(0, |at_ms| now_ms.saturating_sub(at_ms).max(0));
        let more = i128::from(self.per_day) * i128::from(passed_ms) / i128::from(DAY_MS);
        let filled = i128::from(self.left) + more;
        i64::try_from(filled.min(i128::from(self.hour_bytes()))).unwrap_or(i64::MIN)
    }

    /// Takes the bytes of a write of the server's own, even if more than remain. The debt is unlimited.
    pub(super) fn charge_own(&mut self, now_ms: i64, bytes: u64) {
        let before = self.remaining(now_ms);
        self.set_left(now_ms, before.saturating_sub_unsigned(bytes));
    }

    /// Takes the bytes of a client's write, even if more than remain. The debt is at most what an hour
    /// refills, so that the server's own writes resume soon after a burst of clients.
    pub(super) fn charge_client(&mut self, now_ms: i64, bytes: u64) {
        let before = self.remaining(now_ms);
        let debt_max = (-self.hour_bytes()).min(before);
        self.set_left(now_ms, before.saturating_sub_unsigned(bytes).max(debt_max));
    }

    fn set_left(&mut self, now_ms: i64, left: i64) {
        self.left = left;
        // The fraction of a byte accrued since `at_ms` is dropped; every call takes at least that much.
        self.at_ms = Some(now_ms.max(self.at_ms.unwrap_or(now_ms)));
    }

    fn hour_bytes(&self) -> i64 {
        i64::try_from(self.per_day / HOURS_PER_DAY).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::{DAY_MS, FlashTokenBucket};
    use proptest::prelude::*;

    const HOUR_MS: i64 = DAY_MS / 24;

    #[test]
    fn unused_budget_accumulates_for_one_hour() {
        let mut bucket = FlashTokenBucket::new(24_000);
        assert_eq!((bucket.remaining(0), bucket.remaining(100 * DAY_MS)), (1000, 1000));
        bucket.charge_own(0, 3000);
        assert_eq!(
            (bucket.remaining(0), bucket.remaining(HOUR_MS), bucket.remaining(HOUR_MS * 5 / 2)),
            (-2000, -1000, 500)
        );
        assert_eq!(
            (bucket.remaining(-DAY_MS), bucket.remaining(DAY_MS)),
            (-2000, 1000),
            "a clock that goes back"
        );
    }

    #[test]
    fn debt_from_client_writes_is_at_most_one_hour() {
        let mut bucket = FlashTokenBucket::new(24_000);
        bucket.charge_client(0, 1 << 40);
        assert_eq!(bucket.remaining(0), -1000);
        bucket.charge_own(0, 500);
        bucket.charge_client(0, 500);
        assert_eq!(bucket.remaining(0), -1500, "client writes do not reduce the server's own debt");
    }

    #[test]
    fn a_new_budget_keeps_the_debt() {
        let mut bucket = FlashTokenBucket::new(24_000);
        bucket.charge_own(0, 3000);
        bucket.set(0, 48_000);
        assert_eq!((bucket.remaining(0), bucket.remaining(HOUR_MS)), (-2000, 0));
        bucket.set(0, 0);
        assert!(!bucket.is_limited());
        bucket.set(0, 24_000);
        assert_eq!(bucket.remaining(0), 1000);
    }

    proptest! {
        /// A writer that writes only while budget remains writes no more than the budget of the elapsed time,
        /// an hour's budget and one more request.
        #[test]
        fn own_writes_stay_within_the_budget_over_any_time(
            per_day in 1000u64..1_000_000,
            steps in prop::collection::vec((0i64..HOUR_MS, 1u64..5000), 1..200),
        ) {
            let (mut bucket, mut now, mut written) = (FlashTokenBucket::new(per_day), 0, 0);
            for (pause, bytes) in steps {
                now += pause;
                if bucket.remaining(now) > 0 {
                    bucket.charge_own(now, bytes);
                    written += bytes;
                }
                let due = per_day as f64 * now as f64 / DAY_MS as f64 + per_day as f64 / 24.0;
                prop_assert!(written as f64 <= due + 5000.0, "{written} of {due}");
            }
        }
    }
}
