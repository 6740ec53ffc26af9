//! `/v1/cluster`: nodes and groups of the cluster, and tokens for new nodes.
//!
//! A status is what the responding node knows; it reads nothing from other nodes. Findings are pure: the same
//! status at the same time gives the same findings. Segments with fewer copies than wanted are counted and
//! are no finding, because they are normal while copies are made; an alert reports those that stay.

use super::ApiError;
use super::change::{AuditedAction, AuditedChange, json};
use super::cluster_authority::authority_change_info;
use super::context::AdminContext;
use super::health::finding;
use super::probes::failed;
use super::signed::AdminCaller;
use super::words::{cluster_node_role, cluster_node_state};
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::{
    ClusterCopiesInfo, ClusterDutyPhase, ClusterGroupInfo, ClusterInfo, ClusterLeavingInfo,
    ClusterMemberInfo, ClusterMemberPart, ClusterNodeInfo, ClusterRebalanceInfo, ClusterRowsInfo,
    ClusterSetInfo, ClusterUpgradeInfo, Health, HealthFinding, NewJoinTokenInfo,
};
use mlgw_common::limits::{
    CERTIFICATE_ALERT_DAYS, CLOCK_SKEW_REFUSED_MS, CLOCK_SKEW_UNHEALTHY_MS, JOIN_TOKENS_MAX,
};
use mlgw_common::{ClockComparison, NodeId, SegmentId, Timestamp};
use mlgw_formats::command::Reject;
use mlgw_formats::schema::{DutyPhase, NodeState};
use mlgw_metadata::{ProposeError, RowComparison};
use mlgw_node::{
    ClusterStatus, ClusterUpgrade, CopyStatus, GroupMemberStatus, GroupStatus, LeavingNode, NewToken,
    NodeStatus, SetStatus, TokenError,
};
use mlgw_wire::error::S3Error;
use serde_json::Value;
use std::collections::BTreeSet;

/// Maximum number of lost segments that a finding names.
const LOST_NAMED_MAX: usize = 8;

/// Maximum number of settings that a finding names.
const SETTINGS_NAMED_MAX: usize = 8;

/// Milliseconds of a day.
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

pub(super) async fn show(State(context): State<AdminContext>) -> Result<Json<ClusterInfo>, ApiError> {
    let cluster = context.cluster()?.clone();
    let status = cluster.status();
    let copies = tokio::task::spawn_blocking(move || cluster.copies()).await.map_err(|e| failed(&e))?;
    let copies = copies.map_err(|error| failed(&error))?;
    Ok(Json(cluster_info(&status, &copies, context.clock.now())))
}

pub(super) async fn create_token(
    State(context): State<AdminContext>,
    Extension(caller): Extension<AdminCaller>,
) -> Result<Response, ApiError> {
    let cluster = context.cluster()?.clone();
    let action = AuditedAction {
        action: "cluster.token.create",
        resource: String::new(),
        status: StatusCode::CREATED,
    };
    let created_by = caller.access_key.clone();
    let work = async move { audited_token(&cluster.create_token(&created_by).await?) };
    context.change(caller, action, work).await
}

/// Returns the change that created a token. The response has its secret, the audit log has not.
pub(super) fn audited_token(token: &NewToken) -> Result<AuditedChange, ApiError> {
    let expires = token.expires.to_string();
    let after = serde_json::json!({ "id": token.id, "expires": expires });
    let answer =
        json(&NewJoinTokenInfo { token: token.text.as_str().to_owned(), id: token.id.clone(), expires })?;
    Ok(AuditedChange { resource: token.id.clone(), before: Value::Null, after, answer: Some(answer) })
}

impl From<TokenError> for ApiError {
    fn from(error: TokenError) -> Self {
        let message = error.to_string();
        match error {
            TokenError::Propose(ProposeError::Rejected(Reject::TooManyJoinTokens)) => {
                let message = format!(
                    "There are {JOIN_TOKENS_MAX} join tokens, the maximum. Use one of them, or wait until \
                     one expires. A token is valid for an hour."
                );
                Self::new(StatusCode::CONFLICT, "TooManyJoinTokens", message)
            }
            TokenError::Propose(error) => S3Error::from(error).into(),
            TokenError::ClockSkew(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, "ClockSkew", message),
            TokenError::NoAuthority => Self::new(StatusCode::SERVICE_UNAVAILABLE, "NoAuthority", message),
            TokenError::Authority(_) | TokenError::Random(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
            }
        }
    }
}

