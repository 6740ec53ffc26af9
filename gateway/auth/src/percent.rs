//! Percent-encoding in SigV4's form: all bytes except the unreserved ones, with upper-case digits.
//!
//! Clients encode queries in their own ways and sign them in this form. Most send the form that they sign, so
//! that form is recognized and copied; only other text is decoded and encoded again.

use memchr::memchr2;
use std::borrow::Cow;

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// True for bytes that are not encoded. A table, because every byte of a query is looked up.
const UNRESERVED: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        let ascii = byte as u8;
        table[byte] = ascii.is_ascii_alphanumeric() || matches!(ascii, b'-' | b'.' | b'_' | b'~');
        byte += 1;
    }
    table
};

const fn unreserved(byte: u8) -> bool {
    UNRESERVED[byte as usize]
}

const fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

/// Returns the byte that the escape at the beginning of `text` encodes.
fn escaped(text: &[u8]) -> Option<u8> {
    match text {
        [b'%', high, low, ..] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    }
}

/// True if `text` is already encoded in SigV4's form.
fn canonical(text: &[u8]) -> bool {
    let mut at = 0;
    while at < text.len() {
        if unreserved(text[at]) {
            at += 1;
            continue;
        }
        let lower = |b: &u8| matches!(b, b'a'..=b'f');
        match escaped(&text[at..]) {
            Some(byte) if !unreserved(byte) && !text[at + 1..at + 3].iter().any(lower) => at += 3,
            _ => return false,
        }
    }
    true
}

/// Returns a name or value of a query as SigV4 signs it. `+` is a space, as in forms; an invalid escape is
/// kept as literal text.
pub(super) fn component(raw: &str) -> Cow<'_, str> {
    if canonical(raw.as_bytes()) {
        Cow::Borrowed(raw)
    } else {
        Cow::Owned(encode(&decode(raw, PlusSign::Space), Slash::Escaped))
    }
}

/// Decodes a path and encodes it again, for requests that an intermediary re-encoded.
pub(super) fn path(raw: &str) -> String {
    encode(&decode(raw, PlusSign::Literal), Slash::Kept)
}

/// Decodes a value to text. Bytes that are not UTF-8 are replaced, because no expected value has any.
pub(super) fn decode_text(raw: &str) -> Cow<'_, str> {
    if memchr2(b'%', b'+', raw.as_bytes()).is_none() {
        return Cow::Borrowed(raw);
    }
    let text = String::from_utf8(decode(raw, PlusSign::Space));
    Cow::Owned(text.unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// Meaning of `+` in escaped text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlusSign {
    /// A space, as in forms and queries.
    Space,
    /// Itself, as in paths.
    Literal,
}

/// Encoding of `/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slash {
    /// Written as it is, as in paths.
    Kept,
    /// Escaped, as in queries.
    Escaped,
}

fn decode(raw: &str, plus_sign: PlusSign) -> Vec<u8> {
    let mut rest = raw.as_bytes();
    let mut out = Vec::with_capacity(rest.len());
    while let Some(at) = memchr2(b'%', b'+', rest) {
        let (plain, special) = rest.split_at(at);
        out.extend_from_slice(plain);
        let (byte, length) = match escaped(special) {
            Some(byte) => (byte, 3),
            None if plus_sign == PlusSign::Space && special[0] == b'+' => (b' ', 1),
            None => (special[0], 1),
        };
        out.push(byte);
        rest = &special[length..];
    }
    out.extend_from_slice(rest);
    out
}

fn encode(bytes: &[u8], slash: Slash) -> String {
    let mut out = String::with_capacity(bytes.len() + bytes.len() / 2);
    for &byte in bytes {
        if unreserved(byte) || (slash == Slash::Kept && byte == b'/') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{component, decode_text, path};
    use std::borrow::Cow;

    #[test]
    fn canonical_text_is_borrowed() {
        for text in ["", "a-b_c.d~e", "a%2Fb%20c", "%F0%9F%98%80"] {
            assert!(matches!(component(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn other_text_is_encoded_again() {
        for (raw, signed) in [
            ("a/b", "a%2Fb"),
            ("a+b", "a%20b"),
            ("%2f", "%2F"),
            ("%7E%41", "~A"),
            ("100%", "100%25"),
            ("%zz", "%25zz"),
            ("é", "%C3%A9"),
            ("(*)", "%28%2A%29"),
        ] {
            assert_eq!(component(raw), signed, "{raw}");
        }
    }

    #[test]
    fn a_path_keeps_its_slashes_and_plus_signs() {
        assert_eq!(path("/b/a//b/../c"), "/b/a//b/../c");
        assert_eq!(path("/b/a+b(c)%2f"), "/b/a%2Bb%28c%29/");
    }

    #[test]
    fn values_are_decoded_as_text() {
        assert_eq!(decode_text("AK%2F20130524"), "AK/20130524");
        assert_eq!(decode_text("%FF"), "\u{FFFD}");
    }
}
