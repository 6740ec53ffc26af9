//! Dry run: compares another policy with the running one, object by object, without carrying out anything.
//!
//! Pure. Rules are evaluated as in the reconciler's pass: on the facts known now about each object, at rest
//! and from access tracking. Rules that apply to a whole dataset, checkpoint or prefix are collected first
//! ([`Plan::hear`]) and then applied to all members ([`Plan::look`]). A rule that depends on access patterns
//! and matches no object is reported ([`Plan::not_judged`]), because its facts may not be known yet.

use crate::reconciler::groups::{InCheckpoint, Member, Retained, Spare, Wide, checkpoint_keep, pin_newest};
use mlgw_common::Timestamp;
use mlgw_common::limits::PLAN_EXAMPLES;
use mlgw_policies::asked_at_rest;
use mlgw_policies::at_rest::{Area, Areas, By, Claim, Deeds, Move, is_at_rest};
use mlgw_policies::checkpoints::{Checkpoints, Standing};
use mlgw_policies::language::{
    ActionKind, ConditionType, Due, EffectiveRule, Facts, Program, Property, Resolved, Stance, Target, Tier,
    Wish, Word as _, resolve,
};
use mlgw_policy_runtime::facts::{KnownObject, ObjectFacts, dataset_of};
use mlgw_policy_runtime::place::SystemFacts;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Action that a policy starts or stops by one rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deed {
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
pub struct Extent {
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
    /// True for an own bucket, false for a remote-backed one.
    pub is_own: bool,
    /// Facts about the object at rest.
    pub object: &'a KnownObject,
    /// Checkpoint that contains the object.
    pub member: Option<&'a Member>,
    /// Facts that follow from its checkpoint.
    pub standing: Standing,
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
struct Side {
    program: Arc<Program>,
    done: Areas,
    observed: Areas,
    retained: Retained,
}

/// Verdict of a policy on one object.
struct Said {
    stance: Stance,
    action: ActionKind,
    target: Target,
    wish: Wish,
    /// Rank of the rule, if it is a rule, and its id.
    rule: (Option<usize>, Arc<str>),
    /// Scope of the verdict, if that is more than the object.
    area: Option<Area>,
}

/// Comparison of two policies.
pub struct Plan {
    running: Side,
    other: Side,
    /// Objects compared.
    pub objects: u64,
    /// Objects for which anything differs.
    pub changed: u64,
    /// Differences by rule and action: at most as many as both policies have actions.
    pub deeds: BTreeMap<Deed, Extent>,
    /// Rules of the other policy that matched an object.
    matched: BTreeSet<Arc<str>>,
    /// Actions of the other policy alone that are not supported in own buckets, or in remote-backed ones:
    /// rule, action, true for own buckets; and the number of objects.
    idle: BTreeMap<(Arc<str>, &'static str, bool), u64>,
    /// Presence of a cold tier, and of an upstream that takes segments.
    below: (bool, bool),
}

impl Plan {
    /// Starts to compare the running policy with another one.
    #[must_use]
    pub fn new(running: Arc<Program>, other: Arc<Program>, below: (bool, bool)) -> Self {
        let side = |program| Side {
            program,
            done: Areas::default(),
            observed: Areas::default(),
            retained: Retained::default(),
        };
        Self {
            running: side(running),
            other: side(other),
            objects: 0,
            changed: 0,
            deeds: BTreeMap::new(),
            matched: BTreeSet::new(),
            idle: BTreeMap::new(),
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
    pub fn asked(&self) -> Vec<Property> {
        let (running, other) = self.programs();
        let asked: BTreeSet<_> = [running, other].into_iter().flat_map(asked_at_rest).collect();
        asked.into_iter().collect()
    }

    /// Returns the actions of the other policy that have no effect, in a sentence each.
    #[must_use]
    pub fn idle(&self) -> Vec<String> {
        let sentence = |((rule, action, is_own), objects): (&(Arc<str>, &str, bool), &u64)| {
            let buckets = if *is_own { "our own" } else { "bound" };
            format!(
                "{action} of rule {rule} does nothing with objects of {buckets} buckets, {objects} of which it matches."
            )
        };
        self.idle.iter().map(sentence).collect()
    }

    /// Returns the checkpoints that each policy expires, the running one first. Valid once all objects were
    /// collected.
    pub fn spare(&self, of: &Checkpoints) -> [Vec<Spare>; 2] {
        [&self.running, &self.other].map(|side| {
            let wide = Wide { areas: &side.done, is_over: &|_, _, _| false };
            side.retained.spare(of, &wide)
        })
    }

    /// Pins the newest complete checkpoints of some buckets, as either policy does by default.
    pub fn hear_newest(&mut self, of: &Checkpoints, is_meant: impl Fn(u64) -> bool) {
        for side in [&mut self.running, &mut self.other] {
            pin_newest(of, checkpoint_keep(&side.program), &is_meant, &mut side.done);
        }
    }

    /// Collects the rules on the dataset, checkpoint or prefix of an object.
    pub fn hear(&mut self, of: &Subject<'_>) {
        [&mut self.running, &mut self.other].into_iter().for_each(|side| side.hear(of));
    }

    /// Compares the verdicts on one object.
    pub fn look(&mut self, of: &Subject<'_>) {
        self.objects += 1;
        let (mut old, mut new) = (self.running.say(of), self.other.say(of));
        self.matched.extend(new.iter().map(|said| Arc::clone(&said.rule.1)));
        let is_done = |one: &Said| one.action.is_done_in(of.is_own);
        for said in new.iter().filter(|one| one.acts() && !is_done(one)) {
            if !old.iter().any(|other| said.is_same(other)) {
                let name = (Arc::clone(&said.rule.1), said.action.name(), of.is_own);
                *self.idle.entry(name).or_default() += 1;
            }
        }
        [&mut old, &mut new].into_iter().for_each(|said| said.retain(is_done));
        let mut is_other = false;
        for (mine, theirs, stops) in [(&new, &old, false), (&old, &new, true)] {
            let deeds = acting(mine, of.idle);
            for said in mine.iter().filter(|one| !theirs.iter().any(|other| one.is_same(other))) {
                is_other = true;
                let side = if stops { &self.running } else { &self.other };
                let extent = self.deeds.entry(said.deed(stops)).or_default();
                extent.objects += 1;
                extent.bytes += of.object.size;
                let moves = said.moves(&deeds, of, self.below);
                extent.moved_bytes += if moves { of.object.size } else { 0 };
                if extent.examples.len() < PLAN_EXAMPLES {
                    let name = format!("s3://{}/{}", of.object.bucket, of.object.key);
                    extent.examples.push((name, side.reason(said, of)));
                }
            }
        }
        self.changed += u64::from(is_other);
    }

    /// Returns the rules of the other policy that are new or changed, depend on access patterns and matched
    /// no object, with the properties they depend on.
    #[must_use]
    pub fn not_judged(&self) -> Vec<(String, Vec<String>)> {
        let rules = not_judged(&self.running.program, &self.other.program).into_iter();
        rules.filter(|(rule, _)| !self.matched.contains(rule.as_str())).collect()
    }
}

impl Side {
    /// Calls `ask` with the facts about an object.
    fn with<T>(&self, of: &Subject<'_>, ask: impl FnOnce(&dyn Facts) -> T) -> T {
        let mut rest = ObjectFacts::new(&self.program, of.object, of.system, of.now);
        rest.access = of.access;
        ask(&InCheckpoint { standing: of.standing, rest: &rest })
    }

    fn hear(&mut self, of: &Subject<'_>) {
        let mut heard = Vec::new();
        self.with(of, |facts| {
            let resolved = resolve(self.program.due(facts));
            let claims = due(&resolved).filter_map(|due| Some((due, Claim::of(&self.program, due)?)));
            heard.extend(
                claims.map(|(due, claim)| (due.stance, due.action.target.clone(), of.area(due), claim)),
            );
        });
        let member = of.member.filter(|_| of.is_own);
        if let (Some(one), Some(dataset)) = (member, of.dataset()) {
            self.retained.hear_dataset(one, &dataset);
        }
        for (stance, target, area, claim) in heard {
            if let (Some(one), Stance::Act) = (member, stance) {
                self.retained.hear(&self.program, (one, of.object), (&target, &claim));
            }
            if let Some(area) = area {
                let areas = if stance == Stance::Act { &mut self.done } else { &mut self.observed };
                areas.add(area, claim);
            }
        }
    }

    /// Returns the verdicts on an object, on itself and on its areas, without those overridden by stronger
    /// ones.
    fn say(&self, of: &Subject<'_>) -> Vec<Said> {
        let is_wide = |due: &Due<'_>| {
            let areas = if due.stance == Stance::Act { &self.done } else { &self.observed };
            let said = || Some((of.area(due)?, Claim::of(&self.program, due)?));
            // A pin without room remains a verdict on the object. A prefix names its scope itself.
            matches!(due.action.target, Target::Prefix(_))
                || said().is_some_and(|(area, claim)| areas.has(&area, &claim))
        };
        let mut said = self.with(of, |facts| {
            let resolved = resolve(self.program.due(facts));
            let narrow = due(&resolved).filter(|due| !is_wide(due));
            narrow.map(|due| Said::of(&self.program, due)).collect::<Vec<_>>()
        });
        let dataset = of.dataset();
        for (stance, areas) in [(Stance::Act, &self.done), (Stance::Observe, &self.observed)] {
            let wide = areas.of(of.bucket, &of.object.key, dataset.as_deref());
            said.extend(wide.filter_map(|(area, claim)| Said::wide(stance, area, claim)));
        }
        unbeaten(said)
    }

    fn reason(&self, said: &Said, of: &Subject<'_>) -> String {
        let rule = said.rule.0.and_then(|rank| self.program.rules().get(rank));
        let own = rule.and_then(|rule| self.with(of, |facts| self.program.evaluate(facts).reason_of(rule)));
        own.unwrap_or_else(|| {
            let area = said.area.as_ref().map_or_else(String::new, |area| format!(" of {area}"));
            match rule {
                Some(_) => {
                    format!("{} because rule {} matched another object{area}", said.action, said.rule.1)
                }
                None => format!("{} because of the setting {}{area}", said.action, said.rule.1),
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
    fn area(&self, due: &Due<'_>) -> Option<Area> {
        let (target, kind) = (&due.action.target, due.action.kind);
        if *target == Target::Object || kind == ActionKind::Retain || !is_at_rest(kind) {
            return None;
        }
        Area::of(target, self.bucket, self.dataset().as_deref(), self.member.map(|one| &*one.prefix))
    }
}

fn due<'r, 'p>(resolved: &'r Resolved<'p>) -> impl Iterator<Item = &'r Due<'p>> {
    resolved.done.iter().chain(&resolved.observed)
}

/// Removes verdicts that stronger ones override.
fn unbeaten(said: Vec<Said>) -> Vec<Said> {
    let mut claims: Vec<_> = said.iter().filter_map(|one| one.claim().filter(|_| one.acts())).collect();
    claims.sort_by_key(|claim| claim.by.rank);
    let mut done: Vec<Claim> = Vec::new();
    for claim in claims {
        if !done.iter().any(|stronger| stronger.beats(&claim)) {
            done.push(claim);
        }
    }
    let is_done = |one: &Said| !one.acts() || one.claim().is_none_or(|claim| done.contains(&claim));
    said.into_iter().filter(is_done).collect()
}

/// Resolves the acting verdicts on an object.
fn acting(said: &[Said], idle: Duration) -> Deeds {
    let claims: Vec<_> = said.iter().filter(|one| one.acts()).filter_map(Said::claim).collect();
    Deeds::of(claims.iter(), idle, |_| false)
}

impl Said {
    fn of(program: &Program, due: &Due<'_>) -> Self {
        let rank = program.rules().iter().position(|rule| std::ptr::eq(rule, due.rule));
        Self {
            stance: due.stance,
            action: due.action.kind,
            target: due.action.target.clone(),
            wish: due.wish.clone(),
            rule: (rank, (*due.rule.rule.id).into()),
            area: None,
        }
    }

    fn wide(stance: Stance, area: &Area, claim: &Claim) -> Option<Self> {
        Some(Self {
            stance,
            action: claim.action()?,
            target: area.target(),
            wish: claim.wish.clone(),
            rule: (Some(claim.by.rank), Arc::clone(&claim.by.rule)),
            area: Some(area.clone()),
        })
    }

    fn acts(&self) -> bool {
        self.stance == Stance::Act
    }

    fn claim(&self) -> Option<Claim> {
        let by = By { rank: self.rule.0?, rule: Arc::clone(&self.rule.1) };
        is_at_rest(self.action).then(|| Claim { by, wish: self.wish.clone() })
    }

    fn deed(&self, stops: bool) -> Deed {
        let target = match &self.target {
            Target::Object => String::new(),
            other => format!(" {other}"),
        };
        Deed {
            stops,
            stance: self.stance,
            action: format!("{}{target}", self.action),
            rule: self.rule.1.to_string(),
        }
    }

    /// Returns true if both have the same effect, no matter which rule demands it.
    fn is_same(&self, other: &Self) -> bool {
        (self.action, &self.target, self.stance, &self.wish)
            == (other.action, &other.target, other.stance, &other.wish)
    }

    /// Returns true if the verdict moves the object's bytes now, given the resolved actions on the object. An
    /// observe-only verdict is resolved as if it were the only one.
    fn moves(&self, deeds: &Deeds, of: &Subject<'_>, (has_cold, has_upstream): (bool, bool)) -> bool {
        let alone = || Deeds::of(self.claim().iter(), of.idle, |_| false).tier;
        let (tier, deed) = (of.object.tier, if self.acts() { deeds.tier.clone() } else { alone() });
        match (deed, &self.wish, tier) {
            (Some(Move::Up(by)), Wish::Promote { .. }, Some(Tier::Cold | Tier::Upstream)) => {
                by.rule == self.rule.1
            }
            (Some(Move::Down { by, upstream }), Wish::Spill { .. }, Some(tier)) if by.rule == self.rule.1 => {
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
            matches!(one.of, ConditionType::AccessPattern | ConditionType::WorkloadContext)
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
    use super::{Member, Plan, Subject};
    use mlgw_common::Timestamp;
    use mlgw_policies::checkpoints::{Checkpoints, Limits, Standing};
    use mlgw_policies::language::{Fact, FactList, FileType, PolicyFile, Program, Property, Stance, Tier};
    use mlgw_policy_runtime::facts::KnownObject;
    use mlgw_policy_runtime::place::SystemFacts;
    use std::sync::Arc;
    use std::time::Duration;

    fn program(text: &str) -> Arc<Program> {
        let file = PolicyFile::parse("p.yaml", text).unwrap();
        Arc::new(Program::above_built_in(&[file]).unwrap())
    }

    fn plan(running: &str, other: &str) -> Plan {
        Plan::new(program(running), program(other), (true, false))
    }

    const IDLE: Duration = Duration::from_secs(100);

    fn subject<'a>(object: &'a KnownObject, system: &'a SystemFacts) -> Subject<'a> {
        let now = Timestamp(0);
        let standing = Standing::default();
        Subject {
            bucket: 1,
            is_own: true,
            object,
            member: None,
            standing,
            access: None,
            idle: IDLE,
            system,
            now,
        }
    }

    /// Returns the checkpoint of a key: its folder.
    fn member(key: &str) -> Option<Member> {
        let (folder, _) = key.rsplit_once('/')?;
        let mut checkpoints = Checkpoints::new(Limits::default());
        let series = checkpoints.wrote(0, 1, "run/step-1/.metadata", 1).unwrap().series();
        Some(Member { bucket: 1, prefix: format!("{folder}/"), series })
    }

    /// Collects all objects, then compares each one, as a dry run does.
    fn look(plan: &mut Plan, objects: &[(&str, Tier, Option<u32>)]) {
        let system = SystemFacts::default();
        for is_heard in [false, true] {
            for (key, tier, generation) in objects {
                let object = object(key, *tier);
                let member = member(key);
                let file_type = member.as_ref().map(|_| FileType::Checkpoint);
                let standing = Standing { generation: *generation, file_type };
                let of = Subject { member: member.as_ref(), standing, ..subject(&object, &system) };
                if is_heard { plan.look(&of) } else { plan.hear(&of) }
            }
        }
    }

    /// Returns rule, action, true if it stops, number of objects, and bytes to move.
    fn told(plan: &Plan) -> Vec<(&str, &str, bool, u64, u64)> {
        let row = |(deed, of): (&'_ super::Deed, &super::Extent)| (deed.stops, of.objects, of.moved_bytes);
        let rows = plan.deeds.iter().map(|(deed, of)| {
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
- {id: pins, conditions: [{type: file_pattern, property: name, operator: matches, value: '*.old'}], actions: [{type: pin}]}
";
    const NEW: &str = "
version: 1
rules:
- {id: ups, conditions: [{type: file_pattern, property: name, operator: matches, value: '*.new'}], actions: [{type: promote}]}
- {id: says, stance: observe, conditions: [{type: file_pattern, property: name, operator: matches, value: '*.new'}], actions: [{type: unpin}]}
- {id: busy, conditions: [{type: access_pattern, property: reads, operator: greater_than, value: 3}], actions: [{type: pin}]}
";

    #[test]
    fn started_and_stopped_actions_are_counted_with_the_bytes_that_move() {
        let mut plan = plan(OLD, NEW);
        let objects = [("1.new", Tier::Hot), ("2.new", Tier::Cold), ("3.old", Tier::Hot), ("4", Tier::Hot)];
        look(&mut plan, &objects.map(|(key, tier)| (key, tier, None)));
        assert_eq!((plan.objects, plan.changed), (4, 3));
        let expected =
            [("pins", "pin", true, 1, 0), ("says", "unpin", false, 2, 0), ("ups", "promote", false, 2, 10)];
        assert_eq!(told(&plan), expected);
        let (deed, of) = plan.deeds.iter().find(|(deed, _)| deed.rule == "ups").unwrap();
        assert_eq!((of.examples[0].0.as_str(), deed.stance), ("s3://b/1.new", Stance::Act));
        assert!(
            of.examples[0].1.starts_with("promote because rule ups (priority 0, p.yaml:4) matched"),
            "{of:?}"
        );
    }

    #[test]
    fn the_same_policy_changes_nothing() {
        let mut plan = plan(OLD, OLD);
        look(&mut plan, &[("3.old", Tier::Hot, None)]);
        assert_eq!((plan.changed, plan.deeds.len()), (0, 0));
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
        for (below, moved_bytes) in [((false, false), 0), ((true, false), 10), ((false, true), 10)] {
            let mut plan = Plan { below, ..plan("version: 1", OLD_ONES) };
            look(
                &mut plan,
                &[
                    ("a", Tier::Hot, None),
                    ("s-1/b", Tier::Hot, None),
                    ("s-2/c", Tier::Hot, Some(0)),
                    ("s-3/d", Tier::Hot, Some(1)),
                ],
            );
            assert_eq!(told(&plan), [("old-ones", "spill", false, 1, moved_bytes)]);
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
        look(
            &mut plan,
            &[hot("step-1/a"), hot("step-1/b.json"), hot("logs/0"), hot("step-2/a"), hot("late")],
        );
        let expected = [
            ("by-one", "pin checkpoint_group", false, 2, 0),
            ("by-one", "spill prefix:logs/", false, 1, 10),
            ("late", "spill", false, 1, 0),
        ];
        assert_eq!(told(&plan), expected, "and who waits moves nothing yet");
        let (_, of) = plan.deeds.iter().find(|(deed, _)| deed.action.starts_with("pin")).unwrap();
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
        plan.look(&Subject { access: Some(&access), ..subject(&object, &system) });
        assert_eq!((plan.not_judged(), told(&plan)), (vec![], vec![("busy", "pin", false, 1, 0)]));
        assert_eq!(super::not_judged(&program(NEW), &program(NEW)), []);
    }
}
