//! `mlgw cluster recover`: the last node of a cluster, after the loss of all others, becomes a server without
//! peers that has another cluster id. It must be stopped.
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
//!
//! The list of objects that lack bytes is durable in the directory before `node.json` is replaced.

use crate::data_dir::{CLUSTER_DIR, DataDir};
use crate::incomplete::{IncompleteObject, objects_lacking};
use crate::location::StoreLocation;
use crate::node_file::{DataDirError, DirectoryRole, NODE_FILE, NodeDescription};
use crate::timeline::replace_identity;
use crate::{StoreVerbError, expected, scratch};
use mlgw_common::{Clock, ClusterId, NodeId, SegmentId, SegmentTier, private_file, regular};
use mlgw_config::Config;
use mlgw_formats::schema::{SegmentRecord, SegmentState};
use mlgw_formats::store_files;
use mlgw_metadata::offline::{
    CatalogueRecovery, DivideError, Offline, OldRows, ProgressCallback, recover_catalogue,
};
use mlgw_metadata::store_error::StoreError;
use mlgw_segments::hot::scan;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// File in the data directory with the objects that lack bytes, one URL per line.
const INCOMPLETE_OBJECTS_FILE: &str = "incomplete-objects";

/// Reason that a node was not recovered. Unless a rename failed, it is the node that it was.
#[derive(Debug, thiserror::Error)]
pub enum ClusterRecoverError {
    /// The directory is that of a server without peers.
    #[error("{0} is no node of a cluster: start it with `mlgw serve`")]
    Alone(PathBuf),
    /// A gateway has no objects.
    #[error("{0} is a gateway, which has no objects: use the directory of a storage node")]
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
    /// Groups whose rows may lack acknowledged changes.
    pub old_groups: Vec<u32>,
    /// Objects, and uploads in progress, whose bytes this node does not have completely.
    pub incomplete: Vec<IncompleteObject>,
    /// The file with this list; it exists if the list is not empty.
    pub list: PathBuf,
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
        // The new catalogue would replace the only one.
        (true, DirectoryRole::Storage, false) if node.catalogue.is_first() => {
            let reason = "it names the catalogue of a server without peers".to_owned();
            Err(DataDirError::Damaged { path: dir.join(NODE_FILE), reason }.into())
        }
        (true, DirectoryRole::Storage, false) => Ok(node),
    }
}

/// Makes the stopped node of this configuration a server without peers. The caller has made sure that all
/// other nodes are destroyed. `old_rows` is for groups whose rows may lack acknowledged changes.
///
/// # Errors
/// See [`ClusterRecoverError`].
pub fn cluster_recover(
    config: &Config,
    old_rows: OldRows,
    clock: &dyn Clock,
    watch: ProgressCallback<'_>,
) -> Result<RecoveredServer, ClusterRecoverError> {
    let _held = DataDir::hold(&config.data_dir)?;
    let node = recoverable(&config.data_dir)?;
    let place = StoreLocation::with_catalogue(config, node.catalogue);
    let recovered = node.clone().recovered()?;
    let (old, new) =
        (place.catalogue(), StoreLocation::with_catalogue(config, recovered.catalogue).catalogue());
    assert_ne!(old, new, "the catalogue of a node of a cluster has another name");
    // Left by an interrupted attempt, or by the server that became the first node.
    store_files::remove_dir(&new).map_err(StoreVerbError::io(&new))?;
    let recovery = CatalogueRecovery {
        old: &old,
        new: &new,
        node: node.node_id(),
        expected: expected(&place, Some(&node))?,
        lineage: recovered.lineage().unwrap_or_default(),
        now: clock.now(),
        old_rows,
    };
    let made = recover_rows(&recovery, node.cluster, &place, &scratch()?, watch)?;
    store_list(&place.dir, &made)?;
    finish(&place, &node, &recovered)?;
    Ok(made)
}

/// Makes the catalogue of a server that was a node of the cluster `former`, and lists the objects that
/// lack bytes in the segments of `place`. `scratch` is an empty directory.
///
/// # Errors
/// See [`DivideError`]. An incomplete new catalogue may be left.
pub(crate) fn recover_rows(
    recovery: &CatalogueRecovery<'_>,
    former: ClusterId,
    place: &StoreLocation,
    scratch: &Path,
    watch: ProgressCallback<'_>,
) -> Result<RecoveredServer, DivideError> {
    let made = recover_catalogue(recovery, scratch, watch)?;
    watch("looking for the bytes of objects", 0, 0);
    let incomplete = incomplete_objects(place, &made.catalogue)?;
    Ok(RecoveredServer {
        cluster: recovery.lineage.own.cluster,
        former,
        entries: made.entries,
        objects: made.catalogue.facts.objects,
        old_groups: made.old_groups,
        incomplete,
        list: place.dir.join(INCOMPLETE_OBJECTS_FILE),
    })
}

