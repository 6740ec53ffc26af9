//! `/v1/policy/plan`: dry runs of other policy files on stored objects, some thousands of objects per
//! request.
//!
//! The server keeps the state of a dry run between requests ([`PolicyPlans`]): rules that apply to a whole
//! dataset, checkpoint or prefix must be evaluated on all objects before the first object is compared.
//! Nothing is changed. A client whose dry run was dropped starts it again.

use super::change::parse;
use super::policy::{checked_files, policy_refusal};
use super::words::rule_stance;
use super::{Admin, ApiError};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use mlgw_api::{
    ExpiredCheckpointInfo, PendingDeletionInfo, PlanExample, PlanPage, PlanRequest, PlannedActionInfo,
    PlannedChange, PlannedSettingInfo, UndeterminedRule,
};
use mlgw_background::policy_plan::{AffectedObjects, LowerTiers, PlannedAction, PolicyDryRun, Subject};
use mlgw_background::reconciler::groups::{
    CheckpointExpiry, CheckpointScan, ContainingCheckpoint, local_buckets, moment_of,
};
use mlgw_background::reconciler::references::{
    EndangeredCheckpoints, ReferencedCheckpoints, find_references,
};
use mlgw_background::stored_objects::{ScanPosition, VisitedObject};
use mlgw_common::Timestamp;
use mlgw_common::limits::{PLAN_OBJECTS_MAX, PLANS_MAX};
use mlgw_common::time::Instant;
use mlgw_metadata::ReadError;
use mlgw_policies::at_rest::{PendingDeletion, deleting_rules};
use mlgw_policies::checkpoints::{CheckpointIndex, DeletionGuard, Generation, GroupId, Limits};
use mlgw_policies::engine::UnreadBlock;
use mlgw_policies::language::{ActionKind, Facts, Program, Property};
use mlgw_policy_runtime::PolicyError;
use mlgw_policy_runtime::SystemFacts;
use mlgw_policy_runtime::changes::{SettingChanged, settings_changed};
use mlgw_wire::error::S3Error;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Time without a request after which a dry run is dropped.
const IDLE_MAX: Duration = Duration::from_mins(10);

/// Dry runs in progress: at most [`PLANS_MAX`], the oldest is dropped for a new one.
#[derive(Default)]
pub struct PolicyPlans(Mutex<DryRunTable>);

#[derive(Default)]
struct DryRunTable {
    last: u64,
    runs: VecDeque<(u64, Instant, Arc<Mutex<DryRunProgress>>)>,
}

/// A dry run and its progress.
struct DryRunProgress {
    plan: PolicyDryRun,
    version: u64,
    /// Scan for the checkpoints of local buckets, which is the first pass; `None` once complete. Checkpoints
    /// are found in the catalogue, exactly as a pass of the reconciler finds them: deletions are based on
    /// nothing else.
    checkpoint_scan: Option<CheckpointScan>,
    own_checkpoints: CheckpointIndex,
    /// Start of the scan: a checkpoint that was not quiet at this time does not count as quiet.
    began: Timestamp,
    /// True in the second pass, which evaluates rules that apply to more than one object. The next field
    /// counts the objects of that pass.
    is_collecting: bool,
    collected_objects: u64,
    from: Option<ScanPosition>,
}

/// Facts for the evaluation of all objects of a page.
#[derive(Clone, Copy)]
struct EvaluationContext<'a> {
    system: &'a SystemFacts,
    now: Timestamp,
    /// Properties of access tracking that either policy depends on.
    properties: &'a [Property],
}

impl PolicyPlans {
    /// Stores a dry run. Returns the number by which it is continued.
    fn put(&self, run: DryRunProgress) -> u64 {
        let mut held = self.0.lock();
        held.runs.retain(|(_, used, _)| used.elapsed() < IDLE_MAX);
        if held.runs.len() >= PLANS_MAX {
            held.runs.pop_front();
        }
        held.last += 1;
        let number = held.last;
        held.runs.push_back((number, Instant::now(), Arc::new(Mutex::new(run))));
        assert!(held.runs.len() <= PLANS_MAX, "the number of dry runs is bounded");
        number
    }

