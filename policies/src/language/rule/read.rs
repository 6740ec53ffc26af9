//! Reads rules from a document tree and reports their errors.

use super::{Action, Condition, FieldLocation, Match, Rule, RuleLine, Target};
use crate::language::actions::{ALIASES, ActionKind, Parameter, RESERVED_ACTION, TARGETS};
use crate::language::diagnostic::{TextPosition, clearly_meant, one_of};
use crate::language::findings::Findings;
use crate::language::limits::{ACTIONS_MAX, CONDITIONS_MAX, ITEMS_MAX, NAME_BYTES_MAX};
use crate::language::notes::DeletionParameter;
use crate::language::operators::{CompiledComparison, Operator, ValueForm};
use crate::language::properties::{ConditionType, PropertyRow, properties_of, property_of};
use crate::language::reader::{Fields, LocatedNode, entries};
use crate::language::tree::{DocumentNode, NodeData};
use crate::language::value::{Value, ValueKind, parse_decimal};
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
/// Largest priority; the smallest is `-PRIORITY_MAX`.
pub(in crate::language) const PRIORITY_MAX: i32 = 10_000;

/// Presence of a field with at least one item: required in a rule that is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldPresence {
    Required,
    Optional,
}

/// A rule as far as it could be read.
pub(in crate::language) struct ParsedRule {
    /// The rule, without an unreadable id and without unreadable conditions and actions.
    pub(in crate::language) rule: Rule,
    /// True if the rule has no error.
    pub(in crate::language) is_valid: bool,
    /// True if the only effect of the rule is to switch off the rule with its id, as far as that is known.
    pub(in crate::language) is_switch: bool,
    /// Path and position of the id.
    pub(in crate::language) id_at: (String, TextPosition),
}

