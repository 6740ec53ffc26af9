//! `/v1/policy/plan`: what other files would do with what is stored, some thousands of objects with each
//! request.
//!
//! The server remembers a plan from one request to the next ([`PolicyPlans`]): what a rule says of a whole
//! dataset, checkpoint or prefix has to be heard of all objects before the first is looked at. Nothing is
//! changed, and what is forgotten is begun anew by whoever asks.

use super::change::parse;
use super::policy::{files, refused};
use super::{Admin, ApiError};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use mlgw_api::{
    DeedInfo, DeletionInfo, NotJudged, PlanExample, PlanPage, PlanRequest, SettingPlanned, SuperfluousInfo,
};
use mlgw_background::policy_plan::{Deed, Extent, Plan, Subject};
use mlgw_background::reconciler::groups::{Finding, Member, Spare, moment_of, own_buckets};
use mlgw_background::reconciler::pointed::{Endangered, Named, named};
use mlgw_background::stored_objects::{Behind, Looked};
use mlgw_common::Timestamp;
use mlgw_common::limits::{PLAN_OBJECTS_MAX, PLANS_MAX};
use mlgw_metadata::ReadError;
use mlgw_policies::at_rest::{Note, deleting};
use mlgw_policies::checkpoints::{Checkpoints, Generation, GroupId, Limits, MustStay};
use mlgw_policies::engine::Unread;
use mlgw_policies::language::{ActionKind, Facts, Program, Property, Word as _};
use mlgw_policy_runtime::PolicyError;
use mlgw_policy_runtime::SystemFacts;
use mlgw_policy_runtime::changes::{SettingChanged, settings_changed};
use mlgw_wire::error::S3Error;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// A plan that nobody goes on with for so long is forgotten.
const REMEMBERED: Duration = Duration::from_mins(10);

/// Plans that are being made: some, the latest that were asked for.
#[derive(Default)]
pub struct PolicyPlans(Mutex<Held>);

#[derive(Default)]
struct Held {
    last: u64,
    runs: VecDeque<(u64, Instant, Arc<Mutex<Run>>)>,
}

/// A plan, and how far it is.
struct Run {
    plan: Plan,
    version: u64,
    /// The checkpoints of our own buckets while they are looked for, which is first; and all of them then.
    /// They are found in the catalogue, as a
    /// round finds them: what would be deleted rests on nothing else.
    finding: Option<Finding>,
    own: Checkpoints,
    /// When that began: what was not quiet then is not.
    began: Timestamp,
    /// Whether rules are still heard, and about how many objects they were.
    hearing: bool,
    heard: u64,
    from: Option<Behind>,
}

impl PolicyPlans {
    /// Remembers one, which is gone on with by this number.
    fn put(&self, run: Run) -> u64 {
        let mut held = self.0.lock();
        held.runs.retain(|(_, used, _)| used.elapsed() < REMEMBERED);
        if held.runs.len() >= PLANS_MAX {
            held.runs.pop_front();
        }
        held.last += 1;
        let number = held.last;
        held.runs.push_back((number, Instant::now(), Arc::new(Mutex::new(run))));
        number
    }

