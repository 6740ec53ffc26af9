//! Versions of the running policy: their records are in memory, their files are read from the store.

use super::options::ProposeError;
use super::{Catalogue, read};
use crate::store_error::ReadError;
use mlgw_formats::command::{Change, Command, PutPolicy, Reply};
use mlgw_formats::schema::{PolicyFiles, PolicyVersion, policy};
use std::sync::Arc;

impl Catalogue {
    /// The versions that are kept, the oldest first; the last one runs.
    #[must_use]
    pub fn policies(&self) -> Vec<Arc<PolicyVersion>> {
        self.inner.resident.policies.read().values().cloned().collect()
    }

    /// The version that runs; `None` if no policy was ever applied.
    #[must_use]
    pub fn policy(&self) -> Option<Arc<PolicyVersion>> {
        self.inner.resident.policies.read().values().next_back().cloned()
    }

    /// Files that came with the version `number`; `None` if they are not kept.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn policy_files(&self, number: u64) -> Result<Option<PolicyFiles>, ReadError> {
        read(&self.inner.groups.system().state(), &policy::files_row(number))
    }

    /// Stores the next version by compare and set, and returns it.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn put_policy(&self, put: PutPolicy) -> Result<PolicyVersion, ProposeError> {
        match self.propose(Command::from(Change::PutPolicy(put))).await? {
            Reply::Policy(version) => Ok(*version),
            other => unreachable!("unexpected reply to a policy put: {other:?}"),
        }
    }
}
