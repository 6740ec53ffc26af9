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

mod carry;
mod walk;

use super::{Outcome, Stop, Work};
use carry::{Carried, Carrier, Side};
use futures_util::{StreamExt as _, stream};
use mlgw_cache::bound::{BoundBucket, Changed, Frozen, Listening};
use mlgw_cache::writeback::Queue;
use mlgw_common::ObjectKey;
use mlgw_common::limits::JOB_OBJECTS_MAX;
use mlgw_formats::decision_entry::{Decided, What, Why};
use mlgw_formats::decision_words::Kind;
use mlgw_formats::schema::{BindMode, Binding, Bucket, MigrateTo};
use mlgw_remote::origin::OriginError;
use mlgw_segments::decisions;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use walk::{Pair, Walk};

pub use walk::is_empty;

/// Maximum number of full comparisons: one, unless writes come too fast to be recorded.
const WALKS_MAX: u32 = 10;
/// Number of remaining keys at which writes are paused and the rest is copied.
const FEW: usize = 256;
/// Time limit while writes are paused, for each of: requests in progress, dirty writes, the last keys. Beyond
/// it writes resume, and the pause is tried again.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time limit for dirty writes while writes go on.
const DIRTY_PATIENCE: Duration = Duration::from_mins(1);
/// Time between two attempts to pause writes.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Maximum number of failed pauses: an hour and more.
const STOPS_MAX: u32 = 720;
/// Consecutive transient failures after which an origin counts as unavailable.
const FAILURES_MAX: u32 = 50;

/// A running migration.
struct Migration<'w> {
    work: &'w Work,
    bucket: Arc<Bucket>,
    from: Binding,
    to: Binding,
    bound: BoundBucket,
    carrier: Carrier,
}

/// Result of following concurrent writes.
enum Followed {
    /// The bucket is bound to the new origin.
    Moved,
    /// More keys were written than can be recorded.
    Lost,
}

impl Work {
    pub(super) async fn migrate(&self) -> Outcome {
        let bucket = self.bucket()?;
        let Some(migration) = self.migration(&bucket)? else { return Ok(None) };
        let listening = migration.bound.listen();
        let moved = tokio::select! {
            moved = migration.run(&listening) => moved,
            stop = self.live.ended() => Err(stop),
        };
        match moved {
            Err(Stop::Stopping) => Err(Stop::Stopping),
            // The cancellation came after the new binding was committed.
            _ if self.bucket()?.binding.as_ref() == Some(&migration.to) => Ok(None),
            Err(stop) => {
                if let Err(error) = migration.carrier.abort_uploads().await {
                    tracing::warn!(bucket = bucket.name, %error, "uploads may be left where the bucket was to go");
                }
                Err(stop)
            }
            Ok(()) => Ok(None),
        }
    }

    /// Prepares the migration; returns `None` if the bucket has the new binding already.
    fn migration(&self, bucket: &Arc<Bucket>) -> Result<Option<Migration<'_>>, Stop> {
        let failed = |why: String| Err(Stop::Failed(why));
        let (Some(from), Some(to)) = (bucket.binding.clone(), self.job.params.to.clone()) else {
            return failed(format!("the bucket {:?} is not bound any more", bucket.name));
        };
        let MigrateTo { upstream, prefix } = to;
        let to = Binding { upstream, prefix, ..from.clone() };
        if from == to {
            return Ok(None);
        }
        let side = |binding: &Binding| match self.jobs.bound.origin(&binding.upstream) {
            Some(origin) => Ok(Side { origin, prefix: binding.prefix.clone() }),
            None => Err(Stop::Failed(format!("the upstream {:?} is not configured", binding.upstream))),
        };
        let marks_all = from.mode() == BindMode::WriteBack;
        let carrier = Carrier {
            from: side(&from)?,
            to: side(&to)?,
            bucket: bucket.clone(),
            timelines: self.context.writeback.timelines().clone(),
            marks_all,
            has_other_etags: AtomicBool::new(false),
        };
        let bound = self.bound_bucket()?;
        let bound = bound.ok_or_else(|| Stop::Failed("the bucket is not bound any more".into()))?;
        Ok(Some(Migration { work: self, bucket: bucket.clone(), from, to, bound, carrier }))
    }
}

