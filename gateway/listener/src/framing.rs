//! Refuses requests of HTTP/1 with ambiguous framing, before the HTTP library reads them.
//!
//! The library is lenient where two parsers may disagree about the end of a request: it accepts a bare LF as
//! the end of a line, `Content-Length` beside `Transfer-Encoding`, and a coding before `chunked`. A proxy in
//! front of the server may parse such bytes as different requests (request smuggling). This module therefore
//! scans the bytes of a connection: unambiguous framing passes unchanged, anything else ends the connection
//! with an answer that names the reason.
//!
//! Only line ends and the two framing headers are examined. The library checks everything else.

use memchr::memchr;
use mlgw_wire::error::{Code, S3Error};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes kept of a line that arrives in pieces. Longer than any valid framing header.
const LINE_KEPT_BYTES: usize = 128;

/// The reason why the end of a request is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AmbiguousFraming {
    /// A line ends with LF alone.
    BareLineFeed,
    /// The length is given twice, or is not a number.
    Length,
    /// There is a coding other than `chunked` alone, or a length beside it.
    Coding,
    /// The framing of a chunked body is not well-formed.
    Chunk,
}

impl AmbiguousFraming {
    /// Returns the answer to a request with such a head.
    pub(super) fn refusal(self) -> S3Error {
        S3Error::new(Code::BadRequest).message(match self {
            Self::BareLineFeed => "A line of the request head does not end with CRLF.",
            Self::Length => "The Content-Length of the request is not a single whole number.",
            Self::Coding => {
                "The Transfer-Encoding of the request must be `chunked` alone, without a \
                Content-Length."
            }
            Self::Chunk => "The chunked encoding of the request body is not well-formed.",
        })
    }
}

/// Position of the next byte in the requests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramingPosition {
    /// Before a request line, or in it.
    RequestLine,
    /// In the header lines.
    Header,
    /// In a body, with the number of remaining bytes.
    Body(u64),
    /// In the line that begins a chunk.
    ChunkLine,
    /// In a chunk, with the number of its remaining bytes without its CR LF.
    Chunk(u64),
    /// In the line end after a chunk.
    ChunkEnd,
    /// In the trailers of a chunked body.
    Trailer,
}

/// Tracks the framing of the requests on one connection. A pure state machine.
#[derive(Debug)]
pub(super) struct FramingScanner {
    position: FramingPosition,
    /// The beginning of a line whose end has not arrived yet.
    line: Vec<u8>,
    /// Length of that line so far.
    line_bytes: usize,
    /// True if the last byte of that line so far is CR.
    carriage_return: bool,
    length: Option<u64>,
    chunked: bool,
}

impl FramingScanner {
    pub(super) const fn new() -> Self {
        Self {
            position: FramingPosition::RequestLine,
            line: Vec::new(),
            line_bytes: 0,
            carriage_return: false,
            length: None,
            chunked: false,
        }
    }

    /// Returns true if the next byte belongs to a request's head.
    const fn is_in_head(&self) -> bool {
        matches!(self.position, FramingPosition::RequestLine | FramingPosition::Header)
    }

