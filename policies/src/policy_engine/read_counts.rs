//! Read counts of the most recently read objects, in eight bytes each.
//!
//! The hash of an object selects a set of eight entries. A set is ordered by recency, and a new object
//! replaces the last entry. Invariant: a count is that of the reads since the object entered its set, and no
//! object has two entries. Two objects may share an entry, about once in 10^12 pairs within a set. Counts
//! lost in a crash are rebuilt from the replayed accesses.

/// Objects per set.
const WAYS: usize = 8;
/// An entry consists of a part of the hash above and the count in the lower `COUNT_BITS` bits; 0 is an empty
/// entry, because no count is 0.
const COUNT_BITS: u32 = 24;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Sets that are allocated together: 32 KiB, when one of them is needed. A single large allocation would be
/// backed by huge pages that are cleared in the middle of requests.
const SHARD_SETS: usize = 512;

/// Read counts; see the module.
pub(crate) struct ReadCounts {
    /// Shards of sets, each empty until it is needed.
    shards: Vec<Vec<[u64; WAYS]>>,
    sets: usize,
}

impl ReadCounts {
    /// Returns counts for about `objects_max` objects.
    pub(super) fn new(objects_max: usize) -> Self {
        let sets = (objects_max / WAYS).max(1).next_power_of_two();
        assert!(sets - 1 <= COUNT_MAX as usize, "a set is chosen by bits that entries do not contain");
        Self { shards: vec![Vec::new(); sets.div_ceil(SHARD_SETS)], sets }
    }

    /// Counts a read of the object with this hash.
    pub(super) fn count(&mut self, id: u64) {
        let (shard, place) = self.place(id);
        let shard = &mut self.shards[shard];
        if shard.is_empty() {
            *shard = vec![[0; WAYS]; self.sets.min(SHARD_SETS)];
        }
        let set = &mut shard[place];
        let found = set.iter().position(|entry| is_of(*entry, id));
        let count = found.map_or(0, |at| set[at] & COUNT_MAX);
        set[..=found.unwrap_or(WAYS - 1)].rotate_right(1);
        set[0] = id & !COUNT_MAX | (count + 1).min(COUNT_MAX);
    }

    /// Forgets an object that was written or deleted: earlier reads were of another version.
    pub(super) fn forget(&mut self, id: u64) {
        let (shard, place) = self.place(id);
        let Some(set) = self.shards[shard].get_mut(place) else { return };
        if let Some(at) = set.iter().position(|entry| is_of(*entry, id)) {
            set[at..].rotate_left(1);
            set[WAYS - 1] = 0;
        }
    }

    /// Returns the read count of an object, if it is remembered.
    pub(crate) fn of(&self, id: u64) -> Option<u64> {
        let (shard, place) = self.place(id);
        let set = self.shards[shard].get(place)?;
        set.iter().find(|entry| is_of(**entry, id)).map(|entry| entry & COUNT_MAX)
    }

    /// Returns shard and set, from the bits that entries do not contain.
    const fn place(&self, id: u64) -> (usize, usize) {
        let set = (id & COUNT_MAX) as usize & (self.sets - 1);
        (set / SHARD_SETS, set % SHARD_SETS)
    }
}

const fn is_of(entry: u64, id: u64) -> bool {
    entry & COUNT_MAX > 0 && entry >> COUNT_BITS == id >> COUNT_BITS
}

#[cfg(test)]
mod tests {
    use super::ReadCounts;

    /// Hashes of one set.
    const fn id(n: u64) -> u64 {
        n << 24 | 7
    }

    #[test]
    fn the_least_recently_read_is_replaced_and_writes_reset_counts() {
        let mut reads = ReadCounts::new(8);
        for n in 0..8 {
            (0..=n).for_each(|_| reads.count(id(n)));
        }
        let counts = |reads: &ReadCounts| (0..10).map(|n| reads.of(id(n))).collect::<Vec<_>>();
        let all = |n: u64| (0..8).contains(&n).then_some(n + 1);
        assert_eq!(counts(&reads), (0..10).map(all).collect::<Vec<_>>());
        reads.count(id(0));
        reads.count(id(8));
        assert_eq!((reads.of(id(0)), reads.of(id(1)), reads.of(id(8))), (Some(2), None, Some(1)));
        reads.forget(id(0));
        reads.forget(id(0));
        reads.count(id(9));
        assert_eq!((reads.of(id(0)), reads.of(id(2)), reads.of(id(9))), (None, Some(3), Some(1)));
        reads.count(id(0));
        assert_eq!(reads.of(id(0)), Some(1));
    }

    #[test]
    fn objects_of_other_sets_do_not_interfere() {
        let mut reads = ReadCounts::new(1 << 10);
        let spread = |n: u64| id(n) & !0xFFF | n;
        (0..128).for_each(|n| reads.count(spread(n)));
        assert!((0..128).all(|n| reads.of(spread(n)) == Some(1)) && reads.of(id(3) | 4).is_none());
    }

    #[test]
    fn counts_saturate_at_the_maximum() {
        let mut reads = ReadCounts::new(1);
        reads.count(id(3));
        reads.shards[0][0][0] = id(3) | super::COUNT_MAX;
        reads.count(id(3));
        assert_eq!(reads.of(id(3)), Some(super::COUNT_MAX));
    }
}
