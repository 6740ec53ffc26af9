//! Dry run: compares another policy with the running one, object by object, without carrying out anything.
//!
//! Pure. Rules are evaluated as in the reconciler's pass: on the facts known now about each object, at rest
//! and from access tracking. Rules that apply to a whole dataset, checkpoint or prefix are collected first
//! ([`PolicyDryRun::collect_matches`]) and then applied to all members ([`PolicyDryRun::compare`]). A rule
//! that depends on access patterns and matches no object is reported ([`PolicyDryRun::not_judged`]), because
//! its facts may not be known yet.

use crate::reconciler::groups::{
    CheckpointExpiry, ContainingCheckpoint, FactsWithCheckpoint, RetentionMatches, ScopedRuleMatches,
    checkpoint_keep, pin_newest,
};
use mlgw_common::Tier;
use mlgw_common::Timestamp;
use mlgw_common::limits::PLAN_EXAMPLES_MAX;
use mlgw_policies::at_rest::{
    AreaRuleMatches, MoveAction, ResolvedActions, RuleArea, RuleMatch, RuleSource, is_at_rest,
};
use mlgw_policies::checkpoints::{CheckpointFacts, CheckpointIndex};
use mlgw_policies::language::{
    ActionKind, ActionRequest, ConditionType, ConflictResolution, DueAction, EffectiveRule, Facts, Program,
    Property, Stance, Target, Word as _, resolve,
};
use mlgw_policies::properties_used_at_rest;
use mlgw_policy_runtime::facts::{KnownObject, ObjectFacts, dataset_of};
use mlgw_policy_runtime::server_facts::SystemFacts;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Action that a policy starts or stops by one rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlannedAction {
    /// True if the running policy takes the action and the other one would not.
    pub stops: bool,
    /// Stance of the rule: acts or only observes.
    pub stance: Stance,
    /// Name and target of the action.
    pub action: String,
    /// Name of the rule.
    pub rule: String,
}

/// Objects affected by an action.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AffectedObjects {
    /// Number of objects.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
    /// Bytes of the objects outside the action's target tier, which would move.
    pub moved_bytes: u64,
    /// First objects, each with the reason.
    pub examples: Vec<(String, String)>,
}

/// An object to evaluate, and the facts known about it.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// Id of the bucket.
    pub bucket: u64,
    /// True for a local bucket, false for a remote-backed one.
    pub is_local: bool,
    /// Facts about the object at rest.
    pub object: &'a KnownObject,
    /// Checkpoint that contains the object.
    pub member: Option<&'a ContainingCheckpoint>,
    /// Facts that follow from its checkpoint.
    pub checkpoint_facts: CheckpointFacts,
    /// Facts from access tracking.
    pub access: Option<&'a dyn Facts>,
    /// Time since the last read.
    pub idle: Duration,
    /// Facts about the server.
    pub system: &'a SystemFacts,
    /// Current time.
    pub now: Timestamp,
}

/// A policy, and its rules on more than one object.
struct ComparedPolicy {
    program: Arc<Program>,
    done: AreaRuleMatches,
    observed: AreaRuleMatches,
    retained: RetentionMatches,
}

/// Verdict of a policy on one object.
struct ObjectVerdict {
    stance: Stance,
    action: ActionKind,
    target: Target,
    request: ActionRequest,
    /// Rank of the rule, if it is a rule, and its id.
    rule: (Option<usize>, Arc<str>),
    /// Scope of the verdict, if that is more than the object.
    area: Option<RuleArea>,
}

/// Presence of the tiers below the hot tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowerTiers {
    /// True if there is a cold tier.
    pub has_cold: bool,
    /// True if there is an upstream that takes segments.
    pub has_upstream: bool,
}

