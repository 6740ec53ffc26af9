//! `/v1/policy/plan`: what other files would do with what is stored, some thousands of objects with each request.
//!
//! The server remembers a plan from one request to the next ([`PolicyPlans`]): what a rule says of a whole dataset, checkpoint or prefix has to be heard of all objects
//! before the first is looked at. Nothing is changed, and what is forgotten is begun anew by whoever asks.

use super::change::parse;
use super::policy::{PolicyText, files, refused};
use super::policy_objects::Behind;
use super::{Admin, ApiError};
use crate::policies::PolicyError;
use crate::policies::acting::groups::Spare;
use crate::policies::plan::{Deed, Extent, Plan, Subject};
use crate::s3::error::S3Error;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use mlgw_common::Timestamp;
use mlgw_common::limits::{PLAN_OBJECTS_MAX, PLANS_MAX};
use mlgw_policies::at_rest::Note;
use mlgw_policies::engine::Unread;
use mlgw_policies::language::{ActionKind, Program, Word as _};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Files that are not to run yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// Policies, the strongest first, in the place of all that run; without it those stay.
    #[serde(default)]
    pub files: Option<Vec<PolicyText>>,
    /// Plugins of frameworks in the place of those that run; without it those stay.
    #[serde(default)]
    pub frameworks: Option<Vec<PolicyText>>,
    /// The plan that is gone on with, as the answer before this one said; then there are no files.
    #[serde(default)]
    pub plan: Option<u64>,
    /// Objects that are looked at with this request, at most 10,000.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// What would be otherwise, as far as objects were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanPage {
    /// The version that runs; 0: none was ever applied.
    pub version: u64,
    /// Objects that were looked at.
    pub objects: u64,
    /// Those for which anything would be otherwise.
    pub changed: u64,
    /// What would, by rule and action.
    pub deeds: Vec<DeedInfo>,
    /// Rules that are new or changed, ask how objects are read and matched none.
    pub not_judged: Vec<NotJudged>,
    /// Checkpoints that the running policy deletes, with the last answer.
    pub deletions: Vec<DeletionInfo>,
    /// Checkpoints that it lets stay and the other one would not, with the last answer.
    pub superfluous: Vec<SuperfluousInfo>,
    /// What the other one asks for that this server cannot do, with the last answer.
    pub impossible: Vec<String>,
    /// Objects that rules were heard about first, as they may speak of more than one.
    pub heard: u64,
    /// What to go on with; none when all objects were looked at.
    pub next: Option<u64>,
}

/// What files begin or cease to do by one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeedInfo {
    /// `starts` or `stops`.
    pub change: String,
    /// `act` or `observe`.
    pub stance: String,
    /// The action and its target.
    pub action: String,
    /// The rule.
    pub rule: String,
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of those that are not in the tier where the action wants them.
    pub moved_bytes: u64,
    /// The first of them.
    pub examples: Vec<PlanExample>,
}

/// A checkpoint whose deletion waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletionInfo {
    /// What all its keys begin with.
    pub objects: String,
    /// The rule.
    pub rule: String,
    /// Since when it waits.
    pub noted: String,
    /// When it is deleted, unless it is read or written before, or the policy changes.
    pub due: String,
    /// How many objects it has.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A checkpoint that another policy would let go.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SuperfluousInfo {
    /// Its prefix.
    pub objects: String,
    /// The rule that keeps others.
    pub rule: String,
    /// Whether it would be deleted, and not only go down.
    pub is_deleted: bool,
    /// How long the deletion would wait.
    pub grace_seconds: u64,
    /// How many objects it has.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// An object, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanExample {
    /// The object.
    pub object: String,
    /// Why, in one sentence.
    pub reason: String,
}

/// A rule that cannot be judged by what is known now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotJudged {
    /// The rule.
    pub rule: String,
    /// What it asks that is not known.
    pub asks: Vec<String>,
}

/// Plans that are being made: some, the latest that were asked for.
#[derive(Default)]
pub struct PolicyPlans(Mutex<Held>);

#[derive(Default)]
struct Held {
    last: u64,
    runs: VecDeque<(u64, Run)>,
}

/// A plan, and how far it is.
struct Run {
    plan: Plan,
    version: u64,
    /// Whether rules are still heard, and about how many objects they were.
    hearing: bool,
    heard: u64,
    from: Option<Behind>,
}

impl PolicyPlans {
    fn new_number(&self) -> u64 {
        let mut held = self.0.lock();
        held.last += 1;
        held.last
    }

    fn put(&self, number: u64, run: Run) {
        let mut held = self.0.lock();
        if held.runs.len() >= PLANS_MAX {
            held.runs.pop_front();
        }
        held.runs.push_back((number, run));
    }