/// Writes the list of objects that lack bytes into the data directory, durably. Without such objects there is
/// no list.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn store_list(dir: &Path, recovered: &RecoveredServer) -> Result<(), StoreVerbError> {
    let RecoveredServer { list, incomplete, .. } = recovered;
    write_list(dir, list, incomplete).map_err(StoreVerbError::io(list))
}

fn write_list(dir: &Path, list: &Path, incomplete: &[IncompleteObject]) -> io::Result<()> {
    if incomplete.is_empty() {
        return match std::fs::remove_file(list) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            // Of an interrupted attempt. If it returns after a power loss, it lists too many objects.
            _ => Ok(()),
        };
    }
    let lines: String = incomplete.iter().map(|object| format!("{object}\n")).collect();
    private_file::write(dir, list, lines.as_bytes())
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
    Ok(replace_identity(place, &node.lineage().unwrap_or_default().own, recovered)?)
}

/// Returns the objects that refer to bytes which no local file has. Sealed segments are not read.
fn incomplete_objects(
    place: &StoreLocation,
    catalogue: &Offline,
) -> Result<Vec<IncompleteObject>, StoreError> {
    let mut lengths: BTreeMap<u64, Option<u64>> = BTreeMap::new();
    objects_lacking(catalogue, &mut |segment, end| {
        let length = *lengths
            .entry(segment)
            .or_insert_with(|| local_length(place, catalogue.facts.segments.get(&segment)));
        length.is_some_and(|length| length < end)
    })
}

