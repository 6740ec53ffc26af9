//! Free space of a tier's file system, and the refusal of appends before it is full, so that the catalogue
//! keeps working.
//!
//! A delete frees nothing until compaction, and both need space for the catalogue's log and tables, which are
//! on the same file system. So appends are refused while free space is below `reserve_bytes`, or when the
//! segments would exceed the tier's capacity. Chunks moved by compaction may use the reserve, and so may
//! appends of other nodes to segments that this node follows: clients of this node must not take the space
//! that these have begun to use. The *ballast* is a preallocated file within the reserve: when less than half
//! of the reserve is left, the ballast is truncated, and it is allocated again when there is enough space. A
//! power loss at any moment leaves a ballast of some size, which the next refresh corrects.
//!
//! `statvfs` is called once per housekeeping tick and once per eighth of the reserve admitted, not per
//! append; between two calls admitted bytes are subtracted.

use mlgw_common::time::Instant;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mlgw_common::regular;
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::directory::DirectoryState;

/// Name of the ballast file, in the segment directory.
pub const BALLAST_FILE_NAME: &str = "ballast";

/// Minimum of the admitted bytes after which `statvfs` is called again, for small reserves.
const REFRESH_BYTES_MIN: u64 = 1 << 20;
/// Minimum time between two calls of `statvfs` by appends while the tier is full.
const REFRESH_INTERVAL: Duration = Duration::from_millis(50);

/// Limits of a tier's space.
#[derive(Clone, Copy)]
pub(super) struct SpaceLimits {
    pub(super) reserve_bytes: u64,
    pub(super) ballast_bytes: u64,
    pub(super) capacity_bytes: u64,
}

pub(super) struct DiskSpace {
    dir: PathBuf,
    /// Use of the directory.
    directory: Arc<DirectoryState>,
    reserve_bytes: u64,
    capacity_bytes: u64,
    /// Bytes of segments.
    used_bytes: AtomicU64,
    /// Free bytes as of the last `statvfs`, less the bytes admitted since.
    free_bytes: AtomicI64,
    /// Bytes admitted and not yet counted by the file system.
    in_flight_bytes: AtomicU64,
    admitted_since_refresh_bytes: AtomicU64,
    /// Total of all bytes of segments ever freed.
    freed_bytes: AtomicU64,
    /// Notified when there may be more space.
    freed: Notify,
    ballast: Mutex<Ballast>,
}

struct Ballast {
    path: PathBuf,
    bytes: u64,
    is_allocated: bool,
    refreshed: Option<Instant>,
}

impl DiskSpace {
    pub(super) fn open(
        dir: &Path,
        directory: Arc<DirectoryState>,
        bounds: SpaceLimits,
        used_bytes: u64,
    ) -> Self {
        let SpaceLimits { reserve_bytes, ballast_bytes, capacity_bytes } = bounds;
        // A tier with a small reserve gets a small ballast.
        let ballast_bytes = ballast_bytes.min(reserve_bytes);
        let path = dir.join(BALLAST_FILE_NAME);
        let laid = std::fs::metadata(&path).is_ok_and(|found| found.len() >= ballast_bytes);
        let space = Self {
            dir: dir.to_owned(),
            directory,
            reserve_bytes,
            capacity_bytes,
            used_bytes: AtomicU64::new(used_bytes),
            free_bytes: AtomicI64::new(0),
            in_flight_bytes: AtomicU64::new(0),
            admitted_since_refresh_bytes: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
            freed: Notify::new(),
            ballast: Mutex::new(Ballast { path, bytes: ballast_bytes, is_allocated: laid, refreshed: None }),
        };
        space.refresh();
        space
    }

