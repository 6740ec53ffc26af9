//! The local directory that has, or gets, the file of a replica.
//!
//! A new copy goes to the hot tier. The owner of a segment may have moved its replica to the cold tier, where
//! it is healed in its directory.

use std::fs::File;
use std::io;

use mlgw_common::ids::SegmentId;
use mlgw_common::{SegmentTier, regular};
use mlgw_formats::schema::{Replica, SegmentRecord};

use crate::fair::DiskQueue;
use crate::hot::HotTierInner;
use crate::hot::dirs::open_in;
use crate::hot::file::SegmentDisk;
use crate::hot::file_names::segment_file_name;
use crate::hot::map::SegmentLocation;
use crate::hot::space::DiskSpace;

/// A local segment directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum ReplicaHome {
    /// The directory of the hot tier.
    Hot,
    /// A directory of the cold tier, by its index.
    Cold(usize),
}

impl ReplicaHome {
    pub(super) const fn tier(self) -> SegmentTier {
        match self {
            Self::Hot => SegmentTier::Hot,
            Self::Cold(_) => SegmentTier::Cold,
        }
    }

    pub(super) fn disk(self, inner: &HotTierInner) -> &SegmentDisk {
        match self {
            Self::Hot => &inner.volumes.hot,
            Self::Cold(index) => &inner.volumes.cold[index].disk,
        }
    }

    pub(super) fn space(self, inner: &HotTierInner) -> &DiskSpace {
        match self {
            Self::Hot => &inner.shared.space,
            Self::Cold(index) => &inner.volumes.cold[index].space,
        }
    }

    pub(super) fn queue(self, inner: &HotTierInner) -> &DiskQueue {
        inner.shared.queues.for_tier(self.tier())
    }

    /// True if the directory is used.
    fn is_used(self, inner: &HotTierInner) -> bool {
        !self.disk(inner).state().is_refused()
    }

    /// True if there is a file under the name of the segment.
    pub(super) fn has_file(self, inner: &HotTierInner, segment: SegmentId) -> bool {
        self.disk(inner).dir().join(segment_file_name(segment)).exists()
    }

    /// Returns the entry of a record for an intact replica of this node here.
    pub(super) fn replica(self, inner: &HotTierInner) -> Replica {
        let location = self.disk(inner).dir().file_name().unwrap_or_default();
        Replica {
            node: inner.node.0,
            tier: self.tier().number(),
            location: location.to_string_lossy().into_owned(),
            ..Replica::default()
        }
    }
}

/// The file of a segment on this node, whether a record lists it or not.
pub(super) struct OwnFile {
    pub(super) home: ReplicaHome,
    pub(super) file: File,
}

/// Returns the directory for a new file of `bytes`: the hot tier, or the emptiest cold directory if the hot
/// tier is full, among those that are used.
pub(super) fn new_home(inner: &HotTierInner, bytes: u64) -> ReplicaHome {
    let fits = |home: &ReplicaHome| home.is_used(inner) && home.space(inner).has_room(bytes);
    let room = |home: &ReplicaHome| home.space(inner).room_bytes();
    let cold = (0..inner.volumes.cold.len()).map(ReplicaHome::Cold);
    if fits(&ReplicaHome::Hot) {
        return ReplicaHome::Hot;
    }
    cold.filter(fits).max_by_key(room).unwrap_or(ReplicaHome::Hot)
}

/// Returns the file of the segment of `record` on this node, from the recorded tier if several directories
/// that are used have it. A file of another segment under its name counts as none. One whose first bytes
/// cannot be read may be the segment's: its records verify by themselves.
pub(super) fn own_file(inner: &HotTierInner, record: &SegmentRecord) -> Option<OwnFile> {
    let cold = (0..inner.volumes.cold.len()).map(ReplicaHome::Cold);
    let mut homes: Vec<ReplicaHome> = std::iter::once(ReplicaHome::Hot).chain(cold).collect();
    homes.retain(|home| home.is_used(inner));
    let recorded = record.replica_of(inner.node).and_then(|replica| replica.tier().ok());
    homes.sort_by_key(|home| Some(home.tier()) != recorded);
    let place = SegmentLocation::of(record, recorded.unwrap_or(SegmentTier::Hot));
    let open = |home: ReplicaHome| -> io::Result<Option<File>> {
        let dir = home.disk(inner).dir();
        let opened = open_in(dir, record.segment_id(), &place);
        opened.or_else(|_| regular::open(&dir.join(segment_file_name(record.segment_id()))).map(Some))
    };
    homes.into_iter().find_map(|home| match open(home) {
        Ok(file) => file.map(|file| OwnFile { home, file }),
        Err(error) => {
            tracing::warn!(segment = %record.segment_id(), %error, "cannot read the local file of a segment");
            None
        }
    })
}
