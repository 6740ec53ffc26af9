//! Reachability, load and clock of the other nodes: each is called once a second.
//!
//! The answers also decide which groups have a reachable majority. That is computed when an answer or the
//! voters may have changed, and not for each request. The clocks are compared after each answer too. The
//! state is in memory. A node counts as unreachable until its first answer, and has no known load and clock
//! while it does not answer, or if its version states none.

use crate::numbers::PING;
use crate::peers::RunningTransport;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use mlgw_common::time::{Instant, sleep};
use mlgw_common::{Clock, ClockCheck, ClockComparison, ClockMoment, NodeId};
use mlgw_formats::node_load::{LOAD_REQUEST, NodeLoad, PingAnswer};
use mlgw_formats::schema::{Node, NodeState};
use mlgw_membership::{ClockSample, Contact, compare_clocks};
use mlgw_metadata::Catalogue;
use mlgw_transport::{CallError, Channel, HandshakeRefusal};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const INTERVAL: Duration = Duration::from_secs(1);

/// Longest time until the answer of a reachable node.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The clock of a node, relative to that of this node at the time of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DatedSample {
    sample: ClockSample,
    /// The time of the call.
    called: ClockMoment,
}

impl DatedSample {
    /// The clock of the node relative to that of this node at `present`: that one may have jumped since.
    fn carried_on(&self, present: ClockMoment) -> ClockSample {
        let jumped_ms = present.jumped_ms(self.called);
        ClockSample { offset_ms: self.sample.offset_ms.saturating_sub(jumped_ms) }
    }
}

/// Reachability of one node, since an instant.
#[derive(Clone, Copy, Debug)]
struct Reachability {
    answers: bool,
    serves: bool,
    load: Option<NodeLoad>,
    clock: Option<DatedSample>,
    since: Instant,
}

/// Result of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProbeAnswer {
    /// The node answered.
    answers: bool,
    /// It serves forwarded requests.
    serves: bool,
    /// Its load, if it stated one.
    load: Option<NodeLoad>,
    /// Its clock, if it stated its time, and the answer came soon.
    clock: Option<DatedSample>,
}

/// Reachability of all nodes that were called.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    known: Mutex<BTreeMap<NodeId, Reachability>>,
    /// Cancelled when a peer has recorded a later start of this node, or its removal.
    superseded: CancellationToken,
}

impl Probes {
    /// True if the node answers; `None` if it was not called yet.
    pub(crate) fn answers(&self, node: NodeId) -> Option<bool> {
        self.known.lock().get(&node).map(|known| known.answers)
    }

    /// True if the node was called and did not answer.
    pub(crate) fn is_silent(&self, node: NodeId) -> bool {
        self.answers(node) == Some(false)
    }

    /// True if the node answers, and serves forwarded requests.
    pub(crate) fn serves(&self, node: NodeId) -> bool {
        self.known.lock().get(&node).is_some_and(|known| known.serves)
    }

    /// The load that the node stated in its last answer; `None` while it does not answer.
    pub(crate) fn load(&self, node: NodeId) -> Option<NodeLoad> {
        self.known.lock().get(&node).and_then(|known| known.load)
    }

    /// The clock of a node, as it stated it in its last answer; `None` while it does not answer.
    pub(crate) fn clock(&self, node: NodeId) -> Option<ClockSample> {
        self.known.lock().get(&node).and_then(|known| known.clock).map(|dated| dated.sample)
    }

    /// The clocks of all nodes that answer, relative to that of this node at `present`.
    fn clocks(&self, present: ClockMoment) -> Vec<ClockSample> {
        let known = self.known.lock();
        known.values().filter_map(|known| known.clock).map(|dated| dated.carried_on(present)).collect()
    }

    /// Cancelled when a peer has recorded a later start of this node, which runs on an old copy of its disk
    /// then, or when it was removed.
    pub(crate) const fn superseded(&self) -> &CancellationToken {
        &self.superseded
    }

    /// True if any node answers.
    pub(crate) fn has_answer(&self) -> bool {
        self.known.lock().values().any(|known| known.answers)
    }

