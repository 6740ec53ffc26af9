//! Scan over all objects: evaluates rules on each of them, a page at a time on a blocking thread.

use super::PolicyReconciler;
use super::compressing::{CompressionCandidate, is_compressible};
use super::groups::{
    CheckpointScan, ContainingCheckpoint, FactsWithCheckpoint, checkpoint_keep, local_buckets, moment_of,
    pin_newest, remove_missing,
};
use super::pass_end::PassEnd;
use super::scan_result::{EvictionCandidate, PinState, ReconcilerScanResult, pin_candidate};
use crate::stored_objects::{ScanPosition, VisitedObject};
use mlgw_common::time::Instant;
use mlgw_common::{Clock as _, SegmentId, SegmentTier, Timestamp};
use mlgw_formats::schema::Bucket;
use mlgw_metadata::ReadError;
use mlgw_policies::at_rest::{
    AreaRuleMatches, CompressAction, InactivePins, MoveAction, PinAction, ProgramScope, ResolvedActions,
    RuleArea, RuleMatch, RuleSource, is_inactive_pin, rule_matches,
};
use mlgw_policies::checkpoints::CheckpointIndex;
use mlgw_policies::engine::UnreadBlock;
use mlgw_policies::language::{ActionRequest, Facts, Program, Property, Target, resolve};
use mlgw_policies::properties_used_at_rest;
use mlgw_policy_runtime::SystemFacts;
use mlgw_policy_runtime::facts::{KnownObject, ObjectFacts, dataset_of};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Objects of one page.
const PAGE: usize = 500;
/// Files passed to the engine at a time.
const FILES_PER_BATCH: usize = 64;
/// Pause after a page as a multiple of its duration: a scan takes at most a tenth of a core.
const REST: u32 = 9;
/// Maximum number of blocks of an object that are looked up in access plans.
const PLANNED_BLOCKS_MAX: u32 = 1024;

/// Context of a whole scan.
pub(super) struct ReconcilerScan {
    pub(super) reconciler: Arc<PolicyReconciler>,
    pub(super) program: Arc<Program>,
    pub(super) scope: ProgramScope,
    pub(super) now: Timestamp,
    pub(super) own: CheckpointIndex,
    /// Rule matches on areas of the last pass.
    pub(super) before: Arc<AreaRuleMatches>,
    /// Inactive pins.
    inactive_pins: InactivePins,
    system: SystemFacts,
    /// Properties of access tracking that rules depend on.
    properties: Vec<Property>,
}

impl PolicyReconciler {
    /// Calls `each` with all objects, page by page with pauses in between, while `program` is the running
    /// one. The accumulator `sum` is passed along.
    async fn for_each_page<T: Send + 'static>(
        self: &Arc<Self>,
        program: &Arc<Program>,
        mut sum: T,
        each: impl Fn(&mut T, VisitedObject<'_>) -> Result<(), ReadError> + Send + Sync + 'static,
    ) -> Result<T, PassEnd> {
        let (each, mut from) = (Arc::new(each), None::<ScanPosition>);
        loop {
            let (acting, each, begun) = (Arc::clone(self), Arc::clone(&each), Instant::now());
            let page = tokio::task::spawn_blocking(move || {
                let next = acting
                    .context
                    .stored
                    .each_object(from.as_ref(), PAGE, &mut |looked| each(&mut sum, looked));
                next.map(|next| (sum, next))
            });
            let (collected, next) = page.await.map_err(|error| PassEnd::Failed(error.to_string()))??;
            self.check_current(program)?;
            let Some(next) = next else { return Ok(collected) };
            (sum, from) = (collected, Some(next));
            tokio::select! {
                () = mlgw_common::time::sleep(begun.elapsed() * REST) => {}
                () = self.stop.cancelled() => return Err(PassEnd::Stopping),
            }
        }
    }

    /// Returns an error if the evaluated policy is no longer the running one, so that no action is started
    /// that the running one would reverse, or if the clock may have been wrong when it was evaluated.
    pub(super) fn check_current(&self, program: &Arc<Program>) -> Result<(), PassEnd> {
        if !self.context.clock.is_confirmed() {
            return Err(PassEnd::ClockUnconfirmed);
        }
        let runs = Arc::ptr_eq(&self.context.policies.running().program, program);
        runs.then_some(()).ok_or(PassEnd::Changed)
    }