/// Comparison of two policies.
pub struct PolicyDryRun {
    running: ComparedPolicy,
    other: ComparedPolicy,
    /// Objects compared.
    pub objects: u64,
    /// Objects for which anything differs.
    pub changed: u64,
    /// Differences by rule and action: at most as many as both policies have actions.
    pub actions: BTreeMap<PlannedAction, AffectedObjects>,
    /// Rules of the other policy that matched an object.
    matched: BTreeSet<Arc<str>>,
    /// Actions of the other policy alone that are not supported in local buckets, or in remote-backed ones:
    /// rule, action, true for local buckets; and the number of objects.
    ineffective: BTreeMap<(Arc<str>, &'static str, bool), u64>,
    below: LowerTiers,
}

impl PolicyDryRun {
    /// Starts to compare the running policy with another one.
    #[must_use]
    pub fn new(running: Arc<Program>, other: Arc<Program>, below: LowerTiers) -> Self {
        let side = |program| ComparedPolicy {
            program,
            done: AreaRuleMatches::default(),
            observed: AreaRuleMatches::default(),
            retained: RetentionMatches::default(),
        };
        Self {
            running: side(running),
            other: side(other),
            objects: 0,
            changed: 0,
            actions: BTreeMap::new(),
            matched: BTreeSet::new(),
            ineffective: BTreeMap::new(),
            below,
        }
    }

    /// Returns the running policy and the other one.
    #[must_use]
    pub fn programs(&self) -> (&Program, &Program) {
        (&self.running.program, &self.other.program)
    }

    /// Returns the properties of access tracking that either policy depends on.
    #[must_use]
    pub fn used_properties(&self) -> Vec<Property> {
        let (running, other) = self.programs();
        let properties: BTreeSet<_> =
            [running, other].into_iter().flat_map(properties_used_at_rest).collect();
        properties.into_iter().collect()
    }

    /// Returns the actions of the other policy that have no effect, in a sentence each.
    #[must_use]
    pub fn ineffective_actions(&self) -> Vec<String> {
        let sentence = |((rule, action, is_local), objects): (&(Arc<str>, &str, bool), &u64)| {
            let buckets = if *is_local { "local" } else { "remote-backed" };
            format!(
                "{action} of rule {rule} has no effect in {buckets} buckets, where the rule matches \
                 {objects} objects."
            )
        };
        self.ineffective.iter().map(sentence).collect()
    }

    /// Returns the checkpoints that each policy expires, the running one first. Valid once all objects were
    /// collected.
    pub fn expired_checkpoints(&self, of: &CheckpointIndex) -> [Vec<CheckpointExpiry>; 2] {
        [&self.running, &self.other].map(|side| {
            let wide = ScopedRuleMatches { areas: &side.done, is_over: &|_, _, _| false };
            side.retained.expired(of, &wide)
        })
    }

    /// Pins the newest complete checkpoints of some buckets, as either policy does by default.
    pub fn pin_newest_checkpoints(&mut self, of: &CheckpointIndex, is_meant: impl Fn(u64) -> bool) {
        for side in [&mut self.running, &mut self.other] {
            pin_newest(of, checkpoint_keep(&side.program), &is_meant, &mut side.done);
        }
    }

    /// Collects the rules on the dataset, checkpoint or prefix of an object.
    pub fn collect_matches(&mut self, of: &Subject<'_>) {
        [&mut self.running, &mut self.other].into_iter().for_each(|side| side.collect_matches(of));
    }