    fn find(&self, number: u64) -> Result<Arc<Mutex<DryRunProgress>>, ApiError> {
        let mut held = self.0.lock();
        let found = held.runs.iter_mut().find(|(of, ..)| *of == number).map(|(_, used, run)| {
            *used = Instant::now();
            Arc::clone(run)
        });
        found.ok_or_else(|| {
            ApiError::invalid(format!("No such plan: {number}; old plans are removed. Start again."))
        })
    }

    fn forget(&self, number: u64) {
        self.0.lock().runs.retain(|(of, ..)| *of != number);
    }
}

pub(super) async fn plan(State(admin): State<Arc<Admin>>, body: Bytes) -> Result<Json<PlanPage>, ApiError> {
    let request: PlanRequest = parse(&body)?;
    let limit = request.limit.unwrap_or(PLAN_OBJECTS_MAX);
    if !(1..=PLAN_OBJECTS_MAX).contains(&limit) {
        return Err(ApiError::invalid(format!("limit is {limit}; expected 1 to {PLAN_OBJECTS_MAX}.")));
    }
    let planned = tokio::task::spawn_blocking(move || admin.plan(request, limit)).await;
    Ok(Json(planned.map_err(S3Error::internal)??))
}

impl Admin {
    fn plan(&self, request: PlanRequest, limit: usize) -> Result<PlanPage, ApiError> {
        let Some(number) = request.plan else {
            let mut run = self.begin_plan(request)?;
            let page = self.advance(&mut run, limit)?;
            return Ok(match page {
                Ok(last) => last,
                Err(page) => PlanPage { next: Some(self.policy_plans.put(run)), ..page },
            });
        };
        if request.files.is_some() || request.frameworks.is_some() {
            return Err(ApiError::invalid("A continued plan has its files already; give none."));
        }
        let run = self.policy_plans.find(number)?;
        let mut run = run.try_lock().ok_or_else(|| {
            let message = format!("Another request continues the plan {number}.");
            ApiError::new(StatusCode::CONFLICT, "PlanInUse", message)
        })?;
        if run.version != self.policies.running().number() {
            self.policy_plans.forget(number);
            return Err(ApiError::invalid("The policy was changed concurrently; start the plan again."));
        }
        Ok(match self.advance(&mut run, limit)? {
            Ok(last) => {
                self.policy_plans.forget(number);
                last
            }
            Err(page) => PlanPage { next: Some(number), ..page },
        })
    }

    fn begin_plan(&self, request: PlanRequest) -> Result<DryRunProgress, ApiError> {
        let files = checked_files(request.files, request.frameworks)?;
        let other =
            self.policies.compile(files).map_err(|wrong| policy_refusal(PolicyError::Wrong(wrong)))?;
        let running = self.policies.running();
        let (has_cold, has_upstream) = self.stored.tiers.hot.lower_tiers();
        let below = LowerTiers { has_cold, has_upstream };
        let plan = PolicyDryRun::new(Arc::clone(&running.program), Arc::new(other), below);
        let (own, began) = (CheckpointIndex::new(Limits::default()), self.clock.now());
        let (version, finding) = (running.number(), Some(CheckpointScan::new()));
        Ok(DryRunProgress {
            plan,
            version,
            checkpoint_scan: finding,
            own_checkpoints: own,
            began,
            is_collecting: true,
            collected_objects: 0,
            from: None,
        })
    }

