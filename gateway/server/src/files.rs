//! Divides the limit of open files between connections and files.
//!
//! Connections and files take descriptors from one limit of the system. If connections could take all of
//! them, a PUT would find no descriptor for its segment, and a listener none to refuse a connection.
//! Therefore half of a small limit is reserved for files and for the other listeners, and connections get the
//! rest, which may be less than `limits.connections`. A start with a limit below [`FILES_MIN`] is refused.

use mlgw_common::limits::{FILES_KEPT_MAX, FILES_MIN, OPEN_FILES_MAX};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Error of a limit of open files that is too small for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the limit of open files is {limit}, but at least {FILES_MIN} is required: raise it (`ulimit -n`, \
     LimitNOFILE of systemd, the ulimits of a container). Each connection uses one: limits.connections \
     requires {wanted} plus {FILES_KEPT_MAX}"
)]
pub struct TooFewFiles {
    limit: u64,
    wanted: u64,
}

/// The division of the process's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileBudget {
    /// The limit of open files.
    pub limit: u64,
    /// S3 connections at a time.
    pub connections: u64,
    /// S3 connections that are being refused at a time.
    pub refusals: usize,
    /// Connections of each other listener that are being refused at a time.
    pub side_refusals: usize,
    /// Connections of each other listener.
    pub side_connections: usize,
    /// Additional connections for probes, of each listener that serves probes.
    pub probe_connections: usize,
    /// Segment files kept open for reading: this many of local objects and as many of copies.
    pub segment_files: usize,
}

impl FileBudget {
    /// Divides `limit` descriptors for `wanted` configured connections.
    ///
    /// # Errors
    /// When the limit is too small.
    pub fn of(limit: u64, wanted: u64) -> Result<Self, TooFewFiles> {
        if limit < FILES_MIN {
            return Err(TooFewFiles { limit, wanted });
        }
        let kept = (limit / 2).min(FILES_KEPT_MAX);
        let part = |of: u64, max: u64| usize::try_from((kept / of).min(max)).unwrap_or(usize::MAX);
        let budget = Self {
            limit,
            connections: wanted.min(limit - kept),
            refusals: part(6, 256),
            side_refusals: part(32, 64),
            side_connections: part(16, 256),
            probe_connections: part(32, 64),
            segment_files: part(8, OPEN_FILES_MAX as u64),
        };
        assert!(budget.kept_files() <= kept, "connections and files share the limit without an overlap");
        Ok(budget)
    }

    /// Returns the descriptors for all but S3 connections. Two listeners serve the admin API and probes;
    /// segment files are open for local objects and for copies.
    const fn kept_files(&self) -> u64 {
        let side = self.side_refusals + self.side_connections + self.probe_connections;
        (self.refusals + 2 * side + 2 * self.segment_files) as u64
    }

    /// Raises the limit of this process to its maximum and divides it. The usual soft limit of 1,024 exists
    /// for programs that use `select`.
    ///
    /// # Errors
    /// When the limit is too small.
    pub fn of_process(wanted: u64) -> Result<Self, TooFewFiles> {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, ?limit, "cannot raise the limit of open files");
        }
        Self::of(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::{FILES_KEPT_MAX, FILES_MIN, FileBudget, TooFewFiles};
    use proptest::prelude::*;

    #[test]
    fn a_small_limit_is_refused_with_advice() {
        for limit in [0, 40, 200, FILES_MIN - 1] {
            let refused = FileBudget::of(limit, 10_000).unwrap_err();
            assert_eq!(refused, TooFewFiles { limit, wanted: 10_000 });
            let text = refused.to_string();
            assert!(text.contains(&format!("is {limit}, but at least {FILES_MIN}")), "{text}");
        }
    }

    #[test]
    fn a_large_limit_changes_nothing() {
        let budget = FileBudget::of(1 << 20, 10_000).unwrap();
        assert_eq!((budget.connections, budget.segment_files, budget.side_connections), (10_000, 512, 256));
        assert_eq!((budget.refusals, budget.probe_connections), (256, 64));
        assert_eq!(FileBudget::of(1 << 20, u64::MAX).unwrap().connections, (1 << 20) - FILES_KEPT_MAX);
    }

    #[test]
    fn configured_connections_are_granted_if_the_limit_covers_them_beside_the_reserve() {
        assert_eq!(FileBudget::of(20_000, 12_500).unwrap().connections, 12_500);
        assert_eq!(FileBudget::of(1024, 10_000).unwrap().connections, 512);
    }

    proptest! {
        #[test]
        fn every_share_is_positive_and_together_they_leave_a_third_of_the_reserve(
            limit in FILES_MIN..(1 << 21), wanted in 1_u64..(1 << 21),
        ) {
            let budget = FileBudget::of(limit, wanted).unwrap();
            let kept = (limit / 2).min(FILES_KEPT_MAX);
            let side = budget.side_connections + budget.probe_connections + budget.side_refusals;
            let used = (2 * side + budget.refusals + 2 * budget.segment_files) as u64;
            prop_assert!(budget.connections >= 1 && budget.connections <= wanted);
            prop_assert!(budget.refusals > 0 && budget.side_refusals > 0);
            prop_assert!(budget.side_connections > 0 && budget.probe_connections > 0);
            prop_assert!(used <= kept * 2 / 3, "{used} of {kept}");
            prop_assert!(budget.connections + kept <= limit);
        }
    }
}
