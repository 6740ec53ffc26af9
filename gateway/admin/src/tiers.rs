//! `/v1/tiers`: the tiers, results and start of scrubs, progress and start of compaction. Every storage node
//! of a cluster has these routes, for its own tiers.

use super::change::{AuditedAction, AuditedChange, json, parse_optional};
use super::context::AdminContext;
use super::extract::AdminPath;
use super::signed::AdminCaller;
use super::{Admin, ApiError, forwarded};
use axum::body::Bytes;
use axum::extract::{FromRef, State};
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::{BadRange, CompactRequest, CompactionInfo, ScrubInfo, TierDetail, TierInfo, TierList};
use mlgw_common::{SegmentTier, Tier, Timestamp};
use mlgw_config::MachineSizes;
use mlgw_segments::hot::{BadBlock, Scrub, Upstreams, is_scrubbed};
use mlgw_segments::tiers::Tiers;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Tiers of this node, or the reason why it has none.
#[derive(Clone)]
pub(super) struct TierContext(pub(super) Result<NodeTiers, TiersAbsent>);

/// Tiers of one node, and what their routes need besides. Clones share the parts.
#[derive(Clone)]
pub(super) struct NodeTiers {
    pub(super) context: AdminContext,
    pub(super) machine: MachineSizes,
    pub(super) tiers: Tiers,
    pub(super) upstreams: Upstreams,
    pub(super) scrub: Arc<Scrub>,
}

/// Reason why a node has no tiers.
#[derive(Clone, Copy)]
pub(super) enum TiersAbsent {
    /// It is a gateway.
    Gateway,
    /// It is a storage node that waits at its start.
    Starting,
}

impl FromRef<Arc<Admin>> for TierContext {
    fn from_ref(admin: &Arc<Admin>) -> Self {
        Self(Ok(NodeTiers::of(admin)))
    }
}

impl TierContext {
    /// Returns the tiers of this node.
    ///
    /// # Errors
    /// If it has none.
    fn tiers(self) -> Result<NodeTiers, ApiError> {
        self.0.map_err(|absent| match absent {
            TiersAbsent::Starting => forwarded::starting(),
            TiersAbsent::Gateway => {
                let message = "A gateway has no tiers: send the request to a storage node that serves.";
                ApiError::new(StatusCode::MISDIRECTED_REQUEST, "OtherNode", message)
            }
        })
    }
}

pub(super) async fn list(State(node): State<TierContext>) -> Result<Json<TierList>, ApiError> {
    let node = node.tiers()?;
    let mut tiers = vec![node.memory_tier().info, node.segment_tier(SegmentTier::Hot)?.info];
    if node.has_cold_tier() {
        tiers.push(node.segment_tier(SegmentTier::Cold)?.info);
    }
    if node.has_upstreams() {
        tiers.push(node.segment_tier(SegmentTier::Upstream)?.info);
    }
    Ok(Json(TierList { tiers }))
}

pub(super) async fn show(
    State(node): State<TierContext>,
    AdminPath(tier): AdminPath<String>,
) -> Result<Json<TierDetail>, ApiError> {
    let node = node.tiers()?;
    if Tier::from_name(&tier) == Some(Tier::Memory) {
        return Ok(Json(node.memory_tier()));
    }
    let tier = segment_tier(&node, &tier)?;
    Ok(Json(node.segment_tier(tier)?))
}

pub(super) async fn scrub(
    State(node): State<TierContext>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(tier): AdminPath<String>,
) -> Result<Response, ApiError> {
    let node = node.tiers()?;
    let action = AuditedAction { action: "tier.scrub", resource: tier.clone(), status: StatusCode::ACCEPTED };
    let context = node.context.clone();
    let work = async move {
        let segments = segment_tier(&node, &tier)?;
        if segments == SegmentTier::Upstream {
            let why = "Data in upstreams is verified on read; test an upstream with `mlgw upstream check`.";
            return Err(ApiError::invalid(why.to_owned()));
        }
        node.scrub.start_pass();
        let answer = json(&node.segment_tier(segments)?)?;
        Ok(AuditedChange { resource: tier, before: Value::Null, after: Value::Null, answer: Some(answer) })
    };
    context.change(caller, action, work).await
}

pub(super) async fn compaction(
    State(node): State<TierContext>,
    AdminPath(tier): AdminPath<String>,
) -> Result<Json<CompactionInfo>, ApiError> {
    let node = node.tiers()?;
    let tier = segment_tier(&node, &tier)?;
    Ok(Json(compaction_of(&node, tier)))
}

pub(super) async fn compact(
    State(node): State<TierContext>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(tier): AdminPath<String>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let node = node.tiers()?;
    let segments = segment_tier(&node, &tier)?;
    let request: CompactRequest = parse_optional(&body)?;
    let context = node.context.clone();
    let dead_percent =
        request.dead_percent.unwrap_or_else(|| context.loaded.load().config.hot.compact_dead_percent);
    if !(1..=100).contains(&dead_percent) {
        return Err(ApiError::invalid(format!("dead_percent is {dead_percent}; expected 1 to 100.")));
    }
    let action =
        AuditedAction { action: "tier.compact", resource: tier.clone(), status: StatusCode::ACCEPTED };
    let work = async move {
        let before = compaction_of(&node, segments);
        let until_rounds = Some(node.tiers.hot.compact(dead_percent));
        let after = json(&CompactionInfo { until_rounds, ..before.clone() })?;
        Ok(AuditedChange { resource: tier, before: json(&before)?, after, answer: None })
    };
    context.change(caller, action, work).await
}