    /// Finds the checkpoints of local buckets, and passes files to the engine that it has not observed.
    pub(super) async fn find_checkpoints(
        self: &Arc<Self>,
        program: &Arc<Program>,
    ) -> Result<CheckpointIndex, PassEnd> {
        let begun = self.context.clock.now();
        let began_ms = i64::try_from(self.context.policy_driver.began_ms()).unwrap_or(i64::MAX);
        let began_us = self.context.policy_driver.with_engine(|_, now_us| now_us);
        let acting = Arc::clone(self);
        let begin = (CheckpointScan::new(), Vec::new());
        let (finding, unheard) = self
            .for_each_page(program, begin, move |(finding, unheard), looked| {
                let VisitedObject { bucket, key, object, .. } = looked;
                let is_local = bucket.binding.is_none();
                let is_file = if is_local {
                    finding.visit(bucket.id, key.as_str(), moment_of(object), object.size)
                } else {
                    CheckpointIndex::is_relevant(key.as_str())
                };
                if is_file {
                    let at_us = u64::try_from(object.modified_ms - began_ms).unwrap_or(0) * 1000;
                    unheard.push((at_us, bucket.id, key.clone(), object.size));
                }
                if unheard.len() >= FILES_PER_BATCH {
                    acting.pass_files(unheard);
                }
                Ok(())
            })
            .await?;
        self.pass_files(&mut { unheard });
        // A checkpoint visited early may be written to while others are visited. Only those that were quiet
        // at the start of the scan count as quiet.
        let mut own = finding.finish(begun.as_millis());
        let spacings = self.context.retention.spacings();
        own.restore_spacings(&spacings);
        let buckets = self.context.stored.catalogue.buckets(None, None, usize::MAX);
        let ours = local_buckets(buckets.iter().map(|bucket| &**bucket));
        self.context.policy_driver.with_engine(|decider, now_us| {
            remove_missing(&mut decider.checkpoints, &own, &ours, began_us);
            decider.checkpoints.restore_spacings(&spacings);
            // Without requests, nothing else advances the tracker's clock.
            decider.checkpoints.tick(now_us);
        });
        Ok(own)
    }

    fn pass_files(&self, unheard: &mut Vec<(u64, u64, mlgw_common::ObjectKey, u64)>) {
        self.context.policy_driver.with_engine(|decider, now_us| {
            for (at_us, bucket, key, bytes) in unheard.drain(..) {
                decider.checkpoints.record_if_unknown(at_us.min(now_us), bucket, key.as_str(), bytes);
            }
        });
    }

    /// Scans all objects. Returns the actions to carry out.
    pub(super) async fn scan_objects(
        self: &Arc<Self>,
        program: Arc<Program>,
        own: CheckpointIndex,
        before: Arc<AreaRuleMatches>,
        inactive_pins: InactivePins,
    ) -> Result<(Arc<ReconcilerScan>, ReconcilerScanResult), PassEnd> {
        let keep = checkpoint_keep(&program);
        let mut found = ReconcilerScanResult::default();
        pin_newest(&own, keep, |_| true, &mut found.areas);
        let buckets = self.context.stored.catalogue.buckets(None, None, usize::MAX);
        let ours = local_buckets(buckets.iter().map(|bucket| &**bucket));
        self.context.policy_driver.with_engine(|decider, _| {
            pin_newest(&decider.checkpoints, keep, |bucket| !ours.contains(&bucket), &mut found.areas);
        });
        let walk = Arc::new(ReconcilerScan {
            reconciler: Arc::clone(self),
            scope: ProgramScope::of(&program),
            properties: properties_used_at_rest(&program),
            program,
            now: self.context.clock.now(),
            own,
            before,
            inactive_pins,
            system: self.context.policies.system(),
        });
        let looks = Arc::clone(&walk);
        let found =
            self.for_each_page(&walk.program, found, move |found, looked| looks.visit(found, looked)).await?;
        Ok((walk, found))
    }
}

/// Rule matches on one object, and two facts used for them.
struct ObjectMatches {
    claims: Vec<RuleMatch>,
    dataset: Option<String>,
    /// Time since the last read.
    idle: Duration,
}

/// Returns the pins of an object.
fn pins_of(resolved: &ResolvedActions) -> impl Iterator<Item = (&PinAction, PinState)> {
    let state = |is_active| if is_active { PinState::Active } else { PinState::Inactive };
    resolved.pins().map(move |(pin, is_active)| (pin, state(is_active)))
}

