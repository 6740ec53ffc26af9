//! openraft's conformance suite for storage, on our log and state stores.

use super::group::GroupParts;
use super::log::GroupLog;
use super::machine::{Machine, Watcher};
use crate::store::log::LogStore;
use crate::store::options;
use crate::store::state::StateStore;
use crate::store_error::StoreError;
use crate::view::{Changes, Freed, Rows};
use mlgw_formats::log_types::Types;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Watcher that ignores all changes.
pub(crate) struct Nobody;

impl Watcher for Nobody {
    fn changing(&self, _: &Changes) {}

    fn changed(&self, _group: u32, _changes: &Changes, _freed: &[Freed]) -> Result<(), StoreError> {
        Ok(())
    }

    fn replaced(&self, _group: u32, _rows: &dyn Rows) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Parts to open a group in `dir` with.
pub(crate) fn parts(dir: &Path, node: u64) -> GroupParts {
    let cache = options::cache(1 << 20);
    GroupParts {
        id: 0,
        node,
        log: LogStore::open(&dir.join("log"), &cache, true, None, |why| panic!("{why}")).unwrap(),
        store: StateStore::open(&dir.join("group-0"), &cache, 4 << 20).unwrap(),
        watcher: Arc::new(Nobody),
        fatal: Arc::new(|why| panic!("{why}")),
    }
}

struct Builder;

impl StoreBuilder<Types, GroupLog, Machine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, GroupLog, Machine), StorageError<Types>> {
        let dir = tempfile::tempdir().unwrap();
        let (log, machine, _) = super::group::stores(parts(dir.path(), 1));
        Ok((dir, log, machine))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_stores_pass_openrafts_suite() {
    Suite::test_all(Builder).await.unwrap();
}
