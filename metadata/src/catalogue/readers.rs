//! Questions between nodes: which bodies and segments are being read, and which changes were applied. Bodies
//! and segments stay while any node reads them.
//!
//! A long body that was deleted or replaced waits in the release queue. Before the leader of the system group
//! frees it, it asks every other storage node for the bodies that are pinned there. The answers miss no
//! reader:
//!
//! 1. The leader reads rows of the queue, and then the last entry that it has applied. So at that entry
//!    the rows exist, on every node.
//! 2. The other node waits until it has applied that entry. Then it reads its pins, and answers.
//! 3. A reader pins a body first and checks [`Catalogue::is_being_released`] then. If it pinned before the
//!    answer, the answer names the body. If it pinned later, the rows of its node contain the queued body, so
//!    it reads nothing of it and looks its object up again. If the body was freed completely meanwhile, the
//!    reader finds no row of it and does the same.
//!
//! The leader reads which nodes exist after the rows, behind a barrier of the system group. A node that is
//! admitted later waits at a barrier before its first read, and has the rows from then on. A node without a
//! member of the group has no reader of its bodies, and waits at a barrier once it has one. This does not
//! depend on who leads: two nodes that take themselves for the leader ask each other.
//!
//! A question about segments names no entry. Its caller ensures that no reader pins a segment after the
//! answer.
//!
//! A change that other nodes must have before it is acknowledged, such as the deletion of an access key, is
//! followed by a question without bodies and segments ([`Catalogue::until_applied_elsewhere`]). A node that
//! does not answer it is waited for until it cannot use older rows any more: from then on it answers requests
//! only after a barrier ([`Catalogue::has_recent_system_rows`]).
//!
//! A node that does not answer delays everything that it was asked about, for a limited time
//! ([`reader_nodes`](super::reader_nodes)). A refusal is no answer: an older build refuses the question. A
//! node that has not applied the entry yet answers that it is behind, and delays everything until it has: it
//! runs, and may get further readers.
//!
//! Nothing is stored. After a power failure this node has no readers, and what was not freed is asked about
//! again.

use super::Catalogue;
use super::groups::SYSTEM_GROUP;
use super::inner::CatalogueInner;
use super::options::BarrierError;
use super::reader_nodes::{ReadElsewhere, nodes_with_readers};
use crate::raft::peers::{CallRefused, MemberLane, MemberPeers};
use crate::raft::remote::RemoteNetwork;
use crate::view::RowReader as _;
use futures_util::future::join_all;
use mlgw_common::limits::{SYSTEM_ROWS_AGE_MS_MAX, SYSTEM_ROWS_MARGIN_MS};
use mlgw_common::time::{Instant, sleep, timeout};
use mlgw_common::{BodyId, SegmentId};
use mlgw_formats::member_calls::{MemberReply, MemberRequest, READERS_BODIES_MAX, ReadersCall, ReadersReply};
use mlgw_formats::schema::decode;
use mlgw_formats::schema::meta::{LogPosition, MetaRow};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Longest time that a node waits until it has applied the entry of a question.
const APPLY_MAX: Duration = Duration::from_secs(2);

/// Longest time for a question and its answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Longest wait for other nodes to apply a change. A node that has not applied it by then uses no rows that
/// lack it, also if its clock is slower than that of this node.
const APPLIED_ELSEWHERE_MAX: Duration = Duration::from_millis(SYSTEM_ROWS_AGE_MS_MAX + SYSTEM_ROWS_MARGIN_MS);

/// Pause before nodes that did not answer are asked again.
const APPLIED_PAUSE: Duration = Duration::from_millis(200);

/// Pause between two reads of the version of the policy that this node runs.
pub(super) const POLICY_PAUSE: Duration = Duration::from_millis(50);

const _: () = assert!(APPLY_MAX.as_secs() < ANSWER_MAX.as_secs());

impl Catalogue {
    /// Sets the function that returns true for a segment that a reader of this node has pinned. Other nodes
    /// ask for such segments by [`Catalogue::segments_in_use`]. If the function returns false, it has closed
    /// the segment to new pins, for long enough that its owner can release it. Call this when the segments
    /// are opened, before they are read. The function must not wait; it is dropped when the catalogue shuts
    /// down.
    pub fn set_segment_pins(&self, is_pinned: Arc<dyn Fn(SegmentId) -> bool + Send + Sync>) {
        self.inner.readers.set_segment_pins(Some(is_pinned));
    }