impl Rule {
    /// Reads as much of a rule as possible; none if the node is not a map.
    pub(in crate::language) fn read(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<ParsedRule> {
        let before = findings.list.len();
        let fields = Fields::checked(place, RULE_FIELDS, findings)?;
        let id_place = fields.required("id", findings);
        let id_at = id_place.map_or_else(Default::default, |at| (at.path(), at.node.spot));
        let id = id_place.and_then(|id| findings.name(&id));
        // An unreadable `enabled` counts as off, so that no field is reported as missing.
        let enabled = fields.get("enabled").map_or(Some(true), |at| findings.flag(&at));
        let priority = fields.get("priority").and_then(|at| read_priority(&at, findings)).unwrap_or(0);
        let presence = if enabled == Some(true) { FieldPresence::Required } else { FieldPresence::Optional };
        let conditions = read_conditions(&fields, presence, findings);
        let actions = read_actions(&fields, presence, findings);
        let framework_at = fields.get("framework").map(|at| (at.path(), at.node.spot));
        let rule = Self {
            id: id.unwrap_or_default(),
            name: fields.text("name", findings),
            description: fields.text("description", findings),
            priority,
            enabled: enabled.unwrap_or(false),
            stance: fields.get("stance").and_then(|at| findings.word(&at, "stance")),
            framework: fields.get("framework").and_then(|at| findings.name(&at)),
            framework_at: FieldLocation(framework_at),
            matching: fields.get("match").and_then(|at| Match::read(&at, findings)).unwrap_or(Match::All),
            conditions,
            actions: actions.iter().filter_map(|one| one.action.clone()).collect(),
            line: RuleLine(place.line()),
        };
        rule.check_weights(&fields, findings);
        check_conflicts(&actions, findings);
        let is_right = findings.list.len() == before;
        let is_bare = ["conditions", "actions"].iter().all(|field| fields.get(field).is_none());
        let is_switch = if is_right {
            rule.is_switch()
        } else {
            enabled == Some(false) && is_bare && !fields.has_unknown()
        };
        Some(ParsedRule { rule, is_valid: is_right, is_switch, id_at })
    }

    /// Checks that a threshold rule has a condition with a weight above 0, unless the weight of a condition
    /// is unreadable.
    fn check_weights(&self, fields: &Fields<'_>, findings: &mut Findings) {
        let (Match::Threshold(_), Some(conditions)) = (self.matching, fields.get("conditions")) else {
            return;
        };
        let weights: Option<Vec<_>> = list_items(&conditions).iter().map(condition_weight).collect();
        if weights.is_some_and(|weights| !weights.is_empty() && weights.iter().sum::<f64>() <= 0.0) {
            let found = "no condition of the rule has a weight above 0".to_owned();
            let place = fields.place;
            findings.add(
                place.node.spot,
                &place.path(),
                found,
                "at least one weight above 0".to_owned(),
                None,
            );
        }
    }
}

/// Returns the weight of a condition, whether its other fields are valid or not.
fn condition_weight(condition: &DocumentNode) -> Option<f64> {
    let place = LocatedNode::root(condition);
    let mut names = entries(&place).map(|(name, ..)| name);
    if !matches!(condition.data, NodeData::Map(_)) || names.any(|name| !CONDITION_FIELDS.contains(&name)) {
        return None;
    }
    match Fields::unchecked(&place).get("weight") {
        None => Some(1.0),
        Some(at) => match &at.node.data {
            NodeData::Scalar(scalar) => {
                parse_decimal(&scalar.text).filter(|n| scalar.is_plain && (0.0..=1.0).contains(n))
            }
            _ => None,
        },
    }
}

/// Reports an action whose aspect and target an earlier action of the rule already decides.
fn check_conflicts(actions: &[ParsedAction], findings: &mut Findings) {
    for (index, one) in actions.iter().enumerate() {
        let Some((kind, target)) = &one.decides else { continue };
        let same = |(other, its): &&(ActionKind, Target)| other.aspect() == kind.aspect() && its == target;
        if let Some((other, _)) = actions[..index].iter().filter_map(|one| one.decides.as_ref()).find(same) {
            let found = format!("{kind} conflicts with {other}");
            let expected = format!("a rule has at most one action for the {} of a target", kind.aspect());
            let (path, spot) = &one.at;
            findings.add(*spot, path, found, expected, None);
        }
    }
}

fn read_priority(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<i32> {
    let bound = f64::from(PRIORITY_MAX);
    let number = findings.whole_number(place, -bound, bound)?;
    #[expect(clippy::cast_possible_truncation, reason = "whole and within the bound")]
    Some(number as i32)
}

fn read_conditions(fields: &Fields<'_>, presence: FieldPresence, findings: &mut Findings) -> Vec<Condition> {
    let Some(place) = fields.get("conditions") else {
        if presence == FieldPresence::Required {
            fields.report_missing("conditions", findings);
        }
        return Vec::new();
    };
    if presence == FieldPresence::Required && place.is_empty_list() {
        // Without this check a forgotten condition would apply an action such as `evict` to every object.
        let expected = "at least one condition; `exists` of `key` matches every object".to_owned();
        findings.report_wrong(&place, "would match everything", expected);
    }
    let mut conditions = Vec::new();
    for place in fields.all("conditions") {
        let items = findings.items(&place, CONDITIONS_MAX);
        conditions.extend(items.iter().filter_map(|item| Condition::read(item, findings)));
    }
    conditions
}

fn read_actions(fields: &Fields<'_>, presence: FieldPresence, findings: &mut Findings) -> Vec<ParsedAction> {
    let Some(place) = fields.get("actions") else {
        if presence == FieldPresence::Required {
            fields.report_missing("actions", findings);
        }
        return Vec::new();
    };
    if presence == FieldPresence::Required && place.is_empty_list() {
        findings.report_wrong(&place, "does nothing", "at least one action".to_owned());
    }
    let items = findings.items(&place, ACTIONS_MAX);
    let actions = items.iter().filter_map(|item| ParsedAction::read(item, findings)).collect();
    // A duplicate field is checked, too, but only the first one counts.
    for place in fields.all("actions").skip(1) {
        let items = findings.items(&place, ACTIONS_MAX);
        items.iter().for_each(|item| drop(ParsedAction::read(item, findings)));
    }
    actions
}

impl Match {
    fn read(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<Self> {
        const EXPECTED: &str = "all, any or {threshold: 0.6}";
        if entries(place).next().is_some() {
            let fields = Fields::checked(place, &["threshold"], findings)?;
            let threshold = fields.required("threshold", findings)?;
            let share = findings.number(&threshold, 0.0, 1.0)?;
            if share > 0.0 {
                return Some(Self::Threshold(share));
            }
            findings.report_wrong(&threshold, "would match everything", "more than 0, at most 1".to_owned());
            return None;
        }
        match &*findings.scalar(place, EXPECTED)?.text {
            "all" => Some(Self::All),
            "any" => Some(Self::Any),
            _ => {
                findings.report_wrong(place, "is not a match mode", EXPECTED.to_owned());
                None
            }
        }
    }
}

impl Condition {
    fn read(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::checked(place, CONDITION_FIELDS, findings)?;
        let weight = match fields.get("weight") {
            Some(at) => findings.number(&at, 0.0, 1.0),
            None => Some(1.0),
        };
        let property = fields.required("property", findings);
        let operator = fields.required("operator", findings).and_then(|at| findings.word(&at, "operator"));
        let of = fields.required("type", findings).and_then(|at| findings.word(&at, "condition type"));
        let found = property.and_then(|at| read_property(of, &at, findings));
        let (Some(of), Some((row, name)), Some(operator)) = (of, found, operator) else {
            check_value(&fields, operator, findings);
            return None;
        };
        let value = read_value(&fields, of, row, operator, findings)?;
        let test = match operator {
            Operator::Matches => CompiledComparison::Matches(findings.pattern(&fields.get("value")?)?),
            _ => CompiledComparison::new(operator, &value)?,
        };
        Some(Self {
            condition_type: of,
            property: row.property,
            name,
            operator,
            value,
            weight: weight?,
            comparison: test,
        })
    }
}

/// Returns the property with that word, or the one that was clearly meant.
fn read_property(
    of: Option<ConditionType>,
    place: &LocatedNode<'_>,
    findings: &mut Findings,
) -> Option<(&'static PropertyRow, Box<str>)> {
    let word = &*findings.scalar(place, "a property")?.text;
    let of = of?;
    let Some((row, name)) = property_of(of, word) else {
        let shown: Vec<_> = properties_of(of).map(PropertyRow::display_word).collect();
        let shown: Vec<_> = shown.iter().map(String::as_str).collect();
        findings.report_unknown_word(place, word, &format!("{of} property"), &shown);
        let (row, name) = property_of(of, clearly_meant(word, shown.iter().copied())?)?;
        return Some((row, name.into()));
    };
    // S3 allows 128 characters in a tag key.
    if name.len() > 2 * NAME_BYTES_MAX {
        findings.report_wrong(place, "is too long", format!("a name of at most {}", 2 * NAME_BYTES_MAX));
        return None;
    }
    Some((row, name.into()))
}

/// Returns the operators that conditions of type `of` can use on values of kind `kind`.
pub(in crate::language) fn operators_for(
    of: ConditionType,
    kind: ValueKind,
) -> impl Iterator<Item = Operator> {
    Operator::ALL.iter().copied().filter(move |operator| match of {
        ConditionType::FilePattern => *operator == Operator::Matches,
        _ => operator.value_form(kind).is_some(),
    })
}

/// Checks the value as far as possible when the property is unknown.
fn check_value(fields: &Fields<'_>, operator: Option<Operator>, findings: &mut Findings) {
    let Some(operator) = operator.filter(|one| *one != Operator::Exists) else { return };
    let Some(place) = fields.required("value", findings) else { return };
    match operator {
        Operator::In | Operator::NotIn | Operator::Between => {
            findings.items(&place, ITEMS_MAX);
            let is_pair = operator != Operator::Between || list_items(&place).len() == 2;
            if place.is_empty_list() {
                findings.report_wrong(&place, "is empty", "one or more values".to_owned());
            } else if matches!(place.node.data, NodeData::List(_)) && !is_pair {
                findings.report_wrong(&place, "is not a valid pair", EXPECTED_PAIR.to_owned());
            }
        }
        Operator::Matches => drop(findings.pattern(&place)),
        _ => drop(findings.scalar(&place, "a value")),
    }
}

const EXPECTED_PAIR: &str = "two values, the smaller first";

fn list_items<'a>(place: &LocatedNode<'a>) -> &'a [DocumentNode] {
    if let NodeData::List(items) = &place.node.data { items } else { &[] }
}

fn read_value(
    fields: &Fields<'_>,
    of: ConditionType,
    row: &PropertyRow,
    operator: Operator,
    findings: &mut Findings,
) -> Option<Value> {
    let shape =
        operators_for(of, row.kind).find(|one| *one == operator).and_then(|one| one.value_form(row.kind));
    let Some(shape) = shape else {
        let at = fields.get("operator").unwrap_or(*fields.place);
        let words: Vec<_> = operators_for(of, row.kind).map(Word::name).collect();
        let what = format!("does not fit {}, which is {}", row.display_word(), row.kind.name());
        findings.report_wrong(&at, &what, one_of(words));
        return None;
    };
    if shape == ValueForm::Flag && fields.get("value").is_none() {
        return Some(Value::Flag(true));
    }
    let place = fields.required("value", findings)?;
    match shape {
        ValueForm::One(kind) => findings.value(&place, kind),
        ValueForm::Pattern => findings.value(&place, ValueKind::Text),
        ValueForm::Some(kind) => findings.list(&place, kind).map(Value::List),
        ValueForm::Flag => findings.value(&place, ValueKind::Flag),
        ValueForm::Pair(kind) => read_pair(&place, kind, findings).map(Value::List),
    }
}

fn read_pair(place: &LocatedNode<'_>, kind: ValueKind, findings: &mut Findings) -> Option<Box<[Value]>> {
    let pair = findings.list(place, kind);
    let sizes: Option<Vec<_>> = pair.iter().flatten().map(Value::size).collect();
    // The number of values can be checked even if a value is unreadable.
    let is_pair = match (&pair, sizes.as_deref()) {
        (Some(_), sizes) => matches!(sizes, Some([low, high]) if low <= high),
        (None, _) => matches!(list_items(place).len(), 0 | 2),
    };
    if !is_pair {
        findings.report_wrong(place, "is not a valid pair", EXPECTED_PAIR.to_owned());
    }
    pair.filter(|_| is_pair)
}

/// An action as far as it could be read.
struct ParsedAction {
    action: Option<Action>,
    /// Kind and target of the action, if both are readable.
    decides: Option<(ActionKind, Target)>,
    at: (String, TextPosition),
}

impl ParsedAction {
    /// Reads as much of an action as possible; none if the node is not a map.
    fn read(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::checked(place, ACTION_FIELDS, findings)?;
        let target = match fields.get("target") {
            Some(at) => Target::read(&at, findings),
            None => Some(Target::Object),
        };
        let stance = fields.get("stance").and_then(|at| findings.word(&at, "stance"));
        let kind = fields.required("type", findings).and_then(|at| read_kind(&at, findings));
        let given = fields.get("parameters");
        let mut parameters = match (kind, &given) {
            (Some(kind), Some(given)) => read_parameters(kind, given, findings),
            (None, Some(given)) => {
                // The parameters of an unknown action are unknown, but must be a map.
                findings.entries(given);
                None
            }
            (_, None) => Some(Vec::new()),
        };
        if let (Some(ActionKind::Retain), Some(Target::Dataset), Some(at)) =
            (kind, &target, fields.get("target"))
        {
            let of_dataset = refuse_retain_of_dataset(&at, findings);
            parameters = parameters.and(of_dataset);
        }
        let answers = kind.zip(target);
        let action = answers.clone().zip(parameters);
        let action = action.map(|((kind, target), parameters)| Action { kind, target, stance, parameters });
        Some(Self { action, decides: answers, at: (place.path(), place.node.spot) })
    }
}

fn read_kind(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<ActionKind> {
    let word = &*findings.scalar(place, "an action")?.text;
    let alias = ALIASES.iter().find(|(alias, _)| *alias == word).map(|(_, kind)| *kind);
    let kind = ActionKind::from_word(word).or(alias);
    if kind.is_none() && word == RESERVED_ACTION {
        findings.report_wrong(place, "is reserved", "another action until clusters are supported".to_owned());
    } else if kind.is_none() {
        findings.report_unknown_word(place, word, "action", ActionKind::WORDS);
        return ActionKind::from_word(clearly_meant(word, ActionKind::WORDS.iter().copied())?);
    }
    kind
}

fn read_parameters(
    kind: ActionKind,
    place: &LocatedNode<'_>,
    findings: &mut Findings,
) -> Option<Vec<(Parameter, Value)>> {
    let mut known: Vec<_> = kind.rows().iter().map(|row| row.parameter.name()).collect();
    if findings.notes.is_stored() {
        known.extend(kind.removed_parameters());
    }
    let fields = Fields::checked(place, &known, findings)?;
    let given = kind.rows().iter().filter_map(|row| Some((row, fields.get(row.parameter.name())?)));
    let read: Vec<_> = given
        .map(|(row, at)| {
            let value = findings.value_within(&at, row.kind, row.range)?;
            record_deletion(row.parameter, &value, &at, findings);
            Some((row.parameter, value))
        })
        .collect();
    read.into_iter().collect()
}

/// Records a parameter that requests or delays deletions, because plugins must not have one.
fn record_deletion(parameter: Parameter, value: &Value, place: &LocatedNode<'_>, findings: &mut Findings) {
    if parameter == Parameter::Grace || (parameter == Parameter::Delete && *value == Value::Flag(true)) {
        findings.notes.deletions.push(DeletionParameter {
            parameter,
            spot: place.node.spot,
            path: place.path(),
        });
    }
}

/// Refuses `retain` with the target `dataset`, which has no checkpoints. In a stored policy the action is
/// read with the largest `keep_last`, so that it deletes nothing and no weaker rule takes effect in its
/// place.
fn refuse_retain_of_dataset(
    place: &LocatedNode<'_>,
    findings: &mut Findings,
) -> Option<Vec<(Parameter, Value)>> {
    if findings.notes.is_stored() {
        return Some(vec![(Parameter::KeepLast, Value::Number(u32::MAX.into()))]);
    }
    let expected = "checkpoint_group, prefix:PREFIX or no target".to_owned();
    findings.report_wrong(place, "has no checkpoints", expected);
    None
}

impl Target {
    fn read(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<Self> {
        let text = &*findings.scalar(place, &TARGETS.join(", "))?.text;
        let prefix = text.strip_prefix("prefix:").filter(|prefix| !prefix.is_empty());
        let target = Self::from_word(text).or_else(|| Some(Self::Prefix(prefix?.into())));
        if target.is_none() {
            findings.report_unknown_word(place, text, "target", TARGETS);
        }
        target.or_else(|| Self::from_word(clearly_meant(text, TARGETS.iter().copied())?))
    }

    fn from_word(word: &str) -> Option<Self> {
        match word {
            "object" => Some(Self::Object),
            "dataset" => Some(Self::Dataset),
            "checkpoint_group" => Some(Self::CheckpointGroup),
            _ => None,
        }
    }
}
