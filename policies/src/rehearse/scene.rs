//! Who asks for what in a generated workload, and its requests in the order of time.
//!
//! A [`Scene`] holds what does not change: keys and sizes, callers, and the streams that requests belong to,
//! with the truth about each of them, which a policy under test is not told. Requests come one at a time and
//! name keys and callers by number, so that many millions of them are replayed without their names being
//! copied or looked up.

mod merged;

use super::naming::{Naming, hash};
use super::reference::Class;
use crate::access::{Access, Caller, Op};
pub use merged::{Requests, Source};
use std::ops::Range;

/// One request of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When, in microseconds since the workload began.
    pub at_us: u64,
    /// The bytes that are asked for; all of the object if it is written.
    pub range: Range<u64>,
    /// Number of the key, and so of the object.
    pub key: u32,
    /// Which epoch of the stream this belongs to, from 0; for checkpoints, which one.
    pub epoch: u32,
    /// Number of the caller.
    pub caller: u16,
    /// Number of the stream that this belongs to in truth.
    pub stream: u16,
    /// What is done.
    pub op: Op,
}

/// How a stream reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Epochs in the order of keys.
    Sequential,
    /// Epochs in another order each, object by object.
    Shuffled,
    /// Epochs in which the order of shards is another each time, and that inside a shard is not.
    ShardShuffled,
    /// Chosen ranges of columnar files.
    Columnar,
    /// Everything once.
    OnePass,
    /// Few objects often.
    Skewed,
    /// Checkpoints, written and now and then read back.
    Checkpoint,
    /// A small set, read after each epoch of a training set.
    Validation,
    /// A model that each new caller loads once.
    Model,
}

/// The truth about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// How it reads or writes.
    pub pattern: Pattern,
    /// Number of the dataset that it uses.
    pub dataset: u16,
    /// How many callers read what it reads in lock-step, itself among them.
    pub readers: u8,
}

impl Stream {
    /// What a cache that is told classes is told of a request of this stream.
    #[must_use]
    pub fn class(&self, request: &Request) -> Class {
        match self.pattern {
            Pattern::OnePass => Class::Scan,
            Pattern::Checkpoint => Class::Checkpoint { generation: request.epoch },
            Pattern::Validation | Pattern::Model | Pattern::Skewed => Class::Kept,
            _ if self.readers > 1 => Class::Shared { readers: self.readers },
            _ => Class::Train { dataset: self.dataset },
        }
    }
}

/// Keys, their sizes and buckets.
#[derive(Debug, Default)]
pub struct KeyTable {
    text: String,
    /// Where in the text each key ends.
    ends: Vec<u32>,
    sizes: Vec<u64>,
    buckets: Vec<u64>,
}

impl KeyTable {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The key with this number.
    ///
    /// # Panics
    /// For a number that is none, as do the others.
    #[must_use]
    pub fn name(&self, key: u32) -> &str {
        let key = key as usize;
        let begin = if key == 0 { 0 } else { self.ends[key - 1] };
        &self.text[begin as usize..self.ends[key] as usize]
    }

    /// Bytes of the object.
    #[must_use]
    pub fn size(&self, key: u32) -> u64 {
        self.sizes[key as usize]
    }

    /// The bucket's id.
    #[must_use]
    pub fn bucket(&self, key: u32) -> u64 {
        self.buckets[key as usize]
    }

    /// Bytes of all objects.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }
}

/// All that requests refer to by number.
#[derive(Debug, Default)]
pub struct Scene {
    /// Objects.
    pub keys: KeyTable,
    /// Who asks.
    pub callers: Vec<Caller>,
    /// What requests belong to in truth.
    pub streams: Vec<Stream>,
    naming: Naming,
    seed: u64,
}

impl Scene {
    /// An empty one. Callers are others with another seed.
    pub(super) fn new(naming: Naming, seed: u64) -> Self {
        Self { naming, seed, ..Self::default() }
    }

    /// The request as an engine is told of it.
    ///
    /// # Panics
    /// For a request of another scene.
    #[must_use]
    pub fn access(&self, request: &Request) -> Access<'_> {
        Access {
            at_us: request.at_us,
            caller: self.callers[usize::from(request.caller)],
            bucket: self.keys.bucket(request.key),
            key: self.keys.name(request.key),
            op: request.op,
            size: self.keys.size(request.key),
            range: request.range.clone(),
        }
    }

    /// The stream that the request belongs to.
    ///
    /// # Panics
    /// For a request of another scene.
    #[must_use]
    pub fn stream(&self, request: &Request) -> &Stream {
        &self.streams[usize::from(request.stream)]
    }

    pub(super) fn add_key(&mut self, bucket: &str, key: &str, size: u64) -> u32 {
        let number = self.keys.ends.len() as u32;
        self.naming.append(key, &mut self.keys.text);
        self.keys.ends.push(u32::try_from(self.keys.text.len()).expect("names of less than 4 GiB"));
        self.keys.sizes.push(size);
        self.keys.buckets.push(hash(0, bucket));
        number
    }

    /// A caller called `name`; those of one `family` do the same work.
    pub(super) fn add_caller(&mut self, name: &str, family: &str) -> u16 {
        let caller = Caller { id: hash(self.seed, name), family: hash(self.seed ^ 1, family) };
        self.callers.push(caller);
        u16::try_from(self.callers.len() - 1).expect("fewer than 2^16 callers")
    }

    pub(super) fn add_stream(&mut self, pattern: Pattern, dataset: u16, readers: u8) -> u16 {
        self.streams.push(Stream { pattern, dataset, readers });
        u16::try_from(self.streams.len() - 1).expect("fewer than 2^16 streams")
    }
}