const fn duty_phase(phase: DutyPhase) -> ClusterDutyPhase {
    match phase {
        DutyPhase::Waiting => ClusterDutyPhase::Waiting,
        DutyPhase::Active => ClusterDutyPhase::Active,
        DutyPhase::Left => ClusterDutyPhase::Left,
        DutyPhase::Ended => ClusterDutyPhase::Ended,
    }
}

/// Converts a status to its API type, with findings.
pub(super) fn cluster_info(status: &ClusterStatus, copies: &CopyStatus, now: Timestamp) -> ClusterInfo {
    let mut findings = cluster_findings(status, now);
    findings.extend(lost_finding(&copies.lost));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    ClusterInfo {
        cluster: status.cluster.to_string(),
        node: status.node.get(),
        duty: status.duty.map(NodeId::get),
        duty_term: status.duty_term,
        duty_phase: duty_phase(status.duty_phase),
        waits: status.waits.clone(),
        certificate_expires: status.certificate_expires.to_string(),
        authority_change: status.authority_change.as_ref().map(authority_change_info),
        cluster_version: status.cluster_version,
        upgrade: status.upgrade.as_ref().map(upgrade_info),
        findings,
        copies: copies_info(copies),
        sets: status.sets.sets.iter().map(set_info).collect(),
        rebalance: status.sets.rebalance.as_ref().map(|rebalance| ClusterRebalanceInfo {
            requested: Timestamp(rebalance.requested_ms).to_string(),
            by: rebalance.by.clone(),
        }),
        moving_groups: status.sets.moving.clone(),
        sets_wait: status.sets.waits.clone(),
        rows: status.rows.iter().map(|(group, rows)| rows_info(*group, rows)).collect(),
        leaving: copies.leaving.iter().map(|leaving| leaving_info(leaving, &status.nodes)).collect(),
        nodes: status.nodes.iter().map(node_info).collect(),
        groups: status.groups.iter().map(group_info).collect(),
    }
}

fn set_info(set: &SetStatus) -> ClusterSetInfo {
    ClusterSetInfo {
        id: set.id,
        nodes: set.nodes.iter().map(|node| node.get()).collect(),
        groups: set.groups.clone(),
        guests: set.guests.clone(),
    }
}

fn rows_info(group: u32, rows: &RowComparison) -> ClusterRowsInfo {
    let ids = |nodes: &BTreeSet<NodeId>| nodes.iter().map(|node| node.get()).collect();
    ClusterRowsInfo {
        group,
        index: rows.index,
        compared: rows.compared.to_string(),
        differing: ids(&rows.differing),
        undecided: rows.is_undecided,
        without: ids(&rows.without),
    }
}

fn upgrade_info(upgrade: &ClusterUpgrade) -> ClusterUpgradeInfo {
    let without = upgrade.without.iter().map(|node| node.get()).collect();
    ClusterUpgradeInfo { version: upgrade.version, without }
}

fn copies_info(copies: &CopyStatus) -> ClusterCopiesInfo {
    let counts = &copies.counts;
    ClusterCopiesInfo {
        wanted: copies.wanted,
        segments: counts.segments,
        bytes: counts.bytes,
        below_segments: counts.below_segments,
        below_bytes: counts.below_bytes,
        suspect_segments: counts.suspect_segments,
        open_segments: copies.open_segments,
        off_set_segments: copies.off_set_segments,
        off_set_bytes: copies.off_set_bytes,
    }
}

fn leaving_info(leaving: &LeavingNode, nodes: &[NodeStatus]) -> ClusterLeavingInfo {
    let status = nodes.iter().find(|node| node.id == leaving.node);
    ClusterLeavingInfo {
        node: leaving.node.get(),
        segments: leaving.counts.segments,
        copied_segments: leaving.counts.copied_segments,
        open_segments: leaving.open_segments,
        sets: leaving.sets,
        votes: leaving.votes,
        done: leaving.is_done(),
        replaced_by: status.and_then(|node| node.replaced_by).map(NodeId::get),
    }
}

/// Returns the finding about segments whose replicas were all on removed nodes.
fn lost_finding(lost: &[SegmentId]) -> Option<HealthFinding> {
    if lost.is_empty() {
        return None;
    }
    let mut named: Vec<String> = lost.iter().take(LOST_NAMED_MAX).map(ToString::to_string).collect();
    if lost.len() > LOST_NAMED_MAX {
        named.push("…".to_owned());
    }
    let what = format!(
        "{} segments were only on nodes that were removed, so the objects in them cannot be read: {}.",
        lost.len(),
        named.join(", ")
    );
    let advice = "Restore these objects from a backup, or delete them.";
    Some(finding(Health::Critical, what, advice))
}

