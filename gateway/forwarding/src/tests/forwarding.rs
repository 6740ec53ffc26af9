//! The forwarder over scripted members: which are tried, what is carried out, which error is reported.

use super::members::{Behavior, ScriptedMembers, ScriptedNetwork};
use crate::reads::READS_TOGETHER;
use crate::route::{MapEpoch, RangeMembers, RouteTable, RouteTarget};
use crate::verdict::{RoutingVerdict, UnconfirmedCause};
use crate::{
    DeclaredBody, ForwardFailure, ForwardedContext, ForwardedResponse, ForwardedTarget, Forwarder,
    OutgoingRequest,
};
use bytes::Bytes;
use futures_util::stream;
use http::request::Parts;
use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use mlgw_common::limits::FORWARD_ACCEPT_WAIT_MS;
use mlgw_common::time::Instant;
use mlgw_common::{NodeId, Timestamp};
use mlgw_wire::error::{Code, S3Error};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

const SERVES: Behavior = Behavior::Serves { bytes: 3, missing: 0 };
const OWN: NodeId = NodeId(100);

fn busy() -> Behavior {
    Behavior::Refuses(RoutingVerdict::Busy { reason: "memory".into() })
}

fn unconfirmed(cause: UnconfirmedCause) -> Behavior {
    Behavior::Refuses(RoutingVerdict::Unconfirmed { cause, reason: "lost".into() })
}

fn not_mine(leader: Option<u64>) -> Behavior {
    Behavior::Refuses(RoutingVerdict::NotMine { leader: leader.map(NodeId), epoch: MapEpoch(3) })
}

/// A test: members with their behaviors, and a request.
struct ForwardingScenario {
    members: Arc<ScriptedMembers>,
    forwarder: Forwarder,
    table: RouteTable,
    /// The node that has the rows by those of the forwarding node.
    owner: Option<NodeId>,
    /// Time for which the request has waited before.
    waited: Duration,
    /// Pieces of the client's body that were read.
    read: Arc<AtomicUsize>,
    /// Bodies of clients that were dropped.
    returned: Arc<AtomicUsize>,
}

struct ReturnCount(Arc<AtomicUsize>);

impl Drop for ReturnCount {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl ForwardingScenario {
    fn new(behaviors: &[(u64, Behavior)]) -> Self {
        let members = ScriptedMembers::new(behaviors);
        let ids = behaviors.iter().map(|(id, _)| NodeId(*id)).filter(|id| id.get() < 50).collect();
        let group = RangeMembers::new(ids, None);
        Self {
            forwarder: Forwarder::new(OWN, Arc::new(ScriptedNetwork(Arc::clone(&members))), Arc::default()),
            members,
            table: RouteTable::new(MapEpoch(2), group),
            owner: None,
            waited: Duration::ZERO,
            read: Arc::default(),
            returned: Arc::default(),
        }
    }

    /// Forwards a PUT of these pieces.
    async fn put(&self, pieces: Vec<Result<&'static str, Code>>) -> Result<ForwardedResponse, S3Error> {
        self.put_with(Request::put("/b/k").body(()).unwrap().into_parts().0, pieces).await
    }

    async fn get(&self) -> ForwardedResponse {
        self.put_with(Request::get("/b/k").body(()).unwrap().into_parts().0, vec![]).await.unwrap()
    }

    async fn put_with(
        &self,
        head: Parts,
        pieces: Vec<Result<&'static str, Code>>,
    ) -> Result<ForwardedResponse, S3Error> {
        let (read, returned, mut pieces) =
            (Arc::clone(&self.read), ReturnCount(Arc::clone(&self.returned)), pieces.into_iter());
        let body = StreamBody::new(Box::pin(stream::poll_fn(move |_| {
            let _kept = &returned;
            read.fetch_add(1, Relaxed);
            let piece = pieces.next();
            Poll::Ready(
                piece.map(|piece| piece.map(|text| Frame::data(Bytes::from(text))).map_err(S3Error::new)),
            )
        })));
        let target = RouteTarget { bucket: Some("b"), key: Some("k") };
        let context = ForwardedContext {
            client: "192.0.2.7:50123".parse().unwrap(),
            is_secure: false,
            received: Timestamp(5),
            request_id: "0A".to_owned(),
            epoch: self.table.epoch,
            target: ForwardedTarget::of(target),
            body: DeclaredBody::Unsized,
        };
        let group = self.table.members_of(target);
        let (owner, waited) = (self.owner, self.waited);
        let request = OutgoingRequest { head: &head, context, group, owner, turn: 0, waited, body };
        self.forwarder.forward(request).await
    }

