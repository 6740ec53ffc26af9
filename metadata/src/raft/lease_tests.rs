//! Leases of three members whose leader is cut off, hands over, or whose followers restart.

use super::group::{Group, member_config};
use super::in_process::InProcess;
use super::proposal_tests::{SOON, lease, leased, member_with, stop, three};
use crate::catalogue::options::BarrierError;
use futures_util::FutureExt as _;
use mlgw_common::NodeId;
use mlgw_common::time::{sleep, timeout};
use mlgw_formats::member_calls::{MemberReply, MemberRequest, VoteCall, VoteRecord, position};
use openraft::Config;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(1);

async fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let repeated = timeout(SOON, async {
        loop {
            match attempt() {
                Some(result) => return result,
                None => sleep(PAUSE).await,
            }
        }
    });
    repeated.await.expect("it happens soon")
}

/// The member that has a lease, after it got one.
async fn leaseholder(members: &[Group]) -> usize {
    until(|| members.iter().position(|member| member.lease().is_some())).await
}

/// Reads by lease until there is none. No read may return less than what was acknowledged before it began.
async fn read_by_lease(member: Group, acknowledged: Arc<AtomicU64>) -> u32 {
    let mut reads = 0;
    while let Some(before) = member.lease() {
        let expected = acknowledged.load(Ordering::SeqCst);
        let found = leased(&member);
        if member.lease() == Some(before) {
            assert!(found >= expected, "{found} was read when {expected} was acknowledged");
            reads += 1;
        }
        tokio::task::yield_now().await;
    }
    reads
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_reads_nothing_by_lease_that_another_leader_replaced() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let mut members = three(dir.path(), &network).await;
    let leader = members.remove(leaseholder(&members).await);
    let acknowledged = Arc::<AtomicU64>::default();
    leader.propose(lease(1)).await.unwrap();
    acknowledged.store(1, Ordering::SeqCst);
    let reading = tokio::spawn(read_by_lease(leader.clone(), Arc::clone(&acknowledged)));
    network.isolate(leader.node);
    let written = timeout(SOON, async {
        while members[0].propose(lease(2)).await.is_err() {}
        acknowledged.store(3, Ordering::SeqCst);
    });
    written.await.unwrap();
    assert!(reading.await.unwrap() > 0, "it read by lease at first");
    assert_eq!(leader.lease(), None);
    assert_eq!(leased(&leader), 1, "its rows are old");
    assert_eq!(leader.barrier().await, Err(BarrierError::NoQuorum));
    let next = leaseholder(&members).await;
    assert!(leased(&members[next]) >= 3);
    network.rejoin(leader.node);
    members.push(leader);
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_by_lease_waits_for_entries_that_followers_may_have_applied() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    let leader = leaseholder(&members).await;
    let (leader, follower) = (&members[leader], &members[(leader + 1) % 3]);
    leader.propose(lease(1)).await.unwrap();
    let last = || leader.log.last().unwrap().unwrap().index;
    until(|| (leased(follower) == 1).then_some(())).await;
    assert!(leader.member_lease.sent_committed() >= last(), "it is recorded before the follower applies it");

    // A follower has applied the next entry, and the leader has not.
    leader.member_lease.record_committed(last() + 1);
    until(|| leader.lease()).await;
    assert!(leader.begin_lease().now_or_never().is_none());
    leader.propose(lease(1)).await.unwrap();
    let begun = until(|| leader.begin_lease().now_or_never());
    assert!(begun.await.unwrap().is_some());
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hands_over_has_no_lease_although_it_still_leads() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    let leader = leaseholder(&members).await;
    let (leader, target) = (&members[leader], &members[(leader + 1) % 3]);
    // The next leader does not receive the hand-over, but the one that leads cannot know.
    network.isolate(target.node);
    let handing_over = leader.clone();
    let to = NodeId(target.node);
    let handing_over = tokio::spawn(async move { handing_over.transfer_leader(to).await });
    until(|| leader.lease().is_none().then_some(())).await;
    assert!(leader.raft.is_leader(), "it lost the lease by handing over");
    assert!(handing_over.await.unwrap().is_err());
    assert_eq!(leader.lease(), None);
    network.rejoin(target.node);
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_has_no_lease_when_it_has_voted_for_another_one() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    let leader = leaseholder(&members).await;
    let (leader, other) = (&members[leader], &members[(leader + 1) % 3]);
    let held = leader.lease().unwrap();
    let last = position(leader.log.last().unwrap().as_ref());
    let vote = VoteRecord { term: held.term + 5, node: other.node, committed: false };
    let call = |is_transfer| MemberRequest::Vote(VoteCall { vote, last, is_transfer });
    let is_granted = |reply| matches!(reply, MemberReply::Vote(vote) if vote.is_granted);
    let refused = leader.serve(NodeId(other.node), call(false)).await.unwrap();
    assert!(!is_granted(refused), "a quorum answers it");
    let granted = leader.serve(NodeId(other.node), call(true)).await.unwrap();
    assert!(is_granted(granted));
    assert_ne!(leader.lease(), Some(held));
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_restarted_does_not_vote_until_the_lease_of_its_leader_is_over() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let mut members = three(dir.path(), &network).await;
    let leader = leaseholder(&members).await;
    let held = members[leader].lease().unwrap();
    let other = members[(leader + 1) % 3].node;
    let follower = members.remove((leader + 2) % 3);
    let node = follower.node;
    until(|| follower.known_leadership().ok().filter(|leads| *leads == held)).await;
    // Its leader does not reach it any more.
    network.isolate(node);
    network.disconnect(node);
    let states = [follower.state().open_token(), follower.log.open_token()];
    follower.raft.shutdown().await.unwrap();
    drop(follower);
    until(|| states.iter().all(|open| open.strong_count() == 0).then_some(())).await;

    // It waits for an hour, so that the test does not depend on its speed.
    let config = Config { election_timeout_max: 3_600_000, ..member_config() };
    let restarted = member_with(&dir.path().join(node.to_string()), node, &network, config).await;
    let vote = VoteRecord { term: held.term + 5, node: other, committed: false };
    let ask = async |request: MemberRequest| match restarted.serve(NodeId(other), request).await.unwrap() {
        MemberReply::Vote(vote) => vote.is_granted,
        reply => panic!("{reply:?}"),
    };
    let last = position(restarted.log.last().unwrap().as_ref());
    let call = |is_transfer| VoteCall { vote, last, is_transfer };
    assert!(!ask(MemberRequest::PreVote(call(false))).await);
    assert!(!ask(MemberRequest::Vote(call(false))).await);
    assert!(ask(MemberRequest::Vote(call(true))).await, "its leader allows this vote");
    members.push(restarted);
    stop(members).await;
}
