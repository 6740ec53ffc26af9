//! Parts of one node that stores objects, and the metrics of its tiers, disks, compressor and upstreams.
//!
//! Every node that stores objects exposes its own. Values are read from their owners at each scrape.

use super::process_figures::level;
use mlgw_cache::copies::CopiesMetrics;
use mlgw_objects::compressor::Compressor;
use mlgw_remote::upstream::PrefixOwnership;
use mlgw_segments::decisions::Decisions;
use mlgw_segments::hot::{Scrub, Upstreams};
use mlgw_segments::tiers::Tiers;
use mlgw_telemetry::exposition::{MetricFamily, MetricValue};
use mlgw_telemetry::table::{
    COMPRESSION_BYTES, COMPRESSION_CHUNKS, CORRUPT_BLOCKS, DISK_PLACES, DISK_WAITING, FLASH_LEFT,
    FLASH_WRITTEN, FREED_BYTES, MOVED_BYTES, QUARANTINED, SEGMENT_DIRS_REFUSED, SEGMENTS_HELD_BACK,
    TIER_LIMIT, TIER_OBJECTS, TIER_READ_BYTES, TIER_READS, TIER_ROOM, TIER_USED, TIER_WRITTEN_BYTES,
    UPSTREAM_BYTES, UPSTREAM_LEFTOVERS, UPSTREAM_NOT_OWNED, UPSTREAM_REQUESTS, UPSTREAM_SECONDS,
};

/// Parts of a node that stores objects.
#[derive(Clone, Copy)]
pub(super) struct StorageFigures<'a> {
    /// The tiers.
    pub(super) tiers: &'a Tiers,
    /// Upstreams by name.
    pub(super) upstreams: &'a Upstreams,
    /// Log of moves, retentions and evictions.
    pub(super) decisions: &'a Decisions,
    /// Scrub, which verifies stored data.
    pub(super) scrub: &'a Scrub,
    /// Compressor of stored objects.
    pub(super) compressor: &'a Compressor,
    /// Clean copies of remote-backed buckets; `None` on a node that serves no such buckets.
    pub(super) copies: Option<CopiesMetrics>,
}

