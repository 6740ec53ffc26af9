//! Residency: the bytes of datasets by node and tier, for people and for schedulers that place work near its
//! data.
//!
//! A count scans the catalogue or the index of copies. In a cluster it also reads the records of the
//! segments, whose replicas are on several nodes. It runs on request, when a job has ended, and once a minute
//! for the metrics; in between, the last count is reported with its time. Counts are kept in memory only:
//! after a restart or a power failure all datasets are counted again.

use super::census::{self, Census};
use super::{Jobs, covered_prefixes, is_user_dataset};
use mlgw_common::time::Instant;
use mlgw_common::{NodeId, SegmentTier, Tier, Timestamp};
use mlgw_formats::schema::{Bucket, Dataset};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Age above which a count is repeated for a request for one dataset.
const FRESH: Duration = Duration::from_secs(2);
/// Interval of the counts of all datasets.
const COUNT_EVERY: Duration = Duration::from_mins(1);
/// Pause after a count as a multiple of its duration: counting takes at most a twentieth of a core.
const REST: u32 = 20;

/// Bytes of a dataset by node and tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// Time of the count.
    pub counted: Timestamp,
    /// Number of objects, if known.
    pub objects: Option<u64>,
    /// Bytes of these objects, if known.
    pub bytes: Option<u64>,
    /// Bytes on each node, by tier. Bytes with several replicas are counted on each node.
    pub bytes_on: BTreeMap<NodeId, BTreeMap<ResidencyPlace, u64>>,
    /// Bytes that at least one node can read without a request to an origin and without a slow disk.
    pub cached_bytes: u64,
    /// Further bytes for which this node has room.
    pub room_bytes: u64,
    /// Reason why the dataset cannot be counted.
    pub fault: Option<String>,
}

/// Location of bytes of a dataset, in the order of the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResidencyPlace {
    /// Segments below the hot tier: on slower disks and in upstreams together.
    Cold,
    /// Clean copies of a remote-backed bucket.
    Copies,
    /// Segments on the local disk.
    Hot,
}

impl ResidencyPlace {
    /// All locations.
    pub const ALL: [Self; 3] = [Self::Cold, Self::Copies, Self::Hot];

    /// Returns the name of the location in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cold => Tier::Cold.name(),
            Self::Copies => "copies",
            Self::Hot => Tier::Hot.name(),
        }
    }
}

/// Readiness of a dataset for local reads. In a cluster a byte may be on any node, because each storage node
/// serves all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Readiness {
    /// All of it is here, in the fastest tier available to it.
    Ready,
    /// A part of it is here.
    Partial,
    /// No byte of it is here.
    Cold,
    /// The total is unknown: no warm or sync has visited all of it yet.
    Unknown,
    /// Its bucket, or the upstream of its bucket, is gone.
    Broken,
}

impl Residency {
    /// True if a node has all bytes of the dataset itself, in the fastest tier available to them.
    #[must_use]
    pub fn is_ready_on(&self, node: NodeId) -> bool {
        let places = self.bytes_on.get(&node).into_iter().flatten();
        let cached: u64 =
            places.filter(|(place, _)| **place != ResidencyPlace::Cold).map(|(_, bytes)| bytes).sum();
        self.fault.is_none() && self.bytes.is_some_and(|bytes| cached >= bytes)
    }

