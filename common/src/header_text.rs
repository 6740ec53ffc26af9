//! Text in header values: decodes what clients send, and encodes text in a form that every client can read.
//!
//! A header value is bytes. Clients send text in it as UTF-8, as ISO-8859-1, or as encoded words (RFC 2047).
//! User metadata is stored as the decoded text and sent as ASCII: text that ASCII cannot represent is sent as
//! encoded words, as AWS does. Other stored headers are sent as ISO-8859-1, which HTTP has supported from the
//! beginning.
//!
//! Invariant: [`metadata_from_wire`] decodes the output of [`metadata_to_wire`] to the same text, and both
//! outputs are printable ASCII. All functions are pure; nothing is stored.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use std::borrow::Cow;
use std::fmt::Write as _;

/// Longest encoded word (RFC 2047, section 2).
const WORD_BYTES_MAX: usize = 75;
const WORD_BEGIN: &str = "=?UTF-8?B?";
const WORD_END: &str = "?=";
/// Bytes of text in one encoded word: base64 encodes 3 bytes as 4 characters.
const WORD_TEXT_BYTES_MAX: usize = (WORD_BYTES_MAX - WORD_BEGIN.len() - WORD_END.len()) / 4 * 3;

/// True if every client reads `text` in a header unchanged: printable ASCII and tabs, without blanks at the
/// ends, which HTTP strips.
#[must_use]
pub fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t')) && text.trim_ascii().len() == text.len()
}

/// Decodes a header value as UTF-8 if it is valid UTF-8, else as ISO-8859-1.
#[must_use]
pub fn decode_text(value: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(value) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(value.iter().map(|&byte| char::from(byte)).collect()),
    }
}

/// Decodes a value of user metadata. Encoded words are decoded only if they contain characters outside ASCII;
/// a value of plain ASCII is returned as it was sent.
#[must_use]
pub fn metadata_from_wire(value: &[u8]) -> String {
    let text = decode_text(value);
    match decoded_words(&text) {
        Some(decoded) if !is_plain(&decoded) => decoded,
        _ => text.into_owned(),
    }
}

/// Encodes a value of user metadata for a response: unchanged, or as encoded words.
#[must_use]
pub fn metadata_to_wire(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() * 2);
    let mut rest = text;
    while !rest.is_empty() {
        let (word, others) = rest.split_at(rest.floor_char_boundary(WORD_TEXT_BYTES_MAX));
        if !out.is_empty() {
            // Readers drop the blank between two encoded words.
            out.push(' ');
        }
        out.push_str(WORD_BEGIN);
        BASE64_STANDARD.encode_string(word, &mut out);
        out.push_str(WORD_END);
        rest = others;
    }
    Cow::Owned(out)
}

/// `text` as ISO-8859-1; `None` if it has other characters.
#[must_use]
pub fn latin1(text: &str) -> Option<Cow<'_, [u8]>> {
    if text.is_ascii() {
        return Some(Cow::Borrowed(text.as_bytes()));
    }
    text.chars().map(|c| u8::try_from(c).ok()).collect::<Option<Vec<u8>>>().map(Cow::Owned)
}

/// `text` with every character percent-encoded that is not printable ASCII.
#[must_use]
pub fn percent_encoded(text: &str) -> Cow<'_, str> {
    let is_kept = |byte: u8| matches!(byte, b' '..=b'~');
    // Without an early exit the compiler vectorizes the loop.
    if text.bytes().fold(true, |all, byte| all & is_kept(byte)) {
        return Cow::Borrowed(text);
    }
    percent_encode_except(text, is_kept).into()
}

fn percent_encode_except(text: &str, is_kept: impl Fn(u8) -> bool) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        if is_kept(byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// A `Content-Disposition` that ISO-8859-1 cannot represent, as ASCII: its `filename` becomes `filename*`
/// (RFC 6266), other such characters are percent-encoded.
#[must_use]
pub fn disposition(text: &str) -> String {
    let parameters = parameters(text);
    let name_of =
        |parameter: &str| parameter.split_once('=').map(|(name, _)| name.trim().to_ascii_lowercase());
    let has_extended = parameters.iter().any(|parameter| name_of(parameter).as_deref() == Some("filename*"));
    let mut out = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        let parameter = parameter.trim();
        let is_name = name_of(parameter).as_deref() == Some("filename") && !is_plain(parameter);
        match parameter.split_once('=') {
            // Readers prefer `filename*`, so this one can be dropped.
            Some(_) if is_name && has_extended => {}
            Some((_, value)) if is_name => {
                out.push(format!("filename*=UTF-8''{}", extended(&unquoted(value))))
            }
            _ => out.push(percent_encoded(parameter).into_owned()),
        }
    }
    out.join("; ")
}

