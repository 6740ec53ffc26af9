//! `/v1/decisions`: recent moves, retentions and evictions of all nodes, with their reasons.

use super::extract::AdminQuery;
use super::node_parts::{DECISIONS_PART, ParsedPart, parts_of_others};
use super::signed::AdminCaller;
use super::words::{decision_action, decision_kind, decision_location, decision_result, decision_trigger};
use super::{Admin, ApiError};
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::{DecisionAction, DecisionInfo, DecisionList};
use mlgw_common::Timestamp;
use mlgw_common::limits::{DECISIONS_MAX, NODE_LIST_BYTES_MAX};
use mlgw_formats::decision_entry::DecisionEntry;
use mlgw_metadata::Catalogue;
use mlgw_node::ClusterNode;
use mlgw_segments::decisions::{DecisionFilter, Decisions};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of decisions listed by default.
const DECISIONS_SHOWN: usize = 100;

/// Query parameters: filter of decisions.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DecisionQuery {
    /// Maximum number of results.
    #[schemars(range(min = 1, max = DECISIONS_MAX), extend("default" = DECISIONS_SHOWN))]
    limit: Option<usize>,
    /// Only decisions of this kind.
    kind: Option<DecisionAction>,
    /// Only decisions on objects of this bucket; decisions on whole segments are omitted.
    bucket: Option<String>,
}

impl DecisionQuery {
    fn limit(&self) -> Result<usize, ApiError> {
        let limit = self.limit.unwrap_or(DECISIONS_SHOWN);
        if (1..=DECISIONS_MAX).contains(&limit) {
            return Ok(limit);
        }
        Err(ApiError::invalid(format!("limit is {limit}; expected 1 to {DECISIONS_MAX}.")))
    }
}

/// Log of decisions of this node, and the rows with the names of buckets.
#[derive(Clone, Copy)]
pub(super) struct DecisionSources<'a> {
    /// The log; `None` on a gateway, which decides nothing.
    pub(super) decisions: Option<&'a Decisions>,
    pub(super) catalogue: &'a Catalogue,
    pub(super) cluster: Option<&'a ClusterNode>,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    caller: Extension<AdminCaller>,
    raw: RawQuery,
    AdminQuery(query): AdminQuery<DecisionQuery>,
) -> Result<Json<DecisionList>, ApiError> {
    admin.decision_sources().whole(&caller, raw, &query).await.map(Json)
}

/// Answers with the part of this node.
pub(super) async fn list_own(
    State(admin): State<Arc<Admin>>,
    AdminQuery(query): AdminQuery<DecisionQuery>,
) -> Result<Json<DecisionList>, ApiError> {
    admin.decision_sources().own(&query).map(Json)
}

impl Admin {
    fn decision_sources(&self) -> DecisionSources<'_> {
        let (decisions, cluster) = (Some(&self.decisions), self.cluster.as_ref());
        DecisionSources { decisions, catalogue: &self.stored.catalogue, cluster }
    }
}

impl DecisionSources<'_> {
    /// Returns the decisions of all nodes. `raw` is the text of the query, which the other nodes get.
    ///
    /// # Errors
    /// The limit is wrong, or this node knows no such bucket.
    pub(super) async fn whole(
        &self,
        caller: &Extension<AdminCaller>,
        RawQuery(raw): RawQuery,
        query: &DecisionQuery,
    ) -> Result<DecisionList, ApiError> {
        if let Some(name) = query.bucket.as_deref().filter(|name| self.catalogue.bucket(name).is_none()) {
            let message = format!("No such bucket: {name:?}.");
            return Err(ApiError::new(StatusCode::NOT_FOUND, "NoSuchBucket", message));
        }
        let own = self.own(query)?;
        let target = format!("{DECISIONS_PART}?{}", raw.unwrap_or_default());
        let others = parts_of_others(self.cluster, caller, target, NODE_LIST_BYTES_MAX).await;
        Ok(merged(own, others, query.limit()?))
    }

    /// Returns the decisions of this node. It may not know a bucket that another node knows.
    ///
    /// # Errors
    /// The limit is wrong.
    pub(super) fn own(&self, query: &DecisionQuery) -> Result<DecisionList, ApiError> {
        let (limit, kind) = (query.limit()?, query.kind.map(decision_kind));
        let bucket = query.bucket.as_deref().map(|name| self.catalogue.bucket(name));
        let (Some(decisions), true) = (self.decisions, !matches!(bucket, Some(None))) else {
            return Ok(DecisionList::default());
        };
        let bucket = bucket.flatten().map(|bucket| bucket.bucket_id());
        let buckets = self.catalogue.buckets(None, None, usize::MAX);
        let names: BTreeMap<u64, String> =
            buckets.iter().map(|bucket| (bucket.id, bucket.name.clone())).collect();
        let node = self.cluster.map(|cluster| cluster.id().get());
        let found = decisions.list(DecisionFilter { limit, kind, bucket }).into_iter();
        let infos = found.map(|entry| DecisionInfo { node, ..decision_info(entry, &names) });
        Ok(DecisionList { decisions: infos.collect(), silent: Vec::new() })
    }
}