    /// Compares the verdicts on one object.
    pub fn compare(&mut self, of: &Subject<'_>) {
        self.objects += 1;
        let (mut old, mut new) = (self.running.verdicts(of), self.other.verdicts(of));
        self.matched.extend(new.iter().map(|verdict| Arc::clone(&verdict.rule.1)));
        let is_done = |one: &ObjectVerdict| match of.is_local {
            true => one.action.has_effect_on_local(),
            false => one.action.has_effect_on_remote_backed(),
        };
        for verdict in new.iter().filter(|one| one.is_acting() && !is_done(one)) {
            if !old.iter().any(|other| verdict.is_same(other)) {
                let name = (Arc::clone(&verdict.rule.1), verdict.action.name(), of.is_local);
                *self.ineffective.entry(name).or_default() += 1;
            }
        }
        [&mut old, &mut new].into_iter().for_each(|verdicts| verdicts.retain(is_done));
        let mut is_other = false;
        for (mine, theirs, stops) in [(&new, &old, false), (&old, &new, true)] {
            let resolved = resolve_acting(mine, of.idle);
            for verdict in mine.iter().filter(|one| !theirs.iter().any(|other| one.is_same(other))) {
                is_other = true;
                let side = if stops { &self.running } else { &self.other };
                let planned = PlannedAction { stops, ..verdict.started_action() };
                let extent = self.actions.entry(planned).or_default();
                extent.objects += 1;
                extent.bytes += of.object.size;
                let moves = verdict.is_moving(&resolved, of, self.below);
                extent.moved_bytes += if moves { of.object.size } else { 0 };
                if extent.examples.len() < PLAN_EXAMPLES_MAX {
                    let name = format!("s3://{}/{}", of.object.bucket, of.object.key);
                    extent.examples.push((name, side.reason(verdict, of)));
                }
            }
        }
        self.changed += u64::from(is_other);
        assert!(self.changed <= self.objects, "an object counts once as changed");
    }

    /// Returns the rules of the other policy that are new or changed, depend on access patterns and matched
    /// no object, with the properties they depend on.
    #[must_use]
    pub fn not_judged(&self) -> Vec<(String, Vec<String>)> {
        let rules = not_judged(&self.running.program, &self.other.program).into_iter();
        rules.filter(|(rule, _)| !self.matched.contains(rule.as_str())).collect()
    }
}

impl ComparedPolicy {
    /// Calls `ask` with the facts about an object.
    fn with_facts<T>(&self, of: &Subject<'_>, ask: impl FnOnce(&dyn Facts) -> T) -> T {
        let mut rest = ObjectFacts::new(&self.program, of.object, of.system, of.now);
        rest.access = of.access;
        ask(&FactsWithCheckpoint { checkpoint_facts: of.checkpoint_facts, rest: &rest })
    }

    fn collect_matches(&mut self, of: &Subject<'_>) {
        let mut matches = Vec::new();
        self.with_facts(of, |facts| {
            let resolved = resolve(self.program.due(facts));
            let claims = due(&resolved).filter_map(|due| Some((due, RuleMatch::of(&self.program, due)?)));
            matches.extend(
                claims.map(|(due, claim)| (due.stance, due.action.target.clone(), of.area(due), claim)),
            );
        });
        let member = of.member.filter(|_| of.is_local);
        if let (Some(one), Some(dataset)) = (member, of.dataset()) {
            self.retained.add_dataset(one, &dataset);
        }
        for (stance, target, area, claim) in matches {
            if let (Some(one), Stance::Act) = (member, stance) {
                self.retained.add_match(&self.program, one, of.object, &target, &claim);
            }
            if let Some(area) = area {
                let areas = if stance == Stance::Act { &mut self.done } else { &mut self.observed };
                areas.add(area, claim);
            }
        }
    }

    /// Returns the verdicts on an object, on itself and on its areas, without those overridden by stronger
    /// ones.
    fn verdicts(&self, of: &Subject<'_>) -> Vec<ObjectVerdict> {
        let is_wide = |due: &DueAction<'_>| {
            let areas = if due.stance == Stance::Act { &self.done } else { &self.observed };
            let area_match = || Some((of.area(due)?, RuleMatch::of(&self.program, due)?));
            // A pin without room remains a verdict on the object. A prefix names its scope itself.
            matches!(due.action.target, Target::Prefix(_))
                || area_match().is_some_and(|(area, claim)| areas.has(&area, &claim))
        };
        let mut verdicts = self.with_facts(of, |facts| {
            let resolved = resolve(self.program.due(facts));
            let narrow = due(&resolved).filter(|due| !is_wide(due));
            narrow.map(|due| ObjectVerdict::from_due(&self.program, due)).collect::<Vec<_>>()
        });
        let dataset = of.dataset();
        for (stance, areas) in [(Stance::Act, &self.done), (Stance::Observe, &self.observed)] {
            let wide = areas.of(of.bucket, &of.object.key, dataset.as_deref());
            verdicts.extend(wide.filter_map(|(area, claim)| ObjectVerdict::from_area(stance, area, claim)));
        }
        without_overridden(verdicts)
    }

