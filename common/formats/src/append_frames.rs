//! The stream by which the writer of an open segment sends to a follower what it appends, and the answers.
//!
//! A frame is a head of 24 bytes and a payload, which is a range of the segment's file. Numbers are
//! little-endian:
//!
//! | at | bytes | field |
//! | --- | --- | --- |
//! | 0 | 4 | magic `mlgA` |
//! | 4 | 4 | length of the payload, 1 byte to 4 MiB |
//! | 8 | 8 | offset of the payload in the file |
//! | 16 | 4 | CRC32C of the payload |
//! | 20 | 4 | CRC32C of the 20 bytes before |
//!
//! An answer is the length of the file that the follower has synced, 8 bytes, larger than the one before.
//! Decoders are pure, keep at most one frame, and check a length before they wait for as many bytes.

use crate::format_error::FormatError;
use bytes::{Buf as _, Bytes};
use mlgw_common::checksum::{Crc32c, crc32c};
use std::collections::VecDeque;

/// Length of the head of a frame.
pub const APPEND_HEAD_BYTES: usize = 24;
/// Maximum length of the payload of a frame.
pub const APPEND_PAYLOAD_BYTES_MAX: usize = 4 << 20;
/// Length of an answer.
pub const APPEND_ANSWER_BYTES: usize = 8;

const MAGIC: [u8; 4] = *b"mlgA";

/// Head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendHead {
    /// Length of the payload.
    pub length: u32,
    /// Offset of the payload in the file.
    pub offset: u64,
    /// CRC32C of the payload.
    pub crc: u32,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendFrame {
    /// Offset of the payload in the file.
    pub offset: u64,
    /// The payload, in order; the checksum was verified.
    pub payload: Vec<Bytes>,
}

impl AppendFrame {
    /// Returns the offset after the payload.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.payload.iter().map(|piece| piece.len() as u64).sum::<u64>()
    }
}

impl AppendHead {
    /// Returns the head of a frame with this payload, of 1 byte to [`APPEND_PAYLOAD_BYTES_MAX`].
    ///
    /// # Panics
    /// If the payload is empty or too long.
    #[must_use]
    pub fn of(offset: u64, payload: &[Bytes]) -> Self {
        let length: usize = payload.iter().map(Bytes::len).sum();
        assert!((1..=APPEND_PAYLOAD_BYTES_MAX).contains(&length), "a frame has a bounded payload");
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Self { length, offset, crc: checksum(payload) }
    }

    /// Returns the bytes of the head.
    #[must_use]
    pub fn encode(&self) -> [u8; APPEND_HEAD_BYTES] {
        let mut out = [0; APPEND_HEAD_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..16].copy_from_slice(&self.offset.to_le_bytes());
        out[16..20].copy_from_slice(&self.crc.to_le_bytes());
        let crc = crc32c(&out[..20]);
        out[20..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a head.
    ///
    /// # Errors
    /// If the checksum, the magic or a number is wrong.
    pub fn decode(bytes: &[u8; APPEND_HEAD_BYTES]) -> Result<Self, FormatError> {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..4] != MAGIC || number(20) != crc32c(&bytes[..20]) {
            return Err(FormatError("the head of an appended range is damaged".into()));
        }
        let offset = u64::from(number(8)) | (u64::from(number(12)) << 32);
        let head = Self { length: number(4), offset, crc: number(16) };
        let is_bounded = (1..=APPEND_PAYLOAD_BYTES_MAX as u64).contains(&u64::from(head.length));
        if !is_bounded || offset.checked_add(u64::from(head.length)).is_none() {
            return Err(FormatError("an appended range is empty or too long".into()));
        }
        Ok(head)
    }
}

fn checksum(payload: &[Bytes]) -> u32 {
    let mut crc = Crc32c::default();
    payload.iter().for_each(|piece| crc.update(piece));
    crc.finish()
}

/// Bytes that have arrived and are not decoded yet.
#[derive(Debug, Default)]
struct Arrived {
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Arrived {
    fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.bytes += bytes.len();
            self.pieces.push_back(bytes);
        }
    }

    /// Takes as many bytes, which must have arrived.
    fn take(&mut self, mut bytes: usize) -> Vec<Bytes> {
        assert!(bytes <= self.bytes, "only bytes that arrived are taken");
        self.bytes -= bytes;
        let mut taken = Vec::new();
        while bytes > 0 {
            let Some(mut first) = self.pieces.pop_front() else { break };
            if first.len() > bytes {
                taken.push(first.split_to(bytes));
                self.pieces.push_front(first);
                break;
            }
            bytes -= first.len();
            taken.push(first);
        }
        taken
    }

    fn take_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        if self.bytes < N {
            return None;
        }
        let mut array = [0; N];
        let mut at = 0;
        for mut piece in self.take(N) {
            let length = piece.len();
            piece.copy_to_slice(&mut array[at..at + length]);
            at += length;
        }
        Some(array)
    }
}

/// Decoder of a stream of frames.
#[derive(Debug, Default)]
pub struct AppendDecoder {
    arrived: Arrived,
    head: Option<AppendHead>,
}