    /// True if `bytes` more may be stored now.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        if self.fits(bytes) {
            return true;
        }
        let looked = self.ballast.try_lock().and_then(|ballast| ballast.refreshed);
        if looked.is_some_and(|at| at.elapsed() >= REFRESH_INTERVAL) {
            self.refresh();
        }
        self.fits(bytes)
    }

    /// Reserves `bytes` for an append. Returns false if there is no space.
    pub(super) fn reserve(&self, bytes: u64) -> bool {
        if !self.has_room(bytes) {
            return false;
        }
        self.charge(bytes);
        true
    }

    fn charge(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Relaxed);
        self.in_flight_bytes.fetch_add(bytes, Relaxed);
        self.free_bytes.fetch_sub(bytes as i64, Relaxed);
        self.admitted_since_refresh_bytes.fetch_add(bytes, Relaxed);
    }

    /// Reserves `bytes` for a moved chunk. A move frees more than it takes, so it may use the reserve, except
    /// for a quarter, which is left to the catalogue.
    pub(super) fn reserve_moved(&self, bytes: u64) -> bool {
        self.reserve_if(bytes, || self.moved_room_bytes() >= bytes)
    }

    /// Reserves `bytes` for an append of another node to a segment that this node follows. It may use half of
    /// the reserve, and as much beyond the capacity.
    pub(super) fn reserve_followed(&self, bytes: u64) -> bool {
        self.reserve_if(bytes, || self.fits_followed(bytes))
    }

    /// Reserves `bytes` if they fit, as of the last `statvfs` or else of a new one.
    fn reserve_if(&self, bytes: u64, fits: impl Fn() -> bool) -> bool {
        if !fits() {
            self.refresh();
        }
        let fits = fits();
        if fits {
            self.charge(bytes);
        }
        fits
    }

    fn fits_followed(&self, bytes: u64) -> bool {
        let lent_bytes = self.reserve_bytes / 2;
        let free = self.free_bytes.load(Relaxed).saturating_sub_unsigned(self.reserve_bytes - lent_bytes);
        let is_within =
            self.used_bytes().saturating_add(bytes) <= self.capacity_bytes.saturating_add(lent_bytes);
        is_within && u64::try_from(free).is_ok_and(|free| free >= bytes)
    }

    /// Bytes that may be moved now.
    pub(super) fn moved_room_bytes(&self) -> u64 {
        let free = self.free_bytes.load(Relaxed).saturating_sub_unsigned(self.reserve_bytes / 4);
        free.max(0) as u64
    }

    /// True if appends are refused, or will be after `bytes` more.
    pub(super) fn is_pressed(&self, bytes: u64) -> bool {
        self.room_bytes() < bytes.max(self.reserve_bytes)
    }

    /// Bytes that must become free before `bytes` more may be stored.
    pub(super) fn missing_bytes(&self, bytes: u64) -> u64 {
        let needed = i64::try_from(self.reserve_bytes.saturating_add(bytes)).unwrap_or(i64::MAX);
        let of_disk = needed.saturating_sub(self.free_bytes.load(Relaxed)).max(0) as u64;
        let of_capacity = self.used_bytes().saturating_add(bytes).saturating_sub(self.capacity_bytes);
        of_disk.max(of_capacity)
    }

    /// Total of all bytes of segments ever freed.
    pub(super) fn freed_bytes(&self) -> u64 {
        self.freed_bytes.load(Relaxed)
    }

    /// Completes when there may be more space.
    pub(super) fn space_freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    /// Records that `bytes` of segments were freed.
    pub(super) fn record_freed(&self, bytes: u64) {
        self.freed_bytes.fetch_add(bytes, Relaxed);
        self.uncharge(bytes);
        self.refresh();
    }

    /// Records that the directory is an empty one now: it has nothing but what is being appended.
    pub(super) fn set_emptied(&self) {
        self.used_bytes.store(self.in_flight_bytes.load(Relaxed), Relaxed);
        self.ballast.lock().is_allocated = false;
        self.refresh();
    }

    /// Records that segments of `bytes` are in the directory that is used from now on.
    pub(super) fn set_found(&self, bytes: u64) {
        self.used_bytes.store(bytes + self.in_flight_bytes.load(Relaxed), Relaxed);
        self.refresh();
    }

    /// Subtracts `bytes` of segments. The lengths of files count the padding of blocks and what a start
    /// found, so the difference may be more than was charged.
    fn uncharge(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        // The closure always returns a value, so the update cannot fail.
        let _ = self.used_bytes.fetch_update(Relaxed, Relaxed, less);
    }

    /// Ends a reservation of `bytes`.
    fn end_reservation(&self, bytes: u64) {
        let reserved_bytes = self.in_flight_bytes.fetch_sub(bytes, Relaxed);
        assert!(reserved_bytes >= bytes, "a reservation of space ends once");
    }

    /// Charges `bytes` that appends took in addition to their reservation.
    pub(super) fn charge_extra(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Relaxed);
        self.free_bytes.fetch_sub(bytes as i64, Relaxed);
    }

    /// Ends the reservation of an append that was written or has failed; its bytes stay charged. Blocks for
    /// `statvfs` now and then, so it must not be called by async tasks.
    pub(super) fn finish(&self, bytes: u64) {
        self.end_reservation(bytes);
        if self.admitted_since_refresh_bytes.load(Relaxed) >= (self.reserve_bytes / 8).max(REFRESH_BYTES_MIN)
        {
            self.refresh();
        }
    }

    /// Cancels a reservation: the append did not take place.
    pub(super) fn cancel(&self, bytes: u64) {
        self.uncharge(bytes);
        self.end_reservation(bytes);
        self.free_bytes.fetch_add(bytes as i64, Relaxed);
        self.freed.notify_waiters();
    }

    /// Bytes of segments.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    /// Bytes that may still be stored.
    pub(super) fn room_bytes(&self) -> u64 {
        let free = self.free_bytes.load(Relaxed).saturating_sub_unsigned(self.reserve_bytes).max(0);
        self.capacity_bytes.saturating_sub(self.used_bytes()).min(free as u64)
    }

    /// Calls `statvfs`, and releases or allocates the ballast, but not in another directory.
    pub(super) fn refresh(&self) {
        let mut ballast = self.ballast.lock();
        ballast.refreshed = Some(Instant::now());
        self.admitted_since_refresh_bytes.store(0, Relaxed);
        let Some(mut free) = self.file_system_free_bytes() else {
            // Unknown: appends continue until the file system reports that it is full.
            self.free_bytes.store(i64::MAX / 2, Relaxed);
            return;
        };
        let is_scarce = free < self.reserve_bytes / 2;
        let is_plentiful = ballast.bytes > 0 && free > self.reserve_bytes + 2 * ballast.bytes;
        let is_due = if ballast.is_allocated { is_scarce } else { is_plentiful };
        if is_due && self.directory.check_directory(&self.dir).is_ok() {
            if ballast.is_allocated {
                ballast.release();
            } else {
                ballast.allocate();
            }
            free = self.file_system_free_bytes().unwrap_or(free);
        }
        let in_flight = self.in_flight_bytes.load(Relaxed);
        self.free_bytes.store(free as i64 - in_flight as i64, Relaxed);
        self.freed.notify_waiters();
    }

    fn fits(&self, bytes: u64) -> bool {
        self.free_bytes.load(Relaxed) >= (self.reserve_bytes + bytes) as i64
            && self.used_bytes.load(Relaxed) + bytes <= self.capacity_bytes
    }

    /// Free bytes of the file system; `None` if unknown.
    fn file_system_free_bytes(&self) -> Option<u64> {
        match rustix::fs::statvfs(&self.dir) {
            Ok(found) if found.f_blocks == 0 => None,
            Ok(found) => Some(found.f_bavail.saturating_mul(found.f_frsize).min(i64::MAX as u64)),
            Err(error) => {
                tracing::warn!(dir = %self.dir.display(), %error, "failed to read the free space");
                None
            }
        }
    }
}

