//! Cache of object rows in memory, as they are stored: every GET and HEAD reads its object's row first.
//!
//! A point read of the store searches its memtable, filters, indexes and blocks; this cache answers with one
//! lookup.
//!
//! Invariant: a cached row always equals the stored one. A row is removed before the store changes it, and
//! not inserted again before the change is complete. A reader that reads the store meanwhile must not insert
//! the old row. So it records the change counters of the row's stripe before it reads the store, and inserts
//! the row only if no change was in progress and none has begun since. Only reads insert rows, because much
//! of what is written is not read soon.
//!
//! The size is bounded in bytes, bookkeeping included. Eviction uses Clock-PRO (Jiang, Chen and Zhang, 2005),
//! so a scan of more objects than fit does not evict those that are read repeatedly. Nothing of the cache is
//! on disk.

use parking_lot::Mutex;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory per row in addition to its bytes: the reference counts in front of them, its entry (48 bytes in a
/// list that may be half empty), its slot in a table that may be half empty, and half as many entries of
/// evicted rows.
const OVERHEAD_BYTES: usize = 160;
/// Typical size of a row with its value, with few extents and little metadata. Only used to estimate how many
/// rows the cache keeps track of.
const TYPICAL_BYTES: usize = 384;
/// Number of shards with locks of their own. A shard doubles its table in one step, while others wait for it.
const SHARDS: usize = 64;
/// Number of groups of rows for which changes are counted separately.
const STRIPES: usize = 64;

type Rows = Cache<CachedRow, CachedRow, RowWeigher>;

/// Rows in memory.
pub(crate) struct RowCache {
    rows: Rows,
    hasher: DefaultHashBuilder,
    stripes: [Mutex<ChangeCounters>; STRIPES],
    /// Number of lookups that did not find their row.
    misses: AtomicU64,
}

/// Change counters of a stripe's rows.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct ChangeCounters {
    begun: u64,
    ended: u64,
}

/// Change counters of a row's stripe, taken before the store is read for the row.
#[derive(Clone, Copy)]
pub(crate) struct RowReadTicket {
    stripe: usize,
    changes: ChangeCounters,
}

impl RowCache {
    /// A cache that takes at most `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let hasher = DefaultHashBuilder::default();
        let options = OptionsBuilder::new()
            .shards(SHARDS)
            .estimated_items_capacity(bytes / TYPICAL_BYTES)
            .weight_capacity(bytes as u64)
            .build()
            .expect("both capacities are set");
        let rows = Cache::with_options(options, RowWeigher, hasher.clone(), DefaultLifecycle::default());
        Self {
            rows,
            hasher,
            stripes: std::array::from_fn(|_| Mutex::default()),
            misses: AtomicU64::default(),
        }
    }

    /// The value of `row`, if it is cached.
    pub(crate) fn get(&self, row: &[u8]) -> Option<CachedRow> {
        self.rows.get(row)
    }

    /// True if the value of `row` is cached. Does not count as an access.
    pub(crate) fn contains(&self, row: &[u8]) -> bool {
        self.rows.contains_key(row)
    }

    /// Takes a ticket before the store is read for `row`, which is not cached. Counts a miss.
    pub(crate) fn ticket(&self, row: &[u8]) -> RowReadTicket {
        self.misses.fetch_add(1, Ordering::Relaxed);
        let stripe = self.stripe(row);
        RowReadTicket { stripe, changes: *self.stripes[stripe].lock() }
    }

    /// Inserts the value that the store had for `row`, unless a row of its stripe was changing, or has
    /// changed since the ticket was taken.
    pub(crate) fn insert(&self, ticket: RowReadTicket, row: &[u8], value: &[u8]) {
        let kept = CachedRow::new(row, value);
        let changes = self.stripes[ticket.stripe].lock();
        if *changes == ticket.changes && changes.begun == changes.ended {
            self.rows.insert(kept.clone(), kept);
        }
    }

    /// Removes a row that the store is about to change.
    pub(crate) fn begin_change(&self, row: &[u8]) {
        self.stripes[self.stripe(row)].lock().begun += 1;
        self.rows.remove(row);
    }

    /// Records that the store has changed a row. If the change failed, this must not be called; then no row
    /// of the stripe is cached again.
    pub(crate) fn end_change(&self, row: &[u8]) {
        let mut changes = self.stripes[self.stripe(row)].lock();
        assert!(changes.ended < changes.begun, "the change of a row ends after it began");
        changes.ended += 1;
    }

    /// Removes all rows, because the store was replaced.
    pub(crate) fn clear(&self) {
        let mut stripes: Vec<_> = self.stripes.iter().map(Mutex::lock).collect();
        for changes in &mut stripes {
            changes.begun += 1;
            changes.ended += 1;
        }
        self.rows.clear();
    }

    /// Number of lookups that did not find their row.
    pub(crate) fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    /// Bytes of the cached rows, bookkeeping included.
    pub(crate) fn bytes(&self) -> u64 {
        self.rows.weight()
    }

    fn stripe(&self, row: &[u8]) -> usize {
        // The shard is chosen by other bits of the hash.
        (self.hasher.hash_one(row) >> 32) as usize % STRIPES
    }
}

