//! Continuation tokens of listings at an origin, compiled from their own file.

#[path = "../../gateway/protocol/src/remote_backed/listing_token.rs"]
mod token;

use mlgw_formats::schema::Binding;
use mlgw_remote::origin::ListLine;
use token::OriginListingToken;

/// Returns the name that sorts after every key of a group.
#[must_use]
pub fn end_of_group(group: &str) -> String {
    format!("{group}{}", token::LAST_CHARACTER)
}

/// Returns the token that continues after `last`.
#[must_use]
pub fn token_after(last: Option<&ListLine>, token: &str, binding: &Binding) -> String {
    OriginListingToken::after(last, token.to_owned(), binding).encode()
}

/// Decodes a continuation token to a start name and the origin's token.
#[must_use]
pub fn decode_token(text: &str, binding: &Binding, start_after: &str) -> (String, Option<String>) {
    OriginListingToken::decode(Some(text.to_owned()), binding, start_after.to_owned())
}
