//! A rule: its conditions, and the actions that run when it matches.

use super::actions::{ActionKind, Parameter};
use super::diagnostic::TextPosition;
use super::operators::{CompiledComparison, Operator};
use super::properties::{ConditionType, Property};
use super::value::Value;
use super::words::{Stance, Word};
use std::fmt;

mod read;

pub(super) use read::{PRIORITY_MAX, ParsedRule, operators_for};

/// A rule of a file, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Id by which other layers replace the rule.
    pub id: Box<str>,
    /// Name for readers; without effect.
    pub name: Option<Box<str>>,
    /// Description for readers; without effect.
    pub description: Option<Box<str>>,
    /// Priority; rules with a higher priority are tried first.
    pub priority: i32,
    /// False if the rule is switched off. It then also removes the rule with the same id from weaker layers.
    pub enabled: bool,
    /// Stance of actions that have no stance of their own. Without it the default of the layer applies.
    pub stance: Option<Stance>,
    /// Framework that must be detected for the rule to be tried.
    pub framework: Option<Box<str>>,
    /// Path and position of the field `framework`.
    pub(super) framework_at: FieldLocation,
    /// Number of conditions that must hold.
    pub matching: Match,
    /// The conditions, in the order of the file.
    pub conditions: Vec<Condition>,
    /// The actions, in the order in which they run.
    pub actions: Vec<Action>,
    /// Line at which the rule begins.
    pub line: RuleLine,
}

/// A line of a file. All lines compare equal, so that equal rules at different lines are equal.
#[derive(Clone, Copy, Debug)]
pub struct RuleLine(pub u32);

impl PartialEq for RuleLine {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A path and a position. All compare equal, like lines.
#[derive(Clone, Debug, Default)]
pub(super) struct FieldLocation(pub(super) Option<(String, TextPosition)>);

impl PartialEq for FieldLocation {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Number of conditions that must hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Match {
    /// All.
    All,
    /// At least one.
    Any,
    /// Conditions whose weights sum to at least this share of all weights.
    Threshold(f64),
}

/// A condition of a rule.
#[derive(Clone, Debug)]
pub struct Condition {
    /// Type of the condition: the facts that it inspects.
    pub condition_type: ConditionType,
    /// Property that is compared.
    pub property: Property,
    /// Name of the tag or metadata entry; otherwise empty.
    pub name: Box<str>,
    /// Comparison operator.
    pub operator: Operator,
    /// Value with which the property is compared.
    pub value: Value,
    /// Weight for a threshold match, 0 to 1.
    pub weight: f64,
    pub(super) comparison: CompiledComparison,
}

/// Compares all fields but the compiled comparison, which is derived from the others.
impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        let key = |c: &Self| (c.condition_type, c.property, c.operator, c.weight.to_bits());
        key(self) == key(other) && self.name == other.name && self.value == other.value
    }
}

impl Rule {
    /// True if the only effect of the rule is to remove the rules with its id from weaker layers.
    pub(super) fn is_switch(&self) -> bool {
        !self.enabled && self.conditions.is_empty() && self.actions.is_empty()
    }
}

impl Condition {
    /// Returns the word of the property, such as `tags.team`.
    #[must_use]
    pub fn word(&self) -> String {
        format!("{}{}", self.property.row().word, self.name)
    }
}

/// An action of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// Kind of the action.
    pub kind: ActionKind,
    /// Target of the action.
    pub target: Target,
    /// Stance of this action, if the file gives one.
    pub stance: Option<Stance>,
    /// Parameters that the file gives.
    pub parameters: Vec<(Parameter, Value)>,
}

/// Target of an action.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// The object for which the rule matched.
    Object,
    /// The dataset of the object.
    Dataset,
    /// The checkpoint that contains the object.
    CheckpointGroup,
    /// Every key of the bucket with this prefix.
    Prefix(Box<str>),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object => f.write_str("object"),
            Self::Dataset => f.write_str("dataset"),
            Self::CheckpointGroup => f.write_str("checkpoint_group"),
            Self::Prefix(prefix) => write!(f, "prefix:{prefix}"),
        }
    }
}

impl Action {
    /// Returns the value of a parameter: the given one, or the default; none if there is neither.
    #[must_use]
    pub fn value(&self, parameter: Parameter) -> Option<Value> {
        let given = self.parameters.iter().find(|(one, _)| *one == parameter).map(|(_, value)| value.clone());
        let row = || self.kind.rows().iter().find(|row| row.parameter == parameter);
        given.or_else(|| row()?.default_value())
    }

    /// Returns the number, bytes, percent or seconds of a parameter.
    #[must_use]
    pub fn size(&self, parameter: Parameter) -> Option<f64> {
        self.value(parameter)?.size()
    }

    /// Returns the time span of a parameter.
    #[must_use]
    pub fn time(&self, parameter: Parameter) -> Option<std::time::Duration> {
        match self.value(parameter)? {
            Value::Duration(time) => Some(time),
            _ => None,
        }
    }

    /// Returns the bytes of a parameter.
    #[must_use]
    pub fn bytes(&self, parameter: Parameter) -> Option<u64> {
        match self.value(parameter)? {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// True if the parameter is `true`.
    #[must_use]
    pub fn flag(&self, parameter: Parameter) -> bool {
        self.value(parameter) == Some(Value::Flag(true))
    }

    /// Returns the word of a parameter.
    #[must_use]
    pub fn word<W: Word>(&self, parameter: Parameter) -> Option<W> {
        W::from_word(self.value(parameter)?.text()?)
    }
}
