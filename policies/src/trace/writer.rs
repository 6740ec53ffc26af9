//! Encodes a trace.

use super::dictionary::TraceDictionary;
use super::event::{EventNumbers, RESET, encode};
use super::{BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, EVENT_BYTES_MAX, KEY_BYTES_MAX, KEYS_MAX, MAGIC, VERSION};
use crate::access::Access;
use crate::block::{BLOCK_ID_SEED, BuildPassThroughHasher, block_id};
use crate::stable_hash::mix;
use mlgw_common::checksum::crc32c;
use std::collections::HashMap;
use std::hint::black_box;

/// Numbers by hash.
pub(super) type NumbersByHash = HashMap<u64, u32, BuildPassThroughHasher>;

/// Encoder of a trace.
///
/// Blocks are appended to a buffer of the caller when they are full, so that the caller writes whole blocks
/// to the file.
pub struct TraceWriter {
    began_ms: u64,
    keys_max: usize,
    dictionary: TraceDictionary,
    /// Numbers of keys by hash; callers and buckets follow. Keys with the same hash share a number, as they
    /// share a block id in the policy engine; callers are compared in full.
    keys: NumbersByHash,
    callers: NumbersByHash,
    buckets: NumbersByHash,
    block: Vec<u8>,
    number: u32,
    events: u32,
    first_us: u64,
    last_us: u64,
}

impl TraceWriter {
    /// Begins a trace with the start time `began_ms` (milliseconds since 1970, 0 if unknown), and appends
    /// its header to `out`.
    #[must_use]
    pub fn new(began_ms: u64, out: &mut Vec<u8>) -> Self {
        Self::with_keys_max(began_ms, KEYS_MAX, out)
    }

    /// Like [`Self::new`], with a dictionary of at most `keys_max` keys, which takes less memory and makes
    /// a longer trace.
    #[must_use]
    pub fn with_keys_max(began_ms: u64, keys_max: usize, out: &mut Vec<u8>) -> Self {
        let begin = out.len();
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend([0; 2]);
        out.extend(began_ms.to_le_bytes());
        out.extend(crc32c(&out[begin..]).to_le_bytes());
        Self {
            began_ms,
            keys_max: keys_max.max(1),
            dictionary: TraceDictionary::default(),
            keys: NumbersByHash::default(),
            callers: NumbersByHash::default(),
            buckets: NumbersByHash::default(),
            block: Vec::with_capacity(BLOCK_BYTES_MAX),
            number: 0,
            events: 0,
            first_us: 0,
            last_us: 0,
        }
    }

    /// Start time of the trace in milliseconds since 1970, from which times are measured.
    #[must_use]
    pub fn began_ms(&self) -> u64 {
        self.began_ms
    }

    /// Adds an access, and appends a block to `out` if one is full. A time before that of the last access
    /// is replaced by it, and a range that ends before it begins counts as empty. Returns false, without
    /// adding the access, if its key is longer than [`KEY_BYTES_MAX`] bytes.
    #[must_use]
    pub fn write(&mut self, access: &Access<'_>, out: &mut Vec<u8>) -> bool {
        if access.key.len() > KEY_BYTES_MAX {
            return false;
        }
        if self.block.len() + EVENT_BYTES_MAX + 1 > BLOCK_BYTES_MAX - BLOCK_HEADER_BYTES {
            self.flush(out);
        }
        if !self.dictionary.has_room(self.keys_max, access.key.len()) {
            self.reset();
        }
        let at_us = access.at_us.max(self.last_us);
        if self.events == 0 {
            (self.first_us, self.last_us) = (at_us, at_us);
        }
        let hash = hash_of(access);
        let numbers = self.numbers(access, hash);
        let key = encode(&mut self.block, &mut self.dictionary, access, at_us - self.last_us, &numbers);
        if numbers.key.is_none() {
            self.keys.insert(hash, key);
        }
        self.last_us = at_us;
        self.events += 1;
        true
    }

    /// Appends the pending events to `out` as a block. Call it periodically, to bound the loss at a crash,
    /// and at the end.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        if self.events == 0 {
            return;
        }
        assert!(self.block.len() <= BLOCK_BYTES_MAX - BLOCK_HEADER_BYTES, "a reader accepts the block");
        let begin = out.len();
        out.extend((self.block.len() as u32).to_le_bytes());
        out.extend(self.number.to_le_bytes());
        out.extend(self.events.to_le_bytes());
        out.extend(self.first_us.to_le_bytes());
        let mut crc = mlgw_common::checksum::Crc32c::default();
        crc.update(&out[begin..]);
        crc.update(&self.block);
        out.extend(crc.finish().to_le_bytes());
        out.append(&mut self.block);
        self.number += 1;
        self.events = 0;
    }

    fn reset(&mut self) {
        self.block.push(RESET);
        self.dictionary.clear();
        self.keys.clear();
        self.callers.clear();
        self.buckets.clear();
    }

    /// Looks up the entries that [`Self::write`] needs for an access, without any other effect, to bring
    /// them into the CPU cache.
    pub fn prefetch_memory(&self, access: &Access<'_>) {
        let known = self.keys.get(&hash_of(access)).and_then(|key| self.dictionary.keys.get(*key as usize));
        black_box(known.map(|known| known.size));
    }

    fn numbers(&mut self, access: &Access<'_>, hash: u64) -> EventNumbers {
        // The lookup is by hash alone: a comparison of names would be another memory access that misses the
        // CPU cache.
        let (book, key) = (&self.dictionary, self.keys.get(&hash).copied());
        let last = book.callers.get(book.caller as usize).is_some_and(|(last, _)| *last == access.caller);
        let caller = if last { book.caller } else { self.caller(access) };
        let bucket = match key {
            Some(_) => 0,
            None => *self.buckets.entry(mix(access.bucket)).or_insert(self.dictionary.buckets.len() as u32),
        };
        EventNumbers { key, bucket, caller }
    }

    fn caller(&mut self, access: &Access<'_>) -> u32 {
        let next = self.dictionary.callers.len() as u32;
        let hash = mix(access.caller.id ^ mix(access.caller.family));
        let number = *self.callers.entry(hash).or_insert(next);
        match self.dictionary.callers.get(number as usize) {
            Some((caller, _)) if *caller != access.caller => {
                self.callers.insert(hash, next);
                next
            }
            _ => number,
        }
    }
}

/// Hash by which the number of an access's key is looked up.
fn hash_of(access: &Access<'_>) -> u64 {
    block_id(BLOCK_ID_SEED, access.bucket, access.key, 0)
}
