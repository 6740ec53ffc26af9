//! Derives structured input from arbitrary bytes: numbers, pieces and heads of requests.

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};

/// Reader that takes bytes from the front. It returns zeros and empty slices at the end.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Takes at most `length` bytes.
    pub(crate) fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Takes everything up to the first line feed, and removes the line feed.
    pub(crate) fn line(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == b'\n');
        let line = self.take(end.unwrap_or(self.0.len()));
        self.byte();
        line
    }

    /// Returns the rest in pieces of `step + 1` bytes.
    pub(crate) fn pieces(self, step: u8) -> Vec<&'a [u8]> {
        self.0.chunks(usize::from(step) + 1).collect()
    }

    /// Takes the head of a request in the format that a client sends: method and target, header lines, a
    /// blank line. Returns `None` for a head that the HTTP library rejects.
    pub(crate) fn head(&mut self) -> Option<Parts> {
        let mut words = self.line().splitn(2, |byte| *byte == b' ');
        let mut head = http::Request::builder().method(words.next()?).uri(words.next()?);
        *head.headers_mut()? = self.headers()?;
        Some(head.body(()).ok()?.into_parts().0)
    }

    /// Takes header lines and a blank line. Returns `None` for headers that the HTTP library rejects.
    pub(crate) fn headers(&mut self) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                return Some(headers);
            }
            let mut parts = line.splitn(2, |byte| *byte == b':');
            let name = HeaderName::from_bytes(parts.next()?).ok()?;
            headers.append(name, HeaderValue::from_bytes(parts.next()?.trim_ascii()).ok()?);
        }
    }

    /// Takes a line as text. Invalid UTF-8 becomes U+FFFD.
    pub(crate) fn text(&mut self) -> String {
        String::from_utf8_lossy(self.line()).into_owned()
    }
}

/// Runs a future that never waits for I/O or for another thread.
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}
