//! The segment directories of a running tier: the hot one, and those of the cold tier with their space.

use std::io;
use std::sync::Arc;

use mlgw_common::SegmentTier;
use mlgw_common::ids::SegmentId;
use mlgw_common::limits::MIB;
use mlgw_formats::schema::{Replica, SegmentRecord};
use rustix::fs::statvfs;

use super::dirs::SegmentDirs;
use super::file::SegmentDisk;
use super::map::{SegmentLocation, SegmentMap};
use super::marks::{DirectorySweep, MarkError, check_and_mark_all};
use super::open_error::HotOpenError;
use super::options::{HotOptions, MissingSegments};
use super::recovery::{ListingContext, SegmentDirListing, list_files, sweep};
use super::space::{DiskSpace, SpaceLimits};
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;

/// All segment directories.
pub(super) struct SegmentVolumes {
    pub(super) hot: Arc<SegmentDisk>,
    pub(super) cold: Vec<ColdVolume>,
    dirs: SegmentDirs,
}

/// A directory of the cold tier.
pub(super) struct ColdVolume {
    pub(super) disk: SegmentDisk,
    pub(super) space: DiskSpace,
}

/// Findings of a start in the directories.
pub(super) struct VolumeFindings {
    /// Files that belong to no segment.
    pub(super) stray: Vec<String>,
    /// Bytes of segments in the hot directory.
    pub(super) hot_bytes: u64,
    /// Segments of the cold tier that are in no directory.
    pub(super) missing: Vec<SegmentId>,
}

/// Checks and marks the directories of a start, whose disks are `disks`, and refuses those that are not used.
///
/// # Errors
/// As [`check_and_mark_all`].
pub(super) fn check_directories<'a>(
    dirs: &SegmentDirs,
    map: &dyn SegmentMap,
    options: &HotOptions,
    disks: impl Iterator<Item = &'a SegmentDisk>,
) -> Result<Vec<DirectorySweep>, MarkError> {
    let sweeps = check_and_mark_all(dirs, map, options)?;
    for (disk, _) in disks.zip(&sweeps).filter(|(_, sweep)| **sweep == DirectorySweep::Unused) {
        let io = |source| MarkError::Io { dir: disk.dir().to_owned(), source };
        disk.refuse_unproven().map_err(io)?;
    }
    Ok(sweeps)
}

impl VolumeFindings {
    /// Checks that no segment of the cold tier is missing.
    ///
    /// # Errors
    /// When one is missing, and `missing` segments are refused.
    pub(super) fn check_missing(&self, missing: MissingSegments) -> Result<(), HotOpenError> {
        let (segments, Some(&first)) = (self.missing.len(), self.missing.first()) else { return Ok(()) };
        tracing::error!(segments, %first, "segments of the cold tier are missing");
        match missing {
            MissingSegments::Accepted => Ok(()),
            MissingSegments::Refused => Err(HotOpenError::Missing { segments, first }),
        }
    }
}

