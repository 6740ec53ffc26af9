//! Generated workloads: what training jobs and others ask for, by profile and seed.
//!
//! Requests are made while they are asked for. What is in memory is the names of the keys and, for each job
//! that runs, the order of one epoch. Sizes can be scaled and times stretched without any other change, and
//! keys renamed: a policy that does well only on the names, sizes and rates it was written on is found out
//! that way.

mod jobs;
mod mix;
mod training;
mod zipf;

use super::naming::{Naming, mix};
use super::scene::{Requests, Scene};
use jobs::{Dataset, Job, Phase};
use std::str::FromStr;
use thiserror::Error;
pub(super) use zipf::Zipf;

/// What is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// MLPerf Storage's ResNet50: large TFRecord files, read in ranges, four at a time.
    Resnet50,
    /// MLPerf Storage's UNet3D: large files of different sizes, read whole.
    Unet3d,
    /// MLPerf Storage's CosmoFlow: files of about 2.8 MB, read whole.
    Cosmoflow,
    /// MLPerf Storage's RetinaNet: pictures of 323 kB, read whole.
    Retinanet,
    /// Training, validation, checkpoints, a scan, a model that replicas load and a hyperparameter search,
    /// beside each other.
    Mix,
    /// Several jobs on one dataset.
    KWorkloads,
    /// One job on one dataset.
    Epochs,
    /// No training: few keys often, with drifting popularity, new keys and scans.
    Zipf,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Resnet50,
        Self::Unet3d,
        Self::Cosmoflow,
        Self::Retinanet,
        Self::Mix,
        Self::KWorkloads,
        Self::Epochs,
        Self::Zipf,
    ];

    /// What it is called on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Resnet50 => "resnet50",
            Self::Unet3d => "unet3d",
            Self::Cosmoflow => "cosmoflow",
            Self::Retinanet => "retinanet",
            Self::Mix => "mix",
            Self::KWorkloads => "k-workloads",
            Self::Epochs => "epochs",
            Self::Zipf => "zipf",
        }
    }
}

/// No profile is called that.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "no profile is called `{0}`: there are resnet50, unet3d, cosmoflow, retinanet, mix, k-workloads, epochs, zipf"
)]
pub struct UnknownProfile(String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        Self::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
            .ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}

/// The order in which a job reads its dataset in each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// That of the keys.
    Sequential,
    /// Another random one each time.
    Shuffled,
    /// Shards in another random order each time, objects of a shard in that of the keys.
    ShardShuffled,
}

/// How jobs on one dataset go about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sharing {
    /// Each in its own order, beginning at a moment of its own within the first epoch.
    Independent,
    /// All in the same order, each behind the one before.
    LockStep {
        /// By this part of the dataset.
        lag: f64,
    },
}

/// What a workload is made with. What is `None` is as the profile has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Another seed gives other orders, moments and sizes.
    pub seed: u64,
    /// Jobs on the dataset; in `mix`, trainers of the hyperparameter search.
    pub workloads: Option<u16>,
    /// Epochs of each job; in `zipf`, requests for each object.
    pub epochs: Option<u32>,
    /// Order of each job's epochs.
    pub order: Option<Order>,
    /// Objects of the dataset; in `mix`, of a training set, with everything else in proportion.
    pub objects: Option<u32>,
    /// How several jobs go about one dataset.
    pub sharing: Sharing,
    /// The exponent of `zipf`.
    pub alpha: f64,
    /// Objects and ranges are so many times as large.
    pub size_scale: f64,
    /// Everything takes so many times as long.
    pub time_scale: f64,
    /// How keys are called.
    pub naming: Naming,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            workloads: None,
            epochs: None,
            order: None,
            objects: None,
            sharing: Sharing::Independent,
            alpha: 1.0,
            size_scale: 1.0,
            time_scale: 1.0,
            naming: Naming::Plain,
        }
    }
}

/// A setting is out of its bounds.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[error("{setting} is {value}: it has to be from {min} to {max}")]
pub struct OutOfBounds {
    setting: &'static str,
    value: f64,
    min: f64,
    max: f64,
}

impl Settings {
    fn check(&self, profile: Profile) -> Result<(), OutOfBounds> {
        let lag = match self.sharing {
            Sharing::Independent => 0.0,
            Sharing::LockStep { lag } => lag,
        };
        let (objects, epochs) = (self.objects.unwrap_or(1), self.epochs.unwrap_or(1));
        // No profile that is bounded by this has more objects of its own accord.
        let product = f64::from(self.objects.unwrap_or(20_000)) * f64::from(epochs);
        // Names of all keys are in memory, and where their number grows with that of epochs, so do callers.
        let (epochs_max, product_max) = match profile {
            Profile::Mix => (1e3, 1e7),
            Profile::Zipf => (1e5, 2e8),
            _ => (1e6, 1e12),
        };
        let bounds = [
            ("workloads", self.workloads.map_or(1.0, f64::from), 1.0, 255.0),
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

    /// So many bytes, scaled.
    fn bytes(&self, bytes: f64) -> u64 {
        (bytes * self.size_scale).round().max(1.0) as u64
    }

    /// So many microseconds, scaled.
    fn us(&self, us: f64) -> f64 {
        us * self.time_scale
    }

    /// Random numbers for one purpose.
    fn random(&self, purpose: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(mix(self.seed.wrapping_mul(1 << 16).wrapping_add(purpose)))
    }
}

/// A workload that can be replayed.
#[derive(Debug)]
pub struct Workload {
    /// What requests refer to.
    pub scene: Scene,
    /// The requests.
    pub requests: Requests,
}

/// The workload of `profile` with these settings.
///
/// # Errors
/// When a setting is out of its bounds.
pub fn workload(profile: Profile, settings: &Settings) -> Result<Workload, OutOfBounds> {
    settings.check(profile)?;
    Ok(match profile {
        Profile::Mix => mix::workload(settings),
        Profile::Zipf => zipf::workload(settings),
        _ => training::workload(profile, settings),
    })
}

/// Objects times epochs of a workload: by no more than a few times as many keys and requests of each job does
/// it take memory and time.
#[must_use]
pub fn objects_times_epochs(profile: Profile, settings: &Settings) -> u64 {
    let (objects, epochs) = match profile {
        Profile::Mix => mix::OBJECTS_AND_EPOCHS,
        Profile::Zipf => zipf::OBJECTS_AND_EPOCHS,
        _ => training::objects_and_epochs(profile),
    };
    u64::from(settings.objects.unwrap_or(objects)) * u64::from(settings.epochs.unwrap_or(epochs))
}

/// What a share of a cache is a share of: all objects of the workload `scene`; of a mix, one training set.
#[must_use]
pub fn whole_bytes(profile: Profile, settings: &Settings, scene: &Scene) -> u64 {
    match profile {
        Profile::Mix => mix::training_bytes(settings),
        _ => scene.keys.bytes(),
    }
}

#[cfg(test)]
mod tests;
