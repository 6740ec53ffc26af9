//! Versions of the running policy as the rest of the program sees them: what is said of them is in memory,
//! their files are read.

use super::options::{ProposeError, ReadError};
use super::{Catalogue, read};
use mlgw_formats::command::{Change, Command, PutPolicy, Reply};
use mlgw_formats::schema::{PolicyFiles, PolicyVersion, policy};
use std::sync::Arc;

impl Catalogue {
    /// The versions that are remembered, the oldest first; the last one runs.
    #[must_use]
    pub fn policies(&self) -> Vec<Arc<PolicyVersion>> {
        self.inner.resident.policies.read().values().cloned().collect()
    }

    /// The version that runs; none when nobody ever applied one.
    #[must_use]
    pub fn policy(&self) -> Option<Arc<PolicyVersion>> {
        self.inner.resident.policies.read().values().next_back().cloned()
    }

    /// The files that the version `number` brought; none when they are not kept.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn policy_files(&self, number: u64) -> Result<Option<PolicyFiles>, ReadError> {
        read(&self.inner.groups[0].state(), &policy::files_row(number))
    }

    /// Makes the next version, by compare and set; returns it.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn put_policy(&self, put: PutPolicy) -> Result<PolicyVersion, ProposeError> {
        match self.propose(Command::from(Change::PutPolicy(put))).await? {
            Reply::Policy(version) => Ok(*version),
            other => unreachable!("a policy was put and the answer is {other:?}"),
        }
    }
}
