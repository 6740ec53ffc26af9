//! Reads rules, and says what is wrong with them.

use super::{Action, Condition, Line, Match, Rule, Target};
use crate::language::actions::{ALIASES, ActionKind, Parameter, REPLICATE, TARGETS};
use crate::language::diagnostic::{Findings, one_of};
use crate::language::limits::{ACTIONS_MAX, CONDITIONS_MAX, NAME_BYTES_MAX};
use crate::language::operators::{Operator, Shape, Test};
use crate::language::properties::{ConditionType, PropertyRow, properties_of, property_of};
use crate::language::reader::{Fields, Place, entries};
use crate::language::value::{Kind, Value};
use crate::language::words::Word;

/// Fields of a rule.
const RULE_FIELDS: &[&str] = &[
    "id",
    "name",
    "description",
    "priority",
    "enabled",
    "stance",
    "framework",
    "match",
    "conditions",
    "actions",
];
/// Fields of a condition.
const CONDITION_FIELDS: &[&str] = &["type", "property", "operator", "value", "weight"];
/// Fields of an action.
const ACTION_FIELDS: &[&str] = &["type", "target", "stance", "parameters"];
/// The largest priority; the smallest is as far below nothing.
pub(in crate::language) const PRIORITY_MAX: i32 = 10_000;

impl Rule {
    pub(in crate::language) fn read(place: &Place<'_>, findings: &mut Findings) -> Option<Self> {
        let before = findings.list.len();
        let fields = Fields::of(place, RULE_FIELDS, findings)?;
        let id = fields.need("id", findings).and_then(|id| findings.name(&id));
        // Where nobody can say whether it is switched off, nothing is missing.
        let enabled = fields.get("enabled").map_or(Some(true), |at| findings.flag(&at)).unwrap_or(false);
        let priority = fields.get("priority").and_then(|at| read_priority(&at, findings)).unwrap_or(0);
        let before_conditions = findings.list.len();
        let conditions = read_conditions(&fields, enabled, findings);
        let has_all_conditions = findings.list.len() == before_conditions;
        let actions = read_actions(&fields, enabled, findings);
        let rule = Self {
            id: id.unwrap_or_default(),
            name: fields.text("name", findings),
            description: fields.text("description", findings),
            priority,
            enabled,
            stance: fields.get("stance").and_then(|at| findings.word(&at, "stance")),
            framework: fields.get("framework").and_then(|at| findings.name(&at)),
            matching: fields.get("match").and_then(|at| Match::read(&at, findings)).unwrap_or(Match::All),
            conditions,
            actions,
            line: Line(place.line()),
        };
        if has_all_conditions {
            rule.check_weights(place, findings);
        }
        rule.check_actions(place, findings);
        (findings.list.len() == before).then_some(rule)
    }

    fn check_weights(&self, place: &Place<'_>, findings: &mut Findings) {
        let weights: f64 = self.conditions.iter().map(|one| one.weight).sum();
        if matches!(self.matching, Match::Threshold(_)) && !self.conditions.is_empty() && weights <= 0.0 {
            let found = "no condition of the rule has a weight".to_owned();
            findings.add(place.node.spot, &place.path(), found, "one above 0".to_owned(), None);
        }
    }

    /// No action answers a question that another one has answered.
    fn check_actions(&self, place: &Place<'_>, findings: &mut Findings) {
        for (index, action) in self.actions.iter().enumerate() {
            let same = |other: &&Action| {
                other.kind.aspect() == action.kind.aspect() && other.target == action.target
            };
            if let Some(other) = self.actions[..index].iter().find(same) {
                let path = format!("{}.actions[{index}]", place.path());
                let found = format!("{} says again what {} says", action.kind, other.kind);
                let expected = format!("one action of a rule for the {} of a target", action.kind.aspect());
                findings.add(place.node.spot, &path, found, expected, None);
            }
        }
    }
}

fn read_priority(place: &Place<'_>, findings: &mut Findings) -> Option<i32> {
    let bound = f64::from(PRIORITY_MAX);
    let number = findings.whole(place, -bound, bound)?;
    #[expect(clippy::cast_possible_truncation, reason = "whole and within the bound")]
    Some(number as i32)
}