impl SegmentVolumes {
    /// Opens the set of directories, whose disks are `hot` and `cold`. Removes remains of interrupted moves
    /// and removals as `sweeps` allows it for each directory.
    pub(super) fn open(
        of: ListingContext<'_>,
        hot: Arc<SegmentDisk>,
        cold: Vec<SegmentDisk>,
        sweeps: &[DirectorySweep],
    ) -> io::Result<(Self, VolumeFindings)> {
        let (map, dirs, node) = (of.map, of.dirs.clone(), of.lineage.node);
        assert_eq!(sweeps.len(), 1 + cold.len(), "each segment directory was checked");
        let SegmentDirListing { mut stray, removed, used_bytes: hot_bytes } =
            list_files(of, &hot, SegmentTier::Hot, sweeps[0])?;
        sweep(map, &hot, &removed)?;
        let mut volumes = Vec::new();
        for (disk, sweeps) in cold.into_iter().zip(&sweeps[1..]) {
            let listed = list_files(of, &disk, SegmentTier::Cold, *sweeps)?;
            sweep(map, &disk, &listed.removed)?;
            stray.extend(listed.stray);
            let dir = disk.dir().to_owned();
            let total = statvfs(&dir).map_or(0, |found| found.f_blocks.saturating_mul(found.f_frsize));
            // A 64th of the disk, for the file system itself: no catalogue is on it.
            let reserve_bytes = (total / 64).clamp(16 * MIB, 1024 * MIB);
            let bounds = SpaceLimits { reserve_bytes, ballast_bytes: 0, capacity_bytes: u64::MAX / 2 };
            let space = DiskSpace::open(&dir, disk.state().clone(), bounds, listed.used_bytes);
            volumes.push(ColdVolume { disk, space });
        }
        if sweeps.contains(&DirectorySweep::Unused) {
            // What is in a directory that is not used is not missing yet.
            let missing = Vec::new();
            return Ok((Self { hot, cold: volumes, dirs }, VolumeFindings { stray, hot_bytes, missing }));
        }
        let elsewhere = map.records_outside_hot().map_err(io::Error::other)?;
        let is_cold = |replica: &Replica| replica.tier() == Ok(SegmentTier::Cold);
        let cold = elsewhere.iter().filter(|record| record.replica_of(node).is_some_and(is_cold));
        let missing = cold
            .map(SegmentRecord::segment_id)
            .filter(|&id| !dirs.path(id, SegmentTier::Cold).exists())
            .collect();
        Ok((Self { hot, cold: volumes, dirs }, VolumeFindings { stray, hot_bytes, missing }))
    }

    pub(super) fn dirs(&self) -> &SegmentDirs {
        &self.dirs
    }

    /// Returns the cold directory with the lowest fill level of those in use with space for `bytes`, so that
    /// disks of different sizes fill evenly.
    pub(super) fn least_full(&self, bytes: u64) -> Option<&ColdVolume> {
        let fill = |volume: &ColdVolume| {
            let (used, room) = (volume.space.used_bytes() as f64, volume.space.room_bytes() as f64);
            used / (used + room).max(1.0)
        };
        let with_room = self.cold_in_use().filter(|volume| volume.space.has_room(bytes));
        with_room.min_by(|a, b| fill(a).total_cmp(&fill(b)))
    }

    /// The cold directories that are used.
    fn cold_in_use(&self) -> impl Iterator<Item = &ColdVolume> {
        self.cold.iter().filter(|volume| !volume.disk.state().is_refused())
    }

    /// Returns the bytes of segments in the cold tier, and the bytes that it can still take.
    pub(super) fn cold_bytes(&self) -> (u64, u64) {
        let each = self.cold.iter().map(|volume| (volume.space.used_bytes(), volume.space.room_bytes()));
        each.fold((0, 0), |(used, room), (more_used, more_room)| (used + more_used, room + more_room))
    }

    /// Sets files under a segment's name aside whose headers do not match its record at `place`. Directories
    /// that are not used are not read: their disks may not respond.
    pub(super) fn set_foreign_aside(&self, segment: SegmentId, place: &SegmentLocation) -> io::Result<()> {
        let hot = Some(&*self.hot).filter(|hot| !hot.state().is_refused());
        let mut in_use = hot.into_iter().chain(self.cold_in_use().map(|volume| &volume.disk));
        in_use.try_for_each(|disk| disk.set_foreign_aside(segment, place).map(drop))
    }

    /// Removes the file of a segment from the cold tier and returns its length. Nothing is removed from a
    /// directory that is not used: when it is used again, the sweep of replicas removes what no record lists.
    pub(super) fn remove_cold(&self, segment: SegmentId) -> io::Result<u64> {
        let mut removed = 0;
        for volume in self.cold_in_use() {
            if let Some(bytes) = volume.disk.remove(segment)? {
                volume.space.record_freed(bytes.saturating_sub(SEGMENT_HEADER_BYTES));
                removed += bytes;
            }
        }
        Ok(removed)
    }
}
