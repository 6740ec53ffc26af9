//! Heartbeats of all groups of this node to one other node, in one call.
//!
//! A heartbeat is an append without entries. openraft sends one for each group and member. The catalogue
//! starts those of all groups at the same moment ([`Heartbeats::gather`]): they wait for each other, and one
//! call to each node carries them. They do not wait longer than until [`Heartbeats::send`]. At any other time
//! an append without entries is a call of its own, because a reader waits for its answer.
//!
//! openraft notes the time of a heartbeat before it is gathered, so a lease never counts the wait
//! ([`super::lease`]). Nothing is stored here.

use super::peers::{MemberLane, MemberPeers, PeerError};
use bytes::Bytes;
use mlgw_common::NodeId;
use mlgw_common::limits::NODE_GROUPS_MAX;
use mlgw_common::time::{Instant, timeout_at};
use mlgw_formats::member_calls::{
    AppendCall, Heartbeat, HeartbeatAnswer, HeartbeatsCall, MemberAnswer, MemberCall, MemberReply,
    MemberRequest,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Interval between heartbeats. A voter begins an election when none has arrived for 3 s to 4 s, so the loss
/// of a few has no effect. Each costs the nodes as much CPU time as a few requests, also when they are idle.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// Longest time until the answer to heartbeats.
pub(super) const HEARTBEAT_MAX: Duration = HEARTBEAT_INTERVAL;

/// Answer of a member to its heartbeat.
type Answered = Result<MemberReply, PeerError>;

/// A heartbeat that waits for others.
struct GatheredHeartbeat {
    heartbeat: Heartbeat,
    answer: oneshot::Sender<Answered>,
}

/// Heartbeats that wait for each other.
#[derive(Default)]
struct GatheredHeartbeats {
    by_node: BTreeMap<NodeId, Vec<GatheredHeartbeat>>,
    /// Number of heartbeats that are still to come.
    expected: usize,
}

/// The heartbeats of a node.
pub(crate) struct Heartbeats {
    peers: Arc<dyn MemberPeers>,
    /// `None` while heartbeats do not wait for others.
    gathered: Mutex<Option<GatheredHeartbeats>>,
}

impl Heartbeats {
    pub(crate) fn new(peers: Arc<dyn MemberPeers>) -> Self {
        Self { peers, gathered: Mutex::default() }
    }

    /// Lets heartbeats wait for each other until there are `expected` ones, or until [`Self::send`].
    pub(crate) fn gather(&self, expected: usize) {
        self.gathered.lock().get_or_insert_default().expected = expected;
    }

    /// Sends the gathered heartbeats, and further ones alone.
    pub(crate) fn send(&self) {
        let gathered = self.gathered.lock().take().unwrap_or_default();
        for (node, mut heartbeats) in gathered.by_node {
            while !heartbeats.is_empty() {
                let rest = heartbeats.split_off(heartbeats.len().min(NODE_GROUPS_MAX));
                tokio::spawn(send_to(Arc::clone(&self.peers), node, heartbeats));
                heartbeats = rest;
            }
        }
    }

    /// Sends a heartbeat with the others that are being gathered, and returns its answer. Returns the append
    /// if none are.
    pub(super) async fn join(
        &self,
        node: NodeId,
        group: u32,
        append: AppendCall,
    ) -> Result<Answered, AppendCall> {
        let (answer, answered) = oneshot::channel();
        let is_last = {
            let mut gathered = self.gathered.lock();
            let Some(gathered) = gathered.as_mut() else { return Err(append) };
            let heartbeat = Heartbeat { group, append };
            gathered.by_node.entry(node).or_default().push(GatheredHeartbeat { heartbeat, answer });
            gathered.expected = gathered.expected.saturating_sub(1);
            gathered.expected == 0
        };
        if is_last {
            self.send();
        }
        Ok(answered.await.unwrap_or_else(|_| Err(PeerError::NotSent("the heartbeats were dropped".into()))))
    }
}

/// Sends heartbeats to a node, and passes the answers on.
async fn send_to(peers: Arc<dyn MemberPeers>, node: NodeId, gathered: Vec<GatheredHeartbeat>) {
    let (heartbeats, waiting): (Vec<_>, Vec<_>) =
        gathered.into_iter().map(|gathered| (gathered.heartbeat, gathered.answer)).unzip();
    let request = MemberRequest::Heartbeats(HeartbeatsCall { heartbeats });
    // The group of the call is that of the catalogue's own calls.
    let call = MemberCall::encode_request(0, request);
    let deadline = Instant::now() + HEARTBEAT_MAX;
    let called = timeout_at(deadline, peers.call(node, MemberLane::Control, call, deadline)).await;
    let answer = called.map_err(|_| PeerError::Unknown("it took too long".into())).flatten();
    match answer.and_then(read_answers) {
        Ok(answers) if answers.len() == waiting.len() => {
            for (waiting, answer) in waiting.into_iter().zip(answers) {
                let _ = waiting.send(answer);
            }
        }
        answers => {
            let misfit = PeerError::Unknown("the answer has another number of heartbeats".into());
            let error = answers.err().unwrap_or(misfit);
            for waiting in waiting {
                let _ = waiting.send(Err(error.clone()));
            }
        }
    }
}

fn read_answers(answer: Bytes) -> Result<Vec<Answered>, PeerError> {
    match read_answer(answer)? {
        MemberReply::Heartbeats(reply) => Ok(reply.answers.into_iter().map(answer_of).collect()),
        other => Err(PeerError::Unknown(format!("the answer does not fit the heartbeats: {other:?}"))),
    }
}

fn answer_of(answer: HeartbeatAnswer) -> Answered {
    match answer.answer.is_empty() {
        true => Err(PeerError::Refused(answer.refusal)),
        false => read_answer(answer.answer),
    }
}

fn read_answer(answer: Bytes) -> Answered {
    MemberAnswer::read(answer).map_err(|error| PeerError::Unknown(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::peers::{MemberLane, MemberPeers, PeerError, PeerFuture, SnapshotBytes};
    use super::{Answered, Heartbeats};
    use bytes::Bytes;
    use futures_util::FutureExt as _;
    use futures_util::future::join_all;
    use mlgw_common::NodeId;
    use mlgw_common::time::Instant;
    use mlgw_formats::member_calls::{
        AppendCall, EmptyReply, HeartbeatAnswer, HeartbeatsReply, MemberAnswer, MemberCall, MemberReply,
        MemberRequest,
    };
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// Peers that record the groups of each call. Node 9 does not know the call.
    #[derive(Default)]
    struct RecordingPeers(Mutex<Vec<(NodeId, Vec<u32>)>>);

    impl RecordingPeers {
        fn answer(&self, node: NodeId, call: Bytes) -> Result<Bytes, PeerError> {
            let (_, request) = MemberCall::read(call).unwrap();
            let MemberRequest::Heartbeats(call) = request else { panic!("{request:?}") };
            let groups: Vec<u32> = call.heartbeats.iter().map(|heartbeat| heartbeat.group).collect();
            self.0.lock().push((node, groups.clone()));
            if node == NodeId(9) {
                return Err(PeerError::Refused("a call of a later version".into()));
            }
            let appended = MemberAnswer::encode_reply(MemberReply::Appended(EmptyReply {}));
            let answer = |group| match group {
                7 => HeartbeatAnswer { refusal: "no member".into(), ..HeartbeatAnswer::default() },
                _ => HeartbeatAnswer { answer: appended.clone(), refusal: String::new() },
            };
            let answers = groups.into_iter().map(answer).collect();
            Ok(MemberAnswer::encode_reply(MemberReply::Heartbeats(HeartbeatsReply { answers })))
        }
    }

    impl MemberPeers for RecordingPeers {
        fn call(&self, node: NodeId, lane: MemberLane, call: Bytes, _deadline: Instant) -> PeerFuture<'_> {
            assert_eq!(lane, MemberLane::Control);
            let answer = self.answer(node, call);
            Box::pin(async move { answer })
        }

        fn send_snapshot(&self, _node: NodeId, _head: Bytes, _body: SnapshotBytes) -> PeerFuture<'_> {
            panic!("heartbeats send no snapshot");
        }
    }

    async fn joined(heartbeats: &Heartbeats, node: u64, group: u32) -> Answered {
        let joined = heartbeats.join(NodeId(node), group, AppendCall::default()).await;
        joined.expect("heartbeats are gathered")
    }

    #[tokio::test]
    async fn gathered_heartbeats_are_one_call_to_each_node() {
        let peers = Arc::<RecordingPeers>::default();
        let heartbeats = Heartbeats::new(Arc::clone(&peers) as Arc<dyn MemberPeers>);
        heartbeats.gather(9);
        let mut all = Box::pin(join_all(
            (1..=3)
                .flat_map(|group| [2, 3].map(|node| (node, group)))
                .map(|(node, group)| joined(&heartbeats, node, group)),
        ));
        assert!(all.as_mut().now_or_never().is_none(), "they wait");
        assert!(peers.0.lock().is_empty());
        heartbeats.send();
        let appended = Ok(MemberReply::Appended(EmptyReply {}));
        assert!(all.await.iter().all(|answer| *answer == appended));
        let mut calls = peers.0.lock().clone();
        calls.sort_unstable();
        assert_eq!(calls, [(NodeId(2), vec![1, 2, 3]), (NodeId(3), vec![1, 2, 3])]);
    }

    #[tokio::test]
    async fn a_heartbeat_is_sent_alone_when_none_are_gathered() {
        let peers = Arc::<RecordingPeers>::default();
        let heartbeats = Heartbeats::new(peers);
        let append = AppendCall::default();
        assert_eq!(heartbeats.join(NodeId(2), 1, append.clone()).await, Err(append.clone()));
        heartbeats.gather(6);
        heartbeats.send();
        assert_eq!(heartbeats.join(NodeId(2), 1, append.clone()).await, Err(append));
    }

    #[tokio::test]
    async fn a_refused_heartbeat_does_not_affect_others() {
        let heartbeats = Heartbeats::new(Arc::<RecordingPeers>::default());
        heartbeats.gather(9);
        let heartbeats = &heartbeats;
        let all = join_all([(2, 1), (2, 7), (9, 1)].map(|(node, group)| joined(heartbeats, node, group)));
        let (answers, ()) = tokio::join!(all, async { heartbeats.send() });
        assert_eq!(answers[0], Ok(MemberReply::Appended(EmptyReply {})));
        assert_eq!(answers[1], Err(PeerError::Refused("no member".into())));
        assert!(matches!(answers[2], Err(PeerError::Refused(_))), "{:?}", answers[2]);
    }

    #[tokio::test]
    async fn the_last_expected_heartbeat_ends_the_wait() {
        let peers = Arc::<RecordingPeers>::default();
        let heartbeats = Heartbeats::new(Arc::clone(&peers) as Arc<dyn MemberPeers>);
        heartbeats.gather(2);
        let mut first = Box::pin(joined(&heartbeats, 2, 1));
        assert!(first.as_mut().now_or_never().is_none(), "another one is expected");
        assert_eq!(joined(&heartbeats, 2, 3).await, Ok(MemberReply::Appended(EmptyReply {})));
        assert_eq!(first.await, Ok(MemberReply::Appended(EmptyReply {})));
        assert_eq!(*peers.0.lock(), [(NodeId(2), vec![1, 3])]);
        assert!(heartbeats.join(NodeId(2), 1, AppendCall::default()).await.is_err(), "it is sent alone");
    }
}