fn node_info(node: &NodeStatus) -> ClusterNodeInfo {
    ClusterNodeInfo {
        id: node.id.get(),
        name: node.name.clone(),
        address: node.address.clone(),
        role: cluster_node_role(node.role),
        state: cluster_node_state(node.state),
        build: node.build.clone(),
        cluster_version: node.cluster_version,
        joined: Timestamp(node.joined_ms).to_string(),
        own: node.is_own,
        duty: node.is_duty,
        reachable: node.reachable,
        serves: node.serves,
        used_bytes: node.load.and_then(|load| load.used_bytes),
        free_bytes: node.load.and_then(|load| load.free_bytes),
        applied: node.load.and_then(|load| load.applied),
        clock_skew_ms: node.clock_skew_ms,
        differing_settings: node.differing_settings.clone(),
    }
}

fn group_info(group: &GroupStatus) -> ClusterGroupInfo {
    let member = |member: &GroupMemberStatus| ClusterMemberInfo {
        node: member.node.get(),
        part: if member.is_voter { ClusterMemberPart::Voter } else { ClusterMemberPart::Learner },
        lag_bytes: member.lag_bytes,
    };
    ClusterGroupInfo {
        id: group.id,
        leader: group.leader.map(NodeId::get),
        members: group.members.iter().map(member).collect(),
    }
}

/// Returns all findings about the cluster, worst first.
pub(super) fn cluster_findings(status: &ClusterStatus, now: Timestamp) -> Vec<HealthFinding> {
    let mut found: Vec<HealthFinding> = status.nodes.iter().filter_map(node_finding).collect();
    found.extend(status.nodes.iter().filter_map(clock_finding));
    found.extend(disagreement_finding(status.clock));
    found.extend(status.nodes.iter().filter_map(full_finding));
    found.extend(status.nodes.iter().filter_map(slow_finding));
    found.extend(status.nodes.iter().filter_map(settings_finding));
    found.extend(status.groups.iter().filter_map(group_finding));
    found.extend(status.rows.iter().filter_map(|(group, rows)| rows_finding(*group, rows)));
    found.extend(certificate_finding(status.certificate_expires, now));
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}

fn node_finding(node: &NodeStatus) -> Option<HealthFinding> {
    if node.is_own || node.reachable != Some(false) {
        return None;
    }
    let advice = "Check that it runs, that cluster.address of its configuration is right, and the network \
                  between the nodes.";
    let named = described(node);
    match node.state {
        NodeState::Joining => Some(finding(
            Health::Warning,
            format!("{named} has joined and does not serve yet."),
            "Start it with `mlgw serve`.",
        )),
        NodeState::Active | NodeState::Draining | NodeState::Leaving if node.is_duty => Some(finding(
            Health::Critical,
            format!(
                "{named} does not answer; it runs jobs and rules, and serves remote-backed buckets, until \
                 another node takes that over."
            ),
            advice,
        )),
        NodeState::Active | NodeState::Draining | NodeState::Leaving => {
            Some(finding(Health::Warning, format!("{named} does not answer."), advice))
        }
        NodeState::Removed => None,
    }
}

/// Returns the finding about a clock that deviates from the median.
fn clock_finding(node: &NodeStatus) -> Option<HealthFinding> {
    let skew_ms = node.clock_skew_ms.filter(|skew| skew.unsigned_abs() > CLOCK_SKEW_UNHEALTHY_MS)?;
    let (severity, effect) = match skew_ms.unsigned_abs() > CLOCK_SKEW_REFUSED_MS {
        true => (Health::Critical, ", so it refuses writes, and does nothing that is due by time"),
        false => (Health::Warning, ""),
    };
    let what =
        format!("The clock of {} deviates by {skew_ms} ms from the median{effect}.", in_sentence(node));
    Some(finding(severity, what, "Check its time service, such as chrony."))
}

