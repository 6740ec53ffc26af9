//! The relay of one body: reads a piece, waits until it is due, writes it, and stores nothing.
//!
//! A head is written together with the part of its body that already arrived, in one write, as its sender
//! wrote it. A fault has one position in the payload ([`FaultMark`]), and pieces end there, so that it
//! applies at exactly that byte.

use std::io;
use std::time::Duration;

use bytes::Buf as _;
use mlgw_common::time::sleep;
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::OwnedWriteHalf;

use super::framing::Framing;
use super::shape::{Direction, RateLane, Shaper};
use super::source::{BufferedSource, eof_error};
use super::traffic::RequestEntry;

/// A fault that applies after this many bytes of payload have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultMark {
    Cut(u64),
    Stall(u64, Duration),
    /// Corrupts the next byte.
    Corrupt(u64),
}

impl FaultMark {
    fn at(self) -> u64 {
        match self {
            Self::Cut(at) | Self::Stall(at, _) | Self::Corrupt(at) => at,
        }
    }
}

/// The end of a relayed body.
#[derive(Debug)]
pub(super) enum RelayEnd {
    Whole,
    /// Cut at its mark.
    Cut,
    /// The sender closed the connection or sent invalid framing.
    SenderGone(io::Error),
    ReceiverGone(io::Error),
}

/// A body being relayed, and its head if the head was not sent yet.
pub(super) struct BodyRelay<'a> {
    pub(super) from: &'a mut BufferedSource,
    pub(super) to: &'a mut OwnedWriteHalf,
    pub(super) head: Vec<u8>,
    pub(super) framing: Framing,
    pub(super) mark: Option<FaultMark>,
    pub(super) lane: &'a mut RateLane,
    pub(super) shaper: &'a Shaper,
    pub(super) entry: &'a RequestEntry,
}

impl BodyRelay<'_> {
    pub(super) async fn run(mut self) -> RelayEnd {
        match self.pass().await {
            Ok(end) | Err(end) => end,
        }
    }

    /// # Errors
    /// A premature end.
    async fn pass(&mut self) -> Result<RelayEnd, RelayEnd> {
        let mut position = 0;
        loop {
            match self.mark.filter(|mark| mark.at() == position) {
                Some(FaultMark::Cut(_)) => {
                    self.send_head().await?;
                    return Ok(RelayEnd::Cut);
                }
                Some(FaultMark::Stall(_, pause)) => {
                    self.mark = None;
                    self.send_head().await?;
                    sleep(pause).await;
                }
                Some(FaultMark::Corrupt(_)) | None => {}
            }
            if self.framing.is_done() {
                self.send_head().await?;
                return Ok(RelayEnd::Whole);
            }
            if self.from.bytes().is_empty() {
                self.send_head().await?;
                if self.from.fill().await.map_err(RelayEnd::SenderGone)? == 0 {
                    return self.sender_closed();
                }
            }
            position += self.piece(position).await?;
        }
    }

    fn sender_closed(&self) -> Result<RelayEnd, RelayEnd> {
        if self.framing == Framing::UntilClosed {
            Ok(RelayEnd::Whole)
        } else {
            Err(RelayEnd::SenderGone(eof_error()))
        }
    }

    /// Passes the available bytes, up to the mark; returns the number of payload bytes.
    async fn piece(&mut self, position: u64) -> Result<u64, RelayEnd> {
        let is_corrupted = self.mark == Some(FaultMark::Corrupt(position));
        let to_mark = match self.mark {
            _ if is_corrupted => 1,
            Some(mark) if mark.at() > position => mark.at() - position,
            _ => u64::MAX,
        };
        let bytes_max = to_mark.min(RateLane::piece_bytes(self.shaper));
        let span = self.framing.span(self.from.bytes(), bytes_max).map_err(RelayEnd::SenderGone)?;
        if is_corrupted && span.payload == 1 {
            self.from.bytes_mut()[span.taken - 1] ^= 1;
        }
        self.lane.pass(span.payload, self.shaper).await;
        self.entry.bytes(self.lane.direction, span.payload);
        if self.framing.is_done() && self.lane.direction == Direction::Answer {
            self.entry.end();
        }
        let mut bytes = self.head.chain(&self.from.bytes()[..span.taken]);
        self.to.write_all_buf(&mut bytes).await.map_err(RelayEnd::ReceiverGone)?;
        self.head.clear();
        self.from.consume(span.taken);
        Ok(span.payload)
    }

    async fn send_head(&mut self) -> Result<(), RelayEnd> {
        if self.framing.is_done() && self.lane.direction == Direction::Answer {
            self.entry.end();
        }
        self.to.write_all(&self.head).await.map_err(RelayEnd::ReceiverGone)?;
        self.head.clear();
        Ok(())
    }

    /// Relays at most `bytes_max` bytes of a chunked body, in chunks of the proxy's own, as those of the
    /// sender may be longer. Returns true if that was all of the body.
    pub(super) async fn run_shortened(mut self, bytes_max: u64) -> Result<bool, RelayEnd> {
        let mut left = bytes_max;
        while left > 0 && !self.framing.is_done() {
            if self.from.bytes().is_empty() {
                self.send_head().await?;
                if self.from.fill().await.map_err(RelayEnd::SenderGone)? == 0 {
                    return Err(RelayEnd::SenderGone(eof_error()));
                }
            }
            left -= self.chunk(left.min(RateLane::piece_bytes(self.shaper))).await?;
        }
        self.entry.end();
        self.head.extend_from_slice(b"0\r\n\r\n");
        self.send_head().await?;
        Ok(self.framing.is_done())
    }

    /// Passes the available part of a chunk as one chunk; returns its length, 0 if only framing was consumed.
    async fn chunk(&mut self, bytes_max: u64) -> Result<u64, RelayEnd> {
        let step = self.framing.step(self.from.bytes(), bytes_max).map_err(RelayEnd::SenderGone)?;
        if step.payload > 0 {
            self.lane.pass(step.payload, self.shaper).await;
            self.entry.bytes(self.lane.direction, step.payload);
            self.head.extend_from_slice(format!("{:x}\r\n", step.payload).as_bytes());
            self.head.extend_from_slice(&self.from.bytes()[..step.taken]);
            self.head.extend_from_slice(b"\r\n");
            self.to.write_all(&self.head).await.map_err(RelayEnd::ReceiverGone)?;
            self.head.clear();
        }
        self.from.consume(step.taken);
        Ok(step.payload)
    }
}

/// Reads a body to its end and drops it; returns the number of payload bytes.
///
/// # Errors
/// The body ended too early, or its framing is invalid.
pub(super) async fn drop_body(from: &mut BufferedSource, framing: &mut Framing) -> io::Result<u64> {
    let mut bytes = 0;
    while !framing.is_done() {
        if from.bytes().is_empty() && from.fill().await? == 0 {
            return if *framing == Framing::UntilClosed { Ok(bytes) } else { Err(eof_error()) };
        }
        let span = framing.span(from.bytes(), u64::MAX)?;
        from.consume(span.taken);
        bytes += span.payload;
    }
    Ok(bytes)
}
