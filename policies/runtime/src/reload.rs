//! Changed watched files: applied as a whole, or refused as a whole and recorded, so that the refusal is
//! visible in the server's status.

use super::{
    ChangeAuthor, Policies, PolicyDraft, PolicyError, PolicyFilesUpdate, SubmittedFiles, merged_with_running,
};
use mlgw_common::Timestamp;
use mlgw_formats::schema::PolicyKind;
use std::sync::Arc;

/// Refusals of policies.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// The current refusal of the watched files, if any.
    files: Option<RefusedFiles>,
    /// Number of refusals of watched files since the start.
    by_files: u64,
    /// Number of refusals of policies applied by people since the start.
    by_people: u64,
}

/// A refusal of watched files; the previous policy keeps running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedFiles {
    /// Time of the refusal.
    pub at: Timestamp,
    /// Reason, with file, line and column.
    pub why: String,
}

impl Policies {
    /// The current refusal of the watched files, if any.
    #[must_use]
    pub fn refused(&self) -> Option<RefusedFiles> {
        self.refusals.lock().files.clone()
    }

    /// Number of refusals since the start, of watched files and of policies applied by people.
    #[must_use]
    pub fn refusals(&self) -> [(&'static str, u64); 2] {
        let refusals = self.refusals.lock();
        [("file", refusals.by_files), ("person", refusals.by_people)]
    }

    /// Counts the refusal of a policy applied by a person.
    pub fn count_refusal(&self) {
        self.refusals.lock().by_people += 1;
    }

    pub(super) fn refuse_files(&self, why: String) {
        tracing::error!(%why, "the watched policy files are refused; the running policy stays in force");
        let mut refusals = self.refusals.lock();
        refusals.by_files += 1;
        refusals.files = Some(RefusedFiles { at: self.clock.now(), why });
    }

    pub(super) fn clear_refused_files(&self) {
        self.refusals.lock().files = None;
    }

    /// Applies the watched files; returns false if the attempt should be repeated.
    pub(super) async fn reload(self: &Arc<Self>, files: PolicyFilesUpdate, sum: Vec<u8>) -> bool {
        let done = self.apply_watched_files(files, sum).await;
        match done {
            Ok(()) => self.clear_refused_files(),
            Err(PolicyError::Wrong(wrong)) => self.refuse_files(wrong.to_string()),
            Err(error) => {
                tracing::warn!(%error, "the watched policy files are not applied yet");
                return false;
            }
        }
        true
    }

    async fn apply_watched_files(
        self: &Arc<Self>,
        files: PolicyFilesUpdate,
        sum: Vec<u8>,
    ) -> Result<(), PolicyError> {
        let changing = self.lock_for_change().await?;
        let by = ChangeAuthor { who: self.watched.load().names(), ..ChangeAuthor::default() };
        let (given, files) =
            (SubmittedFiles::of(&files), Some(merged_with_running(files, &self.running().files)));
        let draft =
            PolicyDraft { files, given, watched: Some(sum), ..PolicyDraft::new(PolicyKind::Reload, by) };
        let done = self.store_version(draft).await;
        drop(changing);
        done.map(drop)
    }
}