    fn reason(&self, verdict: &ObjectVerdict, of: &Subject<'_>) -> String {
        let rule = verdict.rule.0.and_then(|rank| self.program.rules().get(rank));
        let own =
            rule.and_then(|rule| self.with_facts(of, |facts| self.program.evaluate(facts).reason_of(rule)));
        own.unwrap_or_else(|| {
            let area = verdict.area.as_ref().map_or_else(String::new, |area| format!(" of {area}"));
            match rule {
                Some(_) => {
                    format!("{} because rule {} matched another object{area}", verdict.action, verdict.rule.1)
                }
                None => format!("{} because of the setting {}{area}", verdict.action, verdict.rule.1),
            }
        })
    }
}

impl Subject<'_> {
    fn dataset(&self) -> Option<String> {
        self.access.and_then(dataset_of)
    }

    /// Returns the area that an action applies to, if that is known to be more than the object. Retention
    /// rules select among checkpoints on their own.
    fn area(&self, due: &DueAction<'_>) -> Option<RuleArea> {
        let (target, kind) = (&due.action.target, due.action.kind);
        if *target == Target::Object || kind == ActionKind::Retain || !is_at_rest(kind) {
            return None;
        }
        RuleArea::of(target, self.bucket, self.dataset().as_deref(), self.member.map(|one| &*one.prefix))
    }
}

fn due<'r, 'p>(resolved: &'r ConflictResolution<'p>) -> impl Iterator<Item = &'r DueAction<'p>> {
    resolved.done.iter().chain(&resolved.observed)
}

/// Removes verdicts that stronger ones override.
fn without_overridden(verdicts: Vec<ObjectVerdict>) -> Vec<ObjectVerdict> {
    let mut claims: Vec<_> =
        verdicts.iter().filter_map(|one| one.rule_match().filter(|_| one.is_acting())).collect();
    claims.sort_by_key(|claim| claim.by.rank);
    let mut done: Vec<RuleMatch> = Vec::new();
    for claim in claims {
        if !done.iter().any(|stronger| stronger.overrides(&claim)) {
            done.push(claim);
        }
    }
    let is_done =
        |one: &ObjectVerdict| !one.is_acting() || one.rule_match().is_none_or(|claim| done.contains(&claim));
    verdicts.into_iter().filter(is_done).collect()
}

/// Resolves the acting verdicts on an object.
fn resolve_acting(verdicts: &[ObjectVerdict], idle: Duration) -> ResolvedActions {
    let claims: Vec<_> =
        verdicts.iter().filter(|one| one.is_acting()).filter_map(ObjectVerdict::rule_match).collect();
    ResolvedActions::of(claims.iter(), idle, |_| false)
}

impl ObjectVerdict {
    fn from_due(program: &Program, due: &DueAction<'_>) -> Self {
        let rank = program.rules().iter().position(|rule| std::ptr::eq(rule, due.rule));
        Self {
            stance: due.stance,
            action: due.action.kind,
            target: due.action.target.clone(),
            request: due.request.clone(),
            rule: (rank, (*due.rule.rule.id).into()),
            area: None,
        }
    }

    fn from_area(stance: Stance, area: &RuleArea, claim: &RuleMatch) -> Option<Self> {
        Some(Self {
            stance,
            action: claim.action()?,
            target: area.target(),
            request: claim.request.clone(),
            rule: (Some(claim.by.rank), Arc::clone(&claim.by.rule)),
            area: Some(area.clone()),
        })
    }

