//! Reads the fields of a document tree and records every error with its position.

use super::actions::sizes_of;
use super::diagnostic::{Findings, Spot, meant, nearest, one_of, quoted};
use super::limits::{ITEMS_MAX, NAME_BYTES_MAX, PATTERNS_MAX};
use super::pattern::TextPattern;
use super::tree::{Data, Node, Scalar};
use super::value::{Kind, Value, decimal};
use super::words::Word;
use std::fmt::Write;

/// A node and its path from the root.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) node: &'a Node,
    parent: Option<&'a Place<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Item(usize),
}

impl<'a> Place<'a> {
    pub(super) fn root(node: &'a Node) -> Self {
        Self { node, parent: None, step: Step::Root }
    }

    /// Returns the path, such as `rules[2].actions[0].type`.
    pub(super) fn path(&self) -> String {
        let mut path = self.parent.map(Self::path).unwrap_or_default();
        match self.step {
            Step::Root => {}
            Step::Item(index) => {
                // Writing to a String cannot fail.
                let _ = write!(path, "[{index}]");
            }
            Step::Field(name) => push_field(&mut path, name),
        }
        path
    }

    /// Returns the ids in the map at this node, whether the map is otherwise valid or not.
    pub(super) fn ids(&self) -> impl Iterator<Item = &'a str> {
        let entries = if let Data::Map(entries) = &self.node.data { entries.as_slice() } else { &[] };
        entries.iter().filter(|entry| &*entry.key == "id").filter_map(|entry| match &entry.value.data {
            Data::Scalar(scalar) if !scalar.is_null() => Some(&*scalar.text),
            _ => None,
        })
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.node.data == Data::Unknown
    }

    pub(super) fn is_empty_list(&self) -> bool {
        matches!(&self.node.data, Data::List(items) if items.is_empty())
    }

    pub(super) fn line(&self) -> u32 {
        self.node.spot.line
    }
}

fn push_field(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.extend(name.chars().take(NAME_BYTES_MAX).map(|c| if c.is_control() { '?' } else { c }));
}

/// The fields of a map.
pub(super) struct Fields<'a> {
    pub(super) place: &'a Place<'a>,
    /// Unknown fields, which are already reported.
    strange: Vec<Strange<'a>>,
}

/// An unknown field.
struct Strange<'a> {
    value: Place<'a>,
    /// The known field that was probably meant. It is part of the message of the unknown field, so it is not
    /// reported as missing.
    near: Option<String>,
    /// True if the field is close enough to the nearest known field to be read as that one.
    is_read: bool,
}

impl<'a> Fields<'a> {
    /// Returns the fields of the map at `place` and reports every field that is not in `known`.
    pub(super) fn of(place: &'a Place<'a>, known: &[&str], findings: &mut Findings) -> Option<Self> {
        if !matches!(place.node.data, Data::Map(_)) {
            findings.wrong(place, "is no map", format!("a map with {}", known.join(", ")));
            return None;
        }
        let mut fields = Self::known(place);
        for (key, spot, value) in entries(place).filter(|(key, ..)| !known.contains(key)) {
            let found = format!("{} is no field here", quoted(key));
            let near = nearest(key, known.iter().copied());
            let is_read = meant(key, known.iter().copied()).is_some();
            findings.add(spot, &value.path(), found, one_of(known.iter().copied()), near.clone());
            fields.strange.push(Strange { value, near, is_read });
        }
        Some(fields)
    }

    /// Returns the fields of a map without a check for unknown fields.
    pub(super) fn known(place: &'a Place<'a>) -> Self {
        Self { place, strange: Vec::new() }
    }

    /// Returns the fields of a map that was checked before, including misspelt fields; reports nothing.
    pub(super) fn again(place: &'a Place<'a>, known: &[&str]) -> Self {
        Self::of(place, known, &mut Findings::new("")).unwrap_or_else(|| Self::known(place))
    }

    /// True if the field is missing, but may be one of the unknown fields, which are already reported.
    pub(super) fn may_have(&self, name: &str) -> bool {
        self.has_unread() && self.get(name).is_none()
    }

    /// True if there are unknown fields that are not read as known ones.
    pub(super) fn has_unread(&self) -> bool {
        self.unread().next().is_some()
    }

