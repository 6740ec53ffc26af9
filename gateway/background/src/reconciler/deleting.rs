//! Deletes expired checkpoints after their grace period, in the same way as an S3 DELETE.
//!
//! A checkpoint is recorded durably as pending, and its accesses are watched, for a whole grace period
//! before. At the time of deletion the policy still demands it, and exactly those of its objects are deleted
//! that existed when it was recorded: an object written since ends the deletion for this pass, and keys that
//! merely share the prefix stay.

use super::PolicyReconciler;
use super::groups::{RetentionMatches, moment_of};
use super::pass_end::PassEnd;
use super::references::{EndangeredCheckpoints, ReferencedCheckpoints, find_references};
use super::retention_state::{RetentionState, RuleActionOutcome};
use super::scan::ReconcilerScan;
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_common::limits::PASS_DELETIONS_MAX;
use mlgw_common::{BucketId, Clock as _, ObjectKey, Tier};
use mlgw_formats::command::{Conditions, EtagCondition};
use mlgw_formats::decision_entry::{DecisionCause, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionPlace};
use mlgw_formats::schema::{Bucket, BucketState, ObjectVersion};
use mlgw_metadata::Catalogue;
use mlgw_policies::at_rest::{ExpiredCheckpoint, PendingDeletion};
use mlgw_policies::checkpoints::{CheckpointIndex, DeletionGuard, Generation, GroupId};
use mlgw_policies::language::ActionKind;
use mlgw_segments::decisions;
use mlgw_telemetry::audit::AuditLine;
use std::collections::BTreeSet;
use std::io;
use std::ops::Bound;
use std::sync::Arc;

/// Author of deletions in the audit log.
const AUTHOR: &str = "policy";

/// Result of deleting a checkpoint.
#[derive(Default)]
struct CheckpointDeletion {
    objects: u64,
    bytes: u64,
    /// Tier of the first deleted object.
    from: Option<DecisionPlace>,
    /// Reason why not all objects were deleted.
    error: Option<String>,
}

/// Sets the checkpoints whose accesses the engine watches: those with a pending deletion, and those about to
/// get one. Called before the access journal is replayed, so that no read is lost by a restart.
pub fn watch_pending_deletions(
    standing: &RetentionState,
    policy_driver: &PolicyDriver,
    expired: &[ExpiredCheckpoint],
) {
    let notes = standing.pending_deletions();
    let pending = notes.iter().map(|note| (note.bucket, note.prefix.as_str()));
    let coming = expired.iter().map(|one| (one.bucket, one.prefix.as_str()));
    policy_driver.with_engine(|decider, _| decider.watched.set(pending.chain(coming)));
}

impl PolicyReconciler {
    /// Records the expired checkpoints as pending, and deletes those whose grace period is over.
    pub(super) async fn delete_due(
        self: &Arc<Self>,
        walk: Option<&Arc<ReconcilerScan>>,
        mut expired: Vec<ExpiredCheckpoint>,
    ) -> Result<(), PassEnd> {
        if self.context.stored.catalogue.is_clustered() {
            // This node does not observe the reads through others. Their policy is refused too.
            return Ok(());
        }
        watch_pending_deletions(&self.context.retention, &self.context.policy_driver, &expired);
        let now_ms = self.context.clock.now().as_millis();
        for one in &mut expired {
            let at_ms = self.last_access_ms(one.bucket, &one.prefix).unwrap_or(i64::MIN);
            // A rule that was removed and restored counts as an access: the grace period starts again.
            let since_ms = self.context.policies.deletes_since_ms(&one.rule);
            one.last_used_ms = one.last_used_ms.max(at_ms).max(since_ms);
            // The removal of a guard counts as an access, too, because no grace period has passed since.
            if one.guards.is_empty()
                && self.context.retention.pending_guard(one.bucket, &one.prefix).is_some()
            {
                one.last_used_ms = now_ms;
            }
        }
        // Guarded checkpoints come last: the number of pending deletions is limited, and deletable ones need
        // the places.
        expired.sort_by_cached_key(|one| self.context.retention.guard(one.bucket, &one.prefix).is_some());
        let goes = expired.iter().filter(|one| one.guards.is_empty());
        let goes: BTreeSet<_> = goes.map(|one| (one.bucket, one.prefix.clone())).collect();
        let recording = self
            .write_durably("pending deletions", move |standing| standing.record_expired(now_ms, &expired));
        let due = recording.await?;
        let Some(walk) = walk else { return Ok(()) };
        let named = self.find_references(walk, &due, &goes).await;
        let mut left = PASS_DELETIONS_MAX;
        for note in due {
            let bucket = self.context.stored.catalogue.buckets(None, None, usize::MAX);
            let bucket = bucket.into_iter().find(|bucket| bucket.id == note.bucket);
            let ours = bucket.filter(|one| one.binding.is_none() && one.state() == BucketState::Active);
            if let Some(bucket) = ours.filter(|_| left > 0)
                && let Some(deleted) = self.delete_one(walk, &bucket, &note, &named, &mut left).await
            {
                self.record_deletion(&bucket, &note, deleted).await;
            }
        }
        Ok(())
    }

