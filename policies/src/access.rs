//! An access, as the engine is told of it: who asked for what, and when.

use std::ops::Range;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Bytes of an object are read.
    Read,
    /// An object was written whole.
    Write,
    /// An object was deleted.
    Delete,
}

/// Who asks: one process of a training, inference or data workload, as far as requests tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Its own: a hash of access key, address, user agent and of the workload that it says it belongs to.
    pub id: u64,
    /// What it shares with its like: a hash of the same without the address.
    pub family: u64,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access<'a> {
    /// When, in microseconds since any moment; never less than in the access before.
    pub at_us: u64,
    /// Who.
    pub caller: Caller,
    /// The bucket's id.
    pub bucket: u64,
    /// The key.
    pub key: &'a str,
    /// What is done.
    pub op: Op,
    /// Bytes of the whole object.
    pub size: u64,
    /// The bytes of it that are read; all of them when it is written or deleted.
    pub range: Range<u64>,
}
