//! The first part of every start: the locked directories, the part of the node in its cluster, and the
//! options of its catalogue.
//!
//! Everything here is checked before a file of the catalogue or a segment is opened. Only the lock files and
//! `node.json` are written, each durably, so a start that ends here loses nothing.

use super::ServeError;
use super::error::io_error;
use super::files::FileBudget;
use mlgw_common::{ByteSize, Clock, Secret};
use mlgw_config::{Config, Durability, LoadedConfig, MachineSizes};
use mlgw_credentials::{RootCredentials, Sealer};
use mlgw_metadata::identity::ExpectedServer;
use mlgw_metadata::{CatalogueOptions, CheckpointOptions};
use mlgw_store::data_dir::{self, DataDir};
use mlgw_store::node_file::{DirectoryRole, NodeDescription};
use mlgw_store::{StoreLocation, checkpoint_dir};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Part of a server in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClusterPart {
    /// It has no cluster.
    Alone,
    /// It was recovered from a node of a cluster, and has not taken over. It has no cluster, and runs no
    /// write-back, rules and jobs, because its rows may be older than what the cluster did last.
    Recovered,
    /// A storage node. It serves all objects, and does what runs once per cluster while it is the duty node.
    Storage,
    /// It forwards all S3 requests, and has no objects.
    Gateway,
}

impl ClusterPart {
    /// Returns the part of the server that `node` describes.
    fn of(node: &NodeDescription) -> Self {
        match node.role {
            _ if node.recovered => Self::Recovered,
            _ if !node.is_clustered() => Self::Alone,
            DirectoryRole::Storage => Self::Storage,
            DirectoryRole::Gateway => Self::Gateway,
        }
    }

    /// True if the server has no cluster.
    pub(super) const fn is_alone(self) -> bool {
        matches!(self, Self::Alone | Self::Recovered)
    }
}

/// The locked directories and the machine of a start.
pub(super) struct StartResources {
    pub(super) dir: DataDir,
    pub(super) part: ClusterPart,
    pub(super) sealer: Sealer,
    /// Locks of segment directories outside the data directory, which has its own lock.
    pub(super) segments: Vec<File>,
    pub(super) machine: MachineSizes,
    pub(super) files: FileBudget,
    pub(super) clock: Arc<dyn Clock>,
}