    /// Finds the due checkpoints that files refer to. `goes` are all checkpoints to be deleted, now or later.
    async fn find_references(
        &self,
        walk: &ReconcilerScan,
        due: &[PendingDeletion],
        goes: &BTreeSet<(u64, String)>,
    ) -> ReferencedCheckpoints {
        let is_due: BTreeSet<_> = due.iter().map(|note| (note.bucket, note.prefix.as_str())).collect();
        let all = walk.own.series().flat_map(|series| walk.own.generations(series.id));
        let due = all.filter(|one| is_due.contains(&(one.bucket, one.prefix)));
        let due: Vec<GroupId> = due.map(|one| one.id).collect();
        let goes = |one: &Generation<'_>| goes.contains(&(one.bucket, one.prefix.to_owned()));
        find_references(&self.context.stored, &EndangeredCheckpoints::of(&walk.own, &due, goes)).await
    }

    /// Records the intervals between checkpoints durably, before any checkpoint is deleted from which they
    /// follow.
    pub(super) async fn record_spacings(
        &self,
        walk: &Arc<ReconcilerScan>,
        retained: &RetentionMatches,
    ) -> Result<(), PassEnd> {
        let thinned: Vec<_> = retained.thinned().collect();
        let walk = Arc::clone(walk);
        let recording = self.write_durably("intervals of checkpoints", move |standing| {
            let mut spacings = standing.spacings();
            spacings.learn(&walk.own, thinned.into_iter());
            standing.record_spacings(spacings)
        });
        recording.await
    }