/// Returns the finding about clocks that differ while none is known to be right.
fn disagreement_finding(clock: ClockComparison) -> Option<HealthFinding> {
    let ClockComparison::Disagree { by_ms } = clock else { return None };
    let by_ms = by_ms.unsigned_abs();
    let what = format!(
        "The clocks of the nodes that answer differ by {by_ms} ms, and they are too few to find out which is \
         right: nothing that is due by time is done."
    );
    Some(finding(Health::Warning, what, "Check the time service of each node, such as chrony."))
}

/// Returns the finding about a node without space for segments.
fn full_finding(node: &NodeStatus) -> Option<HealthFinding> {
    node.load.filter(|load| load.is_full == Some(true))?;
    let what = format!("{} is full: it gets no new segments and leads no group.", described(node));
    // A node whose segment directory is not used has no space either.
    let advice = "If a segment directory of it is not used, replace that. Otherwise delete objects, raise \
                  its hot.capacity, or use a larger disk.";
    Some(finding(Health::Critical, what, advice))
}

/// Returns the finding about a node with a slow disk.
fn slow_finding(node: &NodeStatus) -> Option<HealthFinding> {
    node.load.filter(|load| load.is_slow == Some(true))?;
    let what = format!(
        "Syncs of {} take longer than a second: it leads no group, and is not ready while others are faster.",
        in_sentence(node)
    );
    Some(finding(Health::Warning, what, "Check its disk (dmesg, smartctl), and what else uses it."))
}

/// Returns the finding about a node with other settings than most nodes.
fn settings_finding(node: &NodeStatus) -> Option<HealthFinding> {
    let settings = &node.differing_settings;
    if settings.is_empty() {
        return None;
    }
    let named = settings[..settings.len().min(SETTINGS_NAMED_MAX)].join(", ");
    let more = match settings.len().saturating_sub(SETTINGS_NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = format!("Settings of {} differ from those of most nodes: {named}{more}.", in_sentence(node));
    let advice = "Compare `mlgw config show` of this node and another one, correct it, and restart the node.";
    Some(finding(Health::Warning, what, advice))
}

/// Describes a node for people, within a sentence.
pub(super) fn in_sentence(node: &NodeStatus) -> String {
    described(node).replacen("Node", "node", 1)
}

fn group_finding(group: &GroupStatus) -> Option<HealthFinding> {
    let what = match (group.leader, group.has_majority) {
        (Some(_), true) => return None,
        (None, _) if group.is_here => {
            format!("Group {} of the catalogue has no known leader.", group.id)
        }
        (_, false) => format!("Most voters of group {} of the catalogue do not answer.", group.id),
        // Another node knows its leader.
        (None, true) => return None,
    };
    Some(finding(
        Health::Critical,
        what,
        "Requests that need it fail until most of its voters are connected: start the nodes that do not \
         answer.",
    ))
}

/// Returns the finding about a group whose members have different rows.
fn rows_finding(group: u32, rows: &RowComparison) -> Option<HealthFinding> {
    if rows.differing.is_empty() {
        return None;
    }
    let named = rows.differing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let (what, advice) = match rows.is_undecided {
        false => (
            format!(
                "The rows of group {group} of the catalogue on node {named} differ from those of most nodes, \
                 at log index {}.",
                rows.index
            ),
            "Keep a copy of its catalogue, remove the node, and let a new one join.",
        ),
        true => (
            format!(
                "The rows of group {group} of the catalogue differ on the nodes {named}, at log index {}, \
                 and none are those of most nodes.",
                rows.index
            ),
            "Start the nodes that do not answer, so that a majority can be found. Remove no node until then.",
        ),
    };
    Some(finding(Health::Critical, what, advice))
}

fn certificate_finding(expires: Timestamp, now: Timestamp) -> Option<HealthFinding> {
    let left_ms = expires.as_millis().saturating_sub(now.as_millis());
    let (severity, what) = if left_ms <= 0 {
        (Health::Critical, format!("The certificate of this node expired at {expires}."))
    } else if left_ms <= CERTIFICATE_ALERT_DAYS * DAY_MS {
        (Health::Warning, format!("The certificate of this node expires at {expires}."))
    } else {
        return None;
    };
    let advice = "This node renews it automatically: see the log for the reason of the failure, and compare \
                  the clocks of the nodes.";
    Some(finding(severity, what, advice))
}

/// Describes a node for people.
pub(super) fn described(node: &NodeStatus) -> String {
    let parts = [node.name.as_str(), node.address.as_str()];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    match parts.is_empty() {
        true => format!("Node {}", node.id),
        false => format!("Node {} ({})", node.id, parts.join(", ")),
    }
}
