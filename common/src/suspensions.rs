//! Suspensions of this machine, which end leases.
//!
//! An [`Instant`] stands still while the machine is suspended, and the clocks of other machines go on. A
//! lease that began before a suspension is therefore void, whatever its clock shows: another node may have
//! begun meanwhile. Suspensions are found by comparing two clocks of the kernel.
//!
//! Nothing is stored: after a power failure no lease holds.

use crate::limits::DUTY_LEASE_MARGIN_MS;
use crate::time::{Instant, SuspendedTime, suspended_time};
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// Suspensions that may stay unnoticed together, less than the margin of every lease.
const UNNOTICED_MAX: Duration = Duration::from_millis(50);

const _: () = assert!(UNNOTICED_MAX.as_millis() < Duration::from_millis(DUTY_LEASE_MARGIN_MS).as_millis());

/// Suspensions that were found. Pure.
#[derive(Debug)]
struct FoundSuspensions {
    /// Suspended time at the first check, or when the last suspension was found.
    known: Duration,
    /// No suspension was found since.
    none_since: Instant,
}

impl FoundSuspensions {
    const fn new(now: Instant, suspended: SuspendedTime) -> Self {
        Self { known: suspended.at_least, none_since: now }
    }

    /// Records the suspended time at `now`, and returns the time since which no suspension was found.
    fn check(&mut self, now: Instant, suspended: SuspendedTime) -> Instant {
        if suspended.at_most > self.known + UNNOTICED_MAX {
            *self = Self::new(now, suspended);
        }
        self.none_since
    }
}

/// Finds suspensions of the machine. Clones share what was found.
#[derive(Clone)]
pub struct SuspensionWatch {
    /// Returns the time for which the machine was suspended.
    source: Arc<dyn Fn() -> SuspendedTime + Send + Sync>,
    found: Arc<Mutex<FoundSuspensions>>,
}

impl SuspensionWatch {
    /// Creates a watch that finds every suspension from now on, by the suspended time that `source` returns.
    #[must_use]
    pub fn new(source: impl Fn() -> SuspendedTime + Send + Sync + 'static) -> Self {
        let found = FoundSuspensions::new(Instant::now(), source());
        Self { source: Arc::new(source), found: Arc::new(Mutex::new(found)) }
    }

    /// Returns the watch of this process over this machine, which began with the first call.
    #[must_use]
    pub fn of_process() -> Self {
        static WATCH: LazyLock<SuspensionWatch> = LazyLock::new(SuspensionWatch::of_machine);
        WATCH.clone()
    }

    /// Creates a watch over this machine.
    #[must_use]
    pub fn of_machine() -> Self {
        Self::new(suspended_time)
    }

    /// Returns the time since which no suspension was found.
    #[must_use]
    pub fn none_since(&self) -> Instant {
        // A suspension between the two is found, because its length is read last.
        let now = Instant::now();
        let suspended = (self.source)();
        self.found.lock().unwrap_or_else(PoisonError::into_inner).check(now, suspended)
    }

    /// True if a lease that lasts until `end` still holds. `length` is the time from its begin to its end.
    #[must_use]
    pub fn lease_holds(&self, end: Instant, length: Duration) -> bool {
        Instant::now() < end && end >= self.none_since() + length
    }
}

impl Default for SuspensionWatch {
    fn default() -> Self {
        Self::of_process()
    }
}

impl fmt::Debug for SuspensionWatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        out.debug_struct("SuspensionWatch").field("found", &*found).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{FoundSuspensions, SuspensionWatch, UNNOTICED_MAX};
    use crate::time::{Instant, SuspendedTime, sleep};
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_suspension_ends_the_leases_that_began_before_it_and_no_others() {
        let (length, suspended_ms) = (Duration::from_secs(3), Arc::new(AtomicU64::default()));
        let source = Arc::clone(&suspended_ms);
        let watch = SuspensionWatch::new(move || {
            let suspended = Duration::from_millis(source.load(Relaxed));
            SuspendedTime { at_least: suspended, at_most: suspended }
        });
        let end = Instant::now() + length;
        assert!(watch.lease_holds(end, length));
        sleep(length / 2).await;
        assert!(watch.lease_holds(end, length));
        suspended_ms.store(60_000, Relaxed);
        assert!(!watch.lease_holds(end, length), "its clock stood still for a minute");
        let renewed = Instant::now() + length;
        assert!(watch.lease_holds(renewed, length));
        sleep(length).await;
        assert!(!watch.lease_holds(renewed, length), "its time is over");
    }

    proptest! {
        /// A machine is suspended now and then, and the suspended time is read with some inaccuracy.
        #[test]
        fn suspensions_that_stay_unnoticed_are_short_together(
            steps in prop::collection::vec((0_u64..80, 0_u64..30, 1_u64..200), 1..50),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _context = runtime.enter();
            let ms = Duration::from_millis;
            let (mut now, mut total) = (Instant::now(), Duration::ZERO);
            let mut found = FoundSuspensions { known: total, none_since: now };
            let mut at: Vec<(Instant, Duration)> = Vec::new();
            for (suspended, inaccuracy, passed) in steps {
                at.push((now, ms(suspended)));
                total += ms(suspended);
                now += ms(passed);
                let range = SuspendedTime {
                    at_least: total.saturating_sub(ms(inaccuracy)),
                    at_most: total + ms(inaccuracy),
                };
                let since = found.check(now, range);
                let unnoticed: Duration = at.iter().filter(|(at, _)| *at >= since).map(|(_, of)| *of).sum();
                prop_assert!(unnoticed <= UNNOTICED_MAX, "{unnoticed:?}");
            }
        }
    }
}
