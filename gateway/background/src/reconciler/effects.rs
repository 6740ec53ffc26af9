//! Carries out pins, moves and evictions.
//!
//! Pins are set before anything is moved. Each order is complete before the next is given. Promotions by
//! rules do not fill the hot tier beyond the low mark, down to which it spills.

use super::pass_end::PassEnd;
use super::retention_state::RuleActionOutcome;
use super::scan::ReconcilerScan;
use super::scan_result::{EvictionCandidate, ReconcilerScanResult};
use super::segments::{SegmentOrder, SegmentSnapshot, SpillCandidates, SpillDestination};
use super::{PolicyReconciler, ReconcilerPassState};
use mlgw_cache::copies::{DroppedCopies, PinnedCopies};
use mlgw_common::limits::MOVE_REQUEST_SEGMENTS_MAX;
use mlgw_common::time::Instant;
use mlgw_common::{BucketId, SegmentId, SegmentTier};
use mlgw_formats::decision_entry::{DecisionCause, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionPlace};
use mlgw_formats::schema::SegmentState;
use mlgw_policies::at_rest::{InactivePins, PinCandidate, RuleSource};
use mlgw_policies::language::{ActionKind, Setting};
use mlgw_segments::decisions;
use mlgw_segments::hot::PlacingOrder;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which completion of an order is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Orders of one pass.
const ORDERS_MAX: usize = 16;
/// Segment size below which orders that create such segments are limited to [`SMALL_ORDERS_MAX`] per hour.
const SMALL_SEGMENT_BYTES: u64 = 8 << 20;
const SMALL_ORDERS_MAX: usize = 12;
const SMALL_ORDERS_PERIOD: Duration = Duration::from_hours(1);

/// Pinned objects, by bucket and key.
#[derive(Default)]
pub(super) struct PinnedNames(HashSet<(u64, Box<str>)>);

impl PolicyReconciler {
    /// Clears the effects of earlier passes: no rule applies to objects at rest, and there are no
    /// checkpoints.
    pub(super) async fn clear_effects(
        self: &Arc<Self>,
        state: &mut ReconcilerPassState,
    ) -> Result<(), PassEnd> {
        self.context.stored.tiers.hot.set_pinned(HashSet::new());
        self.context.jobs.set_rule_pins(Vec::new());
        state.own_pins.clear();
        state.copy_pins.clear();
        self.count_pins(&mut state.pinned, PinnedNames::default());
        self.context.retention.set_areas(Arc::default());
        self.context.retention.set_inactive_pins(InactivePins::default());
        self.delete_due(None, Vec::new()).await
    }

    /// Carries out the actions found. Returns true if there is more work to do immediately.
    pub(super) async fn carry_out(
        self: &Arc<Self>,
        scan: &Arc<ReconcilerScan>,
        mut result: ReconcilerScanResult,
        state: &mut ReconcilerPassState,
    ) -> Result<bool, PassEnd> {
        let scan_ref = Arc::clone(scan);
        // Evaluating deletion guards is CPU-bound; run it off the async executor.
        let expiry_task = tokio::task::spawn_blocking(move || {
            let is_over = |bucket: u64, key: &str, by: &RuleSource| scan_ref.is_over(bucket, key, by);
            let expired = result.retained.expire(&scan_ref.own, &mut result.areas, &is_over);
            (result, expired)
        });
        let (mut result, expired) = expiry_task.await.map_err(|error| PassEnd::Failed(error.to_string()))?;
        let mut is_more = result.areas != *state.areas;
        state.areas = Arc::new(std::mem::take(&mut result.areas));
        self.context.retention.set_areas(Arc::clone(&state.areas));
        let kept = self.pin(scan, &mut result, state);
        self.evict(std::mem::take(&mut result.evicted)).await?;
        self.check_current(&scan.program)?;
        is_more |= self.promote(std::mem::take(&mut result.promoting)).await?;
        self.check_current(&scan.program)?;
        is_more |= self.compress(std::mem::take(&mut result.compressing)).await?;
        for (candidates, destination) in [
            (result.spilling, SpillDestination::NextTier),
            (result.spilling_upstream, SpillDestination::Upstream),
        ] {
            self.check_current(&scan.program)?;
            is_more |= self.spill(candidates, destination, &kept, state).await?;
        }
        self.check_current(&scan.program)?;
        self.record_spacings(scan, &result.retained).await?;
        self.delete_due(Some(scan), expired).await?;
        Ok(is_more)
    }