    /// Visits at most `limit` more objects. Returns `Ok` with the complete result, or `Err` with the result
    /// so far.
    fn advance(
        &self,
        run: &mut DryRunProgress,
        limit: usize,
    ) -> Result<Result<PlanPage, PlanPage>, ApiError> {
        assert!(
            run.is_collecting || run.checkpoint_scan.is_none(),
            "objects are compared after all checkpoints are known"
        );
        let (system, now, properties) =
            (self.policies.system(), self.clock.now(), run.plan.used_properties());
        let context = EvaluationContext { system: &system, now, properties: &properties };
        let (from, mut reached) = (run.from.take(), None);
        let next = self.stored.each_object(from.as_ref(), limit, &mut |looked| {
            match &mut run.checkpoint_scan {
                Some(finding) => add_to_scan(finding, &looked),
                None => self.evaluate_object(run, &looked, context)?,
            }
            reached = Some((looked.bucket.name.clone(), looked.key.clone()));
            Ok(())
        });
        // After an error the dry run resumes after the last visited object, so that no object counts twice.
        let reached = reached.map(|(bucket, key)| ScanPosition { bucket, key: Some(key) });
        run.from = match &next {
            Ok(next) => next.clone(),
            Err(_) => reached.or(from),
        };
        let is_over = next.map_err(S3Error::from)?.is_none();
        if let Some(finding) = run.checkpoint_scan.take() {
            if !is_over {
                run.checkpoint_scan = Some(finding);
                return Ok(Err(run.page()));
            }
            self.finish_checkpoint_scan(run, finding);
            return self.advance(run, limit);
        }
        let was_collecting = run.is_collecting;
        run.is_collecting &= !is_over;
        if !is_over || was_collecting {
            return Ok(Err(run.page()));
        }
        let [running, other] = run.plan.expired_checkpoints(&run.own_checkpoints);
        Ok(Ok(PlanPage {
            deletions: self.deletions(run, &running),
            expired: self.expired_checkpoints(run, running, other),
            impossible: self
                .impossible(run.plan.programs().1)
                .into_iter()
                .chain(run.plan.ineffective_actions())
                .collect(),
            ..run.page()
        }))
    }

    /// Finishes the first pass: all checkpoints of local buckets are known.
    fn finish_checkpoint_scan(&self, run: &mut DryRunProgress, finding: CheckpointScan) {
        run.own_checkpoints = finding.finish(run.began.as_millis());
        run.own_checkpoints.restore_spacings(&self.retention.spacings());
        let buckets = self.stored.catalogue.buckets(None, None, usize::MAX);
        let ours = local_buckets(buckets.iter().map(|bucket| &**bucket));
        run.plan.pin_newest_checkpoints(&run.own_checkpoints, |_| true);
        self.policy_driver.with_engine(|decider, _| {
            run.plan.pin_newest_checkpoints(&decider.checkpoints, |bucket| !ours.contains(&bucket));
        });
    }

    /// Evaluates one object: in the second pass rules for more than one object, in the last pass all rules.
    fn evaluate_object(
        &self,
        run: &mut DryRunProgress,
        looked: &VisitedObject<'_>,
        context: EvaluationContext<'_>,
    ) -> Result<(), ReadError> {
        let EvaluationContext { system, now, properties } = context;
        let (bucket, key) = (looked.bucket.id, looked.key.as_str());
        let object = &self.stored.object_facts(looked.bucket, looked.key, looked.object)?;
        let unread = UnreadBlock { bucket, key, size: object.size, number: 0 };
        // The policy engine is released before rules are evaluated, so that reads and writes do not wait.
        let is_local = looked.bucket.binding.is_none();
        let known = |of: &CheckpointIndex| {
            (of.group_of(bucket, key).as_ref().map(ContainingCheckpoint::from), of.key_facts(bucket, key))
        };
        let (taken, tracked) = self.policy_driver.with_engine(|decider, now_us| {
            let observed = (!is_local).then(|| known(&decider.checkpoints));
            (decider.facts_of(now_us, &unread, properties), observed)
        });
        let (member, checkpoint_facts) = tracked.unwrap_or_else(|| known(&run.own_checkpoints));
        let access = taken.view();
        let idle = object.idle(looked.read, &access, now);
        let (member, access) = (member.as_ref(), Some(&access as &dyn Facts));
        let of = Subject { bucket, is_local, object, member, checkpoint_facts, access, idle, system, now };
        if run.is_collecting {
            run.collected_objects += 1;
            run.plan.collect_matches(&of);
        } else {
            run.plan.compare(&of);
        }
        Ok(())
    }
}

