//! Block that is being fetched: any number of readers follow its bytes as they arrive.
//!
//! The readers decide whether the block is kept. The fetch does not end as long as a reader is expected that
//! has not decided yet ([`ReaderClaim`]).

use bytes::Bytes;
use mlgw_formats::schema::Extent;
use mlgw_policies::TransferSharing;
use mlgw_remote::origin::OriginError;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// Block that is being fetched.
pub(super) struct BlockFetch {
    /// Byte range of the block in the object.
    pub(super) range: Range<u64>,
    /// Bytes from this offset on are withheld until all bytes have arrived and were compared.
    withheld_from: u64,
    state: Mutex<BlockFetchState>,
    changed: Notify,
}

#[derive(Default)]
struct BlockFetchState {
    pieces: Vec<Bytes>,
    bytes: u64,
    end: Option<Result<(), OriginError>>,
    /// True if the fetch is over: the block is kept, or will not be.
    is_closed: bool,
    /// Strongest retention request so far.
    retention: BlockRetention,
    /// Expected readers that have not decided yet.
    claims: usize,
    /// Time for which the bytes wait for further readers if the block is not kept, and the maximum number of
    /// bytes that may wait.
    sharing: TransferSharing,
    /// True if the block was read ahead.
    is_read_ahead: bool,
    /// True if a reader has read the block to its end.
    is_consumed: bool,
    /// True if the complete block only waits for readers.
    is_waiting: bool,
    /// Location of the kept block.
    kept: Option<Vec<Extent>>,
    /// Held as long as the bytes are in memory.
    _memory: Option<OwnedSemaphorePermit>,
}

/// Maximum time for which bytes that were read ahead wait for their reader.
const READ_AHEAD_WAIT_MAX: Duration = Duration::from_secs(10);

/// Request to keep a block, by ascending strength.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BlockRetention {
    /// Not requested.
    #[default]
    NotRequested,
    /// Requested by a party that does not read the block; the policy engine decides.
    IfWorthwhile,
    /// Requested for a reader by the policy engine.
    Required,
}

/// Guard of an expected reader that will decide whether the block is kept. The reader has decided when it is
/// dropped.
pub(super) struct ReaderClaim(Arc<BlockFetch>);

impl ReaderClaim {
    /// Adds a retention request of this reader.
    pub(super) fn want(&self, wanted: BlockRetention) {
        self.0.want(wanted);
    }

    /// Lets the bytes wait for the expected reader if the block is not kept.
    pub(super) fn wait_for_reader(&self) {
        self.0.wait_for_reader();
    }
}

impl Drop for ReaderClaim {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        assert!(state.claims > 0, "a claim that is dropped was counted");
        state.claims -= 1;
        drop(state);
        self.0.changed.notify_waiters();
    }
}

/// Content that follows an offset.
pub(super) enum FetchedContent {
    /// Some bytes.
    Bytes(Bytes),
    /// The whole block is on disk in these extents.
    Kept(Vec<Extent>),
}

impl BlockFetch {
    /// Creates the fetch of a block. Bytes from the given offset on are withheld until [`BlockFetch::finish`]
    /// confirms all of them.
    pub(super) fn new(range: Range<u64>, held_from: u64, memory: OwnedSemaphorePermit) -> Self {
        assert!((range.start..=range.end).contains(&held_from), "the withheld bytes end the block");
        let state = BlockFetchState { _memory: Some(memory), ..BlockFetchState::default() };
        Self { range, withheld_from: held_from, state: Mutex::new(state), changed: Notify::new() }
    }

    /// Drops all bytes that arrived, unless a reader may have seen some. Returns true if they were dropped.
    pub(super) fn restart(&self) -> bool {
        if self.withheld_from > self.range.start {
            return false;
        }
        let mut state = self.state.lock();
        (state.pieces, state.bytes) = (Vec::new(), 0);
        true
    }

    /// Returns the offset in the object of the next missing byte.
    pub(super) fn next_offset(&self) -> u64 {
        self.range.start + self.state.lock().bytes
    }

