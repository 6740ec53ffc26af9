//! Tables of the language as Markdown, for its documentation.

use super::actions::{ALIASES, ActionKind, Aspect, TARGETS};
use super::operators::Operator;
use super::properties::{ConditionType, properties_of};
use super::settings::SETTINGS;
use super::value::ValueKind;
use super::words::Word;
use std::fmt::Write;

/// Returns the tables of conditions, operators, actions and settings.
#[must_use]
pub fn language_tables() -> String {
    [conditions(), operators(), actions(), settings()].join("\n")
}

fn kind(of: ValueKind) -> String {
    match of {
        ValueKind::Word(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
        ValueKind::Rate => "bytes per second".to_owned(),
        ValueKind::Flag => "true or false".to_owned(),
        other => other.name().to_owned(),
    }
}

// Writing to a String cannot fail.
fn row(text: &mut String, cells: &[&str]) {
    let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

fn head(text: &mut String, cells: &[&str]) {
    row(text, cells);
    row(text, &vec!["---"; cells.len()]);
}

fn conditions() -> String {
    let mut text = String::from("### Conditions\n");
    for of in ConditionType::ALL {
        let _ = write!(text, "\n#### `{of}`\n\n{}\n\n", of.doc());
        head(&mut text, &["property", "value", "meaning"]);
        for one in properties_of(*of) {
            row(&mut text, &[&format!("`{}`", one.display_word()), &kind(one.kind), one.doc]);
        }
    }
    text
}

fn operators() -> String {
    let mut text = String::from("### Operators\n\n");
    head(&mut text, &["operator", "applies to", "true when"]);
    let kinds = [
        ValueKind::Text,
        ValueKind::Word(&[]),
        ValueKind::Number,
        ValueKind::Percent,
        ValueKind::Bytes,
        ValueKind::Rate,
        ValueKind::Duration,
        ValueKind::List,
    ];
    for one in Operator::ALL {
        let fits: Vec<_> =
            kinds.iter().filter(|kind| one.value_form(**kind).is_some()).map(|kind| kind.name()).collect();
        let fits = if fits.len() == kinds.len() { "everything".to_owned() } else { fits.join(", ") };
        row(&mut text, &[&format!("`{one}`"), &fits, one.doc()]);
    }
    text
}

fn actions() -> String {
    let mut text = String::from("### Actions\n\n");
    let targets: Vec<_> = TARGETS.iter().map(|target| format!("`{target}`")).collect();
    let _ = write!(text, "A target is one of {}; without one it is `object`.\n\n", targets.join(", "));
    head(&mut text, &["action", "decides", "effect"]);
    for one in ActionKind::ALL {
        let aliases = ALIASES.iter().filter(|(_, kind)| kind == one).map(|(alias, _)| *alias);
        let words: Vec<_> =
            std::iter::once(one.name()).chain(aliases).map(|word| format!("`{word}`")).collect();
        row(&mut text, &[&words.join(", "), one.aspect().name(), one.doc()]);
    }
    text.push('\n');
    head(&mut text, &["action", "parameter", "value", "default", "range", "meaning"]);
    for action in ActionKind::ALL {
        for one in action.rows() {
            let range = one.range.map(|(low, high)| format!("{low} to {high}")).unwrap_or_default();
            let default = one.default.map(|default| format!("`{default}`")).unwrap_or_default();
            let (action, parameter) = (format!("`{action}`"), format!("`{}`", one.parameter));
            row(&mut text, &[&action, &parameter, &kind(one.kind), &default, &range, one.doc]);
        }
    }
    text.push('\n');
    head(&mut text, &["decides", "meaning"]);
    for one in Aspect::ALL {
        row(&mut text, &[one.name(), one.doc()]);
    }
    text
}

fn settings() -> String {
    let mut text = String::from("### Settings\n\n");
    head(&mut text, &["setting", "value", "default", "range", "meaning"]);
    for one in SETTINGS {
        let range = one.range.map(|(low, high)| format!("{low} to {high}")).unwrap_or_default();
        let member = match one.members.first() {
            Some(first) => format!("; per phase: `{}.{first}` etc.", one.word),
            None => String::new(),
        };
        let word = format!("`{}`{member}", one.word);
        row(&mut text, &[&word, &kind(one.kind), &format!("`{}`", one.default), &range, one.doc]);
    }
    text
}