/// Length of the local file of a segment, 0 if there is none or it cannot be read; `None` for a segment at an
/// upstream. A file of an open segment may be longer than its whole records, where its first start seals it.
fn local_length(place: &StoreLocation, record: Option<&SegmentRecord>) -> Option<u64> {
    let Some(record) = record else { return Some(0) };
    if record.is_at_upstream() {
        return None;
    }
    let tier = record.tier_for(NodeId::SINGLE).unwrap_or(SegmentTier::Hot);
    let id = SegmentId(record.id);
    let opened = regular::open(&place.segments.path(id, tier));
    let length = opened.and_then(|file| match record.state() {
        SegmentState::Open => scan(file, id, record.seed(), record.marked).map(|found| found.length),
        SegmentState::Sealed => file.metadata().map(|found| found.len()),
    });
    Some(length.unwrap_or(0))
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
    use super::{
        ClusterRecoverError, INCOMPLETE_OBJECTS_FILE, IncompleteObject, cluster_recover, cluster_take_over,
        local_length, recoverable_cluster, write_list,
    };
    use crate::data_dir::DataDir;
    use crate::location::StoreLocation;
    use crate::{adopt, cluster_init};
    use mlgw_common::{Clock, SegmentId, SegmentTier, SystemClock};
    use mlgw_config::{Config, ConfigSources, LoadedConfig};
    use mlgw_formats::schema::{Replica, SegmentRecord, SegmentState};
    use mlgw_metadata::offline::{OldRows, ignore_progress};
    use mlgw_segments::hot::{read_mark, write_mark};
    use std::path::Path;
    use std::sync::Arc;

    fn config(dir: &Path) -> Config {
        Config { data_dir: dir.to_owned(), ..LoadedConfig::load(&ConfigSources::default()).unwrap().config }
    }

    #[test]
    fn an_open_segment_has_the_length_of_its_whole_records() {
        let room = tempfile::tempdir().unwrap();
        let place = StoreLocation::of(&config(room.path()));
        let record = |state: SegmentState, tier: SegmentTier| SegmentRecord {
            id: 7,
            state: state as i32,
            replicas: vec![Replica { node: 1, tier: tier.number(), ..Replica::default() }],
            ..SegmentRecord::default()
        };
        let length = |state, tier| local_length(&place, Some(&record(state, tier)));
        assert_eq!(length(SegmentState::Sealed, SegmentTier::Hot), Some(0), "no file");
        std::fs::create_dir_all(place.segments.hot()).unwrap();
        std::fs::write(place.segments.path(SegmentId(7), SegmentTier::Hot), vec![0; 8192]).unwrap();
        assert_eq!(length(SegmentState::Sealed, SegmentTier::Hot), Some(8192));
        assert_eq!(length(SegmentState::Open, SegmentTier::Hot), Some(0), "space without records");
        assert_eq!(length(SegmentState::Sealed, SegmentTier::Upstream), None);
        assert_eq!(local_length(&place, None), Some(0), "no record");
    }

    #[test]
    fn objects_without_all_bytes_are_listed_in_the_directory() {
        let room = tempfile::tempdir().unwrap();
        let list = room.path().join(INCOMPLETE_OBJECTS_FILE);
        let lacking = |key: &str| IncompleteObject { bucket: "b".to_owned(), key: key.to_owned() };
        write_list(room.path(), &list, &[lacking("k"), lacking("a\nb")]).unwrap();
        assert_eq!(std::fs::read_to_string(&list).unwrap(), "s3://b/k\ns3://b/a\\nb\n");
        write_list(room.path(), &list, &[lacking("k")]).unwrap();
        assert_eq!(std::fs::read_to_string(&list).unwrap(), "s3://b/k\n");
        write_list(room.path(), &list, &[]).unwrap();
        write_list(room.path(), &list, &[]).unwrap();
        assert!(!list.exists(), "nothing is lacking");
    }

    #[tokio::test]
    async fn a_node_becomes_a_server_of_another_cluster_and_takes_over_once() {
        let room = tempfile::tempdir().unwrap();
        let config = config(room.path());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        assert!(recoverable_cluster(&config).is_err(), "an empty directory");
        let made = cluster_init(&config, &clock, &ignore_progress).await.unwrap();
        assert_eq!(recoverable_cluster(&config).unwrap(), made.cluster);
        std::fs::create_dir(room.path().join("cluster")).unwrap();
        let recover = || cluster_recover(&config, OldRows::Refuse, &SystemClock, &ignore_progress);
        let recovered = recover().unwrap();
        assert_eq!(recovered.former, made.cluster);
        assert_ne!(recovered.cluster, made.cluster);
        assert!(recovered.incomplete.is_empty());
        let node = DataDir::description(room.path()).unwrap().unwrap();
        assert!(node.recovered && !node.is_clustered() && node.cluster == recovered.cluster);
        assert!(!room.path().join("cluster").exists(), "no certificate of the old cluster is used");
        assert!(matches!(recover(), Err(ClusterRecoverError::Recovered(_))));
        let again = cluster_init(&config, &clock, &ignore_progress).await;
        assert!(again.is_err(), "not before it has taken over");
        assert_eq!(cluster_take_over(&config).unwrap(), recovered.cluster);
        assert!(matches!(cluster_take_over(&config), Err(ClusterRecoverError::NotRecovered(_))));
        assert!(matches!(recover(), Err(ClusterRecoverError::Alone(_))));
        cluster_init(&config, &clock, &ignore_progress).await.unwrap();
    }

    #[tokio::test]
    async fn a_recovery_continues_after_a_power_cut_before_and_after_its_last_rename() {
        let room = tempfile::tempdir().unwrap();
        let config = config(room.path());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let made = cluster_init(&config, &clock, &ignore_progress).await.unwrap();
        let own = || DataDir::description(room.path()).unwrap().unwrap().lineage().unwrap().own;
        let before = own();
        // The folder was renamed, and the new catalogue is that of an earlier attempt.
        std::fs::create_dir_all(room.path().join(format!("cluster-of-{}", made.cluster))).unwrap();
        std::fs::create_dir_all(room.path().join("catalogue/group-0/state-1")).unwrap();
        cluster_recover(&config, OldRows::Refuse, &SystemClock, &ignore_progress).unwrap();
        // `node.json` was replaced, and no mark.
        let place = StoreLocation::of(&config);
        std::fs::create_dir_all(place.segments.hot()).unwrap();
        write_mark(place.segments.hot(), &before).unwrap();
        adopt(&place, place.segments.hot(), &ignore_progress).unwrap();
        assert_eq!(read_mark(place.segments.hot()).unwrap(), Some(own()));
        assert_ne!(own(), before);
    }
}
