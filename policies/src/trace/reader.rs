//! Reads a trace incrementally.

use super::dictionary::TraceDictionary;
use super::event::{RESET, decode};
use super::varint::ByteReader;
use super::{BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, HEADER_BYTES, MAGIC, TraceError, VERSION};
use crate::access::Access;
use mlgw_common::checksum::{Crc32c, crc32c};

/// Returns the accesses of a trace.
///
/// Pieces of the file are [pushed](Self::push), and accesses are [read](Self::read) until the next piece is
/// needed. A block is verified before any of its events is returned.
#[derive(Default)]
pub struct TraceReader {
    /// Bytes that were pushed, consumed up to `at`, which is byte `offset` of the trace.
    pushed: Vec<u8>,
    at: usize,
    offset: u64,
    /// Start time of the trace in milliseconds since 1970; `None` until the header was read.
    began_ms: Option<u64>,
    dictionary: TraceDictionary,
    block: TraceBlock,
    number: u32,
    events: u64,
    failed: Option<TraceError>,
}

/// The current block: its offset in the trace, the number of events left, and the time of the last event.
#[derive(Default)]
struct TraceBlock {
    offset: u64,
    events: u32,
    /// Start of the unread events in `pushed`; the next field is their end.
    begin: usize,
    end: usize,
    now_us: u64,
}

/// Summary at the end of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEnd {
    /// Number of accesses that were read.
    pub events: u64,
    /// Number of whole blocks.
    pub blocks: u32,
    /// Bytes at the end that do not form a whole block.
    pub torn_bytes: u64,
}

impl TraceReader {
    /// Creates a reader without input.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next piece, of any length.
    pub fn push(&mut self, bytes: &[u8]) {
        // Consumed bytes are removed, except those of a block that is not finished.
        let keep = if self.block.events > 0 { self.block.begin } else { self.at };
        if keep > 0 {
            self.pushed.drain(..keep);
            self.at -= keep;
            self.block.begin = self.block.begin.saturating_sub(keep);
            self.block.end = self.block.end.saturating_sub(keep);
        }
        self.pushed.extend_from_slice(bytes);
    }

    /// Start time of the trace in milliseconds since 1970, from which times are measured; `None` until the
    /// header was read, 0 if the trace does not have it.
    #[must_use]
    pub fn began_ms(&self) -> Option<u64> {
        self.began_ms
    }

    /// Returns the next access, or `None` if another piece is needed.
    ///
    /// # Errors
    /// If the input is damaged or not a trace. All later calls return the same error.
    pub fn read(&mut self) -> Result<Option<Access<'_>>, TraceError> {
        match self.advance() {
            Ok(None) => Ok(None),
            Ok(Some(op)) => {
                let known = &self.dictionary.keys[self.dictionary.key as usize];
                Ok(Some(Access {
                    at_us: self.block.now_us,
                    caller: self.dictionary.callers[self.dictionary.caller as usize].0,
                    bucket: self.dictionary.buckets[known.bucket as usize],
                    key: self.dictionary.name(known),
                    op,
                    size: known.size,
                    range: known.range.clone(),
                }))
            }
            Err(error) => {
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Returns the summary; to be called after the last piece.
    #[must_use]
    pub fn finish(self) -> TraceEnd {
        assert!(self.at <= self.pushed.len(), "only pushed bytes are consumed");
        let torn_bytes = (self.pushed.len() - self.at) as u64;
        TraceEnd { events: self.events, blocks: self.number, torn_bytes }
    }

    fn advance(&mut self) -> Result<Option<crate::access::Op>, TraceError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.began_ms.is_none() && !self.header()? {
            return Ok(None);
        }
        if self.block.events == 0 && !self.next_block()? {
            return Ok(None);
        }
        let TraceBlock { begin, end, .. } = self.block;
        let mut bytes = ByteReader(&self.pushed[begin..end]);
        let mut flags = bytes.byte();
        while flags == Some(RESET) {
            self.dictionary.clear();
            flags = bytes.byte();
        }
        let decoded = flags.and_then(|flags| decode(&mut bytes, &mut self.dictionary, flags));
        let (left, now_us) = (bytes.0.len(), self.block.now_us);
        let timed = decoded.and_then(|event| Some((now_us.checked_add(event.after_us)?, event.op)));
        let Some((now_us, op)) = timed else { return Err(self.damaged("an event is invalid")) };
        self.block.begin = end - left;
        self.block.events -= 1;
        self.block.now_us = now_us;
        if self.block.events == 0 && left > 0 {
            return Err(self.damaged("it has bytes after its last event"));
        }
        self.events += 1;
        Ok(Some(op))
    }

    fn damaged(&self, what: &'static str) -> TraceError {
        // The current block is already counted.
        TraceError::Damaged { block: self.number.saturating_sub(1), offset: self.block.offset, what }
    }

    /// Reads the header; returns false if it is not complete yet.
    fn header(&mut self) -> Result<bool, TraceError> {
        let Some(header) = self.pushed.first_chunk::<HEADER_BYTES>() else {
            let begun = MAGIC.iter().zip(&self.pushed).all(|(a, b)| a == b);
            return if begun { Ok(false) } else { Err(TraceError::NoTrace) };
        };
        let mut fields = ByteReader(header);
        let magic = fields.take(MAGIC.len());
        let version = u16::from_le_bytes([header[8], header[9]]);
        if magic != Some(&MAGIC) || crc32c(&header[..20]) != u32_at(header, 20) {
            return Err(TraceError::NoTrace);
        }
        if version != VERSION {
            return Err(TraceError::UnknownVersion(version));
        }
        self.began_ms = ByteReader(&header[12..]).u64();
        (self.at, self.offset) = (HEADER_BYTES, HEADER_BYTES as u64);
        Ok(true)
    }

    /// Verifies the next block; returns false if it is not complete yet.
    fn next_block(&mut self) -> Result<bool, TraceError> {
        let rest = &self.pushed[self.at..];
        let Some(header) = rest.first_chunk::<BLOCK_HEADER_BYTES>() else { return Ok(false) };
        let damaged = |what| TraceError::Damaged { block: self.number, offset: self.offset, what };
        let bytes = u32_at(header, 0) as usize;
        if bytes == 0 || bytes > BLOCK_BYTES_MAX - BLOCK_HEADER_BYTES {
            return Err(damaged("its length is out of range"));
        }
        let Some(events) = rest.get(BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + bytes) else { return Ok(false) };
        let mut crc = Crc32c::default();
        crc.update(&header[..20]);
        crc.update(events);
        if crc.finish() != u32_at(header, 20) {
            return Err(damaged("its checksum does not match"));
        }
        if u32_at(header, 4) != self.number || u32_at(header, 8) == 0 {
            return Err(damaged("it is not the expected block"));
        }
        let begin = self.at + BLOCK_HEADER_BYTES;
        let first_us = ByteReader(&header[12..]).u64().unwrap_or_default();
        if first_us < self.block.now_us {
            return Err(damaged("it begins before the preceding block"));
        }
        self.block = TraceBlock {
            offset: self.offset,
            events: u32_at(header, 8),
            begin,
            end: begin + bytes,
            now_us: first_us,
        };
        self.at = self.block.end;
        self.offset += (BLOCK_HEADER_BYTES + bytes) as u64;
        self.number = self.number.saturating_add(1);
        Ok(true)
    }
}

/// The number at this offset of a header.
fn u32_at<const N: usize>(header: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}