    /// Activates the pins for which there is room. Returns the pinned segments of local buckets.
    fn pin(
        &self,
        scan: &ReconcilerScan,
        result: &mut ReconcilerScanResult,
        state: &mut ReconcilerPassState,
    ) -> HashSet<SegmentId> {
        let now_ms = scan.now.as_millis();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the value is 0 to 100")]
        let percent = scan.program.settings().size(Setting::PinMax) as u64;
        let hot_bytes = self.context.hot_capacity_bytes;
        let copies_bytes =
            self.context.stored.remote_backed.copies().map_or(0, |copies| copies.metrics().limit_bytes);
        let own = std::mem::take(&mut result.own_pins).all;
        let (own, own_roomless) = state.own_pins.choose(now_ms, own, hot_bytes / 100 * percent);
        let copies = std::mem::take(&mut result.copy_pins).all;
        let (copies, roomless) = state.copy_pins.choose(now_ms, copies, copies_bytes / 100 * percent);
        self.context.retention.count(ActionKind::Pin, RuleActionOutcome::NoRoom, own_roomless + roomless);
        self.context.retention.set_inactive_pins(state.inactive_pins(now_ms));
        let name = |one: &PinCandidate| (one.bucket, one.key.clone());
        let segments = own.iter().filter_map(|one| result.segments_of.get(&name(one))).flatten();
        let kept: HashSet<SegmentId> = segments.copied().collect();
        self.context.stored.tiers.hot.set_pinned(kept.clone());
        self.context.jobs.set_rule_pins(pinned_copies(&copies));
        self.count_pins(&mut state.pinned, PinnedNames(own.iter().chain(&copies).map(name).collect()));
        kept
    }

    fn count_pins(&self, before: &mut PinnedNames, now: PinnedNames) {
        let count = |one: &PinnedNames, other: &PinnedNames| one.0.difference(&other.0).count() as u64;
        self.context.retention.count(ActionKind::Pin, RuleActionOutcome::Done, count(&now, before));
        self.context.retention.count(ActionKind::Unpin, RuleActionOutcome::Done, count(before, &now));
        *before = now;
    }

    /// Evicts copies, except those that users have pinned meanwhile, and frees their disk space.
    async fn evict(self: &Arc<Self>, mut evicted: Vec<EvictionCandidate>) -> Result<(), PassEnd> {
        let pins = self.context.jobs.dataset_pins();
        evicted.retain(|one| !pins.iter().any(|pin| pin.includes(one.bucket, one.key.as_str())));
        let Some(copies) =
            self.context.stored.remote_backed.copies().cloned().filter(|_| !evicted.is_empty())
        else {
            return Ok(());
        };
        let (count, forgetting) = (evicted.len() as u64, copies.clone());
        let forgotten = tokio::task::spawn_blocking(move || {
            let mut sums = BTreeMap::<(BucketId, Arc<str>), (u64, u64)>::new();
            for EvictionCandidate { bucket, key, bytes, rule } in evicted {
                forgetting.forget(bucket, &key);
                let sum = sums.entry((bucket, rule)).or_default();
                *sum = (sum.0 + 1, sum.1 + bytes);
            }
            for ((bucket, rule), (count, bytes)) in sums {
                let gone = DroppedCopies { kind: DecisionKind::Evict, count, bytes };
                forgetting.record_dropped(bucket, "", gone, DecisionCause::rule(&rule));
            }
        });
        forgotten.await.map_err(|error| PassEnd::Failed(error.to_string()))?;
        copies.reclaim_dead().await;
        self.context.retention.count(ActionKind::Evict, RuleActionOutcome::Done, count);
        Ok(())
    }

    /// Promotes segments as far as there is room. Returns true if there are more of them.
    async fn promote(
        &self,
        promoting: BTreeMap<Arc<str>, std::collections::BTreeSet<SegmentId>>,
    ) -> Result<bool, PassEnd> {
        let mut is_more = false;
        for (rule, segments) in promoting.into_iter().take(ORDERS_MAX) {
            is_more |= segments.len() > MOVE_REQUEST_SEGMENTS_MAX;
            let why = DecisionCause::rule(&rule);
            let mut room = self.room_to_promote();
            let (mut fits, mut refused) = (Vec::new(), 0);
            for segment in segments.into_iter().take(MOVE_REQUEST_SEGMENTS_MAX) {
                let bytes =
                    self.context.stored.catalogue.segment(segment).map_or(0, |segment| segment.length);
                let is_allowed = self.context.stored.tiers.hot.flash().can_start_own_write();
                if is_allowed && bytes <= room {
                    room -= bytes;
                    fits.push(segment);
                    continue;
                }
                refused += 1;
                let outcome = if is_allowed {
                    decisions::DecisionOutcome::NoRoom
                } else {
                    decisions::DecisionOutcome::OverBudget
                };
                let (kind, what, to) =
                    (DecisionKind::Promote, DecisionSubject::Segment(segment), DecisionPlace::Hot);
                let from = self.place_of(segment);
                self.context.decisions.record(&PlacementDecision {
                    kind,
                    subject: what,
                    from,
                    to,
                    bytes,
                    cause: why,
                    outcome,
                });
            }
            self.context.retention.count(ActionKind::Promote, RuleActionOutcome::NoRoom, refused);
            // Without room now, there is none for an immediate next pass either.
            is_more &= refused == 0;
            if !fits.is_empty() {
                self.run_order(PlacingOrder::Promote { segments: fits.clone(), why }).await?;
                self.count_moved(ActionKind::Promote, &fits, |tier| tier == SegmentTier::Hot);
            }
        }
        Ok(is_more)
    }