    /// Returns the readiness of the dataset.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        match (&self.fault, self.bytes, self.cached_bytes) {
            (Some(_), ..) => Readiness::Broken,
            (None, Some(bytes), cached) if cached >= bytes => Readiness::Ready,
            (None, Some(_), 0) => Readiness::Cold,
            (None, Some(_), _) => Readiness::Partial,
            (None, None, _) => Readiness::Unknown,
        }
    }

    /// Adds the census of a local bucket, which the node `own` has taken. That node is always listed.
    fn add_census(&mut self, census: Census, own: NodeId) {
        (self.objects, self.bytes) = (Some(census.objects), Some(census.bytes));
        let hot_here = census.tiers.get(&SegmentTier::Hot).copied().unwrap_or(0);
        let (tiers_on, cached_bytes) = match census.nodes {
            Some(nodes) => (nodes.tiers, nodes.hot_bytes),
            None => (BTreeMap::from([(own, census.tiers)]), hot_here),
        };
        self.cached_bytes = cached_bytes;
        self.bytes_on = tiers_on.iter().map(|(node, tiers)| (*node, places_of(tiers))).collect();
        self.bytes_on.entry(own).or_insert_with(|| places_of(&BTreeMap::new()));
    }
}

/// Returns bytes of a local bucket by location. A location without bytes is listed with 0, so that its metric
/// does not end when they are moved.
fn places_of(tiers: &BTreeMap<SegmentTier, u64>) -> BTreeMap<ResidencyPlace, u64> {
    let mut places = BTreeMap::from([(ResidencyPlace::Cold, 0), (ResidencyPlace::Hot, 0)]);
    for (tier, bytes) in tiers {
        let place = match tier {
            SegmentTier::Hot => ResidencyPlace::Hot,
            SegmentTier::Cold | SegmentTier::Upstream => ResidencyPlace::Cold,
        };
        *places.entry(place).or_default() += bytes;
    }
    places
}

impl Jobs {
    /// Returns the residency of a dataset, counted now unless the last count is fresh.
    pub async fn residency(self: &Arc<Self>, dataset: &Arc<Dataset>) -> Arc<Residency> {
        let known = self.residency.lock().get(&dataset.name).cloned();
        let now = self.clock.now().as_millis();
        let is_fresh = |known: &Arc<Residency>| now - known.counted.as_millis() < FRESH.as_millis() as i64;
        if let Some(known) = known.filter(|known| is_fresh(known) && dataset.active_job == 0) {
            return known;
        }
        let (jobs, dataset) = (Arc::clone(self), Arc::clone(dataset));
        let counted = tokio::task::spawn_blocking(move || jobs.count(&dataset)).await;
        counted.unwrap_or_else(|error| {
            Arc::new(Residency { fault: Some(error.to_string()), ..Residency::default() })
        })
    }

    /// Returns the last counts of datasets, by name.
    #[must_use]
    pub fn residencies(&self) -> BTreeMap<String, Arc<Residency>> {
        self.residency.lock().clone()
    }

    /// Starts a count after the end of a job, so that its effect is visible.
    pub(super) fn count_soon(self: &Arc<Self>, dataset: &str) {
        let Some(dataset) = self.catalogue.dataset(dataset).filter(|dataset| is_user_dataset(dataset)) else {
            return;
        };
        let jobs = Arc::clone(self);
        tokio::task::spawn_blocking(move || jobs.count(&dataset));
    }

    /// Counts all datasets periodically while the server runs.
    pub async fn count_periodically(self: Arc<Self>) {
        loop {
            let (mut datasets, begun) = (self.catalogue.datasets(), Instant::now());
            datasets.retain(|dataset| is_user_dataset(dataset));
            let names: Vec<&str> = datasets.iter().map(|dataset| dataset.name.as_str()).collect();
            self.residency.lock().retain(|name, _| names.contains(&name.as_str()));
            for dataset in datasets {
                let jobs = Arc::clone(&self);
                if tokio::task::spawn_blocking(move || jobs.count(&dataset)).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = mlgw_common::time::sleep(COUNT_EVERY.max(begun.elapsed() * REST)) => {}
            }
        }
    }

    /// Counts a dataset. Blocks the calling thread.
    fn count(&self, dataset: &Dataset) -> Arc<Residency> {
        let mut residency = Residency { counted: self.clock.now(), ..Residency::default() };
        if let Err(fault) = self.count_into(dataset, &mut residency) {
            residency.fault = Some(fault);
        }
        let counted = Arc::new(residency);
        self.residency.lock().insert(dataset.name.clone(), Arc::clone(&counted));
        counted
    }

