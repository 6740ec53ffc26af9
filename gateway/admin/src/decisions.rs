//! `/v1/decisions`: recent moves, retentions and evictions, with their reasons.

use super::extract::AdminQuery;
use super::words::{decision_action, decision_kind, decision_location, decision_result, decision_trigger};
use super::{Admin, ApiError};
use axum::Json;
use axum::extract::State;
use http::StatusCode;
use mlgw_api::{DecisionAction, DecisionInfo, DecisionList};
use mlgw_common::limits::DECISIONS_MAX;
use mlgw_common::{BucketId, Timestamp};
use mlgw_formats::decision_entry::DecisionEntry;
use mlgw_segments::decisions::DecisionFilter;
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

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    AdminQuery(query): AdminQuery<DecisionQuery>,
) -> Result<Json<DecisionList>, ApiError> {
    let limit = query.limit.unwrap_or(DECISIONS_SHOWN);
    if !(1..=DECISIONS_MAX).contains(&limit) {
        return Err(ApiError::invalid(format!("limit is {limit}; expected 1 to {DECISIONS_MAX}.")));
    }
    let kind = query.kind.map(decision_kind);
    let bucket = query.bucket.as_deref().map(|name| admin.bucket_id(name)).transpose()?;
    let names = admin.bucket_names();
    let found = admin.decisions.list(DecisionFilter { limit, kind, bucket });
    Ok(Json(DecisionList {
        decisions: found.into_iter().map(|entry| decision_info(entry, &names)).collect(),
    }))
}

impl Admin {
    fn bucket_id(&self, name: &str) -> Result<BucketId, ApiError> {
        let bucket = self.stored.catalogue.bucket(name).map(|bucket| bucket.bucket_id());
        let message = || format!("No such bucket: {name:?}.");
        bucket.ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, "NoSuchBucket", message()))
    }
}

fn decision_info(entry: DecisionEntry, names: &BTreeMap<u64, String>) -> DecisionInfo {
    let name = |id: u64| names.get(&id).cloned().unwrap_or_else(|| format!("#{id}"));
    DecisionInfo {
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
