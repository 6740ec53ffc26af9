//! XML out: the one writer of every answer's body. XML in: the reader of request bodies.
//!
//! The writer knows elements and text only, which is all that S3's answers have. Characters that
//! XML 1.0 cannot hold are written as character references, as AWS does.

use super::error::{Code, S3Error};
use mlgw_common::Timestamp;
use serde::de::DeserializeOwned;
use std::fmt::{Display, Write};

/// The name space of S3's documents.
pub const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";
/// The line that begins every document.
pub const PROLOG: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/// A document being written.
pub struct Xml {
    text: String,
}

impl Xml {
    /// A document whose root element is `root`, in S3's name space.
    #[must_use]
    pub fn new(root: &str) -> Self {
        let mut xml = Self { text: String::with_capacity(512) };
        xml.text.push_str(PROLOG);
        xml.raw(&["<", root, " xmlns=\"", NAMESPACE, "\">"]);
        xml
    }

    /// Opens an element.
    pub fn open(&mut self, tag: &str) -> &mut Self {
        self.raw(&["<", tag, ">"])
    }

    /// Closes an element.
    pub fn close(&mut self, tag: &str) -> &mut Self {
        self.raw(&["</", tag, ">"])
    }

    /// An element with text, escaped.
    #[inline]
    pub fn text(&mut self, tag: &str, value: &str) -> &mut Self {
        element_into(&mut self.text, tag, value, Unprintable::Referenced);
        self
    }

    /// Text of the element that is open, escaped.
    pub fn content(&mut self, value: &str) -> &mut Self {
        escape_into(&mut self.text, value, Unprintable::Referenced);
        self
    }

    /// An element whose text needs no escaping: numbers, times, booleans.
    pub fn value(&mut self, tag: &str, value: impl Display) -> &mut Self {
        self.open(tag);
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{value}");
        self.close(tag)
    }

    /// A time, in whole seconds as AWS writes it: a listing shows the same time as the object's
    /// `Last-Modified` says.
    #[inline]
    pub fn time(&mut self, tag: &str, time: Timestamp) -> &mut Self {
        self.value(tag, Timestamp::from_secs(time.as_secs()))
    }

    /// An element with text, if there is any.
    pub fn optional(&mut self, tag: &str, value: Option<&str>) -> &mut Self {
        match value {
            Some(value) => self.text(tag, value),
            None => self,
        }
    }

    /// An ETag in quotes. It may be an origin's, who gives it what characters it likes.
    pub fn etag(&mut self, etag: &str) -> &mut Self {
        // Ours are all plain, and a listing has a thousand: told in a few instructions, without a way out of
        // the loop.
        let is_plain =
            etag.bytes().fold(true, |plain, byte| plain & (byte.is_ascii_alphanumeric() | (byte == b'-')));
        if is_plain {
            return self.raw(&["<ETag>&quot;", etag, "&quot;</ETag>"]);
        }
        self.raw(&["<ETag>&quot;"]).content(etag).raw(&["&quot;</ETag>"])
    }

    /// Closes the root element and hands out the document.
    #[must_use]
    pub fn finish(mut self, root: &str) -> String {
        self.close(root);
        self.text
    }

    /// Markup as it stands, for rows that a listing has a thousand times.
    #[inline]
    pub fn raw(&mut self, pieces: &[&str]) -> &mut Self {
        self.text.reserve(pieces.iter().map(|piece| piece.len()).sum());
        for piece in pieces {
            self.text.push_str(piece);
        }
        self
    }
}

/// What becomes of characters that XML 1.0 cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unprintable {
    /// A character reference, as AWS writes it in listings: no other form says which key it is.
    Referenced,
    /// U+FFFD: an error has to be read by every parser.
    Replaced,
}

/// Appends an element with text, escaped.
pub fn element_into(out: &mut String, tag: &str, value: &str, unprintable: Unprintable) {
    out.reserve(2 * tag.len() + "<></>".len() + value.len());
    for piece in ["<", tag, ">"] {
        out.push_str(piece);
    }
    escape_into(out, value, unprintable);
    for piece in ["</", tag, ">"] {
        out.push_str(piece);
    }
}

fn escape_into(out: &mut String, value: &str, unprintable: Unprintable) {
    let plain = |b: u8| (b >= 0x20) & !matches!(b, b'&' | b'<' | b'>' | b'"' | b'\'' | 0x7f | 0xef);
    // Without an exit from the loop the compiler looks at many bytes at once.
    if value.bytes().fold(true, |all, byte| all & plain(byte)) {
        out.push_str(value);
        return;
    }
    for c in value.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            // Plain ones would be normalised away by the reader.
            '\t' | '\n' | '\r' | '\u{7f}' => reference_into(out, c),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => match unprintable {
                Unprintable::Referenced => reference_into(out, c),
                Unprintable::Replaced => out.push('\u{fffd}'),
            },
            c => out.push(c),
        }
    }
}

fn reference_into(out: &mut String, c: char) {
    // Writing to a String cannot fail.
    let _ = write!(out, "&#x{:X};", c as u32);
}

/// Reads a request's document; unknown elements, name spaces and a prolog do not matter.
///
/// # Errors
/// `MalformedXML` with what is wrong.
pub fn parse<T: DeserializeOwned>(document: &[u8]) -> Result<T, S3Error> {
    let malformed = |why: String| S3Error::new(Code::MalformedXML).message(why);
    let text = std::str::from_utf8(document).map_err(|_| malformed("The XML is not UTF-8.".into()))?;
    quick_xml::de::from_str(text)
        .map_err(|e| malformed(format!("The XML is not as the operation needs it: {e}")))
}

#[cfg(test)]
mod tests {
    use super::{Xml, parse};

    #[test]
    fn text_is_escaped_and_elements_nest() {
        let mut xml = Xml::new("R");
        xml.open("A").text("K", "a<b>&\"'\u{1}é").value("N", 3).etag("ab-2").close("A").optional("X", None);
        let text = xml.finish("R");
        assert!(text.ends_with(
            "<A><K>a&lt;b&gt;&amp;&quot;&apos;&#x1;é</K><N>3</N><ETag>&quot;ab-2&quot;</ETag></A></R>"
        ));
    }

    #[test]
    fn an_etag_is_text_whoever_gave_it() {
        let mut xml = Xml::new("R");
        xml.etag("a</ETag>&");
        assert!(xml.finish("R").ends_with("<ETag>&quot;a&lt;/ETag&gt;&amp;&quot;</ETag></R>"));
    }

    #[derive(serde::Deserialize, Debug, PartialEq)]
    struct R {
        #[serde(rename = "K")]
        k: String,
    }

    #[test]
    fn reads_with_and_without_prolog_and_name_space() {
        for text in [
            "<R><K>a&quot;&#34;</K></R>",
            "<?xml version=\"1.0\"?>\n<R xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"> <Z/> <K>a\"\"</K>\n</R>",
        ] {
            assert_eq!(parse::<R>(text.as_bytes()).unwrap(), R { k: "a\"\"".into() }, "{text}");
        }
        assert!(parse::<R>(b"<R><K>a</R>").is_err());
        assert!(parse::<R>(b"\xff").is_err());
        assert!(parse::<R>(b"").is_err());
    }
}