fn read_conditions(fields: &Fields<'_>, enabled: bool, findings: &mut Findings) -> Vec<Condition> {
    let Some(place) = fields.get("conditions") else {
        if enabled {
            fields.missing("conditions", findings);
        }
        return Vec::new();
    };
    let items = findings.items(&place, CONDITIONS_MAX);
    if enabled && place.is_empty_list() {
        // An evict that somebody forgot to bound is a bad day.
        let expected = "one condition at least; `exists` of `key` holds for every object".to_owned();
        findings.wrong(&place, "would match everything", expected);
    }
    items.iter().filter_map(|item| Condition::read(item, findings)).collect()
}

fn read_actions(fields: &Fields<'_>, enabled: bool, findings: &mut Findings) -> Vec<Action> {
    let Some(place) = fields.get("actions") else {
        if enabled {
            fields.missing("actions", findings);
        }
        return Vec::new();
    };
    let items = findings.items(&place, ACTIONS_MAX);
    if enabled && place.is_empty_list() {
        findings.wrong(&place, "does nothing", "one action at least".to_owned());
    }
    items.iter().filter_map(|item| Action::read(item, findings)).collect()
}

impl Match {
    fn read(place: &Place<'_>, findings: &mut Findings) -> Option<Self> {
        const EXPECTED: &str = "all, any or {threshold: 0.6}";
        if entries(place).next().is_some() {
            let fields = Fields::of(place, &["threshold"], findings)?;
            let threshold = fields.need("threshold", findings)?;
            let share = findings.number(&threshold, 0.0, 1.0)?;
            if share > 0.0 {
                return Some(Self::Threshold(share));
            }
            findings.wrong(&threshold, "would match everything", "more than 0, at most 1".to_owned());
            return None;
        }
        match &*findings.scalar(place, EXPECTED)?.text {
            "all" => Some(Self::All),
            "any" => Some(Self::Any),
            _ => {
                findings.wrong(place, "is no way to match", EXPECTED.to_owned());
                None
            }
        }
    }
}

impl Condition {
    fn read(place: &Place<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::of(place, CONDITION_FIELDS, findings)?;
        let weight = match fields.get("weight") {
            Some(at) => findings.number(&at, 0.0, 1.0),
            None => Some(1.0),
        };
        let property = fields.need("property", findings);
        let operator = fields.need("operator", findings).and_then(|at| findings.word(&at, "operator"));
        let of = fields.need("type", findings)?;
        let of = findings.word::<ConditionType>(&of, "type of condition")?;
        let (row, name) = read_property(of, &property?, findings)?;
        let operator = operator?;
        let value = read_value(&fields, of, row, operator, findings)?;
        let test = match operator {
            Operator::Matches => Test::Matches(findings.pattern(&fields.get("value")?)?),
            _ => Test::new(operator, &value)?,
        };
        Some(Self { of, property: row.property, name, operator, value, weight: weight?, test })
    }
}

fn read_property(
    of: ConditionType,
    place: &Place<'_>,
    findings: &mut Findings,
) -> Option<(&'static PropertyRow, Box<str>)> {
    let word = &*findings.scalar(place, "a property")?.text;
    let Some((row, name)) = property_of(of, word) else {
        let shown: Vec<_> = properties_of(of).map(PropertyRow::shown).collect();
        let shown: Vec<_> = shown.iter().map(String::as_str).collect();
        findings.unknown(place, word, &format!("property of {of}"), &shown);
        return None;
    };
    // S3 allows 128 characters in a tag's key.
    if name.len() > 2 * NAME_BYTES_MAX {
        findings.wrong(place, "is too long", format!("a name of at most {}", 2 * NAME_BYTES_MAX));
        return None;
    }
    Some((row, name.into()))
}

/// The operators that conditions of a type may use on values of a kind.
pub(in crate::language) fn operators_for(of: ConditionType, kind: Kind) -> impl Iterator<Item = Operator> {
    Operator::ALL.iter().copied().filter(move |operator| match of {
        ConditionType::FilePattern => *operator == Operator::Matches,
        _ => operator.shape(kind).is_some(),
    })
}