    /// Advances over `bytes`.
    ///
    /// # Errors
    /// The reason, and the number of bytes before the ambiguous line. Those may be passed on.
    pub(super) fn scan(&mut self, bytes: &[u8]) -> Result<(), (usize, AmbiguousFraming)> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            at += match self.position {
                FramingPosition::Body(left) => {
                    self.skip(left, rest, FramingPosition::RequestLine, FramingPosition::Body)
                }
                FramingPosition::Chunk(left) => {
                    self.skip(left, rest, FramingPosition::ChunkEnd, FramingPosition::Chunk)
                }
                _ => self.line(rest).map_err(|uncertain| (at, uncertain))?,
            };
        }
        Ok(())
    }

    fn skip(
        &mut self,
        left: u64,
        rest: &[u8],
        then: FramingPosition,
        still: fn(u64) -> FramingPosition,
    ) -> usize {
        assert!(left > 0, "a body or chunk in progress has bytes left");
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
        let left = left - taken as u64;
        self.position = if left == 0 { then } else { still(left) };
        taken
    }

    /// Consumes a line, or the part of it that has arrived. Returns the number of bytes consumed.
    fn line(&mut self, rest: &[u8]) -> Result<usize, AmbiguousFraming> {
        let Some(end) = memchr(b'\n', rest) else {
            self.keep(rest);
            return Ok(rest.len());
        };
        let (piece, taken) = (&rest[..end], end + 1);
        let whole = if self.line_bytes == 0 {
            let text = piece.strip_suffix(b"\r").ok_or_else(|| self.bare_line_feed())?;
            self.end_line(text)
        } else {
            self.keep(piece);
            if !self.carriage_return {
                return Err(self.bare_line_feed());
            }
            let mut line = std::mem::take(&mut self.line);
            // Only the beginning of a long line was kept, without its CR.
            if self.line_bytes <= LINE_KEPT_BYTES {
                line.pop();
            }
            self.line_bytes = 0;
            let ended = self.end_line(&line);
            line.clear();
            self.line = line;
            ended
        };
        whole.map(|()| taken)
    }

    fn bare_line_feed(&self) -> AmbiguousFraming {
        if self.is_in_head() { AmbiguousFraming::BareLineFeed } else { AmbiguousFraming::Chunk }
    }

    /// Keeps a piece of a line, up to [`LINE_KEPT_BYTES`] of the line.
    fn keep(&mut self, piece: &[u8]) {
        let room = LINE_KEPT_BYTES.saturating_sub(self.line.len());
        self.line.extend_from_slice(&piece[..piece.len().min(room)]);
        self.line_bytes += piece.len();
        if let Some(last) = piece.last() {
            self.carriage_return = *last == b'\r';
        }
    }

    /// Handles a complete line, given without its end.
    fn end_line(&mut self, line: &[u8]) -> Result<(), AmbiguousFraming> {
        match self.position {
            // Clients may send an empty line before a request.
            FramingPosition::RequestLine if line.is_empty() => {}
            FramingPosition::RequestLine => {
                (self.length, self.chunked) = (None, false);
                self.position = FramingPosition::Header;
            }
            FramingPosition::Header if line.is_empty() => self.end_head(),
            FramingPosition::Header => self.header(line)?,
            FramingPosition::ChunkLine => {
                self.position = position_after_chunk_line(line).ok_or(AmbiguousFraming::Chunk)?
            }
            FramingPosition::ChunkEnd if line.is_empty() => self.position = FramingPosition::ChunkLine,
            FramingPosition::ChunkEnd => return Err(AmbiguousFraming::Chunk),
            FramingPosition::Trailer if line.is_empty() => self.position = FramingPosition::RequestLine,
            FramingPosition::Trailer | FramingPosition::Body(_) | FramingPosition::Chunk(_) => {}
        }
        Ok(())
    }

    fn end_head(&mut self) {
        self.position = match self.length {
            _ if self.chunked => FramingPosition::ChunkLine,
            Some(length) if length > 0 => FramingPosition::Body(length),
            _ => FramingPosition::RequestLine,
        };
    }

    fn header(&mut self, line: &[u8]) -> Result<(), AmbiguousFraming> {
        let Some(colon) = memchr(b':', line) else { return Ok(()) };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = number(value).filter(|_| self.length.is_none()).ok_or(AmbiguousFraming::Length)?;
            self.length = Some(length);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(AmbiguousFraming::Coding);
            }
            self.chunked = true;
        }
        if self.chunked && self.length.is_some() { Err(AmbiguousFraming::Coding) } else { Ok(()) }
    }
}

/// Parses a decimal number without a sign.
fn number(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// Parses the line that begins a chunk. Returns the position after it.
fn position_after_chunk_line(line: &[u8]) -> Option<FramingPosition> {
    let size = line.split(|b| *b == b';').next()?.trim_ascii_end();
    let digits = std::str::from_utf8(size).ok().filter(|size| size.bytes().all(|b| b.is_ascii_hexdigit()))?;
    match u64::from_str_radix(digits, 16).ok()? {
        0 => Some(FramingPosition::Trailer),
        bytes => Some(FramingPosition::Chunk(bytes)),
    }
}

/// A connection whose framing is scanned.
#[derive(Debug)]
pub(super) struct FramedConnection<I> {
    inner: I,
    framing: FramingScanner,
    ambiguity: Option<AmbiguousFraming>,
}

impl<I> FramedConnection<I> {
    /// Scans the requests of `inner`, which starts before a request.
    pub(super) const fn new(inner: I) -> Self {
        Self { inner, framing: FramingScanner::new(), ambiguity: None }
    }

    /// Returns the connection, and the reason of an ambiguous head on it.
    pub(super) fn into_parts(self) -> (I, Option<AmbiguousFraming>) {
        let refused = self.refused();
        (self.inner, refused)
    }

    fn refused(&self) -> Option<AmbiguousFraming> {
        self.ambiguity.filter(|_| self.framing.is_in_head())
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for FramedConnection<I> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(uncertain) = this.ambiguity {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, format!("{uncertain:?}"))));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        let Err((certain, uncertain)) = this.framing.scan(&buf.filled()[before..]) else {
            return Poll::Ready(Ok(()));
        };
        this.ambiguity = Some(uncertain);
        buf.set_filled(before + certain);
        if certain == 0 {
            // Zero bytes would signal the end of the connection.
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, format!("{uncertain:?}"))));
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for FramedConnection<I> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    /// Shuts down the connection, unless a refusal must still be sent. Between two requests the library
    /// shuts a connection down when a read fails.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.refused().is_some() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
