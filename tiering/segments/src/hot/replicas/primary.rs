//! An open segment of this node that has followers: what is acknowledged, who follows, and the seal.
//!
//! The rules are those of [`PrimarySegment`], which is pure. Here its events are collected from the writer's
//! thread, the streams and the clock, and its effects are carried out. A batch is acknowledged when the write
//! quorum, this node included, has synced it. A segment in trouble takes no more appends, and is sealed at
//! the acknowledged length with every replica that has it; its writer appends the batch again to the next
//! segment. Nothing is acknowledged after the seal was proposed, so its outcome needs no answer: a seal by
//! another node that was faster was decided on replicas that have every acknowledged byte.
//!
//! The file is never truncated before the seal: a recovery may have counted its bytes. Nothing else is stored
//! here. After a power loss the right to append is gone, on this node as on the followers, and the recovery
//! seals the segment.

use mlgw_common::InlinePolls;
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::time::Instant;
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;
use mlgw_replication::{PrimaryEffect, PrimarySegment, PrimaryStart, SealProposal};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use super::link::{EncodedFrame, LinkAnswers, OpenedLink};
use crate::hot::AppendError;
use crate::hot::queue::AppendQueue;
use crate::hot::stored_batch::{BatchError, FailedBatch, StoredBatch};

/// Longest wait of a batch for its followers. Only a cluster with two members left comes near it: a late
/// follower is not left out there. Then the batch fails rather than hangs.
const QUORUM_WAIT_MAX: Duration = Duration::from_secs(10);
/// Interval at which a waiting writer looks at the clock.
const WAIT_STEP: Duration = Duration::from_millis(500);

/// Receives what happens to the open segments of a node.
pub(super) trait SegmentEvents: Send + Sync {
    /// The seal of a segment is to be proposed. It takes no appends any more.
    fn propose(&self, proposal: &SealProposal);

    /// A follower answered, after this time.
    fn answered(&self, node: NodeId, took: Duration);

    /// A follower ended its replica, or did not open it.
    fn failed(&self, node: NodeId);
}

/// An open segment with followers.
pub(in crate::hot) struct ReplicatedSegment {
    segment: SegmentId,
    events: Weak<dyn SegmentEvents>,
    /// Queue of the writer, which is woken when the segment takes no more appends.
    writer: Weak<AppendQueue>,
    /// Begin of the clock.
    begun: Instant,
    state: Mutex<PrimaryState>,
    /// Notified at every change that the writer may wait for.
    changed: Condvar,
    /// Notified when a write of the own file has ended.
    write_ended: Notify,
}

struct PrimaryState {
    primary: PrimarySegment,
    /// The followers in step.
    links: Vec<FollowerLink>,
    /// Length that was appended and sent.
    appended: u64,
    /// Length of the own file that is synced.
    own_synced: u64,
    /// True while the writer writes or syncs the own file.
    is_writing: bool,
    /// True after a seal was proposed.
    is_proposed: bool,
    is_abandoned: bool,
    /// The batch that waits for its followers.
    waiting: Option<StoredBatch>,
    /// True while a thread completes the batch that has waited.
    is_completing: bool,
}

/// The stream to a follower. It ends when this is dropped.
struct FollowerLink {
    node: NodeId,
    frames: mpsc::UnboundedSender<EncodedFrame>,
    /// Task that reads the answers.
    reader: AbortHandle,
    acknowledged: u64,
    /// Time of the last answer.
    progressed: Duration,
    /// Batches that were sent and are not acknowledged yet.
    sent: VecDeque<SentBatch>,
}

/// What a follower in step lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FollowerLag {
    pub(super) node: NodeId,
    /// Time since it made progress, with bytes to answer for.
    pub(super) age: Duration,
    /// Bytes that are acknowledged to callers and are kept for it.
    pub(super) acknowledged_bytes: u64,
}

struct SentBatch {
    end: u64,
    at: Duration,
}

impl Drop for FollowerLink {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Lets the writer continue at the end of a completion, also after a panic: then the requests get an error
/// because their replies are dropped.
struct Completing<'s>(&'s ReplicatedSegment);

impl Drop for Completing<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_completing = false;
        self.0.changed.notify_all();
    }
}

