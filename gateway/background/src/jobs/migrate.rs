//! Migration: moves a remote-backed bucket to another upstream while it is served.
//!
//! Objects at the old origin are compared with those at the new one, key by key in byte order, and copied
//! where they differ. Concurrent writes to the bucket still go to the old origin; their keys are recorded and
//! copied afterwards, pass by pass, until few are left. Then writes are paused for a moment: requests in
//! progress end, dirty writes are sent, the last keys are copied, and the bucket is bound to the new origin.
//!
//! The old origin has all objects until the catalogue commits the new binding, and by then the new origin has
//! all of them. Nothing is deleted at the old origin. Other writers to the old origin must have stopped
//! before: their changes to keys that were compared already are not copied.
//!
//! After a power loss all objects are compared again; those that are present are not copied twice. After the
//! commit nothing is left to do.

mod copy;
mod merge;

use super::{JobOutcome, JobRun, JobStop};
use copy::{MigrationCopier, MigrationCopyOutcome, MigrationSide};
use futures_util::{StreamExt as _, stream};
use merge::{ListingMerge, MergedKey};
use mlgw_cache::remote_backed::{BucketFreezeGuard, CachedBucket, TrackedKeys, WriteTracker};
use mlgw_cache::writeback::WriteBackQueue;
use mlgw_common::ObjectKey;
use mlgw_common::limits::JOB_OBJECTS_MAX;
use mlgw_formats::decision_entry::{DecisionCause, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::DecisionKind;
use mlgw_formats::schema::{BindMode, Binding, Bucket, MigrateTo};
use mlgw_remote::origin::OriginError;
use mlgw_segments::decisions;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use merge::is_empty;

/// Maximum number of full comparisons: one, unless writes come too fast to be recorded.
const COMPARISONS_MAX: u32 = 10;
/// Number of remaining keys at which writes are paused and the rest is copied.
const KEYS_LEFT_MAX: usize = 256;
/// Time limit while writes are paused, for each of: requests in progress, dirty writes, the last keys. Beyond
/// it writes resume, and the pause is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Time limit for dirty writes while writes go on.
const DIRTY_WAIT_MAX: Duration = Duration::from_mins(1);
/// Time between two attempts to pause writes.
const PAUSE_RETRY_AFTER: Duration = Duration::from_secs(5);
/// Maximum number of failed pauses: an hour and more.
const PAUSES_MAX: u32 = 720;
/// Consecutive transient failures after which an origin counts as unavailable.
const FAILURES_MAX: u32 = 50;

/// A running migration.
struct Migration<'w> {
    work: &'w JobRun,
    bucket: Arc<Bucket>,
    from: Binding,
    to: Binding,
    bound: CachedBucket,
    copier: MigrationCopier,
}

/// Result of following concurrent writes.
enum FollowOutcome {
    /// The bucket is bound to the new origin.
    Moved,
    /// More keys were written than can be recorded.
    Overflowed,
}

impl JobRun {
    pub(super) async fn migrate(&self) -> JobOutcome {
        let bucket = self.bucket()?;
        let Some(migration) = self.migration(&bucket)? else { return Ok(None) };
        let listening = migration.bound.track_writes();
        let moved = tokio::select! {
            moved = async {
                migration.bound.until_changes_allowed().await;
                migration.run(&listening).await
            } => moved,
            stop = self.live.stop_reason() => Err(stop),
        };
        match moved {
            Err(JobStop::Stopping) => Err(JobStop::Stopping),
            // The cancellation came after the new binding was committed.
            _ if self.bucket()?.binding.as_ref() == Some(&migration.to) => Ok(None),
            Err(stop) => {
                if let Err(error) = migration.copier.to.abort_uploads().await {
                    tracing::warn!(
                        bucket = bucket.name, %error,
                        "unfinished uploads may remain at the target of a migration"
                    );
                }
                Err(stop)
            }
            Ok(()) => Ok(None),
        }
    }

