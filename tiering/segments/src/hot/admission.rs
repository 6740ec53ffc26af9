//! Room for appends: taken before a chunk is in its writer's line, and waited for when there is none.
//!
//! Chunks of bodies that are under way come before bodies that have not begun: while a chunk waits, none
//! begins.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mlgw_common::limits::{APPEND_ROOM_WAIT_MS, ROOM_WAIT_MS};

use super::space::Space;
use super::{AppendError, HotTier, Inner};

impl HotTier {
    /// Whether `bytes` more would be accepted now.
    #[must_use]
    pub fn has_room(&self, bytes: u64) -> bool {
        self.inner.shared.space.has_room(bytes)
    }

    /// Waits for a moment until a body of `bytes` may begin to be stored.
    ///
    /// # Errors
    /// [`AppendError::Full`] when it will not fit, [`AppendError::NoRoomYet`] when it will later.
    pub async fn room_for(&self, bytes: u64) -> Result<(), AppendError> {
        let inner = &self.inner;
        if inner.chunks_waiting.load(Relaxed) == 0 && self.has_room(bytes) {
            return Ok(());
        }
        // Rare, and larger than the usual answer.
        Box::pin(inner.wait_for_room(bytes, Duration::from_millis(ROOM_WAIT_MS), true)).await
    }

    /// Bytes of its segments, and bytes that it can still take.
    #[must_use]
    pub fn fill(&self) -> (u64, u64) {
        let space = &self.inner.shared.space;
        (space.used_bytes(), space.room_bytes())
    }
}

impl Inner {
    /// Whether appends wait for room, or will soon.
    pub(super) fn is_pressed(&self) -> bool {
        let space = &self.shared.space;
        self.relief.lacking_bytes(space) > 0 || space.is_pressed(self.shared.segment_bytes)
    }

    /// Whether compaction and spilling make room when there is none.
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

    /// Takes room for a chunk when there is some again.
    pub(super) async fn admit_later(&self, bytes: u64) -> Result<Admitted<'_>, AppendError> {
        let _waits = Waits::begin(&self.chunks_waiting);
        let until = Instant::now() + Duration::from_millis(APPEND_ROOM_WAIT_MS);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            Box::pin(self.wait_for_room(bytes, left, false)).await?;
            // Another append may have taken it.
            if let Some(admitted) = Admitted::take(&self.shared.space, bytes) {
                return Ok(admitted);
            }
        }
    }
}

/// Counts a chunk that waits, until it is dropped.
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

/// Room taken for an append that is not yet in its writer's line.
pub(super) struct Admitted<'a> {
    space: &'a Space,
    bytes: u64,
}

impl<'a> Admitted<'a> {
    /// Takes room, if there is some.
    pub(super) fn take(space: &'a Space, bytes: u64) -> Option<Self> {
        // Made only once admitted: its drop gives the room back.
        space.admit(bytes).then(|| Self { space, bytes })
    }

    /// Takes room for a chunk that is moved, if there is some.
    pub(super) fn take_moved(space: &'a Space, bytes: u64) -> Option<Self> {
        space.admit_moved(bytes).then(|| Self { space, bytes })
    }

    /// The writer settles it from here on.
    pub(super) fn pass_on(self) {
        std::mem::forget(self);
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.space.give_back(self.bytes);
    }
}
