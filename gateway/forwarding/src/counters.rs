//! Counters of forwarded requests, for metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one node that forwards.
        #[derive(Debug, Default)]
        pub struct ForwardCounters { $(pub(crate) $name: AtomicU64,)* }

        /// Values of the counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ForwardTotals { $($(#[$doc])* pub $name: u64,)* }

        impl ForwardTotals {
            /// Returns the values with their names.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }

        impl ForwardCounters {
            /// Returns the current values.
            #[must_use]
            pub fn totals(&self) -> ForwardTotals {
                ForwardTotals { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Requests that a member accepted.
    accepted,
    /// Verdicts of members that did not own the key.
    not_mine,
    /// Verdicts of members without room, or without a confirmation of their rows.
    busy,
    /// Verdicts of members that could not read the request.
    refused,
    /// Attempts without a verdict.
    unreachable,
    /// Requests that no member accepted.
    not_accepted,
    /// Accepted requests whose answer did not arrive.
    lost,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
