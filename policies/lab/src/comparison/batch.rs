//! Batches of accesses that are processed together.
//!
//! Each access looks its object up in tables with millions of entries and waits for memory. Lookups that
//! are issued together overlap their waits. The entries that a few dozen accesses need are therefore
//! touched first, and then the accesses are processed one after another in order, with the same result as
//! without batching.

use super::Scoring;
use mlgw_policies::access::{Access, Caller, Op};
use std::ops::Range;

/// Number of accesses in a full batch: enough for memory waits to overlap, and few enough for the touched
/// entries to stay in the CPU cache.
const BATCH_ACCESSES: usize = 32;

/// Accesses in order, with the text of their keys.
#[derive(Default)]
pub struct AccessBatch {
    keys: String,
    accesses: Vec<BatchedAccess>,
}

/// An access, whose key is a range of `keys`.
struct BatchedAccess {
    at_us: u64,
    caller: Caller,
    bucket: u64,
    key: Range<usize>,
    op: Op,
    size: u64,
    range: Range<u64>,
    scoring: Scoring,
}

impl AccessBatch {
    /// Adds an access and returns true if the batch is full.
    pub fn push(&mut self, access: &Access<'_>, scoring: Scoring) -> bool {
        let begin = self.keys.len();
        self.keys.push_str(access.key);
        self.accesses.push(BatchedAccess {
            at_us: access.at_us,
            caller: access.caller,
            bucket: access.bucket,
            key: begin..self.keys.len(),
            op: access.op,
            size: access.size,
            range: access.range.clone(),
            scoring,
        });
        self.accesses.len() >= BATCH_ACCESSES
    }

    /// The accesses in order.
    pub fn iter(&self) -> impl Iterator<Item = (Access<'_>, Scoring)> {
        self.accesses.iter().map(|one| {
            let access = Access {
                at_us: one.at_us,
                caller: one.caller,
                bucket: one.bucket,
                key: &self.keys[one.key.clone()],
                op: one.op,
                size: one.size,
                range: one.range.clone(),
            };
            (access, one.scoring)
        })
    }

    /// Number of accesses.
    #[must_use]
    pub fn len(&self) -> usize {
        self.accesses.len()
    }

    /// True if the batch has no accesses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.accesses.is_empty()
    }

    /// Removes all accesses.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.accesses.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, AccessBatch, BATCH_ACCESSES, Caller, Op, Scoring};

    fn access(n: u64, key: &str) -> Access<'_> {
        let (caller, op) =
            (Caller { id: n, family: n + 1 }, if n.is_multiple_of(2) { Op::Read } else { Op::Delete });
        Access { at_us: n, caller, bucket: n + 2, key, op, size: n + 3, range: n..n + 4 }
    }

    fn scoring(n: usize) -> Scoring {
        if n.is_multiple_of(5) { Scoring::Counted } else { Scoring::WarmUp }
    }

    #[test]
    fn pushed_accesses_are_returned_in_order() {
        let mut batch = AccessBatch::default();
        for _ in 0..2 {
            assert!(batch.is_empty());
            let keys: Vec<String> = (0..BATCH_ACCESSES).map(|n| "kéy".repeat(n % 3)).collect();
            for (n, key) in keys.iter().enumerate() {
                assert_eq!(batch.push(&access(n as u64, key), scoring(n)), n + 1 == BATCH_ACCESSES);
            }
            assert_eq!(batch.len(), BATCH_ACCESSES);
            for (n, (one, key)) in batch.iter().zip(&keys).enumerate() {
                assert_eq!(one, (access(n as u64, key), scoring(n)));
            }
            batch.clear();
        }
    }
}
