//! Commands of membership, one by one: what each accepts, and the reason of each rejection.

use super::{apply, seq_of};
use crate::view::{MemoryRows, RowReader as _, View};
use mlgw_common::NodeId;
use mlgw_common::limits::{
    AUTHORITY_BYTES_MAX, JOIN_TOKEN_MS_MAX, JOIN_TOKENS_MAX, NODE_TEXT_BYTES_MAX, NODES_MAX,
};
use mlgw_formats::command::{
    AdmitNode, Change, Command, CreateJoinToken, DrainNode, PutAuthority, PutNode, Reject, RemoveAuthority,
    RemoveJoinToken, RemoveNode, Reply, ReportNode, SetClusterVersion, SetNodeRole,
};
use mlgw_formats::schema::meta::{Counter, Member, MembershipRecord, MetaRow, Timeline, Voters};
use mlgw_formats::schema::{
    AuthorityRecord, JoinTokenRecord, Node, NodeRole, NodeState, RecordedStart, authority, decode, encode,
    join_token, node,
};

const NOW: i64 = 1_700_000_000_000;
pub(super) const HOUR: i64 = JOIN_TOKEN_MS_MAX;

/// A system group in memory, in cluster version 2.
#[derive(Clone, Default)]
pub(super) struct SystemGroup {
    pub(super) rows: MemoryRows,
    index: u64,
}

impl SystemGroup {
    /// A server with node 1, which is in no cluster yet.
    pub(super) fn new() -> Self {
        let mut group = Self::default();
        let first = Node { id: 1, joined_ms: NOW, ..Node::default() };
        group.apply(Change::PutNode(PutNode { node: first })).unwrap();
        group.apply(Change::SetClusterVersion(SetClusterVersion { version: 2 })).unwrap();
        group
    }

    pub(super) fn apply(&mut self, change: Change) -> Result<Reply, Reject> {
        self.index += 1;
        let mut view = View::new(&self.rows);
        let outcome = apply(&mut view, &Command::from(change), seq_of(self.index, 0)).unwrap();
        let (changes, _) = view.into_changes();
        assert!(outcome.is_ok() || changes.is_empty(), "a rejected command changes nothing");
        self.rows.write(changes);
        outcome
    }

    pub(super) fn node_change(&mut self, change: Change) -> Result<Node, Reject> {
        self.apply(change).map(|reply| match reply {
            Reply::Node(node) => *node,
            other => panic!("{other:?}"),
        })
    }

    pub(super) fn node(&self, id: u64) -> Option<Node> {
        self.rows.get(&node::row(NodeId(id))).unwrap().map(|value| decode(&value).unwrap())
    }

    fn token(&self, id: u64) -> Option<JoinTokenRecord> {
        self.rows.get(&join_token::row(id)).unwrap().map(|value| decode(&value).unwrap())
    }

    /// A further node that serves, with its own token and key.
    fn serving_node(&mut self) -> u64 {
        let number = 100 + self.index;
        self.apply(token(number)).unwrap();
        let joined = self.node_change(admit(number, number as u8)).unwrap();
        self.node_change(Change::ReportNode(ReportNode { is_serving: true, ..report(joined.id, 1) }))
            .unwrap();
        joined.id
    }

    pub(super) fn set_membership(&mut self, configs: &[&[u64]], members: &[u64]) {
        let membership = MembershipRecord {
            position: None,
            configs: configs.iter().map(|nodes| Voters { nodes: nodes.to_vec() }).collect(),
            members: members.iter().map(|node| Member { node: *node, address: String::new() }).collect(),
        };
        self.rows.0.insert(MetaRow::Membership.row(), encode(&membership));
    }
}

pub(super) fn secret(token: u64) -> Vec<u8> {
    vec![token as u8 ^ 0x55; 32]
}

fn create_token(id: u64) -> CreateJoinToken {
    CreateJoinToken {
        token: id,
        secret_hash: secret(id),
        expires_ms: NOW + HOUR,
        created_by: "AK".into(),
        now_ms: NOW,
    }
}

pub(super) fn token(id: u64) -> Change {
    Change::CreateJoinToken(create_token(id))
}