/// Merges the decisions of all nodes: the newest `limit` of them, those of one node in its order.
fn merged(own: DecisionList, others: Vec<ParsedPart<DecisionList>>, limit: usize) -> DecisionList {
    let mut whole = own;
    for other in others {
        match other.answered() {
            Ok(part) => {
                whole.decisions.extend(part.decisions);
                // Those that are too old now are not in the result, so memory is bounded.
                newest(&mut whole.decisions, limit);
            }
            Err(silent) => whole.silent.push(silent),
        }
    }
    whole
}

/// Keeps the newest decisions. The sort is stable, and texts of times are in the order of time.
fn newest(decisions: &mut Vec<DecisionInfo>, limit: usize) {
    decisions.sort_by(|a, b| b.time.cmp(&a.time));
    decisions.truncate(limit);
}

fn decision_info(entry: DecisionEntry, names: &BTreeMap<u64, String>) -> DecisionInfo {
    let name = |id: u64| names.get(&id).cloned().unwrap_or_else(|| format!("#{id}"));
    DecisionInfo {
        node: None,
        seq: entry.seq,
        time: Timestamp(entry.at_ms).to_string(),
        until: Timestamp(entry.until_ms).to_string(),
        kind: decision_action(entry.kind),
        segment: entry.segment,
        bucket: entry.bucket.map(name),
        key: (!entry.key.is_empty()).then_some(entry.key),
        count: entry.count,
        from: decision_location(entry.from),
        to: decision_location(entry.to),
        bytes: entry.bytes,
        reason: decision_trigger(entry.reason),
        job: entry.job,
        rule: (!entry.rule.is_empty()).then_some(entry.rule),
        outcome: decision_result(entry.outcome),
        error: (!entry.error.is_empty()).then_some(entry.error),
    }
}

#[cfg(test)]
mod tests {
    use super::merged;
    use crate::node_parts::ParsedPart;
    use mlgw_api::{DecisionInfo, DecisionList};
    use mlgw_node::PartError;

    fn list(node: u64, decisions: &[(u64, &str)]) -> DecisionList {
        let info = |(seq, time): &(u64, &str)| DecisionInfo {
            node: Some(node),
            seq: *seq,
            time: (*time).to_owned(),
            ..DecisionInfo::default()
        };
        DecisionList { decisions: decisions.iter().map(info).collect(), silent: vec![] }
    }

    #[test]
    fn the_newest_decisions_of_all_nodes_are_listed_up_to_the_limit() {
        let own = list(2, &[(9, "2026-11-20T00:00:03.000Z"), (8, "2026-11-20T00:00:01.000Z")]);
        let part = |node, part| ParsedPart { node, name: format!("n{node}"), part };
        let others = vec![
            part(1, Ok(list(1, &[(7, "2026-11-20T00:00:03.000Z"), (6, "2026-11-20T00:00:02.000Z")]))),
            part(3, Err(PartError::Silent)),
        ];
        let whole = merged(own, others, 3);
        let listed: Vec<_> = whole.decisions.iter().map(|of| (of.node, of.seq)).collect();
        assert_eq!(listed, [(Some(2), 9), (Some(1), 7), (Some(1), 6)]);
        let silent: Vec<_> = whole.silent.iter().map(|of| (of.node, of.reason.as_str())).collect();
        assert_eq!(silent, [(3, "it does not answer")]);
    }
}