impl StartResources {
    pub(super) fn take(
        loaded: &LoadedConfig,
        files: FileBudget,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ServeError> {
        let config = &loaded.config;
        let (dir, sealer) = DataDir::open(&config.data_dir, clock.now())?;
        if let Some(unfit) = mlgw_store::unfit_files(dir.path()).into_iter().next() {
            return Err(ServeError::Unfit(unfit));
        }
        let part = ClusterPart::of(dir.node());
        if !part.is_alone() {
            loaded.check_node()?;
        }
        let segments = match part {
            ClusterPart::Alone | ClusterPart::Recovered | ClusterPart::Storage => lock_segment_dirs(config)?,
            ClusterPart::Gateway => Vec::new(),
        };
        let machine = MachineSizes::detect(&config.segments_dir());
        check_memory(config, &machine)?;
        let files =
            FileBudget { connections: files.connections.min(config.connections_max(&machine)), ..files };
        if !config.catalogue.checkpoint_interval.is_zero() {
            let place = dir.location(config);
            checkpoint_dir::admit(&place, &dir.lineage())?;
        }
        Ok(Self { dir, part, sealer, segments, machine, files, clock })
    }

    /// Returns the options of the catalogue, without peers.
    pub(super) fn catalogue_options(&self, config: &Config) -> Result<CatalogueOptions, ServeError> {
        let (place, machine) = (self.dir.location(config), &self.machine);
        let mut options = CatalogueOptions::new(place.catalogue(), Arc::clone(&self.clock));
        options.node = self.dir.lineage().node;
        options.cluster_version = mlgw_node::known_cluster_version();
        options.durability = match config.durability {
            Durability::Full => mlgw_metadata::Durability::Full,
            Durability::Os => mlgw_metadata::Durability::Os,
        };
        options.log_bytes_max = config.catalogue_log_bytes_max(machine);
        let every = config.catalogue.checkpoint_interval;
        options.checkpoints =
            (!every.is_zero()).then(|| CheckpointOptions { dir: place.checkpoints.clone(), every });
        options.memtable_bytes = usize::try_from(config.memtable_bytes(machine)).unwrap_or(usize::MAX);
        options.groups = u32::try_from(config.catalogue.object_groups).unwrap_or(u32::MAX);
        options.cache_bytes = usize::try_from(config.catalogue_cache_bytes(machine)).unwrap_or(usize::MAX);
        options.expected = Some(self.expected(config, &options.dir)?);
        Ok(options)
    }

    /// Returns the server that `catalogue` must belong to, and the minimum position of its log.
    fn expected(&self, config: &Config, catalogue: &Path) -> Result<ExpectedServer, ServeError> {
        let (segments, lineage) = (StoreLocation::of(config).segments, self.dir.lineage());
        // Copies on a storage node have floors of another node's log, which do not count.
        let floor = mlgw_store::segment_floor(&segments, &lineage)
            .map_err(io_error(segments.hot().display().to_string()))?;
        ExpectedServer::read(catalogue, lineage, floor)
            .map_err(|error| io_error("the floor of the log")(std::io::Error::other(error)))
    }
}

fn lock_segment_dirs(config: &Config) -> Result<Vec<File>, ServeError> {
    let hot = config.hot.dir.as_deref().map(data_dir::lock_segment_dir).transpose()?;
    let cold = config.cold.dirs.iter().map(|dir| data_dir::lock_existing_segment_dir(dir));
    let cold = cold.collect::<Result<Vec<_>, _>>()?;
    Ok(hot.into_iter().chain(cold).collect())
}

/// Refuses a configuration that cannot work, and warns of one that may make the kernel kill the process.
fn check_memory(config: &Config, machine: &MachineSizes) -> Result<(), ServeError> {
    config.check_memory(machine)?;
    let (requests, left) = (config.memory_bytes(machine), config.left_to_requests(machine));
    if requests > left {
        let human = |bytes| ByteSize(bytes).human();
        tracing::warn!(
            requests = human(requests),
            left = human(left),
            "limits.memory_bytes exceeds the memory that the other settings leave"
        );
    }
    Ok(())
}

/// Removes catalogues that the one that was just opened replaced, and unfinished ones.
pub(super) fn remove_leftovers(dir: &DataDir, place: &StoreLocation) {
    match mlgw_store::remove_leftovers(dir, place) {
        Ok(removed) => removed.iter().for_each(|path| {
            tracing::info!(path = %path.display(), "removed a catalogue that is not in use");
        }),
        Err(error) => tracing::warn!(%error, "cannot remove a catalogue that is not in use"),
    }
}

/// Returns the root credentials of the environment. Both variables must be set, or neither.
pub(super) fn root_from_environment() -> Result<Option<RootCredentials>, ServeError> {
    let given = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    match (given("MLGW_ROOT_ACCESS_KEY_ID"), given("MLGW_ROOT_SECRET_ACCESS_KEY")) {
        (Some(access_key), Some(secret)) => {
            Ok(Some(RootCredentials { access_key, secret: Secret::new(secret) }))
        }
        (None, None) => Ok(None),
        _ => Err(ServeError::IncompleteRootCredentials),
    }
}

#[cfg(test)]
mod tests {
    use super::ClusterPart;
    use mlgw_common::{ClusterId, Incarnation, Timestamp};
    use mlgw_store::node_file::{DirectoryRole, GivenIdentity, NodeDescription};
    use std::num::NonZeroU64;

    fn joined(id: u64, role: DirectoryRole) -> NodeDescription {
        let given = GivenIdentity {
            cluster: ClusterId(5),
            incarnation: Incarnation(6),
            earlier: Vec::new(),
            id: NonZeroU64::new(id).unwrap(),
            role,
        };
        NodeDescription::joined(&given, Timestamp(0)).unwrap()
    }

    #[test]
    fn the_part_of_a_server_follows_from_its_directory() {
        let alone = NodeDescription::first(Timestamp(0)).unwrap();
        assert_eq!(ClusterPart::of(&alone), ClusterPart::Alone);
        let recovered = joined(1, DirectoryRole::Storage).recovered().unwrap();
        assert_eq!(ClusterPart::of(&recovered), ClusterPart::Recovered);
        assert_eq!(ClusterPart::of(&recovered.taken_over()), ClusterPart::Alone);
        assert_eq!(ClusterPart::of(&joined(1, DirectoryRole::Storage)), ClusterPart::Storage);
        assert_eq!(ClusterPart::of(&joined(2, DirectoryRole::Storage)), ClusterPart::Storage);
        assert_eq!(ClusterPart::of(&joined(2, DirectoryRole::Gateway)), ClusterPart::Gateway);
    }
}