/// A row and its value in one allocation: the row's length (16 bits), the row, the value.
#[derive(Clone)]
pub(crate) struct CachedRow(Arc<[u8]>);

impl CachedRow {
    fn new(row: &[u8], value: &[u8]) -> Self {
        let length = u16::try_from(row.len()).expect("keys of objects are at most 1,024 bytes");
        let mut bytes = Vec::with_capacity(2 + row.len() + value.len());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(row);
        bytes.extend_from_slice(value);
        Self(bytes.into())
    }

    fn split(&self) -> (&[u8], &[u8]) {
        let (length, rest) = self.0.split_first_chunk().expect("the length precedes the key");
        rest.split_at(u16::from_le_bytes(*length).into())
    }

    fn row(&self) -> &[u8] {
        self.split().0
    }
}

/// Dereferences to the value.
impl Deref for CachedRow {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.split().1
    }
}

/// The row, which is the key of the lookup.
impl Borrow<[u8]> for CachedRow {
    fn borrow(&self) -> &[u8] {
        self.row()
    }
}

impl Hash for CachedRow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.row().hash(state);
    }
}

impl PartialEq for CachedRow {
    fn eq(&self, other: &Self) -> bool {
        self.row() == other.row()
    }
}

impl Eq for CachedRow {}

#[derive(Clone)]
struct RowWeigher;

