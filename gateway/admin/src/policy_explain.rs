//! `/v1/policy/explain?bucket=…&key=…`: the verdicts of the running policy on one object, with their reasons.

use super::extract::AdminQuery;
use super::objects::{find, object_key};
use super::words::{cache_priority, copy_policy, override_reason, read_ahead_strategy, rule_action_kind};
use super::{Admin, ApiError};
use axum::Json;
use axum::extract::State;
use mlgw_api::{
    ActionInfo, CachedBlocksInfo, ConditionResultInfo, Explanation, FactInfo, ObjectInfo, OverriddenAction,
    RecommendationInfo, RuleEvaluationInfo, ScopedActionInfo,
};
use mlgw_config::SettingType as _;
use mlgw_formats::schema::ObjectVersion;
use mlgw_policies::PROPERTIES_AT_REST;
use mlgw_policies::at_rest::{InactivePins, RuleArea, RuleMatch, is_inactive_pin};
use mlgw_policies::engine::{KeptBlocks, UnreadBlock};
use mlgw_policies::language::{
    ActionRequest, CachePolicy, ConditionResult, DisplacedAction, DueAction, Facts, PROPERTIES, Program,
    Property, Recommendation, TriedRule, resolve,
};
use mlgw_policy_runtime::facts::{ObjectFacts, dataset_of};
use mlgw_wire::error::{Code, S3Error};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of blocks visited per object: those of 80 GiB.
const KEPT_BLOCKS_MAX: u32 = 10_000;

/// Converts the number of kept blocks to its API type.
fn cached_blocks_info(KeptBlocks { blocks, kept, pinned, planned }: KeptBlocks) -> CachedBlocksInfo {
    CachedBlocksInfo { blocks, kept, pinned, planned }
}

/// Query parameters: bucket and key of the object.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ObjectQuery {
    /// Bucket of the object.
    bucket: String,
    /// Key of the object.
    key: String,
}

pub(super) async fn explain(
    State(admin): State<Arc<Admin>>,
    AdminQuery(query): AdminQuery<ObjectQuery>,
) -> Result<Json<Explanation>, ApiError> {
    let found = admin.find_remote_backed(&query.bucket, &query.key).await?;
    let explained = tokio::task::spawn_blocking(move || admin.explain(found, &query)).await;
    Ok(Json(explained.map_err(S3Error::internal)??))
}

impl Admin {
    /// Explains an object; `found` is the object if its bucket is remote-backed.
    fn explain(&self, found: Option<ObjectInfo>, query: &ObjectQuery) -> Result<Explanation, S3Error> {
        let bucket =
            self.stored.catalogue.bucket(&query.bucket).ok_or_else(|| S3Error::new(Code::NoSuchBucket))?;
        let key = object_key(&query.key)?;
        let (shown, object) = match found {
            Some(shown) => {
                let object = self.described(&shown, bucket.bucket_id(), &key);
                (shown, object)
            }
            None => {
                let shown = find(&self.stored.catalogue, &query.bucket, &query.key)?;
                let object = self.stored.catalogue.object(bucket.bucket_id(), &key)?;
                (shown, object.ok_or_else(|| S3Error::new(Code::NoSuchKey))?)
            }
        };
        let known = self.stored.object_facts(&bucket, &key, &object)?;
        let running = self.policies.running();
        let system = self.policies.system();
        let unread = UnreadBlock { bucket: bucket.id, key: key.as_str(), size: object.size, number: 0 };
        let (areas, unheld) = (self.retention.areas(), self.retention.inactive_pins());
        let (kept, taken) = self.policy_driver.with_engine(|decider, now_us| {
            let kept = bucket
                .binding
                .is_some()
                .then(|| cached_blocks_info(decider.kept_blocks(&unread, KEPT_BLOCKS_MAX)));
            (kept, decider.facts_of(now_us, &unread, &PROPERTIES_AT_REST))
        });
        let access = taken.view();
        let dataset = dataset_of(&access);
        let matches = areas.of(bucket.id, key.as_str(), dataset.as_deref());
        let scoped = matches.filter_map(|(area, claim)| scoped_action(area, claim)).collect();
        let now = self.clock.now();
        let mut facts = ObjectFacts::new(&running.program, &known, &system, now);
        facts.access = Some(&access);
        let at_rest = DueContext {
            bucket: bucket.id,
            key: key.as_str(),
            is_local: bucket.binding.is_none(),
            idle: known.idle(None, &access, now),
            reads: access.fact(Property::Reads, "").and_then(|reads| reads.size()).unwrap_or(0.0),
            inactive_pins: &unheld,
        };
        let deletion = self.deletion_of(bucket.id, key.as_str());
        let explanation = explained(&running.program, running.number(), &facts, shown, &at_rest);
        Ok(Explanation { kept, scoped, deletion, ..explanation })
    }

    /// Returns the record of an object of a remote-backed bucket: that of its clean copy, or else as much as
    /// `shown` contains.
    fn described(
        &self,
        shown: &ObjectInfo,
        bucket: mlgw_common::BucketId,
        key: &mlgw_common::ObjectKey,
    ) -> ObjectVersion {
        let copy = self.stored.remote_backed.copies().and_then(|copies| copies.find(bucket, key));
        let copy = copy.filter(|copy| copy.object.size == shown.size).map(|copy| copy.object);
        copy.unwrap_or_else(|| ObjectVersion { size: shown.size, ..ObjectVersion::default() })
    }
}

