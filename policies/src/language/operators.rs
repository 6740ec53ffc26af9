//! Comparison operators: the kinds of values that each supports, and compiled comparisons.

use super::facts::Fact;
use super::pattern::TextPattern;
use super::value::{Value, ValueKind};
use super::words::words;

words! {
    /// Operator that compares a fact with the value of a condition.
    Operator {
        /// The fact equals the value; in a list, an item does.
        Equals = "equals",
        /// The fact differs from the value; in a list, every item does.
        NotEquals = "not_equals",
        /// The text contains the value; in a list, an item equals it.
        Contains = "contains",
        /// A glob or regular expression matches the fact; in a list, an item.
        Matches = "matches",
        /// The fact is larger than the value.
        GreaterThan = "greater_than",
        /// The fact is smaller than the value.
        LessThan = "less_than",
        /// The fact is larger than or equal to the value.
        GreaterOrEqual = "greater_or_equal",
        /// The fact is smaller than or equal to the value.
        LessOrEqual = "less_or_equal",
        /// The fact equals one of the values.
        In = "in",
        /// The fact equals no value of the list.
        NotIn = "not_in",
        /// The fact is from the first to the second value, both included.
        Between = "between",
        /// The fact is known; with `false`, the fact does not exist.
        Exists = "exists",
    }
}

/// Form of a condition's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueForm {
    /// A single value.
    One(ValueKind),
    /// A pattern.
    Pattern,
    /// A list of one or more values.
    Some(ValueKind),
    /// Two values, the smaller first.
    Pair(ValueKind),
    /// A boolean; `true` is the default.
    Flag,
}

impl Operator {
    /// Returns the form of the value for a property of `kind`; none if the operator does not support it.
    #[must_use]
    pub fn value_form(self, kind: ValueKind) -> Option<ValueForm> {
        let texts = matches!(kind, ValueKind::Text | ValueKind::List);
        // The items of a list are compared, so the value is a text.
        let item = if kind == ValueKind::List { ValueKind::Text } else { kind };
        match self {
            Self::Equals | Self::NotEquals => Some(ValueForm::One(item)),
            Self::Contains => texts.then_some(ValueForm::One(ValueKind::Text)),
            Self::Matches => texts.then_some(ValueForm::Pattern),
            Self::GreaterThan | Self::LessThan | Self::GreaterOrEqual | Self::LessOrEqual => {
                kind.is_ordered().then_some(ValueForm::One(kind))
            }
            Self::In | Self::NotIn => (kind != ValueKind::Flag).then_some(ValueForm::Some(item)),
            Self::Between => kind.is_ordered().then_some(ValueForm::Pair(kind)),
            Self::Exists => Some(ValueForm::Flag),
        }
    }

    /// Returns the operator as the middle of a sentence about a fact for which it holds.
    #[must_use]
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Equals => "is",
            Self::NotEquals => "is not",
            Self::Contains => "contains",
            Self::Matches => "matches",
            Self::GreaterThan => "is more than",
            Self::LessThan => "is less than",
            Self::GreaterOrEqual => "is at least",
            Self::LessOrEqual => "is at most",
            Self::In => "is one of",
            Self::NotIn => "is not one of",
            Self::Between => "is between",
            Self::Exists => "exists:",
        }
    }
}

/// Membership in a list that a comparison requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    Present,
    Absent,
}

impl Membership {
    const fn is_present(self) -> bool {
        matches!(self, Self::Present)
    }
}

/// A compiled comparison. Comparing allocates nothing.
#[derive(Clone, Debug)]
pub(super) enum CompiledComparison {
    Exists(bool),
    Texts(Box<[Box<str>]>, Membership),
    Sizes(Box<[f64]>, Membership),
    Flag(bool, Membership),
    Contains(Box<str>),
    Matches(TextPattern),
    Less(f64),
    AtMost(f64),
    More(f64),
    AtLeast(f64),
    Between(f64, f64),
}

impl CompiledComparison {
    /// Compiles a comparison; none if `value` has not the form that the operator requires.
    pub(super) fn new(operator: Operator, value: &Value) -> Option<Self> {
        Some(match operator {
            Operator::Equals | Operator::In => Self::one_of(value, Membership::Present),
            Operator::NotEquals | Operator::NotIn => Self::one_of(value, Membership::Absent),
            Operator::Contains => Self::Contains(value.text()?.into()),
            Operator::Matches => Self::Matches(TextPattern::new(value.text()?).ok()?),
            Operator::GreaterThan => Self::More(value.size()?),
            Operator::LessThan => Self::Less(value.size()?),
            Operator::GreaterOrEqual => Self::AtLeast(value.size()?),
            Operator::LessOrEqual => Self::AtMost(value.size()?),
            Operator::Between => match value {
                Value::List(pair) if pair.len() == 2 => Self::Between(pair[0].size()?, pair[1].size()?),
                _ => return None,
            },
            Operator::Exists => Self::Exists(*value != Value::Flag(false)),
        })
    }

