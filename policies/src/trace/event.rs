//! Encoding and decoding of one event.

use super::dictionary::TraceDictionary;
use super::varint::{self, ByteReader};
use super::{BUCKETS_MAX, CALLERS_MAX, KEY_BYTES_MAX};
use crate::access::{Access, Caller, Op};
use std::ops::Range;

const OPS: u8 = 0x03;
/// Resets the dictionary; takes the place of an operation.
pub(super) const RESET: u8 = 0x03;
const RANGES: u8 = 0x0c;
const RANGE_ALL: u8 = 0x00;
const RANGE_NEXT: u8 = 0x04;
const RANGE_EXPLICIT: u8 = 0x08;
const SAME_CALLER: u8 = 0x10;
const SAME_SIZE: u8 = 0x20;
const NEW_KEY: u8 = 0x40;
const NEXT_KEY: u8 = 0x80;

/// Numbers of the key, bucket and caller of an event, as looked up by the writer; the next free number if
/// there is none.
pub(super) struct EventNumbers {
    pub(super) key: Option<u32>,
    pub(super) bucket: u32,
    pub(super) caller: u32,
}

/// Appends an event, `after_us` after the previous one, updates the dictionary and returns the number of
/// the event's key.
pub(super) fn encode(
    out: &mut Vec<u8>,
    book: &mut TraceDictionary,
    access: &Access<'_>,
    after_us: u64,
    numbers: &EventNumbers,
) -> u32 {
    let flags_at = out.len();
    let mut flags = match access.op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Delete => 2,
    };
    out.push(flags);
    varint::put(out, after_us);
    if numbers.caller == book.caller && (numbers.caller as usize) < book.callers.len() {
        flags |= SAME_CALLER;
    } else {
        encode_caller(out, book, numbers.caller, access.caller);
    }
    let last = book.last_key_of(numbers.caller);
    let key = match numbers.key {
        None => {
            flags |= NEW_KEY;
            encode_key(out, book, numbers.bucket, access, last)
        }
        Some(key) if key == last.wrapping_add(1) => {
            flags |= NEXT_KEY;
            key
        }
        Some(key) => {
            varint::put_difference(out, u64::from(key), u64::from(last));
            key
        }
    };
    let known = &mut book.keys[key as usize];
    if known.size == access.size {
        flags |= SAME_SIZE;
    } else {
        varint::put(out, access.size);
    }
    let range = access.range.start..access.range.end.max(access.range.start);
    if range == (0..access.size) {
        flags |= RANGE_ALL;
    } else if range == next(&known.range, access.size) {
        flags |= RANGE_NEXT;
    } else {
        flags |= RANGE_EXPLICIT;
        varint::put_difference(out, range.start, known.range.end);
        varint::put(out, range.end - range.start);
    }
    (known.size, known.range) = (access.size, range);
    book.record_event(numbers.caller, key);
    out[flags_at] = flags;
    key
}

fn encode_caller(out: &mut Vec<u8>, book: &mut TraceDictionary, number: u32, caller: Caller) {
    varint::put(out, u64::from(number));
    if number as usize == book.callers.len() {
        out.extend(caller.id.to_le_bytes());
        out.extend(caller.family.to_le_bytes());
        book.callers.push((caller, book.key));
    }
}

fn encode_key(
    out: &mut Vec<u8>,
    book: &mut TraceDictionary,
    bucket: u32,
    access: &Access<'_>,
    last: u32,
) -> u32 {
    varint::put(out, u64::from(bucket));
    if bucket as usize == book.buckets.len() {
        out.extend(access.bucket.to_le_bytes());
        book.buckets.push(access.bucket);
    }
    let same = book.name_of(last).bytes().zip(access.key.bytes()).take_while(|(a, b)| a == b).count();
    let rest = &access.key.as_bytes()[same..];
    varint::put(out, same as u64);
    varint::put(out, rest.len() as u64);
    out.extend(rest);
    book.add(bucket, access.key, last)
}

/// The range that continues the range `last` of an object of `size` bytes.
fn next(last: &Range<u64>, size: u64) -> Range<u64> {
    last.end..last.end.saturating_add(last.end - last.start).min(size).max(last.end)
}

/// Fields of an event other than those that the dictionary holds for its key and its caller.
pub(super) struct DecodedEvent {
    pub(super) after_us: u64,
    pub(super) op: Op,
}

/// Reads an event and updates the dictionary: afterwards its `key` and `caller` are those of the event.
/// Returns `None` if the bytes are not an output of [`encode`]; the dictionary is then unusable.
pub(super) fn decode(
    bytes: &mut ByteReader<'_>,
    book: &mut TraceDictionary,
    flags: u8,
) -> Option<DecodedEvent> {
    let op = match flags & OPS {
        0 => Op::Read,
        1 => Op::Write,
        2 => Op::Delete,
        _ => return None,
    };
    let after_us = bytes.varint()?;
    let caller = if flags & SAME_CALLER == 0 { decode_caller(bytes, book)? } else { book.caller };
    let last = book.callers.get(caller as usize)?.1;
    let key = match flags & (NEW_KEY | NEXT_KEY) {
        NEW_KEY => decode_key(bytes, book, last)?,
        NEXT_KEY => last.checked_add(1)?,
        0 => u32::try_from(bytes.difference(u64::from(last))?).ok()?,
        _ => return None,
    };
    book.record_event(caller, key);
    let known = book.keys.get_mut(key as usize)?;
    if flags & SAME_SIZE == 0 {
        known.size = bytes.varint()?;
    }
    known.range = match flags & RANGES {
        RANGE_ALL => 0..known.size,
        RANGE_NEXT => next(&known.range, known.size),
        RANGE_EXPLICIT => {
            let start = bytes.difference(known.range.end)?;
            start..start.checked_add(bytes.varint()?)?
        }
        _ => return None,
    };
    Some(DecodedEvent { after_us, op })
}

fn decode_caller(bytes: &mut ByteReader<'_>, book: &mut TraceDictionary) -> Option<u32> {
    let number = usize::try_from(bytes.varint()?).ok()?;
    if number == book.callers.len() && number < CALLERS_MAX {
        book.callers.push((Caller { id: bytes.u64()?, family: bytes.u64()? }, book.key));
    }
    (number < book.callers.len()).then_some(number as u32)
}

fn decode_key(bytes: &mut ByteReader<'_>, book: &mut TraceDictionary, last: u32) -> Option<u32> {
    let bucket = usize::try_from(bytes.varint()?).ok()?;
    if bucket == book.buckets.len() && bucket < BUCKETS_MAX {
        book.buckets.push(bytes.u64()?);
    }
    book.buckets.get(bucket)?;
    let same = usize::try_from(bytes.varint()?).ok()?;
    let same = book.name_of(last).as_bytes().get(..same)?;
    let rest = usize::try_from(bytes.varint()?).ok()?;
    let rest = bytes.take(rest)?;
    let length = same.len() + rest.len();
    let mut name = [0; KEY_BYTES_MAX];
    name.get_mut(..same.len())?.copy_from_slice(same);
    name.get_mut(same.len()..length)?.copy_from_slice(rest);
    let name = str::from_utf8(name.get(..length)?).ok()?;
    book.has_room_for_key(name.len()).then(|| book.add(bucket as u32, name, last))
}
