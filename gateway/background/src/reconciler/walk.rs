//! Scan over all objects: evaluates rules on each of them, a page at a time on a blocking thread.

use super::Acting;
use super::compressing::{Loose, is_loose};
use super::found::{Evicted, Found, candidate};
use super::groups::{
    Finding, InCheckpoint, Member, checkpoint_keep, moment_of, own_buckets, pin_newest, put_right,
};
use crate::stored_objects::{Behind, Looked};
use mlgw_common::{SegmentId, Timestamp};
use mlgw_metadata::ReadError;
use mlgw_policies::asked_at_rest;
use mlgw_policies::at_rest::{
    Area, Areas, By, Claim, Compress, Deeds, Move, Scope, Unheld, claims_of, is_unheld,
};
use mlgw_policies::checkpoints::Checkpoints;
use mlgw_policies::engine::Unread;
use mlgw_policies::language::{Facts, Program, Property, Target, Wish, resolve};
use mlgw_policy_runtime::SystemFacts;
use mlgw_policy_runtime::facts::{KnownObject, ObjectFacts, dataset_of};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Objects of one page.
const PAGE: usize = 500;
/// Files passed to the engine at a time.
const TOLD_AT_ONCE: usize = 64;
/// Pause after a page as a multiple of its duration: a scan takes at most a tenth of a core.
const REST: u32 = 9;
/// Maximum number of blocks of an object that are looked up in access plans.
const PLANNED_BLOCKS_MAX: u32 = 1024;

/// Reason why a scan ended early.
pub(super) enum Ended {
    /// The server stops.
    Stopping,
    /// The evaluated policy is no longer the running one.
    Changed,
    /// The catalogue cannot be read, or a thread panicked.
    Failed(String),
}

