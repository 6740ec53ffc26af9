//! RocksDB options: small, bounded memory and disk use, and little logging.
//!
//! All groups share one block cache. There are few background threads, hardly any preallocation (a catalogue
//! works on a 256 MiB file system), and an information log of at most 2 MiB.

use mlgw_common::limits::LOG_MEMTABLE_BYTES;
pub(crate) use rocksdb::Cache;
use rocksdb::{
    BlockBasedOptions, DBCompressionType, DBRecoveryMode, DataBlockIndexType, LogLevel, LruCacheOptions,
    Options,
};

/// Window of consecutive rows; a table with half a window of tombstones is compacted.
const TOMBSTONE_WINDOW: usize = 4096;

/// Options that both kinds of store share.
fn common() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_max_background_jobs(2);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options.set_log_level(LogLevel::Warn);
    options.set_stats_dump_period_sec(0);
    options.set_max_manifest_file_size(4 << 20);
    options.set_manifest_preallocation_size(64 << 10);
    options.set_recycle_log_file_num(0);
    options.set_max_open_files(512);
    options.set_skip_stats_update_on_db_open(true);
    options.set_paranoid_checks(true);
    // Each store has one writer at a time. With a single writer, RocksDB may remember the position of the
    // previous insert, which saves the search for keys in order.
    options.set_allow_concurrent_memtable_write(false);
    options
}

/// Options of a state store. Point reads are the hot path: Bloom filters of 10 bits save disk reads for
/// absent keys, and a hash index in each block finds a present key without a search.
pub(super) fn state(cache: &Cache, memtable_bytes: usize) -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(cache);
    blocks.set_block_size(8 << 10);
    blocks.set_bloom_filter(10.0, false);
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    blocks.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    blocks.set_data_block_hash_ratio(0.75);
    blocks.set_format_version(5);
    let mut options = common();
    options.set_block_based_table_factory(&blocks);
    options.set_write_buffer_size(memtable_bytes);
    options.set_max_write_buffer_number(2);
    // A PUT looks up four keys that do not exist; the memtable's own filter answers without a search of its
    // skip list. A hundredth of the memtable is about thirty bits per row.
    options.set_memtable_whole_key_filtering(true);
    options.set_memtable_prefix_bloom_ratio(0.01);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_level_compaction_dynamic_level_bytes(true);
    // A listing steps over every tombstone in its way: a table with a window that is half tombstones is
    // compacted even if nothing else triggers it.
    options.add_compact_on_deletion_collector_factory(TOMBSTONE_WINDOW, TOMBSTONE_WINDOW / 2, 0.5);
    options
}

/// Options of the log store. Point-in-time recovery: a record after a torn one was never acknowledged.
pub(super) fn log(cache: &Cache) -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(cache);
    let mut options = common();
    options.set_block_based_table_factory(&blocks);
    options.set_write_buffer_size(LOG_MEMTABLE_BYTES);
    options.set_max_write_buffer_number(2);
    options.set_max_total_wal_size(2 * LOG_MEMTABLE_BYTES as u64);
    options.set_compression_type(DBCompressionType::None);
    // Entries are purged long before compacting them would pay off; a purge compacts the rest.
    options.set_disable_auto_compactions(true);
    options.set_level_zero_slowdown_writes_trigger(i32::MAX);
    options.set_level_zero_stop_writes_trigger(i32::MAX);
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options
}

/// Minimum bytes of a cache shard: it must hold the filter of a whole table (1.4 MiB at 64 MiB of small rows)
/// and other blocks beside it. RocksDB's default of 512 KiB holds no filter: every lookup of an absent row
/// then reads one from the file.
const SHARD_BYTES_MIN: usize = 8 << 20;
/// RocksDB's own maximum of shards.
const SHARD_BITS_MAX: u32 = 6;

/// Block cache of `bytes` bytes, for all stores of a catalogue.
pub(crate) fn cache(bytes: usize) -> Cache {
    let mut options = LruCacheOptions::default();
    options.set_capacity(bytes);
    options.set_num_shard_bits(shard_bits(bytes).cast_signed());
    Cache::new_lru_cache_opts(&options)
}

fn shard_bits(bytes: usize) -> u32 {
    (bytes / SHARD_BYTES_MIN).checked_ilog2().unwrap_or(0).min(SHARD_BITS_MAX)
}

#[cfg(test)]
mod tests {
    use super::{cache, shard_bits, state};
    use rocksdb::{BottommostLevelCompaction, CompactOptions, DB, WriteBatch};

    const MIB: usize = 1 << 20;

    #[test]
    fn shards_are_few_where_the_cache_is_small() {
        assert_eq!([1, 16, 64, 1024].map(|mib| shard_bits(mib * MIB)), [0, 1, 3, 6]);
    }

    #[test]
    fn the_smallest_cache_keeps_the_filter_of_a_table() {
        const ROWS: u64 = 900_000;
        let (dir, cache) = (tempfile::tempdir().unwrap(), cache(16 * MIB));
        let db = DB::open(&state(&cache, 64 * MIB), dir.path()).unwrap();
        for batch in 0..ROWS / 1000 {
            let mut rows = WriteBatch::default();
            (0..1000).for_each(|row| rows.put((2 * (batch * 1000 + row)).to_be_bytes(), b"1"));
            db.write(rows).unwrap();
        }
        db.flush().unwrap();
        // Below the first level, where filters are not pinned.
        let mut force = CompactOptions::default();
        force.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &force);
        assert_eq!(db.get(1_000_001u64.to_be_bytes()).unwrap(), None);
        assert!(cache.get_usage() > MIB, "{} bytes are cached", cache.get_usage());
    }
}