    fn count_into(&self, dataset: &Dataset, residency: &mut Residency) -> Result<(), String> {
        let name = &dataset.bucket;
        let bucket = self.catalogue.bucket(name);
        let bucket = bucket.ok_or_else(|| format!("the bucket {name:?} does not exist"))?;
        match &bucket.binding {
            None => self.count_own(dataset, &bucket, residency),
            Some(binding) => {
                let bound = self.bound.bucket(&bucket, binding);
                let bound =
                    bound.ok_or_else(|| format!("the upstream {:?} is not configured", binding.upstream))?;
                let mut here = 0;
                for prefix in covered_prefixes(dataset, "") {
                    let mut after = None;
                    loop {
                        let step = bound.count_copies(&prefix, after.as_ref());
                        here += step.bytes;
                        if step.next.is_none() || self.stop.is_cancelled() {
                            break;
                        }
                        after = step.next;
                    }
                }
                // Clean copies are on the node that runs jobs.
                let copies = BTreeMap::from([(ResidencyPlace::Copies, here)]);
                residency.bytes_on.insert(self.catalogue.node(), copies);
                residency.cached_bytes = here;
                (residency.objects, residency.bytes) =
                    (dataset.found.map(|found| found.objects), dataset.found.map(|found| found.bytes));
                let copies = self.bound.copies().map(mlgw_cache::copies::Copies::metrics).unwrap_or_default();
                residency.room_bytes = copies.limit_bytes.saturating_sub(copies.used_bytes);
                Ok(())
            }
        }
    }

    fn count_own(&self, dataset: &Dataset, bucket: &Bucket, residency: &mut Residency) -> Result<(), String> {
        // Without peers the summaries in memory have all tiers, and no record is read.
        let mut census = if self.catalogue.is_clustered() { Census::with_nodes() } else { Census::default() };
        for prefix in covered_prefixes(dataset, "") {
            let mut after = None;
            loop {
                let next = census::step(&self.catalogue, bucket, &prefix, after.as_ref(), &mut census);
                after = next.map_err(|error| error.to_string())?;
                if after.is_none() || self.stop.is_cancelled() {
                    break;
                }
            }
        }
        residency.add_census(census, self.catalogue.node());
        residency.room_bytes = self.tiers.hot.fill().1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Census, Readiness, Residency, ResidencyPlace};
    use mlgw_common::{NodeId, SegmentId, SegmentTier};
    use mlgw_formats::schema::{Replica, SegmentRecord};
    use std::collections::BTreeMap;

    const OWN: NodeId = NodeId(1);

    /// Returns a census by node. Each entry has the bytes in a segment, and its replicas.
    fn census_of(segments: &[(u64, &[(u64, SegmentTier)])]) -> Census {
        let bytes = segments.iter().map(|(bytes, _)| bytes).sum();
        let mut census = Census { objects: 1, bytes, ..Census::with_nodes() };
        let nodes = census.nodes.as_mut().unwrap();
        for (id, (bytes, replicas)) in segments.iter().enumerate() {
            let replica = |(node, tier): &(u64, SegmentTier)| Replica {
                node: *node,
                tier: tier.number(),
                ..Replica::default()
            };
            let replicas = replicas.iter().map(replica).collect();
            let record = SegmentRecord { replicas, ..SegmentRecord::default() };
            nodes.add(SegmentId(id as u64), *bytes, || Ok(Some(record))).unwrap();
        }
        census
    }

    fn counted(census: Census) -> Residency {
        let mut residency = Residency::default();
        residency.add_census(census, OWN);
        residency
    }

    /// Returns the nodes with their bytes in the hot and in the cold tier.
    fn bytes_by_node(residency: &Residency) -> Vec<(u64, u64, u64)> {
        let bytes_on = residency.bytes_on.iter();
        bytes_on.map(|(node, of)| (node.get(), of[&ResidencyPlace::Hot], of[&ResidencyPlace::Cold])).collect()
    }