impl PrimaryState {
    fn takes_appends(&self) -> bool {
        !self.is_abandoned && self.primary.takes_appends()
    }

    /// Takes the waiting batch if it is acknowledged. The caller completes it, under [`Completing`].
    fn take_acknowledged(&mut self) -> Option<StoredBatch> {
        let acknowledged = self.primary.acknowledged_length();
        let batch = self.waiting.take_if(|batch| batch.end <= acknowledged)?;
        self.is_completing = true;
        Some(batch)
    }

    /// Returns the error of a batch that ends at `end` and cannot be acknowledged any more.
    fn failure(&self, end: u64) -> Option<BatchError> {
        if self.is_abandoned {
            return Some(BatchError::NoSegment(AppendError::Stopping));
        }
        (self.is_proposed || end > self.appended).then_some(BatchError::Followers)
    }

    /// Carries out the effects within this segment, and returns the proposal if there is one. The
    /// acknowledged length is read where it is needed.
    fn carry_out(&mut self, effects: Vec<PrimaryEffect>) -> Option<SealProposal> {
        let mut proposed = None;
        for effect in effects {
            match effect {
                PrimaryEffect::Dropped { node } => self.links.retain(|link| link.node != node),
                PrimaryEffect::ProposeSeal(proposal) => proposed = Some(proposal),
                PrimaryEffect::Acknowledge { .. } => {}
            }
        }
        if proposed.is_some() {
            self.is_proposed = true;
            self.links.clear();
        }
        proposed
    }

    /// Ends the streams to followers that are not as wanted.
    fn drop_unless(&mut self, now: Duration, is_kept: impl Fn(&FollowerLink) -> bool) -> Vec<PrimaryEffect> {
        let dropped: Vec<NodeId> =
            self.links.iter().filter(|link| !is_kept(link)).map(|link| link.node).collect();
        self.links.retain(|link| !dropped.contains(&link.node));
        dropped.into_iter().flat_map(|node| self.primary.follower_failed(node, now)).collect()
    }
}

/// The replicas of a segment that begins.
pub(super) struct NewReplicas {
    /// The node that appends.
    pub(super) own: NodeId,
    /// The streams to its followers.
    pub(super) links: Vec<OpenedLink>,
    /// Number of replicas that have synced an append before it is acknowledged.
    pub(super) write_quorum: usize,
}

impl ReplicatedSegment {
    /// Returns a segment whose file was created here and at the followers, and reads their answers from now
    /// on. Its clock begins at `begun`. Must be called within a tokio runtime.
    pub(super) fn begin(
        segment: SegmentId,
        replicas: NewReplicas,
        begun: Instant,
        events: Weak<dyn SegmentEvents>,
        writer: Weak<AppendQueue>,
    ) -> Arc<Self> {
        let NewReplicas { own, links, write_quorum } = replicas;
        let replicas = std::iter::once(own).chain(links.iter().map(|link| link.node)).collect();
        let start = PrimaryStart { segment, replicas, write_quorum };
        let mut primary = PrimarySegment::new(start);
        let now = begun.elapsed();
        primary.append(SEGMENT_HEADER_BYTES);
        let mut effects = primary.own_synced(SEGMENT_HEADER_BYTES, now);
        for link in &links {
            effects.extend(primary.acknowledged_by(link.node, SEGMENT_HEADER_BYTES, now));
        }
        let are_acknowledged = effects.iter().all(|of| matches!(of, PrimaryEffect::Acknowledge { .. }));
        assert!(are_acknowledged, "a new segment is not in trouble");
        let state = PrimaryState {
            primary,
            links: Vec::new(),
            appended: SEGMENT_HEADER_BYTES,
            own_synced: SEGMENT_HEADER_BYTES,
            is_writing: false,
            is_proposed: false,
            is_abandoned: false,
            waiting: None,
            is_completing: false,
        };
        let open = Arc::new(Self {
            segment,
            events,
            writer,
            begun,
            state: Mutex::new(state),
            changed: Condvar::new(),
            write_ended: Notify::new(),
        });
        // The readers of answers wait for the lock until all links are there.
        let mut state = open.state.lock();
        state.links = links.into_iter().map(|link| open.follow(link)).collect();
        drop(state);
        open
    }

