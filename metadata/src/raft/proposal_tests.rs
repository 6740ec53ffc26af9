//! Proposals and reads through a member that does not lead.

use super::error::GroupError;
use super::group::{Group, GroupParts, member_config};
use super::in_process::InProcess;
use super::suite_tests::{IgnoringWatcher, parts_with};
use crate::catalogue::options::BarrierError;
use crate::durability::Durability;
use crate::view::RowReader as _;
use mlgw_common::NodeId;
use mlgw_common::limits::BATCH_COMMANDS_MAX;
use mlgw_formats::cluster_version::{CLUSTER_VERSION, TAGS_CLUSTER_VERSION};
use mlgw_formats::command::{Change, Command, LeaseBodies, Reply, TagBatch};
use mlgw_formats::log_batch::encode_into;
use mlgw_formats::log_types::Leadership;
use mlgw_formats::member_calls::{
    DeclineReason, MemberReply, MemberRequest, ProposeCall, VoteCall, VoteRecord, position,
};
use mlgw_formats::schema::decode;
use mlgw_formats::schema::meta::{Counter, MetaRow};
use openraft::async_runtime::WatchReceiver as _;
use openraft::{BasicNode, Config};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(super) const SOON: Duration = Duration::from_secs(20);

pub(super) fn lease(count: u64) -> Arc<Command> {
    Arc::new(Command::from(Change::LeaseBodies(LeaseBodies { count })))
}

pub(super) fn leased(member: &Group) -> u64 {
    let row = member.state().get(&MetaRow::NextBody.row()).unwrap();
    row.map_or(0, |row| decode::<Counter>(&row).unwrap().next.saturating_sub(1))
}

pub(super) async fn member_with(dir: &Path, node: u64, network: &InProcess, config: Config) -> Group {
    member_of_version(CLUSTER_VERSION, dir, node, network, config).await
}

async fn member_of_version(
    version: u32,
    dir: &Path,
    node: u64,
    network: &InProcess,
    config: Config,
) -> Group {
    let parts = parts_with(dir, node, Durability::Os);
    let watcher = Arc::new(IgnoringWatcher(version));
    let parts = GroupParts { peers: Some(network.peers(node)), watcher, ..parts };
    let member = Group::open_member(parts, config).await.unwrap();
    network.connect(node, member.clone());
    member
}

/// Three members; the first one leads.
pub(super) async fn three(dir: &Path, network: &InProcess) -> Vec<Group> {
    three_of_version(CLUSTER_VERSION, dir, network).await
}