impl Weighter<CachedRow, CachedRow> for RowWeigher {
    fn weight(&self, kept: &CachedRow, _: &CachedRow) -> u64 {
        (kept.0.len() + OVERHEAD_BYTES) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::{CachedRow, RowCache};

    const MIB: usize = 1 << 20;

    fn value_of(cache: &RowCache, row: &[u8]) -> Option<Vec<u8>> {
        cache.get(row).map(|kept| kept.to_vec())
    }

    fn read(cache: &RowCache, row: &[u8], value: &[u8]) {
        cache.insert(cache.ticket(row), row, value);
    }

    fn change(cache: &RowCache, row: &[u8]) {
        cache.begin_change(row);
        cache.end_change(row);
    }

    #[test]
    fn a_row_is_kept_until_it_changes() {
        let cache = RowCache::new(MIB);
        assert_eq!(value_of(&cache, b"a"), None);
        read(&cache, b"a", b"1");
        read(&cache, b"ab", b"2");
        read(&cache, b"", b"");
        assert_eq!(value_of(&cache, b"a").as_deref(), Some(&b"1"[..]));
        assert_eq!(value_of(&cache, b"ab").as_deref(), Some(&b"2"[..]));
        assert_eq!(value_of(&cache, b"").as_deref(), Some(&b""[..]));
        change(&cache, b"a");
        assert_eq!(value_of(&cache, b"a"), None);
        assert_eq!(value_of(&cache, b"ab").as_deref(), Some(&b"2"[..]));
        read(&cache, b"a", b"3");
        assert_eq!(value_of(&cache, b"a").as_deref(), Some(&b"3"[..]));
        cache.clear();
        assert_eq!(value_of(&cache, b"ab"), None);
    }

    #[test]
    fn rows_read_before_a_change_are_not_cached_after_it() {
        let cache = RowCache::new(MIB);
        let ticket = cache.ticket(b"a");
        change(&cache, b"a");
        cache.insert(ticket, b"a", b"old");
        assert_eq!(value_of(&cache, b"a"), None, "it changed meanwhile");
        cache.begin_change(b"a");
        read(&cache, b"a", b"old");
        assert_eq!(value_of(&cache, b"a"), None, "it is changing");
        let ticket = cache.ticket(b"a");
        cache.end_change(b"a");
        cache.insert(ticket, b"a", b"old");
        assert_eq!(value_of(&cache, b"a"), None, "it was changing when the store was read");
        let ticket = cache.ticket(b"a");
        cache.clear();
        cache.insert(ticket, b"a", b"old");
        assert_eq!(value_of(&cache, b"a"), None, "everything was replaced meanwhile");
        let (ticket, other) = (cache.ticket(b"a"), other_stripe(&cache, b"a"));
        cache.begin_change(&other);
        cache.insert(ticket, b"a", b"new");
        assert_eq!(
            value_of(&cache, b"a").as_deref(),
            Some(&b"new"[..]),
            "a change of another row does not affect it"
        );
    }

    fn other_stripe(cache: &RowCache, row: &[u8]) -> Vec<u8> {
        let others = (0_u8..=255).map(|byte| vec![byte; 9]);
        others.into_iter().find(|other| cache.stripe(other) != cache.stripe(row)).unwrap()
    }

    #[test]
    fn memory_stays_within_its_limit() {
        let cache = RowCache::new(MIB);
        for i in 0_u32..50_000 {
            read(&cache, &i.to_be_bytes(), &[7; 100]);
        }
        let (rows, bytes) = (cache.rows.len(), cache.bytes());
        assert!(bytes <= MIB as u64, "{bytes}");
        assert!((2_000..=4_000).contains(&rows), "{rows} rows of about 270 bytes");
        read(&cache, b"large", &vec![0; 2 * MIB]);
        assert_eq!(value_of(&cache, b"large"), None, "larger than the cache accepts");
        assert_eq!(cache.misses(), 50_001);
    }

    #[test]
    fn concurrent_reads_and_changes_leave_no_stale_row() {
        use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
        let (cache, store) = (RowCache::new(MIB), AtomicU64::new(0));
        let number = |kept: &[u8]| u64::from_le_bytes(kept.try_into().unwrap());
        let row = b"row";
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let before = store.load(SeqCst);
                        let seen = cache.get(row).map_or_else(
                            || {
                                let ticket = cache.ticket(row);
                                let value = store.load(SeqCst);
                                cache.insert(ticket, row, &value.to_le_bytes());
                                value
                            },
                            |kept| number(&kept),
                        );
                        assert!(seen >= before, "{seen} after {before}");
                    }
                });
            }
            scope.spawn(|| {
                for value in 1..=20_000 {
                    cache.begin_change(row);
                    store.store(value, SeqCst);
                    cache.end_change(row);
                }
            });
        });
        let last = cache.get(row).map(|kept| number(&kept));
        assert!(last.is_none_or(|last| last == 20_000), "{last:?}");
    }

    #[test]
    fn rows_of_every_length_come_back_whole() {
        for length in [0, 1, 255, 256, 3_000] {
            let (row, value) = (vec![1; length], vec![2; length * 2]);
            let kept = CachedRow::new(&row, &value);
            assert_eq!((kept.row(), &kept[..]), (&row[..], &value[..]));
        }
    }
}
