//! Tags of objects: their query form and S3's rules for them. Pure.

use super::error::{Code, S3Error};
use mlgw_common::limits::{OBJECT_TAGS_MAX, TAG_KEY_CHARS_MAX, TAG_VALUE_CHARS_MAX};
use mlgw_formats::schema::Pair;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Parses tags in query form: `a=1&b=2`.
///
/// # Errors
/// `InvalidTag` or `InvalidArgument`.
pub fn parse_tags_query(query: &str) -> Result<Vec<Pair>, S3Error> {
    let decode = |part: &str| {
        let refused = |why: &'static str| S3Error::invalid_argument(why, "x-amz-tagging", part);
        if !is_percent_encoded(part.as_bytes()) {
            return Err(refused("a tag must be URL-encoded"));
        }
        let spaced = part.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().map(std::borrow::Cow::into_owned);
        decoded.map_err(|_| refused("a tag must be UTF-8"))
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let tags = pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok(Pair { name: decode(name)?, value: decode(value)? })
        })
        .collect::<Result<Vec<_>, S3Error>>()?;
    check_tags(&tags)?;
    Ok(tags)
}

/// True if two hexadecimal digits follow every `%`.
pub(crate) fn is_percent_encoded(bytes: &[u8]) -> bool {
    let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let mut escapes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    escapes.all(|(at, _)| is_digit(bytes.get(at + 1)) && is_digit(bytes.get(at + 2)))
}

/// Returns tags in the query form that [`parse_tags_query`] parses.
#[must_use]
pub fn format_tags_query(tags: &[Pair]) -> String {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let pair = |tag: &Pair| format!("{}={}", encode(&tag.name), encode(&tag.value));
    tags.iter().map(pair).collect::<Vec<_>>().join("&")
}

/// Checks tags by S3's rules.
///
/// # Errors
/// `InvalidTag` for too many tags, and for a tag that is too long, empty, reserved or repeated.
pub fn check_tags(tags: &[Pair]) -> Result<(), S3Error> {
    let invalid = |why: &str| Err(S3Error::new(Code::InvalidTag).message(why.to_owned()));
    if tags.len() > OBJECT_TAGS_MAX {
        let why = format!("Object tags cannot be greater than {OBJECT_TAGS_MAX}");
        return Err(S3Error::new(Code::InvalidTag).message(why));
    }
    for (i, tag) in tags.iter().enumerate() {
        if tag.name.is_empty() || tag.name.chars().count() > TAG_KEY_CHARS_MAX {
            return invalid("The TagKey you have provided is invalid");
        }
        if tag.value.chars().count() > TAG_VALUE_CHARS_MAX {
            return invalid("The TagValue you have provided is invalid");
        }
        if tag.name.starts_with("aws:") {
            return invalid("Your TagKey cannot be prefixed with aws:");
        }
        if tags[..i].iter().any(|earlier| earlier.name == tag.name) {
            return invalid("Cannot provide multiple Tags with the same key");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{check_tags, parse_tags_query};
    use crate::error::Code;
    use mlgw_formats::schema::Pair;

    fn tag(name: &str, value: &str) -> Pair {
        Pair { name: name.into(), value: value.into() }
    }

    #[test]
    fn tags_come_as_a_query() {
        assert_eq!(
            parse_tags_query("a=1&b%20c=x+y&d").unwrap(),
            [tag("a", "1"), tag("b c", "x y"), tag("d", "")]
        );
        for broken in ["a=%ff", "a=%zz", "%4", "a=1&b=%", "a%=1", "a=%+1", "%é=1"] {
            assert_eq!(parse_tags_query(broken).unwrap_err().code(), Code::InvalidArgument, "{broken}");
        }
    }

    #[test]
    fn tags_that_break_the_rules_of_s3_are_rejected() {
        let many: Vec<Pair> = (0..11).map(|i| tag(&i.to_string(), "")).collect();
        assert!(check_tags(&many[..10]).is_ok());
        assert!(check_tags(&many).is_err());
        for bad in [tag("", "v"), tag(&"k".repeat(129), ""), tag("k", &"v".repeat(257)), tag("aws:x", "")] {
            assert!(check_tags(&[bad]).is_err());
        }
        assert!(check_tags(&[tag("k", "1"), tag("k", "2")]).is_err());
    }
}