/// The same in a cluster of this version.
async fn three_of_version(version: u32, dir: &Path, network: &InProcess) -> Vec<Group> {
    let mut members = Vec::new();
    for node in 1..=3 {
        let dir = dir.join(node.to_string());
        members.push(member_of_version(version, &dir, node, network, member_config()).await);
    }
    let nodes = (1..=3).map(|node| (node, BasicNode { addr: String::new() }));
    members[0].raft.initialize(nodes.collect::<std::collections::BTreeMap<_, _>>()).await.unwrap();
    for member in &members {
        let wait = member.raft.wait(Some(SOON));
        // The vote of the first entry has term 0.
        let knows = wait.metrics(|m| m.vote.committed && m.vote.leader_id.term > 0, "a leader").await;
        knows.unwrap();
    }
    // Several may have begun an election. The last one decides.
    let agreed = async {
        loop {
            let known: Vec<_> = members.iter().map(Group::known_leadership).collect();
            let is_agreed = known[0].is_ok() && known.iter().all(|of| *of == known[0]);
            if is_agreed && members.iter().any(|member| member.leadership() == known[0]) {
                return known[0].as_ref().unwrap().node_id;
            }
            mlgw_common::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let leads = mlgw_common::time::timeout(SOON, agreed).await.unwrap();
    members.sort_by_key(|member| member.node != leads);
    // A leader declines proposals until a quorum has answered it once.
    let wait = members[0].raft.wait(Some(SOON));
    wait.metrics(|m| m.last_quorum_acked.is_some(), "answers of a quorum").await.unwrap();
    members
}

pub(super) async fn stop(members: Vec<Group>) {
    for member in members {
        member.raft.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_answers_from_its_own_state_and_reads_behind_a_barrier() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    for (count, member) in (1..).zip(&members) {
        let applied = member.propose(lease(count)).await.unwrap();
        assert!(matches!(applied.reply, Reply::Bodies { .. }));
        assert_eq!(leased(member), (1..=count).sum::<u64>(), "its own state has the change");
        let (is_leader, needed) = (count == 1, &members[0].needed_commits);
        assert!(is_leader || needed.needed() >= applied.index, "its commit is announced at once");
        for reader in &members {
            reader.barrier().await.unwrap();
            assert_eq!(leased(reader), (1..=count).sum::<u64>());
        }
        assert!(needed.needed() >= applied.index, "also for a reader");
    }
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_that_has_voted_for_another_leader_confirms_no_read_index() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    let (leader, voter, other) = (&members[0], &members[1], NodeId(members[2].node));
    let (of, term) = (NodeId(voter.node), leader.leadership().unwrap().term);
    leader.propose(lease(1)).await.unwrap();
    voter.barrier().await.unwrap();
    let vote = voter.vote_record();
    let last = leader.log.last().unwrap();
    assert_eq!(leader.read_index_for(of, vote.as_ref()).await, last, "it is the second of three voters");
    assert_eq!(leader.read_index_of_voters().await, last);
    assert_eq!(leader.read_index_for(NodeId(9), vote.as_ref()).await, None, "it is no voter");
    assert_eq!(leader.read_index_for(of, None).await, None);

    // The leader does not know of the vote at first.
    network.isolate(other.get());
    let last = position(voter.log.last().unwrap().as_ref());
    let candidate = VoteRecord { term: term + 5, node: other.get(), committed: false };
    let call = MemberRequest::Vote(VoteCall { vote: candidate, last, is_transfer: true });
    let voted = voter.serve(other, call).await.unwrap();
    assert!(matches!(voted, MemberReply::Vote(vote) if vote.is_granted));
    assert_eq!(voter.vote_record(), Some(candidate));
    for _ in 0..2 {
        assert_eq!(leader.read_index_of_voters().await, None, "one voter is away, the other has voted");
    }
    assert_eq!(leader.read_index_for(of, voter.vote_record().as_ref()).await, None);
    network.rejoin(other.get());
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_whose_answer_is_lost_is_found_in_the_log() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    network.mute(members[0].node);
    let applied = members[1].propose(lease(7)).await.unwrap();
    assert_eq!(applied.reply, Reply::Bodies { first: 1 });
    assert_eq!(leased(&members[1]), 7, "it was carried out once");
    network.unmute(members[0].node);
    assert_eq!(members[2].propose(lease(1)).await.unwrap().reply, Reply::Bodies { first: 8 });
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_has_the_most_commands_beside_its_tag_which_is_of_its_sender() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    let (leader, sender) = (&members[0], NodeId(members[1].node));
    let proposed = |commands: usize, tagged: NodeId| {
        let mut batch = Vec::new();
        (0..commands).for_each(|_| encode_into(&lease(1), &mut batch));
        let tag = TagBatch { node: tagged.get(), number: 1 };
        encode_into(&Command::from(Change::TagBatch(tag)), &mut batch);
        let Leadership { term, node_id } = leader.known_leadership().unwrap();
        leader.serve(sender, MemberRequest::Propose(ProposeCall { term, node: node_id, batch: batch.into() }))
    };
    let own = leader.node;
    for refused in [proposed(0, sender), proposed(BATCH_COMMANDS_MAX + 1, sender), proposed(1, NodeId(own))] {
        assert!(refused.await.is_err());
    }
    assert_eq!(leased(leader), 0);
    let accepted = proposed(BATCH_COMMANDS_MAX, sender).await;
    // Another member may lead by now.
    if matches!(accepted, Ok(MemberReply::Proposed(_))) {
        assert_eq!(leased(leader), BATCH_COMMANDS_MAX as u64);
    }
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_without_a_tag_whose_answer_is_lost_is_never_sent_again() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three_of_version(TAGS_CLUSTER_VERSION - 1, dir.path(), &network).await;
    network.mute(members[0].node);
    assert_eq!(members[1].propose(lease(7)).await, Err(GroupError::UnknownOutcome));
    members[2].barrier().await.unwrap();
    assert_eq!(leased(&members[2]), 7, "it was carried out once");
    members[0].propose(lease(1)).await.unwrap();
    assert_eq!(leased(&members[0]), 8);
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_that_its_leader_lost_is_proposed_to_the_next_leader() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    let followers = [members[1].node, members[2].node];
    followers.iter().for_each(|node| network.hold_entries(*node));
    let before = members[0].log.last().unwrap();
    let proposing = tokio::spawn({
        let member = members[1].clone();
        async move { member.propose(lease(7)).await }
    });
    while members[0].log.last().unwrap() == before {
        mlgw_common::time::sleep(Duration::from_millis(1)).await;
    }
    network.isolate(members[0].node);
    followers.iter().for_each(|node| network.pass_entries(*node));
    assert!(proposing.await.unwrap().is_ok());
    network.rejoin(members[0].node);
    for member in &members {
        member.barrier().await.unwrap();
        assert_eq!(leased(member), 7, "it was carried out once");
    }
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_proposals_complete_while_the_outcome_of_an_earlier_one_is_unknown() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    let leader = members[0].node;
    network.drop_proposals(leader);
    let proposing = tokio::spawn({
        let member = members[1].clone();
        async move { member.propose(lease(7)).await }
    });
    while network.proposals_dropped() == 0 {
        mlgw_common::time::sleep(Duration::from_millis(1)).await;
    }
    network.pass_proposals(leader);
    assert_eq!(members[1].propose(lease(1)).await.unwrap().reply, Reply::Bodies { first: 1 });
    assert!(!proposing.is_finished(), "the leader may still append it");
    members[0].transfer_leader(NodeId(members[2].node)).await.unwrap();
    assert_eq!(proposing.await.unwrap().unwrap().reply, Reply::Bodies { first: 2 });
    for member in &members {
        member.barrier().await.unwrap();
        assert_eq!(leased(member), 8, "both were carried out once");
    }
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_that_is_not_in_the_log_waits_for_the_next_leader() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    network.isolate(members[0].node);
    // More than one wait may pass before a member is elected, if votes are split.
    let proposed = mlgw_common::time::timeout(SOON, async {
        loop {
            match members[1].propose(lease(7)).await {
                Err(GroupError::NotLeader { .. }) => {}
                outcome => return outcome,
            }
        }
    });
    assert!(proposed.await.unwrap().is_ok());
    members[2].barrier().await.unwrap();
    assert_eq!(leased(&members[2]), 7);
    network.rejoin(members[0].node);
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_enters_the_log_of_its_leadership_only() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    let mut batch = Vec::new();
    encode_into(&lease(7), &mut batch);
    let proposed = |member: &Group, leadership: Leadership| {
        let (term, node) = (leadership.term, leadership.node_id);
        let call = ProposeCall { term, node, batch: batch.clone().into() };
        let (member, from) = (member.clone(), NodeId(member.node % 3 + 1));
        async move { member.serve(from, MemberRequest::Propose(call)).await }
    };
    let current = members[0].known_leadership().unwrap();
    let earlier = Leadership { term: current.term - 1, node_id: members[0].node };
    let earlier = proposed(&members[0], earlier).await.unwrap();
    let MemberReply::Declined(declined) = earlier else { panic!("{earlier:?}") };
    assert_eq!(declined.known_reason(), DeclineReason::NotLeader);
    let other = proposed(&members[0], Leadership { node_id: 9, ..current }).await;
    assert!(other.is_err(), "it is not for this member");
    assert_eq!(leased(&members[0]), 0);
    // Another member may be elected meanwhile, and declines a proposal for the leadership before.
    let accepted = mlgw_common::time::timeout(SOON, async {
        loop {
            let leader = members.iter().find_map(|member| Some((member, member.leadership().ok()?)));
            if let Some((leader, leadership)) = leader
                && let Ok(MemberReply::Proposed(_)) = proposed(leader, leadership).await
            {
                return leader;
            }
            mlgw_common::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let leader = accepted.await.unwrap();
    assert_eq!(leased(leader), 7, "it was carried out once");
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_calls_in_its_own_name_only() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    let vote = VoteRecord { term: 1000, node: members[1].node, committed: false };
    let call = |from: u64| {
        let request = MemberRequest::Vote(VoteCall { vote, last: None, is_transfer: true });
        members[0].serve(NodeId(from), request)
    };
    let refused = call(members[2].node).await.unwrap_err().0;
    assert!(refused.contains("in the name of"), "{refused}");
    assert!(members[0].raft.metrics().borrow_watched().current_term < 1000);
    assert!(call(members[1].node).await.is_ok());
    stop(members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_a_quorum_does_not_pass_a_barrier() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    for member in &members[1..] {
        network.isolate(member.node);
    }
    for member in &members {
        assert_eq!(member.barrier().await, Err(BarrierError::NoQuorum), "node {}", member.node);
    }
    stop(members).await;
}
