//! `/v1/tiers/{tier}/compaction`: how far compaction is, and a round of it now.

use super::change::{Asked, Changed, json, parse};
use super::signed::Caller;
use super::{Admin, ApiError};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How far the compaction of a tier is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionInfo {
    /// The tier.
    pub tier: String,
    /// Bytes that nothing refers to, as of the last look.
    pub garbage_bytes: u64,
    /// Bytes of objects that were moved since the start.
    pub moved_bytes: u64,
    /// Bytes of segment files that were removed since the start.
    pub freed_bytes: u64,
    /// Segments that were released since the start.
    pub freed_segments: u64,
    /// Segments that cannot be emptied, because what lives in them does not verify.
    pub held_back_segments: u64,
    /// Segments that go when their last reader is done.
    pub draining_segments: u64,
    /// Rounds that have ended since the start.
    pub rounds: u64,
    /// In the answer to a request for a round: how many have ended when it has.
    pub until_rounds: Option<u64>,
}

/// A round of compaction that is asked for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompactRequest {
    /// Percent of a segment's bytes that must be dead, 1 to 100; the setting's when not given.
    #[serde(default)]
    pub dead_percent: Option<u64>,
}

pub(super) async fn compaction(
    State(admin): State<Arc<Admin>>,
    Path(tier): Path<String>,
) -> Result<Json<CompactionInfo>, ApiError> {
    known(&tier)?;
    Ok(Json(info(&admin, tier)))
}

pub(super) async fn compact(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Path(tier): Path<String>,
    body: Bytes,
) -> Result<Response, ApiError> {
    known(&tier)?;
    let request = if body.is_empty() { CompactRequest::default() } else { parse(&body)? };
    let dead_percent =
        request.dead_percent.unwrap_or_else(|| admin.loaded.load().config.hot.compact_dead_percent);
    if !(1..=100).contains(&dead_percent) {
        return Err(ApiError::invalid(format!("dead_percent is {dead_percent}, not 1 to 100.")));
    }
    let asked = Asked { action: "tier.compact", resource: tier.clone(), status: StatusCode::ACCEPTED };
    let asking = Arc::clone(&admin);
    let work = async move {
        let before = info(&asking, tier.clone());
        let until_rounds = Some(asking.hot.compact(dead_percent));
        let after = json(&CompactionInfo { until_rounds, ..before.clone() })?;
        Ok(Changed { resource: tier, before: json(&before)?, after, answer: None })
    };
    admin.change(caller, asked, work).await
}

fn known(tier: &str) -> Result<(), ApiError> {
    match tier {
        "hot" => Ok(()),
        _ => Err(ApiError::new(
            StatusCode::NOT_FOUND,
            "NoSuchTier",
            format!("There is no tier {tier:?}; there is \"hot\"."),
        )),
    }
}

fn info(admin: &Admin, tier: String) -> CompactionInfo {
    let status = admin.hot.compaction();
    CompactionInfo {
        tier,
        garbage_bytes: status.garbage_bytes,
        moved_bytes: status.moved_bytes,
        freed_bytes: status.freed_bytes,
        freed_segments: status.freed_segments,
        held_back_segments: status.held_back_segments,
        draining_segments: status.draining_segments,
        rounds: status.rounds,
        until_rounds: None,
    }
}