pub(super) fn admission(token: u64, key: u8) -> AdmitNode {
    AdmitNode {
        token,
        secret_hash: secret(token),
        key_hash: vec![key; 32],
        name: format!("host-{key}"),
        address: format!("host-{key}:7000"),
        role: NodeRole::Storage as i32,
        cluster_version: 2,
        build: "b".into(),
        now_ms: NOW + 1,
    }
}

pub(super) fn admit(token: u64, key: u8) -> Change {
    Change::AdmitNode(admission(token, key))
}

pub(super) fn report(node: u64, counter: u64) -> ReportNode {
    ReportNode {
        node,
        address: format!("moved-{node}:7000"),
        cluster_version: 2,
        build: "c".into(),
        start: RecordedStart { incarnation: 9, counter, nonce: counter + 1000 },
        now_ms: NOW + 2,
        ..ReportNode::default()
    }
}

pub(super) fn remove(node: u64) -> Change {
    Change::RemoveNode(RemoveNode { node, now_ms: NOW + 3, is_drained: false })
}

fn drain(node: u64, is_draining: bool) -> Change {
    Change::DrainNode(DrainNode { node, is_draining, replaced_by: 0 })
}

fn role(node: u64, role: NodeRole) -> Change {
    Change::SetNodeRole(SetNodeRole { node, role: role as i32 })
}

fn is_malformed<T: std::fmt::Debug>(outcome: &Result<T, Reject>) -> bool {
    matches!(outcome, Err(Reject::Malformed { .. }))
}

#[test]
fn a_node_joins_with_a_token() {
    let mut group = SystemGroup::new();
    group.apply(token(7)).unwrap();
    let joined = group.node_change(admit(7, 3)).unwrap();
    let expected = Node {
        id: 2,
        address: "host-3:7000".into(),
        joined_ms: NOW + 1,
        name: "host-3".into(),
        state: NodeState::Joining as i32,
        key_hash: vec![3; 32],
        cluster_version: 2,
        build: "b".into(),
        ..Node::default()
    };
    assert_eq!((&joined, group.node(2).as_ref()), (&expected, Some(&expected)));
    let used = group.token(7).unwrap();
    assert_eq!((used.node, used.key_hash, used.used_ms), (2, vec![3; 32], NOW + 1));
}

#[test]
fn a_token_is_refused_when_it_is_wrong_late_or_used() {
    let mut group = SystemGroup::new();
    assert_eq!(group.apply(admit(7, 3)), Err(Reject::NoSuchJoinToken));
    group.apply(token(7)).unwrap();
    let wrong = AdmitNode { secret_hash: vec![1; 32], ..admission(7, 3) };
    assert_eq!(group.apply(Change::AdmitNode(wrong.clone())), Err(Reject::WrongJoinSecret));
    let late = |now_ms| Change::AdmitNode(AdmitNode { now_ms, ..admission(7, 3) });
    assert_eq!(group.apply(late(NOW + HOUR)), Err(Reject::JoinTokenExpired));
    let first = group.node_change(late(NOW + HOUR - 1)).unwrap();
    assert_eq!(group.node_change(admit(7, 3)), Ok(first), "the same key");
    assert_eq!(group.apply(admit(7, 4)), Err(Reject::JoinTokenUsed { node: 2 }));
    assert_eq!(group.apply(late(NOW + HOUR)), Err(Reject::JoinTokenExpired), "the same key, too late");
    let wrong = AdmitNode { key_hash: vec![4; 32], ..wrong };
    assert_eq!(group.apply(Change::AdmitNode(wrong)), Err(Reject::WrongJoinSecret), "it learns no more");
    group.apply(Change::RemoveJoinToken(RemoveJoinToken { token: 7 })).unwrap();
    assert_eq!(group.apply(admit(7, 3)), Err(Reject::NoSuchJoinToken));
    assert_eq!(
        group.apply(Change::RemoveJoinToken(RemoveJoinToken { token: 7 })),
        Err(Reject::NoSuchJoinToken)
    );
}

