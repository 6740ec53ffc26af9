//! The head of a request or a response: kept as the received bytes, inspected, and changed only by a fault.
//!
//! An unchanged head is forwarded byte for byte, whatever the case and the spaces of its lines, because
//! signatures cover them.

use std::borrow::Cow;
use std::io;

use super::framing::Framing;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MessageHead {
    /// The bytes, including the empty line at the end.
    bytes: Vec<u8>,
}

impl MessageHead {
    /// # Errors
    /// The first line has fewer than two parts.
    pub(super) fn new(bytes: Vec<u8>) -> io::Result<Self> {
        let head = Self { bytes };
        let parts = head.lines().next().map_or(0, |line| line.splitn(3, |byte| *byte == b' ').count());
        // A response may omit the reason, and some omit the space before it.
        if parts < 2 {
            return Err(invalid_head("not an HTTP/1 head"));
        }
        Ok(head)
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The lines, without their ends; the last ones are empty.
    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// A part of the first line: method, target and version, or version, status and reason.
    fn part(&self, number: usize) -> Cow<'_, str> {
        let line = self.lines().next().unwrap_or_default();
        String::from_utf8_lossy(line.splitn(3, |byte| *byte == b' ').nth(number).unwrap_or_default())
    }

    /// The value of the first header of this name.
    pub(super) fn value(&self, name: &str) -> Option<String> {
        let value = self.lines().skip(1).find_map(|line| value_of(line, name))?;
        Some(String::from_utf8_lossy(value).trim().to_owned())
    }

    /// True if the list in a header contains `word`.
    fn list_contains(&self, name: &str, word: &str) -> bool {
        self.lines().skip(1).filter_map(|line| value_of(line, name)).any(|value| {
            value
                .split(|byte| *byte == b',')
                .any(|item| item.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
        })
    }

    /// Sets a header: replaces its current value, or appends it after all others.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        let mut changed = Vec::with_capacity(self.bytes.len() + name.len() + value.len() + 4);
        let mut is_set = false;
        for (number, line) in self.lines().enumerate() {
            if line.is_empty() {
                break;
            }
            let is_named_header = number > 0 && value_of(line, name).is_some();
            if !is_named_header {
                changed.extend_from_slice(line);
            } else if !is_set {
                let name = &line[..name.len()];
                changed.extend_from_slice(&[name, b": ", value.as_bytes()].concat());
                is_set = true;
            } else {
                continue;
            }
            changed.extend_from_slice(b"\r\n");
        }
        if !is_set {
            changed.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        changed.extend_from_slice(b"\r\n");
        self.bytes = changed;
    }

    fn content_length(&self) -> io::Result<Option<u64>> {
        let Some(value) = self.value("content-length") else { return Ok(None) };
        value.parse().map(Some).map_err(|_| invalid_head("no content length"))
    }

    /// True if the connection may be reused, as far as the sender of this head is concerned.
    fn keeps_alive(&self, version: &str) -> bool {
        match version {
            "HTTP/1.1" => !self.list_contains("connection", "close"),
            _ => self.list_contains("connection", "keep-alive"),
        }
    }
}

/// Accessors for the head of a request.
impl MessageHead {
    pub(super) fn method(&self) -> Cow<'_, str> {
        self.part(0)
    }

    /// Path and query, as they were sent.
    pub(super) fn target(&self) -> Cow<'_, str> {
        self.part(1)
    }

    pub(super) fn request_keeps_alive(&self) -> bool {
        self.keeps_alive(&self.part(2))
    }

    /// True if the client waits for 100 Continue before it sends the body.
    pub(super) fn expects_continue(&self) -> bool {
        self.list_contains("expect", "100-continue")
    }

    pub(super) fn request_framing(&self) -> io::Result<Framing> {
        if self.list_contains("transfer-encoding", "chunked") {
            return Ok(Framing::chunked());
        }
        Ok(Framing::sized(self.content_length()?.unwrap_or(0)))
    }
}

