//! Query of a request, parsed once for signatures, the selection of the operation and the operation itself.
//!
//! Names are decoded here, so that `%61cl` is `acl` everywhere. Values are decoded where they are used.

use memchr::{memchr2, memchr2_iter};
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// The parameters of a query, in the order sent.
#[derive(Debug, Default)]
pub struct Query<'a>(Vec<Parameter<'a>>);

/// A query parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter<'a> {
    /// Decoded name.
    pub name: Cow<'a, str>,
    /// Name as it was sent.
    pub sent_name: &'a str,
    /// Value as it was sent; empty if there was none.
    pub value: &'a str,
}

impl<'a> Query<'a> {
    /// Splits a raw query string; a parameter without `=` has an empty value.
    #[must_use]
    pub fn parse(raw: &'a str) -> Self {
        // A presigned URL has six parameters, and SDKs add one or two.
        let mut parameters = Vec::with_capacity(if raw.is_empty() { 0 } else { 8 });
        let (mut begin, mut equals) = (0, None);
        for at in memchr2_iter(b'&', b'=', raw.as_bytes()).chain([raw.len()]) {
            if raw.as_bytes().get(at) == Some(&b'=') {
                equals.get_or_insert(at);
                continue;
            }
            if at > begin {
                let (name, value) = equals.map_or((at, at), |equals| (equals, equals + 1));
                let (sent_name, value) = (&raw[begin..name], &raw[value..at]);
                parameters.push(Parameter { name: decode_name(sent_name), sent_name, value });
            }
            (begin, equals) = (at + 1, None);
        }
        Self(parameters)
    }

    /// True if there are no parameters.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all parameters.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter<'a>] {
        &self.0
    }

    /// Iterates over the decoded names and the values as they were sent.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &'a str)> + '_ {
        self.0.iter().map(|parameter| (&*parameter.name, parameter.value))
    }

    /// Returns the value of `name` as it was sent; empty if the parameter has no value.
    #[must_use]
    #[inline]
    pub fn raw(&self, name: &str) -> Option<&'a str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// True if a parameter has exactly this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }
}

/// Decodes a name; `+` is a space. Bytes that are not UTF-8 are replaced, because no known name has any.
fn decode_name(sent: &str) -> Cow<'_, str> {
    if memchr2(b'%', b'+', sent.as_bytes()).is_none() {
        return Cow::Borrowed(sent);
    }
    Cow::Owned(percent_decode_str(&sent.replace('+', " ")).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::Query;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    /// Reference implementation of the parser.
    fn reference_parse(raw: &str) -> Vec<(&str, &str)> {
        let pairs = raw.split('&').filter(|pair| !pair.is_empty());
        pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect()
    }

    fn sent<'a>(query: &Query<'a>) -> Vec<(&'a str, &'a str)> {
        query.parameters().iter().map(|parameter| (parameter.sent_name, parameter.value)).collect()
    }

    #[test]
    fn parameters_come_with_and_without_values() {
        let query = Query::parse("&uploads&a=b=c&=d&&e=&");
        assert_eq!(sent(&query), [("uploads", ""), ("a", "b=c"), ("", "d"), ("e", "")]);
        assert!(query.has("e") && !query.has("A"));
        assert_eq!(query.raw("a"), Some("b=c"));
    }

    #[test]
    fn names_are_decoded_and_values_are_not() {
        let query = Query::parse("%61cl&X%2dAmz-Date=%64&a+b%2561=1&%ff=2&%6=3");
        let names: Vec<_> = query.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["acl", "X-Amz-Date", "a b%61", "\u{FFFD}", "%6"]);
        assert_eq!(query.raw("X-Amz-Date"), Some("%64"));
    }

    proptest! {
        #[test]
        fn every_query_is_parsed_like_the_reference(raw in "[a=&é%]{0,40}") {
            prop_assert_eq!(sent(&Query::parse(&raw)), reference_parse(&raw));
        }

        #[test]
        fn a_name_is_found_in_every_encoding(name in "[a-zA-Z-]{1,20}", mask: u32) {
            let encode = |(at, byte): (usize, u8)| match mask >> at & 1 {
                1 => format!("%{byte:02x}"),
                _ => char::from(byte).to_string(),
            };
            let sent: String = name.bytes().enumerate().map(encode).collect();
            prop_assert!(Query::parse(&sent).has(&name));
        }
    }
}
