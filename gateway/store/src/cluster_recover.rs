//! `mlgw cluster recover`: a stopped node of a cluster, all others of which are destroyed, becomes a server
//! without peers, of another cluster id.
//!
//! The catalogue is made anew in the directory of a first one, with the whole log applied. Then the folder of
//! the node's certificate is renamed, and `node.json` is replaced: this rename ends the operation. A power
//! loss before leaves the node of the cluster, which the same command makes a server later; without its
//! certificate it does not start. A power loss after leaves marks of the earlier timeline, which a start
//! refuses by name, and which adopting the directory replaces. No byte of an object is read or written.
//!
//! A recovered server does nothing by itself that other stores or deletions depend on, because its rows may
//! be older than what the cluster did last: write-back, rules and jobs are stopped until
//! [`cluster_take_over`].

use crate::catalogue_dir::CatalogueName;
use crate::data_dir::{CLUSTER_DIR, DataDir};
use crate::location::StoreLocation;
use crate::node_file::{DataDirError, DirectoryRole, NodeDescription};
use crate::{StoreVerbError, expected, scratch};
use mlgw_common::{BucketId, Clock, ClusterId, NodeId, SegmentId, SegmentTier};
use mlgw_config::Config;
use mlgw_formats::schema::SegmentRecord;
use mlgw_formats::store_files;
use mlgw_metadata::offline::{CatalogueRecovery, DivideError, Offline, ProgressCallback, recover_catalogue};
use mlgw_metadata::store_error::StoreError;
use mlgw_segments::hot::replace_mark;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Reason that a node was not recovered. Unless a rename failed, it is the node that it was.
#[derive(Debug, thiserror::Error)]
pub enum ClusterRecoverError {
    /// The directory is that of a server without peers.
    #[error("{0} is no node of a cluster: start it with `mlgw serve`")]
    Alone(PathBuf),
    /// A gateway has no objects.
    #[error("{0} is a gateway, which stores nothing: use the directory of a storage node")]
    Gateway(PathBuf),
    /// It was recovered before.
    #[error("{0} was recovered before: start it, and end the recovery with --take-over")]
    Recovered(PathBuf),
    /// It was not recovered.
    #[error("{0} is no recovered server: there is nothing to take over")]
    NotRecovered(PathBuf),
    /// The data directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreVerbError),
    /// The catalogue was not made.
    #[error("the catalogue was not recovered: {0}")]
    Catalogue(#[from] DivideError),
}

impl From<DataDirError> for ClusterRecoverError {
    fn from(error: DataDirError) -> Self {
        Self::Store(error.into())
    }
}

/// An object of which bytes are missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IncompleteObject {
    /// Name of the bucket, or its id if it has no record.
    pub bucket: String,
    /// The key.
    pub key: String,
}

/// Result of a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredServer {
    /// The new cluster id.
    pub cluster: ClusterId,
    /// The former one.
    pub former: ClusterId,
    /// Number of log entries that the states had not applied.
    pub entries: u64,
    /// Number of objects.
    pub objects: u64,
    /// Objects, and uploads in progress, of which this node lacks bytes.
    pub incomplete: Vec<IncompleteObject>,
}

/// Returns the id of the cluster of a directory that can be recovered, for a confirmation.
///
/// # Errors
/// See [`ClusterRecoverError`].
pub fn recoverable_cluster(config: &Config) -> Result<ClusterId, ClusterRecoverError> {
    Ok(recoverable(&config.data_dir)?.cluster)
}

fn recoverable(dir: &Path) -> Result<NodeDescription, ClusterRecoverError> {
    let node = DataDir::description(dir)?.ok_or_else(|| StoreVerbError::NoDataDir(dir.to_owned()))?;
    match (node.is_clustered(), node.role, node.recovered) {
        (_, _, true) => Err(ClusterRecoverError::Recovered(dir.to_owned())),
        (false, _, false) => Err(ClusterRecoverError::Alone(dir.to_owned())),
        (true, DirectoryRole::Gateway, false) => Err(ClusterRecoverError::Gateway(dir.to_owned())),
        (true, DirectoryRole::Storage, false) => Ok(node),
    }
}

