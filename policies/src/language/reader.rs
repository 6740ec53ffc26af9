//! Reads the fields of a document tree and records every error with its position.

use super::actions::range_sizes;
use super::diagnostic::{TextPosition, clearly_meant, nearest, one_of, quoted};
use super::findings::Findings;
use super::limits::{ITEMS_MAX, NAME_BYTES_MAX, PATTERNS_MAX};
use super::pattern::TextPattern;
use super::tree::{DocumentNode, NodeData, Scalar};
use super::value::{Value, ValueKind, parse_decimal};
use super::words::Word;
use std::fmt::Write;

/// A node and its path from the root.
#[derive(Clone, Copy)]
pub(super) struct LocatedNode<'a> {
    pub(super) node: &'a DocumentNode,
    parent: Option<&'a LocatedNode<'a>>,
    step: PathStep<'a>,
}

#[derive(Clone, Copy)]
enum PathStep<'a> {
    Root,
    Field(&'a str),
    Item(usize),
}

impl<'a> LocatedNode<'a> {
    pub(super) fn root(node: &'a DocumentNode) -> Self {
        Self { node, parent: None, step: PathStep::Root }
    }

    /// Returns the path, such as `rules[2].actions[0].type`.
    pub(super) fn path(&self) -> String {
        let mut path = self.parent.map(Self::path).unwrap_or_default();
        match self.step {
            PathStep::Root => {}
            PathStep::Item(index) => {
                // Writing to a String cannot fail.
                let _ = write!(path, "[{index}]");
            }
            PathStep::Field(name) => push_field(&mut path, name),
        }
        path
    }

    /// Returns the ids in the map at this node, whether the map is otherwise valid or not.
    pub(super) fn ids(&self) -> impl Iterator<Item = &'a str> {
        let entries = if let NodeData::Map(entries) = &self.node.data { entries.as_slice() } else { &[] };
        entries.iter().filter(|entry| &*entry.key == "id").filter_map(|entry| match &entry.value.data {
            NodeData::Scalar(scalar) if !scalar.is_null() => Some(&*scalar.text),
            _ => None,
        })
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.node.data == NodeData::Unknown
    }

    pub(super) fn is_empty_list(&self) -> bool {
        matches!(&self.node.data, NodeData::List(items) if items.is_empty())
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
    pub(super) place: &'a LocatedNode<'a>,
    /// Unknown fields, which are already reported.
    unknown: Vec<UnknownField<'a>>,
}

/// An unknown field.
struct UnknownField<'a> {
    value: LocatedNode<'a>,
    /// The known field that was probably meant. It is part of the message of the unknown field, so it is not
    /// reported as missing.
    nearest: Option<String>,
    /// True if the field is close enough to the nearest known field to be read as that one.
    is_substituted: bool,
}

impl<'a> Fields<'a> {
    /// Returns the fields of the map at `place` and reports every field that is not in `known`.
    pub(super) fn checked(
        place: &'a LocatedNode<'a>,
        known: &[&str],
        findings: &mut Findings,
    ) -> Option<Self> {
        if !matches!(place.node.data, NodeData::Map(_)) {
            findings.report_wrong(place, "is not a map", format!("a map with {}", known.join(", ")));
            return None;
        }
        let mut fields = Self::unchecked(place);
        for (key, spot, value) in entries(place).filter(|(key, ..)| !known.contains(key)) {
            let found = format!("unknown field {}", quoted(key));
            let near = nearest(key, known.iter().copied());
            let is_read = clearly_meant(key, known.iter().copied()).is_some();
            findings.add(spot, &value.path(), found, one_of(known.iter().copied()), near.clone());
            fields.unknown.push(UnknownField { value, nearest: near, is_substituted: is_read });
        }
        Some(fields)
    }

    /// Returns the fields of a map without a check for unknown fields.
    pub(super) fn unchecked(place: &'a LocatedNode<'a>) -> Self {
        Self { place, unknown: Vec::new() }
    }