impl ReconcilerScan {
    /// Visits one object.
    fn visit(&self, found: &mut ReconcilerScanResult, looked: VisitedObject<'_>) -> Result<(), ReadError> {
        let (bucket, key) = (looked.bucket, looked.key.as_str());
        let is_local = bucket.binding.is_none();
        if !self.scope.objects && !self.is_of_checkpoint(bucket, key) {
            return Ok(());
        }
        let known = self.reconciler.context.stored.object_facts(bucket, looked.key, looked.object)?;
        let matches = self.evaluate(found, &looked, &known);
        let ofs = [&*self.before, &found.areas];
        let wide = ofs.into_iter().flat_map(|areas| areas.of(bucket.id, key, matches.dataset.as_deref()));
        let wide = wide.map(|(_, claim)| claim);
        let is_unheld = |by: &RuleSource| self.inactive_pins.contains(bucket.id, key, &by.rule);
        let resolved = ResolvedActions::of(matches.claims.iter().chain(wide), matches.idle, is_unheld);
        match (resolved.is_nothing(), is_local) {
            (true, _) => Ok(()),
            (false, true) => self.add_own(found, &looked, resolved),
            (false, false) => {
                self.add_copies(found, &looked, resolved);
                Ok(())
            }
        }
    }

    /// Returns true if the time of a rule's pin on an object is over.
    pub(super) fn is_over(&self, bucket: u64, key: &str, by: &RuleSource) -> bool {
        self.inactive_pins.is_expired(bucket, key, &by.rule)
    }

    fn is_of_checkpoint(&self, bucket: &Bucket, key: &str) -> bool {
        match bucket.binding {
            None => self.own.group_of(bucket.id, key).is_some(),
            Some(_) => CheckpointIndex::is_relevant(key),
        }
    }

    /// Evaluates the rules on an object. Matches on areas are added to `found`.
    fn evaluate(
        &self,
        found: &mut ReconcilerScanResult,
        looked: &VisitedObject<'_>,
        known: &KnownObject,
    ) -> ObjectMatches {
        let (bucket, key) = (looked.bucket.id, looked.key.as_str());
        let unread = UnreadBlock { bucket, key, size: known.size, number: 0 };
        let is_local = looked.bucket.binding.is_none();
        let (taken, tracked) = self.reconciler.context.policy_driver.with_engine(|decider, now_us| {
            let observed = if is_local { None } else { decider.checkpoints.group_of(bucket, key) };
            (decider.facts_of(now_us, &unread, &self.properties), observed.map(|one| one.prefix.to_owned()))
        });
        let of_own = if is_local { self.own.group_of(bucket, key) } else { None };
        let of_own = of_own.as_ref().map(ContainingCheckpoint::from);
        let prefix = of_own.as_ref().map(|one| one.prefix.as_str()).or(tracked.as_deref());
        let access = taken.view();
        let dataset = dataset_of(&access);
        let idle = known.idle(looked.read, &access, self.now);
        let mut rest = ObjectFacts::new(&self.program, known, &self.system, self.now);
        rest.access = Some(&access);
        let facts: &dyn Facts = match is_local {
            true => &FactsWithCheckpoint { checkpoint_facts: self.own.key_facts(bucket, key), rest: &rest },
            false => &rest,
        };
        if let (Some(one), Some(dataset)) = (&of_own, &dataset) {
            found.retained.add_dataset(one, dataset);
        }
        // An inactive pin does not override weaker actions; its rule match is still recorded.
        let (unheld, due): (Vec<_>, Vec<_>) =
            self.program.due(facts).partition(|due| is_inactive_pin(&self.inactive_pins, bucket, key, due));
        let resolved = resolve(due.into_iter());
        let mut claims = Vec::new();
        for (target, claim) in rule_matches(&self.program, unheld.iter()) {
            // A pin that merely lacks room still guards against deletion.
            if let Some(one) = of_own.as_ref().filter(|_| !self.is_over(bucket, key, &claim.by)) {
                found.retained.add_match(&self.program, one, known, target, &claim);
            }
            claims.push(claim);
        }
        for (target, claim) in rule_matches(&self.program, resolved.done.iter()) {
            if let Some(one) = &of_own {
                found.retained.add_match(&self.program, one, known, target, &claim);
            }
            if matches!(claim.request, ActionRequest::Retain(_)) {
                continue;
            }
            if let Some(area) = RuleArea::of(target, bucket, dataset.as_deref(), prefix) {
                found.areas.add(area, claim.clone());
            }
            // A match without a known area applies to the object itself. A prefix names its scope itself.
            if !matches!(target, Target::Prefix(_)) {
                claims.push(claim);
            }
        }
        ObjectMatches { claims, dataset, idle }
    }