    fn tried(&self) -> Vec<u64> {
        self.members.tried.lock().clone()
    }

    fn executed(&self) -> usize {
        self.members.executed.load(Relaxed)
    }
}

async fn whole(answer: ForwardedResponse) -> Bytes {
    answer.response.into_body().collect().await.unwrap().to_bytes()
}

#[tokio::test(start_paused = true)]
async fn a_request_is_carried_out_by_the_first_member_that_accepts_it() {
    let members = [
        (1, Behavior::Down),
        (2, Behavior::VerdictLost),
        (3, not_mine(None)),
        (4, Behavior::VerdictLate),
        (5, SERVES),
    ];
    let scenario = ForwardingScenario::new(&members);
    let answer = scenario.put(vec![Ok("ab"), Ok("c")]).await.unwrap();
    assert_eq!((answer.member, answer.response.status()), (NodeId(5), StatusCode::OK));
    assert_eq!(whole(answer).await.len(), 3);
    assert_eq!(scenario.tried(), [1, 2, 3, 4, 5]);
    assert_eq!((scenario.executed(), scenario.members.body_bytes.load(Relaxed)), (1, 3));
    assert_eq!(scenario.forwarder.newest_epoch(), MapEpoch(9));
    let totals = scenario.forwarder.counters.totals();
    assert_eq!((totals.accepted, totals.unreachable, totals.not_mine, totals.lost), (1, 3, 1, 0));
    // The first two failed so long before the fourth that they are tried in their places again.
    scenario.put(vec![]).await.unwrap();
    assert_eq!(scenario.tried()[5..], [1, 2, 3, 5]);
    // Members that just failed are tried last.
    scenario.put(vec![]).await.unwrap();
    assert_eq!(scenario.tried()[9..], [3, 5]);
}

#[tokio::test(start_paused = true)]
async fn reads_stay_with_one_member_until_enough_of_their_bodies_are_under_way() {
    let scenario = ForwardingScenario::new(&[(1, SERVES), (2, SERVES), (3, SERVES)]);
    let mut held = Vec::new();
    for _ in 0..READS_TOGETHER {
        held.push(scenario.get().await);
    }
    assert!(held.iter().all(|answer| answer.member == NodeId(2)), "by the id of the forwarding node");
    assert_eq!(scenario.get().await.member, NodeId(3));
    drop(held.pop());
    assert_eq!(scenario.get().await.member, NodeId(2));

    let refusing = ForwardingScenario::new(&[(1, busy()), (2, SERVES)]);
    for _ in 0..=READS_TOGETHER {
        assert_eq!(refusing.get().await.member, NodeId(2));
    }
    let tried = refusing.tried();
    assert!(tried.chunks(2).all(|pair| pair == [1, 2]), "a read that was refused is not counted: {tried:?}");
}

#[tokio::test(start_paused = true)]
async fn reads_with_long_bodies_are_spread_over_the_members() {
    let long = Behavior::Serves { bytes: 1 << 20, missing: 0 };
    let scenario = ForwardingScenario::new(&[(1, long.clone()), (2, long.clone()), (3, long)]);
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(scenario.get().await);
    }
    let members: Vec<_> = held.iter().map(|answer| answer.member.get()).collect();
    assert_eq!(members, [2, 3, 1, 2, 3, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_stops_is_tried_last_and_still_serves() {
    let scenario = ForwardingScenario::new(&[(1, SERVES), (2, SERVES)]);
    scenario.members.stopping.lock().push(NodeId(1));
    assert_eq!(scenario.put(vec![]).await.unwrap().member, NodeId(2));
    scenario.members.stopping.lock().push(NodeId(2));
    assert_eq!(scenario.put(vec![]).await.unwrap().member, NodeId(1));
    assert_eq!(scenario.tried(), [2, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_hint_is_followed_to_a_member_that_the_own_map_does_not_have() {
    let scenario = ForwardingScenario::new(&[(1, not_mine(Some(77))), (2, SERVES), (77, SERVES)]);
    assert_eq!(scenario.put(vec![]).await.unwrap().member, NodeId(77));
    assert_eq!(scenario.tried(), [1, 77]);
}

#[tokio::test(start_paused = true)]
async fn the_node_that_has_the_rows_is_tried_although_the_map_does_not_have_it() {
    let mut scenario = ForwardingScenario::new(&[(1, not_mine(None)), (2, SERVES), (77, SERVES)]);
    scenario.owner = Some(NodeId(77));
    assert_eq!(scenario.put(vec![]).await.unwrap().member, NodeId(77));
    scenario.owner = Some(NodeId(2));
    assert_eq!(scenario.put(vec![]).await.unwrap().member, NodeId(2), "the map spreads the requests");
    assert_eq!(scenario.tried(), [77, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_no_member_accepts_is_answered_503_with_its_reason_and_the_body_is_not_read() {
    use UnconfirmedCause::{Leader, Majority};
    let garbled = Behavior::Refuses(RoutingVerdict::Refused { reason: "version 2".into() });
    for (behavior, failure) in [
        (vec![], ForwardFailure::NoMember),
        (vec![Behavior::Down, Behavior::Down], ForwardFailure::Unreachable),
        (vec![Behavior::Garbled], ForwardFailure::Unreachable),
        (vec![Behavior::Down, not_mine(None)], ForwardFailure::NotOwned),
        (vec![busy()], ForwardFailure::Busy),
        (vec![Behavior::Full], ForwardFailure::Busy),
        (vec![garbled], ForwardFailure::Refused),
        (vec![unconfirmed(Leader)], ForwardFailure::Unconfirmed(Leader)),
        (vec![busy(), unconfirmed(Majority)], ForwardFailure::Unconfirmed(Majority)),
        // Most voters are down, and one that is left says why nothing works.
        (vec![unconfirmed(Majority), Behavior::Down], ForwardFailure::Unconfirmed(Majority)),
        (vec![unconfirmed(Majority), busy()], ForwardFailure::Busy),
    ] {
        let members: Vec<_> = (1..).zip(behavior.clone()).collect();
        let scenario = ForwardingScenario::new(&members);
        let error = scenario.put(vec![Ok("a")]).await.err().unwrap();
        assert_eq!((error.code(), error.get("Reason")), (Code::ServiceUnavailable, Some(failure.name())));
        let response = error.into_response::<Bytes>("/b/k", "0A");
        assert_eq!(response.headers()["retry-after"], "1", "{behavior:?}");
        assert_eq!((scenario.read.load(Relaxed), scenario.returned.load(Relaxed)), (0, 1), "{behavior:?}");
        assert_eq!(scenario.forwarder.counters.totals().not_accepted, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_without_a_free_stream_is_passed_over_and_stays_healthy() {
    let scenario = ForwardingScenario::new(&[(1, Behavior::Full), (2, SERVES)]);
    for _ in 0..2 {
        assert_eq!(scenario.put(vec![Ok("a")]).await.unwrap().member, NodeId(2));
    }
    assert_eq!(scenario.tried(), [1, 2, 1, 2], "a suspect member would be tried last");
    let totals = scenario.forwarder.counters.totals();
    assert_eq!((totals.accepted, totals.busy, totals.unreachable), (2, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn what_a_request_has_waited_before_is_part_of_the_two_seconds() {
    let mut scenario = ForwardingScenario::new(&[(1, Behavior::VerdictLate), (2, Behavior::VerdictLate)]);
    for left_ms in [300, 0] {
        scenario.waited = Duration::from_millis(FORWARD_ACCEPT_WAIT_MS - left_ms);
        let begin = Instant::now();
        let error = scenario.put(vec![Ok("a")]).await.err().unwrap();
        assert_eq!(error.get("Reason"), Some("NoMemberReachable"), "{left_ms} ms are left");
        assert!(begin.elapsed() <= Duration::from_millis(left_ms + 1), "{:?}", begin.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn silent_members_end_in_503_within_two_seconds() {
    let silent: Vec<_> = (1..=5).map(|member| (member, Behavior::VerdictLate)).collect();
    let (scenario, begin) = (ForwardingScenario::new(&silent), Instant::now());
    let error = scenario.put(vec![Ok("a")]).await.err().unwrap();
    assert_eq!(error.get("Reason"), Some("NoMemberReachable"));
    assert!(begin.elapsed() <= Duration::from_millis(FORWARD_ACCEPT_WAIT_MS + 1), "{:?}", begin.elapsed());
    tokio::task::yield_now().await;
    assert_eq!(scenario.executed(), 0, "no member carries out what was withdrawn");
}

#[tokio::test(start_paused = true)]
async fn a_failure_after_the_acceptance_is_503_and_no_other_member_is_tried() {
    let scenario = ForwardingScenario::new(&[(1, Behavior::Dies), (2, SERVES)]);
    let error = scenario.put(vec![Ok("a")]).await.err().unwrap();
    assert_eq!((error.code(), error.get("Reason")), (Code::ServiceUnavailable, Some("MemberLost")));
    assert_eq!((scenario.tried(), scenario.executed()), (vec![1], 1));
    assert_eq!(scenario.forwarder.counters.totals().lost, 1);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_clients_body_is_the_answer_and_nothing_is_carried_out() {
    let scenario = ForwardingScenario::new(&[(1, SERVES)]);
    let error = scenario.put(vec![Ok("a"), Err(Code::RequestTimeout)]).await.err().unwrap();
    assert_eq!(error.code(), Code::RequestTimeout);
    assert_eq!((scenario.executed(), scenario.returned.load(Relaxed)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_the_member_does_not_read_is_returned_before_the_answer() {
    for expects in [false, true] {
        let scenario = ForwardingScenario::new(&[(1, Behavior::AnswersEarly)]);
        let mut head = Request::put("/b/k");
        if expects {
            head = head.header("expect", "100-continue");
        }
        let head = head.body(()).unwrap().into_parts().0;
        let answer = scenario.put_with(head, vec![Ok("a")]).await.unwrap();
        assert_eq!(answer.response.status(), StatusCode::FORBIDDEN);
        assert_eq!(scenario.returned.load(Relaxed), 1, "the connection has its body back");
        assert_eq!(scenario.read.load(Relaxed), 0);
        assert_eq!(whole(answer).await, "no");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_100_continue_is_read_when_the_handler_reads() {
    let scenario = ForwardingScenario::new(&[(1, SERVES)]);
    let head = Request::put("/b/k").header("expect", "100-continue").body(()).unwrap().into_parts().0;
    scenario.put_with(head, vec![Ok("abc")]).await.unwrap();
    assert_eq!((scenario.executed(), scenario.members.body_bytes.load(Relaxed)), (1, 3));
    let (head, context) = scenario.members.last.lock().take().unwrap();
    assert_eq!((head.headers["expect"].as_bytes(), context.received), (&b"100-continue"[..], Timestamp(5)));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_ends_early_is_an_error_of_its_body() {
    for bytes in [0, 3, 100_000] {
        let scenario = ForwardingScenario::new(&[(1, Behavior::Serves { bytes, missing: 1 })]);
        let answer = scenario.put(vec![]).await.unwrap();
        assert_eq!(answer.response.body().left_bytes(), Some(bytes as u64 + 1));
        assert!(answer.response.into_body().collect().await.is_err(), "{bytes}");
    }
}

fn behavior() -> impl Strategy<Value = Behavior> {
    prop_oneof![
        Just(Behavior::Down),
        Just(Behavior::Full),
        Just(Behavior::VerdictLost),
        Just(Behavior::VerdictLate),
        Just(Behavior::Garbled),
        Just(busy()),
        prop::option::of(1_u64..8).prop_map(not_mine),
        (0_usize..40_000).prop_map(|bytes| Behavior::Serves { bytes, missing: 0 }),
        Just(Behavior::AnswersEarly),
        Just(Behavior::Dies),
    ]
}

/// Returns a piece of a client's body, or its error.
fn piece() -> impl Strategy<Value = Result<&'static str, Code>> {
    prop_oneof![9 => Just(Ok("abc")), 1 => Just(Err(Code::RequestTimeout))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever members do, a request is carried out at most once, a success means once, and a body is read
    /// only for a member that accepted.
    #[test]
    fn a_request_is_carried_out_at_most_once(
        behaviors in prop::collection::vec(behavior(), 0..7),
        expects in any::<bool>(),
        pieces in prop::collection::vec(piece(), 0..4),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let members: Vec<_> = (1..).zip(behaviors.iter().cloned()).collect();
            let scenario = ForwardingScenario::new(&members);
            let mut head = Request::put("/b/k");
            if expects {
                head = head.header("expect", "100-continue");
            }
            let head = head.body(()).unwrap().into_parts().0;
            let answered = scenario.put_with(head, pieces.clone()).await;
            let reported = answered.as_ref().map(|answer| answer.member).map_err(S3Error::code);
            drop(answered);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            let executed = scenario.executed();
            prop_assert!(executed <= 1, "{executed} times");
            match reported {
                Ok(member) => {
                    let behavior = &behaviors[usize::try_from(member.get()).unwrap() - 1];
                    let serves = matches!(behavior, Behavior::Serves { .. });
                    prop_assert_eq!(executed, usize::from(serves), "{:?}", behavior);
                }
                Err(Code::RequestTimeout) => prop_assert_eq!(executed, 0),
                Err(code) => prop_assert_eq!(code, Code::ServiceUnavailable),
            }
            let accepted = scenario.forwarder.counters.totals().accepted;
            prop_assert!(accepted == 1 || scenario.read.load(Relaxed) == 0);
            prop_assert_eq!(scenario.returned.load(Relaxed), 1);
            let mut tried = scenario.tried();
            tried.sort_unstable();
            prop_assert!(tried.windows(2).all(|pair| pair[0] != pair[1]), "{:?}", tried);
            Ok(())
        })?;
    }
}