/// Makes the stopped node of this configuration a server without peers. The caller has made sure that all
/// other nodes are destroyed.
///
/// # Errors
/// See [`ClusterRecoverError`].
pub fn cluster_recover(
    config: &Config,
    clock: &dyn Clock,
    watch: ProgressCallback<'_>,
) -> Result<RecoveredServer, ClusterRecoverError> {
    let _held = DataDir::hold(&config.data_dir)?;
    let node = recoverable(&config.data_dir)?;
    let place = StoreLocation::of(config);
    let next = StoreLocation::with_catalogue(config, CatalogueName::FIRST);
    assert!(!place.catalogue_name().is_first(), "the catalogue of a node of a cluster has another name");
    let recovered = node.clone().recovered()?;
    let (old, new) = (place.catalogue(), next.catalogue());
    // Left by an interrupted attempt, or by the server that became the first node.
    store_files::remove_dir(&new).map_err(StoreVerbError::io(&new))?;
    let recovery = CatalogueRecovery {
        old: &old,
        new: &new,
        node: node.node_id(),
        expected: expected(&place, Some(&node))?,
        cluster: recovered.cluster,
        incarnation: recovered.incarnation,
        now: clock.now(),
    };
    let made = recover_catalogue(&recovery, &scratch()?, watch)?;
    watch("looking for the bytes of objects", 0, 0);
    let incomplete = incomplete_objects(&place, &made.catalogue)?;
    finish(&place, &node, &recovered)?;
    Ok(RecoveredServer {
        cluster: recovered.cluster,
        former: node.cluster,
        entries: made.entries,
        objects: made.catalogue.facts.objects,
        incomplete,
    })
}

/// Puts the certificate of the node aside, and makes the directory that of the recovered server.
fn finish(
    place: &StoreLocation,
    node: &NodeDescription,
    recovered: &NodeDescription,
) -> Result<(), ClusterRecoverError> {
    let certificate = place.dir.join(CLUSTER_DIR);
    if certificate.exists() {
        let aside = place.dir.join(format!("{CLUSTER_DIR}-of-{}", node.cluster));
        store_files::remove_dir(&aside).map_err(StoreVerbError::io(&aside))?;
        store_files::rename_dir(&certificate, &aside).map_err(StoreVerbError::io(&aside))?;
    }
    recovered.write(&place.dir)?;
    let own = |node: &NodeDescription| node.lineage().unwrap_or_default().own;
    for dir in place.segments.all().chain([place.all_checkpoints.as_path()]) {
        replace_mark(dir, &own(node), &own(recovered)).map_err(StoreVerbError::io(dir))?;
    }
    Ok(())
}

/// Returns the objects that refer to bytes which no local file has. Their checksums are not read.
fn incomplete_objects(
    place: &StoreLocation,
    catalogue: &Offline,
) -> Result<Vec<IncompleteObject>, ClusterRecoverError> {
    let mut lengths: BTreeMap<u64, Option<u64>> = BTreeMap::new();
    let mut found: BTreeSet<IncompleteObject> = BTreeSet::new();
    let read = catalogue.each_extent(&mut |of| {
        let (segment, end) = (of.extent.segment, of.extent.offset + of.extent.stored_bytes);
        let length = *lengths
            .entry(segment)
            .or_insert_with(|| local_length(place, catalogue.facts.segments.get(&segment)));
        // The head of a chunk comes before its stored bytes, so this is a lower bound of its end.
        if length.is_some_and(|length| length < end) {
            let key = String::from_utf8_lossy(of.key).into_owned();
            found.insert(IncompleteObject { bucket: bucket_name(catalogue, of.bucket), key });
        }
        Ok(())
    });
    read.map_err(|error: StoreError| DivideError::from(error))?;
    Ok(found.into_iter().collect())
}

