//! Continuation tokens of listings of remote-backed buckets. Pure.
//!
//! Invariant: every token that is issued here parses again. Clients may send anything; a text that is not
//! such a token is passed to the origin, which judges it.

use mlgw_formats::schema::Binding;
use mlgw_remote::origin::ListLine;
use serde::{Deserialize, Serialize};

/// The largest character: a group's prefix followed by it sorts after every key of the group.
pub(super) const LAST_CHARACTER: char = '\u{10FFFF}';

/// Position at which a listing continues: the origin's own token, and the last name, which is used if the
/// bucket was bound elsewhere meanwhile.
#[derive(Deserialize, Serialize)]
pub(super) struct OriginListingToken {
    #[serde(rename = "u")]
    upstream: String,
    #[serde(rename = "p")]
    prefix: String,
    #[serde(rename = "a")]
    after: String,
    #[serde(rename = "t")]
    token: String,
}

impl OriginListingToken {
    pub(super) fn after(last: Option<&ListLine>, token: String, binding: &Binding) -> Self {
        let behind = match last {
            Some(ListLine::Object(key, _)) => key.clone(),
            Some(ListLine::Group(group)) => format!("{group}{LAST_CHARACTER}"),
            None => String::new(),
        };
        Self { upstream: binding.upstream.clone(), prefix: binding.prefix.clone(), after: behind, token }
    }

    pub(super) fn encode(&self) -> String {
        // Serialization of four strings cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns the parameters of the origin's listing: the name after which it begins, or the token.
    pub(super) fn decode(
        text: Option<String>,
        binding: &Binding,
        start_after: String,
    ) -> (String, Option<String>) {
        let Some(text) = text else { return (start_after, None) };
        match serde_json::from_str::<Self>(&text) {
            Ok(onward) if onward.upstream == binding.upstream && onward.prefix == binding.prefix => {
                (String::new(), Some(onward.token))
            }
            Ok(onward) => (onward.after, None),
            // A bare token of the origin, as earlier versions issued.
            Err(_) => (String::new(), Some(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LAST_CHARACTER, OriginListingToken};
    use mlgw_formats::schema::Binding;
    use mlgw_remote::origin::ListLine;

    #[test]
    fn a_listing_continues_by_the_origins_token_or_after_the_last_name_if_rebound() {
        let at = |upstream: &str| Binding { upstream: upstream.to_owned(), ..Binding::default() };
        let object = ListLine::Object("a \"ü".into(), Box::default());
        let group = ListLine::Group("b/".into());
        for (last, behind) in [(object, "a \"ü".to_owned()), (group, format!("b/{LAST_CHARACTER}"))] {
            let text = OriginListingToken::after(Some(&last), "x=".into(), &at("old")).encode();
            let open = |binding| OriginListingToken::decode(Some(text.clone()), &binding, "s".into());
            assert_eq!(open(at("old")), (String::new(), Some("x=".into())));
            assert_eq!(open(at("new")), (behind.clone(), None));
            assert_eq!(open(Binding { prefix: "p/".into(), ..at("old") }), (behind, None));
        }
        assert_eq!(OriginListingToken::decode(None, &at("old"), "s".into()), ("s".into(), None));
        assert_eq!(
            OriginListingToken::decode(Some("x=".into()), &at("old"), "s".into()),
            (String::new(), Some("x=".into()))
        );
    }
}
