//! The query of a request as it was sent, for the few parameters that carry a signature.

use super::percent;
use std::borrow::Cow;

/// A raw query string, taken apart once: every parameter is looked for several times.
pub(super) struct Query<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Query<'a> {
    /// Takes `raw` apart. A parameter without `=` has an empty value.
    pub(super) fn new(raw: &'a str) -> Self {
        let parts = raw.split('&').filter(|part| !part.is_empty());
        Self(parts.map(|part| part.split_once('=').unwrap_or((part, ""))).collect())
    }

    /// Names and values as sent.
    pub(super) fn pairs(&self) -> impl ExactSizeIterator<Item = (&'a str, &'a str)> {
        self.0.iter().copied()
    }

    /// Whether the query has a parameter of exactly this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.pairs().any(|(n, _)| n == name)
    }

    /// The decoded value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<Cow<'a, str>> {
        self.pairs().find(|(n, _)| *n == name).map(|(_, value)| percent::decode_text(value))
    }
}
