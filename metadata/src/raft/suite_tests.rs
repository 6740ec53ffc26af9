//! openraft's conformance suite for storage, on our log and state stores.

use super::group::GroupParts;
use super::log::GroupLog;
use super::machine::{GroupStateMachine, Watcher};
use crate::durability::Durability;
use crate::store::log::LogStore;
use crate::store::options;
use crate::store::state::StateStore;
use crate::store_error::StoreError;
use crate::view::{FreedChunk, RowChanges, RowReader};
use mlgw_formats::cluster_version::CLUSTER_VERSION;
use mlgw_formats::log_types::RaftTypes;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Watcher that ignores all changes, in a cluster of this version.
pub(crate) struct IgnoringWatcher(pub(crate) u32);

impl Watcher for IgnoringWatcher {
    fn cluster_version(&self) -> u32 {
        self.0
    }

    fn changing(&self, _: &RowChanges) {}

    fn changed(&self, _group: u32, _changes: &RowChanges, _freed: &[FreedChunk]) -> Result<(), StoreError> {
        Ok(())
    }

    fn replaced(&self, _group: u32, _rows: &dyn RowReader) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Parts to open a group in `dir` with.
pub(crate) fn parts(dir: &Path, node: u64) -> GroupParts {
    parts_with(dir, node, Durability::Full)
}

/// The same. A disk may be slower than an election, so tests with elections do not wait for it.
pub(crate) fn parts_with(dir: &Path, node: u64, durability: Durability) -> GroupParts {
    let cache = options::cache(1 << 20);
    GroupParts {
        id: 0,
        node,
        log: LogStore::open(&dir.join("log"), &cache, durability, None, |why| panic!("{why}")).unwrap(),
        store: StateStore::open(&dir.join("group-0"), &cache, 4 << 20).unwrap(),
        watcher: Arc::new(IgnoringWatcher(CLUSTER_VERSION)),
        cluster_version: CLUSTER_VERSION,
        fatal: Arc::new(|why| panic!("{why}")),
        peers: None,
        heartbeats: None,
        digest_pace: Arc::default(),
    }
}

struct SuiteBuilder;

impl StoreBuilder<RaftTypes, GroupLog, GroupStateMachine, TempDir> for SuiteBuilder {
    async fn build(&self) -> Result<(TempDir, GroupLog, GroupStateMachine), StorageError<RaftTypes>> {
        let dir = tempfile::tempdir().unwrap();
        let (log, machine, _) = super::group::stores(parts(dir.path(), 1));
        Ok((dir, log, machine))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_stores_pass_openrafts_suite() {
    Suite::test_all(SuiteBuilder).await.unwrap();
}