impl From<ReadError> for Ended {
    fn from(error: ReadError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Context of a whole scan.
pub(super) struct Walk {
    pub(super) acting: Arc<Acting>,
    pub(super) program: Arc<Program>,
    pub(super) scope: Scope,
    pub(super) now: Timestamp,
    pub(super) own: Checkpoints,
    /// Rule matches on areas of the last pass.
    pub(super) before: Arc<Areas>,
    /// Inactive pins.
    unheld: Unheld,
    system: SystemFacts,
    /// Properties of access tracking that rules depend on.
    asked: Vec<Property>,
}

impl Acting {
    /// Calls `each` with all objects, page by page with pauses in between, while `program` is the running
    /// one. The accumulator `sum` is passed along.
    async fn pages<T: Send + 'static>(
        self: &Arc<Self>,
        program: &Arc<Program>,
        mut sum: T,
        each: impl Fn(&mut T, Looked<'_>) -> Result<(), ReadError> + Send + Sync + 'static,
    ) -> Result<T, Ended> {
        let (each, mut from) = (Arc::new(each), None::<Behind>);
        loop {
            let (acting, each, begun) = (Arc::clone(self), Arc::clone(&each), Instant::now());
            let page = tokio::task::spawn_blocking(move || {
                let next = acting
                    .context
                    .stored
                    .each_object(from.as_ref(), PAGE, &mut |looked| each(&mut sum, looked));
                next.map(|next| (sum, next))
            });
            let (collected, next) = page.await.map_err(|error| Ended::Failed(error.to_string()))??;
            self.goes_on(program)?;
            let Some(next) = next else { return Ok(collected) };
            (sum, from) = (collected, Some(next));
            tokio::select! {
                () = tokio::time::sleep(begun.elapsed() * REST) => {}
                () = self.stop.cancelled() => return Err(Ended::Stopping),
            }
        }
    }

    /// Returns an error if the evaluated policy is no longer the running one, so that no action is started
    /// that the running one would reverse.
    pub(super) fn goes_on(&self, program: &Arc<Program>) -> Result<(), Ended> {
        let runs = Arc::ptr_eq(&self.context.policies.running().program, program);
        runs.then_some(()).ok_or(Ended::Changed)
    }

    /// Finds the checkpoints of own buckets, and passes files to the engine that it has not observed.
    pub(super) async fn find_checkpoints(
        self: &Arc<Self>,
        program: &Arc<Program>,
    ) -> Result<Checkpoints, Ended> {
        let begun = self.context.clock.now();
        let began_ms = i64::try_from(self.context.keeper.began_ms()).unwrap_or(i64::MAX);
        let began_us = self.context.keeper.ask(|_, now_us| now_us);
        let acting = Arc::clone(self);
        let begin = (Finding::new(), Vec::new());
        let (finding, unheard) = self
            .pages(program, begin, move |(finding, unheard), looked| {
                let Looked { bucket, key, object, .. } = looked;
                let is_own = bucket.binding.is_none();
                let is_file = if is_own {
                    finding.look(bucket.id, key.as_str(), moment_of(object), object.size)
                } else {
                    Checkpoints::may_have(key.as_str())
                };
                if is_file {
                    let at_us = u64::try_from(object.modified_ms - began_ms).unwrap_or(0) * 1000;
                    unheard.push((at_us, bucket.id, key.clone(), object.size));
                }
                if unheard.len() >= TOLD_AT_ONCE {
                    acting.tell(unheard);
                }
                Ok(())
            })
            .await?;
        self.tell(&mut { unheard });
        // A checkpoint visited early may be written to while others are visited. Only those that were quiet
        // at the start of the scan count as quiet.
        let mut own = finding.end(begun.as_millis());
        let spacings = self.context.standing.spacings();
        own.recall(&spacings);
        let buckets = self.context.stored.catalogue.buckets(None, None, usize::MAX);
        let ours = own_buckets(buckets.iter().map(|bucket| &**bucket));
        self.context.keeper.ask(|decider, now_us| {
            put_right(&mut decider.checkpoints, &own, &ours, began_us);
            decider.checkpoints.recall(&spacings);
            // Without requests, nothing else advances the tracker's clock.
            decider.checkpoints.pass(now_us);
        });
        Ok(own)
    }

    fn tell(&self, unheard: &mut Vec<(u64, u64, mlgw_common::ObjectKey, u64)>) {
        self.context.keeper.ask(|decider, now_us| {
            for (at_us, bucket, key, bytes) in unheard.drain(..) {
                decider.checkpoints.found(at_us.min(now_us), bucket, key.as_str(), bytes);
            }
        });
    }

    /// Scans all objects. Returns the actions to carry out.
    pub(super) async fn find(
        self: &Arc<Self>,
        program: Arc<Program>,
        own: Checkpoints,
        (before, unheld): (Arc<Areas>, Unheld),
    ) -> Result<(Arc<Walk>, Found), Ended> {
        let keep = checkpoint_keep(&program);
        let mut found = Found::default();
        pin_newest(&own, keep, |_| true, &mut found.areas);
        let buckets = self.context.stored.catalogue.buckets(None, None, usize::MAX);
        let ours = own_buckets(buckets.iter().map(|bucket| &**bucket));
        self.context.keeper.ask(|decider, _| {
            pin_newest(&decider.checkpoints, keep, |bucket| !ours.contains(&bucket), &mut found.areas);
        });
        let walk = Arc::new(Walk {
            acting: Arc::clone(self),
            scope: Scope::of(&program),
            asked: asked_at_rest(&program),
            program,
            now: self.context.clock.now(),
            own,
            before,
            unheld,
            system: self.context.policies.system(),
        });
        let looks = Arc::clone(&walk);
        let found = self.pages(&walk.program, found, move |found, looked| looks.look(found, looked)).await?;
        Ok((walk, found))
    }
}

/// Rule matches on one object, and two facts used for them.
struct Said {
    claims: Vec<Claim>,
    dataset: Option<String>,
    /// Time since the last read.
    idle: Duration,
}

impl Walk {
    /// Visits one object.
    fn look(&self, found: &mut Found, looked: Looked<'_>) -> Result<(), ReadError> {
        let (bucket, key) = (looked.bucket, looked.key.as_str());
        let is_own = bucket.binding.is_none();
        if !self.scope.objects && !self.is_of_checkpoint(bucket.id, key, is_own) {
            return Ok(());
        }
        let known = self.acting.context.stored.known(bucket, looked.key, looked.object)?;
        let said = self.ask(found, &looked, &known);
        let ofs = [&*self.before, &found.areas];
        let wide = ofs.into_iter().flat_map(|areas| areas.of(bucket.id, key, said.dataset.as_deref()));
        let wide = wide.map(|(_, claim)| claim);
        let is_unheld = |by: &By| self.unheld.contains(bucket.id, key, &by.rule);
        let deeds = Deeds::of(said.claims.iter().chain(wide), said.idle, is_unheld);
        match (deeds.is_nothing(), is_own) {
            (true, _) => Ok(()),
            (false, true) => self.note_own(found, &looked, deeds),
            (false, false) => {
                self.note_copies(found, &looked, deeds);
                Ok(())
            }
        }
    }

    /// Returns true if the time of a rule's pin on an object is over.
    pub(super) fn is_over(&self, bucket: u64, key: &str, by: &By) -> bool {
        self.unheld.is_over(bucket, key, &by.rule)
    }

    fn is_of_checkpoint(&self, bucket: u64, key: &str, is_own: bool) -> bool {
        if is_own {
            return self.own.group_of(bucket, key).is_some();
        }
        Checkpoints::may_have(key)
    }

    /// Evaluates the rules on an object. Matches on areas are added to `found`.
    fn ask(&self, found: &mut Found, looked: &Looked<'_>, known: &KnownObject) -> Said {
        let (bucket, key) = (looked.bucket.id, looked.key.as_str());
        let unread = Unread { bucket, key, size: known.size, number: 0 };
        let is_own = looked.bucket.binding.is_none();
        let (taken, heard) = self.acting.context.keeper.ask(|decider, now_us| {
            let heard = if is_own { None } else { decider.checkpoints.group_of(bucket, key) };
            (decider.facts_of(now_us, &unread, &self.asked), heard.map(|one| one.prefix.to_owned()))
        });
        let of_own = if is_own { self.own.group_of(bucket, key) } else { None };
        let of_own = of_own.as_ref().map(Member::from);
        let prefix = of_own.as_ref().map(|one| one.prefix.as_str()).or(heard.as_deref());
        let access = taken.tell();
        let dataset = dataset_of(&access);
        let idle = known.idle(looked.read, &access, self.now);
        let mut rest = ObjectFacts::new(&self.program, known, &self.system, self.now);
        rest.access = Some(&access);
        let facts: &dyn Facts = match is_own {
            true => &InCheckpoint { standing: self.own.standing(bucket, key), rest: &rest },
            false => &rest,
        };
        if let (Some(one), Some(dataset)) = (&of_own, &dataset) {
            found.retained.hear_dataset(one, dataset);
        }
        // An inactive pin does not override weaker actions; its rule match is still recorded.
        let (unheld, due): (Vec<_>, Vec<_>) =
            self.program.due(facts).partition(|due| is_unheld(&self.unheld, bucket, key, due));
        let resolved = resolve(due.into_iter());
        let mut claims = Vec::new();
        for (target, claim) in claims_of(&self.program, unheld.iter()) {
            // A pin that merely lacks room still guards against deletion.
            if let Some(one) = of_own.as_ref().filter(|_| !self.is_over(bucket, key, &claim.by)) {
                found.retained.hear(&self.program, (one, known), (target, &claim));
            }
            claims.push(claim);
        }
        for (target, claim) in claims_of(&self.program, resolved.done.iter()) {
            if let Some(one) = &of_own {
                found.retained.hear(&self.program, (one, known), (target, &claim));
            }
            if matches!(claim.wish, Wish::Retain(_)) {
                continue;
            }
            if let Some(area) = Area::of(target, bucket, dataset.as_deref(), prefix) {
                found.areas.add(area, claim.clone());
            }
            // A match without a known area applies to the object itself. A prefix names its scope itself.
            if !matches!(target, Target::Prefix(_)) {
                claims.push(claim);
            }
        }
        Said { claims, dataset, idle }
    }

    fn note_own(&self, found: &mut Found, looked: &Looked<'_>, deeds: Deeds) -> Result<(), ReadError> {
        let (bucket, body) = (looked.bucket.bucket_id(), looked.object.body());
        let tier = |segment: &SegmentId| {
            self.acting.context.stored.catalogue.segment(*segment).map_or(HOT, |segment| segment.tier)
        };
        let mut segments = BTreeMap::<SegmentId, u64>::new();
        let mut has_loose = false;
        self.acting.context.stored.each_extent(bucket, looked.key, looked.object, &mut |extent, _| {
            let segment = extent.segment_id();
            has_loose |= deeds.compress.is_some() && is_loose(extent, tier(&segment));
            *segments.entry(segment).or_default() += extent.record_bytes();
        })?;
        for (pin, holds) in deeds.pins() {
            let one = candidate(looked.bucket.id, looked.key.as_str(), looked.object.size, pin.clone());
            found.pin_own(one, segments.keys().copied().collect(), holds);
        }
        let waits = has_loose && deeds.compress.is_some_and(|deed| self.note_loose(found, looked, deed));
        match deeds.tier {
            // It is spilled after its compression.
            Some(Move::Down { .. }) if waits => {}
            Some(Move::Up(by)) => {
                let below: Vec<_> = segments.keys().filter(|segment| tier(segment) != HOT).copied().collect();
                if !below.is_empty() {
                    found.raise(&by.rule, below.into_iter());
                }
            }
            Some(Move::Down { by, upstream }) => {
                let (has_cold, has_upstream) = self.acting.context.stored.tiers.hot.has_below();
                let is_far = upstream && has_upstream;
                let goes = |segment: &SegmentId| match tier(segment) {
                    HOT => has_cold || has_upstream,
                    COLD => is_far,
                    _ => false,
                };
                let falling = if is_far { &mut found.falling_far } else { &mut found.falling };
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
    fn note_loose(&self, found: &mut Found, looked: &Looked<'_>, deed: Compress) -> bool {
        let (bucket, body) = (looked.bucket.bucket_id(), looked.object.body());
        let is_free =
            self.acting.context.stored.tiers.hot.flash().allows() && !self.acting.tried.lock().contains(body);
        is_free && found.compress(Loose { bucket, key: looked.key.clone(), body, deed })
    }

    fn note_copies(&self, found: &mut Found, looked: &Looked<'_>, deeds: Deeds) {
        let Some(copies) = self.acting.context.stored.bound.copies() else { return };
        let (bucket, key) = (looked.bucket.bucket_id(), looked.key.as_str());
        let bytes = copies.kept_bytes(looked.object);
        if bytes == 0 {
            return;
        }
        for (pin, holds) in deeds.pins() {
            found.copy_pins.add(candidate(bucket.0, key, bytes, pin.clone()), holds);
        }
        if let Some(by) = deeds.evict {
            let unread = Unread { bucket: bucket.0, key, size: looked.object.size, number: 0 };
            let keeper = &self.acting.context.keeper;
            let is_planned =
                || keeper.ask(|decider, _| decider.kept_of(&unread, PLANNED_BLOCKS_MAX).planned > 0);
            // Access plans take precedence over rules. Pins by users do so, too, and are checked at the
            // eviction.
            if !is_planned() {
                found.evict(Evicted { bucket, key: looked.key.clone(), bytes, rule: by.rule });
            }
        }
    }
}

/// Numbers of the tiers.
pub(super) const HOT: u32 = 0;
const COLD: u32 = 1;
