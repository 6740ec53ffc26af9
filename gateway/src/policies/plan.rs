//! What another policy would do with what is stored, object by object, beside the one that runs.
//!
//! Pure. Only what is known of objects at rest decides: rules that ask how objects are read are named instead ([`not_judged`]).

use super::acting::groups::InCheckpoint;
use super::facts::{KnownObject, ObjectFacts};
use super::place::SystemFacts;
use mlgw_common::Timestamp;
use mlgw_common::limits::PLAN_EXAMPLES;
use mlgw_policies::checkpoints::Standing;
use mlgw_policies::language::{
    ConditionType, Due, EffectiveRule, Program, Property, Stance, Target, Tier, Wish, resolve,
};
use std::collections::{BTreeMap, HashMap};

/// What a policy begins or ceases to do by one rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deed {
    /// Whether the running policy does it and the other one would not.
    pub stops: bool,
    /// Whether it is done or only said.
    pub stance: Stance,
    /// The action.
    pub action: String,
    /// The rule.
    pub rule: String,
}

/// How much that would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of those that are not where the action wants them: what would move.
    pub moved_bytes: u64,
    /// The first of them, with why.
    pub examples: Vec<(String, String)>,
}

/// What would be otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Objects that were looked at.
    pub objects: u64,
    /// Objects for which anything would be otherwise.
    pub changed: u64,
    /// What would, by rule and action: at most as many as both policies have actions.
    pub deeds: BTreeMap<Deed, Extent>,
    /// Whether there is a cold tier, and an upstream that takes segments.
    pub below: (bool, bool),
}

impl Plan {
    /// Looks at one object, of which checkpoints tell something.
    pub fn look(
        &mut self,
        (running, other): (&Program, &Program),
        (object, standing): (&KnownObject, Standing),
        system: &SystemFacts,
        now: Timestamp,
    ) {
        self.objects += 1;
        let facts = |program| ObjectFacts::new(program, object, system, now);
        let (old_rest, new_rest) = (facts(running), facts(other));
        let old_facts = InCheckpoint { standing, rest: &old_rest };
        let new_facts = InCheckpoint { standing, rest: &new_rest };
        let (old, new) = (resolve(running.due(&old_facts)), resolve(other.due(&new_facts)));
        let all = |one: &mlgw_policies::language::Resolved<'_>| one.done.len() + one.observed.len();
        if all(&old) + all(&new) == 0 {
            return;
        }
        let mut is_other = false;
        for (mine, theirs, stops) in [(&new, &old, false), (&old, &new, true)] {
            let mine = mine.done.iter().chain(&mine.observed);
            let theirs: Vec<_> = theirs.done.iter().chain(&theirs.observed).collect();
            for due in mine.filter(|due| !theirs.iter().any(|other| is_same(due, other))) {
                is_other = true;
                let why = || {
                    let (program, facts) = if stops { (running, &old_facts) } else { (other, &new_facts) };
                    program.evaluate(facts).reason_of(due.rule).unwrap_or_default()
                };
                self.add(Deed::of(due, stops), due, object, why);
            }
        }
        self.changed += u64::from(is_other);
    }

    fn add(&mut self, deed: Deed, due: &Due<'_>, object: &KnownObject, why: impl FnOnce() -> String) {
        let is_moved = moves(due.wish, object.tier, self.below);
        let extent = self.deeds.entry(deed).or_default();
        extent.objects += 1;
        extent.bytes += object.size;
        extent.moved_bytes += if is_moved { object.size } else { 0 };
        if extent.examples.len() < PLAN_EXAMPLES {
            extent.examples.push((format!("s3://{}/{}", object.bucket, object.key), why()));
        }
    }
}

impl Deed {
    fn of(due: &Due<'_>, stops: bool) -> Self {
        let target = match &due.action.target {
            Target::Object => String::new(),
            other => format!(" {other}"),
        };
        Self {
            stops,
            stance: due.stance,
            action: format!("{}{target}", due.action.kind),
            rule: due.rule.rule.id.to_string(),
        }
    }
}

/// Whether the same is done in the same way, whichever rule says it.
fn is_same(one: &Due<'_>, other: &Due<'_>) -> bool {
    one.action.kind == other.action.kind
        && one.action.target == other.action.target
        && one.stance == other.stance
        && one.wish == other.wish
}

/// Whether the wish moves the bytes of an object that is in `tier`.
fn moves(wish: &Wish, tier: Option<Tier>, (has_cold, has_upstream): (bool, bool)) -> bool {
    match (wish, tier) {
        (Wish::Promote { .. }, Some(tier)) => matches!(tier, Tier::Cold | Tier::Upstream),
        (Wish::Spill { .. }, Some(Tier::Hot | Tier::Memory)) => has_cold || has_upstream,
        (Wish::Spill { upstream, .. }, Some(Tier::Cold)) => *upstream && has_upstream,
        _ => false,
    }
}