    fn find(&self, number: u64) -> Result<Arc<Mutex<Run>>, ApiError> {
        let mut held = self.0.lock();
        let found = held.runs.iter_mut().find(|(of, ..)| *of == number).map(|(_, used, run)| {
            *used = Instant::now();
            Arc::clone(run)
        });
        found.ok_or_else(|| {
            ApiError::invalid(format!("The plan {number} is not known any more; begin it anew."))
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
        return Err(ApiError::invalid(format!("limit is {limit}, not 1 to {PLAN_OBJECTS_MAX}.")));
    }
    let planned = tokio::task::spawn_blocking(move || admin.plan(request, limit)).await;
    Ok(Json(planned.map_err(S3Error::internal)??))
}

impl Admin {
    fn plan(&self, request: PlanRequest, limit: usize) -> Result<PlanPage, ApiError> {
        let Some(number) = request.plan else {
            let mut run = self.begin_plan(request)?;
            let page = self.go_on(&mut run, limit)?;
            return Ok(match page {
                Ok(last) => last,
                Err(page) => PlanPage { next: Some(self.policy_plans.put(run)), ..page },
            });
        };
        if request.files.is_some() || request.frameworks.is_some() {
            return Err(ApiError::invalid("A plan that is gone on with has its files; give none."));
        }
        let run = self.policy_plans.find(number)?;
        let mut run = run.try_lock().ok_or_else(|| {
            let message = format!("The plan {number} is being gone on with by another request.");
            ApiError::new(StatusCode::CONFLICT, "PlanInUse", message)
        })?;
        if run.version != self.policies.running().number() {
            self.policy_plans.forget(number);
            return Err(ApiError::invalid("The policy was changed meanwhile; begin the plan anew."));
        }
        Ok(match self.go_on(&mut run, limit)? {
            Ok(last) => {
                self.policy_plans.forget(number);
                last
            }
            Err(page) => PlanPage { next: Some(number), ..page },
        })
    }

    fn begin_plan(&self, request: PlanRequest) -> Result<Run, ApiError> {
        let files = files(request.files, request.frameworks)?;
        let other = self.policies.compile(files).map_err(|wrong| refused(PolicyError::Wrong(wrong)))?;
        let running = self.policies.running();
        let below = self.stored.tiers.hot.has_below();
        let plan = Plan::new(Arc::clone(&running.program), Arc::new(other), below);
        let (own, began) = (Checkpoints::new(Limits::default()), self.clock.now());
        let (version, finding) = (running.number(), Some(Finding::new()));
        Ok(Run { plan, version, finding, own, began, hearing: true, heard: 0, from: None })
    }

    /// Hears about so many objects more, or looks at them. Returns what is known then: all of it, or so far.
    fn go_on(&self, run: &mut Run, limit: usize) -> Result<Result<PlanPage, PlanPage>, ApiError> {
        let (system, now, asked) = (self.policies.system(), self.clock.now(), run.plan.asked());
        let (from, mut reached) = (run.from.take(), None);
        let next = self.stored.each_object(from.as_ref(), limit, &mut |looked| {
            match &mut run.finding {
                Some(finding) => find(finding, &looked),
                None => self.plan_for(run, &looked, (&system, now, &asked))?,
            }
            reached = Some((looked.bucket.name.clone(), looked.key.clone()));
            Ok(())
        });
        // After an error it goes on where it came to: no object counts twice.
        let reached = reached.map(|(bucket, key)| Behind { bucket, key: Some(key) });
        run.from = match &next {
            Ok(next) => next.clone(),
            Err(_) => reached.or(from),
        };
        let is_over = next.map_err(S3Error::from)?.is_none();
        if let Some(finding) = run.finding.take() {
            if !is_over {
                run.finding = Some(finding);
                return Ok(Err(run.page()));
            }
            self.found(run, finding);
            return self.go_on(run, limit);
        }
        let was_heard = run.hearing;
        run.hearing &= !is_over;
        if !is_over || was_heard {
            return Ok(Err(run.page()));
        }
        let [running, other] = run.plan.spare(&run.own);
        Ok(Ok(PlanPage {
            deletions: self.deletions(run, &running),
            superfluous: self.superfluous(run, running, other),
            impossible: self.impossible(run.plan.programs().1).into_iter().chain(run.plan.idle()).collect(),
            ..run.page()
        }))
    }

    /// All checkpoints of our own buckets are found.
    fn found(&self, run: &mut Run, finding: Finding) {
        run.own = finding.end(run.began.as_millis());
        run.own.recall(&self.standing.spacings());
        let buckets = self.stored.catalogue.buckets(None, None, usize::MAX);
        let ours = own_buckets(buckets.iter().map(|bucket| &**bucket));
        run.plan.hear_newest(&run.own, |_| true);
        self.keeper.ask(|decider, _| {
            run.plan.hear_newest(&decider.checkpoints, |bucket| !ours.contains(&bucket));
        });
    }

    /// Hears about an object, or looks at it.
    fn plan_for(
        &self,
        run: &mut Run,
        looked: &Looked<'_>,
        (system, now, asked): (&SystemFacts, Timestamp, &[Property]),
    ) -> Result<(), ReadError> {
        let (bucket, key) = (looked.bucket.id, looked.key.as_str());
        let object = &self.stored.known(looked.bucket, looked.key, looked.object)?;
        let unread = Unread { bucket, key, size: object.size, number: 0 };
        // Rules are asked when the engine is free again for whoever reads.
        let is_own = looked.bucket.binding.is_none();
        let known = |of: &Checkpoints| {
            (of.group_of(bucket, key).as_ref().map(Member::from), of.standing(bucket, key))
        };
        let (taken, heard) = self.keeper.ask(|decider, now_us| {
            let heard = (!is_own).then(|| known(&decider.checkpoints));
            (decider.facts_of(now_us, &unread, asked), heard)
        });
        let (member, standing) = heard.unwrap_or_else(|| known(&run.own));
        let access = taken.tell();
        let idle = object.idle(looked.read, &access, now);
        let (member, access) = (member.as_ref(), Some(&access as &dyn Facts));
        let of = Subject { bucket, is_own, object, member, standing, access, idle, system, now };
        if run.hearing {
            run.heard += 1;
            run.plan.hear(&of);
        } else {
            run.plan.look(&of);
        }
        Ok(())
    }
}

/// Notes an object that may be of a checkpoint of our own buckets.
fn find(finding: &mut Finding, looked: &Looked<'_>) {
    if looked.bucket.binding.is_none() {
        finding.look(looked.bucket.id, looked.key.as_str(), moment_of(looked.object), looked.object.size);
    }
}

impl Run {
    /// What is known so far.
    fn page(&self) -> PlanPage {
        let asks = |(rule, asks)| NotJudged { rule, asks };
        let (running, other) = self.plan.programs();
        PlanPage {
            version: self.version,
            objects: self.plan.objects,
            changed: self.plan.changed,
            deeds: self.plan.deeds.clone().into_iter().map(told).collect(),
            settings: settings_changed(running, other).into_iter().map(planned).collect(),
            not_judged: self.plan.not_judged().into_iter().map(asks).collect(),
            heard: self.heard,
            ..PlanPage::default()
        }
    }
}

impl Admin {
    /// The checkpoints that the other policy would let go, and the running one does not in this way.
    fn superfluous(&self, run: &Run, running: Vec<Spare>, other: Vec<Spare>) -> Vec<SuperfluousInfo> {
        let names = self.bucket_names();
        let told = |Spare { is_deleted, of, .. }: Spare| SuperfluousInfo {
            stays: (is_deleted && !of.stays.is_empty()).then(|| MustStay::all(&of.stays)),
            objects: format!("s3://{}/{}", names.get(&of.bucket).map_or("", String::as_str), of.prefix),
            rule: of.rule,
            is_deleted,
            grace_seconds: if is_deleted { of.grace.as_secs() } else { 0 },
            files: of.files,
            bytes: of.bytes,
        };
        let way = |one: &SuperfluousInfo| {
            (one.objects.clone(), one.is_deleted, one.grace_seconds, one.stays.is_some())
        };
        let named = self.named(&run.own, &other);
        let now: BTreeSet<_> = running.into_iter().map(|one| way(&told(one))).collect();
        let new = other.into_iter().map(|one| {
            let named = named.why(one.of.bucket, &one.of.prefix).filter(|_| one.is_deleted);
            let named = named.map(str::to_owned);
            (told(one), named)
        });
        let new = new.filter(|(one, _)| !now.contains(&way(one)));
        new.map(|(one, named)| SuperfluousInfo { stays: both(one.stays, named), ..one }).collect()
    }

    /// The checkpoints to be deleted that small files name.
    fn named(&self, own: &Checkpoints, spare: &[Spare]) -> Named {
        let deleted = || spare.iter().filter(|one| one.is_deleted);
        let ids: Vec<GroupId> = deleted().map(|one| one.id).collect();
        let goes: BTreeSet<_> = deleted().filter(|one| one.of.stays.is_empty()).map(|one| one.id).collect();
        // This runs on a blocking thread, on which no other task depends.
        Handle::current()
            .block_on(named(&self.stored, &Endangered::of(own, &ids, |one| goes.contains(&one.id))))
    }

    /// What rules ask for that no server can do that is set up so.
    fn impossible(&self, other: &Program) -> Vec<String> {
        let (has_cold, has_upstream) = self.stored.tiers.hot.has_below();
        let mut impossible = Vec::new();
        if other.acts(ActionKind::Spill) && !has_cold && !has_upstream {
            impossible.push(
                "Nothing is spilled: there is no tier below the hot one (cold.dirs, cold.upstream)."
                    .to_owned(),
            );
        }
        impossible
    }

    /// Those that wait, of rules that the running policy has, whatever the engine knows of them: the round
    /// looks at what is stored, and calls off what it does not say any more.
    fn deletions(&self, run: &Run, running: &[Spare]) -> Vec<DeletionInfo> {
        let rules: BTreeSet<&str> = deleting(run.plan.programs().0).collect();
        let doubted = running.iter().filter(|one| one.is_deleted && !one.of.stays.is_empty());
        let doubted: BTreeMap<_, _> =
            doubted.map(|one| ((one.of.bucket, one.of.prefix.as_str()), &one.of.stays)).collect();
        let (names, named) = (self.bucket_names(), self.named(&run.own, running));
        let told = |note: Note| {
            let doubts =
                doubted.get(&(note.bucket, note.prefix.as_str())).map(|doubts| MustStay::all(doubts));
            let now = both(doubts, named.why(note.bucket, &note.prefix).map(str::to_owned));
            self.deletion(names.get(&note.bucket).map_or("", String::as_str), note, now)
        };
        let notes = self.standing.notes().into_iter().filter(|note| rules.contains(note.rule.as_str()));
        notes.map(told).collect()
    }

    /// When the checkpoint that an object is of is to be deleted, if that was noted.
    pub(super) fn deletion_of(&self, bucket: u64, key: &str) -> Option<DeletionInfo> {
        let prefix = Checkpoints::prefix_of(key)?;
        let notes = self.standing.notes();
        let note = notes.iter().find(|one| one.bucket == bucket && one.prefix == prefix)?.clone();
        let goes = |one: &Generation<'_>| {
            notes.iter().any(|note| note.bucket == one.bucket && note.prefix == one.prefix)
        };
        let endangered = self.keeper.ask(|decider, _| {
            let id = decider.checkpoints.group_of(bucket, key).map(|one| one.id);
            Endangered::of(&decider.checkpoints, id.as_slice(), goes)
        });
        let named = Handle::current().block_on(named(&self.stored, &endangered));
        let now = named.why(bucket, prefix).map(str::to_owned);
        Some(self.deletion(self.bucket_names().get(&bucket).map_or("", String::as_str), note, now))
    }

    /// A deletion that waits; `now` is why it would not be done now.
    fn deletion(&self, bucket: &str, note: Note, now: Option<String>) -> DeletionInfo {
        DeletionInfo {
            objects: format!("s3://{bucket}/{}", note.prefix),
            stays: now.or_else(|| self.standing.stays(note.bucket, &note.prefix)),
            rule: note.rule,
            noted: Timestamp(note.noted_ms).to_string(),
            due: Timestamp(note.due_ms).to_string(),
            files: note.files,
            bytes: note.bytes,
        }
    }
}

/// Joins two reasons into one clause.
fn both(one: Option<String>, other: Option<String>) -> Option<String> {
    let all: Vec<String> = one.into_iter().chain(other).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn planned(SettingChanged { word, before, after }: SettingChanged) -> SettingPlanned {
    SettingPlanned { setting: word, before, after }
}

fn told((deed, extent): (Deed, Extent)) -> DeedInfo {
    let example = |(object, reason)| PlanExample { object, reason };
    DeedInfo {
        change: if deed.stops { "stops" } else { "starts" }.to_owned(),
        stance: deed.stance.name().to_owned(),
        action: deed.action,
        rule: deed.rule,
        objects: extent.objects,
        bytes: extent.bytes,
        moved_bytes: extent.moved_bytes,
        examples: extent.examples.into_iter().map(example).collect(),
    }
}
