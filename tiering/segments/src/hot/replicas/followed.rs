//! The replicas of open segments that this node follows, or has closed, since its start. In memory.
//!
//! The right to append to a replica is granted once for each segment, to the stream of its writer. It ends
//! with the stream, with the first fault of the stream or of the disk, and with a request to close. Nothing
//! gives it back: an entry stays while anything uses it, and afterwards the file on the disk prevents that
//! the segment is opened again. A restart forgets all entries and so ends all rights. The state of a replica
//! is pure and in `mlgw-replication`; here are its entries, and the waits for its changes.
//!
//! Invariants: at most one call on the file of a replica is in progress. It begins only while the right
//! exists, and who ends the right can wait for it. A length counts as synced only after the sync of all bytes
//! before it.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::limits::PEER_APPEND_STREAMS_MAX;
use mlgw_formats::segment_calls::ClosedReplica;
pub(super) use mlgw_replication::FollowedState;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};

/// Maximum number of replicas that one node appends to. Each has bytes in memory.
pub(super) const FOLLOWED_MAX: usize = PEER_APPEND_STREAMS_MAX;
/// Number of entries from which unused ones are dropped.
const ENTRIES_PRUNED_FROM: usize = 1024;

/// The replicas that were opened or closed since the start.
pub(super) struct FollowedReplicas {
    entries: Mutex<HashMap<SegmentId, Arc<FollowedReplica>>>,
    /// Makes the tasks of the replicas look if the tier has stopped.
    wake: watch::Sender<()>,
}

/// Reason for which no right is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRight {
    /// The segment was opened or closed before.
    Known,
    /// The node appends to as many replicas as it may.
    TooMany,
}

/// A replica that was opened or closed.
#[derive(Debug)]
pub(super) struct FollowedReplica {
    pub(super) segment: SegmentId,
    /// The node that opened the replica; `None` if it was only closed.
    writer: Option<NodeId>,
    state: watch::Sender<FollowedState>,
    /// Notified when the right to append has ended.
    right_ended: Notify,
    /// Answer to a request to close; locked while the file is read for it.
    pub(super) closing: Arc<AsyncMutex<Option<ClosedReplica>>>,
}

impl Default for FollowedReplicas {
    fn default() -> Self {
        Self { entries: Mutex::default(), wake: watch::Sender::new(()) }
    }
}

impl FollowedReplicas {
    /// Makes the tasks of the replicas look if the tier has stopped.
    pub(super) fn wake(&self) {
        self.wake.send_replace(());
    }

    /// Changes with each wake-up, and fails when the tier was dropped.
    pub(super) fn wakes(&self) -> watch::Receiver<()> {
        self.wake.subscribe()
    }

    /// Grants a node the right to append to a replica, and begins the creation of its file.
    ///
    /// # Errors
    /// See [`NoRight`].
    pub(super) fn open(
        &self,
        writer: NodeId,
        segment: SegmentId,
    ) -> Result<(AppendRight, FileCallInProgress), NoRight> {
        let mut entries = self.entries.lock();
        let before = entries.get(&segment).map(|replica| replica.state.borrow().clone());
        let opened = FollowedState::open(before.as_ref()).ok_or(NoRight::Known)?;
        let is_open =
            |of: &&Arc<FollowedReplica>| of.writer == Some(writer) && of.state.borrow().may_append();
        if entries.values().filter(is_open).count() >= FOLLOWED_MAX {
            return Err(NoRight::TooMany);
        }
        prune(&mut entries);
        let replica = Arc::new(FollowedReplica::new(segment, Some(writer), opened));
        entries.insert(segment, replica.clone());
        Ok((AppendRight(replica.clone()), FileCallInProgress { replica, synced: None }))
    }

    /// Segments with a right to append, whose files were created.
    pub(super) fn with_files(&self) -> Vec<SegmentId> {
        let entries = self.entries.lock();
        let has_file = |of: &&Arc<FollowedReplica>| {
            let state = of.state.borrow();
            state.may_append() && state.synced > 0
        };
        entries.values().filter(has_file).map(|replica| replica.segment).collect()
    }

