//! Continuation tokens of listings at an origin, compiled from their own file.

#[path = "../../gateway/protocol/src/bound/onward.rs"]
mod token;

use mlgw_formats::schema::Binding;
use mlgw_remote::origin::ListLine;
use token::Onward;

/// Returns the name that sorts after every key of a group.
#[must_use]
pub fn behind_group(group: &str) -> String {
    format!("{group}{}", token::LAST_CHARACTER)
}

/// Returns the token that continues after `last`.
#[must_use]
pub fn onward(last: Option<&ListLine>, token: &str, binding: &Binding) -> String {
    Onward::behind(last, token.to_owned(), binding).text()
}

/// Decodes a continuation token to a start name and the origin's token.
#[must_use]
pub fn open(text: &str, binding: &Binding, start_after: &str) -> (String, Option<String>) {
    Onward::open(Some(text.to_owned()), binding, start_after.to_owned())
}