    fn follow(self: &Arc<Self>, link: OpenedLink) -> FollowerLink {
        let OpenedLink { node, frames, answers } = link;
        let answers = InlinePolls::new(read_answers(Arc::downgrade(self), node, answers));
        let reader = tokio::spawn(answers).abort_handle();
        let progressed = self.begun.elapsed();
        let (acknowledged, sent) = (SEGMENT_HEADER_BYTES, VecDeque::new());
        FollowerLink { node, frames, reader, acknowledged, progressed, sent }
    }

    /// Applies a change of the state and carries out what follows from it.
    fn update(&self, change: impl FnOnce(&mut PrimaryState, Duration) -> Vec<PrimaryEffect>) {
        let mut state = self.state.lock();
        // Read under the lock, so that the clock of the segment never goes back.
        let now = self.begun.elapsed();
        let took_appends = state.takes_appends();
        let effects = change(&mut state, now);
        let proposed = if state.is_abandoned { None } else { state.carry_out(effects) };
        let has_ended = took_appends && !state.takes_appends();
        let acknowledged = state.take_acknowledged();
        drop(state);
        match acknowledged {
            Some(batch) => {
                let _completing = Completing(self);
                batch.complete();
            }
            None => drop(self.changed.notify_all()),
        }
        if let (Some(proposal), Some(events)) = (proposed, self.events.upgrade()) {
            events.propose(&proposal);
        }
        if let Some(writer) = self.writer.upgrade().filter(|_| has_ended) {
            writer.roll();
        }
    }

    /// True if the segment takes appends.
    pub(in crate::hot) fn takes_appends(&self) -> bool {
        self.state.lock().takes_appends()
    }

    /// True if the tier ends without a seal.
    pub(in crate::hot) fn is_abandoned(&self) -> bool {
        self.state.lock().is_abandoned
    }

    /// Begins a write of the own file. Returns false if the segment takes no more appends.
    pub(in crate::hot) fn begin_write(&self) -> bool {
        // A follower that trails too much is dropped before the batch, not with it.
        self.update(|state, now| state.primary.tick(now));
        let mut state = self.state.lock();
        assert!(!state.is_writing, "a segment has one writer");
        state.is_writing = state.takes_appends();
        state.is_writing
    }

    /// Sends the frames of a batch that ends at `end` and was written to the own file, which is not synced
    /// yet.
    pub(in crate::hot) fn send(&self, end: u64, frames: &[EncodedFrame]) {
        self.update(|state, now| {
            // In trouble since the write began: the batch is appended again elsewhere.
            if state.takes_appends() {
                state.primary.append(end);
                state.appended = end;
                for link in &mut state.links {
                    link.sent.push_back(SentBatch { end, at: now });
                    for frame in frames {
                        // A stream that has ended is reported by the reader of its answers.
                        drop(link.frames.send(frame.clone()));
                    }
                }
            }
            Vec::new()
        });
    }

    /// Records that the write has ended with an error of the own disk.
    pub(in crate::hot) fn own_failed(&self) {
        self.update(|state, now| {
            state.is_writing = false;
            state.primary.own_failed(now)
        });
        self.write_ended.notify_waiters();
    }

    /// Records that the write of a batch has ended and the own file is synced up to its end. Waits until the
    /// batch is acknowledged and completed, or until that has become impossible. Blocks the calling thread.
    ///
    /// # Errors
    /// The segment is sealed before the batch, or the tier ends.
    pub(in crate::hot) fn complete_when_acknowledged(&self, batch: StoredBatch) -> Result<(), FailedBatch> {
        let end = batch.end;
        self.state.lock().waiting = Some(batch);
        self.own_synced(end);
        let until = Instant::now() + QUORUM_WAIT_MAX;
        let mut state = self.state.lock();
        while state.waiting.is_some() || state.is_completing {
            if let Some(error) = state.failure(end)
                && let Some(batch) = state.waiting.take()
            {
                return Err(FailedBatch { error, replies: batch.replies });
            }
            let left = match state.is_completing {
                true => WAIT_STEP,
                false => until.saturating_duration_since(Instant::now()),
            };
            if left.is_zero() {
                drop(state);
                tracing::error!(segment = %self.segment, "the followers of a segment do not answer");
                self.drop_incomplete();
                state = self.state.lock();
            } else {
                self.changed.wait_for(&mut state, left.min(WAIT_STEP));
            }
        }
        Ok(())
    }

