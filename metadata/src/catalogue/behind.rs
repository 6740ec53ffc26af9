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
        self.with_records(move |dir| behind::record(dir, group)).await
    }

    /// Reads or changes the records. Tasks do not wait for the syncs on a worker of the runtime.
    async fn with_records<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let dir = self.opener.dir.clone();
        let acted = tokio::task::spawn_blocking(move || {
            act(&dir).map_err(|error| StoreError(format!("a record in {}: {error}", dir.display())))
        });
        acted.await.map_err(|error| StoreError(error.to_string()))?
    }

    async fn confirm_groups(&self) -> Result<BTreeSet<u32>, StoreError> {
        // Before the barriers begin: a later record is not confirmed by them.
        let records = self.with_records(behind::records).await?;
        let confirming = records.into_iter().map(|(group, record)| async move {
            let scope = BTreeSet::from([group]);
            (group, record, self.barrier(BarrierScope::Groups(&scope)).await.is_ok())
        });
        let mut unconfirmed = BTreeSet::new();
        for (group, record, has_passed) in join_all(confirming).await {
            if has_passed {
                // A member that is created or stops meanwhile writes a later record.
                let _creating = self.opener.creating.lock().await;
                self.with_records(move |dir| behind::forget(dir, group, &record)).await?;
            } else {
                unconfirmed.insert(group);
            }
        }
        Ok(unconfirmed)
    }
}