impl StorageFigures<'_> {
    /// Returns the metrics of the tiers.
    pub(super) fn tier_families(&self, hot_capacity_bytes: u64, upstream_bytes: u64) -> Vec<MetricFamily> {
        let hot = self.tiers.hot.metrics();
        let (compaction, placing) = (self.tiers.hot.compaction(), self.tiers.hot.placing());
        let mut families = self.space_families(hot_capacity_bytes, upstream_bytes);
        families.extend([
            MetricFamily::single(CORRUPT_BLOCKS, MetricValue::Count(hot.corrupt_blocks)),
            MetricFamily::new(QUARANTINED).with(&["hot"], level(self.scrub.quarantined_blocks())),
            self.reads_family(),
            MetricFamily::new(TIER_READ_BYTES)
                .with(&["memory"], MetricValue::Count(self.tiers.memory.metrics().read_bytes))
                .with(&["hot"], MetricValue::Count(hot.read_bytes)),
            MetricFamily::new(TIER_WRITTEN_BYTES).with(&["hot"], MetricValue::Count(hot.appended_bytes)),
            self.moved_family(),
            self.compressed_bytes_family(),
            self.compressed_chunks_family(),
            self.flash_family(),
            self.flash_left_family(),
            MetricFamily::single(UPSTREAM_LEFTOVERS, level(placing.leftover_objects)),
            self.not_owned_family(),
            MetricFamily::new(FREED_BYTES).with(&["hot"], MetricValue::Count(compaction.freed_bytes)),
            MetricFamily::single(
                SEGMENT_DIRS_REFUSED,
                level(self.tiers.hot.refused_directories().len() as u64),
            ),
            MetricFamily::new(SEGMENTS_HELD_BACK).with(&["hot"], level(compaction.held_back_segments)),
        ]);
        families
    }

    /// Returns the used bytes, the limits and the room of the tiers.
    fn space_families(&self, hot_capacity_bytes: u64, upstream_bytes: u64) -> Vec<MetricFamily> {
        let (memory, hot) = (self.tiers.memory.metrics(), self.tiers.hot.metrics());
        let mut used = MetricFamily::new(TIER_USED)
            .with(&["memory"], level(memory.used_bytes))
            .with(&["hot"], level(hot.used_bytes))
            .with(&["cold"], level(hot.cold_used_bytes))
            .with(&["upstream"], level(upstream_bytes));
        let mut limit = MetricFamily::new(TIER_LIMIT)
            .with(&["memory"], level(memory.limit_bytes))
            .with(&["hot"], level(hot_capacity_bytes))
            .with(&["cold"], level(hot.cold_used_bytes + hot.cold_room_bytes));
        if let Some(CopiesMetrics { used_bytes, limit_bytes, .. }) = self.copies {
            used.push(&["copies"], level(used_bytes));
            limit.push(&["copies"], level(limit_bytes));
        }
        vec![used, limit, MetricFamily::new(TIER_ROOM).with(&["hot"], level(hot.room_bytes))]
    }

    fn reads_family(&self) -> MetricFamily {
        let (memory, hot) = (self.tiers.memory.metrics(), self.tiers.hot.metrics());
        MetricFamily::new(TIER_READS)
            .with(&["memory", "hit"], MetricValue::Count(memory.hits))
            .with(&["memory", "miss"], MetricValue::Count(memory.misses))
            .with(&["hot", "cached"], MetricValue::Count(hot.reads_inline))
            .with(&["hot", "disk"], MetricValue::Count(hot.reads_disk))
            .with(&["hot", "replica"], MetricValue::Count(hot.reads_other_replica))
            .with(&["hot", "error"], MetricValue::Count(hot.read_errors))
            .with(&["upstream", "range"], MetricValue::Count(hot.remote_reads))
    }

    /// Returns the lanes of the disks; their waits are added to those of other queues.
    pub(super) fn lane_families(&self, waits: &mut MetricFamily) -> [MetricFamily; 2] {
        let queues = self.tiers.hot.queues();
        let (hot, cold) = (queues.hot.metrics(), queues.cold.metrics());
        let mut waiting = MetricFamily::new(DISK_WAITING);
        for ((lane, of_hot, mut took), (same, of_cold, more)) in hot.lanes.into_iter().zip(cold.lanes) {
            assert_eq!(lane, same, "the queues of all disks list the lanes in one order");
            took.add(&more);
            waits.push(&[lane], MetricValue::Durations(took));
            waiting.push(&[lane], level(of_hot + of_cold));
        }
        let taken = MetricFamily::new(DISK_PLACES)
            .with(&["hot"], level(hot.slots_in_use))
            .with(&["cold"], level(cold.slots_in_use));
        [taken, waiting]
    }

    /// Returns the pieces of objects in the memory tier.
    pub(super) fn memory_objects_family(&self) -> MetricFamily {
        MetricFamily::new(TIER_OBJECTS).with(&["memory"], level(self.tiers.memory.metrics().chunks))
    }

    fn compressed_bytes_family(&self) -> MetricFamily {
        let compressed = self.compressor.metrics();
        MetricFamily::new(COMPRESSION_BYTES)
            .with(&["logical"], MetricValue::Count(compressed.logical_bytes))
            .with(&["stored"], MetricValue::Count(compressed.stored_bytes))
    }

    fn compressed_chunks_family(&self) -> MetricFamily {
        let compressed = self.compressor.metrics();
        MetricFamily::new(COMPRESSION_CHUNKS)
            .with(&["compressed"], MetricValue::Count(compressed.compressed))
            .with(&["incompressible"], MetricValue::Count(compressed.incompressible))
            .with(&["no_memory"], MetricValue::Count(compressed.no_memory))
    }

    /// Returns the bytes written to flash, by cause.
    fn flash_family(&self) -> MetricFamily {
        let mut written = MetricFamily::new(FLASH_WRITTEN);
        for (cause, bytes) in self.tiers.hot.flash().written() {
            written.push(&[cause.name()], MetricValue::Count(bytes));
        }
        written
    }

    fn flash_left_family(&self) -> MetricFamily {
        match self.tiers.hot.flash().remaining_bytes() {
            Some(bytes) => MetricFamily::single(FLASH_LEFT, MetricValue::Level(bytes)),
            None => MetricFamily::new(FLASH_LEFT),
        }
    }

    /// Returns the moved bytes, by the reasons in the decision log.
    fn moved_family(&self) -> MetricFamily {
        let mut moved = MetricFamily::new(MOVED_BYTES);
        for ((from, to, reason), bytes) in self.decisions.moved_bytes() {
            moved.push(&[from.name(), to.name(), reason.name()], MetricValue::Count(bytes));
        }
        moved
    }

    /// Returns the upstreams whose marks were compared.
    fn not_owned_family(&self) -> MetricFamily {
        let mut family = MetricFamily::new(UPSTREAM_NOT_OWNED);
        for (name, upstream) in &**self.upstreams {
            match upstream.ownership() {
                None | Some(PrefixOwnership::Unchecked { why: None }) => {}
                Some(ownership) => family.push(&[name], level(u64::from(ownership != PrefixOwnership::Own))),
            }
        }
        family
    }

    /// Returns the requests for segments in upstreams, with their durations and bytes.
    pub(super) fn upstream_families(&self) -> [MetricFamily; 3] {
        let (mut requests, mut bytes) =
            (MetricFamily::new(UPSTREAM_REQUESTS), MetricFamily::new(UPSTREAM_BYTES));
        let mut seconds = MetricFamily::new(UPSTREAM_SECONDS);
        for (upstream, metrics) in self.upstreams.iter().map(|(name, upstream)| (name, upstream.metrics())) {
            for (op, outcome, count) in metrics.requests.into_iter().filter(|(_, _, count)| *count > 0) {
                let operation = format!("segment_{}", op.name());
                requests.push(&[upstream, &operation, outcome.name()], MetricValue::Count(count));
            }
            for (op, took) in metrics.durations.into_iter().filter(|(_, took)| took.count() > 0) {
                seconds.push(&[upstream, &format!("segment_{}", op.name())], MetricValue::Durations(took));
            }
            bytes.push(&[upstream, "segment_read"], MetricValue::Count(metrics.received_bytes));
            bytes.push(&[upstream, "segment_write"], MetricValue::Count(metrics.sent_bytes));
        }
        [requests, seconds, bytes]
    }
}