    fn is_acting(&self) -> bool {
        self.stance == Stance::Act
    }

    fn rule_match(&self) -> Option<RuleMatch> {
        let by = RuleSource { rank: self.rule.0?, rule: Arc::clone(&self.rule.1) };
        is_at_rest(self.action).then(|| RuleMatch { by, request: self.request.clone() })
    }

    /// Returns the action as one that the policy starts.
    fn started_action(&self) -> PlannedAction {
        let target = match &self.target {
            Target::Object => String::new(),
            other => format!(" {other}"),
        };
        PlannedAction {
            stops: false,
            stance: self.stance,
            action: format!("{}{target}", self.action),
            rule: self.rule.1.to_string(),
        }
    }

    /// Returns true if both have the same effect, no matter which rule demands it.
    fn is_same(&self, other: &Self) -> bool {
        (self.action, &self.target, self.stance, &self.request)
            == (other.action, &other.target, other.stance, &other.request)
    }

    /// Returns true if the verdict moves the object's bytes now, given the resolved actions on the object. An
    /// observe-only verdict is resolved as if it were the only one.
    fn is_moving(&self, resolved: &ResolvedActions, of: &Subject<'_>, below: LowerTiers) -> bool {
        let LowerTiers { has_cold, has_upstream } = below;
        let alone = || ResolvedActions::of(self.rule_match().iter(), of.idle, |_| false).tier;
        let (tier, tier_move) =
            (of.object.tier, if self.is_acting() { resolved.tier.clone() } else { alone() });
        match (tier_move, &self.request, tier) {
            (
                Some(MoveAction::Promote(by)),
                ActionRequest::Promote { .. },
                Some(Tier::Cold | Tier::Upstream),
            ) => by.rule == self.rule.1,
            (Some(MoveAction::Spill { by, upstream }), ActionRequest::Spill { .. }, Some(tier))
                if by.rule == self.rule.1 =>
            {
                match tier {
                    Tier::Hot | Tier::Memory => has_cold || has_upstream,
                    Tier::Cold => upstream && has_upstream,
                    Tier::Upstream => false,
                }
            }
            _ => false,
        }
    }
}