impl AppendDecoder {
    /// Adds bytes that have arrived. To be called when [`Self::next_frame`] has returned `None`.
    pub fn push(&mut self, bytes: Bytes) {
        self.arrived.push(bytes);
    }

    /// Returns the next frame; `None` if more bytes are needed.
    ///
    /// # Errors
    /// If the bytes are no frame; the stream cannot be continued then.
    pub fn next_frame(&mut self) -> Result<Option<AppendFrame>, FormatError> {
        let head = match self.head {
            Some(head) => head,
            None => match self.arrived.take_array() {
                Some(bytes) => AppendHead::decode(&bytes)?,
                None => return Ok(None),
            },
        };
        self.head = Some(head);
        let length = head.length as usize;
        if self.arrived.bytes < length {
            return Ok(None);
        }
        self.head = None;
        let payload = self.arrived.take(length);
        if checksum(&payload) != head.crc {
            return Err(FormatError("an appended range does not match its checksum".into()));
        }
        Ok(Some(AppendFrame { offset: head.offset, payload }))
    }

    /// True if the last frame is complete.
    #[must_use]
    pub const fn is_between_frames(&self) -> bool {
        self.head.is_none() && self.arrived.bytes == 0
    }
}

/// Decoder of a stream of answers.
#[derive(Debug, Default)]
pub struct AppendAnswerDecoder {
    arrived: Arrived,
    last: u64,
}

impl AppendAnswerDecoder {
    /// Adds bytes that have arrived.
    pub fn push(&mut self, bytes: Bytes) {
        self.arrived.push(bytes);
    }

    /// Returns the last length that has arrived completely; `None` if there is none since the last call.
    ///
    /// # Errors
    /// If a length is not larger than the one before.
    pub fn last_length(&mut self) -> Result<Option<u64>, FormatError> {
        let before = self.last;
        while let Some(bytes) = self.arrived.take_array() {
            let length = u64::from_le_bytes(bytes);
            if length <= self.last {
                return Err(FormatError("a follower acknowledged a length twice".into()));
            }
            self.last = length;
        }
        Ok((self.last > before).then_some(self.last))
    }
}

/// Returns the bytes of an answer.
#[must_use]
pub fn encode_answer(length: u64) -> Bytes {
    Bytes::copy_from_slice(&length.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::{AppendAnswerDecoder, AppendDecoder, AppendFrame, AppendHead, encode_answer};
    use bytes::Bytes;
    use proptest::prelude::any;
    use proptest::{collection, prop_assert, prop_assert_eq, proptest};

    fn encoded(frame: &AppendFrame) -> Vec<u8> {
        let head = AppendHead::of(frame.offset, &frame.payload).encode();
        head.into_iter().chain(frame.payload.iter().flatten().copied()).collect()
    }

    proptest! {
        #[test]
        fn frames_are_decoded_however_they_arrive(
            payloads in collection::vec(collection::vec(any::<u8>(), 1..300), 1..6),
            first in 0u64..1 << 40,
            cut in 1usize..64,
        ) {
            let mut offset = first;
            let mut stream = Vec::new();
            let mut sent = Vec::new();
            for payload in payloads {
                let frame = AppendFrame { offset, payload: vec![Bytes::from(payload)] };
                stream.extend(encoded(&frame));
                offset = frame.end();
                sent.push((frame.offset, frame.payload.concat()));
            }
            let (mut decoder, mut received) = (AppendDecoder::default(), Vec::new());
            for piece in stream.chunks(cut) {
                decoder.push(Bytes::copy_from_slice(piece));
                while let Some(frame) = decoder.next_frame().unwrap() {
                    received.push((frame.offset, frame.payload.concat()));
                }
            }
            prop_assert_eq!(received, sent);
            prop_assert!(decoder.is_between_frames());
        }

        #[test]
        fn a_flipped_bit_is_found(payload in collection::vec(any::<u8>(), 1..100), at: usize, bit in 0u8..8) {
            let frame = AppendFrame { offset: 4096, payload: vec![Bytes::from(payload)] };
            let mut stream = encoded(&frame);
            let at = at % stream.len();
            stream[at] ^= 1 << bit;
            let mut decoder = AppendDecoder::default();
            decoder.push(Bytes::from(stream));
            prop_assert!(decoder.next_frame().is_err());
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = AppendDecoder::default();
            decoder.push(Bytes::from(bytes.clone()));
            while let Ok(Some(frame)) = decoder.next_frame() {
                prop_assert!(frame.end() > frame.offset);
            }
            let mut answers = AppendAnswerDecoder::default();
            answers.push(Bytes::from(bytes));
            drop(answers.last_length());
        }
    }

    #[test]
    fn the_last_of_several_answers_counts_and_lengths_grow() {
        let mut answers = AppendAnswerDecoder::default();
        assert_eq!(answers.last_length(), Ok(None));
        answers.push(encode_answer(64));
        answers.push(encode_answer(100));
        answers.push(encode_answer(200).slice(..5));
        assert_eq!(answers.last_length(), Ok(Some(100)));
        assert_eq!(answers.last_length(), Ok(None));
        answers.push(encode_answer(200).slice(5..));
        assert_eq!(answers.last_length(), Ok(Some(200)));
        answers.push(encode_answer(200));
        assert!(answers.last_length().is_err());
    }
}