    /// Ends the right to append to a replica. The first fault is kept.
    pub(super) fn end(&self, segment: SegmentId, fault: &str) {
        if let Some(replica) = self.entries.lock().get(&segment) {
            replica.end(fault);
        }
    }

    /// Returns the entry of a segment whose right to append was ended. From now on the segment is never
    /// opened.
    pub(super) fn close(&self, segment: SegmentId) -> Arc<FollowedReplica> {
        let mut entries = self.entries.lock();
        prune(&mut entries);
        let new = || Arc::new(FollowedReplica::new(segment, None, FollowedState::default()));
        let replica = entries.entry(segment).or_insert_with(new).clone();
        replica.change(FollowedState::close);
        replica
    }
}

/// Drops entries that nothing uses, if there are many. Only the map has a reference to such an entry, and
/// another one is made only under its lock.
fn prune(entries: &mut HashMap<SegmentId, Arc<FollowedReplica>>) {
    if entries.len() >= ENTRIES_PRUNED_FROM {
        entries.retain(|_, replica| Arc::strong_count(replica) > 1);
    }
}

impl FollowedReplica {
    fn new(segment: SegmentId, writer: Option<NodeId>, state: FollowedState) -> Self {
        let state = watch::Sender::new(state);
        Self { segment, writer, state, right_ended: Notify::new(), closing: Arc::default() }
    }

    /// The state, and its changes.
    pub(super) fn states(&self) -> watch::Receiver<FollowedState> {
        self.state.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut FollowedState)) {
        self.state.send_modify(change);
        if !self.state.borrow().may_append() {
            self.right_ended.notify_waiters();
        }
    }

    /// Waits for the end of the right to append. Unlike a wait for a state, it does not wake at each sync.
    pub(super) async fn right_ended(&self) {
        let mut ended = pin!(self.right_ended.notified());
        // Registered before the check, so that no end is missed.
        ended.as_mut().enable();
        if self.state.borrow().may_append() {
            ended.await;
        }
    }

    /// Ends the right to append. The first fault is kept.
    pub(super) fn end(&self, fault: &str) {
        self.change(|state| state.end_right(fault));
    }

    /// Ends the right to append because the stream ended cleanly.
    pub(super) fn complete(&self) {
        self.change(FollowedState::complete);
    }

    /// Begins a write and its sync; `None` if the right to append has ended.
    pub(super) fn begin_write(self: &Arc<Self>) -> Option<FileCallInProgress> {
        let begun = self.state.send_if_modified(FollowedState::begin_write);
        begun.then(|| FileCallInProgress { replica: self.clone(), synced: None })
    }

    /// Waits until no call on the file is in progress. Returns the synced length if this process has written
    /// all of the file. The right to append must have ended.
    pub(super) async fn final_length(&self) -> Option<u64> {
        let mut states = self.states();
        // The sender is a field of this replica, so the wait does not fail.
        let state = states.wait_for(FollowedState::is_final).await;
        state.ok().and_then(|state| state.known_length())
    }
}

/// The right to append to a replica, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct AppendRight(pub(super) Arc<FollowedReplica>);

impl Drop for AppendRight {
    fn drop(&mut self) {
        self.0.end("the stream of the writer was given up");
    }
}

/// A call on the file of a replica. Unless it succeeds before this is dropped, the right to append ends, and
/// the length of the file is unknown.
#[derive(Debug)]
pub(super) struct FileCallInProgress {
    replica: Arc<FollowedReplica>,
    synced: Option<u64>,
}

impl FileCallInProgress {
    /// Ends the call: the file is synced up to `length`.
    pub(super) fn succeed(mut self, length: u64) {
        self.synced = Some(length);
    }

    /// Ends the call with a fault.
    pub(super) fn fail(self, fault: &str) {
        self.replica.end(fault);
    }
}

