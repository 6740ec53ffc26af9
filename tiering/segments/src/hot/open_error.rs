//! Errors of opening the segment store.

use std::io;
use std::path::PathBuf;

use mlgw_common::ids::SegmentId;

use super::marks::MarkError;
use super::recovery::RecoveryError;

/// A segment store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum HotOpenError {
    /// The directory could not be used, or a thread not be started.
    #[error("cannot open the segments in {dir}: {source}")]
    Io {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Segments of the cold tier are in no directory.
    #[error(
        "{segments} segments of the cold tier (the first is {first}) are in none of its directories: mount \
         their disk; if it is lost, start with cold.start_without_missing = true"
    )]
    Missing {
        /// Number of missing segments.
        segments: usize,
        /// The first missing segment.
        first: SegmentId,
    },
    /// Segments are at an upstream that is not configured.
    #[error(
        "upstream {upstream:?} is not in the configuration, but it has {segments} segments: configure it \
         again; if it is lost, start with cold.start_without_missing = true"
    )]
    NoUpstream {
        /// Name of the upstream.
        upstream: String,
        /// Number of its segments.
        segments: usize,
    },
    /// A directory belongs to another server or timeline.
    #[error(transparent)]
    Mark(#[from] MarkError),
    /// A segment that the last process left open could not be recovered.
    #[error(transparent)]
    Recover(#[from] RecoveryError),
}
