//! Header values from text.
//!
//! Invariant: every client can read the header values of a response. They are ASCII, except stored headers in
//! ISO-8859-1. No value is raw UTF-8, and no stored text makes a response fail.

use http::{HeaderName, HeaderValue, header};
use mlgw_common::header_text::{disposition, latin1, metadata_to_wire, percent_encoded};

/// Returns a header value from text that is usually ASCII; other characters are percent-encoded.
#[must_use]
pub fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_bytes(percent_encoded(text).as_bytes()).unwrap_or(HeaderValue::from_static("?"))
}

/// Returns a value of user metadata: RFC 2047 encoded words where ASCII does not suffice.
#[must_use]
pub fn metadata_value(text: &str) -> HeaderValue {
    header_value(&metadata_to_wire(text))
}

/// Returns the value of a stored header in ISO-8859-1. Text outside ISO-8859-1, which earlier versions
/// stored, is encoded in ASCII instead: a file name as `filename*`, anything else percent-encoded.
#[must_use]
pub fn stored_value(name: &HeaderName, text: &str) -> HeaderValue {
    let value = latin1(text).and_then(|bytes| HeaderValue::from_bytes(&bytes).ok());
    value.unwrap_or_else(|| match *name == header::CONTENT_DISPOSITION {
        true => header_value(&disposition(text)),
        false => header_value(text),
    })
}

/// Returns a header value in UTF-8, as a client could have sent it. Characters that HTTP cannot carry become
/// `?`.
#[must_use]
pub fn sent_value(text: &str) -> HeaderValue {
    HeaderValue::from_bytes(text.as_bytes()).unwrap_or_else(|_| {
        let visible: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        HeaderValue::from_bytes(visible.as_bytes()).unwrap_or(HeaderValue::from_static("?"))
    })
}

/// Returns an ETag in quotes, as in headers.
#[must_use]
pub fn etag_value(etag: &str) -> HeaderValue {
    let mut quoted = String::with_capacity(etag.len() + 2);
    quoted.push('"');
    quoted.push_str(etag);
    quoted.push('"');
    header_value(&quoted)
}

#[cfg(test)]
mod tests {
    use super::{header_value, metadata_value, sent_value, stored_value};
    use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
    use proptest::{prop_assert, proptest};

    proptest! {
        #[test]
        fn no_text_makes_an_answer_unreadable(text in "\\PC{0,40}|.{0,40}|[\\x00-\\xff]{0,40}") {
            for value in [header_value(&text), metadata_value(&text)] {
                prop_assert!(value.to_str().is_ok(), "{:?}", value);
            }
            for name in [CONTENT_DISPOSITION, CONTENT_TYPE] {
                let value = stored_value(&name, &text);
                let is_carried = |c: char| u32::from(c) < 256 && (c == '\t' || !c.is_ascii_control());
                let is_latin1 = text.chars().all(is_carried);
                prop_assert!(value.to_str().is_ok() || is_latin1, "{:?}", value);
                if is_latin1 {
                    let back: String = value.as_bytes().iter().map(|&byte| char::from(byte)).collect();
                    prop_assert!(back == text);
                }
            }
            prop_assert!(text.contains(char::is_control) || sent_value(&text) == text.as_str());
        }
    }

    #[test]
    fn stored_headers_are_latin_1_or_ascii() {
        assert_eq!(stored_value(&CONTENT_TYPE, "café").as_bytes(), b"caf\xe9");
        assert_eq!(stored_value(&CONTENT_TYPE, "a/b; n=世"), "a/b; n=%E4%B8%96");
        assert_eq!(
            stored_value(&CONTENT_DISPOSITION, "inline; filename=世"),
            "inline; filename*=UTF-8''%E4%B8%96"
        );
    }
}
