//! How the hot tier is opened, and why it is not.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::limits::{MIB, OPEN_FILES_MAX, OWN_SEGMENTS_OPEN_MAX};
use mlgw_common::{Clock, Lineage};
use mlgw_metadata::Durability;

use super::away::AwayOptions;
use super::compaction::CompactionSettings;
use super::file::Intercept;
use super::marks::MarkError;
use super::placing::PlacingSettings;
use super::recovery::RecoverError;
use crate::decisions::Decisions;
use crate::fair::{DiskQueues, Lane};
use crate::flash::{Cause, Flash};

/// How a hot tier is opened.
#[derive(Clone)]
pub struct HotOptions {
    /// The directory of segments; made when absent.
    pub dir: PathBuf,
    /// This member of the cluster.
    pub node: NodeId,
    /// What an answered append survives. With `Os` nothing is synced.
    pub durability: Durability,
    /// Length at which a segment is sealed.
    pub segment_bytes: u64,
    /// Whether bodies that have a segment of their own are written past the page cache.
    pub direct_writes: bool,
    /// Free space under which appends are refused, so that the catalogue can still delete.
    pub reserve_bytes: u64,
    /// Bytes of segments beyond which appends are refused.
    pub capacity_bytes: u64,
    /// Size of the ballast behind the reserve; a smaller reserve has one of its own size.
    pub ballast_bytes: u64,
    /// How space is given back.
    pub compaction: CompactionSettings,
    /// The time of day, for salvage.
    pub clock: Arc<dyn Clock>,
    /// How segments are moved between tiers.
    pub placing: PlacingSettings,
    /// Directories of the cold tier; none where there is no such tier.
    pub cold_dirs: Vec<PathBuf>,
    /// Where else segments can be; nowhere where there are no upstreams.
    pub away: Option<AwayOptions>,
    /// Whether to open although segments are missing that should be in the cold tier.
    pub start_without_missing: bool,
    /// Where it is recorded what is moved, and why.
    pub decisions: Decisions,
    /// Who goes to the disks next.
    pub queues: DiskQueues,
    /// The lane that appends are in; what is moved is in the background's.
    pub append_lane: Lane,
    /// What is written to flash is counted there, and what the server writes by itself bound.
    pub flash: Flash,
    /// What appends are counted as; what is moved is compaction where there is one.
    pub append_cause: Cause,
    /// Whether chunks can be had again from elsewhere: then nothing waits for a sync, and they may go one by
    /// one, out of the middle of a segment.
    pub disposable: bool,
    /// The server whose directories they are. With cluster 0 nothing is marked or checked: tests, and copies
    /// that can be fetched again.
    pub lineage: Lineage,
    /// Bodies that may have a segment to themselves at a time.
    pub own_segments_max: usize,
    /// Segment files that are kept open for reading.
    pub open_files_max: usize,
    /// Fault injection, for tests.
    pub intercept: Option<Arc<dyn Intercept>>,
}

impl HotOptions {
    /// Options with their defaults; the reserve is made for a file system of `disk_bytes`.
    #[must_use]
    pub fn new(dir: PathBuf, disk_bytes: u64, clock: Arc<dyn Clock>) -> Self {
        Self {
            dir,
            node: NodeId::SINGLE,
            durability: Durability::Full,
            segment_bytes: 256 * MIB,
            direct_writes: true,
            // A sixteenth: 16 MiB of a 256 MiB disk, at most the GiB that a catalogue's
            // compaction may want at once.
            reserve_bytes: (disk_bytes / 16).clamp(16 * MIB, 1024 * MIB),
            capacity_bytes: u64::MAX / 2,
            ballast_bytes: (disk_bytes / 64).clamp(4 * MIB, 256 * MIB),
            compaction: CompactionSettings::default(),
            decisions: Decisions::new(clock.clone()),
            flash: Flash::new(clock.clone()),
            append_cause: Cause::Client,
            clock,
            placing: PlacingSettings::default(),
            cold_dirs: Vec::new(),
            away: None,
            start_without_missing: false,
            queues: DiskQueues::default(),
            append_lane: Lane::Checkpoint,
            disposable: false,
            lineage: Lineage::default(),
            own_segments_max: OWN_SEGMENTS_OPEN_MAX,
            open_files_max: OPEN_FILES_MAX,
            intercept: None,
        }
    }
}

/// Why a hot tier did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory, or a thread.
    #[error("cannot open the segments in {dir}: {source}")]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Cold segments that are nowhere.
    #[error(
        "segments of the cold tier ({segments}, the first of them {first}) are in none of its directories: mount their disk; or, if it is \
         lost, start with cold.start_without_missing = true"
    )]
    Missing {
        /// How many.
        segments: usize,
        /// The first of them.
        first: SegmentId,
    },
    /// Segments in an upstream that is not configured.
    #[error(
        "there is no upstream {upstream:?} in the configuration, and {segments} segments are there: name it again, or, if it is \
         lost, start with cold.start_without_missing = true"
    )]
    NoUpstream {
        /// Its name.
        upstream: String,
        /// How many.
        segments: usize,
    },
    /// A directory of another server or timeline.
    #[error(transparent)]
    Mark(#[from] MarkError),
    /// A segment left open by the last process.
    #[error(transparent)]
    Recover(#[from] RecoverError),
}