/// Accessors for the head of a response.
impl MessageHead {
    pub(super) fn status(&self) -> io::Result<u16> {
        self.part(1).trim().parse().map_err(|_| invalid_head("no status"))
    }

    pub(super) fn answer_keeps_alive(&self) -> bool {
        self.keeps_alive(&self.part(0))
    }

    /// The framing of this response's body, for a request with this method.
    pub(super) fn answer_framing(&self, method: &str) -> io::Result<Framing> {
        if has_no_body(method, self.status()?) {
            return Ok(Framing::sized(0));
        }
        if self.list_contains("transfer-encoding", "chunked") {
            return Ok(Framing::chunked());
        }
        Ok(self.content_length()?.map_or(Framing::UntilClosed, Framing::sized))
    }
}

pub(super) fn has_no_body(method: &str, status: u16) -> bool {
    method == "HEAD" || matches!(status, 100..=199 | 204 | 304)
}

/// The bytes after the colon, if the line is a header of this name.
fn value_of<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (before, after) = line.split_at_checked(name.len())?;
    if before.eq_ignore_ascii_case(name.as_bytes()) { after.strip_prefix(b":") } else { None }
}

fn invalid_head(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "HTTP/1.1 200 OK\r\nServer: s\r\neTag:\t \"one\"\r\nETAG: \"two\"\r\n\r\n";

    fn head(text: &str) -> MessageHead {
        MessageHead::new(text.as_bytes().to_vec()).unwrap()
    }

    fn set(name: &str, value: &str) -> String {
        let mut head = head(ANSWER);
        head.set(name, value);
        String::from_utf8(head.into_bytes()).unwrap()
    }

    #[test]
    fn a_header_is_replaced_in_place_or_appended() {
        assert_eq!(set("etag", "\"x\""), "HTTP/1.1 200 OK\r\nServer: s\r\neTag: \"x\"\r\n\r\n");
        assert_eq!(set("age", "3"), ANSWER.replace("\r\n\r\n", "\r\nage: 3\r\n\r\n"));
        assert_eq!(head(ANSWER).into_bytes(), ANSWER.as_bytes());
    }

    #[test]
    fn the_framing_of_a_request_follows_from_its_head() {
        let framing = |headers| head(&format!("PUT /a?b=c HTTP/1.1\r\n{headers}\r\n")).request_framing();
        assert_eq!(framing("").unwrap(), Framing::sized(0));
        assert_eq!(framing("Content-LENGTH:7 \r\n").unwrap(), Framing::sized(7));
        assert_eq!(
            framing("content-length: 7\r\nTransfer-Encoding: Chunked\r\n").unwrap(),
            Framing::chunked()
        );
        assert!(framing("content-length: seven\r\n").is_err());
        let head = head("PUT /a?b=c HTTP/1.1\r\nexpect: 100-Continue\r\nConnection: x, Close\r\n\r\n");
        assert!(head.expects_continue() && !head.request_keeps_alive());
        assert_eq!((head.method(), head.target()), ("PUT".into(), "/a?b=c".into()));
    }

    #[test]
    fn the_framing_of_a_response_follows_from_its_head() {
        let framing = |method, status| {
            head(&format!("HTTP/1.1 {status}\r\ncontent-length: 5\r\n\r\n")).answer_framing(method)
        };
        assert_eq!(framing("GET", 200).unwrap(), Framing::sized(5));
        for (method, status) in [("HEAD", 200), ("GET", 304), ("DELETE", 204), ("PUT", 100)] {
            assert_eq!(framing(method, status).unwrap(), Framing::sized(0), "{method} {status}");
        }
        let old = head("HTTP/1.0 200 OK\r\n\r\n");
        assert_eq!(old.answer_framing("GET").unwrap(), Framing::UntilClosed);
        assert!(!old.answer_keeps_alive() && head(ANSWER).answer_keeps_alive());
        assert!(MessageHead::new(b"nonsense\r\n\r\n".to_vec()).is_err());
    }
}
