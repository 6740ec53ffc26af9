//! What is wrong with a file: each finding with its place, what was expected there and the nearest right
//! word.

use super::limits::DIAGNOSTICS_MAX;
use super::notes::Notes;
use std::fmt;
use std::sync::Arc;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file's name, as the caller gave it.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
    /// The character within the line, from 1.
    pub column: u32,
    /// Where it stands in the document, as `rules[2].actions[0].type`; empty for the whole of it.
    pub path: String,
    /// What may stand there.
    pub expected: String,
    /// What is wrong with what stands there.
    pub found: String,
    /// The right word that is nearest to it.
    pub nearest: Option<String>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.found)?;
        if let Some(nearest) = &self.nearest {
            write!(f, "; did you mean {nearest:?}?")?;
        }
        if self.expected.is_empty() { Ok(()) } else { write!(f, " ({})", self.expected) }
    }
}

/// Everything that is wrong with a policy, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl std::error::Error for Diagnostics {}

impl Diagnostics {
    /// The value, if it is there and nothing is wrong with it.
    pub(super) fn result<T>(self, value: Option<T>) -> Result<T, Self> {
        value.filter(|_| self.0.is_empty()).ok_or(self)
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, one) in self.0.iter().enumerate() {
            let line = if index == 0 { "" } else { "\n" };
            write!(f, "{line}{one}")?;
        }
        Ok(())
    }
}

/// Where in a text something stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) line: u32,
    pub(super) column: u32,
}

/// Collects what is wrong with one file.
#[derive(Debug)]
pub(super) struct Findings {
    pub(super) file: Arc<str>,
    pub(super) list: Vec<Diagnostic>,
    /// What stands before every path: which instance of a template is being read.
    pub(super) within: String,
    /// Patterns that were read.
    pub(super) patterns: usize,
    /// Rules that stand in the file, be they right or not.
    pub(super) rules: usize,
    /// What could not be read, and what is referred to.
    pub(super) notes: Notes,
}

impl Findings {
    pub(super) fn new(file: &str) -> Self {
        let (file, notes) = (file.into(), Notes::default());
        Self { file, list: Vec::new(), within: String::new(), patterns: 0, rules: 0, notes }
    }

    /// Adds one, unless there are enough.
    pub(super) fn add(
        &mut self,
        spot: Spot,
        path: &str,
        found: String,
        expected: String,
        nearest: Option<String>,
    ) {
        if self.list.len() < DIAGNOSTICS_MAX {
            let dot =
                if self.within.is_empty() || path.is_empty() || path.starts_with('[') { "" } else { "." };
            let path = format!("{}{dot}{path}", self.within);
            let (file, Spot { line, column }) = (Arc::clone(&self.file), spot);
            self.list.push(Diagnostic { file, line, column, path, expected, found, nearest });
        }
    }

    /// The result, if nothing is wrong.
    pub(super) fn result<T>(self, value: Option<T>) -> Result<T, Diagnostics> {
        self.told().result(value)
    }

    /// What is wrong, in the order of the text.
    pub(super) fn told(mut self) -> Diagnostics {
        self.list.sort_by_key(|one| (one.line, one.column));
        Diagnostics(self.list)
    }
}

/// The candidate that `word` was most likely meant to be: the one with the fewest slips, as far as so short a
/// word can have them, or else the one that it abbreviates or goes on from, as `prod`.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    closest(word, candidates).map(|(candidate, _)| candidate.to_owned())
}

/// The candidate that `word` is beyond reasonable doubt, but for one slip or two of a long word: what follows
/// is read as if it stood there.
pub(super) fn meant<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (candidate, slips) = closest(word, candidates)?;
    let most = if candidate.len() < LONG { 1 } else { 2 };
    (slips == 0 || slips <= most && candidate.len() > 2).then_some(candidate)
}

/// Letters from which on a word with two slips is still no other one.
const LONG: usize = 9;

/// The closest candidate, and how many slips away it is; more than are likely where it only begins alike.
fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<(&'a str, usize)> {
    // Longer ones are not slips, and comparing them costs their square.
    if word.len() > 2 * super::limits::NAME_BYTES_MAX {
        return None;
    }
    let word = word.to_lowercase();
    let likely = |candidate: &str| slips(&word, candidate).or_else(|| begins(&word, candidate));
    candidates
        .into_iter()
        .filter_map(|candidate| Some((candidate, likely(&candidate.to_lowercase())?)))
        // Of several with as many slips, the one whose beginning is the same.
        .min_by(|a, b| a.1.cmp(&b.1).then_with(|| alike(&word, b.0).total_cmp(&alike(&word, a.0))))
}

fn alike(word: &str, candidate: &str) -> f64 {
    strsim::jaro_winkler(word, candidate)
}

/// How many letters were left out, added, mistaken or exchanged with their neighbour, if so many are likely:
/// one of up to four letters, two of eight, three of more.
fn slips(word: &str, candidate: &str) -> Option<usize> {
    let longer = word.len().max(candidate.len());
    let most = longer.div_ceil(4).min(3);
    if word.len().abs_diff(candidate.len()) > 4 * most {
        return None;
    }
    Some(strsim::osa_distance(word, candidate)).filter(|slips| *slips <= most && *slips < longer)
}

/// Whether one of two words begins with the other.
fn begins(word: &str, candidate: &str) -> Option<usize> {
    let is_word = word.len().min(candidate.len()) > 2;
    (is_word && (word.starts_with(candidate) || candidate.starts_with(word))).then_some(usize::MAX)
}

/// A text as messages quote it: whole, or its first 60 characters.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(60) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

/// `one of a, b, c`.
pub(super) fn one_of<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    format!("one of {}", words.into_iter().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::{meant, nearest};
    use crate::language::actions::ActionKind;
    use crate::language::words::Word as _;

    const WORDS: &[&str] = &["rules", "templates", "production", "between", "observe", "Own-Rule", "t"];

    #[test]
    fn exchanged_letters_are_one_slip_even_of_a_short_word() {
        for (word, expected) in
            [("pni", "pin"), ("ipn", "pin"), ("upnin", "unpin"), ("evcit", "evict"), ("sipll", "spill")]
        {
            assert_eq!(nearest(word, ActionKind::WORDS.iter().copied()).as_deref(), Some(expected), "{word}");
            assert_eq!(meant(word, ActionKind::WORDS.iter().copied()), Some(expected), "{word}");
        }
    }

    #[test]
    fn the_nearest_word_is_a_few_slips_away_and_otherwise_there_is_none() {
        for (word, expected) in [
            ("ruels", Some("rules")),
            ("RULES", Some("rules")),
            ("own-rlue", Some("Own-Rule")),
            ("tepmlatse", Some("templates")),
            ("prod", Some("production")),
            ("rules_of_mine", Some("rules")),
            ("tt", Some("t")),
            ("x", None),
            ("bigger", None),
            ("watch", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, WORDS.iter().copied()).as_deref(), expected, "{word}");
        }
    }

    #[test]
    fn what_is_read_in_its_place_is_beyond_doubt() {
        for (word, expected) in [
            ("ruels", Some("rules")),
            ("tepmlatse", Some("templates")),
            ("tempalte", Some("templates")),
            ("prod", None),
            ("ruls_", None),
            ("tt", None),
        ] {
            assert_eq!(meant(word, WORDS.iter().copied()), expected, "{word}");
        }
    }
}