    /// Runs a durable write on a blocking thread.
    async fn write_durably<T: Send + 'static>(
        &self,
        what: &str,
        note: impl FnOnce(&RetentionState) -> io::Result<T> + Send + 'static,
    ) -> Result<T, PassEnd> {
        let standing = Arc::clone(&self.context.retention);
        let written = tokio::task::spawn_blocking(move || note(&standing)).await;
        let written = written.map_err(|error| PassEnd::Failed(error.to_string()))?;
        written.map_err(|error| PassEnd::Failed(format!("cannot record {what}: {error}")))
    }

    /// Returns the last access to a watched checkpoint, in milliseconds since 1970.
    fn last_access_ms(&self, bucket: u64, prefix: &str) -> Option<i64> {
        let (began_ms, now_ms) =
            (self.context.policy_driver.began_ms(), self.context.clock.now().as_millis());
        let access = self
            .context
            .policy_driver
            .with_engine(|decider, now_us| Some((decider.watched.last_used_us(bucket, prefix)?, now_us)));
        let (at_us, now_us) = access?;
        Some(EngineClock { began_ms, now_us }.to_ms(at_us, now_ms))
    }

    /// Deletes the objects of a checkpoint, at most `left`. Returns `None` if the checkpoint does not fit
    /// into what is left of this pass.
    async fn delete_one(
        &self,
        walk: &ReconcilerScan,
        bucket: &Bucket,
        note: &PendingDeletion,
        named: &ReferencedCheckpoints,
        left: &mut usize,
    ) -> Option<CheckpointDeletion> {
        assert_eq!(note.bucket, bucket.id, "a checkpoint is deleted from its own bucket");
        let mut deleted = CheckpointDeletion::default();
        let held = self.context.retention.pending_guard(note.bucket, &note.prefix);
        if let Some(why) = held.or_else(|| named.reason(note.bucket, &note.prefix).map(str::to_owned)) {
            return Some(CheckpointDeletion { error: Some(why), ..deleted });
        }
        let (catalogue, recorded, id, most) =
            (self.context.stored.catalogue.clone(), note.clone(), bucket.bucket_id(), *left);
        let found = tokio::task::spawn_blocking(move || objects_of(&catalogue, id, &recorded, most));
        let objects = match found.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(objects) => objects,
            Err(error) => return Some(CheckpointDeletion { error: Some(error), ..deleted }),
        };
        if !self.has_newer(walk, bucket, note) {
            return Some(CheckpointDeletion {
                error: Some("no newer checkpoint of the run is complete".to_owned()),
                ..deleted
            });
        }
        assert!(objects.len() <= most, "a pass deletes at most its limit");
        let is_all = objects.len() < most;
        if !is_all && most < PASS_DELETIONS_MAX {
            // It is deleted as a whole in the next pass: a partly deleted checkpoint carries less evidence.
            return None;
        }
        if let Some(why) = self.deletion_guard(walk, bucket, named, &objects, most).await {
            return Some(CheckpointDeletion { error: Some(why), ..deleted });
        }
        for (key, object) in objects {
            if let Some(why) = self.cancel_reason(walk, note, bucket, &key) {
                deleted.error = Some(why);
                break;
            }
            let conditions = Conditions {
                if_match: Some(EtagCondition::one_of(vec![object.etag.clone()])),
                // The same bytes may have been written again in the same millisecond.
                if_match_seq: Some(object.seq),
                ..Conditions::default()
            };
            deleted.from = deleted.from.or_else(|| self.first_place(bucket, &key, &object));
            *left -= 1;
            let now = self.context.clock.now();
            if let Err(error) = self.objects.delete(bucket, &key, now, conditions).await {
                deleted.error = Some(error.to_string());
                break;
            }
            self.context
                .policy_driver
                .with_engine(|decider, _| decider.checkpoints.record_delete(bucket.id, key.as_str()));
            deleted.objects += 1;
            deleted.bytes += object.size;
        }
        Some(deleted)
    }

    fn first_place(&self, bucket: &Bucket, key: &ObjectKey, object: &ObjectVersion) -> Option<DecisionPlace> {
        Some(match self.context.stored.object_facts(bucket, key, object).ok()?.tier? {
            Tier::Memory | Tier::Hot => DecisionPlace::Hot,
            Tier::Cold => DecisionPlace::Cold,
            Tier::Upstream => DecisionPlace::Upstream,
        })
    }

    /// Returns the guard that prevents the deletion of a checkpoint, if any. `objects` are its first `most`
    /// objects.
    async fn deletion_guard(
        &self,
        walk: &ReconcilerScan,
        bucket: &Bucket,
        named: &ReferencedCheckpoints,
        objects: &[(ObjectKey, ObjectVersion)],
        most: usize,
    ) -> Option<String> {
        let (first, _) = objects.first()?;
        let Some(group) = walk.own.group_of(bucket.id, first.as_str()) else {
            return Some(DeletionGuard::Unknown.reason());
        };
        if objects.len() < most && objects.len() != group.files as usize {
            return Some("its files have changed since the scan".to_owned());
        }
        let better = match walk.own.replacements(group.id) {
            Err(doubts) => return Some(DeletionGuard::reasons(&doubts)),
            Ok(better) => better,
        };
        match named.is_unchanged(&self.context.stored, bucket.id, group.parent).await {
            Ok(true) => {}
            Ok(false) => {
                return Some(
                    "a small file beside it, which may refer to it, was written in the meantime".to_owned(),
                );
            }
            Err(why) => return Some(why),
        }
        // They may have been deleted or overwritten since the scan.
        let are_intact = better.iter().all(|id| is_intact(&walk.own, *id, |key| self.found(bucket, key)));
        (!are_intact).then(|| DeletionGuard::NoReplacement.reason())
    }

    /// Returns true if the newest complete checkpoint of the run, as found by the scan, is another one and is
    /// still intact.
    fn has_newer(&self, walk: &ReconcilerScan, bucket: &Bucket, note: &PendingDeletion) -> bool {
        let series = walk
            .own
            .series()
            .filter(|series| series.bucket == bucket.id)
            .find(|series| walk.own.generations(series.id).iter().any(|one| one.prefix == note.prefix));
        let newest = series.and_then(|series| walk.own.newest_complete(series.id));
        newest
            .filter(|newest| newest.prefix != note.prefix)
            .is_some_and(|newest| is_intact(&walk.own, newest.id, |key| self.found(bucket, key)))
    }

    /// Returns the present version of a key, if the catalogue can be read and has one.
    fn found(&self, bucket: &Bucket, key: &str) -> Option<ObjectVersion> {
        let key = ObjectKey::new(key).ok()?;
        self.context.stored.catalogue.object(bucket.bucket_id(), &key).ok()?
    }

    /// Returns the reason why a due deletion is cancelled, if any.
    fn cancel_reason(
        &self,
        walk: &ReconcilerScan,
        note: &PendingDeletion,
        bucket: &Bucket,
        key: &ObjectKey,
    ) -> Option<String> {
        if !Arc::ptr_eq(&self.context.policies.running().program, &walk.program) {
            return Some("the policy has changed".to_owned());
        }
        if !self.context.clock.is_confirmed() {
            return Some("the clock of this node is not confirmed by other nodes".to_owned());
        }
        let pins = self.context.jobs.dataset_pins();
        if pins.iter().any(|pin| pin.includes(bucket.bucket_id(), key.as_str())) {
            return Some("its dataset is pinned".to_owned());
        }
        let at_ms = self.last_access_ms(note.bucket, &note.prefix);
        let is_touched = at_ms.is_some_and(|at_ms| at_ms >= note.recorded_ms);
        is_touched.then(|| "it was read or written in the meantime".to_owned())
    }

    /// Records a deletion in the audit log and in the decision log.
    async fn record_deletion(&self, bucket: &Bucket, note: &PendingDeletion, deleted: CheckpointDeletion) {
        let CheckpointDeletion { objects, bytes, from, error } = deleted;
        let is_news = self.context.retention.set_guard(note, error.as_deref());
        if objects == 0 && !is_news {
            return;
        }
        self.context.retention.count(ActionKind::Retain, RuleActionOutcome::Done, objects);
        let (kind, why) = (DecisionKind::Delete, DecisionCause::rule(&note.rule));
        let what =
            DecisionSubject::Objects { bucket: bucket.bucket_id(), count: objects, prefix: &note.prefix };
        let (from, to) = (from.unwrap_or(DecisionPlace::Hot), DecisionPlace::Nowhere);
        let decided =
            |outcome| PlacementDecision { kind, subject: what, from, to, bytes, cause: why, outcome };
        if objects > 0 {
            self.context.decisions.record(&decided(decisions::DecisionOutcome::Done));
        }
        if let Some(error) = &error {
            self.context.retention.count(ActionKind::Retain, RuleActionOutcome::Failed, 1);
            self.context.decisions.record_because(
                &PlacementDecision { bytes: 0, ..decided(decisions::DecisionOutcome::Failed) },
                error,
            );
        }
        let line = AuditLine {
            time: self.context.clock.now().to_string(),
            who: AUTHOR.to_owned(),
            from: String::new(),
            action: "policy.retain.delete".to_owned(),
            resource: format!("s3://{}/{}", bucket.name, note.prefix),
            before: serde_json::json!({"rule": note.rule, "objects": objects, "bytes": bytes}),
            after: serde_json::Value::Null,
            outcome: error.unwrap_or_else(|| "done".to_owned()),
        };
        if let Err(error) = self.context.audit.write(line).await {
            tracing::error!(%error, "cannot write a deletion by a rule to the audit log");
        }
    }
}