impl Migration<'_> {
    async fn run(&self, listening: &Listening) -> Result<(), Stop> {
        self.carrier.abort_uploads().await.map_err(|error| self.failed("uploads", &error))?;
        for _ in 0..WALKS_MAX {
            self.walk().await?;
            match self.follow(listening).await? {
                Followed::Moved => return Ok(()),
                Followed::Lost => tracing::info!(bucket = self.bucket.name, "all is compared once more"),
            }
        }
        Err(Stop::Failed(
            "more was written meanwhile than could be followed; try it in a quieter hour".into(),
        ))
    }

    fn failed(&self, what: &str, error: &OriginError) -> Stop {
        Stop::Failed(format!("{what} of {:?}: {error}", self.to.upstream))
    }

    /// Compares all objects and copies those that differ.
    async fn walk(&self) -> Result<(), Stop> {
        let live = &self.work.live;
        live.begin_anew();
        let walk =
            Walk::begin(&self.carrier.from, &self.carrier.to, live.clone(), self.work.jobs.clock.clone());
        let mut carried = walk
            .pairs()
            .map(|pair| async {
                let pair = pair?;
                let carried = match &pair {
                    Pair::Compare { key, from, to } => self.carrier.compare(key, from, to.as_deref()).await,
                    // It is deleted, unless the old origin has it by now.
                    Pair::Extra { key } => self.carrier.carry(key).await,
                };
                Ok::<_, Stop>((pair, carried))
            })
            .buffered(JOB_OBJECTS_MAX)
            .boxed();
        let mut failures = 0;
        while let Some(next) = carried.next().await {
            let (pair, carried) = next?;
            let is_transient = carried.as_ref().is_err_and(OriginError::is_transient);
            failures = if is_transient { failures + 1 } else { 0 };
            self.note(pair.key(), Some(pair.bytes()), carried);
            if failures > FAILURES_MAX {
                break;
            }
        }
        live.errors()
    }

    /// Records the result of a key; `listed_bytes` is its listed size if the key comes from a full
    /// comparison.
    fn note(&self, key: &str, listed_bytes: Option<u64>, carried: Result<Carried, OriginError>) {
        let live = &self.work.live;
        if let Err(error) = &carried {
            live.failed(|| format!("{key:?}: {error}"));
        }
        let moved = match &carried {
            Ok(Carried::Moved { bytes }) => Some(*bytes),
            _ => None,
        };
        live.step(|progress| {
            if let Some(bytes) = listed_bytes {
                progress.objects_done += 1;
                progress.bytes_done += bytes;
            }
            progress.moved_objects += u64::from(moved.is_some());
            progress.moved_bytes += moved.unwrap_or(0);
            progress.deleted_objects += u64::from(matches!(carried, Ok(Carried::Deleted)));
        });
        if let Some(bytes) = moved {
            self.work.jobs.decisions.record(&Decided {
                kind: Kind::Migrate,
                what: What::Object(self.bucket.bucket_id(), key),
                from: decisions::Place::Origin,
                to: decisions::Place::Origin,
                bytes,
                why: Why::job(self.work.job.id),
                outcome: decisions::Outcome::Done,
            });
        }
    }

    /// Copies the keys of concurrent writes until few are left, then pauses writes and switches the binding.
    async fn follow(&self, listening: &Listening) -> Result<Followed, Stop> {
        for _ in 0..STOPS_MAX {
            loop {
                let Changed { keys, is_cut } = listening.take();
                if is_cut {
                    return Ok(Followed::Lost);
                }
                self.carry_all(&keys).await?;
                if keys.len() <= FEW {
                    break;
                }
            }
            if !self.is_clean(DIRTY_PATIENCE).await? {
                continue;
            }
            if let Some(frozen) = self.bound.freeze(PATIENCE).await {
                match self.settle(listening).await? {
                    Settled::All => return self.cut_over(frozen).await.map(|()| Followed::Moved),
                    Settled::Lost => return Ok(Followed::Lost),
                    Settled::NotYet => {}
                }
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        Err(Stop::Failed(
            "writes to the bucket never paused for so long that the last of them could be copied; try it in a quieter hour".into(),
        ))
    }

    /// Waits until dirty writes have reached the old origin. Returns false after the time limit.
    async fn is_clean(&self, patience: Duration) -> Result<bool, Stop> {
        let queue = self.work.context.writeback.queue(&self.bucket);
        let Some(queue) = queue.map_err(|error| Stop::Failed(error.to_string()))? else { return Ok(true) };
        let is_through = tokio::time::timeout(patience, queue.through(queue.acked())).await.is_ok();
        self.check_contested(&queue)?;
        Ok(is_through)
    }

    fn check_contested(&self, queue: &Queue) -> Result<(), Stop> {
        match queue.dirty().foreign.first() {
            None => Ok(()),
            Some(key) => Err(Stop::Failed(format!(
                "somebody else wrote {key:?} at the old upstream before what was written here was there: `mlgw bucket flush {}` tells what to do",
                self.bucket.name
            ))),
        }
    }

    /// Sends dirty writes and copies the remaining keys while writes are paused, within the time limit.
    async fn settle(&self, listening: &Listening) -> Result<Settled, Stop> {
        if !self.is_clean(PATIENCE).await? {
            return Ok(Settled::NotYet);
        }
        let Changed { keys, is_cut } = listening.take();
        if is_cut {
            return Ok(Settled::Lost);
        }
        match tokio::time::timeout(PATIENCE, self.carry_all(&keys)).await {
            Ok(done) => done.map(|()| Settled::All),
            Err(_) => {
                listening.give_back(keys);
                Ok(Settled::NotYet)
            }
        }
    }

    async fn carry_all(&self, keys: &BTreeSet<ObjectKey>) -> Result<(), Stop> {
        let mut carried = stream::iter(keys)
            .map(|key| async move { (key, self.carrier.carry(key.as_str()).await) })
            .buffer_unordered(JOB_OBJECTS_MAX)
            .boxed();
        while let Some((key, carried)) = carried.next().await {
            self.note(key.as_str(), None, carried);
        }
        self.work.live.errors()
    }

    /// Switches the binding to the new origin while writes are paused. Runs to completion even if the job is
    /// cancelled meanwhile.
    async fn cut_over(&self, frozen: Frozen) -> Result<(), Stop> {
        let (context, bucket) = (self.work.context.clone(), self.bucket.clone());
        let (from, to, bound) = (self.from.clone(), self.to.clone(), self.bound.clone());
        let cut = tokio::spawn(async move {
            context.objects.catalogue.rebind_bucket(&bucket, from, to).await?;
            bound.was_moved();
            context.writeback.forget(bucket.bucket_id());
            drop(frozen);
            // For the next start, which does not know the time of the switch.
            tokio::task::spawn_blocking(move || bound.refresh(""));
            Ok::<_, mlgw_metadata::ProposeError>(())
        });
        let cut = cut.await.map_err(|error| Stop::Failed(error.to_string()))?;
        cut.map_err(|error| Stop::Failed(format!("the bucket was not bound to the new upstream: {error}")))
    }
}

/// Result of copying the last keys.
enum Settled {
    /// The new origin has all objects.
    All,
    /// The time limit was exceeded.
    NotYet,
    /// More keys were written than can be recorded.
    Lost,
}