    fn one_of(value: &Value, required: Membership) -> Self {
        let items = if let Value::List(items) = value { items } else { std::slice::from_ref(value) };
        if let [Value::Flag(flag)] = items {
            return Self::Flag(*flag, required);
        }
        let sizes: Option<Box<[f64]>> = items.iter().map(Value::size).collect();
        match sizes {
            Some(sizes) => Self::Sizes(sizes, required),
            None => Self::Texts(items.iter().filter_map(Value::text).map(Into::into).collect(), required),
        }
    }

    /// True if the comparison holds for `fact`. It never holds for a fact of another kind than the
    /// property's.
    pub(super) fn holds(&self, fact: Option<Fact<'_>>) -> bool {
        let Some(fact) = fact else { return matches!(self, Self::Exists(false)) };
        let by_size = |right: &dyn Fn(f64) -> bool| fact.size().is_some_and(right);
        match self {
            Self::Exists(wanted) => *wanted && fact != Fact::Unknown,
            Self::Texts(texts, required) => {
                any_text(fact, |text| texts.iter().any(|one| **one == *text)) == Some(required.is_present())
            }
            Self::Sizes(sizes, required) => by_size(&|size| sizes.contains(&size) == required.is_present()),
            Self::Flag(wanted, required) => {
                matches!(fact, Fact::Flag(flag) if (flag == *wanted) == required.is_present())
            }
            Self::Contains(part) => match fact {
                Fact::Text(text) => text.contains(&**part),
                Fact::List(items) => items.contains(&&**part),
                _ => false,
            },
            Self::Matches(pattern) => any_text(fact, |text| pattern.is_match(text)) == Some(true),
            Self::Less(limit) => by_size(&|size| size < *limit),
            Self::AtMost(limit) => by_size(&|size| size <= *limit),
            Self::More(limit) => by_size(&|size| size > *limit),
            Self::AtLeast(limit) => by_size(&|size| size >= *limit),
            Self::Between(low, high) => by_size(&|size| (*low..=*high).contains(&size)),
        }
    }

    /// Returns the approximate cost, so that cheap comparisons are tried first.
    pub(super) fn cost(&self) -> u8 {
        match self {
            Self::Matches(TextPattern::Regex(_)) => 5,
            Self::Matches(TextPattern::Glob(_)) => 4,
            Self::Contains(_) => 3,
            Self::Texts(texts, _) if texts.len() > 8 => 3,
            Self::Matches(_) | Self::Texts(..) => 2,
            _ => 1,
        }
    }
}

