//! The query of a request, taken apart once and looked at by everybody: signatures, the choice of
//! the operation, the operation itself.
//!
//! Names and values stay as they were sent; whoever needs a value decodes it.

use memchr::memchr2_iter;

/// The parameters of a query, in the order sent, still percent-encoded.
#[derive(Debug, Default)]
pub struct Query<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Query<'a> {
    /// Splits a raw query string; a parameter without `=` has an empty value.
    #[must_use]
    pub fn parse(raw: &'a str) -> Self {
        // A presigned URL has six parameters, and SDKs add one or two.
        let mut pairs = Vec::with_capacity(if raw.is_empty() { 0 } else { 8 });
        let (mut begin, mut equals) = (0, None);
        for at in memchr2_iter(b'&', b'=', raw.as_bytes()).chain([raw.len()]) {
            if raw.as_bytes().get(at) == Some(&b'=') {
                equals.get_or_insert(at);
                continue;
            }
            if at > begin {
                let (name, value) = equals.map_or((at, at), |equals| (equals, equals + 1));
                pairs.push((&raw[begin..name], &raw[value..at]));
            }
            (begin, equals) = (at + 1, None);
        }
        Self(pairs)
    }

    /// Every parameter.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, &'a str)> + '_ {
        self.0.iter().copied()
    }

    /// The value of `name`; empty when it was sent without one.
    #[must_use]
    pub fn raw(&self, name: &str) -> Option<&'a str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Whether there is a parameter of exactly this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::Query;
    use proptest::{prop_assert_eq, proptest};

    /// What parsing means, said in one line.
    fn obvious(raw: &str) -> Vec<(&str, &str)> {
        let pairs = raw.split('&').filter(|pair| !pair.is_empty());
        pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect()
    }

    #[test]
    fn parameters_come_with_and_without_values() {
        let query = Query::parse("&uploads&a=b=c&=d&&e=&");
        assert_eq!(query.0, [("uploads", ""), ("a", "b=c"), ("", "d"), ("e", "")]);
        assert!(query.has("e") && !query.has("A"));
        assert_eq!(query.raw("a"), Some("b=c"));
    }

    proptest! {
        #[test]
        fn every_query_is_taken_apart_as_it_should_be(raw in "[a=&é%]{0,40}") {
            prop_assert_eq!(Query::parse(&raw).0, obvious(&raw));
        }
    }
}
