//! Purges of a group's log: the state is flushed, and the entries that it contains are removed.
//!
//! openraft removes no entry that a leader is sending, so a follower whose syncs take seconds would delay
//! each purge, and writers wait for it. A leader therefore keeps the entries that its followers lack if they
//! have at most half of the bytes of the log, or so few that keeping them does not matter. It keeps more for
//! a follower that answers, because that can still catch up from the log, which is longer than usual
//! meanwhile. A follower that lacks even more gets a snapshot.

use super::group::{Group, STEP_MAX};
use super::members::last_contact;
use super::remote::APPEND_MAX;
use crate::store_error::StoreError;
use mlgw_common::time::Instant;
use mlgw_formats::log_types::RaftTypes;
use openraft::async_runtime::WatchReceiver as _;
use openraft::metrics::WaitError;
use openraft::{LogIdOptionExt as _, LogIndexOptionExt as _, RaftMetrics};
use std::ops::Range;
use std::time::Duration;

/// Longest time that a member with peers waits for a purge: entries that are being sent to a follower stay.
/// It tries again at the next check of the log.
const MEMBER_PURGE_MAX: Duration = APPEND_MAX.saturating_add(Duration::from_secs(1));

/// A follower lacks much of the log if it lacks more than one entry of so many.
const LACKING_PART: u64 = 3;

/// A follower answers if it has answered something that was sent in this time. It answers a heartbeat after
/// the syncs of the entries before it.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Bytes that a purge keeps for a follower, although they are more than half of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptMax {
    /// For each follower.
    pub(crate) any: u64,
    /// For a follower that answers.
    pub(crate) answering: u64,
}

/// A position in the log up to which it is purged.
#[derive(Debug, PartialEq, Eq)]
struct PurgePosition {
    upto: u64,
    /// Bytes of the entries after it that the flushed state contains.
    kept: u64,
}

/// A purge that openraft carries out when no entry that it removes is being sent.
pub(crate) struct BegunPurge {
    group: Group,
    begun: Instant,
    position: PurgePosition,
    /// Bytes of the log when it began.
    counted: u64,
}

impl Group {
    /// Flushes the state and begins to purge the log up to the position that the flushed state contains, or
    /// to that of a follower that lacks at most half of the bytes of the log or `kept_max`, whichever is
    /// more. Returns `None` if there is nothing to purge.
    pub(crate) async fn begin_purge(&self, kept_max: KeptMax) -> Result<Option<BegunPurge>, StoreError> {
        let failed = |error: &dyn std::fmt::Display| StoreError(error.to_string());
        let begun = Instant::now();
        // Entries appended from here on may be purged too; they still count as unpurged.
        let counted = self.log.bytes();
        let (before, applied) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.snapshot.index(), metrics.last_applied.index())
        };
        // After a crash between snapshot and purge there is no newer position to take a snapshot of.
        let upto = if before >= applied { before } else { self.take_snapshot(before).await? };
        let Some(flushed) = upto else { return Ok(None) };
        let group = self.clone();
        let kept_max =
            KeptMax { any: kept_max.any.max(counted / 2), answering: kept_max.answering.max(counted / 2) };
        let found = tokio::task::spawn_blocking(move || group.purge_position(flushed, kept_max));
        let Some(position) = found.await.map_err(|e| failed(&e))?? else { return Ok(None) };
        self.raft.trigger().purge_log(position.upto).await.map_err(|e| failed(&e))?;
        Ok(Some(BegunPurge { group: self.clone(), begun, position, counted }))
    }

    /// True while another member needs the older entries of the log: a snapshot is sent to it, or it answers
    /// and lacks so much that the log may be longer than usual. `kept_max` bytes are kept in any case.
    pub(crate) fn is_old_log_needed(&self, kept_max: u64) -> bool {
        self.is_sending_snapshot() || (self.log.bytes() > kept_max && self.is_follower_behind())
    }

    fn is_follower_behind(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let log = metrics.purged.next_index()..metrics.last_log_index.next_index();
        let mut followers = metrics.replication.iter().flatten();
        followers
            .any(|(node, matched)| lacks_much(&log, matched.next_index()) && is_answering(&metrics, *node))
    }

    /// Purges the log, and keeps nothing else than half of it for a follower.
    #[cfg(test)]
    pub(crate) async fn compact(&self) -> Result<(), StoreError> {
        match self.begin_purge(KeptMax { any: 0, answering: 0 }).await? {
            Some(begun) => begun.finish().await,
            None => Ok(()),
        }
    }

    /// The position up to which the log is purged: `flushed`, unless followers lack entries before it that
    /// have at most the bytes of `kept_max`; `None` if one of those lacks all entries. A follower that lacks
    /// more, or entries that are purged already, needs a snapshot anyway. A purge to a later position that
    /// still waits is not taken back; then `kept` is too high until the next purge.
    fn purge_position(&self, flushed: u64, kept_max: KeptMax) -> Result<Option<PurgePosition>, StoreError> {
        // For each follower, the first entry that it lacks.
        let mut lacking: Vec<(u64, u64)> = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let begin = metrics.purged.next_index();
            let kept_max =
                |node| if is_answering(&metrics, node) { kept_max.answering } else { kept_max.any };
            let followers = metrics.replication.iter().flatten();
            let lacking = followers.map(|(node, matched)| (matched.next_index(), kept_max(*node)));
            lacking.filter(|(first, _)| (begin..=flushed).contains(first)).collect()
        };
        lacking.sort_unstable();
        for (first, kept_max) in lacking {
            let kept = self.log.bytes_between(first, flushed + 1, kept_max)?;
            if kept <= kept_max {
                return Ok(first.checked_sub(1).map(|upto| PurgePosition { upto, kept }));
            }
        }
        Ok(Some(PurgePosition { upto: flushed, kept: 0 }))
    }

    /// Takes a snapshot that reaches beyond `before` and returns its last index. Taking it flushes the state
    /// and reads the flushed position back.
    async fn take_snapshot(&self, before: Option<u64>) -> Result<Option<u64>, StoreError> {
        let failed = |error: &dyn std::fmt::Display| StoreError(error.to_string());
        let begun = Instant::now();
        self.raft.trigger().snapshot().await.map_err(|e| failed(&e))?;
        let taken = self.raft.wait(Some(STEP_MAX));
        match taken.metrics(|m| m.snapshot.index() > before, "a snapshot is taken").await {
            Ok(metrics) => Ok(metrics.snapshot.index()),
            // The leader's snapshot is being installed instead, or the flush waited for space.
            Err(WaitError::Timeout(..)) if !self.is_alone() || self.log.space().has_waited_since(begun) => {
                Ok(None)
            }
            Err(error) => Err(failed(&error)),
        }
    }
}

