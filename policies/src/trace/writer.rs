//! Writes a trace.

use super::book::Book;
use super::event::{ANEW, Numbers, encode};
use super::{BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, EVENT_BYTES_MAX, KEY_BYTES_MAX, KEYS_MAX, MAGIC, VERSION};
use crate::access::Access;
use crate::block::{BLOCK_ID_SEED, Hashed, block_id};
use crate::rehearse::naming;
use mlgw_common::checksum::crc32c;
use std::collections::HashMap;
use std::hint::black_box;

/// Numbers by hash.
pub(crate) type ByHash = HashMap<u64, u32, Hashed>;

/// Makes the bytes of a trace.
///
/// Bytes are added to a buffer of the caller's whenever a block is full, so that whoever writes them to a
/// file does so in whole blocks.
pub struct TraceWriter {
    began_ms: u64,
    keys_max: usize,
    book: Book,
    /// Numbers by the hash of what has them. Keys of one hash are one, as blocks are to who decides; callers
    /// are compared.
    keys: ByHash,
    callers: ByHash,
    buckets: ByHash,
    block: Vec<u8>,
    number: u32,
    events: u32,
    first_us: u64,
    last_us: u64,
}

impl TraceWriter {
    /// Begins a trace whose times count from `began_ms` (milliseconds since 1970, 0 if that is not known),
    /// and adds its header to `out`.
    #[must_use]
    pub fn new(began_ms: u64, out: &mut Vec<u8>) -> Self {
        Self::with_keys_max(began_ms, KEYS_MAX, out)
    }

    /// The same, and remembers at most so many keys, for less memory and a longer trace.
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
            book: Book::default(),
            keys: ByHash::default(),
            callers: ByHash::default(),
            buckets: ByHash::default(),
            block: Vec::with_capacity(BLOCK_BYTES_MAX),
            number: 0,
            events: 0,
            first_us: 0,
            last_us: 0,
        }
    }

    /// Milliseconds from 1970 to the moment that times count from.
    #[must_use]
    pub fn began_ms(&self) -> u64 {
        self.began_ms
    }

    /// Takes an access, and adds a block to `out` if one is full. A time before that of the last access
    /// counts as that one's, a range that ends before it begins as empty. Whether it was taken: a key of more
    /// than [`KEY_BYTES_MAX`] bytes is not.
    #[must_use]
    pub fn write(&mut self, access: &Access<'_>, out: &mut Vec<u8>) -> bool {
        if access.key.len() > KEY_BYTES_MAX {
            return false;
        }
        if self.block.len() + EVENT_BYTES_MAX + 1 > BLOCK_BYTES_MAX - BLOCK_HEADER_BYTES {
            self.flush(out);
        }
        if !self.book.has_room(self.keys_max, access.key.len()) {
            self.begin_anew();
        }
        let at_us = access.at_us.max(self.last_us);
        if self.events == 0 {
            (self.first_us, self.last_us) = (at_us, at_us);
        }
        let hash = hash_of(access);
        let numbers = self.numbers(access, hash);
        let key = encode(&mut self.block, &mut self.book, access, at_us - self.last_us, &numbers);
        if numbers.key.is_none() {
            self.keys.insert(hash, key);
        }
        self.last_us = at_us;
        self.events += 1;
        true
    }

    /// Adds what is not in a block yet to `out`, as one. To be called now and then, for what a crash loses,
    /// and at the end.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        if self.events == 0 {
            return;
        }
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

    fn begin_anew(&mut self) {
        self.block.push(ANEW);
        self.book.clear();
        self.keys.clear();
        self.callers.clear();
        self.buckets.clear();
    }

    /// Looks up what [`Self::write`] will need of an access, and nothing else, so that it has it near.
    pub fn bring_near(&self, access: &Access<'_>) {
        let known = self.keys.get(&hash_of(access)).and_then(|key| self.book.keys.get(*key as usize));
        black_box(known.map(|known| known.size));
    }

    fn numbers(&mut self, access: &Access<'_>, hash: u64) -> Numbers {
        // By the hash alone: to compare names would be to wait for memory once more.
        let (book, key) = (&self.book, self.keys.get(&hash).copied());
        let last = book.callers.get(book.caller as usize).is_some_and(|(last, _)| *last == access.caller);
        let caller = if last { book.caller } else { self.caller(access) };
        let bucket = match key {
            Some(_) => 0,
            None => *self.buckets.entry(naming::mix(access.bucket)).or_insert(self.book.buckets.len() as u32),
        };
        Numbers { key, bucket, caller }
    }

    fn caller(&mut self, access: &Access<'_>) -> u32 {
        let next = self.book.callers.len() as u32;
        let hash = naming::mix(access.caller.id ^ naming::mix(access.caller.family));
        let number = *self.callers.entry(hash).or_insert(next);
        match self.book.callers.get(number as usize) {
            Some((caller, _)) if *caller != access.caller => {
                self.callers.insert(hash, next);
                next
            }
            _ => number,
        }
    }
}

/// What the number of an access's key is found by.
fn hash_of(access: &Access<'_>) -> u64 {
    block_id(BLOCK_ID_SEED, access.bucket, access.key, 0)
}
