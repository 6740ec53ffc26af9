//! The data directory of a new node of a cluster, with the identity that the cluster gave it.
//!
//! [`JoiningDir`] locks and checks the directory before the cluster is asked, so that no token is used up for
//! a directory that is refused. The cluster's key is written first and `node.json` last, each complete and
//! synced. So after a power loss the directory is without data, or is that of the node. The folder `cluster`
//! is no data: an interrupted join leaves its key there. The same node may join again at any time.

use crate::catalogue_dir::CatalogueName;
use crate::data_dir::create_locked;
use crate::location::StoreLocation;
use crate::node_file::{DataDirError, GivenIdentity, NodeDescription};
use crate::restore_mark;
use mlgw_common::{NodeId, Timestamp};
use mlgw_credentials::{Sealer, SealerError};
use mlgw_segments::hot::{read_mark, segment_of_file_name};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Reason that a directory does not become that of a new node. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterJoinError {
    /// The directory belongs to another node, or to a server without peers.
    #[error("{dir} belongs to {owner} already: use an empty directory")]
    Taken {
        /// The directory.
        dir: PathBuf,
        /// Its owner.
        owner: String,
    },
    /// There is data in it.
    #[error("{0} is not empty: a node joins with empty directories, because its data comes from the cluster")]
    NotEmpty(PathBuf),
    /// The cluster's key cannot be used.
    #[error("the key of the cluster: {0}")]
    Key(#[from] SealerError),
    /// The directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
}

/// Data directory of a node that joins, locked until it is dropped: no server and no other join uses it.
#[derive(Debug)]
pub struct JoiningDir<'a> {
    place: &'a StoreLocation,
    _lock: File,
}

impl<'a> JoiningDir<'a> {
    /// Locks the directory of `place`, which is created if it does not exist.
    ///
    /// # Errors
    /// See [`ClusterJoinError`].
    pub fn lock(place: &'a StoreLocation) -> Result<Self, ClusterJoinError> {
        Ok(Self { place, _lock: create_locked(&place.dir)? })
    }

    /// Returns the node of a cluster to which the directory belongs, or `None` if a new node may join with
    /// it. Changes nothing.
    ///
    /// # Errors
    /// See [`ClusterJoinError`].
    pub fn owner(&self) -> Result<Option<NodeDescription>, ClusterJoinError> {
        let dir = &self.place.dir;
        restore_mark::require_ended(dir)?;
        match NodeDescription::read(dir)? {
            Some(node) if node.is_clustered() => return Ok(Some(node)),
            Some(node) => return Err(taken(dir, &node)),
            None => {}
        }
        let found = data_in(self.place).map_err(|source| DataDirError::Io { path: dir.clone(), source })?;
        found.map_or(Ok(None), |found| Err(ClusterJoinError::NotEmpty(found)))
    }

    /// Makes the directory that of a node with this identity, with the text of the cluster's key file. A
    /// directory of the same node is accepted as it is.
    ///
    /// # Errors
    /// See [`ClusterJoinError`].
    pub fn describe(
        &self,
        given: &GivenIdentity,
        key: &str,
        now: Timestamp,
    ) -> Result<NodeDescription, ClusterJoinError> {
        let dir = &self.place.dir;
        if let Some(node) = self.owner()? {
            return same_node(dir, node, given);
        }
        Sealer::install_key(dir, key)?;
        let node = NodeDescription::joined(given, now)?;
        node.write(dir)?;
        Ok(node)
    }
}

/// Returns the description of a directory that has joined before.
fn same_node(
    dir: &Path,
    node: NodeDescription,
    given: &GivenIdentity,
) -> Result<NodeDescription, ClusterJoinError> {
    let is_same = (node.cluster, node.id, node.role) == (given.cluster, Some(given.id), given.role);
    if is_same { Ok(node) } else { Err(taken(dir, &node)) }
}

fn taken(dir: &Path, node: &NodeDescription) -> ClusterJoinError {
    let owner = match node.id {
        Some(id) => format!("node {} of cluster {}", NodeId(id.get()), node.cluster),
        None => "a server without peers".to_owned(),
    };
    ClusterJoinError::Taken { dir: dir.to_owned(), owner }
}

/// Returns the first path with data of a server.
fn data_in(place: &StoreLocation) -> io::Result<Option<PathBuf>> {
    if let Some(name) = CatalogueName::list(&place.dir)?.first() {
        return Ok(Some(place.dir.join(name.to_string())));
    }
    for dir in place.segments.all() {
        let has_mark = !matches!(read_mark(dir), Ok(None));
        if has_mark || has_entry(dir, |name| segment_of_file_name(name).is_some())? {
            return Ok(Some(dir.to_owned()));
        }
    }
    let checkpoints = &place.all_checkpoints;
    let has_checkpoint = has_entry(checkpoints, |name| name.starts_with("checkpoint-"))?;
    Ok(has_checkpoint.then(|| checkpoints.clone()))
}

