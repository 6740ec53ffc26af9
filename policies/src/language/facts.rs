//! Facts: the values of properties, with which conditions are compared. Facts are determined one by one, only
//! when a rule needs them.

use super::properties::Property;
use super::value::Value;
use crate::key_parts::{name_of, split, split_at_last_dot};
use std::time::Duration;

/// Source of the facts about one access.
///
/// If a fact does not exist, only `exists: false` holds. If it is [`Fact::Unknown`], no condition holds.
pub trait Facts {
    /// Returns the value of `property`. `name` is the name of the tag or metadata entry, otherwise empty.
    fn fact(&self, property: Property, name: &str) -> Option<Fact<'_>>;
}

/// A value of the kind that the row of its property gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fact<'a> {
    /// A text or word.
    Text(&'a str),
    /// A number.
    Number(f64),
    /// Percent.
    Percent(f64),
    /// Bytes.
    Bytes(u64),
    /// Bytes per second.
    Rate(u64),
    /// A time span.
    Duration(Duration),
    /// A boolean.
    Flag(bool),
    /// A list of texts.
    List(&'a [&'a str]),
    /// The fact may exist, but has not been loaded.
    Unknown,
}

impl Fact<'_> {
    /// Returns the size by which facts of one kind are compared, like [`Value::size`].
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "sizes stay below 2^53")]
    pub fn size(&self) -> Option<f64> {
        match self {
            Self::Number(number) | Self::Percent(number) => Some(*number),
            Self::Bytes(bytes) | Self::Rate(bytes) => Some(*bytes as f64),
            Self::Duration(time) => Some(time.as_secs_f64()),
            Self::Text(_) | Self::Flag(_) | Self::List(_) | Self::Unknown => None,
        }
    }

    /// Returns an owned copy; none for [`Self::Unknown`].
    #[must_use]
    pub fn to_value(&self) -> Option<Value> {
        Some(match self {
            Self::Text(text) => Value::Text((*text).into()),
            Self::Number(number) => Value::Number(*number),
            Self::Percent(number) => Value::Percent(*number),
            Self::Bytes(bytes) => Value::Bytes(*bytes),
            Self::Rate(bytes) => Value::Rate(*bytes),
            Self::Duration(time) => Value::Duration(*time),
            Self::Flag(flag) => Value::Flag(*flag),
            Self::List(items) => Value::List(items.iter().map(|item| Value::Text((*item).into())).collect()),
            Self::Unknown => return None,
        })
    }
}

/// A source without facts.
#[derive(Clone, Copy, Debug)]
pub struct NoFacts;

impl Facts for NoFacts {
    fn fact(&self, _: Property, _: &str) -> Option<Fact<'_>> {
        None
    }
}

/// Facts in a list, for simulations, hardware profiles and tests.
#[derive(Clone, Debug, Default)]
pub struct FactList<'a>(pub Vec<(Property, &'a str, Fact<'a>)>);

impl Facts for FactList<'_> {
    fn fact(&self, property: Property, name: &str) -> Option<Fact<'_>> {
        self.0.iter().find(|(of, named, _)| *of == property && *named == name).map(|(_, _, fact)| *fact)
    }
}

/// Owned copy of facts, for later evaluation elsewhere.
#[derive(Clone, Debug, Default)]
pub struct FactSnapshot(Vec<(Property, Value)>);

impl FactSnapshot {
    /// Copies the facts about the given properties, which must not be named ones.
    #[must_use]
    pub fn capture(facts: &dyn Facts, properties: &[Property]) -> Self {
        let copied = |property: &Property| Some((*property, facts.fact(*property, "")?.to_value()?));
        Self(properties.iter().filter_map(copied).collect())
    }

    /// Returns a view that implements [`Facts`].
    #[must_use]
    pub fn view(&self) -> FactView<'_> {
        let entries = self.0.iter().map(|(property, value)| {
            let list = if let Value::List(items) = value { &items[..] } else { &[] };
            (*property, value, list.iter().filter_map(Value::text).collect())
        });
        FactView(entries.collect())
    }
}

/// View of [`FactSnapshot`]: property, value, and the texts of a list.
#[derive(Clone, Debug)]
pub struct FactView<'a>(Vec<(Property, &'a Value, Vec<&'a str>)>);

impl Facts for FactView<'_> {
    fn fact(&self, property: Property, name: &str) -> Option<Fact<'_>> {
        let (_, value, list) = self.0.iter().find(|(of, ..)| name.is_empty() && *of == property)?;
        Some(match value {
            Value::Text(text) => Fact::Text(text),
            Value::Number(number) => Fact::Number(*number),
            Value::Percent(number) => Fact::Percent(*number),
            Value::Bytes(bytes) => Fact::Bytes(*bytes),
            Value::Rate(bytes) => Fact::Rate(*bytes),
            Value::Duration(time) => Fact::Duration(*time),
            Value::Flag(flag) => Fact::Flag(*flag),
            Value::List(_) => Fact::List(list),
        })
    }
}

/// Returns the facts that follow from the key alone: `key`, `path`, `name` and `extension`.
#[must_use]
pub fn fact_of_key(key: &str, property: Property) -> Option<Fact<'_>> {
    match property {
        Property::Key => Some(Fact::Text(key)),
        Property::Path => Some(Fact::Text(split(key).0)),
        Property::Name => Some(Fact::Text(name_of(key))),
        // A name that begins with its only dot has no extension.
        Property::Extension => match split_at_last_dot(name_of(key)) {
            Some((stem, extension)) if !stem.is_empty() => Some(Fact::Text(extension)),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Fact, FactList, FactSnapshot, Facts as _, Property, fact_of_key};
    use std::time::Duration;

    #[test]
    fn copied_facts_equal_the_source() {
        let facts = FactList(vec![
            (Property::Dataset, "", Fact::Text("train/#.tar")),
            (Property::Framework, "", Fact::List(&["pytorch", "dcp"])),
            (Property::Reads, "", Fact::Number(4.0)),
            (Property::Recency, "", Fact::Duration(Duration::from_secs(3))),
            (Property::Size, "", Fact::Bytes(7)),
            (Property::Tags, "", Fact::Unknown),
        ]);
        let wanted =
            [Property::Dataset, Property::Framework, Property::Reads, Property::Recency, Property::Phase];
        let taken = FactSnapshot::capture(&facts, &wanted);
        let view = taken.view();
        for property in wanted {
            assert_eq!(view.fact(property, ""), facts.fact(property, ""));
        }
        assert_eq!([Property::Size, Property::Tags].map(|property| view.fact(property, "")), [None, None]);
    }

    #[test]
    fn parts_of_keys_are_facts() {
        for (key, path, name, extension) in [
            ("a/b/c.tar.gz", "a/b/", "c.tar.gz", Some("gz")),
            ("plain", "", "plain", None),
            ("run/.metadata", "run/", ".metadata", None),
            ("dir/", "dir/", "", None),
            ("a.b/c", "a.b/", "c", None),
        ] {
            assert_eq!(fact_of_key(key, Property::Path), Some(Fact::Text(path)));
            assert_eq!(fact_of_key(key, Property::Name), Some(Fact::Text(name)));
            assert_eq!(fact_of_key(key, Property::Extension), extension.map(Fact::Text));
        }
    }
}
