//! The way of one body: read a piece, wait until it is due, write it, and keep none of it.
//!
//! A head goes with what of its body is already there, in one write, as its sender wrote it. Faults sit at
//! one place of the payload ([`Mark`]), and pieces end there, so each is at exactly the byte that it says.

use std::io;
use std::time::Duration;

use bytes::Buf as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::sleep;

use super::book::Entry;
use super::framing::Framing;
use super::shape::{Lane, Shaper, Way};
use super::source::{Source, ended};

/// Something that happens when so many bytes of payload have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Cut(u64),
    Stall(u64, Duration),
    /// The next byte is not what it was.
    Corrupt(u64),
}

impl Mark {
    fn at(self) -> u64 {
        match self {
            Self::Cut(at) | Self::Stall(at, _) | Self::Corrupt(at) => at,
        }
    }
}

/// How a body's way ended.
#[derive(Debug)]
pub(super) enum End {
    Whole,
    /// At its mark.
    Cut,
    /// The sender broke off or sent what is no body.
    SenderGone(io::Error),
    ReceiverGone(io::Error),
}

/// A body on its way, and its head if that has not gone yet.
pub(super) struct Passage<'a> {
    pub(super) from: &'a mut Source,
    pub(super) to: &'a mut OwnedWriteHalf,
    pub(super) head: Vec<u8>,
    pub(super) framing: Framing,
    pub(super) mark: Option<Mark>,
    pub(super) lane: &'a mut Lane,
    pub(super) shaper: &'a Shaper,
    pub(super) entry: &'a Entry,
}

impl Passage<'_> {
    pub(super) async fn run(mut self) -> End {
        match self.pass().await {
            Ok(end) | Err(end) => end,
        }
    }

    /// # Errors
    /// An end that came too early.
    async fn pass(&mut self) -> Result<End, End> {
        let mut position = 0;
        loop {
            match self.mark.filter(|mark| mark.at() == position) {
                Some(Mark::Cut(_)) => {
                    self.send_head().await?;
                    return Ok(End::Cut);
                }
                Some(Mark::Stall(_, pause)) => {
                    self.mark = None;
                    self.send_head().await?;
                    sleep(pause).await;
                }
                Some(Mark::Corrupt(_)) | None => {}
            }
            if self.framing.is_done() {
                self.send_head().await?;
                return Ok(End::Whole);
            }
            if self.from.bytes().is_empty() {
                self.send_head().await?;
                if self.from.fill().await.map_err(End::SenderGone)? == 0 {
                    return self.sender_closed();
                }
            }
            position += self.piece(position).await?;
        }
    }

    fn sender_closed(&self) -> Result<End, End> {
        if self.framing == Framing::UntilClosed { Ok(End::Whole) } else { Err(End::SenderGone(ended())) }
    }

    /// Passes what is there, up to the mark; returns its bytes of payload.
    async fn piece(&mut self, position: u64) -> Result<u64, End> {
        let is_to_be_corrupt = self.mark == Some(Mark::Corrupt(position));
        let to_mark = match self.mark {
            _ if is_to_be_corrupt => 1,
            Some(mark) if mark.at() > position => mark.at() - position,
            _ => u64::MAX,
        };
        let bytes_max = to_mark.min(Lane::piece_bytes(self.shaper));
        let span = self.framing.span(self.from.bytes(), bytes_max).map_err(End::SenderGone)?;
        if is_to_be_corrupt && span.payload == 1 {
            self.from.bytes_mut()[span.taken - 1] ^= 1;
        }
        self.lane.pass(span.payload, self.shaper).await;
        self.entry.bytes(self.lane.way, span.payload);
        if self.framing.is_done() && self.lane.way == Way::Answer {
            self.entry.end();
        }
        let mut bytes = self.head.chain(&self.from.bytes()[..span.taken]);
        self.to.write_all_buf(&mut bytes).await.map_err(End::ReceiverGone)?;
        self.head.clear();
        self.from.use_up(span.taken);
        Ok(span.payload)
    }

    async fn send_head(&mut self) -> Result<(), End> {
        if self.framing.is_done() && self.lane.way == Way::Answer {
            self.entry.end();
        }
        self.to.write_all(&self.head).await.map_err(End::ReceiverGone)?;
        self.head.clear();
        Ok(())
    }

    /// The way of a chunked body of which no more than so many bytes are to pass: in chunks of our own, as
    /// those of the sender may be longer. Returns whether that was all of it.
    pub(super) async fn run_shortened(mut self, bytes_max: u64) -> Result<bool, End> {
        let mut left = bytes_max;
        while left > 0 && !self.framing.is_done() {
            if self.from.bytes().is_empty() {
                self.send_head().await?;
                if self.from.fill().await.map_err(End::SenderGone)? == 0 {
                    return Err(End::SenderGone(ended()));
                }
            }
            left -= self.chunk(left.min(Lane::piece_bytes(self.shaper))).await?;
        }
        self.entry.end();
        self.head.extend_from_slice(b"0\r\n\r\n");
        self.send_head().await?;
        Ok(self.framing.is_done())
    }

    /// Passes what is there of a chunk as a chunk; returns its length, 0 for what was but framing.
    async fn chunk(&mut self, bytes_max: u64) -> Result<u64, End> {
        let step = self.framing.step(self.from.bytes(), bytes_max).map_err(End::SenderGone)?;
        if step.payload > 0 {
            self.lane.pass(step.payload, self.shaper).await;
            self.entry.bytes(self.lane.way, step.payload);
            self.head.extend_from_slice(format!("{:x}\r\n", step.payload).as_bytes());
            self.head.extend_from_slice(&self.from.bytes()[..step.taken]);
            self.head.extend_from_slice(b"\r\n");
            self.to.write_all(&self.head).await.map_err(End::ReceiverGone)?;
            self.head.clear();
        }
        self.from.use_up(step.taken);
        Ok(step.payload)
    }
}

/// Reads a body to its end and drops it; returns its bytes of payload.
///
/// # Errors
/// It did not end, or not as it should.
pub(super) async fn drop_body(from: &mut Source, framing: &mut Framing) -> io::Result<u64> {
    let mut bytes = 0;
    while !framing.is_done() {
        if from.bytes().is_empty() && from.fill().await? == 0 {
            return if *framing == Framing::UntilClosed { Ok(bytes) } else { Err(ended()) };
        }
        let span = framing.span(from.bytes(), u64::MAX)?;
        from.use_up(span.taken);
        bytes += span.payload;
    }
    Ok(bytes)
}