fn has_entry(dir: &Path, is_data: impl Fn(&str) -> bool) -> io::Result<bool> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    for entry in entries {
        if is_data(&entry?.file_name().to_string_lossy()) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::{ClusterJoinError, JoiningDir};
    use crate::data_dir::DataDir;
    use crate::location::StoreLocation;
    use crate::node_file::{DirectoryRole, GivenIdentity, NODE_FILE, NodeDescription};
    use mlgw_common::{ClusterId, Incarnation, NodeId, Timestamp};
    use mlgw_config::{Config, ConfigSources, LoadedConfig};
    use mlgw_credentials::Sealer;
    use std::num::NonZeroU64;
    use std::path::Path;

    fn place(dir: &Path) -> StoreLocation {
        let config = LoadedConfig::load(&ConfigSources::default()).unwrap().config;
        StoreLocation::of(&Config { data_dir: dir.to_owned(), ..config })
    }

    fn given(id: u64) -> GivenIdentity {
        GivenIdentity {
            cluster: ClusterId(5),
            incarnation: Incarnation(6),
            earlier: vec![Incarnation(4)],
            id: NonZeroU64::new(id).unwrap(),
            role: DirectoryRole::Storage,
        }
    }

    fn cluster_join(
        place: &StoreLocation,
        given: &GivenIdentity,
        key: &str,
        now: Timestamp,
    ) -> Result<NodeDescription, ClusterJoinError> {
        JoiningDir::lock(place)?.describe(given, key, now)
    }

    fn key() -> String {
        let dir = tempfile::tempdir().unwrap();
        Sealer::open_or_create(dir.path()).unwrap();
        Sealer::export_key(dir.path()).unwrap().to_string()
    }

    #[test]
    fn a_directory_that_joined_is_that_of_its_node_and_may_join_again() {
        let room = tempfile::tempdir().unwrap();
        let (dir, key) = (room.path().join("new"), key());
        let joined = cluster_join(&place(&dir), &given(3), &key, Timestamp(0)).unwrap();
        assert_eq!(cluster_join(&place(&dir), &given(3), &key, Timestamp(1)).unwrap(), joined);
        let other = GivenIdentity { cluster: ClusterId(9), ..given(3) };
        let gateway = GivenIdentity { role: DirectoryRole::Gateway, ..given(3) };
        for other in [given(4), other, gateway] {
            let refused = cluster_join(&place(&dir), &other, &key, Timestamp(1)).unwrap_err();
            assert!(matches!(refused, ClusterJoinError::Taken { .. }), "{refused}");
        }
        assert_eq!(*Sealer::export_key(&dir).unwrap(), key);
        let (open, _) = DataDir::open(&dir, Timestamp(2)).unwrap();
        assert_eq!(open.lineage().node, NodeId(3));
        assert_eq!(open.lineage().earlier, [Incarnation(4)]);
        assert_eq!(open.node().start.unwrap().counter, 1);
        let running = cluster_join(&place(&dir), &given(3), &key, Timestamp(3));
        assert!(matches!(running, Err(ClusterJoinError::DataDir(_))), "a server uses it");
    }

    #[test]
    fn an_interrupted_join_is_repeated_and_a_directory_with_data_is_refused() {
        let room = tempfile::tempdir().unwrap();
        let (dir, key) = (room.path(), key());
        cluster_join(&place(dir), &given(3), &key, Timestamp(0)).unwrap();
        std::fs::remove_file(dir.join(NODE_FILE)).unwrap();
        cluster_join(&place(dir), &given(3), &key, Timestamp(0)).unwrap();
        std::fs::remove_file(dir.join(NODE_FILE)).unwrap();
        for data in [
            "catalogue/log",
            "catalogue-1",
            "segments/0000000000000001.seg",
            "segments/owner",
            "checkpoints/checkpoint-1",
        ] {
            std::fs::create_dir_all(dir.join(data)).unwrap();
            let refused = cluster_join(&place(dir), &given(3), &key, Timestamp(0));
            assert!(matches!(refused, Err(ClusterJoinError::NotEmpty(_))), "{data}: {refused:?}");
            assert!(!dir.join(NODE_FILE).exists());
            let top = data.split('/').next().unwrap();
            std::fs::remove_dir_all(dir.join(top)).unwrap();
        }
        cluster_join(&place(dir), &given(3), &key, Timestamp(0)).unwrap();
        let alone = tempfile::tempdir().unwrap();
        drop(DataDir::open(alone.path(), Timestamp(0)).unwrap());
        let refused = cluster_join(&place(alone.path()), &given(3), &key, Timestamp(0)).unwrap_err();
        assert!(refused.to_string().contains("a server without peers"), "{refused}");
        assert!(JoiningDir::lock(&place(alone.path())).unwrap().owner().is_err());
        let wrong = tempfile::tempdir().unwrap();
        assert!(cluster_join(&place(wrong.path()), &given(3), "a key", Timestamp(0)).is_err());
        assert!(!wrong.path().join(NODE_FILE).exists());
    }

    #[test]
    fn a_directory_is_checked_and_locked_before_the_cluster_is_asked() {
        let room = tempfile::tempdir().unwrap();
        let (place, key) = (place(&room.path().join("new")), key());
        let joining = JoiningDir::lock(&place).unwrap();
        let second = JoiningDir::lock(&place);
        assert!(matches!(second, Err(ClusterJoinError::DataDir(_))), "another join uses it");
        assert_eq!(joining.owner().unwrap(), None);
        std::fs::create_dir(place.dir.join("cluster")).unwrap();
        std::fs::write(place.dir.join("cluster/node.key"), "key of an interrupted join").unwrap();
        assert_eq!(joining.owner().unwrap(), None, "that folder is no data");
        let node = joining.describe(&given(3), &key, Timestamp(0)).unwrap();
        assert_eq!(joining.owner().unwrap(), Some(node));
        drop(joining);
        std::fs::remove_file(place.dir.join(NODE_FILE)).unwrap();
        std::fs::create_dir(place.dir.join("catalogue")).unwrap();
        let refused = JoiningDir::lock(&place).unwrap().owner().unwrap_err();
        assert!(matches!(refused, ClusterJoinError::NotEmpty(_)), "{refused}");
    }
}