#[test]
fn a_repeated_join_updates_only_a_node_that_has_not_served() {
    let mut group = SystemGroup::new();
    group.apply(token(7)).unwrap();
    group.apply(admit(7, 3)).unwrap();
    let moved = AdmitNode { address: "other:1".into(), now_ms: NOW + 9, ..admission(7, 3) };
    let again = group.node_change(Change::AdmitNode(moved.clone())).unwrap();
    assert_eq!((again.id, &*again.address, again.joined_ms), (2, "other:1", NOW + 1));
    let serving = ReportNode { is_serving: true, ..report(2, 1) };
    let active = group.node_change(Change::ReportNode(serving)).unwrap();
    assert_eq!(group.node_change(Change::AdmitNode(moved)), Ok(active));
}

#[test]
fn a_key_that_is_in_use_joins_only_as_the_same_joining_node() {
    let mut group = SystemGroup::new();
    for id in 7..=9 {
        group.apply(token(id)).unwrap();
    }
    group.apply(admit(7, 3)).unwrap();
    assert_eq!(group.node_change(admit(8, 3)).unwrap().id, 2, "the first token may have expired");
    assert_eq!(group.apply(admit(8, 4)), Err(Reject::JoinTokenUsed { node: 2 }));
    group.apply(Change::ReportNode(ReportNode { is_serving: true, ..report(2, 1) })).unwrap();
    assert_eq!(group.apply(admit(9, 3)), Err(Reject::NodeKeyInUse { node: 2 }));
    group.apply(remove(2)).unwrap();
    assert_eq!(group.apply(admit(9, 3)), Err(Reject::NodeRemoved { node: 2 }));
    assert_eq!(group.apply(admit(7, 3)), Err(Reject::NodeRemoved { node: 2 }));
    assert_eq!(group.node_change(admit(9, 5)).unwrap().id, 3);
}

#[test]
fn tokens_are_bounded_and_expired_ones_make_room() {
    let mut group = SystemGroup::new();
    for id in 1..=JOIN_TOKENS_MAX as u64 {
        group.apply(token(id)).unwrap();
    }
    assert_eq!(group.apply(token(1)), Err(Reject::JoinTokenExists));
    assert_eq!(group.apply(token(1000)), Err(Reject::TooManyJoinTokens));
    let now_ms = NOW + HOUR;
    let later = CreateJoinToken { now_ms, expires_ms: now_ms + HOUR, ..create_token(1000) };
    group.apply(Change::CreateJoinToken(later)).unwrap();
    assert!(group.token(1).is_none() && group.token(64).is_none() && group.token(1000).is_some());
}

#[test]
fn malformed_commands_of_tokens_and_joins_are_rejected() {
    let mut group = SystemGroup::new();
    let wrong = [
        CreateJoinToken { token: 0, ..create_token(7) },
        CreateJoinToken { secret_hash: vec![1; 31], ..create_token(7) },
        CreateJoinToken { expires_ms: NOW, ..create_token(7) },
        CreateJoinToken { expires_ms: NOW + HOUR + 1, ..create_token(7) },
        CreateJoinToken { now_ms: i64::MIN, ..create_token(7) },
        CreateJoinToken { created_by: "x".repeat(NODE_TEXT_BYTES_MAX + 1), ..create_token(7) },
    ];
    for create in wrong {
        assert!(is_malformed(&group.apply(Change::CreateJoinToken(create))));
    }
    group.apply(token(7)).unwrap();
    let long = "x".repeat(NODE_TEXT_BYTES_MAX + 1);
    let wrong = [
        AdmitNode { key_hash: vec![3; 33], ..admission(7, 3) },
        AdmitNode { role: 9, ..admission(7, 3) },
        AdmitNode { name: long.clone(), ..admission(7, 3) },
        AdmitNode { address: long.clone(), ..admission(7, 3) },
        AdmitNode { build: long, ..admission(7, 3) },
    ];
    for admit in wrong {
        assert!(is_malformed(&group.apply(Change::AdmitNode(admit))));
    }
}

