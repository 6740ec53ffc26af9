//! Where a listing of a bound bucket goes on: what a continuation token says there. Pure.
//!
//! Always: what is told is understood again. A client may send anything; what is none of ours is the origin's
//! own word, who judges it.

use mlgw_formats::schema::Binding;
use mlgw_remote::origin::ListLine;
use serde::{Deserialize, Serialize};

/// What no key that belongs to a group comes behind.
pub(super) const LAST_CHARACTER: char = '\u{10FFFF}';

/// Where a listing goes on: the origin's own word for it, and the name behind which it does where the bucket
/// was bound elsewhere meanwhile.
#[derive(Deserialize, Serialize)]
pub(super) struct Onward {
    #[serde(rename = "u")]
    upstream: String,
    #[serde(rename = "p")]
    prefix: String,
    #[serde(rename = "a")]
    behind: String,
    #[serde(rename = "t")]
    token: String,
}

impl Onward {
    pub(super) fn behind(last: Option<&ListLine>, token: String, binding: &Binding) -> Self {
        let behind = match last {
            Some(ListLine::Object(key, _)) => key.clone(),
            Some(ListLine::Group(group)) => format!("{group}{LAST_CHARACTER}"),
            None => String::new(),
        };
        Self { upstream: binding.upstream.clone(), prefix: binding.prefix.clone(), behind, token }
    }

    pub(super) fn text(&self) -> String {
        // Of four strings: it cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What an origin is asked with: behind which name, or with which token.
    pub(super) fn open(
        text: Option<String>,
        binding: &Binding,
        start_after: String,
    ) -> (String, Option<String>) {
        let Some(text) = text else { return (start_after, None) };
        match serde_json::from_str::<Self>(&text) {
            Ok(onward) if onward.upstream == binding.upstream && onward.prefix == binding.prefix => {
                (String::new(), Some(onward.token))
            }
            Ok(onward) => (onward.behind, None),
            // The bare word, as it was given before.
            Err(_) => (String::new(), Some(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LAST_CHARACTER, Onward};
    use mlgw_formats::schema::Binding;
    use mlgw_remote::origin::ListLine;

    #[test]
    fn a_listing_goes_on_by_the_origins_word_or_behind_the_last_name_where_that_is_another_one() {
        let at = |upstream: &str| Binding { upstream: upstream.to_owned(), ..Binding::default() };
        let object = ListLine::Object("a \"ü".into(), Box::default());
        let group = ListLine::Group("b/".into());
        for (last, behind) in [(object, "a \"ü".to_owned()), (group, format!("b/{LAST_CHARACTER}"))] {
            let text = Onward::behind(Some(&last), "x=".into(), &at("old")).text();
            let open = |binding| Onward::open(Some(text.clone()), &binding, "s".into());
            assert_eq!(open(at("old")), (String::new(), Some("x=".into())));
            assert_eq!(open(at("new")), (behind.clone(), None));
            assert_eq!(open(Binding { prefix: "p/".into(), ..at("old") }), (behind, None));
        }
        assert_eq!(Onward::open(None, &at("old"), "s".into()), ("s".into(), None));
        assert_eq!(
            Onward::open(Some("x=".into()), &at("old"), "s".into()),
            (String::new(), Some("x=".into()))
        );
    }
}