    /// Prepares the migration; returns `None` if the bucket has the new binding already.
    fn migration(&self, bucket: &Arc<Bucket>) -> Result<Option<Migration<'_>>, JobStop> {
        let failed = |why: String| Err(JobStop::Failed(why));
        let (Some(from), Some(to)) = (bucket.binding.clone(), self.job.params.to.clone()) else {
            return failed(format!("the bucket {:?} is no longer remote-backed", bucket.name));
        };
        let MigrateTo { upstream, prefix } = to;
        let to = Binding { upstream, prefix, ..from.clone() };
        if from == to {
            return Ok(None);
        }
        let side = |binding: &Binding| match self.jobs.bound.origin(&binding.upstream) {
            Some(origin) => Ok(MigrationSide { origin, prefix: binding.prefix.clone() }),
            None => Err(JobStop::Failed(format!("the upstream {:?} is not configured", binding.upstream))),
        };
        let marks_all = from.mode() == BindMode::WriteBack;
        let carrier = MigrationCopier {
            from: side(&from)?,
            to: side(&to)?,
            bucket: bucket.clone(),
            timelines: self.context.writeback.timelines().clone(),
            marks_all,
            has_opaque_etags: AtomicBool::new(false),
        };
        let bound = self.bound_bucket()?;
        let bound = bound.ok_or_else(|| JobStop::Failed("the bucket is no longer remote-backed".into()))?;
        Ok(Some(Migration { work: self, bucket: bucket.clone(), from, to, bound, copier: carrier }))
    }
}

