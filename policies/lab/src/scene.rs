//! Keys, callers and streams of a generated workload, and its requests in order of time.
//!
//! A [`Scene`] holds what does not change: keys and sizes, callers, and the streams that requests belong
//! to, with the truth about each stream, which a policy under test does not receive. Requests come one at a
//! time and refer to keys and callers by number, so that many millions of them are replayed without copying
//! or looking up names.

mod merged;

use super::naming::Naming;
use super::reference::BlockClass;
pub use merged::{MergedRequests, RequestIter};
use mlgw_policies::access::{Access, Caller, Op};
use mlgw_policies::stable_hash::hash;
use std::ops::Range;

/// A request of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedRequest {
    /// Time in microseconds since the start of the workload.
    pub at_us: u64,
    /// Requested bytes; for a write, the whole object.
    pub range: Range<u64>,
    /// Number of the key and of its object.
    pub key: u32,
    /// Epoch of the stream, from 0; for checkpoints, the number of the checkpoint.
    pub epoch: u32,
    /// Number of the caller.
    pub caller: u16,
    /// Number of the stream to which the request truly belongs.
    pub stream: u16,
    /// Operation.
    pub op: Op,
}

/// True access pattern of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamPattern {
    /// Epochs in the order of keys.
    Sequential,
    /// Epochs with a different order each, object by object.
    Shuffled,
    /// Epochs in which the order of shards differs each time, and the order inside a shard does not.
    ShardShuffled,
    /// Selected ranges of columnar files.
    Columnar,
    /// Every object once.
    OnePass,
    /// A few objects, read often.
    Skewed,
    /// Checkpoints, written and sometimes read back.
    Checkpoint,
    /// A small set, read after each epoch of a training set.
    Validation,
    /// A model that each new caller loads once.
    Model,
}

/// Label of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelledStream {
    /// Access pattern.
    pub pattern: StreamPattern,
    /// Number of the dataset that the stream uses.
    pub dataset: u16,
    /// Number of callers that read the same data in lock-step, including this one.
    pub readers: u8,
}

impl LabelledStream {
    /// The class that a cache with class information receives for a request of this stream.
    #[must_use]
    pub fn class(&self, request: &GeneratedRequest) -> BlockClass {
        match self.pattern {
            StreamPattern::OnePass => BlockClass::Scan,
            StreamPattern::Checkpoint => BlockClass::Checkpoint { generation: request.epoch },
            StreamPattern::Validation | StreamPattern::Model | StreamPattern::Skewed => BlockClass::Kept,
            _ if self.readers > 1 => BlockClass::Shared { readers: self.readers },
            _ => BlockClass::Train { dataset: self.dataset },
        }
    }
}

/// Keys with their sizes and buckets.
#[derive(Debug, Default)]
pub struct KeyTable {
    text: String,
    /// End offset of each key in the text.
    ends: Vec<u32>,
    sizes: Vec<u64>,
    buckets: Vec<u64>,
}

impl KeyTable {
    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the name of the key with this number.
    ///
    /// # Panics
    /// If the number is unknown. The same holds for the other accessors by key.
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

/// Tables that requests refer to by number.
#[derive(Debug, Default)]
pub struct Scene {
    /// Objects.
    pub keys: KeyTable,
    /// Callers.
    pub callers: Vec<Caller>,
    /// Labels of the streams.
    pub streams: Vec<LabelledStream>,
    naming: Naming,
    seed: u64,
}

impl Scene {
    /// Creates an empty scene. A different seed gives different caller ids.
    pub(super) fn new(naming: Naming, seed: u64) -> Self {
        Self { naming, seed, ..Self::default() }
    }

    /// Returns the request as an engine receives it.
    ///
    /// # Panics
    /// If the request belongs to another scene.
    #[must_use]
    pub fn access(&self, request: &GeneratedRequest) -> Access<'_> {
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

    /// Returns the stream that the request belongs to.
    ///
    /// # Panics
    /// If the request belongs to another scene.
    #[must_use]
    pub fn stream(&self, request: &GeneratedRequest) -> &LabelledStream {
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

    /// Adds a caller named `name`; callers of one `family` do the same work.
    pub(super) fn add_caller(&mut self, name: &str, family: &str) -> u16 {
        let caller = Caller { id: hash(self.seed, name), family: hash(self.seed ^ 1, family) };
        self.callers.push(caller);
        u16::try_from(self.callers.len() - 1).expect("fewer than 2^16 callers")
    }

    pub(super) fn add_stream(&mut self, pattern: StreamPattern, dataset: u16, readers: u8) -> u16 {
        self.streams.push(LabelledStream { pattern, dataset, readers });
        u16::try_from(self.streams.len() - 1).expect("fewer than 2^16 streams")
    }
}
