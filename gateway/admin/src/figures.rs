//! Metrics that are counted once per cluster, by its duty node, or by a server without peers; with those of
//! the node itself they are all metrics.
//!
//! Values are read from their owners at each scrape. The contents of buckets cost one catalogue read per
//! bucket; the largest [`METRIC_BUCKETS_MAX`] buckets have their own series, the others are summed up.

use super::Admin;
use super::node_figures::NodeFigures;
use super::process_figures::level;
use super::replica_figures::copy_families;
use super::storage_figures::StorageFigures;
use mlgw_cache::copies::Copies;
use mlgw_cache::remote_backed::CacheState;
use mlgw_common::limits::METRIC_BUCKETS_MAX;
use mlgw_formats::schema::{BucketUsage, Measure};
use mlgw_metadata::ReadError;
use mlgw_telemetry::exposition::{MetricFamily, MetricValue};
use mlgw_telemetry::table::{
    BUCKET_BYTES, BUCKET_OBJECTS, COPY_ANSWERS, COPY_BYTES, DIRTY_BYTES, DIRTY_OLDEST, QUOTA_BYTES,
    QUOTA_OBJECTS, QUOTA_USED_BYTES, QUOTA_USED_OBJECTS,
};

impl Admin {
    /// Returns the parts of this node from which its metrics and its status are made.
    pub(super) fn figures(&self) -> NodeFigures<'_> {
        NodeFigures {
            node: &self.node,
            endpoint: &self.endpoint,
            is_ready: self.is_ready(),
            started: self.started,
            now: self.clock.now(),
            connections_max: self.connections_max,
            keyring: &self.keyring,
            metrics: &self.metrics,
            recent: &self.recent,
            loaded: self.loaded.load_full(),
            machine: &self.machine,
            catalogue: &self.stored.catalogue,
            cluster: self.cluster.as_ref(),
            storage: Some(self.storage_figures()),
        }
    }

    fn storage_figures(&self) -> StorageFigures<'_> {
        StorageFigures {
            tiers: &self.stored.tiers,
            upstreams: &self.upstreams,
            decisions: &self.decisions,
            scrub: &self.scrub,
            compressor: &self.compressor,
            copies: Some(self.stored.remote_backed.copies().map(Copies::metrics).unwrap_or_default()),
        }
    }

    /// Returns all metrics: those of this node, and those of the whole cluster.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub(super) fn families(&self) -> Result<Vec<MetricFamily>, ReadError> {
        let node = self.figures();
        let rows = node.segment_rows()?;
        let mut families = node.families(&rows);
        families.extend(self.remote_backed_families());
        families.extend(self.upstream_families());
        families.extend(self.usage_families(&node)?);
        families.extend(self.quota_families()?);
        families.extend(self.dataset_families());
        families.extend(self.policy_families());
        families.extend(self.engine_families());
        families.extend(self.workload_families());
        if let Some(cluster) = &self.cluster {
            families.extend(copy_families(&cluster.copies_of(&rows.records)));
        }
        Ok(families)
    }

    /// Returns the requests to upstreams: those for segments, and those to origins.
    fn upstream_families(&self) -> [MetricFamily; 3] {
        let [mut requests, mut seconds, mut bytes] = self.storage_figures().upstream_families();
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

    fn usage_families(&self, node: &NodeFigures<'_>) -> Result<[MetricFamily; 3], ReadError> {
        let usages = node.bucket_usages()?;
        let all: u64 = usages.iter().map(|(_, usage)| usage.objects).sum();
        let (mut objects, mut bytes) = (MetricFamily::new(BUCKET_OBJECTS), MetricFamily::new(BUCKET_BYTES));
        for (bucket, usage) in largest(usages) {
            objects.push(&[&bucket], level(usage.objects));
            bytes.push(&[&bucket], level(usage.bytes));
        }
        let in_tiers = self.storage_figures().memory_objects_family().with(&["hot"], level(all));
        Ok([in_tiers, objects, bytes])
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
