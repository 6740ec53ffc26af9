//! Transport between nodes in one process, for tests. Nodes can be isolated, entries and answers lost, and
//! snapshots cut.

use super::group::Group;
use super::peers::{CallRefused, MemberLane, MemberPeers, PeerError, PeerFuture, SnapshotBytes};
use super::snapshot_receiver::IncomingSnapshot;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use mlgw_common::NodeId;
use mlgw_common::time::Instant;
use mlgw_formats::member_calls::{MemberAnswer, MemberCall, MemberRequest};
use mlgw_formats::member_snapshot::SnapshotHead;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The incoming side of a node.
pub(crate) trait TestService: Send + Sync {
    /// Serves a call of node `from`.
    fn serve(&self, from: NodeId, call: Bytes) -> BoxFuture<'static, Result<Bytes, CallRefused>>;
    /// Accepts the head of a snapshot from node `from`.
    fn accept(&self, from: NodeId, head: &[u8]) -> Result<IncomingSnapshot, CallRefused>;
}

/// Node with members of groups, without a catalogue.
#[derive(Default)]
struct TestGroups(Mutex<BTreeMap<u32, Group>>);

impl TestGroups {
    fn get(&self, group: u32) -> Result<Group, CallRefused> {
        self.0.lock().get(&group).cloned().ok_or_else(|| CallRefused("no such group".into()))
    }
}

impl TestService for TestGroups {
    fn serve(&self, from: NodeId, call: Bytes) -> BoxFuture<'static, Result<Bytes, CallRefused>> {
        let read = MemberCall::read(call).map_err(CallRefused::from);
        let found = read.and_then(|(group, request)| Ok((self.get(group)?, request)));
        Box::pin(async move {
            let (group, request) = found?;
            Ok(MemberAnswer::encode_reply(group.serve(from, request).await?))
        })
    }

    fn accept(&self, from: NodeId, head: &[u8]) -> Result<IncomingSnapshot, CallRefused> {
        let head = SnapshotHead::read(head)?;
        self.get(head.group)?.accept_snapshot(from, head)
    }
}

#[derive(Default)]
struct Wires {
    nodes: Mutex<BTreeMap<u64, Arc<dyn TestService>>>,
    groups: Mutex<BTreeMap<u64, Arc<TestGroups>>>,
    isolated: Mutex<BTreeSet<u64>>,
    /// Nodes that carry out calls of the log lane and do not answer.
    mute: Mutex<BTreeSet<u64>>,
    /// Nodes that do not receive proposals. Their senders cannot know that.
    without_proposals: Mutex<BTreeSet<u64>>,
    proposals_dropped: AtomicUsize,
    /// Nodes that receive everything but log entries.
    without_entries: Mutex<BTreeSet<u64>>,
    /// Bytes after which the next snapshots are cut.
    cuts: Mutex<VecDeque<usize>>,
    snapshots_begun: AtomicUsize,
    snapshots_sent: AtomicUsize,
}

/// The network of a process.
#[derive(Clone, Default)]
pub(crate) struct InProcess {
    wires: Arc<Wires>,
}

impl InProcess {
    /// Connects a member that belongs to no catalogue.
    pub(crate) fn connect(&self, node: u64, member: Group) {
        let mut groups = self.wires.groups.lock();
        let own = Arc::clone(groups.entry(node).or_default());
        own.0.lock().insert(member.id, member);
        self.wires.nodes.lock().insert(node, own);
    }

    /// Connects a node.
    pub(crate) fn connect_node(&self, node: u64, service: Arc<dyn TestService>) {
        self.wires.nodes.lock().insert(node, service);
    }

    /// Disconnects a node with all of its members.
    pub(crate) fn disconnect(&self, node: u64) {
        self.wires.nodes.lock().remove(&node);
        self.wires.groups.lock().remove(&node);
    }

    /// Drops every call from and to a node until [`Self::rejoin`].
    pub(crate) fn isolate(&self, node: u64) {
        self.wires.isolated.lock().insert(node);
    }

    /// Ends the isolation of a node.
    pub(crate) fn rejoin(&self, node: u64) {
        self.wires.isolated.lock().remove(&node);
    }

    /// Loses the answers of a node to calls of the log lane.
    pub(crate) fn mute(&self, node: u64) {
        self.wires.mute.lock().insert(node);
    }

    /// Ends [`Self::mute`].
    pub(crate) fn unmute(&self, node: u64) {
        self.wires.mute.lock().remove(&node);
    }

    /// Drops proposals to a node until [`Self::pass_proposals`]; their outcome is unknown to the senders.
    pub(crate) fn drop_proposals(&self, node: u64) {
        self.wires.without_proposals.lock().insert(node);
    }

    /// Ends [`Self::drop_proposals`].
    pub(crate) fn pass_proposals(&self, node: u64) {
        self.wires.without_proposals.lock().remove(&node);
    }