#[test]
fn reports_are_recorded_and_make_a_joining_node_active() {
    let mut group = SystemGroup::new();
    group.apply(token(7)).unwrap();
    group.apply(admit(7, 3)).unwrap();
    let reported = group.node_change(Change::ReportNode(report(2, 1))).unwrap();
    assert_eq!((reported.state(), &*reported.address), (NodeState::Joining, "moved-2:7000"));
    assert_eq!((reported.reported_ms, &*reported.build), (NOW + 2, "c"));
    let serving = ReportNode { is_serving: true, key_hash: vec![8; 32], ..report(2, 1) };
    let active = group.node_change(Change::ReportNode(serving)).unwrap();
    assert_eq!(
        (active.state(), &*active.key_hash, &*active.name),
        (NodeState::Active, &[8; 32][..], "host-3")
    );
    group.apply(drain(2, true)).unwrap();
    let serving = ReportNode { is_serving: true, ..report(2, 2) };
    let draining = group.node_change(Change::ReportNode(serving)).unwrap();
    assert_eq!((draining.state(), draining.key_hash), (NodeState::Draining, vec![8; 32]));

    let stolen = ReportNode { key_hash: vec![8; 32], ..report(1, 1) };
    assert_eq!(group.apply(Change::ReportNode(stolen)), Err(Reject::NodeKeyInUse { node: 2 }));
    let unknown = Change::ReportNode(report(3, 1));
    assert_eq!(group.apply(unknown), Err(Reject::NoSuchNode { node: 3 }));
    assert!(is_malformed(&group.apply(Change::ReportNode(ReportNode { key_hash: vec![1], ..report(2, 3) }))));
    let long = "x".repeat(NODE_TEXT_BYTES_MAX + 1);
    assert!(is_malformed(&group.apply(Change::ReportNode(ReportNode { address: long, ..report(2, 3) }))));
}

#[test]
fn a_report_of_an_older_or_copied_start_is_refused() {
    let mut group = SystemGroup::new();
    let mut start = |incarnation, counter, nonce| {
        let start = RecordedStart { incarnation, counter, nonce };
        group.apply(Change::ReportNode(ReportNode { start, ..report(1, 1) })).map(drop)
    };
    let stale = |counter| Err(Reject::StaleNodeStart { node: 1, counter });
    assert_eq!(start(9, 0, 5), stale(0), "a start has a number");
    assert_eq!(start(9, 4, 5), Ok(()));
    assert_eq!(start(9, 4, 5), Ok(()), "the same start reports again");
    assert_eq!(start(9, 4, 6), stale(4), "a clone");
    assert_eq!(start(9, 3, 5), stale(3), "a restored disk");
    assert_eq!(start(8, 7, 5), stale(7), "another timeline");
    assert_eq!(start(9, 5, 6), Ok(()));

    let timeline = Timeline { cluster: 1, incarnation: 10 };
    group.rows.0.insert(MetaRow::Incarnation.row(), encode(&timeline));
    let mut start = |incarnation, counter, nonce| {
        let start = RecordedStart { incarnation, counter, nonce };
        group.apply(Change::ReportNode(ReportNode { start, ..report(1, 1) })).map(drop)
    };
    assert_eq!(start(9, 6, 6), stale(6), "the cluster has another timeline");
    assert_eq!(start(10, 1, 5), Ok(()), "starts of a new timeline count anew");
    assert_eq!(start(10, 1, 6), stale(1));
}

#[test]
fn a_node_is_marked_while_it_is_a_member_and_then_removed_for_ever() {
    let mut group = SystemGroup::new();
    let id = group.serving_node();
    let memberships: [(&str, &[&[u64]]); 3] =
        [("a voter", &[&[1, 2]]), ("a voter of a change", &[&[1], &[2]]), ("a learner", &[&[1]])];
    for (what, configs) in memberships {
        group.set_membership(configs, &[1, 2]);
        let marked = group.node_change(remove(id)).unwrap();
        assert_eq!((marked.state(), marked.removed_ms), (NodeState::Leaving, 0), "{what}");
    }
    assert_eq!(group.apply(drain(id, true)), Err(Reject::NodeRemoved { node: id }));
    assert_eq!(group.apply(role(id, NodeRole::Gateway)), Err(Reject::NodeRemoved { node: id }));
    assert!(group.apply(Change::ReportNode(report(id, 2))).is_ok(), "it still runs");
    group.set_membership(&[&[1]], &[1]);
    let removed = group.node_change(remove(id)).unwrap();
    assert_eq!((removed.state(), removed.removed_ms), (NodeState::Removed, NOW + 3));
    assert_eq!(group.node_change(remove(id)), Ok(removed), "a repetition changes nothing");
    let refused = Err(Reject::NodeRemoved { node: id });
    assert_eq!(group.apply(Change::ReportNode(report(id, 3))), refused);
    assert_eq!(group.apply(drain(id, false)), refused);
    let put = Node { id, address: "x".into(), ..Node::default() };
    assert_eq!(group.apply(Change::PutNode(PutNode { node: put })), refused);
    assert_eq!(group.apply(remove(77)), Err(Reject::NoSuchNode { node: 77 }));
}

