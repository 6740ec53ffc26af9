//! The query of a request as it was sent, for the few parameters that carry a signature.

use super::percent;
use std::borrow::Cow;

/// A raw query string.
#[derive(Clone, Copy)]
pub(super) struct Query<'a>(pub(super) &'a str);

impl<'a> Query<'a> {
    /// Names and values as sent; a parameter without `=` has an empty value.
    pub(super) fn pairs(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let parts = self.0.split('&').filter(|part| !part.is_empty());
        parts.map(|part| part.split_once('=').unwrap_or((part, "")))
    }

    /// Whether the query has a parameter of exactly this name.
    pub(super) fn has(self, name: &str) -> bool {
        self.pairs().any(|(n, _)| n == name)
    }

    /// The decoded value of a parameter.
    pub(super) fn get(self, name: &str) -> Option<Cow<'a, str>> {
        self.pairs().find(|(n, _)| *n == name).map(|(_, value)| percent::decode_text(value))
    }
}