impl Migration<'_> {
    async fn run(&self, listening: &WriteTracker) -> Result<(), JobStop> {
        self.copier.to.abort_uploads().await.map_err(|error| self.failed("uploads", &error))?;
        for _ in 0..COMPARISONS_MAX {
            self.compare_all().await?;
            match self.follow(listening).await? {
                FollowOutcome::Moved => return Ok(()),
                FollowOutcome::Overflowed => {
                    tracing::info!(
                        bucket = self.bucket.name,
                        "migration restarts its comparison: too many writes"
                    )
                }
            }
        }
        Err(JobStop::Failed("too many concurrent writes; try again at a quieter time".into()))
    }

    fn failed(&self, what: &str, error: &OriginError) -> JobStop {
        JobStop::Failed(format!("{what} of {:?}: {error}", self.to.upstream))
    }

    /// Compares all objects and copies those that differ.
    async fn compare_all(&self) -> Result<(), JobStop> {
        let live = &self.work.live;
        live.restart();
        let walk = ListingMerge::begin(
            &self.copier.from,
            &self.copier.to,
            live.clone(),
            self.work.jobs.clock.clone(),
        );
        let mut carried = walk
            .pairs()
            .map(|pair| async {
                let pair = pair?;
                let carried = match &pair {
                    MergedKey::Compare { key, from, to } => {
                        self.copier.compare(key, from, to.as_deref()).await
                    }
                    // It is deleted, unless the old origin has it by now.
                    MergedKey::Extra { key } => self.copier.copy(key).await,
                };
                Ok::<_, JobStop>((pair, carried))
            })
            .buffered(JOB_OBJECTS_MAX)
            .boxed();
        let mut failures = 0;
        while let Some(next) = carried.next().await {
            let (pair, carried) = next?;
            let is_transient = carried.as_ref().is_err_and(OriginError::is_transient);
            failures = if is_transient { failures + 1 } else { 0 };
            self.record_key(pair.key(), Some(pair.bytes()), carried);
            if failures > FAILURES_MAX {
                break;
            }
        }
        live.check_errors()
    }

    /// Records the result of a key; `listed_bytes` is its listed size if the key comes from a full
    /// comparison.
    fn record_key(
        &self,
        key: &str,
        listed_bytes: Option<u64>,
        carried: Result<MigrationCopyOutcome, OriginError>,
    ) {
        let live = &self.work.live;
        if let Err(error) = &carried {
            live.record_failure(|| format!("{key:?}: {error}"));
        }
        let moved = match &carried {
            Ok(MigrationCopyOutcome::Moved { bytes }) => Some(*bytes),
            _ => None,
        };
        live.update(|progress| {
            if let Some(bytes) = listed_bytes {
                progress.objects_done += 1;
                progress.bytes_done += bytes;
            }
            progress.moved_objects += u64::from(moved.is_some());
            progress.moved_bytes += moved.unwrap_or(0);
            progress.deleted_objects += u64::from(matches!(carried, Ok(MigrationCopyOutcome::Deleted)));
        });
        if let Some(bytes) = moved {
            self.work.jobs.decisions.record(&PlacementDecision {
                kind: DecisionKind::Migrate,
                subject: DecisionSubject::Object(self.bucket.bucket_id(), key),
                from: decisions::DecisionPlace::Origin,
                to: decisions::DecisionPlace::Origin,
                bytes,
                cause: DecisionCause::job(self.work.job.id),
                outcome: decisions::DecisionOutcome::Done,
            });
        }
    }

    /// Copies the keys of concurrent writes until few are left, then pauses writes and switches the binding.
    async fn follow(&self, listening: &WriteTracker) -> Result<FollowOutcome, JobStop> {
        for _ in 0..PAUSES_MAX {
            loop {
                let TrackedKeys { keys, has_overflowed: is_cut } = listening.take();
                if is_cut {
                    return Ok(FollowOutcome::Overflowed);
                }
                self.copy_all(&keys).await?;
                if keys.len() <= KEYS_LEFT_MAX {
                    break;
                }
            }
            if !self.is_clean(DIRTY_WAIT_MAX).await? {
                continue;
            }
            if let Some(frozen) = self.bound.freeze(PAUSE_MAX).await {
                match self.copy_remaining(listening).await? {
                    FinalCopyOutcome::All => {
                        return self.cut_over(frozen).await.map(|()| FollowOutcome::Moved);
                    }
                    FinalCopyOutcome::Lost => return Ok(FollowOutcome::Overflowed),
                    FinalCopyOutcome::NotYet => {}
                }
            }
            mlgw_common::time::sleep(PAUSE_RETRY_AFTER).await;
        }
        Err(JobStop::Failed(
            "writes to the bucket never paused long enough to copy the last ones; try again at a quieter \
             time"
                .into(),
        ))
    }

    /// Waits until dirty writes have reached the old origin. Returns false after the time limit.
    async fn is_clean(&self, patience: Duration) -> Result<bool, JobStop> {
        let queue = self.work.context.writeback.queue(&self.bucket);
        let Some(queue) = queue.map_err(|error| JobStop::Failed(error.to_string()))? else { return Ok(true) };
        let is_through =
            mlgw_common::time::timeout(patience, queue.wait_until_sent(queue.acked())).await.is_ok();
        self.check_contested(&queue)?;
        Ok(is_through)
    }

    fn check_contested(&self, queue: &WriteBackQueue) -> Result<(), JobStop> {
        match queue.dirty().foreign.first() {
            None => Ok(()),
            Some(key) => Err(JobStop::Failed(format!(
                "another client wrote {key:?} at the old upstream before the local write was sent: see \
                 `mlgw bucket flush {}`",
                self.bucket.name
            ))),
        }
    }

    /// Sends dirty writes and copies the remaining keys while writes are paused, within the time limit.
    async fn copy_remaining(&self, listening: &WriteTracker) -> Result<FinalCopyOutcome, JobStop> {
        if !self.is_clean(PAUSE_MAX).await? {
            return Ok(FinalCopyOutcome::NotYet);
        }
        let TrackedKeys { keys, has_overflowed: is_cut } = listening.take();
        if is_cut {
            return Ok(FinalCopyOutcome::Lost);
        }
        match mlgw_common::time::timeout(PAUSE_MAX, self.copy_all(&keys)).await {
            Ok(done) => done.map(|()| FinalCopyOutcome::All),
            Err(_) => {
                listening.put_back(keys);
                Ok(FinalCopyOutcome::NotYet)
            }
        }
    }

    async fn copy_all(&self, keys: &BTreeSet<ObjectKey>) -> Result<(), JobStop> {
        let mut carried = stream::iter(keys)
            .map(|key| async move { (key, self.copier.copy(key.as_str()).await) })
            .buffer_unordered(JOB_OBJECTS_MAX)
            .boxed();
        while let Some((key, carried)) = carried.next().await {
            self.record_key(key.as_str(), None, carried);
        }
        self.work.live.check_errors()
    }

    /// Switches the binding to the new origin while writes are paused. Runs to completion even if the job is
    /// cancelled meanwhile.
    async fn cut_over(&self, frozen: BucketFreezeGuard) -> Result<(), JobStop> {
        let (context, bucket) = (self.work.context.clone(), self.bucket.clone());
        let (from, to, bound) = (self.from.clone(), self.to.clone(), self.bound.clone());
        let term = self.work.jobs.duty_term;
        let cut = tokio::spawn(async move {
            context.objects.catalogue.rebind_bucket(&bucket, from, to, term).await?;
            bound.mark_rebound();
            context.writeback.forget(bucket.bucket_id());
            drop(frozen);
            // For the next start, which does not know the time of the switch.
            tokio::task::spawn_blocking(move || bound.refresh(""));
            Ok::<_, mlgw_metadata::ProposeError>(())
        });
        let cut = cut.await.map_err(|error| JobStop::Failed(error.to_string()))?;
        cut.map_err(|error| JobStop::Failed(format!("cannot bind the bucket to the new upstream: {error}")))
    }
}

/// Result of copying the last keys.
enum FinalCopyOutcome {
    /// The new origin has all objects.
    All,
    /// The time limit was exceeded.
    NotYet,
    /// More keys were written than can be recorded.
    Lost,
}