fn read_value(
    fields: &Fields<'_>,
    of: ConditionType,
    row: &PropertyRow,
    operator: Operator,
    findings: &mut Findings,
) -> Option<Value> {
    let shape = operators_for(of, row.kind).find(|one| *one == operator).and_then(|one| one.shape(row.kind));
    let Some(shape) = shape else {
        let at = fields.get("operator").unwrap_or(*fields.place);
        let words: Vec<_> = operators_for(of, row.kind).map(Word::name).collect();
        let what = format!("does not fit {}, which is {}", row.shown(), row.kind.name());
        findings.wrong(&at, &what, one_of(words));
        return None;
    };
    if shape == Shape::Flag && fields.get("value").is_none() {
        return Some(Value::Flag(true));
    }
    let place = fields.need("value", findings)?;
    match shape {
        Shape::One(kind) => findings.value(&place, kind),
        Shape::Pattern => findings.value(&place, Kind::Text),
        Shape::Some(kind) => findings.list(&place, kind).map(Value::List),
        Shape::Flag => findings.value(&place, Kind::Flag),
        Shape::Pair(kind) => {
            let pair = findings.list(&place, kind)?;
            let sizes: Vec<_> = pair.iter().filter_map(Value::size).collect();
            if matches!(sizes[..], [low, high] if low <= high) {
                return Some(Value::List(pair));
            }
            findings.wrong(&place, "is no pair", "two values, the smaller first".to_owned());
            None
        }
    }
}

impl Action {
    fn read(place: &Place<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::of(place, ACTION_FIELDS, findings)?;
        let target = match fields.get("target") {
            Some(at) => Target::read(&at, findings),
            None => Some(Target::Object),
        };
        let stance = fields.get("stance").and_then(|at| findings.word(&at, "stance"));
        let kind = fields.need("type", findings)?;
        let kind = read_kind(&kind, findings)?;
        let mut parameters = Vec::new();
        if let Some(given) = fields.get("parameters") {
            parameters = read_parameters(kind, &given, findings)?;
        }
        if let (ActionKind::Retain, Some(Target::Dataset), Some(at)) = (kind, &target, fields.get("target")) {
            parameters = retain_of_dataset(&at, findings)?;
        }
        Some(Self { kind, target: target?, stance, parameters })
    }
}

fn read_kind(place: &Place<'_>, findings: &mut Findings) -> Option<ActionKind> {
    let word = &*findings.scalar(place, "an action")?.text;
    let alias = ALIASES.iter().find(|(alias, _)| *alias == word).map(|(_, kind)| *kind);
    let kind = ActionKind::of(word).or(alias);
    if kind.is_none() && word == REPLICATE {
        findings.wrong(place, "is refused", "another action until there is a cluster".to_owned());
    } else if kind.is_none() {
        findings.unknown(place, word, "action", ActionKind::WORDS);
    }
    kind
}

fn read_parameters(
    kind: ActionKind,
    place: &Place<'_>,
    findings: &mut Findings,
) -> Option<Vec<(Parameter, Value)>> {
    let mut known: Vec<_> = kind.rows().iter().map(|row| row.parameter.name()).collect();
    if findings.notes.is_stored {
        known.extend(kind.retired());
    }
    let fields = Fields::of(place, &known, findings)?;
    let given = kind.rows().iter().filter_map(|row| Some((row, fields.get(row.parameter.name())?)));
    let read: Vec<_> = given
        .map(|(row, at)| Some((row.parameter, findings.value_within(&at, row.kind, row.range)?)))
        .collect();
    read.into_iter().collect()
}

/// Of a dataset none are retained. Where that is stored, none goes either: all are the last ones, and no weaker rule is heard in its place.
fn retain_of_dataset(place: &Place<'_>, findings: &mut Findings) -> Option<Vec<(Parameter, Value)>> {
    if findings.notes.is_stored {
        return Some(vec![(Parameter::KeepLast, Value::Number(u32::MAX.into()))]);
    }
    let expected = "checkpoint_group, prefix:PREFIX or no target".to_owned();
    findings.wrong(place, "has no checkpoints", expected);
    None
}

impl Target {
    fn read(place: &Place<'_>, findings: &mut Findings) -> Option<Self> {
        let text = &*findings.scalar(place, &TARGETS.join(", "))?.text;
        match text {
            "object" => Some(Self::Object),
            "dataset" => Some(Self::Dataset),
            "checkpoint_group" => Some(Self::CheckpointGroup),
            _ => match text.strip_prefix("prefix:") {
                Some(prefix) if !prefix.is_empty() => Some(Self::Prefix(prefix.into())),
                _ => {
                    findings.unknown(place, text, "target", TARGETS);
                    None
                }
            },
        }
    }
}
