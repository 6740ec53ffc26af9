//! `/v1/policy/plan`: what other files would do with what is stored, some thousands of objects at a time.

use super::change::parse;
use super::policy::{PolicyText, files, refused};
use super::policy_objects::Behind;
use super::{Admin, ApiError};
use crate::policies::PolicyError;
use crate::policies::acting::groups::Spare;
use crate::policies::plan::{Deed, Extent, Plan, not_judged};
use crate::s3::error::S3Error;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use mlgw_common::Timestamp;
use mlgw_common::limits::PLAN_OBJECTS_MAX;
use mlgw_policies::at_rest::Note;
use mlgw_policies::language::{ActionKind, Program, Word as _};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
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
    /// Where the page before this one ended.
    #[serde(default)]
    pub after: Option<PlanCursor>,
    /// Objects that are looked at, at most 10,000.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// Where a page ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanCursor {
    /// In this bucket.
    pub bucket: String,
    /// Behind this key; without it before the first.
    pub key: Option<String>,
}

/// What would be otherwise for some of the objects.
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
    /// Rules that are new or changed and ask what is not known of objects at rest.
    pub not_judged: Vec<NotJudged>,
    /// Checkpoints that the running policy deletes, on the first page.
    pub deletions: Vec<DeletionInfo>,
    /// Checkpoints that it lets stay and the other one would not, on the first page.
    pub superfluous: Vec<SuperfluousInfo>,
    /// What the other one asks for that this server cannot do, on the first page.
    pub impossible: Vec<String>,
    /// Where the next page begins; none after the last.
    pub next: Option<PlanCursor>,
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

/// A rule that cannot be judged on objects at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotJudged {
    /// The rule.
    pub rule: String,
    /// What it asks that is not known.
    pub asks: Vec<String>,
}

pub(super) async fn plan(State(admin): State<Arc<Admin>>, body: Bytes) -> Result<Json<PlanPage>, ApiError> {
    let request: PlanRequest = parse(&body)?;
    let limit = request.limit.unwrap_or(PLAN_OBJECTS_MAX);
    if !(1..=PLAN_OBJECTS_MAX).contains(&limit) {
        return Err(ApiError::invalid(format!("limit is {limit}, not 1 to {PLAN_OBJECTS_MAX}.")));
    }
    let from = request.after.clone().map(behind).transpose()?;
    let planned = tokio::task::spawn_blocking(move || admin.plan(request, from.as_ref(), limit)).await;
    Ok(Json(planned.map_err(S3Error::internal)??))
}

fn behind(cursor: PlanCursor) -> Result<Behind, ApiError> {
    let key = cursor.key.map(|key| super::objects::object_key(&key)).transpose()?;
    Ok(Behind { bucket: cursor.bucket, key })
}

impl Admin {
    fn plan(&self, request: PlanRequest, from: Option<&Behind>, limit: usize) -> Result<PlanPage, ApiError> {
        let files = files(request.files, request.frameworks)?;
        let other = self.policies.compile(files).map_err(|wrong| refused(PolicyError::Wrong(wrong)))?;
        let running = self.policies.running();
        let (system, now) = (self.policies.system(), self.clock.now());
        let mut plan = Plan { below: self.tiers.hot.has_below(), ..Plan::default() };
        let next = self.each_object(from, limit, &mut |looked| {
            let object = self.known(looked.bucket, looked.key, looked.object)?;
            let standing = self.standing(looked.bucket.id, looked.key.as_str());
            plan.look((&running.program, &other), (&object, standing), &system, now);
            Ok(())
        });
        let next = next.map_err(S3Error::from)?;
        let asks = |(rule, asks)| NotJudged { rule, asks };
        let (deletions, superfluous, impossible) = match from {
            None => {
                let superfluous = self.superfluous(&running.program, &other)?;
                (self.deletions(), superfluous, self.impossible(&other))
            }
            Some(_) => Default::default(),
        };
        Ok(PlanPage {
            version: running.number(),
            objects: plan.objects,
            changed: plan.changed,
            deeds: plan.deeds.into_iter().map(told).collect(),
            not_judged: not_judged(&running.program, &other).into_iter().map(asks).collect(),
            deletions,
            superfluous,
            impossible,
            next: next.map(|next| PlanCursor {
                bucket: next.bucket,
                key: next.key.map(|key| key.as_str().to_owned()),
            }),
        })
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
