//! Admission of appends: space is reserved before a chunk is queued at its writer, and awaited when there is
//! none.
//!
//! Chunks of bodies in progress have precedence over new bodies: while a chunk waits, no new body is
//! admitted.

use mlgw_common::time::Instant;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use mlgw_common::limits::{APPEND_SPACE_WAIT_MS, DISK_SPACE_WAIT_MS};

use super::space::DiskSpace;
use super::{AppendError, HotTier, HotTierInner};

impl HotTier {
    /// True if `bytes` more would be accepted now.
    #[must_use]
    pub fn has_room(&self, bytes: u64) -> bool {
        self.inner.shared.space.has_room(bytes)
    }

    /// Waits for a limited time until a body of `bytes` may start.
    ///
    /// # Errors
    /// [`AppendError::Full`] if it will not fit, [`AppendError::NoRoomYet`] if it will fit later.
    pub async fn wait_for_body_room(&self, bytes: u64) -> Result<(), AppendError> {
        let inner = &self.inner;
        if inner.chunks_waiting.load(Relaxed) == 0 && self.has_room(bytes) {
            return Ok(());
        }
        // Boxed because the slow path is rare and its future is large.
        Box::pin(inner.wait_for_room(bytes, Duration::from_millis(DISK_SPACE_WAIT_MS), SpaceRequest::Body))
            .await
    }

    /// Returns the bytes of all segments in the tier and the bytes that still fit.
    #[must_use]
    pub fn fill(&self) -> (u64, u64) {
        let space = &self.inner.shared.space;
        (space.used_bytes(), space.room_bytes())
    }
}

/// Data that waits for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpaceRequest {
    /// A new body: admitted while no chunk waits.
    Body,
    /// A chunk of a body in progress.
    Chunk,
}

impl HotTierInner {
    /// True if appends wait for space, or will soon.
    pub(super) fn is_pressed(&self) -> bool {
        let space = &self.shared.space;
        self.space_waiters.missing_bytes(space) > 0 || space.is_pressed(self.shared.segment_bytes)
    }

    /// True if compaction and spilling free space when there is none.
    fn can_free_space(&self) -> bool {
        self.catalogue.is_some() && !self.compaction.is_stopped()
    }

    async fn wait_for_room(
        &self,
        bytes: u64,
        patience: Duration,
        request: SpaceRequest,
    ) -> Result<(), AppendError> {
        if !self.can_free_space() {
            return Err(AppendError::Full);
        }
        let may_take = || request == SpaceRequest::Chunk || self.chunks_waiting.load(Relaxed) == 0;
        self.space_waiters.wait(&self.shared.space, bytes, &may_take, Instant::now() + patience).await
    }

    /// Waits for space and reserves it for a chunk.
    pub(super) async fn wait_and_reserve(&self, bytes: u64) -> Result<AppendReservation<'_>, AppendError> {
        let _waits = WaitingChunkGuard::begin(&self.chunks_waiting);
        let until = Instant::now() + Duration::from_millis(APPEND_SPACE_WAIT_MS);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            Box::pin(self.wait_for_room(bytes, left, SpaceRequest::Chunk)).await?;
            // Another append may have taken the space.
            if let Some(admitted) = AppendReservation::reserve(&self.shared.space, bytes) {
                return Ok(admitted);
            }
        }
    }
}

/// Counts a waiting chunk until it is dropped.
struct WaitingChunkGuard<'a>(&'a AtomicUsize);

impl<'a> WaitingChunkGuard<'a> {
    fn begin(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Relaxed);
        Self(waiting)
    }
}

impl Drop for WaitingChunkGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Space reserved for an append that is not yet queued at its writer; given back on drop.
pub(super) struct AppendReservation<'a> {
    space: &'a DiskSpace,
    bytes: u64,
}

impl<'a> AppendReservation<'a> {
    /// Reserves space if there is enough.
    pub(super) fn reserve(space: &'a DiskSpace, bytes: u64) -> Option<Self> {
        // Constructed only after admission, since its drop gives the space back.
        space.reserve(bytes).then(|| Self { space, bytes })
    }

    /// Reserves space for a moved chunk if there is enough.
    pub(super) fn reserve_moved(space: &'a DiskSpace, bytes: u64) -> Option<Self> {
        space.reserve_moved(bytes).then(|| Self { space, bytes })
    }

    /// Reserves space for an append of another node if there is enough.
    pub(super) fn reserve_followed(space: &'a DiskSpace, bytes: u64) -> Option<Self> {
        space.reserve_followed(bytes).then(|| Self { space, bytes })
    }

    /// Transfers the reservation to the writer, which accounts for it from here on.
    pub(super) fn transfer_to_writer(self) {
        std::mem::forget(self);
    }
}

impl Drop for AppendReservation<'_> {
    fn drop(&mut self) {
        self.space.cancel(self.bytes);
    }
}