impl BegunPurge {
    /// Bytes that are kept for a follower.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.position.kept
    }

    /// Waits until the log is purged, and frees its space.
    pub(crate) async fn finish(self) -> Result<(), StoreError> {
        let Self { group, begun, position: PurgePosition { upto, kept }, counted } = self;
        let max = if group.is_alone() { STEP_MAX } else { MEMBER_PURGE_MAX };
        let purged = group.raft.wait(Some(max));
        match purged.metrics(|m| m.purged.index() >= Some(upto), "the log is purged").await {
            Ok(_) => {}
            // A slow follower is no error of this member, and a wait for space ends.
            Err(WaitError::Timeout(..)) if !group.is_alone() || group.log.space().has_waited_since(begun) => {
                tracing::info!(group = group.id, upto, "entries are in use; the log is purged later");
                return Ok(());
            }
            Err(error) => return Err(StoreError(error.to_string())),
        }
        // Also if everything was purged before: the count then came from the size of the store's files at the
        // start.
        group.log.subtract_purged(counted.saturating_sub(kept));
        let log = group.log.clone();
        let freed = tokio::task::spawn_blocking(move || log.free_purged_space(upto + 1));
        freed.await.map_err(|error| StoreError(error.to_string()))?
    }
}

/// True if the follower on `node` has answered lately.
fn is_answering(metrics: &RaftMetrics<RaftTypes>, node: u64) -> bool {
    last_contact(metrics, node).is_some_and(|ago| ago < ANSWERS_WITHIN)
}

/// True if the log has all entries that a follower lacks, and they are a large part of it. `log` has the
/// indexes of the entries of the log. The follower lacks those from `first` on.
fn lacks_much(log: &Range<u64>, first: u64) -> bool {
    let entries = |from: u64| log.end.saturating_sub(from);
    first >= log.start && entries(first).saturating_mul(LACKING_PART) > entries(log.start)
}

#[cfg(test)]
mod tests {
    use super::lacks_much;

    #[test]
    fn a_follower_lacks_much_with_more_than_a_third_of_the_log() {
        assert!(!lacks_much(&(100..400), 300));
        assert!(lacks_much(&(100..400), 299));
        assert!(lacks_much(&(100..400), 100), "it lacks all of the log");
        assert!(!lacks_much(&(100..400), 99), "it needs a snapshot");
        assert!(!lacks_much(&(100..400), 0), "it needs a snapshot");
        assert!(lacks_much(&(0..400), 0), "a log that was never purged is enough");
        assert!(!lacks_much(&(0..0), 0));
    }
}