impl Ballast {
    fn release(&mut self) {
        tracing::warn!(bytes = self.bytes, "the disk is nearly full; releasing the ballast file");
        match regular::open_with(OpenOptions::new().write(true), &self.path).and_then(|file| file.set_len(0))
        {
            Ok(()) => self.is_allocated = false,
            Err(error) => tracing::error!(%error, "failed to release the ballast file"),
        }
    }

    fn allocate(&mut self) {
        let mut options = OpenOptions::new();
        let laid = regular::open_with(options.create(true).truncate(false).write(true), &self.path);
        let laid = laid
            .and_then(|file: File| Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, self.bytes)?));
        match laid {
            Ok(()) => self.is_allocated = true,
            Err(error) => {
                tracing::warn!(%error,
                    "the file system does not support the ballast file; continuing without it");
                self.bytes = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::directory::{DirectoryFault, FileNumber};
    use super::*;

    fn bounds(reserve_bytes: u64, ballast_bytes: u64) -> SpaceLimits {
        SpaceLimits { reserve_bytes, ballast_bytes, capacity_bytes: u64::MAX / 2 }
    }

    #[test]
    fn a_reserve_larger_than_the_disk_refuses_appends() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!DiskSpace::open(dir.path(), Arc::default(), bounds(1 << 60, 0), 0).reserve(1));
        let space = DiskSpace::open(dir.path(), Arc::default(), bounds(1 << 20, 1 << 20), 0);
        assert!(space.reserve(1));
        assert!(!space.has_room(1 << 60));
    }

    #[test]
    fn followed_appends_have_half_of_the_reserve_after_clients_were_refused() {
        const RESERVE: u64 = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let bounds = SpaceLimits { capacity_bytes: 8 << 20, ..bounds(RESERVE, 0) };
        let space = DiskSpace::open(dir.path(), Arc::default(), bounds, 0);
        assert!(space.reserve(8 << 20) && !space.reserve(1), "the capacity is reached");
        assert!(space.reserve_followed(RESERVE / 2) && !space.reserve_followed(1));

        let bounds = SpaceLimits { capacity_bytes: u64::MAX / 2, ..bounds };
        let space = DiskSpace::open(dir.path(), Arc::default(), bounds, 0);
        space.free_bytes.store(RESERVE as i64, Relaxed);
        assert!(space.fits_followed(RESERVE / 2) && !space.fits_followed(RESERVE / 2 + 1));
        assert!(!space.fits(1));
    }

    #[test]
    fn admitted_bytes_are_no_longer_free() {
        let dir = tempfile::tempdir().unwrap();
        let space = DiskSpace::open(dir.path(), Arc::default(), bounds(0, 0), 0);
        let before = space.free_bytes.load(Relaxed);
        assert!(space.reserve(1 << 20));
        assert_eq!(space.free_bytes.load(Relaxed), before - (1 << 20));
        space.finish(1 << 20);
        assert_eq!(space.in_flight_bytes.load(Relaxed), 0);
    }

    #[test]
    fn the_ballast_is_allocated_with_space_and_released_without() {
        let dir = tempfile::tempdir().unwrap();
        let length = || std::fs::metadata(dir.path().join(BALLAST_FILE_NAME)).map_or(0, |found| found.len());
        drop(DiskSpace::open(dir.path(), Arc::default(), bounds(1 << 20, 1 << 24), 0));
        assert_eq!(length(), 1 << 20, "no larger than the reserve");
        drop(DiskSpace::open(dir.path(), Arc::default(), bounds(1 << 60, 1 << 20), 0));
        assert_eq!(length(), 0);
    }

    #[test]
    fn no_ballast_is_written_to_a_directory_that_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Arc::new(DirectoryState::default());
        directory.refuse(DirectoryFault::Unmarked);
        let space = DiskSpace::open(dir.path(), directory.clone(), bounds(1 << 20, 1 << 20), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        directory.accept(FileNumber::of_path(dir.path()).unwrap());
        space.refresh();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        directory.begin_examination();
        std::fs::remove_file(dir.path().join(BALLAST_FILE_NAME)).unwrap();
        space.set_emptied();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        // A directory that took the place of this one, before the next examination.
        let other = tempfile::tempdir().unwrap();
        directory.accept(FileNumber::of_path(other.path()).unwrap());
        std::fs::remove_file(dir.path().join(BALLAST_FILE_NAME)).unwrap();
        space.set_emptied();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
