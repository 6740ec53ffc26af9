//! `/v1/tiers/{tier}/drain`: moves all segments out of a tier, and reports the progress of moves between
//! tiers. In a cluster only the duty node has these routes.

use super::change::{AuditedAction, AuditedChange, json};
use super::extract::AdminPath;
use super::signed::AdminCaller;
use super::tiers::{NodeTiers, segment_tier};
use super::{Admin, ApiError};
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::MovesInfo;
use mlgw_common::SegmentTier;
use mlgw_segments::hot::PlacingOrder;
use std::sync::Arc;

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    AdminPath(tier): AdminPath<String>,
) -> Result<Json<MovesInfo>, ApiError> {
    segment_tier(&NodeTiers::of(&admin), &tier)?;
    Ok(Json(admin.moves()))
}

pub(super) async fn begin(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(tier): AdminPath<String>,
) -> Result<Response, ApiError> {
    let action = AuditedAction { action: "tier.drain", resource: tier.clone(), status: StatusCode::ACCEPTED };
    let shared = Arc::clone(&admin);
    let work = async move {
        let node = NodeTiers::of(&shared);
        let emptied = segment_tier(&node, &tier)?;
        if emptied == SegmentTier::Hot && !node.has_cold_tier() && !shared.spills_to_upstream() {
            let why = format!(
                "No tier below {emptied} is configured: set directories in cold.dirs, or an upstream in \
                 cold.upstream."
            );
            return Err(ApiError::invalid(why));
        }
        let before = shared.moves();
        let order = match emptied {
            SegmentTier::Cold => PlacingOrder::DrainCold,
            SegmentTier::Upstream => PlacingOrder::DrainUpstream,
            SegmentTier::Hot => PlacingOrder::DrainHot,
        };
        let until_orders = Some(shared.stored.tiers.hot.order(order));
        let after = json(&MovesInfo { until_orders, ..before.clone() })?;
        Ok(AuditedChange { resource: tier, before: json(&before)?, after, answer: None })
    };
    admin.change(caller, action, work).await
}

impl Admin {
    fn moves(&self) -> MovesInfo {
        let status = self.stored.tiers.hot.placing();
        MovesInfo {
            spilled_bytes: status.spilled_bytes + status.stored_bytes,
            promoted_bytes: status.promoted_bytes + status.fetched_bytes,
            waiting_bytes: status.waiting_bytes,
            draining_segments: status.draining_segments,
            failed: status.failed,
            leftover_objects: status.leftover_objects,
            orders_done: status.orders_done,
            until_orders: None,
        }
    }

    fn spills_to_upstream(&self) -> bool {
        self.loaded.load().config.cold.upstream.is_some()
    }
}