    /// Returns the bytes by which the hot tier can grow without spilling.
    fn room_to_promote(&self) -> u64 {
        let (used, room) = self.context.stored.tiers.hot.fill();
        let percent = u128::from(self.context.stored.tiers.hot.placing_settings().low_percent);
        let mark = (u128::from(used) + u128::from(room)) * percent / 100;
        u64::try_from(mark).unwrap_or(u64::MAX).saturating_sub(used).min(room)
    }

    fn place_of(&self, segment: SegmentId) -> DecisionPlace {
        match self.context.stored.catalogue.segment(segment).map(|segment| segment.tier) {
            Some(SegmentTier::Upstream) => DecisionPlace::Upstream,
            Some(SegmentTier::Cold | SegmentTier::Hot) | None => DecisionPlace::Cold,
        }
    }

    /// Spills segments, or gathers objects first. Returns true if there is more work to do immediately.
    async fn spill(
        &self,
        candidates: SpillCandidates,
        destination: SpillDestination,
        kept: &HashSet<SegmentId>,
        state: &mut ReconcilerPassState,
    ) -> Result<bool, PassEnd> {
        if candidates.is_empty() {
            return Ok(false);
        }
        let look = |segment: SegmentId| {
            let now = self.context.stored.catalogue.segment(segment)?;
            let usage = self.context.stored.catalogue.segment_usage(segment).ok()?;
            Some(SegmentSnapshot {
                is_hot: now.tier == SegmentTier::Hot,
                is_open: now.state == SegmentState::Open,
                is_pinned: kept.contains(&segment),
                live_bytes: usage.bytes,
            })
        };
        let mut is_more = false;
        for SegmentOrder { order, segments, small_bytes: loose_bytes } in
            candidates.orders(destination, look).into_iter().take(ORDERS_MAX)
        {
            if loose_bytes.is_some_and(|bytes| bytes < SMALL_SEGMENT_BYTES) && !take_small_order(state) {
                continue;
            }
            let is_spill = matches!(order, PlacingOrder::Spill { .. });
            self.run_order(order).await?;
            if is_spill {
                self.count_moved(ActionKind::Spill, &segments, |tier| tier != SegmentTier::Hot);
            } else {
                is_more = true;
            }
            is_more |= segments.len() == MOVE_REQUEST_SEGMENTS_MAX;
        }
        Ok(is_more)
    }

    async fn run_order(&self, order: PlacingOrder) -> Result<(), PassEnd> {
        let until = self.context.stored.tiers.hot.order(order);
        while self.context.stored.tiers.hot.placing().orders_done < until {
            tokio::select! {
                () = mlgw_common::time::sleep(POLL_INTERVAL) => {}
                () = self.stop.cancelled() => return Err(PassEnd::Stopping),
            }
        }
        Ok(())
    }

    fn count_moved(
        &self,
        action: ActionKind,
        segments: &[SegmentId],
        is_there: impl Fn(SegmentTier) -> bool,
    ) {
        // A missing segment was emptied meanwhile: its live data is in the hot tier.
        let tier =
            |segment: &SegmentId| self.context.stored.catalogue.segment(*segment).map(|segment| segment.tier);
        let moved = segments.iter().filter(|segment| tier(segment).is_none_or(&is_there)).count();
        self.context.retention.count(action, RuleActionOutcome::Done, moved as u64);
        self.context.retention.count(action, RuleActionOutcome::Failed, (segments.len() - moved) as u64);
    }
}

/// Returns true if one more order may create small segments, and counts it.
fn take_small_order(state: &mut ReconcilerPassState) -> bool {
    while state.small_orders.front().is_some_and(|at| at.elapsed() > SMALL_ORDERS_PERIOD) {
        state.small_orders.pop_front();
    }
    let is_free = state.small_orders.len() < SMALL_ORDERS_MAX;
    if is_free {
        state.small_orders.push_back(Instant::now());
    }
    assert!(state.small_orders.len() <= SMALL_ORDERS_MAX, "orders that create small segments are limited");
    is_free
}

fn pinned_copies(chosen: &[PinCandidate]) -> Vec<PinnedCopies> {
    let mut buckets = BTreeMap::<u64, (HashSet<String>, u64)>::new();
    for one in chosen {
        let (keys, bytes) = buckets.entry(one.bucket).or_default();
        keys.insert(one.key.to_string());
        *bytes += one.bytes;
    }
    let pin = |(bucket, (keys, bytes_max))| PinnedCopies {
        bucket: BucketId(bucket),
        prefixes: Vec::new(),
        keys: Some(Arc::new(keys)),
        bytes_max,
    };
    buckets.into_iter().map(pin).collect()
}