    /// Number of proposals that were dropped.
    pub(crate) fn proposals_dropped(&self) -> usize {
        self.wires.proposals_dropped.load(Ordering::Relaxed)
    }

    /// Drops log entries to a node, and nothing else, until [`Self::pass_entries`].
    pub(crate) fn hold_entries(&self, node: u64) {
        self.wires.without_entries.lock().insert(node);
    }

    /// Ends [`Self::hold_entries`].
    pub(crate) fn pass_entries(&self, node: u64) {
        self.wires.without_entries.lock().remove(&node);
    }

    /// Cuts the next snapshot after so many bytes.
    pub(crate) fn cut_snapshot(&self, bytes: usize) {
        self.wires.cuts.lock().push_back(bytes);
    }

    /// Numbers of snapshots that were begun, and that were installed.
    pub(crate) fn snapshots(&self) -> [usize; 2] {
        [&self.wires.snapshots_begun, &self.wires.snapshots_sent].map(|count| count.load(Ordering::Relaxed))
    }

    /// The peers of node `node`.
    pub(crate) fn peers(&self, node: u64) -> Arc<dyn MemberPeers> {
        Arc::new(TestPeers { wires: Arc::clone(&self.wires), node })
    }
}

struct TestPeers {
    wires: Arc<Wires>,
    node: u64,
}

impl TestPeers {
    fn target(&self, to: NodeId) -> Result<Arc<dyn TestService>, PeerError> {
        let isolated = self.wires.isolated.lock();
        if isolated.contains(&self.node) || isolated.contains(&to.get()) {
            return Err(PeerError::NotSent("isolated".into()));
        }
        let found = self.wires.nodes.lock().get(&to.get()).cloned();
        found.ok_or_else(|| PeerError::NotSent("not started".into()))
    }

    /// True if a call has log entries that its node does not receive.
    fn is_held(&self, to: NodeId, lane: MemberLane, call: &Bytes) -> bool {
        lane == MemberLane::Log
            && self.wires.without_entries.lock().contains(&to.get())
            && matches!(MemberCall::read(call.clone()), Ok((_, MemberRequest::Append(_))))
    }

    /// True if a call is a proposal that its node does not receive.
    fn is_dropped(&self, to: NodeId, call: &Bytes) -> bool {
        self.wires.without_proposals.lock().contains(&to.get())
            && matches!(MemberCall::read(call.clone()), Ok((_, MemberRequest::Propose(_))))
    }

    /// Loses an answer if the nodes were separated meanwhile.
    fn received(&self, to: NodeId, answer: Result<Bytes, CallRefused>) -> Result<Bytes, PeerError> {
        self.target(to).map_err(|error| PeerError::Unknown(error.to_string()))?;
        answer.map_err(|refused| PeerError::Refused(refused.0))
    }
}

impl MemberPeers for TestPeers {
    fn call(&self, to: NodeId, lane: MemberLane, call: Bytes, _deadline: Instant) -> PeerFuture<'_> {
        Box::pin(async move {
            if self.is_held(to, lane, &call) {
                return Err(PeerError::NotSent("entries are held".into()));
            }
            if self.is_dropped(to, &call) {
                self.wires.proposals_dropped.fetch_add(1, Ordering::Relaxed);
                return Err(PeerError::Unknown("dropped".into()));
            }
            let served = tokio::spawn(self.target(to)?.serve(NodeId(self.node), call)).await;
            if lane == MemberLane::Log && self.wires.mute.lock().contains(&to.get()) {
                return Err(PeerError::Unknown("mute".into()));
            }
            self.received(to, served.map_err(|error| PeerError::Unknown(error.to_string()))?)
        })
    }

    fn send_snapshot(&self, to: NodeId, head: Bytes, body: SnapshotBytes) -> PeerFuture<'_> {
        Box::pin(async move {
            let accepted = self.target(to)?.accept(NodeId(self.node), &head);
            let incoming = accepted.map_err(|refused| PeerError::Refused(refused.0))?;
            self.wires.snapshots_begun.fetch_add(1, Ordering::Relaxed);
            let cut = self.wires.cuts.lock().pop_front().unwrap_or(usize::MAX);
            let received = incoming.receive(cut_after(body, cut)).await;
            if received.is_ok() {
                self.wires.snapshots_sent.fetch_add(1, Ordering::Relaxed);
            }
            self.received(to, received)
        })
    }
}

/// The same bytes, with an error after the first `cut` ones.
fn cut_after(body: SnapshotBytes, cut: usize) -> SnapshotBytes {
    let mut left = cut;
    body.map(move |piece| {
        let piece = piece?;
        left = left.checked_sub(piece.len()).ok_or_else(|| io::Error::other("the wire was cut"))?;
        Ok(piece)
    })
    .boxed()
}
