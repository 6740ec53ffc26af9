//! Checkpoints that a rule deletes, after their grace, as an S3 DELETE deletes objects.
//!
//! Always: a checkpoint is noted durably and watched a grace before; at the moment of deletion the policy still says so, and of its objects
//! exactly those go that were there when it was noted: one that was written since ends it for this round, and what only begins like them stays.

use super::Acting;
use super::pointed::{Pointee, pointed_at};
use super::standing::Outcome;
use super::walk::{Ended, Walk};
use crate::audit::Line;
use crate::s3::delete::delete;
use mlgw_common::limits::ROUND_DELETIONS_MAX;
use mlgw_common::{BucketId, ObjectKey};
use mlgw_metadata::Catalogue;
use mlgw_metadata::command::{Conditions, EtagCondition};
use mlgw_metadata::schema::{Bucket, BucketState, ObjectVersion};
use mlgw_policies::at_rest::{Note, Superfluous};
use mlgw_policies::checkpoints::{Checkpoints, GroupId, MustStay};
use mlgw_policies::language::{ActionKind, Tier};
use mlgw_tiering::decisions::{self, Decided, Kind, Place, What, Why};
use std::ops::Bound;
use std::sync::Arc;

/// Who deletes, in the audit log.
const WHO: &str = "policy";

/// What came of a checkpoint.
#[derive(Default)]
struct Deleted {
    objects: u64,
    bytes: u64,
    /// Where the first of it was.
    from: Option<Place>,
    /// Why not all of it went.
    error: Option<String>,
}

impl Acting {
    /// The engine watches what waits and what is about to.
    pub(super) fn watch_doomed(&self, superfluous: &[Superfluous]) {
        let notes = self.admin.standing.notes();
        let noted = notes.iter().map(|note| (note.bucket, note.prefix.as_str()));
        let coming = superfluous.iter().map(|one| (one.bucket, one.prefix.as_str()));
        self.admin.keeper.ask(|decider, _| decider.watched.set(noted.chain(coming)));
    }

    /// Notes what is superfluous now, and deletes that of which the grace is over.
    pub(super) async fn delete_due(
        self: &Arc<Self>,
        walk: Option<&Arc<Walk>>,
        mut superfluous: Vec<Superfluous>,
    ) -> Result<(), Ended> {
        self.watch_doomed(&superfluous);
        let began_ms = self.admin.keeper.began_ms();
        self.admin.keeper.ask(|decider, _| {
            for one in &mut superfluous {
                if let Some(at_us) = decider.watched.touched(one.bucket, &one.prefix) {
                    let at_ms = i64::try_from(began_ms + at_us / 1000).unwrap_or(i64::MAX);
                    one.touched_ms = one.touched_ms.max(at_ms);
                }
            }
        });
        let (acting, now_ms) = (Arc::clone(self), self.admin.clock.now().as_millis());
        let noted = tokio::task::spawn_blocking(move || acting.admin.standing.note(now_ms, &superfluous));
        let noted = noted.await.map_err(|error| Ended::Failed(error.to_string()))?;
        let due =
            noted.map_err(|error| Ended::Failed(format!("deletions that wait are not noted: {error}")))?;
        let Some(walk) = walk else { return Ok(()) };
        let mut left = ROUND_DELETIONS_MAX;
        for note in due {
            let bucket = self.admin.catalogue.buckets(None, None, usize::MAX);
            let bucket = bucket.into_iter().find(|bucket| bucket.id == note.bucket);
            let ours = bucket.filter(|one| one.binding.is_none() && one.state() == BucketState::Active);
            if let Some(bucket) = ours.filter(|_| left > 0) {
                let deleted = self.delete_one(walk, &bucket, &note, &mut left).await;
                self.note_deleted(&bucket, &note, deleted).await;
            }
        }
        Ok(())
    }