/// State of an object that determines whether a due action is carried out now.
struct DueContext<'a> {
    bucket: u64,
    key: &'a str,
    is_local: bool,
    idle: Duration,
    reads: f64,
    inactive_pins: &'a InactivePins,
}

impl DueContext<'_> {
    fn is_inactive_pin(&self, due: &DueAction<'_>) -> bool {
        is_inactive_pin(self.inactive_pins, self.bucket, self.key, due)
    }

    /// Returns the number of reads from which a copy is kept, if the object has not reached it.
    fn reads_required(&self, due: &DueAction<'_>) -> Option<u32> {
        match due.request {
            ActionRequest::Copy { min_reads, keep: true, .. } if self.reads + 1.0 < f64::from(*min_reads) => {
                Some(*min_reads)
            }
            _ => None,
        }
    }

    /// Returns the reason why an action is not carried out now, or an empty string.
    fn reason_not_done(&self, due: &DueAction<'_>) -> String {
        let after = match due.request {
            ActionRequest::Spill { after, .. } | ActionRequest::Evict { after } => *after,
            _ => Duration::ZERO,
        };
        let kind = due.action.kind;
        let has_effect =
            if self.is_local { kind.has_effect_on_local() } else { kind.has_effect_on_remote_backed() };
        if !has_effect {
            let buckets = if self.is_local { "local" } else { "remote-backed" };
            return format!("has no effect in {buckets} buckets");
        }
        if self.is_inactive_pin(due) {
            let is_over = self.inactive_pins.is_expired(self.bucket, self.key, &due.rule.rule.id);
            return if is_over { "expired" } else { "no room" }.to_owned();
        }
        if let Some(reads) = self.reads_required(due) {
            return format!("after {reads} reads");
        }
        if self.idle < after {
            return format!("after {} without a read", after.to_text());
        }
        String::new()
    }
}

fn explained(
    program: &Program,
    version: u64,
    facts: &dyn Facts,
    object: ObjectInfo,
    at_rest: &DueContext<'_>,
) -> Explanation {
    let verdict = program.evaluate(facts);
    // As in the reconciler's pass: an inactive pin does not override weaker actions.
    let (unheld, due): (Vec<_>, Vec<_>) =
        verdict.due.iter().copied().partition(|due| at_rest.is_inactive_pin(due));
    let resolved = resolve(due.into_iter());
    let action = |due: &DueAction<'_>| action(due, at_rest.reason_not_done(due));
    let mut recommended = program.recommend(&verdict, None);
    if resolved.done.iter().any(|due| at_rest.reads_required(due).is_some()) {
        (recommended.cache, recommended.cache_policy) = (false, CachePolicy::None);
    }
    Explanation {
        object,
        kept: None,
        version,
        facts: known_facts(facts),
        rules: verdict.tried.iter().map(rule_evaluation).collect(),
        due: resolved.done.iter().chain(&unheld).map(action).collect(),
        observed: resolved.observed.iter().map(action).collect(),
        overridden: resolved.displaced.iter().map(overridden_action).collect(),
        scoped: Vec::new(),
        deletion: None,
        recommendation: recommendation(&recommended),
        reason: recommended.reason,
    }
}

fn known_facts(facts: &dyn Facts) -> Vec<FactInfo> {
    let known = PROPERTIES.iter().filter(|row| !row.is_named()).filter_map(|row| {
        let value = facts.fact(row.property, "")?.to_value()?.to_string();
        Some(FactInfo { property: row.word.to_owned(), value })
    });
    known.collect()
}

fn rule_evaluation(one: &TriedRule<'_>) -> RuleEvaluationInfo {
    let seen = |seen: &ConditionResult<'_>| ConditionResultInfo { held: seen.held, says: seen.sentence() };
    RuleEvaluationInfo {
        rule: one.rule.rule.id.to_string(),
        priority: one.rule.rule.priority,
        from: one.rule.source.to_string(),
        applies: one.is_applicable,
        matched: one.matched,
        score: one.score,
        conditions: one.conditions.iter().map(seen).collect(),
    }
}

fn action(due: &DueAction<'_>, note: String) -> ActionInfo {
    ActionInfo {
        action: rule_action_kind(due.action.kind),
        target: due.action.target.to_string(),
        rule: due.rule.rule.id.to_string(),
        note,
    }
}

fn scoped_action(area: &RuleArea, claim: &RuleMatch) -> Option<ScopedActionInfo> {
    let (action, rule) = (rule_action_kind(claim.action()?), claim.by.rule.to_string());
    Some(ScopedActionInfo { action, rule, of: area.to_string() })
}

fn overridden_action(displaced: &DisplacedAction<'_>) -> OverriddenAction {
    OverriddenAction {
        action: rule_action_kind(displaced.due.action.kind),
        rule: displaced.due.rule.rule.id.to_string(),
        to_action: rule_action_kind(displaced.stronger.action.kind),
        to_rule: displaced.stronger.rule.rule.id.to_string(),
        why: override_reason(displaced.reason),
    }
}

fn recommendation(recommended: &Recommendation) -> RecommendationInfo {
    RecommendationInfo {
        cache: recommended.cache,
        cache_priority: cache_priority(recommended.cache_priority),
        cache_policy: copy_policy(recommended.cache_policy),
        prefetch_depth: recommended.prefetch_depth,
        prefetch_bytes: recommended.prefetch_bytes,
        prefetch_strategy: read_ahead_strategy(recommended.prefetch_strategy),
    }
}
