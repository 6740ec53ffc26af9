//! Residency: the bytes of datasets by tier, for people and for schedulers that place work near its data.
//!
//! A count scans the catalogue or the index of copies. It runs on request, when a job has ended, and once a
//! minute for the metrics; in between, the last count is reported with its time.

use super::census::{self, Census};
use super::{Jobs, covered_prefixes, is_user_dataset};
use mlgw_common::time::Instant;
use mlgw_common::{SegmentTier, Tier, Timestamp};
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

/// Bytes of a dataset by tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// Time of the count.
    pub counted: Timestamp,
    /// Number of objects, if known.
    pub objects: Option<u64>,
    /// Bytes of these objects, if known.
    pub bytes: Option<u64>,
    /// Bytes on this node, by tier.
    pub bytes_here: BTreeMap<ResidencyPlace, u64>,
    /// Objects with any bytes on this node.
    pub objects_here: u64,
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

/// Readiness of a dataset for local reads.
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
    /// Returns the bytes that can be read here without a request to an origin and without a slow disk.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.bytes_here
            .iter()
            .filter(|(place, _)| **place != ResidencyPlace::Cold)
            .map(|(_, bytes)| bytes)
            .sum()
    }

    /// Returns the readiness of the dataset.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        match (&self.fault, self.bytes, self.cached_bytes()) {
            (Some(_), ..) => Readiness::Broken,
            (None, Some(bytes), cached) if cached >= bytes => Readiness::Ready,
            (None, Some(_), 0) => Readiness::Cold,
            (None, Some(_), _) => Readiness::Partial,
            (None, None, _) => Readiness::Unknown,
        }
    }
}

impl Jobs {
    /// Returns the name of this node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

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
                        residency.objects_here += step.objects;
                        if step.next.is_none() || self.stop.is_cancelled() {
                            break;
                        }
                        after = step.next;
                    }
                }
                residency.bytes_here.insert(ResidencyPlace::Copies, here);
                (residency.objects, residency.bytes) =
                    (dataset.found.map(|found| found.objects), dataset.found.map(|found| found.bytes));
                let copies = self.bound.copies().map(mlgw_cache::copies::Copies::metrics).unwrap_or_default();
                residency.room_bytes = copies.limit_bytes.saturating_sub(copies.used_bytes);
                Ok(())
            }
        }
    }

    fn count_own(&self, dataset: &Dataset, bucket: &Bucket, residency: &mut Residency) -> Result<(), String> {
        let mut census = Census::default();
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
        (residency.objects, residency.bytes) = (Some(census.objects), Some(census.bytes));
        residency.objects_here = census.objects;
        let below: u64 =
            census.tiers.iter().filter(|(tier, _)| **tier != SegmentTier::Hot).map(|(_, bytes)| bytes).sum();
        residency
            .bytes_here
            .insert(ResidencyPlace::Hot, census.tiers.get(&SegmentTier::Hot).copied().unwrap_or(0));
        residency.bytes_here.insert(ResidencyPlace::Cold, below);
        residency.room_bytes = self.tiers.hot.fill().1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Readiness, Residency, ResidencyPlace};
    use std::collections::BTreeMap;

    #[test]
    fn a_dataset_is_ready_when_all_of_it_is_above_the_cold_tier() {
        let of = |bytes: Option<u64>, hot: u64, cold: u64| {
            let here = BTreeMap::from([(ResidencyPlace::Hot, hot), (ResidencyPlace::Cold, cold)]);
            Residency { bytes, bytes_here: here, ..Residency::default() }.readiness()
        };
        assert_eq!(of(Some(10), 10, 0), Readiness::Ready);
        assert_eq!(of(Some(0), 0, 0), Readiness::Ready);
        assert_eq!(of(Some(10), 4, 6), Readiness::Partial);
        assert_eq!(of(Some(10), 0, 10), Readiness::Cold);
        assert_eq!(of(None, 4, 0), Readiness::Unknown);
        let fault = Some("gone".to_owned());
        assert_eq!(Residency { fault, ..Residency::default() }.readiness(), Readiness::Broken);
    }
}