    /// Returns the values of unknown fields that are not read as known ones.
    pub(super) fn unread(&self) -> impl Iterator<Item = &'a Node> {
        self.strange.iter().filter(|one| !one.is_read).map(|one| one.value.node)
    }

    /// Returns the field `name`; a null counts as absent.
    pub(super) fn get(&self, name: &str) -> Option<Place<'a>> {
        self.all(name).next()
    }

    /// Returns all fields named `name` (a valid map has at most one), followed by misspelt fields that are
    /// read as `name`. Nulls are skipped.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = Place<'a>> {
        let named = entries(self.place).filter(move |(key, ..)| *key == name).map(|(_, _, place)| place);
        let is_meant = move |one: &&Strange<'_>| one.is_read && one.near.as_deref() == Some(name);
        let strange = self.strange.iter().filter(is_meant).map(|one| one.value);
        let is_null =
            |place: &Place<'_>| matches!(&place.node.data, Data::Scalar(scalar) if scalar.is_null());
        named.chain(strange).filter(move |place| !is_null(place))
    }

    /// Returns the required field `name`; reports it if it is missing.
    pub(super) fn need(&self, name: &str, findings: &mut Findings) -> Option<Place<'a>> {
        let found = self.get(name);
        if found.is_none() {
            self.missing(name, findings);
        }
        found
    }

    /// Reports that the field `name` is missing, unless a misspelling of it is already reported.
    pub(super) fn missing(&self, name: &str, findings: &mut Findings) {
        if !self.means(name) {
            findings.missing(self.place, name);
        }
    }

    /// True if a field is already reported that is probably a misspelling of `name`.
    pub(super) fn means(&self, name: &str) -> bool {
        self.strange.iter().any(|one| one.near.as_deref() == Some(name))
    }

    /// Returns the text of an optional field.
    pub(super) fn text(&self, name: &str, findings: &mut Findings) -> Option<Box<str>> {
        let place = self.get(name)?;
        findings.value(&place, Kind::Text)?.text().map(Into::into)
    }
}

/// Returns the keys and values of a map with their positions; empty if the node is no map.
pub(super) fn entries<'a>(place: &'a Place<'a>) -> impl Iterator<Item = (&'a str, Spot, Place<'a>)> {
    let entries = if let Data::Map(entries) = &place.node.data { entries.as_slice() } else { &[] };
    entries.iter().map(move |entry| {
        let step = Step::Field(&entry.key);
        (&*entry.key, entry.spot, Place { node: &entry.value, parent: Some(place), step })
    })
}

impl Findings {
    /// Reports that the value at `place` is wrong; `is` completes the sentence that begins with the value.
    /// Nothing is reported of an unknown value.
    pub(super) fn wrong(&mut self, place: &Place<'_>, is: &str, expected: String) {
        if place.is_unknown() {
            return;
        }
        let found = format!("{} {is}", place.node.what());
        self.add(place.node.spot, &place.path(), found, expected, None);
    }

    pub(super) fn missing(&mut self, place: &Place<'_>, field: &str) {
        let found = format!("the field {field} is missing");
        self.add(place.node.spot, &place.path(), found, String::new(), None);
    }

    /// Reports a word that is not in `candidates`.
    pub(super) fn unknown(&mut self, place: &Place<'_>, word: &str, what: &str, candidates: &[&str]) {
        let near = nearest(word, candidates.iter().copied());
        let found = format!("{} is no {what}", quoted(word));
        self.add(place.node.spot, &place.path(), found, one_of(candidates.iter().copied()), near);
    }

    /// Returns the items of a list, at most `most` of them.
    pub(super) fn items<'a>(&mut self, place: &'a Place<'a>, most: usize) -> Vec<Place<'a>> {
        let Data::List(items) = &place.node.data else {
            self.wrong(place, "is no list", "a list".to_owned());
            return Vec::new();
        };
        if items.len() > most {
            self.wrong(place, &format!("of {} items is too long", items.len()), format!("at most {most}"));
        }
        let place_of = |(index, node)| Place { node, parent: Some(place), step: Step::Item(index) };
        items.iter().take(most).enumerate().map(place_of).collect()
    }