#[test]
fn a_drained_node_is_removed_only_while_it_is_draining() {
    let mut group = SystemGroup::new();
    let id = group.serving_node();
    group.set_membership(&[&[1, id]], &[1, id]);
    let drained = Change::RemoveNode(RemoveNode { node: id, now_ms: NOW + 3, is_drained: true });
    let refused = Err(Reject::WrongNodeState { node: id, state: NodeState::Active });
    assert_eq!(group.apply(drained.clone()), refused);
    group.apply(drain(id, true)).unwrap();
    group.apply(drain(id, false)).unwrap();
    assert_eq!(group.apply(drained.clone()), refused, "the draining was ended");
    group.apply(drain(id, true)).unwrap();
    assert_eq!(group.node_change(drained.clone()).unwrap().state(), NodeState::Leaving);
    assert_eq!(group.node_change(drained).unwrap().state(), NodeState::Leaving, "a repetition");
}

#[test]
fn the_last_active_storage_node_stays() {
    let mut group = SystemGroup::new();
    let last = Err(Reject::LastStorageNode { node: 1 });
    assert_eq!(group.apply(remove(1)), last);
    assert_eq!(group.apply(drain(1, true)), last);
    let gateway = group.serving_node();
    group.apply(drain(gateway, true)).unwrap();
    group.apply(role(gateway, NodeRole::Gateway)).unwrap();
    group.apply(drain(gateway, false)).unwrap();
    assert_eq!(group.apply(remove(1)), last, "a gateway stores nothing");
    group.apply(token(7)).unwrap();
    group.apply(admit(7, 3)).unwrap();
    assert_eq!(group.apply(remove(1)), last, "a joining node has nothing yet");
    let second = group.serving_node();
    group.set_membership(&[&[1]], &[1]);
    group.apply(drain(1, true)).unwrap();
    assert_eq!(group.apply(remove(second)), Err(Reject::LastStorageNode { node: second }), "1 is draining");
    group.apply(drain(1, false)).unwrap();
    assert_eq!(group.node_change(remove(1)).unwrap().state(), NodeState::Leaving);
    assert_eq!(group.apply(remove(second)), Err(Reject::LastStorageNode { node: second }), "1 is leaving");
    assert!(group.apply(remove(1)).is_ok());
}

#[test]
fn roles_and_drains_follow_the_state() {
    let mut group = SystemGroup::new();
    let id = group.serving_node();
    let wrong = Err(Reject::WrongNodeState { node: id, state: NodeState::Active });
    assert_eq!(group.apply(role(id, NodeRole::Gateway)), wrong, "its data would be lost");
    let same = group.node_change(role(id, NodeRole::Storage)).unwrap();
    assert_eq!(Some(same), group.node(id));
    assert_eq!(group.node_change(drain(id, true)).unwrap().state(), NodeState::Draining);
    assert_eq!(group.node_change(drain(id, true)).unwrap().state(), NodeState::Draining);
    assert_eq!(group.node_change(role(id, NodeRole::Gateway)).unwrap().role(), NodeRole::Gateway);
    assert_eq!(group.node_change(drain(id, false)).unwrap().state(), NodeState::Active);
    assert_eq!(group.node_change(role(id, NodeRole::Storage)).unwrap().role(), NodeRole::Storage);
    assert!(is_malformed(&group.apply(Change::SetNodeRole(SetNodeRole { node: id, role: 5 }))));
    group.apply(token(7)).unwrap();
    let joining = group.node_change(admit(7, 3)).unwrap().id;
    let wrong = Err(Reject::WrongNodeState { node: joining, state: NodeState::Joining });
    assert_eq!(group.apply(drain(joining, true)), wrong);
    assert_eq!(group.node_change(role(joining, NodeRole::Gateway)).unwrap().role(), NodeRole::Gateway);
}

