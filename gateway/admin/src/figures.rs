//! Metrics of catalogue, tiers and process.
//!
//! Values are read from their owners at each scrape. The contents of buckets cost one catalogue read per
//! bucket; the largest [`METRIC_BUCKETS_MAX`] buckets have their own series, the others are summed up.

use super::Admin;
use mlgw_cache::copies::Copies;
use mlgw_cache::remote_backed::CacheState;
use mlgw_common::Timestamp;
use mlgw_common::limits::METRIC_BUCKETS_MAX;
use mlgw_formats::schema::{BucketUsage, Measure};
use mlgw_metadata::ReadError;
use mlgw_remote::upstream::PrefixOwnership;
use mlgw_telemetry::exposition::{MetricFamily, MetricValue};
use mlgw_telemetry::process::ProcessUsage;
use mlgw_telemetry::table::{
    BUCKET_BYTES, BUCKET_OBJECTS, BUILD_INFO, COMPRESSION_BYTES, COMPRESSION_CHUNKS, CONNECTIONS_LIMIT,
    COPY_ANSWERS, COPY_BYTES, CORRUPT_BLOCKS, CPU, DIRTY_BYTES, DIRTY_OLDEST, DISK_PLACES, DISK_WAITING,
    FLASH_LEFT, FLASH_WRITTEN, FREED_BYTES, GARBAGE, JOB_WAITING, MOVED_BYTES, OBJECT_CACHE,
    OBJECT_CACHE_MISSES, OPEN_FILES, OPEN_FILES_LIMIT, QUARANTINED, QUEUE_WAIT, QUOTA_BYTES, QUOTA_OBJECTS,
    QUOTA_USED_BYTES, QUOTA_USED_OBJECTS, RAFT_COMMANDS, RAFT_ENTRIES, RAFT_LOG, RAFT_LOG_LIMIT, RAFT_QUEUED,
    RAFT_SNAPSHOTS, RESIDENT, SEGMENTS_HELD_BACK, START_TIME, SYNC, SYNC_DURATION, TIER_LIMIT, TIER_OBJECTS,
    TIER_READ_BYTES, TIER_READS, TIER_ROOM, TIER_USED, TIER_WRITTEN_BYTES, UPSTREAM_BYTES,
    UPSTREAM_LEFTOVERS, UPSTREAM_NOT_OWNED, UPSTREAM_REQUESTS, UPSTREAM_SECONDS,
};

