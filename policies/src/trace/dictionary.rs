//! Dictionary that the reader and the writer of a trace keep in step: numbers of keys, callers and buckets,
//! and the last recorded size and range of each key.

use super::{BUCKETS_MAX, CALLERS_MAX, KEYS_MAX, TEXT_BYTES_MAX};
use crate::access::Caller;
use std::ops::Range;

/// A key in the dictionary.
#[derive(Clone, Debug)]
pub(super) struct DictionaryKey {
    begin: u32,
    end: u32,
    pub(super) bucket: u32,
    pub(super) size: u64,
    /// Range of the last access.
    pub(super) range: Range<u64>,
}

#[derive(Debug, Default)]
pub(super) struct TraceDictionary {
    text: String,
    pub(super) keys: Vec<DictionaryKey>,
    /// Callers, each with the number of the key that it accessed last.
    pub(super) callers: Vec<(Caller, u32)>,
    pub(super) buckets: Vec<u64>,
    /// Key number of the previous event; the next field is its caller number.
    pub(super) key: u32,
    pub(super) caller: u32,
}

impl TraceDictionary {
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.keys.clear();
        self.callers.clear();
        self.buckets.clear();
        (self.key, self.caller) = (0, 0);
    }

    /// True if there are free numbers for one more key, caller and bucket, and room for a key of
    /// `key_bytes` bytes.
    pub(super) fn has_room(&self, keys_max: usize, key_bytes: usize) -> bool {
        self.has_room_for_key(key_bytes)
            && self.keys.len() < keys_max
            && self.callers.len() < CALLERS_MAX
            && self.buckets.len() < BUCKETS_MAX
    }

    /// True if there are a free number and room for a key of `key_bytes` bytes.
    pub(super) fn has_room_for_key(&self, key_bytes: usize) -> bool {
        self.keys.len() < KEYS_MAX && self.text.len() + key_bytes <= TEXT_BYTES_MAX
    }

    pub(super) fn name(&self, known: &DictionaryKey) -> &str {
        self.text.get(known.begin as usize..known.end as usize).unwrap_or_default()
    }

    /// Number of the key that `caller` accessed last, or the key of the previous event for a caller without
    /// an access.
    pub(super) fn last_key_of(&self, caller: u32) -> u32 {
        self.callers.get(caller as usize).map_or(self.key, |(_, key)| *key)
    }

    /// Name of a key; empty for an unassigned number.
    pub(super) fn name_of(&self, key: u32) -> &str {
        self.keys.get(key as usize).map_or("", |known| self.name(known))
    }

    /// Records the caller and the key of an event.
    pub(super) fn record_event(&mut self, caller: u32, key: u32) {
        (self.caller, self.key) = (caller, key);
        if let Some((_, last)) = self.callers.get_mut(caller as usize) {
            *last = key;
        }
    }

    /// Assigns the next number to `name`. The size is that of the key numbered `like` until the event sets
    /// it.
    pub(super) fn add(&mut self, bucket: u32, name: &str, like: u32) -> u32 {
        let size = self.keys.get(like as usize).map_or(0, |known| known.size);
        let begin = self.text.len() as u32;
        self.text.push_str(name);
        let end = self.text.len() as u32;
        self.keys.push(DictionaryKey { begin, end, bucket, size, range: 0..0 });
        self.keys.len() as u32 - 1
    }
}
