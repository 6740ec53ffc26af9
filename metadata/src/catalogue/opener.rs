//! Opening of this node's group members: at the start, and when a leader adds this node to a group.

use super::options::FatalHandler;
use super::resident::Resident;
use crate::raft::group::{Group, GroupParts, gathered_config};
use crate::raft::heartbeats::Heartbeats;
use crate::raft::machine::Watcher;
use crate::raft::peers::MemberPeers;
use crate::raft::row_digests::DigestPace;
use crate::store::group_dirs::group_dir;
use crate::store::log::LogStore;
use crate::store::options::Cache;
use crate::store::state::StateStore;
use crate::store_error::StoreError;
use std::path::PathBuf;
use std::sync::Arc;

/// Parts that all members of this node share.
pub(super) struct GroupOpener {
    /// The catalogue's directory.
    pub(super) dir: PathBuf,
    pub(super) cache: Cache,
    /// Bytes of the memtables of each group.
    pub(super) memtable_bytes: usize,
    pub(super) node: u64,
    pub(super) log: LogStore,
    pub(super) resident: Arc<Resident>,
    pub(super) cluster_version: u32,
    pub(super) fatal: FatalHandler,
    /// The other nodes; `None` for a server without peers.
    pub(super) peers: Option<Arc<dyn MemberPeers>>,
    /// The heartbeats to them.
    pub(super) heartbeats: Option<Arc<Heartbeats>>,
    /// Rate at which the rows of all groups are digested.
    pub(super) digest_pace: Arc<DigestPace>,
    /// Serializes the creation of members.
    pub(super) creating: tokio::sync::Mutex<()>,
}

impl GroupOpener {
    /// Opens the member of a group, and applies its log.
    pub(super) async fn open(&self, id: u32, store: StateStore) -> Result<Group, StoreError> {
        let parts = GroupParts {
            id,
            node: self.node,
            log: self.log.clone(),
            store,
            watcher: Arc::clone(&self.resident) as Arc<dyn Watcher>,
            cluster_version: self.cluster_version,
            fatal: Arc::clone(&self.fatal),
            peers: self.peers.clone(),
            heartbeats: self.heartbeats.clone(),
            digest_pace: Arc::clone(&self.digest_pace),
        };
        match &self.peers {
            None => Group::open(parts).await,
            Some(_) => Group::open_member(parts, gathered_config()).await,
        }
    }

    /// Creates an empty member of a group, which the leader fills.
    pub(super) async fn create(&self, id: u32) -> Result<Group, StoreError> {
        let store = StateStore::open(&group_dir(&self.dir, id), &self.cache, self.memtable_bytes)?;
        self.open(id, store).await
    }
}
