//! The query of a request, parsed once and used by all: signatures, the choice of the operation, the
//! operation itself.
//!
//! Names are decoded here, so that `%61cl` is `acl` for each of them. Values are decoded where they are used.

use memchr::{memchr2, memchr2_iter};
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// The parameters of a query, in the order sent.
#[derive(Debug, Default)]
pub struct Query<'a>(Vec<Parameter<'a>>);

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter<'a> {
    /// Its name, decoded.
    pub name: Cow<'a, str>,
    /// Its name as it was sent.
    pub sent_name: &'a str,
    /// Its value as it was sent; empty when there was none.
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

    /// Whether there is no parameter.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every parameter.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter<'a>] {
        &self.0
    }

    /// Every parameter's name, decoded, and its value as it was sent.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &'a str)> + '_ {
        self.0.iter().map(|parameter| (&*parameter.name, parameter.value))
    }

    /// The value of `name` as it was sent; empty when it was sent without one.
    #[must_use]
    #[inline]
    pub fn raw(&self, name: &str) -> Option<&'a str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Whether there is a parameter of exactly this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }
}

/// A decoded name: `+` is a space. No known name has bytes that are not UTF-8.
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

    /// What parsing means, said in one line.
    fn obvious(raw: &str) -> Vec<(&str, &str)> {
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
        fn every_query_is_taken_apart_as_it_should_be(raw in "[a=&é%]{0,40}") {
            prop_assert_eq!(sent(&Query::parse(&raw)), obvious(&raw));
        }

        #[test]
        fn a_name_is_found_however_it_is_encoded(name in "[a-zA-Z-]{1,20}", mask: u32) {
            let encode = |(at, byte): (usize, u8)| match mask >> at & 1 {
                1 => format!("%{byte:02x}"),
                _ => char::from(byte).to_string(),
            };
            let sent: String = name.bytes().enumerate().map(encode).collect();
            prop_assert!(Query::parse(&sent).has(&name));
        }
    }
}