    /// Appends bytes. Bytes beyond the block are ignored.
    pub(super) fn push(&self, mut piece: Bytes) {
        let mut state = self.state.lock();
        assert!(state.end.is_none(), "no bytes arrive after the fetch has ended");
        let left = self.range.end - self.range.start - state.bytes;
        piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        state.bytes += piece.len() as u64;
        state.pieces.push(piece);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Ends the fetch: all bytes arrived, or no more will.
    pub(super) fn finish(&self, end: Result<(), OriginError>) {
        let mut state = self.state.lock();
        assert!(state.end.is_none(), "a fetch ends once");
        let is_whole = state.bytes == self.range.end - self.range.start;
        assert!(is_whole || end.is_err(), "a fetch succeeds only with all bytes of its block");
        state.end = Some(end);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Adds a retention request.
    pub(super) fn want(&self, wanted: BlockRetention) {
        let mut state = self.state.lock();
        state.retention = state.retention.max(wanted);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Announces a reader.
    pub(super) fn claim(self: &Arc<Self>) -> ReaderClaim {
        self.state.lock().claims += 1;
        ReaderClaim(self.clone())
    }

    /// Waits for the expected readers, and returns the strongest retention request. Returns at once if the
    /// block is required.
    pub(super) async fn decided_retention(&self) -> BlockRetention {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                if state.retention == BlockRetention::Required || state.claims == 0 {
                    return state.retention;
                }
            }
            changed.await;
        }
    }

    /// Extends the sharing window: the bytes of a block that is not kept wait at least that long for further
    /// readers, unless more than `bytes_max` bytes wait already.
    pub(super) fn wait_for_others(&self, sharing: TransferSharing) {
        let held = &mut self.state.lock().sharing;
        held.window = held.window.max(sharing.window);
        held.bytes_max = held.bytes_max.max(sharing.bytes_max);
    }

    /// Lets the bytes wait for the expected reader if the block is not kept.
    pub(super) fn wait_for_reader(&self) {
        self.state.lock().is_read_ahead = true;
    }

    /// True if the bytes wait for any reader.
    pub(super) fn has_wait(&self) -> bool {
        let state = self.state.lock();
        state.is_read_ahead || !state.sharing.window.is_zero()
    }

    /// Waits for the readers for which the bytes are held: for the expected reader of a read-ahead until it
    /// has read the block, but for a limited time; for further readers during the sharing window. The wait
    /// ends as soon as there is a stronger retention request than the given one. `shared_bytes` counts all
    /// bytes that wait for further readers. Returns the retention request at the end.
    pub(super) async fn wait_for_readers(
        &self,
        wanted: BlockRetention,
        shared_bytes: &AtomicU64,
    ) -> BlockRetention {
        let is_ahead = {
            let mut state = self.state.lock();
            state.is_waiting = true;
            state.is_read_ahead
        };
        // The wait is over whether the reader came or not.
        if is_ahead {
            let taken = self.wait_until(|state| state.is_consumed || state.retention > wanted);
            let _ = mlgw_common::time::timeout(READ_AHEAD_WAIT_MAX, taken).await;
        }
        // The sharing window is read only now, because the reader of a read-ahead block sets it.
        let sharing = self.state.lock().sharing;
        let bytes = self.range.end - self.range.start;
        if shared_bytes.fetch_add(bytes, Relaxed) + bytes <= sharing.bytes_max {
            let _ =
                mlgw_common::time::timeout(sharing.window, self.wait_until(|state| state.retention > wanted))
                    .await;
        }
        let waiting_bytes = shared_bytes.fetch_sub(bytes, Relaxed);
        assert!(waiting_bytes >= bytes, "bytes that wait are counted until they no longer wait");
        let mut state = self.state.lock();
        state.is_waiting = false;
        state.retention
    }

    /// Records that a reader has read the block to its end.
    pub(super) fn mark_consumed(&self) {
        self.state.lock().is_consumed = true;
        self.changed.notify_waiters();
    }

    /// Waits until the condition holds.
    async fn wait_until(&self, condition: impl Fn(&BlockFetchState) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if condition(&self.state.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// True if the block is complete.
    pub(super) fn is_whole(&self) -> bool {
        let state = self.state.lock();
        state.kept.is_some() || state.end == Some(Ok(()))
    }

    /// Returns the strongest retention request so far.
    pub(super) fn retention(&self) -> BlockRetention {
        self.state.lock().retention
    }

    /// Returns all bytes that arrived.
    pub(super) fn pieces(&self) -> Vec<Bytes> {
        self.state.lock().pieces.clone()
    }

    /// Records that the block is on disk. Its memory is released, and readers continue from disk.
    pub(super) fn set_kept(&self, extents: Vec<Extent>) {
        let mut state = self.state.lock();
        assert!(state.end == Some(Ok(())), "only a complete block is kept");
        let BlockFetchState { bytes, retention: wanted, claims, .. } = *state;
        *state = BlockFetchState {
            bytes,
            retention: wanted,
            claims,
            kept: Some(extents),
            ..BlockFetchState::default()
        };
    }

    /// Closes the fetch: the block is kept, or will not be.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_waiters();
    }

    /// True if the complete block only waits for readers.
    #[cfg(test)]
    pub(super) fn is_waiting(&self) -> bool {
        self.state.lock().is_waiting
    }

    /// Waits until the fetch ends. Returns true if the block is complete.
    pub(super) async fn wait_complete(&self) -> bool {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                if state.kept.is_some() {
                    return true;
                }
                if let Some(end) = &state.end {
                    return end.is_ok();
                }
            }
            changed.await;
        }
    }