impl Admin {
    /// Returns all metrics.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub(super) fn families(&self) -> Result<Vec<MetricFamily>, ReadError> {
        let mut families = self.metrics.families();
        families.push(MetricFamily::single(CONNECTIONS_LIMIT, level(self.connections_max)));
        families.extend(self.io_families());
        families.extend(self.tier_families()?);
        families.extend(self.remote_backed_families());
        families.extend(self.upstream_families());
        families.extend(self.usage_families()?);
        families.extend(self.quota_families()?);
        families.extend(self.dataset_families());
        families.extend(self.policy_families());
        families.extend(self.engine_families());
        families.extend(self.workload_families());
        families.extend(self.catalogue_families());
        families.extend(self.replica_families()?);
        families.extend(process_families(self.started));
        Ok(families)
    }

    /// Returns syncs and queue waits of catalogue and tiers.
    fn io_families(&self) -> Vec<MetricFamily> {
        let (catalogue, hot) = (self.stored.catalogue.metrics(), self.stored.tiers.hot.metrics());
        let (mut syncs, mut durations) = (MetricFamily::new(SYNC), MetricFamily::new(SYNC_DURATION));
        for (file, of_file) in std::iter::once(("log", catalogue.log_syncs)).chain(hot.syncs) {
            syncs.push(&[file], MetricValue::Count(of_file.count()));
            durations.push(&[file], MetricValue::Durations(of_file));
        }
        let waits = MetricFamily::new(QUEUE_WAIT)
            .with(&["append"], MetricValue::Durations(hot.append_wait))
            .with(&["commit"], MetricValue::Durations(catalogue.commit_wait))
            .with(&["disk_read"], MetricValue::Durations(hot.disk_read_wait));
        let mut families = vec![syncs, durations];
        families.extend(self.lane_families(waits));
        families
    }

    fn tier_families(&self) -> Result<Vec<MetricFamily>, ReadError> {
        let upstream_bytes = self.upstream_bytes()?;
        let (memory, hot) = (self.stored.tiers.memory.metrics(), self.stored.tiers.hot.metrics());
        let (compaction, placing) = (self.stored.tiers.hot.compaction(), self.stored.tiers.hot.placing());
        let copies = self.stored.remote_backed.copies().map(Copies::metrics).unwrap_or_default();
        let capacity = self.loaded.load().config.hot_capacity_bytes(&self.machine);
        let reads = MetricFamily::new(TIER_READS)
            .with(&["memory", "hit"], MetricValue::Count(memory.hits))
            .with(&["memory", "miss"], MetricValue::Count(memory.misses))
            .with(&["hot", "cached"], MetricValue::Count(hot.reads_inline))
            .with(&["hot", "disk"], MetricValue::Count(hot.reads_disk))
            .with(&["hot", "replica"], MetricValue::Count(hot.reads_other_replica))
            .with(&["hot", "error"], MetricValue::Count(hot.read_errors))
            .with(&["upstream", "range"], MetricValue::Count(hot.remote_reads));
        Ok(vec![
            MetricFamily::single(CORRUPT_BLOCKS, MetricValue::Count(hot.corrupt_blocks)),
            MetricFamily::new(QUARANTINED).with(&["hot"], level(self.scrub.quarantined_blocks())),
            MetricFamily::new(TIER_USED)
                .with(&["memory"], level(memory.used_bytes))
                .with(&["hot"], level(hot.used_bytes))
                .with(&["cold"], level(hot.cold_used_bytes))
                .with(&["upstream"], level(upstream_bytes))
                .with(&["copies"], level(copies.used_bytes)),
            MetricFamily::new(TIER_LIMIT)
                .with(&["memory"], level(memory.limit_bytes))
                .with(&["hot"], level(capacity))
                .with(&["cold"], level(hot.cold_used_bytes + hot.cold_room_bytes))
                .with(&["copies"], level(copies.limit_bytes)),
            MetricFamily::new(TIER_ROOM).with(&["hot"], level(hot.room_bytes)),
            reads,
            MetricFamily::new(TIER_READ_BYTES)
                .with(&["memory"], MetricValue::Count(memory.read_bytes))
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
            MetricFamily::new(SEGMENTS_HELD_BACK).with(&["hot"], level(compaction.held_back_segments)),
        ])
    }

    /// Returns the lanes of the disks; their waits are added to those of other queues.
    fn lane_families(&self, mut waits: MetricFamily) -> [MetricFamily; 3] {
        let queues = self.stored.tiers.hot.queues();
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
        [waits, taken, waiting]
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
        for (cause, bytes) in self.stored.tiers.hot.flash().written() {
            written.push(&[cause.name()], MetricValue::Count(bytes));
        }
        written
    }

    fn flash_left_family(&self) -> MetricFamily {
        match self.stored.tiers.hot.flash().remaining_bytes() {
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
        for (name, upstream) in &*self.upstreams {
            match upstream.ownership() {
                None | Some(PrefixOwnership::Unchecked { why: None }) => {}
                Some(ownership) => family.push(&[name], level(u64::from(ownership != PrefixOwnership::Own))),
            }
        }
        family
    }

    /// Returns the requests to upstreams, with their durations and bytes.
    fn upstream_families(&self) -> [MetricFamily; 3] {
        let (mut requests, mut bytes) =
            (MetricFamily::new(UPSTREAM_REQUESTS), MetricFamily::new(UPSTREAM_BYTES));
        let mut seconds = MetricFamily::new(UPSTREAM_SECONDS);
        for (upstream, metrics) in self.stored.remote_backed.origin_metrics() {
            for ((operation, status), count) in metrics.requests {
                requests.push(&[upstream, operation, status], MetricValue::Count(count));
            }
            for (operation, took) in metrics.durations {
                seconds.push(&[upstream, operation], MetricValue::Durations(took));
            }
            bytes.push(&[upstream, "get"], MetricValue::Count(metrics.received_bytes));
            bytes.push(&[upstream, "put"], MetricValue::Count(metrics.sent_bytes));
        }
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

    /// Returns the metrics of remote-backed buckets.
    fn remote_backed_families(&self) -> Vec<MetricFamily> {
        let copies = self.stored.remote_backed.copies().map(Copies::metrics).unwrap_or_default();
        let mut answers = MetricFamily::new(COPY_ANSWERS);
        for (state, count) in self.stored.remote_backed.answers() {
            let result = match state {
                CacheState::Hit => "hit",
                CacheState::Shared => "shared",
                CacheState::Miss => "miss",
                CacheState::Stale => "stale",
            };
            answers.push(&[result], MetricValue::Count(count));
        }
        let kept = MetricFamily::new(COPY_BYTES)
            .with(&["kept"], MetricValue::Count(copies.kept_bytes))
            .with(&["evicted"], MetricValue::Count(copies.evicted_bytes))
            .with(&["cleaned"], MetricValue::Count(copies.moved_by_cleaning_bytes))
            .with(&["refused"], MetricValue::Count(copies.refused_bytes));
        let dirty = self.writeback.dirty();
        let oldest_ms = dirty.iter().filter_map(|dirty| dirty.oldest_ms).min();
        let oldest_ms =
            oldest_ms.map_or(0, |since| self.clock.now().as_millis().saturating_sub(since).max(0));
        vec![
            answers,
            kept,
            MetricFamily::single(DIRTY_BYTES, level(dirty.iter().map(|dirty| dirty.bytes).sum())),
            MetricFamily::single(DIRTY_OLDEST, level(u64::try_from(oldest_ms / 1000).unwrap_or(0))),
        ]
    }

    fn usage_families(&self) -> Result<Vec<MetricFamily>, ReadError> {
        let usages = self.bucket_usages()?;
        let all: u64 = usages.iter().map(|(_, usage)| usage.objects).sum();
        let (mut objects, mut bytes) = (MetricFamily::new(BUCKET_OBJECTS), MetricFamily::new(BUCKET_BYTES));
        for (bucket, usage) in largest(usages) {
            objects.push(&[&bucket], level(usage.objects));
            bytes.push(&[&bucket], level(usage.bytes));
        }
        Ok(vec![
            MetricFamily::new(TIER_OBJECTS)
                .with(&["memory"], level(self.stored.tiers.memory.metrics().chunks))
                .with(&["hot"], level(all)),
            objects,
            bytes,
            MetricFamily::single(GARBAGE, level(self.garbage_bytes()?)),
        ])
    }

    /// Returns limits and usage of the buckets with quotas.
    fn quota_families(&self) -> Result<Vec<MetricFamily>, ReadError> {
        let mut limited = Vec::new();
        for bucket in self.stored.catalogue.buckets(None, None, usize::MAX) {
            if let Some(quota) = bucket.quota {
                limited.push((self.stored.catalogue.usage(bucket.bucket_id())?, quota, bucket));
            }
        }
        limited.sort_by_key(|(usage, _, _)| std::cmp::Reverse(Measure::Bytes.amount_in(usage)));
        let mut families = Vec::new();
        for (measure, of_limit, of_used) in [
            (Measure::Bytes, QUOTA_BYTES, QUOTA_USED_BYTES),
            (Measure::Objects, QUOTA_OBJECTS, QUOTA_USED_OBJECTS),
        ] {
            let (mut limits, mut used) = (MetricFamily::new(of_limit), MetricFamily::new(of_used));
            let of_measure = limited
                .iter()
                .filter_map(|(usage, quota, bucket)| Some((usage, quota.limit(measure)?, bucket)));
            for (usage, limit, bucket) in of_measure.take(METRIC_BUCKETS_MAX) {
                limits.push(&[&bucket.name], level(limit));
                used.push(&[&bucket.name], level(measure.amount_in(usage)));
            }
            families.extend([limits, used]);
        }
        Ok(families)
    }

    fn catalogue_families(&self) -> Vec<MetricFamily> {
        let catalogue = self.stored.catalogue.metrics();
        let log_limit = self.loaded.load().config.catalogue_log_bytes_max(&self.machine);
        vec![
            MetricFamily::single(RAFT_ENTRIES, MetricValue::Count(catalogue.entries_applied)),
            MetricFamily::new(RAFT_COMMANDS)
                .with(&["applied"], MetricValue::Count(catalogue.commands_applied))
                .with(&["rejected"], MetricValue::Count(catalogue.commands_rejected)),
            MetricFamily::single(RAFT_QUEUED, level(catalogue.queued)),
            MetricFamily::single(RAFT_LOG, level(catalogue.log_bytes)),
            MetricFamily::single(RAFT_LOG_LIMIT, level(log_limit)),
            MetricFamily::single(RAFT_SNAPSHOTS, MetricValue::Count(catalogue.snapshots)),
            MetricFamily::single(OBJECT_CACHE, level(catalogue.object_cache_bytes)),
            MetricFamily::single(OBJECT_CACHE_MISSES, MetricValue::Count(catalogue.object_misses)),
            MetricFamily::new(JOB_WAITING).with(&["release"], level(catalogue.releases_waiting)),
        ]
    }

    /// Returns the usage of each bucket.
    pub(super) fn bucket_usages(&self) -> Result<Vec<(String, BucketUsage)>, ReadError> {
        let buckets = self.stored.catalogue.buckets(None, None, usize::MAX);
        let usage = |bucket: &std::sync::Arc<mlgw_formats::schema::Bucket>| {
            Ok((bucket.name.clone(), self.stored.catalogue.usage(bucket.bucket_id())?))
        };
        buckets.iter().map(usage).collect()
    }

    /// Returns the bytes of segments that nothing refers to.
    pub(super) fn garbage_bytes(&self) -> Result<u64, ReadError> {
        Ok(self
            .stored
            .tiers
            .hot
            .metrics()
            .used_bytes
            .saturating_sub(self.stored.catalogue.referenced_bytes()?))
    }
}

/// Returns the metrics of the process, which started at a time.
pub(super) fn process_families(started: Timestamp) -> Vec<MetricFamily> {
    let process = ProcessUsage::now();
    let started = started.as_millis() as f64 / 1e3;
    vec![
        MetricFamily::new(BUILD_INFO).with(&[env!("CARGO_PKG_VERSION")], MetricValue::Level(1)),
        MetricFamily::single(START_TIME, MetricValue::Seconds(started)),
        MetricFamily::single(CPU, MetricValue::Seconds(process.cpu_seconds)),
        MetricFamily::single(RESIDENT, level(process.resident_bytes)),
        MetricFamily::single(OPEN_FILES, level(process.open_files)),
        MetricFamily::single(OPEN_FILES_LIMIT, level(process.open_files_max)),
    ]
}

/// Returns a level, which is at most the largest signed number.
pub(super) fn level(value: u64) -> MetricValue {
    MetricValue::Level(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Label of the sum of all buckets without a series of their own.
const OTHER: &str = "other";

/// Returns the largest buckets by name, and the sum of all others as `other`.
fn largest(mut usages: Vec<(String, BucketUsage)>) -> Vec<(String, BucketUsage)> {
    usages.sort_by(|(a, left), (b, right)| right.bytes.cmp(&left.bytes).then_with(|| a.cmp(b)));
    let mut rest = usages.split_off(usages.len().min(METRIC_BUCKETS_MAX));
    // A bucket may be named `other`; it is added to the sum, as two series must not have the same name.
    rest.extend(usages.extract_if(.., |(name, _)| name == OTHER));
    if !rest.is_empty() {
        let mut other = BucketUsage::default();
        rest.iter().for_each(|(_, usage)| other.add(usage));
        usages.push((OTHER.to_owned(), other));
    }
    usages
}

#[cfg(test)]
mod tests {
    use super::{BucketUsage, METRIC_BUCKETS_MAX, largest};

    #[test]
    fn the_largest_buckets_have_names_and_the_rest_is_added_up() {
        let usage =
            |n: u64| (format!("b{n}"), BucketUsage { objects: 1, bytes: n, ..BucketUsage::default() });
        let shown = largest((0..300).map(usage).collect());
        assert_eq!(shown.len(), METRIC_BUCKETS_MAX + 1);
        assert_eq!((shown[0].0.as_str(), shown[199].0.as_str()), ("b299", "b100"));
        let (name, other) = &shown[200];
        assert_eq!((name.as_str(), other.objects, other.bytes), ("other", 100, (0..100).sum()));
        assert_eq!(largest(vec![usage(1)]).len(), 1);
        let named = ("other".to_owned(), BucketUsage { bytes: 1000, ..BucketUsage::default() });
        let shown = largest((0..300).map(usage).chain([named]).collect());
        let others: Vec<_> = shown.iter().filter(|(name, _)| name == "other").collect();
        assert_eq!((others.len(), others[0].1.bytes), (1, 1000 + (0..101).sum::<u64>()));
    }
}
