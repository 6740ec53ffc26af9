//! Writer of the XML documents of all response bodies.
//!
//! It supports elements and text only, which is all that S3's responses contain. Characters that XML
//! 1.0 cannot hold are written as character references, as AWS does.

use mlgw_common::Timestamp;
use std::fmt::{Display, Write};

/// Namespace of S3's documents.
pub const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";
/// First line of every document.
pub const PROLOG: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/// A document under construction.
pub struct Xml {
    text: String,
    /// Open elements.
    depth: usize,
}

impl Xml {
    /// Starts a document whose root element is `root`, in S3's namespace.
    #[must_use]
    pub fn new(root: &str) -> Self {
        let mut xml = Self { text: String::with_capacity(512), depth: 1 };
        xml.text.push_str(PROLOG);
        xml.raw(&["<", root, " xmlns=\"", NAMESPACE, "\">"]);
        xml
    }

    /// Opens an element.
    pub fn open(&mut self, tag: &str) -> &mut Self {
        self.depth += 1;
        self.raw(&["<", tag, ">"])
    }

    /// Closes an element.
    pub fn close(&mut self, tag: &str) -> &mut Self {
        assert!(self.depth > 0, "an element that is closed was opened");
        self.depth -= 1;
        self.raw(&["</", tag, ">"])
    }

    /// Appends an element with text, escaped.
    #[inline]
    pub fn text(&mut self, tag: &str, value: &str) -> &mut Self {
        element_into(&mut self.text, tag, value, Unprintable::Referenced);
        self
    }

    /// Appends text to the open element, escaped.
    pub fn content(&mut self, value: &str) -> &mut Self {
        escape_into(&mut self.text, value, Unprintable::Referenced);
        self
    }

    /// Appends an element whose text needs no escaping: numbers, times, booleans.
    pub fn value(&mut self, tag: &str, value: impl Display) -> &mut Self {
        self.open(tag);
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{value}");
        self.close(tag)
    }

    /// Appends a time in whole seconds, as AWS does, so that a listing shows the same time as
    /// `Last-Modified`.
    #[inline]
    pub fn time(&mut self, tag: &str, time: Timestamp) -> &mut Self {
        self.value(tag, Timestamp::from_secs(time.as_secs()))
    }

    /// Appends an element with text, or nothing if `value` is `None`.
    pub fn optional(&mut self, tag: &str, value: Option<&str>) -> &mut Self {
        match value {
            Some(value) => self.text(tag, value),
            None => self,
        }
    }

    /// Appends an ETag in quotes. An origin's ETag may contain any characters, so it is escaped.
    pub fn etag(&mut self, etag: &str) -> &mut Self {
        // ETags of mlgw's own objects are always plain, and a listing has a thousand of them: the check takes
        // a few instructions, because a loop without an early exit is vectorised.
        let is_plain =
            etag.bytes().fold(true, |plain, byte| plain & (byte.is_ascii_alphanumeric() | (byte == b'-')));
        if is_plain {
            return self.raw(&["<ETag>&quot;", etag, "&quot;</ETag>"]);
        }
        self.raw(&["<ETag>&quot;"]).content(etag).raw(&["&quot;</ETag>"])
    }

    /// Closes the root element and returns the document.
    #[must_use]
    pub fn finish(mut self, root: &str) -> String {
        self.close(root);
        assert_eq!(self.depth, 0, "every element of a document is closed");
        self.text
    }

    /// Appends markup unescaped, for rows that occur a thousand times in a listing.
    #[inline]
    pub fn raw(&mut self, pieces: &[&str]) -> &mut Self {
        self.text.reserve(pieces.iter().map(|piece| piece.len()).sum());
        for piece in pieces {
            self.text.push_str(piece);
        }
        self
    }
}

/// Treatment of characters that XML 1.0 cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unprintable {
    /// Write a character reference, as AWS does in listings; no other form preserves the key.
    Referenced,
    /// Write U+FFFD, so that every parser can read an error document.
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
    // A loop without an early exit is vectorised.
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
            // Unescaped, these would be normalised away by the reader.
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

#[cfg(test)]
mod tests {
    use super::Xml;

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
    fn an_etag_of_an_origin_is_escaped() {
        let mut xml = Xml::new("R");
        xml.etag("a</ETag>&");
        assert!(xml.finish("R").ends_with("<ETag>&quot;a&lt;/ETag&gt;&amp;&quot;</ETag></R>"));
    }
}