#[test]
fn a_version_is_finalized_when_every_node_has_reported_it() {
    let raise = |version| Change::SetClusterVersion(SetClusterVersion { version });
    let mut group = SystemGroup::new();
    group.apply(raise(3)).unwrap();
    let refused = |node, knows| Err(Reject::VersionNotReported { node, knows, needs: 5 });
    group.apply(token(7)).unwrap();
    let old = AdmitNode { cluster_version: 2, ..admission(7, 3) };
    assert_eq!(group.apply(Change::AdmitNode(old)), Err(Reject::NodeTooOld { knows: 2, needs: 3 }));
    let new = AdmitNode { cluster_version: 4, ..admission(7, 3) };
    group.apply(Change::AdmitNode(new)).unwrap();
    assert_eq!(group.apply(raise(5)), refused(1, 0), "the first node has peers now");
    let report = |node, cluster_version| ReportNode { cluster_version, ..report(node, 1) };
    assert_eq!(group.apply(Change::ReportNode(report(1, 2))), Err(Reject::NodeTooOld { knows: 2, needs: 3 }));
    group.apply(Change::ReportNode(report(1, 6))).unwrap();
    assert_eq!(group.apply(raise(5)), refused(2, 4), "also when it is down");
    group.set_membership(&[&[1]], &[1, 2]);
    group.apply(remove(2)).unwrap();
    assert_eq!(group.apply(raise(5)), refused(2, 4), "it is still a member");
    group.set_membership(&[&[1]], &[1]);
    group.apply(remove(2)).unwrap();
    group.apply(raise(5)).unwrap();
    assert!(is_malformed(&group.apply(raise(4))), "a version never falls");
    group.apply(raise(5)).unwrap();
    assert_eq!(
        group.apply(raise(7)),
        Err(Reject::VersionNotReported { node: 1, knows: 6, needs: 7 }),
        "a node that has reported must report again"
    );
}

#[test]
fn removed_rows_make_room_and_their_ids_stay_refused() {
    let mut group = SystemGroup::new();
    group.apply(token(7)).unwrap();
    for id in 2..=NODES_MAX as u64 {
        let member = Node { id, state: NodeState::Active as i32, address: "x".into(), ..Node::default() };
        group.rows.0.insert(node::row(NodeId(id)), encode(&member));
    }
    assert_eq!(group.apply(admit(7, 3)), Err(Reject::TooManyNodes));
    group.apply(remove(5)).unwrap();
    group.apply(remove(4)).unwrap();
    assert_eq!(group.node_change(admit(7, 3)).unwrap().id, NODES_MAX as u64 + 1);
    assert!(group.node(4).is_none() && group.node(5).is_some(), "the oldest row made room");
    let refused = Err(Reject::NodeRemoved { node: 4 });
    assert_eq!(group.apply(remove(4)), refused);
    assert_eq!(group.apply(Change::ReportNode(report(4, 1))), refused);
    let put = Node { id: 4, address: "x".into(), ..Node::default() };
    assert_eq!(group.apply(Change::PutNode(PutNode { node: put })), refused);
}

#[test]
fn nodes_of_version_1_keep_their_command_and_its_rows() {
    let mut group = SystemGroup::default();
    let put = |id, address: &str| {
        Change::PutNode(PutNode {
            node: Node { id, address: address.into(), joined_ms: 5, ..Node::default() },
        })
    };
    group.apply(put(1, "a")).unwrap();
    group.apply(put(1, "b")).unwrap();
    let expected = Node { id: 1, address: "b".into(), joined_ms: 5, ..Node::default() };
    assert_eq!(group.rows.0, [(node::row(NodeId(1)), encode(&expected))].into());

    let mut group = SystemGroup::new();
    let id = group.serving_node();
    let before = group.node(id).unwrap();
    group.apply(put(id, "c")).unwrap();
    assert_eq!(group.node(id).unwrap(), Node { address: "c".into(), joined_ms: 5, ..before });
    let with_role = Node { id, role: 1, ..Node::default() };
    assert!(is_malformed(&group.apply(Change::PutNode(PutNode { node: with_role }))));
    group.apply(put(50, "d")).unwrap();
    let next = group.rows.get(&MetaRow::NextNode.row()).unwrap().unwrap();
    assert_eq!(decode::<Counter>(&next).unwrap().next, 51, "its id is not allocated again");
}

