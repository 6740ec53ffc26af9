//! Text patterns: globs and regular expressions.
//!
//! A pattern is a glob unless it is enclosed in slashes (`/^run-\d+$/`) or begins with `regex:`. In a glob
//! `*` matches any text, including slashes, as everywhere in this server; `?` matches one character, `[a-z]`
//! one of a set, `{a,b}` either alternative; `\` escapes the next character. A regular expression matches
//! anywhere in the text unless it is anchored. Matching takes time linear in the text for every pattern.

use super::limits::{PATTERN_BYTES_MAX, REGEX_BYTES_MAX};
use globset::{GlobBuilder, GlobMatcher};
use regex::{Regex, RegexBuilder};

/// A compiled pattern.
#[derive(Clone, Debug)]
pub(super) enum TextPattern {
    /// The text equals this.
    Exact(Box<str>),
    /// The text begins with this: `imagenet/*`.
    Prefix(Box<str>),
    /// The text ends with this: `*.tar`.
    Suffix(Box<str>),
    Glob(GlobMatcher),
    Regex(Regex),
}

impl TextPattern {
    /// Compiles `text`.
    ///
    /// # Errors
    /// The reason why `text` is not a valid pattern.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > PATTERN_BYTES_MAX {
            return Err(format!("a pattern has 1 to {PATTERN_BYTES_MAX} bytes"));
        }
        match regex_of(text) {
            Some(regex) => RegexBuilder::new(regex)
                .size_limit(REGEX_BYTES_MAX)
                .dfa_size_limit(REGEX_BYTES_MAX)
                .build()
                .map(Self::Regex)
                .map_err(|error| last_line(&error.to_string())),
            None => Self::glob(text),
        }
    }

    fn glob(text: &str) -> Result<Self, String> {
        let simple = |part: &str| !part.contains(['*', '?', '[', ']', '{', '}', '\\', ',']);
        // Simple patterns need no automaton: a suffix match takes a few nanoseconds, a glob a hundred.
        if simple(text) {
            return Ok(Self::Exact(text.into()));
        }
        if let Some(end) = text.strip_prefix('*').filter(|end| simple(end)) {
            return Ok(Self::Suffix(end.into()));
        }
        if let Some(begin) = text.strip_suffix('*').filter(|begin| simple(begin)) {
            return Ok(Self::Prefix(begin.into()));
        }
        GlobBuilder::new(text)
            .literal_separator(false)
            .backslash_escape(true)
            .build()
            .map(|glob| Self::Glob(glob.compile_matcher()))
            .map_err(|error| error.kind().to_string())
    }

    /// True if the pattern matches `text`.
    pub(super) fn is_match(&self, text: &str) -> bool {
        match self {
            Self::Exact(whole) => **whole == *text,
            Self::Prefix(begin) => text.starts_with(&**begin),
            Self::Suffix(end) => text.ends_with(&**end),
            Self::Glob(glob) => glob.is_match(text),
            Self::Regex(regex) => regex.is_match(text),
        }
    }
}

/// Returns the regular expression of a pattern; none for a glob.
fn regex_of(text: &str) -> Option<&str> {
    let between = || text.strip_prefix('/')?.strip_suffix('/').filter(|regex| !regex.is_empty());
    text.strip_prefix("regex:").or_else(between)
}

/// Shortens an error of the regex crate to its last line, which has the reason; the lines before show the
/// position.
fn last_line(error: &str) -> String {
    let last = error.lines().last().unwrap_or(error).trim();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::TextPattern;
    use globset::GlobBuilder;
    use proptest::prelude::*;

    #[test]
    fn globs_and_regular_expressions() {
        for (pattern, yes, no) in [
            ("*.tar", "a/b.tar", "a.tar.gz"),
            ("imagenet/*", "imagenet/train/x", "imagenet"),
            ("model-?????-of-*.safetensors", "model-00001-of-00002.safetensors", "model.safetensors"),
            ("*/checkpoint-*/*", "run/checkpoint-10/x", "run/checkpoint"),
            ("{train,val}/*", "val/1", "test/1"),
            ("exact", "exact", "exactly"),
            ("\\*", "*", "x"),
            ("/^run-\\d+$/", "run-12", "a-run-12"),
            ("regex:(?i)\\.JPE?G$", "x.jpg", "x.jpg.txt"),
        ] {
            let pattern = TextPattern::new(pattern).unwrap();
            assert!(pattern.is_match(yes), "{pattern:?} {yes}");
            assert!(!pattern.is_match(no), "{pattern:?} {no}");
        }
    }

    #[test]
    fn invalid_patterns_are_refused_with_the_reason() {
        for (pattern, why) in [
            ("", "a pattern has 1 to 1024 bytes"),
            ("[a", "unclosed character class"),
            ("/(/", "unclosed group"),
            ("regex:\\w{1000}{100}", "Compiled regex exceeds size limit of 262144 bytes."),
        ] {
            let error = TextPattern::new(pattern).unwrap_err();
            assert!(error.starts_with(why), "{pattern}: {error}");
        }
    }

    proptest! {
        #[test]
        fn prefix_and_suffix_patterns_match_like_globs(
            part in "[a-c/.!^-]{0,4}", which in 0..3_u8, text in "[a-c/.!^-]{0,8}"
        ) {
            let pattern = match which {
                0 => format!("*{part}"),
                1 => format!("{part}*"),
                _ => format!("{part}a"),
            };
            let mut glob = GlobBuilder::new(&pattern);
            let glob = glob.literal_separator(false).backslash_escape(true).build().unwrap();
            if super::regex_of(&pattern).is_none() {
                let ours = TextPattern::new(&pattern).unwrap();
                prop_assert_eq!(ours.is_match(&text), glob.compile_matcher().is_match(&text), "{}", pattern);
            }
        }
    }
}