    /// Sets the function that returns true while all segments are pinned on this node. Like that of
    /// [`Catalogue::set_segment_pins`], it must not wait, and it is dropped when the catalogue shuts down.
    pub fn set_pin_of_all_segments(&self, are_pinned: Arc<dyn Fn() -> bool + Send + Sync>) {
        self.inner.readers.set_pin_of_all(Some(are_pinned));
    }

    /// True if another storage node that answers has pinned all segments, as for a backup. Nodes of an
    /// earlier version do not name such a pin. No segment is closed to readers by the question.
    ///
    /// # Errors
    /// If a majority does not confirm which nodes exist.
    pub async fn are_all_segments_pinned_elsewhere(&self) -> Result<bool, BarrierError> {
        let question = ReadersCall { group: SYSTEM_GROUP, ..ReadersCall::default() };
        Ok(self.inner.ask_readers(question).await?.pins_all)
    }

    /// Those of `segments` that other storage nodes read, or may be reading: all of them if a node does not
    /// answer, until it has not answered for a minute. Pins on this node are not considered. Without peers no
    /// segment is.
    ///
    /// # Errors
    /// If a majority does not confirm which nodes exist.
    pub async fn segments_in_use(
        &self,
        segments: Vec<SegmentId>,
    ) -> Result<BTreeSet<SegmentId>, BarrierError> {
        self.inner.segments_in_use(segments).await
    }

    /// Waits until every other storage node has applied what this node has applied of the system group, such
    /// as buckets and access keys, or cannot answer a request by older rows any more. The latter is so after
    /// 12 s; a question that was begun before may take 3 s more. Call this after a change that other nodes
    /// must have before it is reported, and while no lock is held. A server without peers does not wait.
    pub async fn until_applied_elsewhere(&self) {
        self.inner.until_applied_elsewhere(None).await;
    }

    /// Waits like [`Self::until_applied_elsewhere`], and also until the other storage nodes run this version
    /// of the policy or a later one.
    pub async fn until_policy_runs_elsewhere(&self, version: u64) {
        self.inner.until_applied_elsewhere(Some(version)).await;
    }

    /// Sets the function that returns true if this node runs a version of the policy or a later one. Other
    /// nodes ask for it by [`Self::until_policy_runs_elsewhere`]. Until it is set, nothing here uses the
    /// policy. It must not wait; it is dropped when the catalogue shuts down.
    pub fn set_policy_check(&self, runs: Arc<dyn Fn(u64) -> bool + Send + Sync>) {
        self.inner.readers.set_policy_check(Some(runs));
    }

    /// Index of the last entry of the system group that this node has applied; `None` before the first one,
    /// or if the store cannot be read.
    #[must_use]
    pub fn applied_index(&self) -> Option<u64> {
        self.inner.applied_position().map(|position| position.index)
    }
}

impl CatalogueInner {
    /// Asks the other storage nodes which of these queued bodies of a group they read. `applied` is the last
    /// entry that this node had applied after it read the rows of the queue.
    pub(super) async fn bodies_read_elsewhere(
        &self,
        group: u32,
        applied: LogPosition,
        bodies: Vec<u64>,
    ) -> Result<ReadElsewhere, BarrierError> {
        assert!(bodies.len() <= READERS_BODIES_MAX, "a question has a limit");
        let applied = Some(applied);
        self.ask_readers(ReadersCall { group, applied, bodies, ..ReadersCall::default() }).await
    }

    /// Returns the last entry of the system group that this node has applied.
    fn applied_position(&self) -> Option<LogPosition> {
        let row = self.groups.system().state().get(&MetaRow::Applied.row()).ok().flatten()?;
        decode(&row).ok()
    }

