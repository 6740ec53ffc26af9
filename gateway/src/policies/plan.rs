//! What another policy would do with what is stored, object by object, beside the one that runs.
//!
//! Pure. Rules are asked as a round asks them: by what is known of each object now, at rest and from whoever reads. What a rule says of a whole
//! dataset, checkpoint or prefix is found first ([`Plan::hear`]) and then told of all that belong to it ([`Plan::look`]). A rule that asks how objects are
//! read and matches none is named ([`Plan::not_judged`]): what it asks may not be known yet.

use super::acting::groups::{InCheckpoint, checkpoint_keep, pin_newest};
use super::facts::{KnownObject, ObjectFacts};
use super::place::SystemFacts;
use mlgw_common::Timestamp;
use mlgw_common::limits::PLAN_EXAMPLES;
use mlgw_policies::at_rest::{Area, Areas, By, Claim, Deeds, Move, is_at_rest};
use mlgw_policies::checkpoints::{Checkpoints, Standing};
use mlgw_policies::language::{
    ActionKind, ConditionType, Due, EffectiveRule, Fact, Facts, Program, Property, Resolved, Stance, Target,
    Tier, Wish, resolve,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

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

/// An object that is looked at, and what is known of it.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// Its bucket's id.
    pub bucket: u64,
    /// The object at rest.
    pub object: &'a KnownObject,
    /// The prefix of the checkpoint that it is of.
    pub prefix: Option<&'a str>,
    /// What checkpoints tell of it.
    pub standing: Standing,
    /// How it is read, from whoever watches that.
    pub access: Option<&'a dyn Facts>,
    /// How long it was not read.
    pub idle: Duration,
    /// How the server is.
    pub system: &'a SystemFacts,
    /// Now.
    pub now: Timestamp,
}

/// A policy, and what it says of more than one object.
struct Side {
    program: Arc<Program>,
    done: Areas,
    observed: Areas,
}

/// What a policy says of one object.
struct Said {
    stance: Stance,
    action: ActionKind,
    target: Target,
    wish: Wish,
    /// The rank of the rule, and its id.
    rule: (Option<usize>, Arc<str>),
    /// What it was said of, where that is more than the object.
    area: Option<Area>,
}

/// What would be otherwise.
pub struct Plan {
    running: Side,
    other: Side,
    /// Objects that were looked at.
    pub objects: u64,
    /// Objects for which anything would be otherwise.
    pub changed: u64,
    /// What would, by rule and action: at most as many as both policies have actions.
    pub deeds: BTreeMap<Deed, Extent>,
    /// The other policy's rules that matched an object.
    matched: BTreeSet<Arc<str>>,
    /// Whether there is a cold tier, and an upstream that takes segments.
    below: (bool, bool),
}

impl Plan {
    /// Begins to compare the running policy with another one.
    #[must_use]
    pub fn new(running: Arc<Program>, other: Arc<Program>, below: (bool, bool)) -> Self {
        let side = |program| Side { program, done: Areas::default(), observed: Areas::default() };
        Self {
            running: side(running),
            other: side(other),
            objects: 0,
            changed: 0,
            deeds: BTreeMap::new(),
            matched: BTreeSet::new(),
            below,
        }
    }

    /// The policies: the one that runs, and the other one.
    #[must_use]
    pub fn programs(&self) -> (&Program, &Program) {
        (&self.running.program, &self.other.program)
    }

    /// Heeds the newest complete checkpoints, which either policy pins without a rule.
    pub fn hear_newest(&mut self, of: &Checkpoints) {
        for side in [&mut self.running, &mut self.other] {
            pin_newest(of, checkpoint_keep(&side.program), |_| true, &mut side.done);
        }
    }

    /// Finds out what rules say of what an object belongs to.
    pub fn hear(&mut self, of: &Subject<'_>) {
        [&mut self.running, &mut self.other].into_iter().for_each(|side| side.hear(of));
    }

    /// Looks at one object.
    pub fn look(&mut self, of: &Subject<'_>) {
        self.objects += 1;
        let (old, new) = (self.running.say(of), self.other.say(of));
        self.matched.extend(new.iter().map(|said| Arc::clone(&said.rule.1)));
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

    /// Rules of the other policy that the running one does not have, that ask how objects are read and that matched none; and what they ask.
    #[must_use]
    pub fn not_judged(&self) -> Vec<(String, Vec<String>)> {
        let rules = not_judged(&self.running.program, &self.other.program).into_iter();
        rules.filter(|(rule, _)| !self.matched.contains(rule.as_str())).collect()
    }
}

impl Side {
    /// Asks with what is known of an object.
    fn with<T>(&self, of: &Subject<'_>, ask: impl FnOnce(&dyn Facts) -> T) -> T {
        let mut rest = ObjectFacts::new(&self.program, of.object, of.system, of.now);
        rest.access = of.access;
        ask(&InCheckpoint { standing: of.standing, rest: &rest })
    }