    /// Records that the write has ended and the own file is synced up to `end`.
    fn own_synced(&self, end: u64) {
        self.update(|state, now| {
            state.is_writing = false;
            state.own_synced = end;
            if end <= state.appended { state.primary.own_synced(end, now) } else { Vec::new() }
        });
        self.write_ended.notify_waiters();
    }

    /// Seals the segment when all followers in step have everything. Does not wait.
    pub(in crate::hot) fn request_seal(&self) {
        self.update(|state, now| state.primary.request_seal(now));
    }

    /// Ends the appends of this node, waits for the write in progress and returns the synced length of the
    /// own file.
    pub(in crate::hot) async fn close(&self) -> u64 {
        self.request_seal();
        loop {
            let ended = self.write_ended.notified();
            {
                let state = self.state.lock();
                if !state.is_writing {
                    return state.own_synced;
                }
            }
            ended.await;
        }
    }

    /// Ends the segment without a seal, as a kill of the process does.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        state.is_abandoned = true;
        state.links.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Ends the streams to followers that lack something, so that the segment is sealed now.
    pub(super) fn drop_incomplete(&self) {
        self.update(|state, now| {
            let appended = state.appended;
            state.drop_unless(now, |link| link.acknowledged >= appended)
        });
    }

    /// Ends the streams to followers that are left out or trail.
    pub(super) fn tick(&self, usable: &BTreeSet<NodeId>) {
        self.update(|state, now| {
            let mut effects = state.drop_unless(now, |link| usable.contains(&link.node));
            effects.extend(state.primary.tick(now));
            effects
        });
    }

    /// The followers with bytes that they have not acknowledged. The time counts from their last answer: a
    /// large batch takes long on a slow network, and is answered in parts.
    pub(super) fn lags(&self) -> Vec<FollowerLag> {
        let now = self.begun.elapsed();
        let state = self.state.lock();
        let acknowledged = state.primary.acknowledged_length();
        let lag = |link: &FollowerLink| {
            let since = link.sent.front()?.at.max(link.progressed);
            Some(FollowerLag {
                node: link.node,
                age: now.saturating_sub(since),
                acknowledged_bytes: acknowledged.saturating_sub(link.acknowledged),
            })
        };
        state.links.iter().filter_map(lag).collect()
    }

    /// Records that a follower has synced its file up to a length.
    fn answered(&self, node: NodeId, length: u64) {
        let mut took = None;
        self.update(|state, now| {
            if length > state.appended {
                tracing::error!(segment = %self.segment, %node, length, "a follower has more than was sent");
                return state.drop_unless(now, |link| link.node != node);
            }
            for link in state.links.iter_mut().filter(|link| link.node == node) {
                link.acknowledged = link.acknowledged.max(length);
                let before = std::mem::replace(&mut link.progressed, now);
                while let Some(batch) = link.sent.pop_front_if(|batch| batch.end <= length) {
                    // The oldest one counts.
                    took = took.or(Some(now.saturating_sub(batch.at.max(before))));
                }
            }
            state.primary.acknowledged_by(node, length, now)
        });
        if let (Some(took), Some(events)) = (took, self.events.upgrade()) {
            events.answered(node, took);
        }
    }

    fn failed(&self, node: NodeId, error: &io::Error) {
        // Before the segment is sealed: its writer chooses the followers of the next one at once.
        if let Some(events) = self.events.upgrade() {
            events.failed(node);
        }
        tracing::warn!(segment = %self.segment, %node, %error,
            "a follower ended its replica; the segment is sealed without what it lacks");
        self.update(|state, now| state.drop_unless(now, |link| link.node != node));
    }
}

/// Reports the answers of a follower until its stream ends.
async fn read_answers(segment: Weak<ReplicatedSegment>, node: NodeId, mut answers: LinkAnswers) {
    loop {
        let answer = answers.next().await;
        let Some(segment) = segment.upgrade() else { return };
        match answer {
            Ok(length) => segment.answered(node, length),
            Err(error) => return segment.failed(node, &error),
        }
    }
}