    fn add_own(
        &self,
        found: &mut ReconcilerScanResult,
        looked: &VisitedObject<'_>,
        resolved: ResolvedActions,
    ) -> Result<(), ReadError> {
        let (bucket, body) = (looked.bucket.bucket_id(), looked.object.body());
        let tier = |segment: &SegmentId| {
            self.reconciler
                .context
                .stored
                .catalogue
                .segment(*segment)
                .map_or(SegmentTier::Hot, |segment| segment.tier)
        };
        let mut segments = BTreeMap::<SegmentId, u64>::new();
        let mut has_loose = false;
        self.reconciler.context.stored.each_extent(bucket, looked.key, looked.object, &mut |extent, _| {
            let segment = extent.segment_id();
            has_loose |= resolved.compress.is_some() && is_compressible(extent, tier(&segment));
            *segments.entry(segment).or_default() += extent.record_bytes();
        })?;
        for (pin, state) in pins_of(&resolved) {
            let one = pin_candidate(looked.bucket.id, looked.key.as_str(), looked.object.size, pin.clone());
            found.pin_own(one, segments.keys().copied().collect(), state);
        }
        let waits =
            has_loose && resolved.compress.is_some_and(|deed| self.add_compression(found, looked, deed));
        match resolved.tier {
            // It is spilled after its compression.
            Some(MoveAction::Spill { .. }) if waits => {}
            Some(MoveAction::Promote(by)) => {
                let below: Vec<_> =
                    segments.keys().filter(|segment| tier(segment) != SegmentTier::Hot).copied().collect();
                if !below.is_empty() {
                    found.promote(&by.rule, below.into_iter());
                }
            }
            Some(MoveAction::Spill { by, upstream }) => {
                let (has_cold, has_upstream) = self.reconciler.context.stored.tiers.hot.lower_tiers();
                let to_upstream = upstream && has_upstream;
                let goes = |segment: &SegmentId| match tier(segment) {
                    SegmentTier::Hot => has_cold || has_upstream,
                    SegmentTier::Cold => to_upstream,
                    SegmentTier::Upstream => false,
                };
                let falling = if to_upstream { &mut found.spilling_upstream } else { &mut found.spilling };
                let parts = segments.iter().filter(|(segment, _)| goes(segment));
                for (segment, bytes) in parts.take_while(|_| !falling.is_full()).collect::<Vec<_>>() {
                    falling.add(body, *segment, *bytes, &by.rule);
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Adds an object to compress, unless that was tried before or the flash budget is exhausted. Returns
    /// true if the object was added.
    fn add_compression(
        &self,
        found: &mut ReconcilerScanResult,
        looked: &VisitedObject<'_>,
        deed: CompressAction,
    ) -> bool {
        let (bucket, body) = (looked.bucket.bucket_id(), looked.object.body());
        let is_free = self.reconciler.context.stored.tiers.hot.flash().can_start_own_write()
            && !self.reconciler.compression_memory.lock().contains(body);
        is_free
            && found.compress(CompressionCandidate { bucket, key: looked.key.clone(), body, action: deed })
    }

    fn add_copies(
        &self,
        found: &mut ReconcilerScanResult,
        looked: &VisitedObject<'_>,
        resolved: ResolvedActions,
    ) {
        let Some(copies) = self.reconciler.context.stored.remote_backed.copies() else { return };
        let (bucket, key) = (looked.bucket.bucket_id(), looked.key.as_str());
        let bytes = copies.kept_bytes(looked.object);
        if bytes == 0 {
            return;
        }
        for (pin, state) in pins_of(&resolved) {
            found.copy_pins.add(pin_candidate(bucket.0, key, bytes, pin.clone()), state);
        }
        if let Some(by) = resolved.evict {
            let unread = UnreadBlock { bucket: bucket.0, key, size: looked.object.size, number: 0 };
            let policy_driver = &self.reconciler.context.policy_driver;
            let is_planned = || {
                policy_driver
                    .with_engine(|decider, _| decider.kept_blocks(&unread, PLANNED_BLOCKS_MAX).planned > 0)
            };
            // Access plans take precedence over rules. Pins by users do so, too, and are checked at the
            // eviction.
            if !is_planned() {
                found.evict(EvictionCandidate { bucket, key: looked.key.clone(), bytes, rule: by.rule });
            }
        }
    }
}
