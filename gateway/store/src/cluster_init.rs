//! `mlgw cluster init`: a stopped server becomes the first node of a cluster.
//!
//! The catalogue is divided into a new directory beside the old one, with its first checkpoint, all synced.
//! Then `node.json` is replaced, which names the new directory: this one rename ends the operation. A power
//! loss before leaves a server without peers, and the next start, or the next `cluster init`, removes the
//! unfinished directory. A power loss after leaves the first node of a cluster, whose next start removes the
//! old directory. No byte of an object is read or written.

use crate::catalogue_dir::CatalogueName;
use crate::data_dir::DataDir;
use crate::leftovers::remove_leftovers;
use crate::location::StoreLocation;
use crate::node_file::{DataDirError, NodeDescription};
use crate::{StoreVerbError, checkpoint_dir, expected, is_unborn, scratch, unfit_files};
use mlgw_common::limits::CLUSTER_OBJECT_GROUPS;
use mlgw_common::{Clock, ClusterId, NodeId};
use mlgw_config::{Config, Durability, MachineSizes};
use mlgw_formats::store_files;
use mlgw_metadata::offline::{
    DivideError, Division, DivisionReport, ProgressCallback, make_first_checkpoint,
};
use mlgw_metadata::{Catalogue, CatalogueOptions};
use mlgw_policy_runtime::{ServerProfile, WatchedPolicyFiles, deleting_rules};
use mlgw_segments::hot::write_mark;
use std::sync::Arc;

/// Reason that a server did not become the first node of a cluster. It is the server that it was, unless the
/// last sync of `node.json` failed: then the next start finds the one or the other.
#[derive(Debug, thiserror::Error)]
pub enum ClusterInitError {
    /// The directory belongs to a node of a cluster.
    #[error("{0} belongs to node {1} of a cluster already; run `mlgw cluster status`")]
    Clustered(std::path::PathBuf, NodeId),
    /// The server was recovered and has not taken over.
    #[error("{0} was recovered: run `mlgw cluster recover --from {0} --take-over` first")]
    Recovered(std::path::PathBuf),
    /// Writes are acknowledged before they are on disk.
    #[error(
        "durability is \"os\": a node of a cluster must not forget what it acknowledged; set durability = \
         \"full\""
    )]
    Durability,
    /// A rule deletes checkpoints by the reads that one node observes.
    #[error(
        "the policy deletes objects by the reads that this server observes, but other nodes of a cluster \
         would serve reads too: remove `delete: true` from {}",
        .0.join(", ")
    )]
    DeletingRules(Vec<String>),
    /// The policy cannot be read.
    #[error("the policy: {0}")]
    Policy(String),
    /// The data directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreVerbError),
    /// The catalogue could not be divided.
    #[error("the catalogue was not divided: {0}")]
    Divide(#[from] DivideError),
}

impl From<DataDirError> for ClusterInitError {
    fn from(error: DataDirError) -> Self {
        Self::Store(error.into())
    }
}

/// Result of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitializedCluster {
    /// The cluster.
    pub cluster: ClusterId,
    /// Number of the node.
    pub node: NodeId,
    /// Directory of the catalogue.
    pub catalogue: CatalogueName,
    /// Result of the division.
    pub division: DivisionReport,
}

/// Makes the stopped server of this configuration the first node of a cluster. A directory without data is
/// created first.
///
/// # Errors
/// See [`ClusterInitError`].
pub async fn cluster_init(
    config: &Config,
    clock: &Arc<dyn Clock>,
    watch: ProgressCallback<'_>,
) -> Result<InitializedCluster, ClusterInitError> {
    if config.durability == Durability::Os {
        return Err(ClusterInitError::Durability);
    }
    refuse_member(config, DataDir::description(&config.data_dir)?.as_ref())?;
    let (mut dir, _) = DataDir::open(&config.data_dir, clock.now())?;
    // Another process may have initialized it meanwhile.
    refuse_member(config, Some(dir.node()))?;
    if let Some(unfit) = unfit_files(dir.path()).into_iter().next() {
        return Err(StoreVerbError::io(unfit.path)(unfit.source).into());
    }
    let place = dir.location(config);
    if is_unborn(&place)? {
        create_catalogue(config, &place, &dir, clock).await?;
    }
    remove_leftovers(&dir, &place)?;
    let next = StoreLocation::with_catalogue(config, place.catalogue_name().next());
    let built = build(config, &place, &next, &dir, clock, watch);
    if built.is_err() {
        // The next start may need the space, and removes an unfinished catalogue only after it has opened its
        // own. The error to report is the first one.
        let _ = remove_leftovers(&dir, &place);
    }
    let division = built?;
    store_files::sync_dir(dir.path()).map_err(StoreVerbError::io(dir.path()))?;
    let described = dir.node().clustered(next.catalogue_name()).map_err(DataDirError::from)?;
    dir.describe(described)?;
    Ok(InitializedCluster {
        cluster: dir.node().cluster,
        node: dir.node().node_id(),
        catalogue: next.catalogue_name(),
        division,
    })
}

