//! Diagnostics: errors of a file, each with its position, the expected form and the nearest valid word.

use std::fmt;
use std::sync::Arc;

/// An error of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Name of the file, as the caller gave it.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
    /// The character within the line, from 1.
    pub column: u32,
    /// Path in the document, such as `rules[2].actions[0].type`; empty for the whole document.
    pub path: String,
    /// Description of what is valid there.
    pub expected: String,
    /// Description of the error.
    pub found: String,
    /// Nearest valid word.
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

/// All errors of a policy, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl std::error::Error for Diagnostics {}

impl Diagnostics {
    /// Returns `value` if it is there and there is no error.
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

/// Position in a text, from line 1 and column 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TextPosition {
    pub(super) line: u32,
    pub(super) column: u32,
}

/// Returns the candidate that `word` was most likely meant to be: the one with the fewest typing errors
/// within the number that is likely for its length; otherwise one that begins with `word` or with which
/// `word` begins, such as `prod`.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    closest(word, candidates).map(|(candidate, _)| candidate.to_owned())
}

/// Returns the candidate that was clearly meant: at most one typing error, or two in a long word. The
/// document is then read as if it had that word.
pub(super) fn clearly_meant<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let (candidate, slips) = closest(word, candidates)?;
    let most = if candidate.len() < LONG_WORD_LETTERS { 1 } else { 2 };
    (slips == 0 || slips <= most && candidate.len() > 2).then_some(candidate)
}

/// Letters from which on a word with two typing errors is still unambiguous.
const LONG_WORD_LETTERS: usize = 9;

/// Returns the closest candidate and its number of typing errors; `usize::MAX` if only the beginning is the
/// same.
fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<(&'a str, usize)> {
    // Longer words are not compared, because the cost is quadratic.
    if word.len() > 2 * super::limits::NAME_BYTES_MAX {
        return None;
    }
    let word = word.to_lowercase();
    let likely = |candidate: &str| typing_errors(&word, candidate).or_else(|| prefix_match(&word, candidate));
    candidates
        .into_iter()
        .filter_map(|candidate| Some((candidate, likely(&candidate.to_lowercase())?)))
        // Of several candidates with as many errors, the one with the most similar begin wins.
        .min_by(|a, b| a.1.cmp(&b.1).then_with(|| similarity(&word, b.0).total_cmp(&similarity(&word, a.0))))
}

fn similarity(word: &str, candidate: &str) -> f64 {
    strsim::jaro_winkler(word, candidate)
}

/// Counts letters that are missing, added, wrong or exchanged with their neighbor. None if there are more
/// than likely: one in up to four letters, two in up to eight, three in more.
fn typing_errors(word: &str, candidate: &str) -> Option<usize> {
    let longer = word.len().max(candidate.len());
    let most = longer.div_ceil(4).min(3);
    if word.len().abs_diff(candidate.len()) > 4 * most {
        return None;
    }
    Some(strsim::osa_distance(word, candidate)).filter(|slips| *slips <= most && *slips < longer)
}

/// Returns `usize::MAX` if one of the words begins with the other.
fn prefix_match(word: &str, candidate: &str) -> Option<usize> {
    let is_word = word.len().min(candidate.len()) > 2;
    (is_word && (word.starts_with(candidate) || candidate.starts_with(word))).then_some(usize::MAX)
}

/// Quotes a text for messages: whole, or its first 60 characters.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(60) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

/// Formats `one of a, b, c`.
pub(super) fn one_of<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    format!("one of {}", words.into_iter().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::{clearly_meant, nearest};
    use crate::language::actions::ActionKind;
    use crate::language::words::Word as _;

    const WORDS: &[&str] = &["rules", "templates", "production", "between", "observe", "Own-Rule", "t"];

    #[test]
    fn exchanged_letters_count_as_one_typing_error() {
        for (word, expected) in
            [("pni", "pin"), ("ipn", "pin"), ("upnin", "unpin"), ("evcit", "evict"), ("sipll", "spill")]
        {
            assert_eq!(nearest(word, ActionKind::WORDS.iter().copied()).as_deref(), Some(expected), "{word}");
            assert_eq!(clearly_meant(word, ActionKind::WORDS.iter().copied()), Some(expected), "{word}");
        }
    }

    #[test]
    fn nearest_word_is_within_a_few_typing_errors() {
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
    fn only_clearly_meant_words_are_substituted() {
        for (word, expected) in [
            ("ruels", Some("rules")),
            ("tepmlatse", Some("templates")),
            ("tempalte", Some("templates")),
            ("prod", None),
            ("ruls_", None),
            ("tt", None),
        ] {
            assert_eq!(clearly_meant(word, WORDS.iter().copied()), expected, "{word}");
        }
    }
}
