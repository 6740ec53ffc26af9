//! `/v1/tiers`: the tiers, results and start of scrubs, progress and start of compaction.

use super::change::{AuditedAction, AuditedChange, json, parse};
use super::extract::AdminPath;
use super::signed::AdminCaller;
use super::{Admin, ApiError};
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::{
    BadRange, CompactRequest, CompactionInfo, ScrubInfo, TierDetail, TierInfo, TierList, TierName,
};
use mlgw_common::Timestamp;
use mlgw_segments::hot::{BadBlock, UPSTREAM_TIER};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Result<Json<TierList>, ApiError> {
    let mut tiers = vec![admin.memory_tier().info, admin.segment_tier(TierName::Hot)?.info];
    if admin.has_cold_tier() {
        tiers.push(admin.segment_tier(TierName::Cold)?.info);
    }
    if admin.has_upstreams() {
        tiers.push(admin.segment_tier(TierName::Upstream)?.info);
    }
    Ok(Json(TierList { tiers }))
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    AdminPath(tier): AdminPath<String>,
) -> Result<Json<TierDetail>, ApiError> {
    if TierName::of(&tier) == Some(TierName::Memory) {
        return Ok(Json(admin.memory_tier()));
    }
    Ok(Json(admin.segment_tier(find_segment_tier(&admin, &tier)?)?))
}

pub(super) async fn scrub(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(tier): AdminPath<String>,
) -> Result<Response, ApiError> {
    let asked = AuditedAction { action: "tier.scrub", resource: tier.clone(), status: StatusCode::ACCEPTED };
    let shared = Arc::clone(&admin);
    let work = async move {
        let found = find_segment_tier(&shared, &tier)?;
        if found == TierName::Upstream {
            let why = "Data in upstreams is verified on read; test an upstream with `mlgw upstream check`.";
            return Err(ApiError::invalid(why.to_owned()));
        }
        shared.scrub.start_pass();
        let answer = json(&shared.segment_tier(found)?)?;
        Ok(AuditedChange { resource: tier, before: Value::Null, after: Value::Null, answer: Some(answer) })
    };
    admin.change(caller, asked, work).await
}

pub(super) async fn compaction(
    State(admin): State<Arc<Admin>>,
    AdminPath(tier): AdminPath<String>,
) -> Result<Json<CompactionInfo>, ApiError> {
    Ok(Json(compaction_of(&admin, find_segment_tier(&admin, &tier)?)))
}

pub(super) async fn compact(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(tier): AdminPath<String>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let found = find_segment_tier(&admin, &tier)?;
    let request = if body.is_empty() { CompactRequest::default() } else { parse(&body)? };
    let dead_percent =
        request.dead_percent.unwrap_or_else(|| admin.loaded.load().config.hot.compact_dead_percent);
    if !(1..=100).contains(&dead_percent) {
        return Err(ApiError::invalid(format!("dead_percent is {dead_percent}; expected 1 to 100.")));
    }
    let asked =
        AuditedAction { action: "tier.compact", resource: tier.clone(), status: StatusCode::ACCEPTED };
    let asking = Arc::clone(&admin);
    let work = async move {
        let before = compaction_of(&asking, found);
        let until_rounds = Some(asking.stored.tiers.hot.compact(dead_percent));
        let after = json(&CompactionInfo { until_rounds, ..before.clone() })?;
        Ok(AuditedChange { resource: tier, before: json(&before)?, after, answer: None })
    };
    admin.change(caller, asked, work).await
}

/// Returns the tier with a name. It consists of segments, so that it can be scrubbed, compacted and drained.
pub(super) fn find_segment_tier(admin: &Admin, tier: &str) -> Result<TierName, ApiError> {
    match TierName::of(tier) {
        Some(TierName::Hot) => Ok(TierName::Hot),
        Some(TierName::Cold) if admin.has_cold_tier() => Ok(TierName::Cold),
        Some(TierName::Upstream) if admin.has_upstreams() => Ok(TierName::Upstream),
        Some(TierName::Memory) => Err(ApiError::invalid(
            "The memory tier contains only copies: it cannot be scrubbed, compacted or drained.",
        )),
        _ => {
            let message = format!(
                "No such tier: {tier:?}; expected \"memory\", \"hot\", \"cold\" (with cold.dirs) or \
                 \"upstream\" (with a configured upstream)."
            );
            Err(ApiError::new(StatusCode::NOT_FOUND, "NoSuchTier", message))
        }
    }
}