    /// Returns the fields of a map that was checked before, including misspelt fields; reports nothing.
    pub(super) fn reread(place: &'a LocatedNode<'a>, known: &[&str]) -> Self {
        Self::checked(place, known, &mut Findings::new("")).unwrap_or_else(|| Self::unchecked(place))
    }

    /// True if the field is missing, but may be one of the unknown fields, which are already reported.
    pub(super) fn may_be_misspelt(&self, name: &str) -> bool {
        self.has_unknown() && self.get(name).is_none()
    }

    /// True if there are unknown fields that are not read as known ones.
    pub(super) fn has_unknown(&self) -> bool {
        self.unknown_values().next().is_some()
    }

    /// Returns the values of unknown fields that are not read as known ones.
    pub(super) fn unknown_values(&self) -> impl Iterator<Item = &'a DocumentNode> {
        self.unknown.iter().filter(|one| !one.is_substituted).map(|one| one.value.node)
    }

    /// Returns the field `name`; a null counts as absent.
    pub(super) fn get(&self, name: &str) -> Option<LocatedNode<'a>> {
        self.all(name).next()
    }

    /// Returns all fields named `name` (a valid map has at most one), followed by misspelt fields that are
    /// read as `name`. Nulls are skipped.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = LocatedNode<'a>> {
        let named = entries(self.place).filter(move |(key, ..)| *key == name).map(|(_, _, place)| place);
        let is_meant =
            move |one: &&UnknownField<'_>| one.is_substituted && one.nearest.as_deref() == Some(name);
        let strange = self.unknown.iter().filter(is_meant).map(|one| one.value);
        let is_null = |place: &LocatedNode<'_>| {
            let data = &place.node.data;
            matches!(data, NodeData::Scalar(scalar) if scalar.is_null())
        };
        named.chain(strange).filter(move |place| !is_null(place))
    }

    /// Returns the required field `name`; reports it if it is missing.
    pub(super) fn required(&self, name: &str, findings: &mut Findings) -> Option<LocatedNode<'a>> {
        let found = self.get(name);
        if found.is_none() {
            self.report_missing(name, findings);
        }
        found
    }

    /// Reports that the field `name` is missing, unless a misspelling of it is already reported.
    pub(super) fn report_missing(&self, name: &str, findings: &mut Findings) {
        if !self.has_misspelling_of(name) {
            findings.report_missing_field(self.place, name);
        }
    }

    /// True if a field is already reported that is probably a misspelling of `name`.
    pub(super) fn has_misspelling_of(&self, name: &str) -> bool {
        self.unknown.iter().any(|one| one.nearest.as_deref() == Some(name))
    }

    /// Returns the text of an optional field.
    pub(super) fn text(&self, name: &str, findings: &mut Findings) -> Option<Box<str>> {
        let place = self.get(name)?;
        findings.value(&place, ValueKind::Text)?.text().map(Into::into)
    }
}

/// Returns the keys and values of a map with their positions; empty if the node is not a map.
pub(super) fn entries<'a>(
    place: &'a LocatedNode<'a>,
) -> impl Iterator<Item = (&'a str, TextPosition, LocatedNode<'a>)> {
    let entries = if let NodeData::Map(entries) = &place.node.data { entries.as_slice() } else { &[] };
    entries.iter().map(move |entry| {
        let step = PathStep::Field(&entry.key);
        (&*entry.key, entry.spot, LocatedNode { node: &entry.value, parent: Some(place), step })
    })
}

impl Findings {
    /// Reports that the value at `place` is wrong; `is` completes the sentence that begins with the value.
    /// Nothing is reported of an unknown value.
    pub(super) fn report_wrong(&mut self, place: &LocatedNode<'_>, is: &str, expected: String) {
        if place.is_unknown() {
            return;
        }
        let found = format!("{} {is}", place.node.description());
        self.add(place.node.spot, &place.path(), found, expected, None);
    }