/// Clock of the engine, which counts microseconds since it began.
#[derive(Clone, Copy)]
struct EngineClock {
    /// Beginning, in milliseconds since 1970.
    began_ms: u64,
    /// Present time of the engine.
    now_us: u64,
}

impl EngineClock {
    /// Converts a time of the engine to milliseconds since 1970; `now_ms` is the present time. The wall clock
    /// may have been corrected since the engine began: the later of the two possible results is returned.
    fn to_ms(self, at_us: u64, now_ms: i64) -> i64 {
        let millis = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let since_begin = millis(self.began_ms.saturating_add(at_us / 1000));
        since_begin.max(now_ms.saturating_sub(millis(self.now_us.saturating_sub(at_us) / 1000)))
    }
}

/// Returns true if all files of a checkpoint are present as the scan has found them; `object` returns the
/// present version of a key.
fn is_intact(own: &CheckpointIndex, id: GroupId, object: impl Fn(&str) -> Option<ObjectVersion>) -> bool {
    let (Some(group), Some(mut members)) = (own.group(id), own.members(id)) else {
        return false;
    };
    members.all(|(rest, bytes, at)| {
        object(&format!("{}{rest}", group.prefix))
            .is_some_and(|object| !object.delete_marker && object.size == bytes && moment_of(&object) == at)
    })
}

