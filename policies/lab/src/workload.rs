//! Generated workloads: requests of training jobs and other clients, determined by profile and seed.
//!
//! Requests are generated on demand. Only the names of the keys and, for each running job, the order of one
//! epoch are in memory. Sizes can be scaled, times stretched and keys renamed without any other change,
//! which exposes a policy that works well only with the names, sizes and rates for which it was written.

mod jobs;
mod mix;
mod training;
mod zipf;

use super::naming::Naming;
use super::scene::{MergedRequests, Scene};
use jobs::{EpochPass, GeneratedDataset, TrainingReader};
pub use mlgw_api::SimulationProfile;
use mlgw_common::limits::SIMULATED_JOBS_MAX;
use mlgw_policies::stable_hash::mix;
use thiserror::Error;
pub(super) use zipf::Zipf;

/// The order in which a job reads its dataset in each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetOrder {
    /// Order of the keys.
    Sequential,
    /// A different random order in each epoch.
    Shuffled,
    /// Shards in a different random order in each epoch; objects of a shard in the order of their keys.
    ShardShuffled,
}

/// Relation between several jobs on one dataset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DatasetSharing {
    /// Each job in its own order, starting at a random time within the first epoch.
    Independent,
    /// All jobs in the same order, each trailing the previous one.
    LockStep {
        /// Distance to the previous job, as a fraction of the dataset.
        lag: f64,
    },
}

/// Parameters of a workload. `None` selects the default of the profile.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadSettings {
    /// Seed of orders, times and sizes.
    pub seed: u64,
    /// Jobs on the dataset; in `mix`, trainers of the hyperparameter search.
    pub workloads: Option<u16>,
    /// Epochs of each job; in `zipf`, requests for each object.
    pub epochs: Option<u32>,
    /// Order of each job's epochs.
    pub order: Option<DatasetOrder>,
    /// Objects of the dataset; in `mix`, of a training set, with everything else in proportion.
    pub objects: Option<u32>,
    /// Relation between several jobs on one dataset.
    pub sharing: DatasetSharing,
    /// Exponent of the Zipf distribution in `zipf`.
    pub alpha: f64,
    /// Factor for the sizes of objects and ranges.
    pub size_scale: f64,
    /// Factor for all durations.
    pub time_scale: f64,
    /// Naming of the keys.
    pub naming: Naming,
}

impl Default for WorkloadSettings {
    fn default() -> Self {
        Self {
            seed: 1,
            workloads: None,
            epochs: None,
            order: None,
            objects: None,
            sharing: DatasetSharing::Independent,
            alpha: 1.0,
            size_scale: 1.0,
            time_scale: 1.0,
            naming: Naming::Plain,
        }
    }
}

/// Error: a setting is out of its bounds.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[error("{setting} is {value}: it must be from {min} to {max}")]
pub struct OutOfBounds {
    setting: &'static str,
    value: f64,
    min: f64,
    max: f64,
}

impl WorkloadSettings {
    fn check(&self, profile: SimulationProfile) -> Result<(), OutOfBounds> {
        let lag = match self.sharing {
            DatasetSharing::Independent => 0.0,
            DatasetSharing::LockStep { lag } => lag,
        };
        let (objects, epochs) = (self.objects.unwrap_or(1), self.epochs.unwrap_or(1));
        // Profiles with this bound have no more than 20,000 objects by default.
        let product = f64::from(self.objects.unwrap_or(20_000)) * f64::from(epochs);
        // Names of all keys are in memory. Where the number of keys grows with the number of epochs, so
        // does the number of callers.
        let (epochs_max, product_max) = match profile {
            SimulationProfile::Mix => (1e3, 1e7),
            SimulationProfile::Zipf => (1e5, 2e8),
            _ => (1e6, 1e12),
        };
        let bounds = [
            ("workloads", self.workloads.map_or(1.0, f64::from), 1.0, f64::from(SIMULATED_JOBS_MAX)),
            ("epochs", f64::from(epochs), 1.0, epochs_max),
            ("objects", f64::from(objects), 1.0, 16e6_f64.min(product_max / 6.0)),
            ("objects times epochs", product, 1.0, product_max),
            ("lag", lag, 0.0, 1.0),
            ("alpha", self.alpha, 0.0, 4.0),
            ("size_scale", self.size_scale, 1e-6, 1e6),
            ("time_scale", self.time_scale, 1e-3, 1e6),
        ];
        match bounds.into_iter().find(|(_, value, min, max)| !(*min..=*max).contains(value)) {
            Some((setting, value, min, max)) => Err(OutOfBounds { setting, value, min, max }),
            None => Ok(()),
        }
    }

    /// Scales a number of bytes.
    fn bytes(&self, bytes: f64) -> u64 {
        (bytes * self.size_scale).round().max(1.0) as u64
    }

    /// Scales a number of microseconds.
    fn us(&self, us: f64) -> f64 {
        us * self.time_scale
    }

    /// Creates a random number generator for one purpose.
    fn random(&self, purpose: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(mix(self.seed.wrapping_mul(1 << 16).wrapping_add(purpose)))
    }
}

/// A workload that can be replayed.
#[derive(Debug)]
pub struct GeneratedWorkload {
    /// Tables that requests refer to.
    pub scene: Scene,
    /// The requests.
    pub requests: MergedRequests,
}

/// Generates the workload of `profile` with these settings.
///
/// # Errors
/// If a setting is out of its bounds.
pub fn workload(
    profile: SimulationProfile,
    settings: &WorkloadSettings,
) -> Result<GeneratedWorkload, OutOfBounds> {
    settings.check(profile)?;
    Ok(match profile {
        SimulationProfile::Mix => mix::workload(settings),
        SimulationProfile::Zipf => zipf::workload(settings),
        _ => training::workload(profile, settings),
    })
}

/// Objects times epochs of a workload. Its number of keys and the number of requests of each job, and with
/// them memory and time, are at most a few times as large.
#[must_use]
pub fn objects_times_epochs(profile: SimulationProfile, settings: &WorkloadSettings) -> u64 {
    let (objects, epochs) = match profile {
        SimulationProfile::Mix => mix::OBJECTS_AND_EPOCHS,
        SimulationProfile::Zipf => zipf::OBJECTS_AND_EPOCHS,
        _ => training::objects_and_epochs(profile),
    };
    u64::from(settings.objects.unwrap_or(objects)) * u64::from(settings.epochs.unwrap_or(epochs))
}

/// Base of a relative cache size, in bytes: all objects of the workload `scene`; for `mix`, one training
/// set.
#[must_use]
pub fn whole_bytes(profile: SimulationProfile, settings: &WorkloadSettings, scene: &Scene) -> u64 {
    match profile {
        SimulationProfile::Mix => mix::training_bytes(settings),
        _ => scene.keys.bytes(),
    }
}

#[cfg(test)]
mod tests;