/// Returns the rules of `other` that the running policy does not have in this form and that depend on access
/// patterns, with the properties they depend on.
fn not_judged(running: &Program, other: &Program) -> Vec<(String, Vec<String>)> {
    let asks = |rule: &EffectiveRule| {
        let conditions = rule.rule.conditions.iter().filter(|one| {
            matches!(one.condition_type, ConditionType::AccessPattern | ConditionType::WorkloadContext)
                && one.property != Property::Framework
        });
        let words: BTreeSet<_> = conditions.map(mlgw_policies::language::Condition::word).collect();
        words.into_iter().collect::<Vec<_>>()
    };
    let known: HashMap<_, _> = running.rules().iter().map(|rule| (&rule.rule.id, rule)).collect();
    let new = other.rules().iter().filter(|rule| known.get(&rule.rule.id) != Some(rule));
    let rules = new.map(|rule| (rule.rule.id.to_string(), asks(rule)));
    rules.filter(|(_, asks)| !asks.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::{ContainingCheckpoint, LowerTiers, PolicyDryRun, Subject};
    use mlgw_common::Tier;
    use mlgw_common::Timestamp;
    use mlgw_policies::checkpoints::{CheckpointFacts, CheckpointIndex, Limits};
    use mlgw_policies::language::{Fact, FactList, FileType, ParsedPolicy, Program, Property, Stance};
    use mlgw_policy_runtime::facts::KnownObject;
    use mlgw_policy_runtime::server_facts::SystemFacts;
    use std::sync::Arc;
    use std::time::Duration;

    fn program(text: &str) -> Arc<Program> {
        let file = ParsedPolicy::parse("p.yaml", text).unwrap();
        Arc::new(Program::compile_above_built_in(&[file]).unwrap())
    }

    fn plan(running: &str, other: &str) -> PolicyDryRun {
        let below = LowerTiers { has_cold: true, has_upstream: false };
        PolicyDryRun::new(program(running), program(other), below)
    }

    const IDLE: Duration = Duration::from_secs(100);

    fn subject<'a>(object: &'a KnownObject, system: &'a SystemFacts) -> Subject<'a> {
        let now = Timestamp(0);
        let standing = CheckpointFacts::default();
        Subject {
            bucket: 1,
            is_local: true,
            object,
            member: None,
            checkpoint_facts: standing,
            access: None,
            idle: IDLE,
            system,
            now,
        }
    }

    /// Returns the checkpoint of a key: its folder.
    fn member(key: &str) -> Option<ContainingCheckpoint> {
        let (folder, _) = key.rsplit_once('/')?;
        let mut checkpoints = CheckpointIndex::new(Limits::default());
        let series = checkpoints.record_write(0, 1, "run/step-1/.metadata", 1).unwrap().series();
        Some(ContainingCheckpoint { bucket: 1, prefix: format!("{folder}/"), series })
    }

    /// Collects all objects, then compares each one, as a dry run does.
    fn compare_all(plan: &mut PolicyDryRun, objects: &[(&str, Tier, Option<u32>)]) {
        let system = SystemFacts::default();
        for is_collected in [false, true] {
            for (key, tier, generation) in objects {
                let object = object(key, *tier);
                let member = member(key);
                let file_type = member.as_ref().map(|_| FileType::Checkpoint);
                let standing = CheckpointFacts { generation: *generation, file_type };
                let of = Subject {
                    member: member.as_ref(),
                    checkpoint_facts: standing,
                    ..subject(&object, &system)
                };
                if is_collected { plan.compare(&of) } else { plan.collect_matches(&of) }
            }
        }
    }

    /// Returns rule, action, true if it stops, number of objects, and bytes to move.
    fn action_rows(plan: &PolicyDryRun) -> Vec<(&str, &str, bool, u64, u64)> {
        let row = |(deed, of): (&'_ super::PlannedAction, &super::AffectedObjects)| {
            (deed.stops, of.objects, of.moved_bytes)
        };
        let rows = plan.actions.iter().map(|(deed, of)| {
            let (stops, objects, moved_bytes) = row((deed, of));
            (deed.rule.as_str(), deed.action.as_str(), stops, objects, moved_bytes)
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_unstable();
        rows
    }

    fn object(key: &str, tier: Tier) -> KnownObject {
        KnownObject {
            bucket: "b".into(),
            key: key.into(),
            size: 10,
            tier: Some(tier),
            ..KnownObject::default()
        }
    }

    const OLD: &str = "
version: 1
rules:
- {id: pins, conditions: [{type: file_pattern, property: name, operator: matches, value: '*.old'}], \
        actions: [{type: pin}]}
";
    const NEW: &str = "
version: 1
rules:
- {id: ups, conditions: [{type: file_pattern, property: name, operator: matches, value: '*.new'}], \
        actions: [{type: promote}]}
- {id: says, stance: observe, conditions: [{type: file_pattern, property: name, operator: matches, \
        value: '*.new'}], actions: [{type: unpin}]}
- {id: busy, conditions: [{type: access_pattern, property: reads, operator: greater_than, value: 3}], \
        actions: [{type: pin}]}
";

    #[test]
    fn started_and_stopped_actions_are_counted_with_the_bytes_that_move() {
        let mut plan = plan(OLD, NEW);
        let objects = [("1.new", Tier::Hot), ("2.new", Tier::Cold), ("3.old", Tier::Hot), ("4", Tier::Hot)];
        compare_all(&mut plan, &objects.map(|(key, tier)| (key, tier, None)));
        assert_eq!((plan.objects, plan.changed), (4, 3));
        let expected =
            [("pins", "pin", true, 1, 0), ("says", "unpin", false, 2, 0), ("ups", "promote", false, 2, 10)];
        assert_eq!(action_rows(&plan), expected);
        let (deed, of) = plan.actions.iter().find(|(deed, _)| deed.rule == "ups").unwrap();
        assert_eq!((of.examples[0].0.as_str(), deed.stance), ("s3://b/1.new", Stance::Act));
        assert!(
            of.examples[0].1.starts_with("promote because rule ups (priority 0, p.yaml:4) matched"),
            "{of:?}"
        );
    }

    #[test]
    fn the_same_policy_changes_nothing() {
        let mut plan = plan(OLD, OLD);
        compare_all(&mut plan, &[("3.old", Tier::Hot, None)]);
        assert_eq!((plan.changed, plan.actions.len()), (0, 0));
    }

    const OLD_ONES: &str = "
version: 1
rules:
- id: old-ones
  conditions: [{type: file_context, property: checkpoint_generation, operator: greater_or_equal, value: 1}]
  actions: [{type: spill}]
";

    #[test]
    fn generations_are_known_and_nothing_moves_without_a_lower_tier() {
        for (has_cold, has_upstream, moved_bytes) in [(false, false, 0), (true, false, 10), (false, true, 10)]
        {
            let below = LowerTiers { has_cold, has_upstream };
            let mut plan = PolicyDryRun { below, ..plan("version: 1", OLD_ONES) };
            compare_all(
                &mut plan,
                &[
                    ("a", Tier::Hot, None),
                    ("s-1/b", Tier::Hot, None),
                    ("s-2/c", Tier::Hot, Some(0)),
                    ("s-3/d", Tier::Hot, Some(1)),
                ],
            );
            assert_eq!(action_rows(&plan), [("old-ones", "spill", false, 1, moved_bytes)]);
            assert_eq!(plan.not_judged(), []);
        }
    }

    #[test]
    fn rules_on_a_whole_group_apply_to_all_its_members() {
        let wide = "
version: 1
rules:
- id: by-one
  conditions: [{type: file_pattern, property: name, operator: matches, value: 'b.json'}]
  actions: [{type: pin, target: checkpoint_group}, {type: spill, target: 'prefix:logs/'}]
- id: late
  conditions: [{type: file_pattern, property: name, operator: matches, value: 'late*'}]
  actions: [{type: spill, parameters: {after: 101s}}]
";
        let mut plan = plan("version: 1", wide);
        let hot = |key| (key, Tier::Hot, None);
        compare_all(
            &mut plan,
            &[hot("step-1/a"), hot("step-1/b.json"), hot("logs/0"), hot("step-2/a"), hot("late")],
        );
        let expected = [
            ("by-one", "pin checkpoint_group", false, 2, 0),
            ("by-one", "spill prefix:logs/", false, 1, 10),
            ("late", "spill", false, 1, 0),
        ];
        assert_eq!(action_rows(&plan), expected, "a waiting action moves no data yet");
        let (_, of) = plan.actions.iter().find(|(deed, _)| deed.action.starts_with("pin")).unwrap();
        let expected = "pin because rule by-one matched another object of checkpoint step-1/";
        assert_eq!(of.examples[0], ("s3://b/step-1/a".to_owned(), expected.to_owned()));
        assert_eq!(plan.changed, 4);
    }

    #[test]
    fn rules_on_access_patterns_are_reported_until_they_match() {
        let mut plan = plan(OLD, NEW);
        assert_eq!(plan.not_judged(), [("busy".to_owned(), vec!["reads".to_owned()])]);
        let (object, system) = (object("x", Tier::Hot), SystemFacts::default());
        let access = FactList(vec![(Property::Reads, "", Fact::Number(4.0))]);
        plan.compare(&Subject { access: Some(&access), ..subject(&object, &system) });
        assert_eq!((plan.not_judged(), action_rows(&plan)), (vec![], vec![("busy", "pin", false, 1, 0)]));
        assert_eq!(super::not_judged(&program(NEW), &program(NEW)), []);
    }
}