    /// Returns the keys and values of a map.
    pub(super) fn entries<'a>(&mut self, place: &'a Place<'a>) -> Vec<(&'a str, Spot, Place<'a>)> {
        if !matches!(place.node.data, Data::Map(_)) {
            self.wrong(place, "is no map", "a map".to_owned());
        }
        entries(place).collect()
    }

    pub(super) fn scalar<'a>(&mut self, place: &Place<'a>, expected: &str) -> Option<&'a Scalar> {
        match &place.node.data {
            Data::Scalar(scalar) if !scalar.is_null() => Some(scalar),
            _ => {
                self.wrong(place, "is no value", expected.to_owned());
                None
            }
        }
    }

    /// Returns the word of a closed list; for an unknown word, the one that was clearly meant.
    pub(super) fn word<W: Word>(&mut self, place: &Place<'_>, what: &str) -> Option<W> {
        let text = &*self.scalar(place, &one_of(W::WORDS.iter().copied()))?.text;
        let word = W::of(text);
        if word.is_none() {
            self.unknown(place, text, what, W::WORDS);
        }
        word.or_else(|| W::of(meant(text, W::WORDS.iter().copied())?))
    }

    /// Reads a value of the kind `kind`.
    pub(super) fn value(&mut self, place: &Place<'_>, kind: Kind) -> Option<Value> {
        if kind == Kind::List {
            return self.list(place, Kind::Text).map(Value::List);
        }
        let scalar = self.scalar(place, &kind.expects())?;
        let value = kind.read(scalar);
        if value.is_none() {
            match kind {
                Kind::Word(words) => self.unknown(place, &scalar.text, "word here", words),
                _ => self.wrong(place, &not_of(kind, scalar), kind.expects()),
            }
        }
        value
    }

    /// Reads a list of one or more values of the kind `kind`.
    pub(super) fn list(&mut self, place: &Place<'_>, kind: Kind) -> Option<Box<[Value]>> {
        let items = self.items(place, ITEMS_MAX);
        if items.is_empty() {
            if place.is_empty_list() {
                self.wrong(place, "is empty", format!("one or more: {}", kind.expects()));
            }
            return None;
        }
        let values: Vec<_> = items.iter().map(|item| self.value(item, kind)).collect();
        values.into_iter().collect()
    }

    /// Reads a value of the kind `kind` that must be within `range`.
    pub(super) fn value_within(
        &mut self,
        place: &Place<'_>,
        kind: Kind,
        range: Option<(&str, &str)>,
    ) -> Option<Value> {
        let value = self.value(place, kind)?;
        let within = |(low, high)| value.size().is_none_or(|size| (low..=high).contains(&size));
        if sizes_of(kind, range).is_none_or(within) {
            return Some(value);
        }
        let (low, high) = range.unwrap_or_default();
        self.wrong(place, "is out of range", format!("from {low} to {high}"));
        None
    }

    /// Reads a number from `low` to `high`.
    pub(super) fn number(&mut self, place: &Place<'_>, low: f64, high: f64) -> Option<f64> {
        let expected = format!("a number from {low} to {high}");
        let scalar = self.scalar(place, &expected)?;
        let number = decimal(&scalar.text).filter(|n| scalar.plain && (low..=high).contains(n));
        if number.is_none() {
            self.wrong(place, "is no number here", expected);
        }
        number
    }

    /// Reads a whole number from `low` to `high`.
    pub(super) fn whole(&mut self, place: &Place<'_>, low: f64, high: f64) -> Option<f64> {
        let number = self.number(place, low, high)?;
        if number.fract() != 0.0 {
            self.wrong(place, "is no whole number", "a whole number".to_owned());
            return None;
        }
        Some(number)
    }

    pub(super) fn flag(&mut self, place: &Place<'_>) -> Option<bool> {
        self.value(place, Kind::Flag).map(|value| value == Value::Flag(true))
    }

    /// Reads and compiles a glob or regular expression.
    pub(super) fn pattern(&mut self, place: &Place<'_>) -> Option<TextPattern> {
        const EXPECTED: &str = "a glob, or /a regular expression/";
        let text = &self.scalar(place, EXPECTED)?.text;
        self.patterns += 1;
        if self.patterns > PATTERNS_MAX {
            self.wrong(place, "is one too many", format!("at most {PATTERNS_MAX} patterns"));
            return None;
        }
        TextPattern::new(text)
            .map_err(|why| self.wrong(place, &format!("is no pattern: {why}"), EXPECTED.to_owned()))
            .ok()
    }

    /// Reads a name to which files can refer.
    pub(super) fn name(&mut self, place: &Place<'_>) -> Option<Box<str>> {
        let expected = format!("letters, digits, '-', '_' and '.', at most {NAME_BYTES_MAX}");
        let text = &self.scalar(place, &expected)?.text;
        if is_name(text) {
            return Some(text.clone());
        }
        self.wrong(place, "is no name", expected);
        None
    }
}

/// True if `text` is a valid name of a rule, template or framework.
pub(super) fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain)
}

/// Describes why a value is not of `kind`, for messages: quoted, without a unit, or of another kind.
fn not_of(kind: Kind, scalar: &Scalar) -> String {
    let bare = decimal(&scalar.text).is_some();
    match kind {
        Kind::Number | Kind::Count | Kind::Flag
            if !scalar.plain && kind.read_text(&scalar.text).is_some() =>
        {
            "stands in quotes".to_owned()
        }
        Kind::Bytes | Kind::Rate | Kind::Duration | Kind::Percent if bare => "has no unit".to_owned(),
        Kind::Number => "is no number".to_owned(),
        Kind::Count => "is no whole number".to_owned(),
        Kind::Flag => "is neither true nor false".to_owned(),
        _ => format!("is not {}", article(kind)),
    }
}

fn article(kind: Kind) -> &'static str {
    match kind {
        Kind::Percent => "a percentage",
        Kind::Bytes => "a number of bytes",
        Kind::Rate => "a number of bytes a second",
        Kind::Duration => "a time",
        _ => "a text",
    }
}