    /// Reachability of a node for the decisions about the membership.
    pub(crate) fn contact(&self, node: NodeId) -> Contact {
        let Some(known) = self.known.lock().get(&node).copied() else {
            return Contact::Unreachable { for_ms: 0 };
        };
        let for_ms = u64::try_from(known.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        if known.answers { Contact::Reachable { for_ms } } else { Contact::Unreachable { for_ms } }
    }

    fn record(&self, node: NodeId, answer: ProbeAnswer) {
        let ProbeAnswer { answers, serves, load, clock } = answer;
        let mut all = self.known.lock();
        let changed = Reachability { answers, serves, load, clock, since: Instant::now() };
        let known = all.entry(node).or_insert(changed);
        (known.serves, known.load, known.clock) = (serves, load, clock);
        if known.answers != answers {
            *known = changed;
        }
    }

    /// Removes the nodes that are not in `nodes`.
    fn keep(&self, nodes: &[NodeId]) {
        self.known.lock().retain(|node, _| nodes.contains(node));
    }
}

/// Calls the other nodes, and publishes what follows from their answers.
pub(crate) struct NodeProber {
    pub(crate) own: NodeId,
    pub(crate) catalogue: Catalogue,
    pub(crate) transport: Arc<RunningTransport>,
    pub(crate) probes: Arc<Probes>,
    /// The clock of this node, which is compared with those of the others.
    pub(crate) clock: Arc<dyn Clock>,
    /// Kept equal to [`lost_groups`].
    pub(crate) lost: watch::Sender<BTreeSet<u32>>,
    /// The newest comparison of the clocks.
    pub(crate) checks: watch::Sender<ClockCheck>,
}

impl NodeProber {
    /// Calls all other nodes, once a second, until the future is dropped. What follows from the answers is
    /// computed again at the begin of a round, since the voters may have changed, and after each answer.
    pub(crate) async fn run(self) {
        loop {
            let nodes = self.catalogue.nodes();
            let others = nodes.iter().filter(|node| !node.is_removed() && node.node_id() != self.own);
            let others: Vec<&Arc<Node>> = others.collect();
            let ids: Vec<NodeId> = others.iter().map(|node| node.node_id()).collect();
            // A node that has joined and never served may never be started.
            let served = others.iter().filter(|node| node.state() != NodeState::Joining).count();
            self.probes.keep(&ids);
            self.publish_lost();
            if ids.is_empty() {
                self.publish_clocks(served);
            }
            let call = |node| {
                let prober = &self;
                async move { (node, prober.probe(node).await) }
            };
            let mut calls: FuturesUnordered<_> = ids.into_iter().map(call).collect();
            while let Some((node, answer)) = calls.next().await {
                self.probes.record(node, answer);
                self.publish_lost();
                self.publish_clocks(served);
            }
            sleep(INTERVAL).await;
        }
    }

    fn publish_lost(&self) {
        let lost = lost_groups(&self.catalogue, self.own, &self.probes);
        self.lost.send_if_modified(|known| {
            let is_new = *known != lost;
            *known = lost;
            is_new
        });
    }

    /// Compares the clocks. `served` is the number of other nodes that have ever served.
    fn publish_clocks(&self, served: usize) {
        let made = ClockMoment::present(&*self.clock);
        let comparison = compare_clocks(served, &self.probes.clocks(made));
        let before = self.checks.send_replace(ClockCheck { comparison, made }).comparison;
        let is_clear = |comparison| !matches!(comparison, ClockComparison::Disagree { .. });
        if is_clear(before) && !is_clear(comparison) {
            tracing::warn!(?comparison, "the clocks of the nodes differ, and none is known to be right");
        }
    }