    /// Waits as [`Catalogue::until_applied_elsewhere`] and [`Catalogue::until_policy_runs_elsewhere`] do, and
    /// begins no further question after [`APPLIED_ELSEWHERE_MAX`].
    async fn until_applied_elsewhere(&self, policy: Option<u64>) {
        if self.opener.peers.is_none() {
            return;
        }
        let until = Instant::now() + APPLIED_ELSEWHERE_MAX;
        // Without an entry nothing proves that a node has the change.
        let applied = self.applied_position();
        loop {
            let question = ReadersCall { group: SYSTEM_GROUP, applied, policy, ..ReadersCall::default() };
            match self.ask_readers(question).await {
                Ok(read) if applied.is_some() && read.is_applied_everywhere() => return,
                Err(BarrierError::Stopping) => return,
                Ok(_) | Err(_) if Instant::now() < until => sleep(APPLIED_PAUSE).await,
                Ok(_) | Err(_) => return,
            }
        }
    }

    async fn segments_in_use(&self, segments: Vec<SegmentId>) -> Result<BTreeSet<SegmentId>, BarrierError> {
        let mut used = BTreeSet::new();
        for asked in segments.chunks(READERS_BODIES_MAX) {
            let ids = asked.iter().map(|segment| segment.0).collect();
            let question = ReadersCall { group: SYSTEM_GROUP, segments: ids, ..ReadersCall::default() };
            let read = self.ask_readers(question).await?;
            let is_used = |id: &SegmentId| !read.is_complete() || read.segments.contains(&id.0);
            used.extend(asked.iter().copied().filter(is_used));
        }
        Ok(used)
    }

    /// Asks every other storage node. A server without peers has an empty answer at once.
    async fn ask_readers(&self, question: ReadersCall) -> Result<ReadElsewhere, BarrierError> {
        let Some(peers) = &self.opener.peers else { return Ok(ReadElsewhere::default()) };
        tokio::select! {
            read = self.ask_storage_nodes(peers, question) => read,
            () = self.stop.cancelled() => Err(BarrierError::Stopping),
        }
    }

    async fn ask_storage_nodes(
        &self,
        peers: &Arc<dyn MemberPeers>,
        question: ReadersCall,
    ) -> Result<ReadElsewhere, BarrierError> {
        self.groups.system().barrier().await?;
        let own = self.resident.node;
        let nodes = nodes_with_readers(self.resident.nodes.read().values().map(|node| &**node), own);
        let network = RemoteNetwork { peers: Arc::clone(peers), group: SYSTEM_GROUP };
        let asked_at = Instant::now();
        let asking = nodes.iter().copied().map(|node| {
            let request = MemberRequest::Readers(question.clone());
            network.call(node, MemberLane::Log, request, asked_at + ANSWER_MAX)
        });
        let mut answers = BTreeMap::new();
        for (node, answer) in nodes.iter().zip(join_all(asking).await) {
            match answer {
                Ok(MemberReply::Readers(reply)) => drop(answers.insert(*node, reply)),
                Ok(other) => tracing::debug!(%node, ?other, "an answer about readers does not fit"),
                Err(error) => tracing::debug!(%node, %error, "the readers of a node are unknown"),
            }
        }
        Ok(self.readers.read_elsewhere(&nodes, answers, asked_at))
    }

    /// Answers the question of another node.
    pub(super) async fn serve_readers(&self, call: ReadersCall) -> Result<MemberReply, CallRefused> {
        let caught_up = tokio::select! {
            caught_up = timeout(APPLY_MAX, self.until_caught_up(&call)) => caught_up,
            () = self.stop.cancelled() => Ok(Err(BarrierError::Stopping)),
        };
        let is_behind = match caught_up {
            Ok(Ok(())) => false,
            // It will have no readers soon.
            Ok(Err(error)) => return Err(CallRefused(error.to_string())),
            Err(_) => true,
        };
        let is_pinned = |body: &u64| self.resident.pins.is_pinned(BodyId(*body));
        let bodies = call.bodies.into_iter().filter(is_pinned).collect();
        let segments = self.readers.pinned_segments(call.segments);
        let pins_all = self.readers.are_all_pinned();
        Ok(MemberReply::Readers(ReadersReply { bodies, segments, is_behind, pins_all }))
    }

    /// Waits until this node has applied the entry of a question, and runs its policy.
    async fn until_caught_up(&self, call: &ReadersCall) -> Result<(), BarrierError> {
        if let (Some(entry), Some(member)) = (call.applied, self.groups.get(call.group)) {
            member.applied(entry.index).await?;
        }
        if let Some(version) = call.policy {
            while !self.readers.runs_policy(version) {
                sleep(POLICY_PAUSE).await;
            }
        }
        Ok(())
    }
}