/// Returns the objects of a checkpoint, at most `most`.
///
/// # Errors
/// If an object was written since the checkpoint was recorded.
fn objects_of(
    catalogue: &Catalogue,
    bucket: BucketId,
    note: &PendingDeletion,
    most: usize,
) -> Result<Vec<(ObjectKey, ObjectVersion)>, String> {
    let reader = catalogue.reader();
    let mut objects = Vec::new();
    for found in reader.scan(bucket, Bound::Included(note.prefix.as_bytes())) {
        let (key, entry) = found.map_err(|error| error.to_string())?;
        if !key.as_str().starts_with(&note.prefix) || objects.len() == most {
            break;
        }
        // Other keys beside the checkpoint's files, or in their folder, are not part of it.
        if CheckpointIndex::prefix_of(key.as_str()) != Some(&note.prefix) {
            continue;
        }
        let object = entry.version().map_err(|error| error.to_string())?;
        // Last-Modified may be older than the record, as for a write that began before it.
        if object.seq > note.seq {
            return Err(format!("{key} was written in the meantime"));
        }
        if !object.delete_marker {
            objects.push((key, object));
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::{EngineClock, ObjectVersion, is_intact};
    use mlgw_policies::checkpoints::{CheckpointIndex, Limits, WriteTime};

    #[test]
    fn a_corrected_clock_makes_no_read_older() {
        // The engine began at 1 s and is now at 5 s; the read happened at its third second.
        let clock = EngineClock { began_ms: 1_000, now_us: 5_000_000 };
        let touched = |now_ms| clock.to_ms(3_000_000, now_ms);
        assert_eq!(touched(6_000), 4_000, "both clocks agree");
        assert_eq!(touched(100_000), 98_000, "the clock was behind when it began");
        assert_eq!(touched(2_000), 4_000, "or before");
    }

    #[test]
    fn checkpoints_overwritten_or_deleted_since_the_scan_are_not_intact() {
        let keys = ["run/step-2/__0_0.distcp", "run/step-2/.metadata"];
        let mut own = CheckpointIndex::new(Limits::default());
        for key in keys {
            own.record_stored(WriteTime { seq: 3, at_us: 7_000 }, 1, key, 10);
        }
        let id = own.group_of(1, keys[0]).unwrap().id;
        let seen = ObjectVersion { seq: 3, size: 10, modified_ms: 7, ..ObjectVersion::default() };
        assert!(is_intact(&own, id, |_| Some(seen.clone())));
        for now in [
            None,
            Some(ObjectVersion { size: 9, ..seen.clone() }),
            Some(ObjectVersion { seq: 4, ..seen.clone() }),
            Some(ObjectVersion { delete_marker: true, ..seen.clone() }),
        ] {
            for changed in keys {
                let object = |key: &str| if key == changed { now.clone() } else { Some(seen.clone()) };
                assert!(!is_intact(&own, id, object), "{changed}: {now:?}");
            }
        }
        own.forget(id);
        assert!(!is_intact(&own, id, |_| Some(seen.clone())));
    }
}