    fn hear(&mut self, of: &Subject<'_>) {
        let mut heard = Vec::new();
        self.with(of, |facts| {
            let resolved = resolve(self.program.due(facts));
            let wide = due(&resolved).filter_map(|due| Some((due.stance, of.area(due)?, due)));
            heard.extend(
                wide.filter_map(|(stance, area, due)| Some((stance, area, Claim::of(&self.program, due)?))),
            );
        });
        for (stance, area, claim) in heard {
            let areas = if stance == Stance::Act { &mut self.done } else { &mut self.observed };
            areas.add(area, claim);
        }
    }

    fn say(&self, of: &Subject<'_>) -> Vec<Said> {
        let mut said = self.with(of, |facts| {
            let resolved = resolve(self.program.due(facts));
            let narrow = due(&resolved).filter(|due| of.area(due).is_none());
            narrow.map(|due| Said::of(&self.program, due)).collect::<Vec<_>>()
        });
        let dataset = of.dataset();
        for (stance, areas) in [(Stance::Act, &self.done), (Stance::Observe, &self.observed)] {
            let wide = areas.of(of.bucket, &of.object.key, dataset.as_deref());
            said.extend(wide.filter_map(|(area, claim)| Said::wide(stance, area, claim)));
        }
        said
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
        match self.access?.fact(Property::Dataset, "") {
            Some(Fact::Text(name)) => Some(name.to_owned()),
            _ => None,
        }
    }

    /// What an action is done to, where that is known to be more than the object. Who retains chooses among checkpoints himself.
    fn area(&self, due: &Due<'_>) -> Option<Area> {
        let (target, kind) = (&due.action.target, due.action.kind);
        if *target == Target::Object || kind == ActionKind::Retain || !is_at_rest(kind) {
            return None;
        }
        Area::of(target, self.bucket, self.dataset().as_deref(), self.prefix)
    }
}

fn due<'r, 'p>(resolved: &'r Resolved<'p>) -> impl Iterator<Item = &'r Due<'p>> {
    resolved.done.iter().chain(&resolved.observed)
}

/// What is done with an object of all that is said to be done, not only observed.
fn acting(said: &[Said], idle: Duration) -> Deeds {
    let claims: Vec<_> =
        said.iter().filter(|one| one.stance == Stance::Act).filter_map(Said::claim).collect();
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

    /// Whether the same is done in the same way, whichever rule says it.
    fn is_same(&self, other: &Self) -> bool {
        (self.action, &self.target, self.stance, &self.wish)
            == (other.action, &other.target, other.stance, &other.wish)
    }

    /// Whether it moves the bytes of an object now, if `deeds` are what is done with it. What is only observed is taken as if it were the only one.
    fn moves(&self, deeds: &Deeds, of: &Subject<'_>, (has_cold, has_upstream): (bool, bool)) -> bool {
        let alone = || Deeds::of(self.claim().iter(), of.idle, |_| false).tier;
        let (tier, deed) =
            (of.object.tier, if self.stance == Stance::Act { deeds.tier.clone() } else { alone() });
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

/// Rules of `other` that the running policy does not have and that ask how objects are read, and what they ask.
fn not_judged(running: &Program, other: &Program) -> Vec<(String, Vec<String>)> {
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
    use super::{Plan, Subject};
    use crate::policies::facts::KnownObject;
    use crate::policies::place::SystemFacts;
    use mlgw_common::Timestamp;
    use mlgw_policies::checkpoints::Standing;
    use mlgw_policies::language::{Fact, FactList, FileType, PolicyFile, Program, Property, Stance, Tier};
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
        Subject { bucket: 1, object, prefix: None, standing, access: None, idle: IDLE, system, now }
    }

    /// Looks at objects, after all of them were heard about, as a plan is made.
    fn look(plan: &mut Plan, objects: &[(&str, Tier, Option<u32>)]) {
        let system = SystemFacts::default();
        for is_heard in [false, true] {
            for (key, tier, generation) in objects {
                let object = object(key, *tier);
                let prefix = key.rsplit_once('/').map(|(prefix, _)| format!("{prefix}/"));
                let file_type = prefix.as_ref().map(|_| FileType::Checkpoint);
                let standing = Standing { generation: *generation, file_type };
                let of = Subject { prefix: prefix.as_deref(), standing, ..subject(&object, &system) };
                if is_heard { plan.look(&of) } else { plan.hear(&of) }
            }
        }
    }

    /// Rule, whether it stops, and how many objects of it there are and bytes to move.
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
    fn what_begins_and_what_stops_is_counted_with_what_moves() {
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
    fn generations_are_known_and_nothing_moves_where_there_is_nowhere_to_go() {
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
    fn what_is_said_of_a_whole_is_planned_for_all_that_belong_to_it() {
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
    fn rules_that_ask_how_objects_are_read_are_named_until_they_match() {
        let mut plan = plan(OLD, NEW);
        assert_eq!(plan.not_judged(), [("busy".to_owned(), vec!["reads".to_owned()])]);
        let (object, system) = (object("x", Tier::Hot), SystemFacts::default());
        let access = FactList(vec![(Property::Reads, "", Fact::Number(4.0))]);
        plan.look(&Subject { access: Some(&access), ..subject(&object, &system) });
        assert_eq!((plan.not_judged(), told(&plan)), (vec![], vec![("busy", "pin", false, 1, 0)]));
        assert_eq!(super::not_judged(&program(NEW), &program(NEW)), []);
    }
}