#[test]
fn authorities_follow_each_other_by_compare_and_set() {
    let mut group = SystemGroup::new();
    let new = |byte: u8| AuthorityRecord {
        certificate: vec![byte],
        sealed_key: vec![byte],
        cluster_key: 1,
        created_ms: NOW,
        ..AuthorityRecord::default()
    };
    let put = |authority, after| Change::PutAuthority(PutAuthority { authority, after });
    let removal = |number| Change::RemoveAuthority(RemoveAuthority { number });
    let read = |group: &SystemGroup, number| {
        let value = group.rows.get(&authority::row(number)).unwrap();
        value.map(|value| decode::<AuthorityRecord>(&value).unwrap())
    };
    assert_eq!(group.apply(put(new(1), 0)), Ok(Reply::Authority { number: 1 }));
    assert_eq!(group.apply(put(new(2), 0)), Err(Reject::AuthorityChanged { newest: 1 }));
    assert_eq!(group.apply(put(new(2), 1)), Ok(Reply::Authority { number: 2 }));
    assert_eq!(group.apply(put(new(3), 2)), Err(Reject::TooManyAuthorities));
    assert_eq!(group.apply(removal(2)), Err(Reject::AuthorityInUse { number: 2 }), "it signs");
    assert_eq!(group.apply(removal(1)), Ok(Reply::Done));
    assert_eq!(group.apply(removal(1)), Err(Reject::AuthorityInUse { number: 1 }));

    let resealed = AuthorityRecord { number: 2, sealed_key: vec![9], cluster_key: 2, ..new(2) };
    group.apply(put(resealed.clone(), 2)).unwrap();
    assert_eq!(read(&group, 2), Some(resealed.clone()));
    assert!(is_malformed(&group.apply(put(AuthorityRecord { certificate: vec![8], ..resealed.clone() }, 2))));
    let missing = AuthorityRecord { number: 1, ..resealed };
    assert_eq!(group.apply(put(missing, 2)), Err(Reject::AuthorityInUse { number: 1 }));
    let large = vec![1; AUTHORITY_BYTES_MAX + 1];
    for wrong in [
        AuthorityRecord { certificate: vec![], ..new(3) },
        AuthorityRecord { sealed_key: vec![], ..new(3) },
        AuthorityRecord { certificate: large.clone(), ..new(3) },
        AuthorityRecord { sealed_key: large, ..new(3) },
    ] {
        assert!(is_malformed(&group.apply(put(wrong, 2))));
    }
    assert_eq!(group.apply(put(new(3), 2)), Ok(Reply::Authority { number: 3 }));
}

#[test]
fn a_node_that_is_drained_for_another_one_names_it_until_the_drain_ends() {
    let mut group = SystemGroup::new();
    let (old, new) = (group.serving_node(), group.serving_node());
    let replace = |node, replaced_by| Change::DrainNode(DrainNode { node, is_draining: true, replaced_by });
    assert!(is_malformed(&group.apply(replace(old, old))));
    assert_eq!(group.apply(replace(old, 50)), Err(Reject::NoSuchNode { node: 50 }));
    assert_eq!(group.node_change(drain(old, true)).unwrap().replaced_by, 0);
    let replaced = group.node_change(replace(old, new)).unwrap();
    assert_eq!((replaced.state(), replaced.replaced_by), (NodeState::Draining, new));
    assert_eq!(group.node_change(drain(old, true)).unwrap().replaced_by, new, "a repetition");
    let wrong = Err(Reject::WrongNodeState { node: old, state: NodeState::Draining });
    assert_eq!(group.apply(replace(new, old)), wrong);
    assert_eq!(group.node_change(drain(old, false)).unwrap().replaced_by, 0);
}