    pub(super) fn report_missing_field(&mut self, place: &LocatedNode<'_>, field: &str) {
        let found = format!("the field {field} is missing");
        self.add(place.node.spot, &place.path(), found, String::new(), None);
    }

    /// Reports a word that is not in `candidates`.
    pub(super) fn report_unknown_word(
        &mut self,
        place: &LocatedNode<'_>,
        word: &str,
        what: &str,
        candidates: &[&str],
    ) {
        let near = nearest(word, candidates.iter().copied());
        let found = format!("unknown {what} {}", quoted(word));
        self.add(place.node.spot, &place.path(), found, one_of(candidates.iter().copied()), near);
    }

    /// Returns the items of a list, at most `most` of them.
    pub(super) fn items<'a>(&mut self, place: &'a LocatedNode<'a>, most: usize) -> Vec<LocatedNode<'a>> {
        let NodeData::List(items) = &place.node.data else {
            self.report_wrong(place, "is not a list", "a list".to_owned());
            return Vec::new();
        };
        if items.len() > most {
            self.report_wrong(
                place,
                &format!("of {} items is too long", items.len()),
                format!("at most {most}"),
            );
        }
        let place_of = |(index, node)| LocatedNode { node, parent: Some(place), step: PathStep::Item(index) };
        items.iter().take(most).enumerate().map(place_of).collect()
    }