/// Records an object that may belong to a checkpoint of a local bucket.
fn add_to_scan(finding: &mut CheckpointScan, looked: &VisitedObject<'_>) {
    if looked.bucket.binding.is_none() {
        finding.visit(looked.bucket.id, looked.key.as_str(), moment_of(looked.object), looked.object.size);
    }
}

impl DryRunProgress {
    /// Returns the result so far.
    fn page(&self) -> PlanPage {
        let asks = |(rule, asks)| UndeterminedRule { rule, asks };
        let (running, other) = self.plan.programs();
        PlanPage {
            version: self.version,
            objects: self.plan.objects,
            changed: self.plan.changed,
            actions: self
                .plan
                .actions
                .clone()
                .into_iter()
                .map(|(action, extent)| planned_action_info(action, extent))
                .collect(),
            settings: settings_changed(running, other).into_iter().map(planned_setting_info).collect(),
            not_judged: self.plan.not_judged().into_iter().map(asks).collect(),
            collected: self.collected_objects,
            ..PlanPage::default()
        }
    }
}

impl Admin {
    /// Returns the checkpoints that the other policy would expire and the running one does not expire in the
    /// same way.
    fn expired_checkpoints(
        &self,
        run: &DryRunProgress,
        running: Vec<CheckpointExpiry>,
        other: Vec<CheckpointExpiry>,
    ) -> Vec<ExpiredCheckpointInfo> {
        let names = self.bucket_names();
        let expired_info =
            |CheckpointExpiry { is_deleted, checkpoint: of, .. }: CheckpointExpiry| ExpiredCheckpointInfo {
                guard: (is_deleted && !of.guards.is_empty()).then(|| DeletionGuard::reasons(&of.guards)),
                objects: format!("s3://{}/{}", names.get(&of.bucket).map_or("", String::as_str), of.prefix),
                rule: of.rule,
                is_deleted,
                grace_seconds: if is_deleted { of.grace.as_secs() } else { 0 },
                files: of.files,
                bytes: of.bytes,
            };
        let way = |one: &ExpiredCheckpointInfo| {
            (one.objects.clone(), one.is_deleted, one.grace_seconds, one.guard.is_some())
        };
        let named = self.referenced(&run.own_checkpoints, &other);
        let now: BTreeSet<_> = running.into_iter().map(|one| way(&expired_info(one))).collect();
        let new = other.into_iter().map(|one| {
            let named =
                named.reason(one.checkpoint.bucket, &one.checkpoint.prefix).filter(|_| one.is_deleted);
            let named = named.map(str::to_owned);
            (expired_info(one), named)
        });
        let new = new.filter(|(one, _)| !now.contains(&way(one)));
        new.map(|(one, named)| ExpiredCheckpointInfo { guard: join_reasons(one.guard, named), ..one })
            .collect()
    }

    /// Returns the checkpoints to be deleted that small files refer to.
    fn referenced(&self, own: &CheckpointIndex, expired: &[CheckpointExpiry]) -> ReferencedCheckpoints {
        let deleted = || expired.iter().filter(|one| one.is_deleted);
        let ids: Vec<GroupId> = deleted().map(|one| one.id).collect();
        let goes: BTreeSet<_> =
            deleted().filter(|one| one.checkpoint.guards.is_empty()).map(|one| one.id).collect();
        // This runs on a blocking thread, on which no other task depends.
        Handle::current().block_on(find_references(
            &self.stored,
            &EndangeredCheckpoints::of(own, &ids, |one| goes.contains(&one.id)),
        ))
    }

    /// Returns the requests of rules that a server with this configuration cannot carry out.
    fn impossible(&self, other: &Program) -> Vec<String> {
        let (has_cold, has_upstream) = self.stored.tiers.hot.lower_tiers();
        let mut impossible = Vec::new();
        if other.has_acting(ActionKind::Spill) && !has_cold && !has_upstream {
            impossible.push(
                "spill has no effect: no tier below the hot tier is configured (cold.dirs, cold.upstream)."
                    .to_owned(),
            );
        }
        impossible
    }