impl Admin {
    fn memory_tier(&self) -> TierDetail {
        let memory = self.stored.tiers.memory.metrics();
        TierDetail {
            info: TierInfo {
                tier: TierName::Memory,
                capacity_bytes: memory.limit_bytes,
                used_bytes: memory.used_bytes,
                ..TierInfo::default()
            },
            hits: Some(memory.hits),
            misses: Some(memory.misses),
            ..TierDetail::default()
        }
    }

    /// Returns the details of a tier of segments.
    fn segment_tier(&self, tier: TierName) -> Result<TierDetail, ApiError> {
        let hot = self.stored.tiers.hot.metrics();
        let status = self.scrub.status();
        let segments = self.stored.catalogue.segments().map_err(mlgw_wire::error::S3Error::from)?;
        let names: BTreeMap<u64, String> = {
            let buckets = self.stored.catalogue.buckets(None, None, usize::MAX);
            buckets.iter().map(|bucket| (bucket.id, bucket.name.clone())).collect()
        };
        let number = match tier {
            TierName::Upstream => UPSTREAM_TIER,
            TierName::Cold => 1,
            TierName::Hot | TierName::Memory => 0,
        };
        let in_tier = || segments.iter().filter(|segment| segment.summary().tier == number);
        let here: BTreeSet<u64> = in_tier().map(|segment| segment.id).collect();
        let bad: Vec<_> = status.bad.iter().filter(|bad| here.contains(&bad.segment)).cloned().collect();
        let (used_bytes, capacity_bytes) = match tier {
            TierName::Cold => (hot.cold_used_bytes, hot.cold_used_bytes + hot.cold_room_bytes),
            TierName::Upstream => (in_tier().map(|segment| segment.length).sum(), 0),
            TierName::Hot | TierName::Memory => {
                (hot.used_bytes, self.loaded.load().config.hot_capacity_bytes(&self.machine))
            }
        };
        let at = |ms| Timestamp(ms).to_string();
        Ok(TierDetail {
            info: TierInfo {
                tier,
                capacity_bytes,
                used_bytes,
                segments: here.len() as u64,
                bad_blocks: bad.len() as u64,
            },
            scrub: (tier != TierName::Upstream).then(|| ScrubInfo {
                running: status.running,
                began: at(status.began_ms),
                read_bytes: status.read_bytes,
                total_bytes: segments.iter().map(|segment| segment.length).sum(),
                passes: status.passes,
                ended: (status.passes > 0).then(|| at(status.ended_ms)),
                compared_objects: status.compared_objects,
            }),
            bad: bad.into_iter().map(|bad| bad_range_info(bad, &names)).collect(),
            ..TierDetail::default()
        })
    }
}

fn compaction_of(admin: &Admin, tier: TierName) -> CompactionInfo {
    let status = admin.stored.tiers.hot.compaction();
    CompactionInfo {
        tier,
        garbage_bytes: status.garbage_bytes,
        moved_bytes: status.moved_bytes,
        freed_bytes: status.freed_bytes,
        freed_segments: status.freed_segments,
        held_back_segments: status.held_back_segments,
        draining_segments: status.draining_segments,
        rounds: status.passes,
        until_rounds: None,
    }
}

fn bad_range_info(bad: BadBlock, names: &BTreeMap<u64, String>) -> BadRange {
    let BadBlock { segment, offset, bucket, key, part, first, last, what, .. } = bad;
    let bucket = names.get(&bucket).cloned().unwrap_or_else(|| format!("#{bucket}"));
    BadRange { bucket, key, part: (part > 0).then_some(part), first, last, segment, offset, what }
}