    /// Returns the keys and values of a map.
    pub(super) fn entries<'a>(
        &mut self,
        place: &'a LocatedNode<'a>,
    ) -> Vec<(&'a str, TextPosition, LocatedNode<'a>)> {
        if !matches!(place.node.data, NodeData::Map(_)) {
            self.report_wrong(place, "is not a map", "a map".to_owned());
        }
        entries(place).collect()
    }

    pub(super) fn scalar<'a>(&mut self, place: &LocatedNode<'a>, expected: &str) -> Option<&'a Scalar> {
        match &place.node.data {
            NodeData::Scalar(scalar) if !scalar.is_null() => Some(scalar),
            _ => {
                self.report_wrong(place, "is not valid here", expected.to_owned());
                None
            }
        }
    }

    /// Returns the word of a closed list; for an unknown word, the one that was clearly meant.
    pub(super) fn word<W: Word>(&mut self, place: &LocatedNode<'_>, what: &str) -> Option<W> {
        let text = &*self.scalar(place, &one_of(W::WORDS.iter().copied()))?.text;
        let word = W::from_word(text);
        if word.is_none() {
            self.report_unknown_word(place, text, what, W::WORDS);
        }
        word.or_else(|| W::from_word(clearly_meant(text, W::WORDS.iter().copied())?))
    }

    /// Reads a value of the kind `kind`.
    pub(super) fn value(&mut self, place: &LocatedNode<'_>, kind: ValueKind) -> Option<Value> {
        if kind == ValueKind::List {
            return self.list(place, ValueKind::Text).map(Value::List);
        }
        let scalar = self.scalar(place, &kind.expected_form())?;
        let value = kind.parse_scalar(scalar);
        if value.is_none() {
            match kind {
                ValueKind::Word(words) => self.report_unknown_word(place, &scalar.text, "word", words),
                _ => self.report_wrong(place, &mismatch(kind, scalar), kind.expected_form()),
            }
        }
        value
    }

    /// Reads a list of one or more values of the kind `kind`.
    pub(super) fn list(&mut self, place: &LocatedNode<'_>, kind: ValueKind) -> Option<Box<[Value]>> {
        let items = self.items(place, ITEMS_MAX);
        if items.is_empty() {
            if place.is_empty_list() {
                self.report_wrong(place, "is empty", format!("one or more: {}", kind.expected_form()));
            }
            return None;
        }
        let values: Vec<_> = items.iter().map(|item| self.value(item, kind)).collect();
        values.into_iter().collect()
    }

    /// Reads a value of the kind `kind` that must be within `range`.
    pub(super) fn value_within(
        &mut self,
        place: &LocatedNode<'_>,
        kind: ValueKind,
        range: Option<(&str, &str)>,
    ) -> Option<Value> {
        let value = self.value(place, kind)?;
        let within = |(low, high)| value.size().is_none_or(|size| (low..=high).contains(&size));
        if range_sizes(kind, range).is_none_or(within) {
            return Some(value);
        }
        let (low, high) = range.unwrap_or_default();
        self.report_wrong(place, "is out of range", format!("from {low} to {high}"));
        None
    }

    /// Reads a number from `low` to `high`.
    pub(super) fn number(&mut self, place: &LocatedNode<'_>, low: f64, high: f64) -> Option<f64> {
        let expected = format!("a number from {low} to {high}");
        let scalar = self.scalar(place, &expected)?;
        let number = parse_decimal(&scalar.text).filter(|n| scalar.is_plain && (low..=high).contains(n));
        if number.is_none() {
            self.report_wrong(place, "is not a valid number", expected);
        }
        number
    }

    /// Reads a whole number from `low` to `high`.
    pub(super) fn whole_number(&mut self, place: &LocatedNode<'_>, low: f64, high: f64) -> Option<f64> {
        let number = self.number(place, low, high)?;
        if number.fract() != 0.0 {
            self.report_wrong(place, "is not a whole number", "a whole number such as 8".to_owned());
            return None;
        }
        Some(number)
    }

    pub(super) fn flag(&mut self, place: &LocatedNode<'_>) -> Option<bool> {
        self.value(place, ValueKind::Flag).map(|value| value == Value::Flag(true))
    }

    /// Reads and compiles a glob or regular expression.
    pub(super) fn pattern(&mut self, place: &LocatedNode<'_>) -> Option<TextPattern> {
        const EXPECTED: &str = "a glob, or /a regular expression/";
        let text = &self.scalar(place, EXPECTED)?.text;
        self.patterns += 1;
        if self.patterns > PATTERNS_MAX {
            self.report_wrong(place, "is one pattern too many", format!("at most {PATTERNS_MAX} patterns"));
            return None;
        }
        TextPattern::new(text)
            .map_err(|why| {
                self.report_wrong(place, &format!("is not a valid pattern: {why}"), EXPECTED.to_owned())
            })
            .ok()
    }

    /// Reads a name to which files can refer.
    pub(super) fn name(&mut self, place: &LocatedNode<'_>) -> Option<Box<str>> {
        let expected = format!("letters, digits, '-', '_' and '.', at most {NAME_BYTES_MAX}");
        let text = &self.scalar(place, &expected)?.text;
        if is_valid_name(text) {
            return Some(text.clone());
        }
        self.report_wrong(place, "is not a valid name", expected);
        None
    }
}

/// True if `text` is a valid name of a rule, template or framework.
pub(super) fn is_valid_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain)
}

/// Describes why a value is not of `kind`, for messages: quoted, without a unit, or of another kind.
fn mismatch(kind: ValueKind, scalar: &Scalar) -> String {
    let bare = parse_decimal(&scalar.text).is_some();
    match kind {
        ValueKind::Number | ValueKind::Count | ValueKind::Flag
            if !scalar.is_plain && kind.parse(&scalar.text).is_some() =>
        {
            "is quoted".to_owned()
        }
        ValueKind::Bytes | ValueKind::Rate | ValueKind::Duration | ValueKind::Percent if bare => {
            "has no unit".to_owned()
        }
        ValueKind::Number => "is not a number".to_owned(),
        ValueKind::Count => "is not a whole number".to_owned(),
        ValueKind::Flag => "is neither true nor false".to_owned(),
        _ => format!("is not {}", kind_with_article(kind)),
    }
}

fn kind_with_article(kind: ValueKind) -> &'static str {
    match kind {
        ValueKind::Percent => "a percentage",
        ValueKind::Bytes => "a number of bytes",
        ValueKind::Rate => "a number of bytes per second",
        ValueKind::Duration => "a time",
        _ => "a text",
    }
}