    fn take(&self, number: u64) -> Result<Run, ApiError> {
        let mut held = self.0.lock();
        let at = held.runs.iter().position(|(of, _)| *of == number);
        at.and_then(|at| held.runs.remove(at)).map(|(_, run)| run).ok_or_else(|| {
            ApiError::invalid(format!("The plan {number} is not known any more; begin it anew."))
        })
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
        let number = request.plan;
        let mut run = match number {
            Some(_) if request.files.is_some() || request.frameworks.is_some() => {
                return Err(ApiError::invalid("A plan that is gone on with has its files; give none."));
            }
            Some(number) => self.policy_plans.take(number)?,
            None => self.begin_plan(request)?,
        };
        if run.version != self.policies.running().number() {
            return Err(ApiError::invalid("The policy was changed meanwhile; begin the plan anew."));
        }
        let is_done = self.go_on(&mut run, limit)?;
        let mut page = run.page();
        if is_done {
            let (running, other) = run.plan.programs();
            page.deletions = self.deletions();
            page.superfluous = self.superfluous(running, other)?;
            page.impossible = self.impossible(other);
            return Ok(page);
        }
        let number = number.unwrap_or_else(|| self.policy_plans.new_number());
        self.policy_plans.put(number, run);
        Ok(PlanPage { next: Some(number), ..page })
    }

    fn begin_plan(&self, request: PlanRequest) -> Result<Run, ApiError> {
        let files = files(request.files, request.frameworks)?;
        let other = self.policies.compile(files).map_err(|wrong| refused(PolicyError::Wrong(wrong)))?;
        let running = self.policies.running();
        let below = self.tiers.hot.has_below();
        let mut plan = Plan::new(Arc::clone(&running.program), Arc::new(other), below);
        self.keeper.ask(|decider, _| plan.hear_newest(&decider.checkpoints));
        Ok(Run { plan, version: running.number(), hearing: true, heard: 0, from: None })
    }

    /// Hears about so many objects more, or looks at them. Says whether all were looked at.
    fn go_on(&self, run: &mut Run, limit: usize) -> Result<bool, ApiError> {
        let (system, now) = (self.policies.system(), self.clock.now());
        let Run { plan, hearing, heard, from, .. } = run;
        let next = self.each_object(from.as_ref(), limit, &mut |looked| {
            let (bucket, key) = (looked.bucket.id, looked.key.as_str());
            let object = &self.known(looked.bucket, looked.key, looked.object)?;
            let unread = Unread { bucket, key, size: object.size, number: 0 };
            *heard += u64::from(*hearing);
            self.keeper.ask(|decider, now_us| {
                let prefix = decider.checkpoints.group_of(bucket, key).map(|one| one.prefix);
                let standing = decider.checkpoints.standing(bucket, key);
                decider.with_facts_of(now_us, &unread, |access| {
                    let idle = object.idle(looked.read, access, now);
                    let access = Some(access);
                    let system = &system;
                    let of = Subject { bucket, object, prefix, standing, access, idle, system, now };
                    if *hearing { plan.hear(&of) } else { plan.look(&of) }
                });
            });
            Ok(())
        });
        *from = next.map_err(S3Error::from)?;
        let is_over = from.is_none();
        let was_heard = std::mem::replace(hearing, *hearing && !is_over);
        Ok(is_over && !was_heard)
    }
}

impl Run {
    /// What is known so far.
    fn page(&self) -> PlanPage {
        let asks = |(rule, asks)| NotJudged { rule, asks };
        PlanPage {
            version: self.version,
            objects: self.plan.objects,
            changed: self.plan.changed,
            deeds: self.plan.deeds.clone().into_iter().map(told).collect(),
            not_judged: self.plan.not_judged().into_iter().map(asks).collect(),
            heard: self.heard,
            ..PlanPage::default()
        }
    }
}

impl Admin {
    /// The checkpoints that `other` would let go and `running` does not.
    fn superfluous(&self, running: &Program, other: &Program) -> Result<Vec<SuperfluousInfo>, ApiError> {
        let names = self.bucket_names();
        let told = |Spare { is_deleted, of, .. }: Spare| SuperfluousInfo {
            objects: format!("s3://{}/{}", names.get(&of.bucket).map_or("", String::as_str), of.prefix),
            rule: of.rule,
            is_deleted,
            grace_seconds: if is_deleted { of.grace.as_secs() } else { 0 },
            files: of.files,
            bytes: of.bytes,
        };
        let of = |program| self.spare(program).map_err(S3Error::from);
        let now: BTreeSet<(String, bool)> =
            of(running)?.into_iter().map(told).map(|one| (one.objects, one.is_deleted)).collect();
        let then = of(other)?.into_iter().map(told);
        Ok(then.filter(|one| !now.contains(&(one.objects.clone(), one.is_deleted))).collect())
    }

    /// What rules ask for that no server can do that is set up so.
    fn impossible(&self, other: &Program) -> Vec<String> {
        let (has_cold, has_upstream) = self.tiers.hot.has_below();
        let mut impossible = Vec::new();
        if other.acts(ActionKind::Spill) && !has_cold && !has_upstream {
            impossible.push(
                "Nothing is spilled: there is no tier below the hot one (cold.dirs, cold.upstream)."
                    .to_owned(),
            );
        }
        impossible
    }

    fn deletions(&self) -> Vec<DeletionInfo> {
        let names = self.bucket_names();
        let told = |note: Note| DeletionInfo {
            objects: format!("s3://{}/{}", names.get(&note.bucket).map_or("", String::as_str), note.prefix),
            rule: note.rule,
            noted: Timestamp(note.noted_ms).to_string(),
            due: Timestamp(note.due_ms).to_string(),
            files: note.files,
            bytes: note.bytes,
        };
        self.standing.notes().into_iter().map(told).collect()
    }
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