impl Drop for FileCallInProgress {
    fn drop(&mut self) {
        self.replica.change(|state| match self.synced {
            Some(length) => state.succeed(length),
            None => state.fail("a call on the file of the replica failed"),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{ENTRIES_PRUNED_FROM, FOLLOWED_MAX, FollowedReplicas, NoRight};
    use futures_util::FutureExt as _;
    use mlgw_common::ids::{NodeId, SegmentId};

    const ONE: NodeId = NodeId(1);
    const SEGMENT: SegmentId = SegmentId(7);

    #[tokio::test]
    async fn a_replica_is_opened_once_and_never_after_it_was_closed() {
        let followed = FollowedReplicas::default();
        let (right, creation) = followed.open(ONE, SEGMENT).unwrap();
        creation.succeed(64);
        assert_eq!(followed.open(ONE, SEGMENT).unwrap_err(), NoRight::Known);
        right.0.complete();
        drop(right);
        assert_eq!(followed.open(ONE, SEGMENT).unwrap_err(), NoRight::Known);
        assert_eq!(followed.close(SEGMENT).final_length().await, Some(64));
        let closed = followed.close(SegmentId(8));
        assert_eq!(followed.open(ONE, SegmentId(8)).unwrap_err(), NoRight::Known);
        assert_eq!(closed.final_length().await, None, "this process has no file");
    }

    #[tokio::test]
    async fn a_close_waits_for_the_write_in_progress_and_prevents_the_next_one() {
        let followed = FollowedReplicas::default();
        let (right, creation) = followed.open(ONE, SEGMENT).unwrap();
        creation.succeed(64);
        let write = right.0.begin_write().unwrap();
        let closed = followed.close(SEGMENT);
        assert_eq!(closed.final_length().now_or_never(), None, "the write is in progress");
        write.succeed(100);
        assert_eq!(closed.final_length().await, Some(100));
        assert!(right.0.begin_write().is_none());
        assert_eq!(closed.states().borrow().fault.as_deref(), Some("the replica was closed"));
    }

    #[tokio::test]
    async fn a_call_that_fails_or_is_given_up_ends_the_right_and_makes_the_length_unknown() {
        for is_given_up in [false, true] {
            let followed = FollowedReplicas::default();
            let (right, creation) = followed.open(ONE, SEGMENT).unwrap();
            creation.succeed(64);
            let write = right.0.begin_write().unwrap();
            if is_given_up {
                drop(write)
            } else {
                write.fail("no disk")
            };
            assert!(right.0.begin_write().is_none());
            assert_eq!(followed.close(SEGMENT).final_length().await, None);
        }
    }

    #[test]
    fn replicas_have_a_file_after_its_creation_and_until_their_right_ends() {
        let followed = FollowedReplicas::default();
        let (right, creation) = followed.open(ONE, SEGMENT).unwrap();
        assert_eq!(followed.with_files(), []);
        creation.succeed(64);
        assert_eq!(followed.with_files(), [SEGMENT]);
        followed.end(SEGMENT, "no file");
        followed.end(SegmentId(8), "no replica");
        assert_eq!(followed.with_files(), []);
        assert!(right.0.begin_write().is_none());
        assert_eq!(right.0.states().borrow().fault.as_deref(), Some("no file"));
    }

    #[tokio::test]
    async fn the_right_ends_with_its_stream() {
        let followed = FollowedReplicas::default();
        let (right, creation) = followed.open(ONE, SEGMENT).unwrap();
        creation.succeed(64);
        let replica = right.0.clone();
        drop(right);
        assert!(replica.begin_write().is_none());
        assert_eq!(replica.final_length().await, Some(64));
    }

    #[test]
    fn a_node_appends_to_a_limited_number_of_replicas() {
        let followed = FollowedReplicas::default();
        let open = |node, segment| followed.open(NodeId(node), SegmentId(segment));
        let mut rights: Vec<_> = (0..FOLLOWED_MAX as u64).map(|segment| open(1, segment).unwrap()).collect();
        assert_eq!(open(1, 1000).unwrap_err(), NoRight::TooMany);
        open(2, 1001).unwrap();
        rights.pop();
        open(1, 1000).unwrap();
    }

    #[test]
    fn unused_entries_are_dropped_and_used_ones_stay() {
        let followed = FollowedReplicas::default();
        let used = followed.open(ONE, SEGMENT).unwrap();
        for segment in 0..2 * ENTRIES_PRUNED_FROM as u64 {
            followed.close(SegmentId(100 + segment));
        }
        assert!(followed.entries.lock().len() <= ENTRIES_PRUNED_FROM);
        assert!(followed.entries.lock().contains_key(&SEGMENT));
        drop(used);
    }
}
