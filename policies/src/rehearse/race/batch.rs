//! Accesses that are gone through together.
//!
//! Each access looks its object up in tables of millions, and waits for memory. Lookups that stand together
//! wait together; so what is looked up of a few dozen accesses is touched first, and then they are taken one
//! after the other, in their order, as if they came so.

use crate::access::{Access, Caller, Op};
use std::ops::Range;

/// So many are enough to wait together, and few enough for what was touched to be still near.
const ACCESSES: usize = 32;

/// See the module.
#[derive(Default)]
pub struct Batch {
    keys: String,
    held: Vec<Held>,
}

/// An access, whose key is in `keys`, and whether it counts.
struct Held {
    at_us: u64,
    caller: Caller,
    bucket: u64,
    key: Range<usize>,
    op: Op,
    size: u64,
    range: Range<u64>,
    counts: bool,
}

impl Batch {
    /// Adds an access, and says whether there are enough.
    pub fn push(&mut self, access: &Access<'_>, counts: bool) -> bool {
        let begin = self.keys.len();
        self.keys.push_str(access.key);
        self.held.push(Held {
            at_us: access.at_us,
            caller: access.caller,
            bucket: access.bucket,
            key: begin..self.keys.len(),
            op: access.op,
            size: access.size,
            range: access.range.clone(),
            counts,
        });
        self.held.len() >= ACCESSES
    }

    /// The accesses in their order, and whether they count.
    pub fn iter(&self) -> impl Iterator<Item = (Access<'_>, bool)> {
        self.held.iter().map(|one| {
            let access = Access {
                at_us: one.at_us,
                caller: one.caller,
                bucket: one.bucket,
                key: &self.keys[one.key.clone()],
                op: one.op,
                size: one.size,
                range: one.range.clone(),
            };
            (access, one.counts)
        })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{ACCESSES, Access, Batch, Caller, Op};

    fn access(n: u64, key: &str) -> Access<'_> {
        let (caller, op) =
            (Caller { id: n, family: n + 1 }, if n.is_multiple_of(2) { Op::Read } else { Op::Delete });
        Access { at_us: n, caller, bucket: n + 2, key, op, size: n + 3, range: n..n + 4 }
    }

    #[test]
    fn what_is_pushed_comes_back_in_order() {
        let mut batch = Batch::default();
        for _ in 0..2 {
            assert!(batch.is_empty());
            let keys: Vec<String> = (0..ACCESSES).map(|n| "kéy".repeat(n % 3)).collect();
            for (n, key) in keys.iter().enumerate() {
                assert_eq!(batch.push(&access(n as u64, key), n % 5 == 0), n + 1 == ACCESSES);
            }
            assert_eq!(batch.len(), ACCESSES);
            for (n, (one, key)) in batch.iter().zip(&keys).enumerate() {
                assert_eq!(one, (access(n as u64, key), n % 5 == 0));
            }
            batch.clear();
        }
    }
}