    /// Waits until the fetch is closed. Returns true if the block is kept.
    ///
    /// # Errors
    /// The error that ended the fetch.
    pub(super) async fn wait_closed(&self) -> Result<bool, OriginError> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // The notification is armed before the state is checked, so that a change after the check is not
            // missed.
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                if state.is_closed {
                    return match &state.end {
                        Some(Err(error)) => Err(error.clone()),
                        _ => Ok(state.kept.is_some()),
                    };
                }
            }
            changed.await;
        }
    }

    /// Waits for content at an offset of the object and returns it.
    pub(super) async fn next(&self, at: u64) -> Result<FetchedContent, OriginError> {
        loop {
            let changed = self.changed.notified();
            if let Some(next) = self.try_next(at) {
                return next;
            }
            changed.await;
        }
    }

    fn try_next(&self, at: u64) -> Option<Result<FetchedContent, OriginError>> {
        assert!(self.range.contains(&at), "a reader of a block is within it");
        let state = self.state.lock();
        if let Some(extents) = &state.kept {
            return Some(Ok(FetchedContent::Kept(extents.clone())));
        }
        let shown = if state.end == Some(Ok(())) { self.range.end } else { self.withheld_from };
        let mut into = at - self.range.start;
        for piece in state.pieces.iter().filter(|_| at < shown) {
            let bytes = piece.len() as u64;
            if into < bytes {
                let end = bytes.min(into + (shown - at));
                return Some(Ok(FetchedContent::Bytes(piece.slice(into as usize..end as usize))));
            }
            into -= bytes;
        }
        match &state.end {
            Some(Err(error)) => Some(Err(error.clone())),
            Some(Ok(())) => Some(Err(OriginError::InvalidResponse(
                "the response ended before the block was complete".into(),
            ))),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockFetch, BlockRetention, FetchedContent};
    use bytes::Bytes;
    use mlgw_policies::TransferSharing;
    use mlgw_remote::origin::OriginError;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;
    use tokio::sync::Semaphore;

    async fn fill() -> Arc<BlockFetch> {
        let memory = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        Arc::new(BlockFetch::new(100..110, 110, memory))
    }

    async fn held_back(from: u64) -> Arc<BlockFetch> {
        let memory = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        Arc::new(BlockFetch::new(100..110, from, memory))
    }

    #[tokio::test]
    async fn withheld_bytes_are_read_only_after_verification() {
        for (end, last) in
            [(Ok(()), Ok(Bytes::from_static(b"789"))), (Err(OriginError::Changed), Err(OriginError::Changed))]
        {
            let fill = held_back(107).await;
            fill.push(Bytes::from_static(b"01234"));
            fill.push(Bytes::from_static(b"56789"));
            assert_eq!(next(&fill, 103).await, Ok(Bytes::from_static(b"34")));
            assert_eq!(next(&fill, 105).await, Ok(Bytes::from_static(b"56")), "the rest is withheld");
            assert!(fill.try_next(107).is_none() && !fill.restart());
            fill.finish(end);
            assert_eq!(next(&fill, 107).await, last);
        }
    }

    #[tokio::test]
    async fn a_block_that_no_reader_has_seen_can_restart() {
        let fill = held_back(100).await;
        fill.push(Bytes::from_static(b"wrong"));
        assert!(fill.try_next(100).is_none() && fill.restart());
        assert_eq!(fill.next_offset(), 100);
        fill.push(Bytes::from_static(b"0123456789"));
        fill.finish(Ok(()));
        assert_eq!(next(&fill, 100).await, Ok(Bytes::from_static(b"0123456789")));
    }

    async fn next(fill: &BlockFetch, at: u64) -> Result<Bytes, OriginError> {
        fill.next(at).await.map(|next| match next {
            FetchedContent::Bytes(bytes) => bytes,
            FetchedContent::Kept(extents) => panic!("{extents:?}"),
        })
    }

    #[tokio::test]
    async fn a_reader_follows_the_bytes_up_to_the_end_of_the_block() {
        let fill = fill().await;
        let reader = tokio::spawn({
            let fill = fill.clone();
            async move { (next(&fill, 100).await, next(&fill, 104).await) }
        });
        fill.push(Bytes::from_static(b"0123"));
        tokio::task::yield_now().await;
        assert_eq!((next(&fill, 102).await, fill.next_offset()), (Ok(Bytes::from_static(b"23")), 104));
        fill.push(Bytes::from_static(b"456789beyond"));
        fill.finish(Ok(()));
        let (first, second) = reader.await.unwrap();
        assert!(first.unwrap().starts_with(b"0123") && second.unwrap() == Bytes::from_static(b"456789"));
        assert_eq!((fill.next_offset(), fill.pieces().concat().len()), (110, 10));
    }

    #[tokio::test]
    async fn an_error_follows_the_bytes_that_arrived() {
        let fill = fill().await;
        fill.push(Bytes::from_static(b"0"));
        fill.finish(Err(OriginError::TimedOut));
        assert_eq!(next(&fill, 100).await, Ok(Bytes::from_static(b"0")));
        assert_eq!(next(&fill, 101).await, Err(OriginError::TimedOut));
    }

    #[tokio::test]
    async fn a_wait_for_further_readers_ends_when_retention_is_requested() {
        let fill = fill().await;
        fill.push(Bytes::from_static(b"0123456789"));
        assert!(!fill.is_whole());
        fill.finish(Ok(()));
        assert!(fill.is_whole());
        let sharing = |bytes_max| TransferSharing { window: Duration::from_secs(3600), bytes_max };
        fill.wait_for_others(sharing(14));
        let others = AtomicU64::new(5);
        assert_eq!(
            fill.wait_for_readers(BlockRetention::NotRequested, &others).await,
            BlockRetention::NotRequested,
            "too many bytes are waiting"
        );
        fill.wait_for_others(sharing(15));
        let (wanted, ()) =
            tokio::join!(fill.wait_for_readers(BlockRetention::NotRequested, &others), async {
                tokio::task::yield_now().await;
                assert!(fill.is_waiting());
                fill.want(BlockRetention::Required);
            });
        assert_eq!((wanted, fill.is_waiting()), (BlockRetention::Required, false));
    }

    #[tokio::test]
    async fn a_read_ahead_block_waits_for_further_readers_as_its_reader_requests() {
        let fill = fill().await;
        fill.push(Bytes::from_static(b"0123456789"));
        fill.finish(Ok(()));
        fill.wait_for_reader();
        let others = AtomicU64::new(0);
        let (wanted, ()) =
            tokio::join!(fill.wait_for_readers(BlockRetention::NotRequested, &others), async {
                tokio::task::yield_now().await;
                fill.wait_for_others(TransferSharing { window: Duration::from_secs(3600), bytes_max: 10 });
                fill.mark_consumed();
                for _ in 0..8 {
                    tokio::task::yield_now().await;
                }
                assert!(fill.is_waiting(), "it waits for the next piece");
                fill.want(BlockRetention::Required);
            });
        assert_eq!(wanted, BlockRetention::Required);
    }

    #[tokio::test]
    async fn a_kept_block_is_read_from_disk() {
        let fill = fill().await;
        fill.push(Bytes::from_static(b"0123456789"));
        fill.finish(Ok(()));
        fill.set_kept(Vec::new());
        assert!(matches!(fill.next(105).await, Ok(FetchedContent::Kept(_))) && fill.pieces().is_empty());
        assert!(fill.state.lock()._memory.is_none() && fill.next_offset() == 110);
    }
}
