//! An access, as the engine is told of it: who asked for what, and when.

use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

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

impl Caller {
    /// Who asks with this key, user agent and name of a workload from this address.
    #[must_use]
    pub fn of(access_key: &str, agent: &[u8], workload: Option<&str>, address: &[u8]) -> Self {
        let named = xxh3_64_with_seed(workload.unwrap_or_default().as_bytes(), u64::from(workload.is_some()));
        let family = xxh3_64_with_seed(agent, xxh3_64_with_seed(access_key.as_bytes(), named));
        Self { id: xxh3_64_with_seed(address, family), family }
    }
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

#[cfg(test)]
mod tests {
    use super::Caller;

    #[test]
    fn each_part_tells_callers_apart_and_only_the_address_tells_not_families() {
        let caller = Caller::of("AK", b"boto3", Some("train"), &[127, 0, 0, 1]);
        assert_eq!(caller, Caller::of("AK", b"boto3", Some("train"), &[127, 0, 0, 1]));
        let neighbour = Caller::of("AK", b"boto3", Some("train"), &[127, 0, 0, 2]);
        assert!(neighbour.id != caller.id && neighbour.family == caller.family);
        for other in [
            Caller::of("AL", b"boto3", Some("train"), &[127, 0, 0, 1]),
            Caller::of("AK", b"boto4", Some("train"), &[127, 0, 0, 1]),
            Caller::of("AK", b"boto3", Some("serve"), &[127, 0, 0, 1]),
            Caller::of("AK", b"boto3", Some(""), &[127, 0, 0, 1]),
            Caller::of("AK", b"boto3", None, &[127, 0, 0, 1]),
        ] {
            assert!(other.id != caller.id && other.family != caller.family);
        }
    }
}
