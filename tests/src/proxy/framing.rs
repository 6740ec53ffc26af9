//! The framing of bodies: finds the end of a body, and separates its framing from its payload.
//!
//! This module is pure and does not inspect payload: the cost of a body is independent of its content.
//! Positions count bytes of payload, so that a fault is at the same position in a sized and in a chunked
//! body.

use std::io;

/// The part of a body that is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// This many bytes.
    Sized(u64),
    /// Chunks, each preceded by its size.
    Chunked(ChunkState),
    /// All bytes until the sender closes.
    UntilClosed,
}

/// The position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkState {
    /// In the digits of a size.
    Size(u64),
    /// After the digits, in the rest of their line.
    Extension(u64),
    /// In a chunk, with this many bytes left.
    Payload(u64),
    /// In the line end after a chunk.
    After,
    /// In the lines after the last chunk; true if the current line is empty so far.
    Trailer {
        is_empty: bool,
    },
    Done,
}

/// A number of bytes taken from a buffer, and the payload among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FramedSpan {
    pub(super) taken: usize,
    /// Number of payload bytes among [`Self::taken`].
    pub(super) payload: u64,
}

impl Framing {
    pub(super) const fn sized(bytes: u64) -> Self {
        Self::Sized(bytes)
    }

    pub(super) const fn chunked() -> Self {
        Self::Chunked(ChunkState::Size(0))
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self, Self::Sized(0) | Self::Chunked(ChunkState::Done))
    }

    /// Takes bytes up to the end of the body or up to `payload_max` bytes of payload, and stops directly
    /// after the last of them.
    ///
    /// # Errors
    /// The framing is invalid.
    pub(super) fn span(&mut self, bytes: &[u8], payload_max: u64) -> io::Result<FramedSpan> {
        assert!(payload_max > 0, "an empty span would never end a body");
        let mut span = FramedSpan::default();
        while span.taken < bytes.len() && span.payload < payload_max && !self.is_done() {
            let step = self.step(&bytes[span.taken..], payload_max - span.payload)?;
            span.taken += step.taken;
            span.payload += step.payload;
        }
        Ok(span)
    }

    /// Takes bytes that are all framing or all payload.
    ///
    /// # Errors
    /// The framing is invalid.
    pub(super) fn step(&mut self, bytes: &[u8], payload_max: u64) -> io::Result<FramedSpan> {
        let payload = payload_max.min(bytes.len() as u64);
        match self {
            Self::Sized(left) => Ok(take(left, payload)),
            Self::UntilClosed => Ok(FramedSpan::of(payload)),
            Self::Chunked(chunks) => chunks.step(bytes, payload),
        }
    }
}

impl FramedSpan {
    /// A span of payload alone.
    fn of(payload: u64) -> Self {
        Self { taken: usize::try_from(payload).unwrap_or(usize::MAX), payload }
    }
}

/// Takes payload: the smaller of `payload` and `left`.
fn take(left: &mut u64, payload: u64) -> FramedSpan {
    let payload = payload.min(*left);
    *left -= payload;
    FramedSpan::of(payload)
}

impl ChunkState {
    fn step(&mut self, bytes: &[u8], payload: u64) -> io::Result<FramedSpan> {
        if let Self::Payload(left) = self {
            let span = take(left, payload);
            if *left == 0 {
                *self = Self::After;
            }
            return Ok(span);
        }
        let mut taken = 0;
        for byte in bytes {
            if matches!(self, Self::Payload(_) | Self::Done) {
                break;
            }
            *self = self.next_state(*byte)?;
            taken += 1;
        }
        Ok(FramedSpan { taken, payload: 0 })
    }

    /// The position after one byte of framing.
    fn next_state(self, byte: u8) -> io::Result<Self> {
        Ok(match (self, byte) {
            (Self::Size(0) | Self::Extension(0), b'\n') => Self::Trailer { is_empty: true },
            (Self::Size(size) | Self::Extension(size), b'\n') => Self::Payload(size),
            (Self::Size(size), b'\r' | b';' | b' ') | (Self::Extension(size), _) => Self::Extension(size),
            (Self::Size(size), digit) => Self::Size(with_digit(size, digit)?),
            (Self::After, b'\r') => Self::After,
            (Self::After, b'\n') => Self::Size(0),
            (Self::Trailer { is_empty: true }, b'\n') => Self::Done,
            (Self::Trailer { .. }, b'\n') => Self::Trailer { is_empty: true },
            (Self::Trailer { is_empty }, byte) => Self::Trailer { is_empty: is_empty && byte == b'\r' },
            (Self::After | Self::Payload(_) | Self::Done, _) => return Err(invalid_framing()),
        })
    }
}

fn with_digit(size: u64, digit: u8) -> io::Result<u64> {
    let digit = char::from(digit).to_digit(16).ok_or_else(invalid_framing)?;
    size.checked_mul(16).and_then(|size| size.checked_add(u64::from(digit))).ok_or_else(invalid_framing)
}

fn invalid_framing() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "invalid framing of a chunked body")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"5\r\nhello\r\n00A;x=\"y\"\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\n";
    const PAYLOAD: &[u8] = b"hello0123456789";

    /// All payload of `bytes`, read in pieces of `piece` bytes, and the number of bytes consumed.
    fn payload(mut framing: Framing, bytes: &[u8], piece: usize) -> (Vec<u8>, usize) {
        let (mut out, mut at) = (Vec::new(), 0);
        while !framing.is_done() {
            let end = bytes.len().min(at + piece);
            let step = framing.step(&bytes[at..end], u64::MAX).unwrap();
            assert!(step.taken > 0, "the body has no end");
            if step.payload > 0 {
                out.extend_from_slice(&bytes[at..at + step.taken]);
            }
            at += step.taken;
        }
        (out, at)
    }

    #[test]
    fn a_chunked_body_ends_at_its_end_for_every_piece_size() {
        let followed = [BODY, b"PUT / HTTP/1.1\r\n"].concat();
        for piece in 1..followed.len() {
            assert_eq!(payload(Framing::chunked(), &followed, piece), (PAYLOAD.to_vec(), BODY.len()));
        }
        assert_eq!(payload(Framing::chunked(), b"0\r\n\r\nmore", 3), (Vec::new(), 5));
        assert_eq!(payload(Framing::sized(5), b"hello, you", 3), (b"hello".to_vec(), 5));
    }

    #[test]
    fn a_span_ends_directly_after_the_requested_payload() {
        for wanted in 1..PAYLOAD.len() {
            let mut framing = Framing::chunked();
            let span = framing.span(BODY, wanted as u64).unwrap();
            assert_eq!(span.payload, wanted as u64);
            assert_eq!(BODY[span.taken - 1], PAYLOAD[wanted - 1]);
            assert!(!framing.is_done());
        }
        let mut framing = Framing::chunked();
        assert_eq!(framing.span(BODY, u64::MAX).unwrap(), FramedSpan { taken: BODY.len(), payload: 15 });
        assert!(framing.is_done());
    }

    #[test]
    fn invalid_framing_is_refused() {
        for wrong in ["x\r\n", "5\r\nhellooo\r\n", "fffffffffffffffff\r\n", "-1\r\n"] {
            assert!(Framing::chunked().span(wrong.as_bytes(), u64::MAX).is_err(), "{wrong:?}");
        }
    }
}