    async fn probe(&self, node: NodeId) -> ProbeAnswer {
        let Some(transport) = self.transport.get() else { return ProbeAnswer::default() };
        let called = ClockMoment::present(&*self.clock);
        let request = Bytes::from_static(LOAD_REQUEST);
        match transport.call(node, Channel::Control, PING, request, called.at + ANSWER_MAX).await {
            Ok(answer) => {
                let answer = probe_answer(node, &answer);
                let stated_ms = answer.load.and_then(|load| load.clock_ms);
                let (sent_ms, round_trip) = (called.now.as_millis(), called.at.elapsed());
                let sample = |stated_ms| ClockSample::of_answer(sent_ms, stated_ms, round_trip);
                let dated = |sample| DatedSample { sample, called };
                ProbeAnswer { clock: stated_ms.and_then(sample).map(dated), ..answer }
            }
            Err(error) => {
                if is_superseded(&error) {
                    tracing::error!(%error,
                        "a peer has recorded a later start of this node, or its removal: it must not serve");
                    self.probes.superseded.cancel();
                }
                ProbeAnswer::default()
            }
        }
    }
}

/// The result of a call that was answered, without the clock. A node with a malformed answer is reachable,
/// and counts as one that does not serve.
fn probe_answer(node: NodeId, bytes: &[u8]) -> ProbeAnswer {
    let answer = PingAnswer::decode_answer(bytes).unwrap_or_else(|error| {
        tracing::debug!(%node, %error, "the answer to a ping is malformed");
        PingAnswer::default()
    });
    ProbeAnswer { answers: true, serves: answer.is_serving, load: answer.load, clock: None }
}

/// True if the peer refused this node because of its start, or because it was removed.
fn is_superseded(error: &CallError) -> bool {
    match error {
        CallError::PeerRefused { refusal: HandshakeRefusal::ByPeer { code, .. }, .. } => {
            [HandshakeRefusal::START_CODE, HandshakeRefusal::REMOVED_CODE].contains(code)
        }
        _ => false,
    }
}

/// Groups on this node without a reachable majority of their voters.
pub(crate) fn lost_groups(catalogue: &Catalogue, own: NodeId, probes: &Probes) -> BTreeSet<u32> {
    let is_lost = |group: &u32| !has_majority(&catalogue.voters(*group), own, probes);
    catalogue.groups().into_iter().filter(is_lost).collect()
}

/// True if most of these voters answer. A group without known voters is new here, and has a majority.
pub(crate) fn has_majority(voters: &BTreeSet<NodeId>, own: NodeId, probes: &Probes) -> bool {
    let answers = |voter: &&NodeId| **voter == own || probes.answers(**voter) == Some(true);
    voters.is_empty() || voters.iter().filter(answers).count() > voters.len() / 2
}

#[cfg(test)]
mod tests {
    use super::{DatedSample, NodeProber, ProbeAnswer, Probes, has_majority, probe_answer};
    use crate::admission::tests::TestMember;
    use mlgw_common::clock::ManualClock;
    use mlgw_common::{CheckedClock, ClockMoment, NodeId, Timestamp};
    use mlgw_formats::node_load::NodeLoad;
    use mlgw_membership::{ClockSample, Contact};
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::watch;

    const ANSWERS: ProbeAnswer = ProbeAnswer { answers: true, serves: false, load: None, clock: None };

