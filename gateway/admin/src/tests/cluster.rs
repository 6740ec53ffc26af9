//! Tests of `/v1/cluster`, and of the API of nodes other than the duty node.

use super::calls::Api;
use super::document::assert_schema_of;
use crate::ApiError;
use crate::cluster::{audited_token, cluster_findings, cluster_info};
use crate::cluster_leaving::copies_of;
use crate::forwarded::{duty_elsewhere, failure, other_node};
use crate::node_parts::{DECISIONS_PART, STATUS_PART};
use crate::probes::{StorageReadiness, member_obstacle};
use crate::serve::{Body, ServedRoutes, handle_call, node_router, router};
use crate::tiers::{self, TierContext, TiersAbsent};
use axum::extract::State;
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use mlgw_api::{
    ClusterCopiesInfo, ClusterDutyPhase, ClusterLeavingInfo, ClusterMemberPart, ClusterNodeRole,
    ClusterNodeState, ClusterRebalanceInfo, ClusterSetInfo, ClusterUpgradeInfo, DrainNodeRequest, Health,
    NewJoinTokenInfo,
};
use mlgw_common::limits::CERTIFICATE_ALERT_DAYS;
use mlgw_common::{ClockComparison, ClusterId, NodeId, SegmentId, Timestamp};
use mlgw_formats::command::Reject;
use mlgw_formats::node_load::NodeLoad;
use mlgw_formats::schema::{DutyPhase, NodeRole, NodeState, Rebalance};
use mlgw_metadata::{BarrierError, ProposeError, RowComparison};
use mlgw_node::{
    AdminCall, AdminCallError, ClusterStatus, ClusterUpgrade, CopyStatus, GroupMemberStatus, GroupStatus,
    LeaveError, LeavingCounts, LeavingNode, NewToken, NodeStatus, RebalanceError, SetStatus, SetsStatus,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tower::ServiceExt as _;

const NOW: Timestamp = Timestamp(1_800_000_000_000);
const DAY_MS: i64 = 24 * 3600 * 1000;

fn node(id: u64, role: NodeRole) -> NodeStatus {
    NodeStatus {
        id: NodeId(id),
        name: format!("n{id}"),
        address: format!("10.0.0.{id}:9002"),
        role,
        state: NodeState::Active,
        build: "0.1.0".into(),
        cluster_version: 2,
        joined_ms: NOW.as_millis(),
        is_own: id == 2,
        is_duty: id == 1,
        reachable: Some(true),
        serves: Some(role == NodeRole::Storage),
        replaced_by: None,
        load: Some(NodeLoad { applied: Some(40 + id), ..NodeLoad::default() }),
        clock_skew_ms: Some(500),
        differing_settings: vec![],
    }
}

/// Returns the status of a healthy cluster, as node 2 of three knows it.
pub(super) fn healthy() -> ClusterStatus {
    let member = |id: u64, is_voter| GroupMemberStatus { node: NodeId(id), is_voter, lag_bytes: id - 1 };
    ClusterStatus {
        cluster: ClusterId(0xab),
        node: NodeId(2),
        duty: Some(NodeId(1)),
        duty_term: 4,
        duty_phase: DutyPhase::Active,
        nodes: vec![node(1, NodeRole::Storage), node(2, NodeRole::Storage), node(3, NodeRole::Gateway)],
        groups: vec![
            GroupStatus {
                id: 0,
                is_here: true,
                leader: Some(NodeId(2)),
                has_majority: true,
                members: vec![member(1, true), member(2, true), member(3, false)],
            },
            GroupStatus {
                id: 1,
                is_here: true,
                leader: Some(NodeId(1)),
                has_majority: true,
                members: vec![],
            },
        ],
        sets: SetsStatus::default(),
        rows: BTreeMap::new(),
        waits: None,
        clock: ClockComparison::Compared { skew_ms: -500 },
        certificate_expires: Timestamp(NOW.as_millis() + 365 * DAY_MS),
        authority_change: None,
        cluster_version: 5,
        upgrade: None,
    }
}

#[test]
fn rows_that_differ_are_a_finding_which_names_the_node() {
    let mut status = healthy();
    let equal = RowComparison { index: 7, without: [NodeId(3)].into(), ..RowComparison::default() };
    status.rows.insert(0, equal);
    let info = cluster_info(&status, &CopyStatus::default(), NOW);
    assert_eq!((&info.findings[..], &info.rows[0].without[..]), (&[][..], &[3][..]));
    let differing = RowComparison { index: 9, differing: [NodeId(3)].into(), ..RowComparison::default() };
    status.rows.insert(1, differing.clone());
    let info = cluster_info(&status, &CopyStatus::default(), NOW);
    assert_schema_of("ClusterInfo", &info);
    assert_eq!((info.rows[1].group, info.rows[1].index, &info.rows[1].differing[..]), (1, 9, &[3][..]));
    let [found] = &info.findings[..] else { panic!("{:?}", info.findings) };
    assert_eq!(found.severity, Health::Critical);
    assert!(found.what.contains("group 1 of the catalogue on node 3 differ"), "{found:?}");
    let differing = [NodeId(1), NodeId(2)].into();
    status.rows.insert(1, RowComparison { differing, is_undecided: true, ..RowComparison::default() });
    let info = cluster_info(&status, &CopyStatus::default(), NOW);
    let [found] = &info.findings[..] else { panic!("{:?}", info.findings) };
    assert!(found.what.contains("differ on the nodes 1, 2"), "{found:?}");
    assert!(found.advice.contains("Remove no node"), "{found:?}");
}

#[test]
fn a_node_with_other_settings_is_a_finding_and_an_upgrade_is_none() {
    let mut status = healthy();
    status.upgrade = Some(ClusterUpgrade { version: 6, without: vec![NodeId(3)] });
    let info = cluster_info(&status, &CopyStatus::default(), NOW);
    assert_schema_of("ClusterInfo", &info);
    assert_eq!(info.cluster_version, 5);
    assert_eq!(info.upgrade, Some(ClusterUpgradeInfo { version: 6, without: vec![3] }));
    assert_eq!(info.findings, []);

    status.nodes[0].differing_settings = vec!["s3.region".into(), "upstream.far".into()];
    let info = cluster_info(&status, &CopyStatus::default(), NOW);
    assert_eq!(info.nodes[0].differing_settings, ["s3.region", "upstream.far"]);
    let [found] = &info.findings[..] else { panic!("{:?}", info.findings) };
    assert_eq!(found.severity, Health::Warning);
    assert!(found.what.ends_with("differ from those of most nodes: s3.region, upstream.far."), "{found:?}");
    status.nodes[0].differing_settings = (0..10).map(|at| format!("s{at}")).collect();
    let info = cluster_info(&status, &CopyStatus::default(), NOW);
    assert!(info.findings[0].what.ends_with("s6, s7 and 2 more."), "{:?}", info.findings);
}

#[test]
fn copies_are_counted_and_missing_ones_are_no_finding() {
    let (off_set_segments, off_set_bytes) = (2, Some(900));
    let mut copies =
        CopyStatus { wanted: 2, open_segments: 6, off_set_segments, off_set_bytes, ..CopyStatus::default() };
    let counts = &mut copies.counts;
    (counts.segments, counts.bytes) = (120, 7_000);
    (counts.below_segments, counts.below_bytes, counts.suspect_segments) = (4, 300, 1);
    let info = cluster_info(&healthy(), &copies, NOW);
    assert_schema_of("ClusterInfo", &info);
    let expected = ClusterCopiesInfo {
        wanted: 2,
        segments: 120,
        bytes: 7_000,
        below_segments: 4,
        below_bytes: 300,
        suspect_segments: 1,
        open_segments: 6,
        off_set_segments,
        off_set_bytes,
    };
    assert_eq!(info.copies, expected);
    assert_eq!(info.findings, []);
}

#[test]
fn nodes_that_leave_are_described_and_lost_segments_are_a_finding() {
    let counts = LeavingCounts { segments: 120, copied_segments: 12 };
    let leaving = LeavingNode { node: NodeId(2), counts, open_segments: 1, sets: 2, votes: 3 };
    let lost = (1..=9).map(SegmentId).collect();
    let copies = CopyStatus { leaving: vec![leaving], lost, ..CopyStatus::default() };
    let info = cluster_info(&healthy(), &copies, NOW);
    assert_schema_of("ClusterInfo", &info);
    let (segments, copied_segments) = (120, 12);
    let expected = ClusterLeavingInfo {
        node: 2,
        segments,
        copied_segments,
        open_segments: 1,
        sets: 2,
        votes: 3,
        done: false,
        replaced_by: None,
    };
    assert_eq!(info.leaving, [expected]);
    let found = &info.findings[0];
    assert_eq!(found.severity, Health::Critical);
    assert!(found.what.starts_with("9 segments were only on nodes that were removed"), "{}", found.what);
    assert!(found.what.ends_with("…."), "{}", found.what);
}

#[test]
fn sets_and_what_moves_between_them_are_described() {
    let set = SetStatus { id: 1, nodes: [4, 5, 1].map(NodeId).into(), groups: vec![2], guests: vec![3] };
    let rebalance = Rebalance { requested_ms: 0, by: "AK".into() };
    let sets = SetsStatus {
        sets: vec![set],
        rebalance: Some(Arc::new(rebalance)),
        moving: vec![2],
        waits: Some("group 2 is moving".into()),
    };
    let info = cluster_info(&ClusterStatus { sets, ..healthy() }, &CopyStatus::default(), NOW);
    assert_schema_of("ClusterInfo", &info);
    let expected = ClusterSetInfo { id: 1, nodes: vec![4, 5, 1], groups: vec![2], guests: vec![3] };
    assert_eq!((info.sets, info.moving_groups), (vec![expected], vec![2]));
    assert_eq!(info.sets_wait.as_deref(), Some("group 2 is moving"));
    let requested = "1970-01-01T00:00:00.000Z".into();
    assert_eq!(info.rebalance, Some(ClusterRebalanceInfo { requested, by: "AK".into() }));
}

#[test]
fn a_rebalance_that_does_not_begin_is_refused_with_the_reason() {
    let refused = ApiError::from(RebalanceError::TooFewNodes { active: 3 });
    assert_eq!((refused.status, refused.code), (StatusCode::CONFLICT, "NothingToMove"));
    let expected = "Nothing to move: the cluster has 3 active storage nodes, and with up to 3 each of them \
                    has all groups and segments: add a node first.";
    assert_eq!(refused.message, expected);
    let refused = ApiError::from(RebalanceError::Version { has: 5 });
    assert_eq!((refused.status, refused.code), (StatusCode::CONFLICT, "ClusterVersion"));
    assert!(refused.message.contains("upgrade every node"), "{}", refused.message);
}

#[test]
fn a_drain_keeps_two_or_three_copies() {
    let copies = |to_copies| copies_of(&DrainNodeRequest { to_copies });
    assert_eq!((copies(None), copies(Some(2)), copies(Some(3))), (Ok(3), Ok(2), Ok(3)));
    for wrong in [0, 1, 4, u64::MAX] {
        assert_eq!(copies(Some(wrong)).unwrap_err().status, StatusCode::BAD_REQUEST);
    }
}

#[test]
fn each_refusal_of_a_node_that_leaves_has_its_code() {
    let node = NodeId(2);
    let cases = [
        (LeaveError::NoSuchNode { node }, 404, "NoSuchNode"),
        (LeaveError::AtUpstream { node, segments: 3 }, 409, "SegmentsAtUpstream"),
        (LeaveError::DutyStays { node }, 409, "ClusterVersion"),
        (LeaveError::TooFewNodes { node, left: 2, copies: 3 }, 409, "TooFewNodes"),
        (LeaveError::NotDraining { node }, 409, "NodeNotDrained"),
        (LeaveError::NotDrained { node, segments: 3 }, 409, "NodeNotDrained"),
        (LeaveError::InSets { node, sets: 2 }, 409, "NodeNotDrained"),
        (LeaveError::Answers { node }, 409, "NodeAnswers"),
        (ProposeError::Rejected(Reject::LastStorageNode { node: 2 }).into(), 409, "WrongNodeState"),
        (ProposeError::NotLeader { leader: None }.into(), 503, "ServiceUnavailable"),
        (BarrierError::NoQuorum.into(), 503, "NotCurrent"),
    ];
    for (error, status, code) in cases {
        let refused = ApiError::from(error);
        assert_eq!((refused.status.as_u16(), refused.code), (status, code), "{}", refused.message);
    }
}

/// Returns the only finding after a change of the healthy status.
fn finding_after(change: impl FnOnce(&mut ClusterStatus)) -> (Health, String) {
    let mut status = healthy();
    change(&mut status);
    let found = cluster_findings(&status, NOW);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(!found[0].advice.is_empty());
    (found[0].severity, found[0].what.clone())
}

#[tokio::test]
async fn a_server_without_peers_has_no_cluster_and_no_tokens() {
    let api = Api::open().await;
    for (method, path) in [
        (Method::GET, "/v1/cluster"),
        (Method::POST, "/v1/cluster/tokens"),
        (Method::POST, "/v1/cluster/authority/rotate"),
        (Method::POST, "/v1/cluster/rebalance"),
        (Method::POST, "/v1/disks/replace"),
        (Method::POST, "/v1/cluster/nodes/2/drain"),
        (Method::POST, "/v1/cluster/nodes/2/undrain"),
        (Method::POST, "/v1/cluster/nodes/2/remove"),
        (Method::POST, "/v1/cluster/nodes/2/replace"),
    ] {
        let (status, refused) = api.call(method, path, Value::Null).await;
        assert_eq!((status, &refused["code"]), (StatusCode::NOT_FOUND, &json!("NotClustered")), "{path}");
        assert!(refused["message"].as_str().unwrap().contains("`mlgw cluster init`"), "{refused}");
    }
    assert!(api.audit().is_empty(), "a refused request leaves no line");
    api.close().await;
}

#[test]
fn a_status_has_all_nodes_and_groups() {
    let info = cluster_info(&healthy(), &CopyStatus::default(), NOW);
    assert_schema_of("ClusterInfo", &info);
    assert_eq!((info.cluster.as_str(), info.node, info.duty), ("00000000000000ab", 2, Some(1)));
    assert_eq!((info.duty_term, info.duty_phase), (4, ClusterDutyPhase::Active));
    assert_eq!(info.findings, []);
    let nodes: Vec<_> = info.nodes.iter().map(|node| (node.id, node.role, node.own, node.duty)).collect();
    let expected = [
        (1, ClusterNodeRole::Storage, false, true),
        (2, ClusterNodeRole::Storage, true, false),
        (3, ClusterNodeRole::Gateway, false, false),
    ];
    assert_eq!(nodes, expected);
    assert_eq!(info.nodes[0].state, ClusterNodeState::Active);
    assert_eq!(info.nodes[0].joined, NOW.to_string());
    let members = &info.groups[0].members;
    let parts: Vec<_> = members.iter().map(|member| (member.part, member.lag_bytes)).collect();
    let expected =
        [(ClusterMemberPart::Voter, 0), (ClusterMemberPart::Voter, 1), (ClusterMemberPart::Learner, 2)];
    assert_eq!(parts, expected);
    assert_eq!((info.groups[1].leader, info.groups[1].members.len()), (Some(1), 0));
}

#[test]
fn the_load_of_a_node_is_shown_if_it_is_known() {
    let mut status = healthy();
    let load = NodeLoad { used_bytes: Some(5), free_bytes: Some(7), applied: Some(9), ..NodeLoad::default() };
    status.nodes[0].load = Some(load);
    (status.nodes[1].load, status.nodes[1].serves) = (None, Some(false));
    let info = cluster_info(&status, &CopyStatus::default(), NOW);
    assert_schema_of("ClusterInfo", &info);
    let loads = info.nodes.iter().map(|node| (node.serves, node.used_bytes, node.free_bytes, node.applied));
    let expected = [
        (Some(true), Some(5), Some(7), Some(9)),
        (Some(false), None, None, None),
        (Some(false), None, None, Some(43)),
    ];
    assert_eq!(loads.collect::<Vec<_>>(), expected);
}

/// Asserts severities and beginnings of findings.
fn assert_found(cases: impl IntoIterator<Item = ((Health, String), Health, &'static str)>) {
    for ((severity, what), expected, begin) in cases {
        assert_eq!(severity, expected, "{what}");
        assert!(what.starts_with(begin), "{what}");
    }
}

#[test]
fn each_rule_of_a_node_finds_what_it_is_for() {
    use Health::{Critical, Warning};
    assert_found([
        (
            finding_after(|s| s.nodes[2].reachable = Some(false)),
            Warning,
            "Node 3 (n3, 10.0.0.3:9002) does not answer.",
        ),
        (
            finding_after(|s| s.nodes[0].reachable = Some(false)),
            Critical,
            "Node 1 (n1, 10.0.0.1:9002) does not answer; it runs jobs and rules,",
        ),
        (
            finding_after(|s| {
                s.nodes[2].reachable = Some(false);
                s.nodes[2].state = NodeState::Joining;
                s.nodes[2].name.clear();
            }),
            Warning,
            "Node 3 (10.0.0.3:9002) has joined and does not serve yet.",
        ),
        (
            finding_after(|s| s.nodes[2].clock_skew_ms = Some(-501)),
            Warning,
            "The clock of node 3 (n3, 10.0.0.3:9002) deviates by -501 ms from the median.",
        ),
        (
            finding_after(|s| s.nodes[1].clock_skew_ms = Some(5_001)),
            Critical,
            "The clock of node 2 (n2, 10.0.0.2:9002) deviates by 5001 ms from the median, so it refuses",
        ),
        (
            finding_after(|s| s.nodes[0].load.as_mut().unwrap().is_full = Some(true)),
            Critical,
            "Node 1 (n1, 10.0.0.1:9002) is full",
        ),
        (
            finding_after(|s| s.nodes[1].load.as_mut().unwrap().is_slow = Some(true)),
            Warning,
            "Syncs of node 2 (n2, 10.0.0.2:9002) take longer than a second",
        ),
    ]);
}

#[test]
fn each_rule_of_a_cluster_finds_what_it_is_for() {
    use Health::{Critical, Warning};
    let expires_in = |ms: i64| Timestamp(NOW.as_millis() + ms);
    let alert_ms = CERTIFICATE_ALERT_DAYS * DAY_MS;
    assert_found([
        (
            finding_after(|s| s.clock = ClockComparison::Disagree { by_ms: -700 }),
            Warning,
            "The clocks of the nodes that answer differ by 700 ms",
        ),
        (
            finding_after(|s| s.groups[1].leader = None),
            Critical,
            "Group 1 of the catalogue has no known leader",
        ),
        (
            finding_after(|s| {
                (s.groups[1].is_here, s.groups[1].leader, s.groups[1].has_majority) = (false, None, false);
            }),
            Critical,
            "Most voters of group 1 of the catalogue do not answer",
        ),
        (
            finding_after(|s| s.certificate_expires = expires_in(alert_ms)),
            Warning,
            "The certificate of this node expires at ",
        ),
        (
            finding_after(|s| s.certificate_expires = expires_in(0)),
            Critical,
            "The certificate of this node expired at ",
        ),
    ]);
}

#[test]
fn a_healthy_cluster_and_a_removed_node_are_no_findings() {
    let mut status = healthy();
    assert_eq!(cluster_findings(&status, NOW), []);
    status.nodes[2].state = NodeState::Removed;
    status.nodes[2].reachable = Some(false);
    status.nodes[0].reachable = None;
    status.certificate_expires = Timestamp(NOW.as_millis() + CERTIFICATE_ALERT_DAYS * DAY_MS + 1);
    assert_eq!(cluster_findings(&status, NOW), []);
}

#[test]
fn a_new_token_is_in_the_response_and_not_in_the_audit_log() {
    let text = "mlgw-join-1.a.b.secret";
    let token = NewToken { text: text.to_owned().into(), id: "00ab".into(), expires: NOW };
    let change = audited_token(&token).unwrap();
    assert_eq!(change.resource, "00ab");
    assert_eq!(
        (change.before, change.after),
        (Value::Null, json!({"id": "00ab", "expires": NOW.to_string()}))
    );
    let answer: NewJoinTokenInfo = serde_json::from_value(change.answer.unwrap()).unwrap();
    assert_schema_of("NewJoinTokenInfo", &answer);
    assert_eq!((answer.token.as_str(), answer.id.as_str()), (text, "00ab"));
}

#[test]
fn a_member_is_ready_while_it_can_answer() {
    let ready = StorageReadiness {
        has_majorities: true,
        has_recent_rows: true,
        is_clock_wrong: false,
        is_outpaced: false,
    };
    let reason = |accepts, is_storage, has_majorities, is_other_serving| {
        let obstacle = || StorageReadiness { has_majorities, ..ready }.obstacle();
        member_obstacle(accepts, is_storage, obstacle, || is_other_serving)
    };
    assert_eq!(reason(true, true, true, false), None, "a storage node needs no other one to serve");
    assert_eq!(reason(true, true, false, true), Some("most voters of a group do not answer"));
    assert_eq!(reason(true, false, false, true), None, "a gateway only forwards");
    assert!(reason(true, false, true, false).unwrap().starts_with("no storage node serves"));
    assert_eq!(reason(false, true, true, true), Some("draining"));
    let cut_off = StorageReadiness { has_recent_rows: false, ..ready };
    assert!(cut_off.obstacle().unwrap().starts_with("no majority has confirmed the buckets"));
    let wrong_clock = StorageReadiness { is_clock_wrong: true, ..ready };
    assert!(wrong_clock.obstacle().unwrap().starts_with("the clock of this node deviates"));
    let slow = StorageReadiness { is_outpaced: true, ..ready };
    assert!(slow.obstacle().unwrap().starts_with("syncs of this node's disk"));
}

#[test]
fn a_member_names_the_node_that_has_its_own_tiers() {
    let mut status = healthy();
    let refused = other_node(&status, "/v1/tiers/hot/drain");
    assert_eq!((refused.status.as_u16(), refused.code), (421, "OtherNode"));
    let owner = "at present only node 1 (n1, 10.0.0.1:9002) serves it.";
    assert!(refused.message.contains(owner), "{}", refused.message);
    status.nodes.clear();
    let message = other_node(&status, "/v1/tiers/hot/drain").message;
    assert!(message.contains("only the duty node serves it"), "{message}");
}

#[tokio::test]
async fn a_gateway_names_storage_nodes_for_requests_about_tiers() {
    let refused = async |absent| match tiers::list(State(TierContext(Err(absent)))).await {
        Err(refused) => refused,
        Ok(_) => panic!("a node without tiers"),
    };
    let gateway = refused(TiersAbsent::Gateway).await;
    assert_eq!((gateway.status.as_u16(), gateway.code), (421, "OtherNode"));
    assert!(gateway.message.contains("storage node that serves"), "{}", gateway.message);
    let starting = refused(TiersAbsent::Starting).await;
    assert_eq!((starting.status.as_u16(), starting.code), (503, "Starting"));
}

#[test]
fn a_request_is_forwarded_to_the_duty_node_if_that_is_another_one() {
    let mut status = healthy();
    assert_eq!(duty_elsewhere(&status), Ok(NodeId(1)));
    status.nodes[0].is_own = true;
    let refused = duty_elsewhere(&status).unwrap_err();
    assert_eq!((refused.status.as_u16(), refused.code), (503, "NoDutyNode"), "no node forwards to itself");
    status.nodes.clear();
    assert_eq!(duty_elsewhere(&status).unwrap_err().code, "NoDutyNode");
}

#[test]
fn an_error_states_if_the_request_may_have_been_carried_out() {
    let why = || "cut".to_owned();
    let not_sent = failure(&healthy(), &AdminCallError::NotSent(why()));
    assert_eq!((not_sent.status.as_u16(), not_sent.code), (503, "DutyNodeSilent"));
    assert!(not_sent.message.contains("node 1 (n1, 10.0.0.1:9002), did not get the request: cut."));
    let lost = failure(&healthy(), &AdminCallError::Unknown(why()));
    assert_eq!((lost.status.as_u16(), lost.code), (503, "DutyNodeLost"));
    assert!(lost.message.contains("may have carried out the request"), "{}", lost.message);
}

#[tokio::test]
async fn the_duty_node_carries_out_what_another_node_has_authenticated() {
    let api = Api::open().await;
    let send = async |method: &str, target: &str, body: String| {
        let (method, target) = (method.to_owned(), target.to_owned());
        let (access_key, from) = ("AK".to_owned(), "10.0.0.9:50000".to_owned());
        let call = AdminCall { method, target, access_key, from };
        let answer = handle_call(node_router(&api.admin), NodeId(2), call, Body::from(body)).await;
        let content = answer.body.collect().await.unwrap().to_bytes();
        (answer.status, serde_json::from_slice::<Value>(&content).unwrap())
    };
    let (status, made) = send("POST", "/v1/buckets", json!({"name": "data"}).to_string()).await;
    assert_eq!((status, &made["name"]), (201, &json!("data")), "{made}");
    let line = &api.audit()[0];
    assert_eq!((line.who.as_str(), line.from.as_str()), ("AK", "10.0.0.9:50000 through node 2"));

    let (status, part) = send("GET", STATUS_PART, String::new()).await;
    assert_eq!((status, &part["node"], &part["nodes"]), (200, &json!("n"), &json!([])), "{part}");
    let (status, part) = send("GET", "/node/decisions?limit=3&bucket=unknown", String::new()).await;
    assert_eq!((status, &part["decisions"]), (200, &json!([])), "another node may know the bucket: {part}");
    let (status, refused) = send("POST", "/v1/buckets", "x".repeat(70_000)).await;
    assert_eq!((status, &refused["code"]), (413, &json!("BodyTooLarge")));
    api.close().await;
}

#[tokio::test]
async fn no_listener_has_the_routes_for_other_nodes() {
    let api = Api::open().await;
    for path in [STATUS_PART, DECISIONS_PART] {
        let request = http::Request::get(path).body(Body::empty()).unwrap();
        let answer = router(&api.admin, ServedRoutes::All).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
    }
    api.close().await;
}