/// Rules of `other` that the running policy does not have and that ask what is not known of objects at rest, and what that is.
#[must_use]
pub fn not_judged(running: &Program, other: &Program) -> Vec<(String, Vec<String>)> {
    let asks = |rule: &EffectiveRule| {
        let conditions = rule.rule.conditions.iter().filter(|one| {
            matches!(one.of, ConditionType::AccessPattern | ConditionType::WorkloadContext)
                && one.property != Property::Framework
        });
        let mut words: Vec<_> = conditions.map(mlgw_policies::language::Condition::word).collect();
        words.dedup();
        words
    };
    let known: HashMap<_, _> = running.rules().iter().map(|rule| (&rule.rule.id, rule)).collect();
    let new = other.rules().iter().filter(|rule| known.get(&rule.rule.id) != Some(rule));
    let rules = new.map(|rule| (rule.rule.id.to_string(), asks(rule)));
    rules.filter(|(_, asks)| !asks.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Plan, not_judged};
    use crate::policies::facts::KnownObject;
    use crate::policies::place::SystemFacts;
    use mlgw_common::Timestamp;
    use mlgw_policies::checkpoints::Standing;
    use mlgw_policies::language::{PolicyFile, Program, Stance, Tier};

    fn program(text: &str) -> Program {
        let file = PolicyFile::parse("p.yaml", text).unwrap();
        Program::above_built_in(&[file]).unwrap()
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
    fn what_begins_and_what_stops_is_counted_with_what_moves() {
        let (old, new) = (program(OLD), program(NEW));
        let (mut plan, system) = (Plan::default(), SystemFacts::default());
        let objects = [("1.new", Tier::Hot), ("2.new", Tier::Cold), ("3.old", Tier::Hot), ("4", Tier::Hot)];
        for (key, tier) in objects {
            plan.look((&old, &new), (&object(key, tier), Standing::default()), &system, Timestamp(0));
        }
        assert_eq!((plan.objects, plan.changed), (4, 3));
        let told: Vec<_> = plan
            .deeds
            .iter()
            .map(|(deed, of)| (deed.rule.as_str(), deed.stops, deed.stance, of.objects, of.moved_bytes))
            .collect();
        let mut expected = vec![
            ("ups", false, Stance::Act, 2, 10),
            ("says", false, Stance::Observe, 2, 0),
            ("pins", true, Stance::Act, 1, 0),
        ];
        let mut told = told;
        told.sort_unstable();
        expected.sort_unstable();
        assert_eq!(told, expected);
        let (_, of) = plan.deeds.iter().find(|(deed, _)| deed.rule == "ups").unwrap();
        assert_eq!(of.examples[0].0, "s3://b/1.new");
        assert!(
            of.examples[0].1.starts_with("promote because rule ups (priority 0, p.yaml:4) matched"),
            "{of:?}"
        );
    }

    #[test]
    fn the_same_policy_changes_nothing() {
        let (mut plan, program) = (Plan::default(), program(OLD));
        let system = SystemFacts::default();
        plan.look(
            (&program, &program),
            (&object("3.old", Tier::Hot), Standing::default()),
            &system,
            Timestamp(0),
        );
        assert_eq!((plan.changed, plan.deeds.len()), (0, 0));
    }

    #[test]
    fn generations_are_known_and_nothing_moves_where_there_is_nowhere_to_go() {
        let rules = "
version: 1
rules:
- id: old-ones
  conditions: [{type: file_context, property: checkpoint_generation, operator: greater_or_equal, value: 1}]
  actions: [{type: spill}]
";
        let (old, new, system) = (program("version: 1"), program(rules), SystemFacts::default());
        for (below, moved_bytes) in [((false, false), 0), ((true, false), 10), ((false, true), 10)] {
            let mut plan = Plan { below, ..Plan::default() };
            for (key, generation) in [("a", None), ("b", Some(0)), ("c", Some(1))] {
                let standing = Standing { generation, ..Standing::default() };
                plan.look((&old, &new), (&object(key, Tier::Hot), standing), &system, Timestamp(0));
            }
            assert_eq!(
                plan.deeds.values().map(|of| (of.objects, of.moved_bytes)).collect::<Vec<_>>(),
                [(1, moved_bytes)]
            );
        }
        assert_eq!(not_judged(&old, &new), []);
    }

    #[test]
    fn rules_that_ask_how_objects_are_read_are_named() {
        let asked = not_judged(&program(OLD), &program(NEW));
        assert_eq!(asked, [("busy".to_owned(), vec!["reads".to_owned()])]);
        assert_eq!(not_judged(&program(NEW), &program(NEW)), []);
    }
}
