//! Watched files that changed: taken up whole, or refused whole and remembered, so that who looks at the
//! server sees it.

use super::{By, Draft, Files, Given, Policies, PolicyError, over};
use mlgw_common::Timestamp;
use mlgw_formats::schema::PolicyKind;
use std::sync::Arc;

/// What was refused.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// What the watched files hold now, if that was refused.
    files: Option<Refused>,
    /// How often watched files were refused since the start.
    by_files: u64,
    /// How often what a person applied was.
    by_people: u64,
}

/// Watched files that were refused; what ran before runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// When.
    pub at: Timestamp,
    /// Why, with file, line and column.
    pub why: String,
}

impl Policies {
    /// What the watched files hold now, if that was refused.
    #[must_use]
    pub fn refused(&self) -> Option<Refused> {
        self.refusals.lock().files.clone()
    }

    /// How often watched files, and what a person applied, were refused since the start.
    #[must_use]
    pub fn refusals(&self) -> [(&'static str, u64); 2] {
        let refusals = self.refusals.lock();
        [("file", refusals.by_files), ("person", refusals.by_people)]
    }

    /// Counts that what a person applied was wrong.
    pub fn count_refusal(&self) {
        self.refusals.lock().by_people += 1;
    }

    pub(super) fn refuse_files(&self, why: String) {
        tracing::error!(%why, "the watched files of the policy are refused; the policy that runs stays");
        let mut refusals = self.refusals.lock();
        refusals.by_files += 1;
        refusals.files = Some(Refused { at: self.clock.now(), why });
    }

    pub(super) fn forgive_files(&self) {
        self.refusals.lock().files = None;
    }

    /// Takes up what watched files hold; false when that should be tried again.
    pub(super) async fn reload(self: &Arc<Self>, files: Files, sum: Vec<u8>) -> bool {
        let done = self.take_up(files, sum).await;
        match done {
            Ok(()) => self.forgive_files(),
            Err(PolicyError::Wrong(wrong)) => self.refuse_files(wrong.to_string()),
            Err(error) => {
                tracing::warn!(%error, "the watched files of the policy are not taken up yet");
                return false;
            }
        }
        true
    }

    async fn take_up(self: &Arc<Self>, files: Files, sum: Vec<u8>) -> Result<(), PolicyError> {
        let changing = self.alone().await?;
        let by = By { who: self.watched.names(), ..By::default() };
        let (given, files) = (Given::of(&files), Some(over(files, &self.running().files)));
        let draft = Draft { files, given, watched: Some(sum), ..Draft::new(PolicyKind::Reload, by) };
        let done = self.put(draft).await;
        drop(changing);
        done.map(drop)
    }
}