/// True if the predicate holds for the text or for an item of the list; none for other facts.
fn any_text(fact: Fact<'_>, predicate: impl Fn(&str) -> bool) -> Option<bool> {
    match fact {
        Fact::Text(text) => Some(predicate(text)),
        Fact::List(items) => Some(items.iter().any(|item| predicate(item))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{CompiledComparison, Fact, Operator, Value, ValueForm, ValueKind};
    use crate::language::words::Word;
    use std::time::Duration;

    fn texts(items: &[&str]) -> Value {
        Value::List(items.iter().map(|item| Value::Text((*item).into())).collect())
    }

    fn holds(operator: Operator, value: &Value, fact: Fact<'_>) -> bool {
        CompiledComparison::new(operator, value).unwrap().holds(Some(fact))
    }

    #[test]
    fn texts_are_compared() {
        let fact = Fact::Text("train");
        let text = |text: &str| Value::Text(text.into());
        for (operator, value, expected) in [
            (Operator::Equals, text("train"), true),
            (Operator::Equals, text("Train"), false),
            (Operator::NotEquals, text("val"), true),
            (Operator::NotEquals, text("train"), false),
            (Operator::Contains, text("rai"), true),
            (Operator::Contains, text("x"), false),
            (Operator::Matches, text("tr*"), true),
            (Operator::Matches, text("/^r/"), false),
            (Operator::In, texts(&["val", "train"]), true),
            (Operator::In, texts(&["val"]), false),
            (Operator::NotIn, texts(&["val"]), true),
            (Operator::NotIn, texts(&["train"]), false),
            (Operator::Exists, Value::Flag(true), true),
            (Operator::Exists, Value::Flag(false), false),
        ] {
            assert_eq!(holds(operator, &value, fact), expected, "{operator} {value}");
        }
    }

    #[test]
    fn sizes_are_compared() {
        let pairs = [
            (Fact::Number(10.0), Value::Number(9.0), Value::Number(10.0), Value::Number(11.0)),
            (Fact::Percent(10.0), Value::Percent(9.5), Value::Percent(10.0), Value::Percent(99.0)),
            (Fact::Bytes(10), Value::Bytes(9), Value::Bytes(10), Value::Bytes(11)),
            (Fact::Rate(10), Value::Rate(9), Value::Rate(10), Value::Rate(11)),
            (
                Fact::Duration(Duration::from_secs(10)),
                Value::Duration(Duration::from_secs(9)),
                Value::Duration(Duration::from_secs(10)),
                Value::Duration(Duration::from_secs(11)),
            ),
        ];
        for (fact, less, same, more) in pairs {
            for (operator, with_less, with_same, with_more) in [
                (Operator::Equals, false, true, false),
                (Operator::NotEquals, true, false, true),
                (Operator::GreaterThan, true, false, false),
                (Operator::GreaterOrEqual, true, true, false),
                (Operator::LessThan, false, false, true),
                (Operator::LessOrEqual, false, true, true),
            ] {
                assert_eq!(holds(operator, &less, fact), with_less, "{fact:?} {operator} {less}");
                assert_eq!(holds(operator, &same, fact), with_same, "{fact:?} {operator} {same}");
                assert_eq!(holds(operator, &more, fact), with_more, "{fact:?} {operator} {more}");
            }
            let list = |a: &Value, b: &Value| Value::List([a.clone(), b.clone()].into());
            assert!(holds(Operator::Between, &list(&less, &same), fact));
            assert!(!holds(Operator::Between, &list(&more, &more), fact));
            assert!(holds(Operator::In, &list(&less, &same), fact));
            assert!(holds(Operator::NotIn, &list(&less, &more), fact));
        }
    }

    #[test]
    fn one_item_of_a_list_is_enough() {
        let fact = Fact::List(&["pytorch", "lightning"]);
        let text = |text: &str| Value::Text(text.into());
        assert!(holds(Operator::Equals, &text("lightning"), fact));
        assert!(!holds(Operator::NotEquals, &text("lightning"), fact));
        assert!(holds(Operator::Contains, &text("pytorch"), fact));
        assert!(!holds(Operator::Contains, &text("torch"), fact));
        assert!(holds(Operator::Matches, &text("light*"), fact));
        assert!(holds(Operator::In, &texts(&["x", "pytorch"]), fact));
        assert!(holds(Operator::NotIn, &texts(&["x"]), fact));
    }

    #[test]
    fn flags_are_compared_and_unknown_facts_hold_nothing() {
        assert!(holds(Operator::Equals, &Value::Flag(true), Fact::Flag(true)));
        assert!(holds(Operator::NotEquals, &Value::Flag(true), Fact::Flag(false)));
        for operator in Operator::ALL {
            let value = match operator.value_form(ValueKind::Number).or(operator.value_form(ValueKind::Text))
            {
                Some(ValueForm::Pair(_)) => Value::List([Value::Number(1.0), Value::Number(2.0)].into()),
                Some(ValueForm::Flag) => Value::Flag(false),
                Some(ValueForm::Pattern) => Value::Text("*".into()),
                _ if *operator == Operator::Contains => Value::Text("x".into()),
                _ => Value::Number(1.0),
            };
            let test = CompiledComparison::new(*operator, &value).unwrap();
            assert_eq!(test.holds(None), *operator == Operator::Exists, "{operator}");
            assert!(!test.holds(Some(Fact::Unknown)), "{operator}");
            let exists = CompiledComparison::new(Operator::Exists, &Value::Flag(true)).unwrap();
            assert!(!exists.holds(Some(Fact::Unknown)) && exists.holds(Some(Fact::Text(""))));
        }
    }

    #[test]
    fn operators_support_certain_kinds() {
        assert_eq!(Operator::GreaterThan.value_form(ValueKind::Text), None);
        assert_eq!(Operator::Matches.value_form(ValueKind::Bytes), None);
        assert_eq!(Operator::Matches.value_form(ValueKind::Word(&["a"])), None);
        assert_eq!(Operator::Equals.value_form(ValueKind::List), Some(ValueForm::One(ValueKind::Text)));
        assert_eq!(
            Operator::Between.value_form(ValueKind::Duration),
            Some(ValueForm::Pair(ValueKind::Duration))
        );
    }
}
