//! The directories of segments of a running tier: the hot one, and those of the cold tier with their room.

use std::io;
use std::sync::Arc;

use mlgw_common::ids::SegmentId;
use mlgw_common::limits::MIB;
use mlgw_formats::schema::SegmentRecord;
use rustix::fs::statvfs;

use super::catalogue::{COLD, HOT};
use super::dirs::SegmentDirs;
use super::file::Disk;
use super::map::Whereabouts;
use super::options::OpenError;
use super::recovery::{Listed, Listing, list_files, sweep};
use super::space::{Bounds, Space};
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;

/// All directories of segments.
pub(super) struct Volumes {
    pub(super) hot: Arc<Disk>,
    pub(super) cold: Vec<ColdVolume>,
    dirs: SegmentDirs,
}

/// A directory of the cold tier.
pub(super) struct ColdVolume {
    pub(super) disk: Disk,
    pub(super) space: Space,
}

/// What a start found in them.
pub(super) struct Found {
    /// Files of no segment.
    pub(super) stray: Vec<String>,
    /// Bytes of segments in the hot directory.
    pub(super) hot_bytes: u64,
    /// Segments that should be in the cold tier and are in none.
    pub(super) missing: Vec<SegmentId>,
}

impl Found {
    /// Sees that every segment of the cold tier is there.
    ///
    /// # Errors
    /// When one is not, unless it `may_be_missing`.
    pub(super) fn all_there(&self, may_be_missing: bool) -> Result<(), OpenError> {
        let (segments, Some(&first)) = (self.missing.len(), self.missing.first()) else { return Ok(()) };
        tracing::error!(segments, %first, "segments of the cold tier are missing");
        if may_be_missing { Ok(()) } else { Err(OpenError::Missing { segments, first }) }
    }
}

impl Volumes {
    /// Takes the directories of `of`, opened as `hot` and `cold`. Removes what interrupted moves and removals
    /// have left in those that may be swept: `sweeps` has one flag for each directory.
    pub(super) fn open(
        of: Listing<'_>,
        hot: Arc<Disk>,
        cold: Vec<Disk>,
        sweeps: &[bool],
    ) -> io::Result<(Self, Found)> {
        let (map, dirs) = (of.map, of.dirs.clone());
        let mut sweeps = sweeps.iter().copied();
        let mut may_sweep = || sweeps.next().unwrap_or(false);
        let Listed { mut stray, removed, used_bytes: hot_bytes } = list_files(of, &hot, HOT, may_sweep())?;
        sweep(map, &hot, &removed)?;
        let mut volumes = Vec::new();
        for disk in cold {
            let listed = list_files(of, &disk, COLD, may_sweep())?;
            sweep(map, &disk, &listed.removed)?;
            stray.extend(listed.stray);
            let dir = disk.dir().to_owned();
            let total = statvfs(&dir).map_or(0, |found| found.f_blocks.saturating_mul(found.f_frsize));
            // The same share as the hot tier's: what the file system itself needs.
            let reserve_bytes = (total / 64).clamp(16 * MIB, 1024 * MIB);
            let bounds = Bounds { reserve_bytes, ballast_bytes: 0, capacity_bytes: u64::MAX / 2 };
            let space = Space::open(&dir, bounds, listed.used_bytes);
            volumes.push(ColdVolume { disk, space });
        }
        let elsewhere = map.elsewhere().map_err(io::Error::other)?;
        let cold = elsewhere.iter().filter(|record| record.summary().tier == COLD);
        let missing =
            cold.map(SegmentRecord::segment_id).filter(|&id| !dirs.path(id, COLD).exists()).collect();
        Ok((Self { hot, cold: volumes, dirs }, Found { stray, hot_bytes, missing }))
    }

    pub(super) fn dirs(&self) -> &SegmentDirs {
        &self.dirs
    }

    /// The cold directory that is filled least, of those that have room for `bytes`; so disks of all sizes
    /// fill alike.
    pub(super) fn least_full(&self, bytes: u64) -> Option<&ColdVolume> {
        let fill = |volume: &ColdVolume| {
            let (used, room) = (volume.space.used_bytes() as f64, volume.space.room_bytes() as f64);
            used / (used + room).max(1.0)
        };
        let with_room = self.cold.iter().filter(|volume| volume.space.has_room(bytes));
        with_room.min_by(|a, b| fill(a).total_cmp(&fill(b)))
    }

    /// Bytes of segments in the cold tier, and bytes that it can still take.
    pub(super) fn cold_bytes(&self) -> (u64, u64) {
        let each = self.cold.iter().map(|volume| (volume.space.used_bytes(), volume.space.room_bytes()));
        each.fold((0, 0), |(used, room), (more_used, more_room)| (used + more_used, room + more_room))
    }

    /// Sets files under the name of a segment aside that are not the one that its record, which is at
    /// `place`, means.
    pub(super) fn set_strangers_aside(&self, segment: SegmentId, place: &Whereabouts) -> io::Result<()> {
        self.hot.set_stranger_aside(segment, place)?;
        self.cold.iter().try_for_each(|volume| volume.disk.set_stranger_aside(segment, place).map(drop))
    }

    /// Removes the file of a segment from the cold tier, wherever in it, and says how long it was.
    pub(super) fn remove_cold(&self, segment: SegmentId) -> io::Result<u64> {
        let mut removed = 0;
        for volume in &self.cold {
            if let Some(bytes) = volume.disk.remove(segment)? {
                volume.space.freed(bytes.saturating_sub(SEGMENT_HEADER_BYTES));
                removed += bytes;
            }
        }
        Ok(removed)
    }
}