/// Length of the local file of a segment, 0 if there is none; `None` for a segment at an upstream.
fn local_length(place: &StoreLocation, record: Option<&SegmentRecord>) -> Option<u64> {
    let Some(record) = record else { return Some(0) };
    if record.is_at_upstream() {
        return None;
    }
    let tier = record.tier_for(NodeId::SINGLE).unwrap_or(SegmentTier::Hot);
    let path = place.segments.path(SegmentId(record.id), tier);
    Some(std::fs::metadata(path).map_or(0, |found| found.len()))
}

fn bucket_name(catalogue: &Offline, bucket: BucketId) -> String {
    let record = catalogue.facts.buckets.get(&bucket.0);
    record.map_or_else(|| bucket.to_string(), |record| record.name.clone())
}

/// Ends the recovery of a stopped server: write-back, rules and jobs run from its next start on.
///
/// # Errors
/// See [`ClusterRecoverError`].
pub fn cluster_take_over(config: &Config) -> Result<ClusterId, ClusterRecoverError> {
    let dir = &config.data_dir;
    let _held = DataDir::hold(dir)?;
    let node = DataDir::description(dir)?.ok_or_else(|| StoreVerbError::NoDataDir(dir.clone()))?;
    if !node.recovered {
        return Err(ClusterRecoverError::NotRecovered(dir.clone()));
    }
    let taken = node.taken_over();
    taken.write(dir)?;
    Ok(taken.cluster)
}

#[cfg(test)]
mod tests {
    use super::{ClusterRecoverError, cluster_recover, cluster_take_over, recoverable_cluster};
    use crate::cluster_init;
    use crate::data_dir::DataDir;
    use mlgw_common::{Clock, SystemClock};
    use mlgw_config::{Config, ConfigSources, LoadedConfig};
    use std::path::Path;
    use std::sync::Arc;

    fn config(dir: &Path) -> Config {
        Config { data_dir: dir.to_owned(), ..LoadedConfig::load(&ConfigSources::default()).unwrap().config }
    }

    #[tokio::test]
    async fn a_node_becomes_a_server_of_another_cluster_and_takes_over_once() {
        let room = tempfile::tempdir().unwrap();
        let config = config(room.path());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        assert!(recoverable_cluster(&config).is_err(), "an empty directory");
        let made = cluster_init(&config, &clock, &mlgw_metadata::offline::ignore_progress).await.unwrap();
        assert_eq!(recoverable_cluster(&config).unwrap(), made.cluster);
        std::fs::create_dir(room.path().join("cluster")).unwrap();
        let recover = || cluster_recover(&config, &SystemClock, &mlgw_metadata::offline::ignore_progress);
        let recovered = recover().unwrap();
        assert_eq!(recovered.former, made.cluster);
        assert_ne!(recovered.cluster, made.cluster);
        assert!(recovered.incomplete.is_empty());
        let node = DataDir::description(room.path()).unwrap().unwrap();
        assert!(node.recovered && !node.is_clustered() && node.cluster == recovered.cluster);
        assert!(!room.path().join("cluster").exists(), "no certificate of the old cluster is used");
        assert!(matches!(recover(), Err(ClusterRecoverError::Recovered(_))));
        let again = cluster_init(&config, &clock, &mlgw_metadata::offline::ignore_progress).await;
        assert!(again.is_err(), "not before it has taken over");
        assert_eq!(cluster_take_over(&config).unwrap(), recovered.cluster);
        assert!(matches!(cluster_take_over(&config), Err(ClusterRecoverError::NotRecovered(_))));
        assert!(matches!(recover(), Err(ClusterRecoverError::Alone(_))));
        cluster_init(&config, &clock, &mlgw_metadata::offline::ignore_progress).await.unwrap();
    }
}