/// Builds the divided catalogue and its first checkpoint.
fn build(
    config: &Config,
    place: &StoreLocation,
    next: &StoreLocation,
    dir: &DataDir,
    clock: &Arc<dyn Clock>,
    watch: ProgressCallback<'_>,
) -> Result<DivisionReport, ClusterInitError> {
    let division = divide(config, place, next, dir, watch)?;
    if !config.catalogue.checkpoint_interval.is_zero() {
        watch("making a checkpoint", 0, 0);
        checkpoint(place, next, dir, &**clock)?;
    }
    Ok(division)
}

fn refuse_member(config: &Config, node: Option<&NodeDescription>) -> Result<(), ClusterInitError> {
    if node.is_some_and(|node| node.recovered) {
        return Err(ClusterInitError::Recovered(config.data_dir.clone()));
    }
    match node.filter(|node| node.is_clustered()) {
        Some(node) => Err(ClusterInitError::Clustered(config.data_dir.clone(), node.node_id())),
        None => Ok(()),
    }
}

/// Creates the catalogue of a new server.
async fn create_catalogue(
    config: &Config,
    place: &StoreLocation,
    dir: &DataDir,
    clock: &Arc<dyn Clock>,
) -> Result<(), ClusterInitError> {
    let mut options = CatalogueOptions::new(place.catalogue(), Arc::clone(clock));
    options.groups = u32::try_from(config.catalogue.object_groups).unwrap_or(u32::MAX);
    options.expected = expected(place, Some(dir.node()))?;
    let opened = Catalogue::open(options).await;
    opened.map_err(|error| StoreVerbError::Catalogue(error.to_string()))?.shutdown().await;
    Ok(())
}

/// Divides the catalogue of `place` into that of `next`.
fn divide(
    config: &Config,
    place: &StoreLocation,
    next: &StoreLocation,
    dir: &DataDir,
    watch: ProgressCallback<'_>,
) -> Result<DivisionReport, ClusterInitError> {
    let expected = expected(place, Some(dir.node()))?;
    let node = dir.node().node_id();
    let division = Division::plan(&place.catalogue(), node, expected, &scratch()?, watch)?;
    let division = division.with_object_groups(CLUSTER_OBJECT_GROUPS);
    refuse_deleting_rules(config, &division)?;
    Ok(division.build(&next.catalogue(), watch)?)
}

/// Refuses a policy that deletes by observed reads: it would not see the reads of other nodes.
fn refuse_deleting_rules(config: &Config, division: &Division) -> Result<(), ClusterInitError> {
    let stored = division.catalogue().policy_files().map_err(DivideError::from)?;
    let server = ServerProfile {
        environment: config.policy.environment,
        gpu_count: (config.policy.gpu_count > 0).then_some(config.policy.gpu_count),
        memory_bytes: MachineSizes::detect(&config.segments_dir()).memory_bytes,
    };
    let (files, frameworks) = (config.policy.files.clone(), config.policy.frameworks.clone());
    let watched = WatchedPolicyFiles { files, frameworks };
    let rules = deleting_rules(&stored, &server, &watched).map_err(ClusterInitError::Policy)?;
    if rules.is_empty() { Ok(()) } else { Err(ClusterInitError::DeletingRules(rules)) }
}

/// Makes the first checkpoint of the new catalogue, in a directory of its own.
fn checkpoint(
    place: &StoreLocation,
    next: &StoreLocation,
    dir: &DataDir,
    clock: &dyn Clock,
) -> Result<(), StoreVerbError> {
    let lineage = dir.lineage();
    checkpoint_dir::admit(place, &lineage).map_err(|error| StoreVerbError::Catalogue(error.to_string()))?;
    let to = &next.checkpoints;
    // Left by an interrupted attempt; the directory of all checkpoints is this server's.
    store_files::remove_dir(to).map_err(StoreVerbError::io(to))?;
    store_files::make_dir(to).map_err(StoreVerbError::io(to))?;
    write_mark(to, &lineage.own).map_err(StoreVerbError::io(to))?;
    Ok(make_first_checkpoint(&next.catalogue(), to, clock.now())?)
}
