//! What both sides of a trace remember: numbers of keys, callers and buckets, and what was last said of each
//! key.

use super::{BUCKETS_MAX, CALLERS_MAX, KEYS_MAX, TEXT_BYTES_MAX};
use crate::access::Caller;
use std::ops::Range;

/// A key that has a number.
#[derive(Clone, Debug)]
pub(super) struct Known {
    begin: u32,
    end: u32,
    pub(super) bucket: u32,
    pub(super) size: u64,
    /// Its last range.
    pub(super) range: Range<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Book {
    text: String,
    pub(super) keys: Vec<Known>,
    /// With the number of the key that each last asked for.
    pub(super) callers: Vec<(Caller, u32)>,
    pub(super) buckets: Vec<u64>,
    /// Numbers in the event before.
    pub(super) key: u32,
    pub(super) caller: u32,
}

impl Book {
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.keys.clear();
        self.callers.clear();
        self.buckets.clear();
        (self.key, self.caller) = (0, 0);
    }

    /// Whether there are numbers left for one more of each, and room for a key of so many bytes.
    pub(super) fn has_room(&self, keys_max: usize, key_bytes: usize) -> bool {
        self.takes_key(key_bytes)
            && self.keys.len() < keys_max
            && self.callers.len() < CALLERS_MAX
            && self.buckets.len() < BUCKETS_MAX
    }

    /// Whether there is a number left, and room, for a key of so many bytes.
    pub(super) fn takes_key(&self, key_bytes: usize) -> bool {
        self.keys.len() < KEYS_MAX && self.text.len() + key_bytes <= TEXT_BYTES_MAX
    }

    pub(super) fn name(&self, known: &Known) -> &str {
        self.text.get(known.begin as usize..known.end as usize).unwrap_or_default()
    }

    /// Number of the key that `caller` last asked for; that of the event before, for a caller that has not
    /// asked yet.
    pub(super) fn last_of(&self, caller: u32) -> u32 {
        self.callers.get(caller as usize).map_or(self.key, |(_, key)| *key)
    }

    /// The name of a key, empty for a number that none has.
    pub(super) fn name_of(&self, key: u32) -> &str {
        self.keys.get(key as usize).map_or("", |known| self.name(known))
    }

    /// Enters the caller and the key of an event.
    pub(super) fn note(&mut self, caller: u32, key: u32) {
        (self.caller, self.key) = (caller, key);
        if let Some((_, last)) = self.callers.get_mut(caller as usize) {
            *last = key;
        }
    }

    /// Gives `name` the next number. Until its size is told it is that of the key numbered `like`.
    pub(super) fn add(&mut self, bucket: u32, name: &str, like: u32) -> u32 {
        let size = self.keys.get(like as usize).map_or(0, |known| known.size);
        let begin = self.text.len() as u32;
        self.text.push_str(name);
        let end = self.text.len() as u32;
        self.keys.push(Known { begin, end, bucket, size, range: 0..0 });
        self.keys.len() as u32 - 1
    }
}
