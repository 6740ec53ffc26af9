//! Records of the groups in which this node may lack acknowledged changes, for offline tools: see
//! `store/behind.rs`.

use super::inner::CatalogueInner;
use super::{BarrierScope, Catalogue};
use crate::store::behind;
use crate::store_error::{ReadError, StoreError};
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

fn failed(dir: &Path) -> impl Fn(io::Error) -> StoreError {
    let dir = dir.to_owned();
    move |error| StoreError(format!("{}: {error}", dir.display()))
}

impl Catalogue {
    /// Removes the records of the groups in which this node has every acknowledged change, as a barrier of
    /// each of them confirms. Returns the groups whose barrier did not pass.
    ///
    /// # Errors
    /// If a record cannot be read or removed.
    pub async fn confirm_groups(&self) -> Result<BTreeSet<u32>, ReadError> {
        Ok(self.inner.confirm_groups().await?)
    }
}

impl CatalogueInner {
    /// Records that this node may lack changes of a group.
    pub(super) async fn record_behind(&self, group: u32) -> Result<(), StoreError> {
        let dir = self.opener.dir.clone();
        let recorded = tokio::task::spawn_blocking(move || {
            behind::record(&dir, group).map_err(failed(&behind::behind_file(&dir, group)))
        });
        recorded.await.map_err(|error| StoreError(error.to_string()))?
    }

    async fn confirm_groups(&self) -> Result<BTreeSet<u32>, StoreError> {
        let dir = &self.opener.dir;
        let mut confirming = Vec::new();
        for group in behind::groups_behind(dir).map_err(failed(dir))? {
            // Before the barrier begins: a later record is not confirmed by it.
            let record = behind::recorded(dir, group).map_err(failed(dir))?;
            confirming.extend(record.map(|record| async move {
                let scope = BTreeSet::from([group]);
                (group, record, self.barrier(BarrierScope::Groups(&scope)).await.is_ok())
            }));
        }
        let mut unconfirmed = BTreeSet::new();
        for (group, record, has_passed) in join_all(confirming).await {
            if has_passed {
                // A member that is created or stops meanwhile writes a later record.
                let _creating = self.opener.creating.lock().await;
                behind::forget(dir, group, &record).map_err(failed(dir))?;
            } else {
                unconfirmed.insert(group);
            }
        }
        Ok(unconfirmed)
    }
}
