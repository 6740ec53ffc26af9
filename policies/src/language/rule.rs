//! A rule: when it matches, and what it then does.

use super::actions::{ActionKind, Parameter};
use super::diagnostic::Spot;
use super::operators::{Operator, Test};
use super::properties::{ConditionType, Property};
use super::value::Value;
use super::words::{Stance, Word};
use std::fmt;

mod read;

pub(super) use read::{PRIORITY_MAX, ReadRule, operators_for};

/// A rule as a file gives it, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// What other layers replace it by.
    pub id: Box<str>,
    /// For people.
    pub name: Option<Box<str>>,
    /// For people.
    pub description: Option<Box<str>>,
    /// Higher ones first.
    pub priority: i32,
    /// Whether it takes part; one that does not takes a weaker layer's rule of its id out.
    pub enabled: bool,
    /// What holds for actions that say nothing themselves; none leaves it to the layer.
    pub stance: Option<Stance>,
    /// It is tried only where this framework is detected.
    pub framework: Option<Box<str>>,
    /// Where the file says so.
    pub(super) framework_at: At,
    /// How many of the conditions have to hold.
    pub matching: Match,
    /// The conditions, in the order of the file.
    pub conditions: Vec<Condition>,
    /// The actions, in the order in which they run.
    pub actions: Vec<Action>,
    /// The line where it begins.
    pub line: Line,
}

/// A line of a file; all are equal, because a rule is the same wherever it stands.
#[derive(Clone, Copy, Debug)]
pub struct Line(pub u32);

impl PartialEq for Line {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The path and place of something; all are equal, as lines are.
#[derive(Clone, Debug, Default)]
pub(super) struct At(pub(super) Option<(String, Spot)>);

impl PartialEq for At {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// How many conditions have to hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Match {
    /// All.
    All,
    /// One.
    Any,
    /// Those that hold have at least this share of all weights.
    Threshold(f64),
}

/// What a rule asks for.
#[derive(Clone, Debug)]
pub struct Condition {
    /// What it looks at.
    pub of: ConditionType,
    /// Which property.
    pub property: Property,
    /// The tag's or metadata's name; otherwise empty.
    pub name: Box<str>,
    /// How it compares.
    pub operator: Operator,
    /// With what.
    pub value: Value,
    /// How much it counts, 0 to 1.
    pub weight: f64,
    pub(super) test: Test,
}

/// The test is made of the other fields.
impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        let key = |c: &Self| (c.of, c.property, c.operator, c.weight.to_bits());
        key(self) == key(other) && self.name == other.name && self.value == other.value
    }
}

impl Rule {
    /// Whether all that it does is to take out the one of its id.
    pub(super) fn is_switch(&self) -> bool {
        !self.enabled && self.conditions.is_empty() && self.actions.is_empty()
    }
}

impl Condition {
    /// The property's word, as `tags.team`.
    #[must_use]
    pub fn word(&self) -> String {
        format!("{}{}", self.property.row().word, self.name)
    }
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// What.
    pub kind: ActionKind,
    /// To what.
    pub target: Target,
    /// Its own stance, if it has one.
    pub stance: Option<Stance>,
    /// The parameters that the file gives.
    pub parameters: Vec<(Parameter, Value)>,
}

/// What an action is done to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// The object that the rule matched.
    Object,
    /// The dataset that it belongs to.
    Dataset,
    /// The checkpoint that it is a part of.
    CheckpointGroup,
    /// Every key of its bucket that begins so.
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
    /// The value of a parameter: given, or its default; none where it has neither.
    #[must_use]
    pub fn value(&self, parameter: Parameter) -> Option<Value> {
        let given = self.parameters.iter().find(|(one, _)| *one == parameter).map(|(_, value)| value.clone());
        let row = || self.kind.rows().iter().find(|row| row.parameter == parameter);
        given.or_else(|| row()?.default_value())
    }

    /// The number, bytes, percent or seconds of a parameter.
    #[must_use]
    pub fn size(&self, parameter: Parameter) -> Option<f64> {
        self.value(parameter)?.size()
    }

    /// The time of a parameter.
    #[must_use]
    pub fn time(&self, parameter: Parameter) -> Option<std::time::Duration> {
        match self.value(parameter)? {
            Value::Duration(time) => Some(time),
            _ => None,
        }
    }

    /// The bytes of a parameter.
    #[must_use]
    pub fn bytes(&self, parameter: Parameter) -> Option<u64> {
        match self.value(parameter)? {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Whether a parameter says yes.
    #[must_use]
    pub fn flag(&self, parameter: Parameter) -> bool {
        self.value(parameter) == Some(Value::Flag(true))
    }

    /// The word of a parameter.
    #[must_use]
    pub fn word<W: Word>(&self, parameter: Parameter) -> Option<W> {
        W::of(self.value(parameter)?.text()?)
    }
}