/// Returns the tier with this name, if it exists and consists of segments, so that it can be scrubbed,
/// compacted and drained.
pub(super) fn segment_tier(node: &NodeTiers, tier: &str) -> Result<SegmentTier, ApiError> {
    match Tier::from_name(tier) {
        Some(Tier::Hot) => Ok(SegmentTier::Hot),
        Some(Tier::Cold) if node.has_cold_tier() => Ok(SegmentTier::Cold),
        Some(Tier::Upstream) if node.has_upstreams() => Ok(SegmentTier::Upstream),
        Some(Tier::Memory) => Err(ApiError::invalid(format!(
            "The {} tier contains only copies: it cannot be scrubbed, compacted or drained.",
            Tier::Memory
        ))),
        Some(Tier::Cold | Tier::Upstream) | None => {
            let [memory, hot, cold, upstream] = Tier::ALL.map(Tier::name);
            let message = format!(
                "No such tier: {tier:?}; expected {memory:?}, {hot:?}, {cold:?} (with cold.dirs) or \
                 {upstream:?} (with a configured upstream)."
            );
            Err(ApiError::new(StatusCode::NOT_FOUND, "NoSuchTier", message))
        }
    }
}

impl NodeTiers {
    /// Returns the tiers of a server without peers, or of the duty node.
    pub(super) fn of(admin: &Arc<Admin>) -> Self {
        Self {
            context: AdminContext::from_ref(admin),
            machine: admin.machine,
            tiers: admin.stored.tiers.clone(),
            upstreams: Arc::clone(&admin.upstreams),
            scrub: Arc::clone(&admin.scrub),
        }
    }

    /// Returns true if a cold tier is configured.
    pub(super) fn has_cold_tier(&self) -> bool {
        !self.context.loaded.load().config.cold.dirs.is_empty()
    }

    /// Returns true if upstreams are configured.
    fn has_upstreams(&self) -> bool {
        !self.upstreams.is_empty()
    }

    fn memory_tier(&self) -> TierDetail {
        let memory = self.tiers.memory.metrics();
        TierDetail {
            info: TierInfo {
                tier: Tier::Memory,
                capacity_bytes: memory.limit_bytes,
                used_bytes: memory.used_bytes,
                segments: 0,
                bad_blocks: 0,
            },
            hits: Some(memory.hits),
            misses: Some(memory.misses),
            scrub: None,
            bad: Vec::new(),
        }
    }

    /// Returns the details of a tier of segments.
    fn segment_tier(&self, tier: SegmentTier) -> Result<TierDetail, ApiError> {
        let hot = self.tiers.hot.metrics();
        let catalogue = &self.context.catalogue;
        let status = self.scrub.status();
        let segments = catalogue.segments().map_err(mlgw_wire::error::S3Error::from)?;
        let names: BTreeMap<u64, String> = {
            let buckets = catalogue.buckets(None, None, usize::MAX);
            buckets.iter().map(|bucket| (bucket.id, bucket.name.clone())).collect()
        };
        let node = catalogue.node();
        let in_tier = || segments.iter().filter(|segment| segment.tier_for(node) == Ok(tier));
        let here: BTreeSet<u64> = in_tier().map(|segment| segment.id).collect();
        let bad: Vec<_> = status.bad.iter().filter(|bad| here.contains(&bad.segment)).cloned().collect();
        let (used_bytes, capacity_bytes) = match tier {
            SegmentTier::Cold => (hot.cold_used_bytes, hot.cold_used_bytes + hot.cold_room_bytes),
            SegmentTier::Upstream => (in_tier().map(|segment| segment.length).sum(), 0),
            SegmentTier::Hot => {
                (hot.used_bytes, self.context.loaded.load().config.hot_capacity_bytes(&self.machine))
            }
        };
        // A pass reads all local tiers, whichever tier it was requested for.
        let scrubbed = segments.iter().filter(|segment| is_scrubbed(segment, node));
        let at = |ms| Timestamp(ms).to_string();
        Ok(TierDetail {
            info: TierInfo {
                tier: tier.tier(),
                capacity_bytes,
                used_bytes,
                segments: here.len() as u64,
                bad_blocks: bad.len() as u64,
            },
            scrub: (tier != SegmentTier::Upstream).then(|| ScrubInfo {
                running: status.running,
                began: at(status.began_ms),
                read_bytes: status.read_bytes,
                total_bytes: scrubbed.map(|segment| segment.length).sum(),
                passes: status.passes,
                ended: (status.passes > 0).then(|| at(status.ended_ms)),
                compared_objects: status.compared_objects,
            }),
            bad: bad.into_iter().map(|bad| bad_range_info(bad, &names)).collect(),
            hits: None,
            misses: None,
        })
    }
}

fn compaction_of(node: &NodeTiers, tier: SegmentTier) -> CompactionInfo {
    let status = node.tiers.hot.compaction();
    CompactionInfo {
        tier: tier.tier(),
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