/// Value of an extended parameter (RFC 8187): everything except `attr-char` is percent-encoded.
fn extended(text: &str) -> String {
    percent_encode_except(text, |byte| byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte))
}

/// Parts of a value between semicolons, ignoring semicolons within quotes.
fn parameters(text: &str) -> Vec<&str> {
    let (mut found, mut begin, mut is_quoted, mut is_escaped) = (Vec::new(), 0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            ';' if !is_quoted => {
                found.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.push(&text[begin..]);
    found
}

fn unquoted(value: &str) -> String {
    let value = value.trim();
    let Some(inner) = value.strip_prefix('"') else { return value.to_owned() };
    let (mut out, mut is_escaped) = (String::with_capacity(inner.len()), false);
    for c in inner.strip_suffix('"').unwrap_or(inner).chars() {
        if c == '\\' && !is_escaped {
            is_escaped = true;
        } else {
            is_escaped = false;
            out.push(c);
        }
    }
    out
}

/// `text` with its encoded words decoded; `None` if none of them can be decoded.
fn decoded_words(text: &str) -> Option<String> {
    // Adjacent words are decoded together, because some writers split a character between two words.
    let (mut out, mut carried) = (String::new(), Vec::new());
    let (mut rest, mut from, mut is_behind_word) = (text, 0, false);
    while let Some(at) = rest[from..].find("=?").map(|at| from + at) {
        let Some((word, length)) = word_at(&rest[at..]) else {
            from = at + "=?".len();
            continue;
        };
        let before = &rest[..at];
        // Blanks between two encoded words are not part of the text.
        if !(is_behind_word && before.bytes().all(|byte| byte.is_ascii_whitespace())) {
            out.push_str(std::str::from_utf8(&carried).ok()?);
            out.push_str(before);
            carried.clear();
        }
        carried.extend(word);
        (rest, from, is_behind_word) = (&rest[at + length..], 0, true);
    }
    out.push_str(std::str::from_utf8(&carried).ok()?);
    out.push_str(rest);
    is_behind_word.then_some(out)
}

/// The encoded word at the start of `text`: its content as UTF-8, and its length.
fn word_at(text: &str) -> Option<(Vec<u8>, usize)> {
    let mut fields = text.strip_prefix("=?")?.splitn(3, '?');
    let (charset, encoding, rest) = (fields.next()?, fields.next()?, fields.next()?);
    let carried = &rest[..rest.find(WORD_END)?];
    let is_graphic = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_graphic(charset) || !is_graphic(carried) {
        return None;
    }
    let bytes = match encoding {
        "B" | "b" => BASE64_STANDARD.decode(carried).ok()?,
        "Q" | "q" => quoted_printable(carried)?,
        _ => return None,
    };
    // A language may follow the charset (RFC 2231).
    let utf8 = match charset.split('*').next()?.to_ascii_lowercase().as_str() {
        "utf-8" | "utf8" => bytes,
        "us-ascii" if bytes.is_ascii() => bytes,
        "iso-8859-1" => bytes.iter().map(|&byte| char::from(byte)).collect::<String>().into_bytes(),
        _ => return None,
    };
    let length =
        "=?".len() + charset.len() + "?".len() + encoding.len() + "?".len() + carried.len() + WORD_END.len();
    Some((utf8, length))
}

fn quoted_printable(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'_' => b' ',
            b'=' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::{
        WORD_BYTES_MAX, decode_text, disposition, is_plain, latin1, metadata_from_wire, metadata_to_wire,
        percent_encoded,
    };
    use proptest::prelude::any;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn every_text_round_trips_as_ascii(text in "\\PC{0,80}|[a-z =?é世_\r\n\t]{0,80}|.{0,40}") {
            let wire = metadata_to_wire(&text).into_owned();
            prop_assert!(is_plain(&wire), "{:?}", wire);
            let back = metadata_from_wire(wire.as_bytes());
            // Plain text that looks like an encoded word is decoded, as by any other reader.
            prop_assert!(back == text || (wire == text && text.contains("=?")), "{:?} {:?}", wire, back);
            prop_assert!(wire == text || wire.split(' ').all(|word| word.len() <= WORD_BYTES_MAX));
        }

        #[test]
        fn decoding_any_bytes_gives_sendable_text_and_is_idempotent(
            value in proptest::collection::vec(any::<u8>(), 0..60)
        ) {
            let once = metadata_from_wire(&value);
            let wire = metadata_to_wire(&once).into_owned();
            prop_assert!(is_plain(&wire));
            let twice = metadata_from_wire(wire.as_bytes());
            prop_assert_eq!(metadata_to_wire(&twice), wire);
            prop_assert!(is_plain(percent_encoded(&once).trim()));
            prop_assert!(disposition(&once).is_ascii());
        }
    }

    #[test]
    fn metadata_is_sent_in_a_form_that_clients_can_read() {
        for (text, wire) in [
            ("", ""),
            ("annual  report", "annual  report"),
            ("=?UTF-8?Q?plain?=", "=?UTF-8?Q?plain?="),
            ("Grüße, 世界", "=?UTF-8?B?R3LDvMOfZSwg5LiW55WM?="),
            (" a", "=?UTF-8?B?IGE=?="),
            ("a\nb", "=?UTF-8?B?YQpi?="),
        ] {
            assert_eq!(metadata_to_wire(text), wire, "{text:?}");
        }
        let long = metadata_to_wire(&"é".repeat(50)).into_owned();
        assert_eq!(long.split(' ').count(), 3, "a word has at most 45 bytes of text: {long}");
    }

    #[test]
    fn metadata_is_decoded_from_every_form_that_clients_send() {
        for (wire, text) in [
            (&b"plain"[..], "plain"),
            ("Grüße, 世界".as_bytes(), "Grüße, 世界"),
            (b"caf\xe9", "café"),
            (b"=?UTF-8?B?R3LDvMOfZSwg5LiW55WM?=", "Grüße, 世界"),
            (b"=?utf-8?q?Gr=C3=BC=C3=9Fe=2C_?= =?UTF-8?B?5LiW55WM?=", "Grüße, 世界"),
            (b"=?ISO-8859-1?Q?caf=E9?= au lait", "café au lait"),
            (b"le =?iso-8859-1*fr?q?caf=e9?=", "le café"),
            // A character that is split between two words.
            (b"=?UTF-8?B?w7w=?= =?UTF-8?Q?=C3?=\t=?UTF-8?Q?=BC?=", "üü"),
            // Plain ASCII and undecodable words are returned as they were sent.
            (b"=?UTF-8?B?YQ==?=", "=?UTF-8?B?YQ==?="),
            (b"=?UTF-8?B?w7?=", "=?UTF-8?B?w7?="),
            (b"=?UTF-8?Q?=C3?=", "=?UTF-8?Q?=C3?="),
            (b"=?KOI8-R?B?8A==?=", "=?KOI8-R?B?8A==?="),
            (b"=?UTF-8?X?a?= =? ?= =?", "=?UTF-8?X?a?= =? ?= =?"),
            (b"=?=?UTF-8?B?w7w=?=", "=?ü"),
        ] {
            assert_eq!(metadata_from_wire(wire), text, "{}", String::from_utf8_lossy(wire));
        }
    }

    #[test]
    fn other_headers_are_latin_1_or_are_encoded() {
        assert_eq!(latin1("café").as_deref(), Some(&b"caf\xe9"[..]));
        assert_eq!(latin1("世"), None);
        assert_eq!((decode_text(b"caf\xe9"), decode_text("café".as_bytes())), ("café".into(), "café".into()));
        assert_eq!(percent_encoded("text/x; n=世\n 100%"), "text/x; n=%E4%B8%96%0A 100%");
    }

    #[test]
    fn a_disposition_is_encoded_as_ascii() {
        for (text, sent) in [
            ("attachment; filename=\"世界.txt\"", "attachment; filename*=UTF-8''%E4%B8%96%E7%95%8C.txt"),
            ("attachment;FileName = 世 ; x=1", "attachment; filename*=UTF-8''%E4%B8%96; x=1"),
            ("inline; filename=\"a;\\\"世\\\\.txt\"", "inline; filename*=UTF-8''a%3B%22%E4%B8%96%5C.txt"),
            ("inline; filename=\"世\"; filename*=UTF-8''%E4", "inline; filename*=UTF-8''%E4"),
            ("inline; filename=\"a.txt\"; x=\"世\"", "inline; filename=\"a.txt\"; x=\"%E4%B8%96\""),
            ("世", "%E4%B8%96"),
        ] {
            assert_eq!(disposition(text), sent, "{text}");
        }
    }
}
