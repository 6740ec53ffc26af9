//! Admission of appends: space is reserved before a chunk is queued at its writer, and awaited when there is
//! none.
//!
//! Chunks of bodies in progress have precedence over new bodies: while a chunk waits, no new body is
//! admitted.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mlgw_common::limits::{APPEND_ROOM_WAIT_MS, ROOM_WAIT_MS};

use super::space::Space;
use super::{AppendError, HotTier, Inner};

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
    pub async fn room_for(&self, bytes: u64) -> Result<(), AppendError> {
        let inner = &self.inner;
        if inner.chunks_waiting.load(Relaxed) == 0 && self.has_room(bytes) {
            return Ok(());
        }
        // Boxed because the slow path is rare and its future is large.
        Box::pin(inner.wait_for_room(bytes, Duration::from_millis(ROOM_WAIT_MS), true)).await
    }

    /// Returns the bytes of all segments in the tier and the bytes that still fit.
    #[must_use]
    pub fn fill(&self) -> (u64, u64) {
        let space = &self.inner.shared.space;
        (space.used_bytes(), space.room_bytes())
    }
}

impl Inner {
    /// True if appends wait for space, or will soon.
    pub(super) fn is_pressed(&self) -> bool {
        let space = &self.shared.space;
        self.relief.lacking_bytes(space) > 0 || space.is_pressed(self.shared.segment_bytes)
    }

    /// True if compaction and spilling free space when there is none.
    fn makes_room(&self) -> bool {
        self.catalogue.is_some() && !self.compaction.is_stopped()
    }

    async fn wait_for_room(&self, bytes: u64, patience: Duration, is_new: bool) -> Result<(), AppendError> {
        if !self.makes_room() {
            return Err(AppendError::Full);
        }
        let may_take = || !is_new || self.chunks_waiting.load(Relaxed) == 0;
        self.relief.wait(&self.shared.space, bytes, &may_take, Instant::now() + patience).await
    }

    /// Waits for space and reserves it for a chunk.
    pub(super) async fn admit_later(&self, bytes: u64) -> Result<Admitted<'_>, AppendError> {
        let _waits = Waits::begin(&self.chunks_waiting);
        let until = Instant::now() + Duration::from_millis(APPEND_ROOM_WAIT_MS);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            Box::pin(self.wait_for_room(bytes, left, false)).await?;
            // Another append may have taken the space.
            if let Some(admitted) = Admitted::take(&self.shared.space, bytes) {
                return Ok(admitted);
            }
        }
    }
}

/// Counts a waiting chunk until it is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Space reserved for an append that is not yet queued at its writer; given back on drop.
pub(super) struct Admitted<'a> {
    space: &'a Space,
    bytes: u64,
}

impl<'a> Admitted<'a> {
    /// Reserves space if there is enough.
    pub(super) fn take(space: &'a Space, bytes: u64) -> Option<Self> {
        // Constructed only after admission, since its drop gives the space back.
        space.admit(bytes).then(|| Self { space, bytes })
    }

    /// Reserves space for a moved chunk if there is enough.
    pub(super) fn take_moved(space: &'a Space, bytes: u64) -> Option<Self> {
        space.admit_moved(bytes).then(|| Self { space, bytes })
    }

    /// Transfers the reservation to the writer, which accounts for it from here on.
    pub(super) fn pass_on(self) {
        std::mem::forget(self);
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.space.give_back(self.bytes);
    }
}