    #[tokio::test(start_paused = true)]
    async fn a_contact_begins_at_the_first_answer_of_its_kind() {
        let (probes, node) = (Probes::default(), NodeId(2));
        assert_eq!(probes.contact(node), Contact::Unreachable { for_ms: 0 });
        assert_eq!((probes.answers(node), probes.is_silent(node)), (None, false));
        probes.record(node, ANSWERS);
        assert!(!probes.is_silent(node));
        tokio::time::advance(Duration::from_secs(3)).await;
        probes.record(node, ANSWERS);
        assert!(!probes.serves(node));
        probes.record(node, ProbeAnswer { serves: true, ..ANSWERS });
        assert_eq!(probes.contact(node), Contact::Reachable { for_ms: 3000 }, "serving is no new contact");
        assert!(probes.serves(node));
        probes.record(node, ProbeAnswer::default());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(probes.contact(node), Contact::Unreachable { for_ms: 1000 });
        assert_eq!((probes.answers(node), probes.is_silent(node)), (Some(false), true));
        probes.keep(&[]);
        assert_eq!(probes.answers(node), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_jump_of_the_own_clock_counts_also_for_nodes_that_have_not_answered_since() {
        const HOUR_MS: i64 = 3_600_000;
        let (probes, own) = (Probes::default(), ManualClock::new(Timestamp(HOUR_MS)));
        let record = |node, offset_ms| {
            let sample = ClockSample { offset_ms };
            let dated = DatedSample { sample, called: ClockMoment::present(&own) };
            probes.record(NodeId(node), ProbeAnswer { clock: Some(dated), ..ANSWERS });
        };
        record(2, 10);
        record(3, 20);
        tokio::time::advance(Duration::from_secs(1)).await;
        // It jumps by an hour, and only node 2 answers after that.
        own.set(Timestamp(2 * HOUR_MS + 1_000));
        record(2, 10 - HOUR_MS);
        let present = ClockMoment::present(&own);
        let offsets: Vec<i64> = probes.clocks(present).iter().map(|sample| sample.offset_ms).collect();
        assert_eq!(offsets, [10 - HOUR_MS, 20 - HOUR_MS]);
    }

    #[test]
    fn a_group_is_lost_by_its_own_voters_alone() {
        let probes = Probes::default();
        for node in [3, 4] {
            probes.record(NodeId(node), ANSWERS);
        }
        probes.record(NodeId(2), ProbeAnswer::default());
        // Nodes 1 and 2 of five are lost, seen from node 5.
        let is_reached =
            |voters: &[u64]| has_majority(&voters.iter().copied().map(NodeId).collect(), NodeId(5), &probes);
        let groups: [&[u64]; 4] = [&[1, 2, 3, 4, 5], &[1, 2, 3], &[2, 3, 4], &[5, 1, 2]];
        assert_eq!(groups.map(is_reached), [true, false, true, false]);
        assert!(is_reached(&[]), "a new group");
    }

    #[tokio::test]
    async fn the_lost_groups_are_those_without_a_reachable_majority() {
        // The only voter is node 1.
        let member = TestMember::new().await;
        let groups: BTreeSet<u32> = member.catalogue.groups().into_iter().collect();
        for (own, expected) in [(NodeId(1), BTreeSet::new()), (NodeId(9), groups)] {
            let (sender, mut lost) = watch::channel(BTreeSet::from([u32::MAX]));
            let (checks, clock) = CheckedClock::unknown(member.clock.clone());
            let prober = NodeProber {
                own,
                catalogue: member.catalogue.clone(),
                transport: Arc::default(),
                probes: Arc::default(),
                clock: member.clock.clone(),
                lost: sender,
                checks,
            };
            tokio::select! {
                () = prober.run() => panic!("nodes are called for ever"),
                known = lost.wait_for(|known| *known == expected) => assert!(known.is_ok()),
            }
            // The other node does not answer, if there is one.
            assert!(!clock.is_confirmed() || own == NodeId(1));
        }
        member.stop().await;
    }

    #[tokio::test]
    async fn a_load_is_known_while_its_node_answers() {
        let (probes, node) = (Probes::default(), NodeId(2));
        assert_eq!(probes.load(node), None);
        // Serves; format 1; used_bytes is 5.
        probes.record(node, probe_answer(node, &[1, 1, 1 << 3, 5]));
        let load = NodeLoad { used_bytes: Some(5), ..NodeLoad::default() };
        assert_eq!((probes.serves(node), probes.load(node)), (true, Some(load)));
        probes.record(node, ProbeAnswer::default());
        assert_eq!((probes.serves(node), probes.load(node)), (false, None));
    }

    #[test]
    fn answers_of_an_earlier_version_and_malformed_ones_state_no_load() {
        let serves = ProbeAnswer { serves: true, ..ANSWERS };
        assert_eq!(probe_answer(NodeId(2), &[1]), serves);
        assert_eq!(probe_answer(NodeId(2), &[]), ANSWERS);
        assert_eq!(probe_answer(NodeId(2), &[1, 77]), ANSWERS, "an unknown format");
    }
}