    /// Returns the pending deletions by rules of the running policy, no matter whether the engine knows their
    /// checkpoints: the reconciler's next pass visits all stored objects and cancels deletions that no rule
    /// demands any more.
    fn deletions(&self, run: &DryRunProgress, running: &[CheckpointExpiry]) -> Vec<PendingDeletionInfo> {
        let rules: BTreeSet<&str> = deleting_rules(run.plan.programs().0).collect();
        let doubted = running.iter().filter(|one| one.is_deleted && !one.checkpoint.guards.is_empty());
        let doubted: BTreeMap<_, _> = doubted
            .map(|one| ((one.checkpoint.bucket, one.checkpoint.prefix.as_str()), &one.checkpoint.guards))
            .collect();
        let (names, named) = (self.bucket_names(), self.referenced(&run.own_checkpoints, running));
        let deletion_info = |note: PendingDeletion| {
            let doubts = doubted
                .get(&(note.bucket, note.prefix.as_str()))
                .map(|doubts| DeletionGuard::reasons(doubts));
            let now = join_reasons(doubts, named.reason(note.bucket, &note.prefix).map(str::to_owned));
            self.deletion(names.get(&note.bucket).map_or("", String::as_str), note, now)
        };
        let notes =
            self.retention.pending_deletions().into_iter().filter(|note| rules.contains(note.rule.as_str()));
        notes.map(deletion_info).collect()
    }

    /// Returns the pending deletion of the checkpoint that contains an object, if any.
    pub(super) fn deletion_of(&self, bucket: u64, key: &str) -> Option<PendingDeletionInfo> {
        let prefix = CheckpointIndex::prefix_of(key)?;
        let notes = self.retention.pending_deletions();
        let note = notes.iter().find(|one| one.bucket == bucket && one.prefix == prefix)?.clone();
        let goes = |one: &Generation<'_>| {
            notes.iter().any(|note| note.bucket == one.bucket && note.prefix == one.prefix)
        };
        let endangered = self.policy_driver.with_engine(|decider, _| {
            let id = decider.checkpoints.group_of(bucket, key).map(|one| one.id);
            EndangeredCheckpoints::of(&decider.checkpoints, id.as_slice(), goes)
        });
        let named = Handle::current().block_on(find_references(&self.stored, &endangered));
        let now = named.reason(bucket, prefix).map(str::to_owned);
        Some(self.deletion(self.bucket_names().get(&bucket).map_or("", String::as_str), note, now))
    }

    /// Converts a pending deletion to its API type; `now` is the guard that would prevent it now.
    fn deletion(&self, bucket: &str, note: PendingDeletion, now: Option<String>) -> PendingDeletionInfo {
        PendingDeletionInfo {
            objects: format!("s3://{bucket}/{}", note.prefix),
            guard: now.or_else(|| self.retention.guard(note.bucket, &note.prefix)),
            rule: note.rule,
            since: Timestamp(note.recorded_ms).to_string(),
            due: Timestamp(note.due_ms).to_string(),
            files: note.files,
            bytes: note.bytes,
        }
    }
}

/// Joins two reasons into one clause.
fn join_reasons(one: Option<String>, other: Option<String>) -> Option<String> {
    let all: Vec<String> = one.into_iter().chain(other).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn planned_setting_info(SettingChanged { word, before, after }: SettingChanged) -> PlannedSettingInfo {
    PlannedSettingInfo { setting: word, before, after }
}

fn planned_action_info(action: PlannedAction, extent: AffectedObjects) -> PlannedActionInfo {
    let example = |(object, reason)| PlanExample { object, reason };
    PlannedActionInfo {
        change: if action.stops { PlannedChange::Stops } else { PlannedChange::Starts },
        stance: rule_stance(action.stance),
        action: action.action,
        rule: action.rule,
        objects: extent.objects,
        bytes: extent.bytes,
        moved_bytes: extent.moved_bytes,
        examples: extent.examples.into_iter().map(example).collect(),
    }
}