    #[test]
    fn a_dataset_is_ready_when_all_of_it_is_above_the_cold_tier() {
        let of = |bytes: Option<u64>, hot: u64, cold: u64| {
            let tiers = BTreeMap::from([(SegmentTier::Hot, hot), (SegmentTier::Cold, cold)]);
            let residency = counted(Census { tiers, ..Census::default() });
            Residency { bytes, ..residency }.readiness()
        };
        assert_eq!(of(Some(10), 10, 0), Readiness::Ready);
        assert_eq!(of(Some(0), 0, 0), Readiness::Ready);
        assert_eq!(of(Some(10), 4, 6), Readiness::Partial);
        assert_eq!(of(Some(10), 0, 10), Readiness::Cold);
        assert_eq!(of(None, 4, 0), Readiness::Unknown);
        let fault = Some("gone".to_owned());
        assert_eq!(Residency { fault, ..Residency::default() }.readiness(), Readiness::Broken);
    }

    #[test]
    fn a_server_without_peers_has_all_bytes_itself() {
        let tiers =
            [(SegmentTier::Hot, 5), (SegmentTier::Cold, 3), (SegmentTier::Upstream, 2)].into_iter().collect();
        let residency = counted(Census { objects: 4, bytes: 10, tiers, ..Census::default() });
        assert_eq!(bytes_by_node(&residency), [(1, 5, 5)]);
        assert_eq!((residency.objects, residency.bytes, residency.cached_bytes), (Some(4), Some(10), 5));
        assert_eq!(bytes_by_node(&counted(Census::default())), [(1, 0, 0)], "an empty dataset");
    }

    #[test]
    fn a_dataset_is_ready_when_each_byte_is_in_the_hot_tier_of_any_node() {
        use SegmentTier::{Cold, Hot, Upstream};
        let spread = counted(census_of(&[(6, &[(1, Cold), (2, Hot)]), (4, &[(1, Hot), (3, Hot)])]));
        assert_eq!(bytes_by_node(&spread), [(1, 4, 6), (2, 6, 0), (3, 4, 0)]);
        assert_eq!((spread.readiness(), spread.cached_bytes), (Readiness::Ready, 10));
        assert_eq!([1, 2, 3, 4].map(|node| spread.is_ready_on(NodeId(node))), [false; 4]);

        let whole = counted(census_of(&[(6, &[(1, Hot), (2, Hot)]), (4, &[(1, Upstream), (2, Hot)])]));
        assert_eq!([1, 2].map(|node| whole.is_ready_on(NodeId(node))), [false, true]);
        let partial = counted(census_of(&[(6, &[(1, Hot), (2, Hot)]), (4, &[(1, Cold), (2, Cold)])]));
        assert_eq!((partial.readiness(), partial.cached_bytes), (Readiness::Partial, 6));
    }

    #[test]
    fn the_counting_node_is_listed_also_without_a_replica() {
        let elsewhere = counted(census_of(&[(6, &[(2, SegmentTier::Hot)])]));
        assert_eq!(bytes_by_node(&elsewhere), [(1, 0, 0), (2, 6, 0)]);
        assert_eq!(elsewhere.readiness(), Readiness::Ready);
    }

    #[test]
    fn no_node_is_ready_for_a_dataset_that_cannot_be_counted() {
        let here = BTreeMap::from([(ResidencyPlace::Copies, 10)]);
        let bytes_on = BTreeMap::from([(OWN, here)]);
        let known = Residency { bytes: Some(10), bytes_on, ..Residency::default() };
        assert!(known.is_ready_on(OWN), "clean copies count");
        assert!(!Residency { bytes: None, ..known.clone() }.is_ready_on(OWN));
        assert!(!Residency { fault: Some("gone".to_owned()), ..known }.is_ready_on(OWN));
    }
}