    /// Deletes the objects of a checkpoint, as many as may go in a round.
    async fn delete_one(&self, walk: &Walk, bucket: &Bucket, note: &Note, left: &mut usize) -> Deleted {
        let mut deleted = Deleted::default();
        let (catalogue, noted, id, most) =
            (self.admin.catalogue.clone(), note.clone(), bucket.bucket_id(), *left);
        let found = tokio::task::spawn_blocking(move || objects_of(&catalogue, id, &noted, most));
        let objects = match found.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(objects) => objects,
            Err(error) => return Deleted { error: Some(error), ..deleted },
        };
        if !self.has_newer(walk, bucket, note) {
            return Deleted { error: Some("no newer one of its run is whole".to_owned()), ..deleted };
        }
        if let Some(why) = self.must_stay(walk, bucket, &objects).await {
            return Deleted { error: Some(why), ..deleted };
        }
        for (key, object) in objects {
            if let Some(why) = self.called_off(walk, note, (bucket, &key)) {
                deleted.error = Some(why);
                break;
            }
            let conditions = Conditions {
                if_match: Some(EtagCondition::one_of(vec![object.etag.clone()])),
                // The same bytes may have been written again.
                if_match_modified_ms: Some(object.modified_ms),
                ..Conditions::default()
            };
            deleted.from = deleted.from.or_else(|| self.first_place(bucket, &key, &object));
            *left -= 1;
            if let Err(error) = delete(&self.gateway, bucket, &key, self.admin.clock.now(), conditions).await
            {
                deleted.error = Some(error.text().to_owned());
                break;
            }
            self.admin.keeper.ask(|decider, _| decider.checkpoints.deleted(bucket.id, key.as_str()));
            deleted.objects += 1;
            deleted.bytes += object.size;
        }
        deleted
    }

    fn first_place(&self, bucket: &Bucket, key: &ObjectKey, object: &ObjectVersion) -> Option<Place> {
        Some(match self.admin.known(bucket, key, object).ok()?.tier? {
            Tier::Memory | Tier::Hot => Place::Hot,
            Tier::Cold => Place::Cold,
            Tier::Upstream => Place::Upstream,
        })
    }

    /// Why none of the objects of a checkpoint is to be deleted.
    async fn must_stay(
        &self,
        walk: &Walk,
        bucket: &Bucket,
        objects: &[(ObjectKey, ObjectVersion)],
    ) -> Option<String> {
        let (first, _) = objects.first()?;
        let Some(group) = walk.own.group_of(bucket.id, first.as_str()) else {
            return Some(MustStay::Unknown.why());
        };
        match walk.own.better(group.id) {
            Err(why) => Some(why.why()),
            // It may have gone since the walk saw it.
            Ok(better) if !self.is_there(walk, bucket, better) => Some(MustStay::NoneBetter.why()),
            Ok(_) => pointed_at(&self.admin, &Pointee::from(&group)).await,
        }
    }

    /// Whether the newest complete checkpoint of the run, by what the walk has found, is another one and still there.
    fn has_newer(&self, walk: &Walk, bucket: &Bucket, note: &Note) -> bool {
        let series = walk
            .own
            .series()
            .filter(|series| series.bucket == bucket.id)
            .find(|series| walk.own.generations(series.id).iter().any(|one| one.prefix == note.prefix));
        let newest = series.and_then(|series| walk.own.newest_complete(series.id));
        newest
            .filter(|newest| newest.prefix != note.prefix)
            .is_some_and(|newest| self.is_there(walk, bucket, newest.id))
    }

    /// Whether all files of a checkpoint that the walk has found are still there.
    fn is_there(&self, walk: &Walk, bucket: &Bucket, id: GroupId) -> bool {
        let (Some(group), Some(mut members)) = (walk.own.group(id), walk.own.members(id)) else {
            return false;
        };
        members.all(|(rest, _)| {
            let key = ObjectKey::new(&format!("{}{rest}", group.prefix));
            let object = key.ok().and_then(|key| self.admin.catalogue.object(bucket.bucket_id(), &key).ok());
            object.flatten().is_some_and(|object| !object.delete_marker)
        })
    }

    /// Why a deletion that is due is not to be done after all.
    fn called_off(&self, walk: &Walk, note: &Note, (bucket, key): (&Bucket, &ObjectKey)) -> Option<String> {
        if !Arc::ptr_eq(&self.admin.policies.running().program, &walk.program) {
            return Some("the policy has changed".to_owned());
        }
        let pins = self.admin.jobs.dataset_pins();
        if pins.iter().any(|pin| pin.holds(bucket.bucket_id(), key.as_str())) {
            return Some("somebody has pinned its dataset".to_owned());
        }
        let touched = self.admin.keeper.ask(|decider, _| decider.watched.touched(note.bucket, &note.prefix));
        let at_ms = touched.map(|at_us| self.admin.keeper.began_ms() + at_us / 1000);
        let is_touched = at_ms.is_some_and(|at_ms| i64::try_from(at_ms).unwrap_or(i64::MAX) >= note.noted_ms);
        is_touched.then(|| "it was read or written meanwhile".to_owned())
    }

    /// Leaves a line in the audit log and in that of decisions.
    async fn note_deleted(&self, bucket: &Bucket, note: &Note, deleted: Deleted) {
        let Deleted { objects, bytes, from, error } = deleted;
        let is_news = self.admin.standing.set_stays(note, error.as_deref());
        if objects == 0 && !is_news {
            return;
        }
        self.admin.standing.count(ActionKind::Retain, Outcome::Done, objects);
        let (kind, why) = (Kind::Delete, Why::rule(&note.rule));
        let what = What::Objects { bucket: bucket.bucket_id(), count: objects, prefix: &note.prefix };
        let (from, to) = (from.unwrap_or(Place::Hot), Place::Nowhere);
        let decided = |outcome| Decided { kind, what, from, to, bytes, why, outcome };
        if objects > 0 {
            self.admin.decisions.record(&decided(decisions::Outcome::Done));
        }
        if let Some(error) = &error {
            self.admin.standing.count(ActionKind::Retain, Outcome::Failed, 1);
            self.admin
                .decisions
                .record_because(&Decided { bytes: 0, ..decided(decisions::Outcome::Failed) }, error);
        }
        let line = Line {
            time: self.admin.clock.now().to_string(),
            who: WHO.to_owned(),
            from: String::new(),
            action: "policy.retain.delete".to_owned(),
            resource: format!("s3://{}/{}", bucket.name, note.prefix),
            before: serde_json::json!({"rule": note.rule, "objects": objects, "bytes": bytes}),
            after: serde_json::Value::Null,
            outcome: error.unwrap_or_else(|| "done".to_owned()),
        };
        if let Err(error) = self.admin.audit.write(line).await {
            tracing::error!(%error, "a deletion by a rule is not in the audit log");
        }
    }
}

/// The objects of a checkpoint, none of which was written since it was noted; so many of them at most.
fn objects_of(
    catalogue: &Catalogue,
    bucket: BucketId,
    note: &Note,
    most: usize,
) -> Result<Vec<(ObjectKey, ObjectVersion)>, String> {
    let reader = catalogue.reader();
    let mut objects = Vec::new();
    for found in reader.scan(bucket, Bound::Included(note.prefix.as_bytes())) {
        let (key, entry) = found.map_err(|error| error.to_string())?;
        if !key.as_str().starts_with(&note.prefix) || objects.len() == most {
            break;
        }
        // What somebody keeps beside them, or in their folder, is not theirs.
        if Checkpoints::prefix_of(key.as_str()) != Some(&note.prefix) {
            continue;
        }
        let object = entry.version().map_err(|error| error.to_string())?;
        if object.modified_ms >= note.noted_ms {
            return Err(format!("{key} was written meanwhile"));
        }
        if !object.delete_marker {
            objects.push((key, object));
        }
    }
    Ok(objects)
}
