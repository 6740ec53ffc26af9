//! Buckets: the steps of their lifecycle in group 0 and in object groups, each repeatable.

use super::{duty, malformed, ranges, release, usage};
use crate::store_error::StoreError;
use crate::view::{ApplyError, View};
use mlgw_common::BucketId;
use mlgw_common::limits::{BUCKETS_MAX, JOB_ROWS_MAX};
use mlgw_formats::command::{
    CreateBucket, DropBucket, FreezeBucket, MirrorBucket, RebindBucket, Reject, RemoveBucket, Reply,
    SetBucketState, SetBucketTerm, ThawBucket,
};
use mlgw_formats::key::Family;
use mlgw_formats::schema::meta::{Counter, MetaRow, SagaRun};
use mlgw_formats::schema::{Bucket, BucketState, BucketUsage, Mirror, ReleaseScope, bucket, decode, upload};

pub(super) fn create(view: &mut View<'_>, command: &CreateBucket) -> Result<Reply, ApplyError> {
    let row = bucket::row(&command.name);
    if let Some(taken) = view.get::<Bucket>(&row)? {
        return Err(match taken.state() {
            BucketState::Active => Reject::BucketExists { owner: taken.owner },
            BucketState::Creating | BucketState::Deleting => Reject::BucketBusy,
        }
        .into());
    }
    if count_owned(view, &command.owner)? >= BUCKETS_MAX {
        return Err(Reject::TooManyBuckets.into());
    }
    let bucket = Bucket {
        id: next_id(view, MetaRow::NextBucket, 1)?,
        name: command.name.clone(),
        owner: command.owner.clone(),
        created_ms: command.created_ms,
        region: command.region.clone(),
        binding: command.binding.clone(),
        state: BucketState::Creating as i32,
        epoch: 1,
        ..Bucket::default()
    };
    view.put(row, &bucket);
    ranges::assign_new(view, bucket.bucket_id(), command)?;
    Ok(Reply::Bucket(bucket))
}

fn count_owned(view: &View<'_>, owner: &str) -> Result<usize, StoreError> {
    let rows = view.range(&Family::Bucket.start(), &Family::Bucket.end(), usize::MAX)?;
    let mut owned = 0;
    for (_, value) in rows {
        owned += usize::from(decode::<Bucket>(&value)?.owner == owner);
    }
    Ok(owned)
}

/// Allocates `count` ids from a counter and returns the first.
pub(super) fn next_id(view: &mut View<'_>, counter: MetaRow, count: u64) -> Result<u64, StoreError> {
    assert!(count > 0, "at least one id is allocated");
    let row = counter.row();
    let first = view.get::<Counter>(&row)?.unwrap_or_default().next.max(1);
    let next = first.checked_add(count).ok_or_else(|| StoreError("an ID counter is exhausted".into()))?;
    view.put(row, &Counter { next });
    Ok(first)
}

pub(super) fn set_state(view: &mut View<'_>, command: &SetBucketState) -> Result<Reply, ApplyError> {
    let row = bucket::row(&command.name);
    let mut bucket = bucket_with_id(view, &row, command.bucket_id)?;
    let (from, to) = (bucket.state(), command.state());
    match (from, to) {
        (BucketState::Creating, BucketState::Active) | (BucketState::Active, BucketState::Deleting) => {}
        // The bucket was not empty. The mirrors already have the next epoch, see `catalogue/sagas.rs`.
        (BucketState::Deleting, BucketState::Active) => bucket.epoch += 1,
        _ if from == to => return Ok(Reply::Bucket(bucket)),
        _ => return Err(Reject::BucketBusy.into()),
    }
    bucket.state = to as i32;
    view.put(row, &bucket);
    Ok(Reply::Bucket(bucket))
}

pub(super) fn rebind(view: &mut View<'_>, command: &RebindBucket) -> Result<Reply, ApplyError> {
    let row = bucket::row(&command.name);
    let mut bucket = bucket_with_id(view, &row, command.bucket_id)?;
    duty::check_term(view, command.duty_term)?;
    if bucket.binding.as_ref() == Some(&command.to) {
        return Ok(Reply::Bucket(bucket));
    }
    if bucket.state() != BucketState::Active || bucket.binding.as_ref() != Some(&command.from) {
        return Err(Reject::BucketBusy.into());
    }
    bucket.binding = Some(command.to.clone());
    view.put(row, &bucket);
    Ok(Reply::Bucket(bucket))
}

fn bucket_with_id(view: &View<'_>, row: &[u8], id: u64) -> Result<Bucket, ApplyError> {
    let found = view.get::<Bucket>(row)?.filter(|bucket| bucket.id == id);
    found.ok_or(ApplyError::Reject(Reject::NoSuchBucket))
}

pub(super) fn remove(view: &mut View<'_>, command: &RemoveBucket) -> Result<Reply, ApplyError> {
    let row = bucket::row(&command.name);
    let bucket = bucket_with_id(view, &row, command.bucket_id)?;
    if bucket.state() != BucketState::Deleting {
        return Err(Reject::BucketBusy.into());
    }
    view.delete(row);
    ranges::remove(view, bucket.bucket_id())?;
    Ok(Reply::Done)
}

pub(super) fn mirror(view: &mut View<'_>, command: &MirrorBucket) -> Result<Reply, ApplyError> {
    check_run(view, command.run)?;
    let row = bucket::mirror_row(BucketId(command.bucket_id));
    let known: Option<Mirror> = view.get(&row)?;
    if known.as_ref().is_some_and(|mirror| mirror.epoch >= command.epoch) {
        return Ok(Reply::Done);
    }
    let mirror = Mirror {
        versioning: command.versioning,
        lock_default: command.lock_default,
        epoch: command.epoch,
        frozen: known.as_ref().is_some_and(|mirror| mirror.frozen),
        quota: known.as_ref().and_then(|mirror| mirror.quota),
        slice: known.as_ref().and_then(|mirror| mirror.slice),
        duty_term: known.map_or(0, |mirror| mirror.duty_term),
    };
    view.put(row, &mirror);
    Ok(Reply::Done)
}

pub(super) fn freeze(view: &mut View<'_>, command: FreezeBucket) -> Result<Reply, ApplyError> {
    let id = BucketId(command.bucket_id);
    let row = bucket::mirror_row(id);
    let mirror: Mirror = view.get(&row)?.ok_or(Reject::NoSuchBucket)?;
    check_epoch(&mirror, command.epoch)?;
    let usage: BucketUsage = view.get(&mlgw_formats::schema::usage::bucket_row(id))?.unwrap_or_default();
    if !usage.is_empty() {
        return Err(Reject::BucketNotEmpty.into());
    }
    view.put(row, &Mirror { frozen: true, ..mirror });
    Ok(Reply::Done)
}

pub(super) fn thaw(view: &mut View<'_>, command: ThawBucket) -> Result<Reply, ApplyError> {
    let row = bucket::mirror_row(BucketId(command.bucket_id));
    let mirror: Mirror = view.get(&row)?.ok_or(Reject::NoSuchBucket)?;
    check_epoch(&mirror, command.epoch)?;
    view.put(row, &Mirror { frozen: false, ..mirror });
    Ok(Reply::Done)
}

pub(super) fn set_term(view: &mut View<'_>, command: SetBucketTerm) -> Result<Reply, ApplyError> {
    let row = bucket::mirror_row(BucketId(command.bucket_id));
    let mirror: Mirror = view.get(&row)?.ok_or(Reject::NoSuchBucket)?;
    check_term(&mirror, Some(command.duty_term))?;
    view.put(row, &Mirror { duty_term: command.duty_term, ..mirror });
    Ok(Reply::Done)
}

/// Checks that no later term of duty than that of a command has taken the bucket over. A command without a
/// term is of a local bucket, or of a build that knows none.
pub(super) fn check_term(mirror: &Mirror, term: Option<u64>) -> Result<(), Reject> {
    let known = mirror.duty_term;
    if term.is_some_and(|term| term < known) { Err(Reject::TermEnded { term: known }) } else { Ok(()) }
}

/// Checks that the bucket did not become active again since a freeze or thaw was built. A delayed freeze
/// would make the bucket unwritable for ever: its deletion is over, so nothing thaws it.
fn check_epoch(mirror: &Mirror, built_at: Option<u64>) -> Result<(), Reject> {
    if built_at.is_some_and(|epoch| epoch < mirror.epoch) { Err(Reject::StaleEpoch) } else { Ok(()) }
}

/// Checks that no later run of a saga has dropped a bucket in this group. A mirror that is delayed until then
/// would leave a row of a bucket that does not exist, which accepts writes. Runs are one after the other, so
/// the runner of the command has ended.
fn check_run(view: &View<'_>, run: Option<u64>) -> Result<(), ApplyError> {
    let Some(run) = run else { return Ok(()) };
    match view.get::<SagaRun>(&MetaRow::LastDrop.row())? {
        Some(last) if run < last.index => Err(Reject::SagaEnded.into()),
        _ => Ok(()),
    }
}

pub(super) fn drop(view: &mut View<'_>, command: DropBucket) -> Result<Reply, ApplyError> {
    check_run(view, command.run)?;
    if let Some(index) = command.run {
        view.put(MetaRow::LastDrop.row(), &SagaRun { index });
    }
    let id = BucketId(command.bucket_id);
    let row = bucket::mirror_row(id);
    let Some(mirror) = view.get::<Mirror>(&row)? else {
        return Ok(Reply::StepDone { more: false });
    };
    if !mirror.frozen {
        return Err(malformed("the bucket must be frozen before it is dropped"));
    }
    let rows_max = (command.rows_max as usize).clamp(1, JOB_ROWS_MAX);
    let uploads = view.range(&upload::row_from(id, b""), &upload::rows_end(id), rows_max)?;
    let more = uploads.len() == rows_max;
    for (row, value) in uploads {
        let (_, _, body) = upload::key_of(&row)?;
        usage::refund_upload(view, &decode(&value)?)?;
        release::queue(view, body, ReleaseScope::Whole);
        view.delete(row);
    }
    if !more {
        view.delete(row);
        view.delete(mlgw_formats::schema::usage::bucket_row(id));
    }
    Ok(Reply::StepDone { more })
}

#[cfg(test)]
mod tests {
    use crate::apply::{apply, seq_of};
    use crate::view::{MemoryRows, View};
    use mlgw_common::BucketId;
    use mlgw_formats::command::{
        Change, Command, DeleteObject, DropBucket, FreezeBucket, MirrorBucket, ObjectChange, ObjectCommand,
        Reject, Reply, SetBucketTerm, ThawBucket,
    };
    use mlgw_formats::schema::{Mirror, bucket, decode};

    fn applied(rows: &mut MemoryRows, change: Change) -> Result<Reply, Reject> {
        let mut view = View::new(rows);
        let reply = apply(&mut view, &Command::from(change), seq_of(1, 0)).unwrap();
        let (changes, _) = view.into_changes();
        rows.write(changes);
        reply
    }

    fn mirrored(epoch: u64) -> Change {
        Change::MirrorBucket(MirrorBucket { bucket_id: 1, epoch, ..MirrorBucket::default() })
    }

    fn freeze(epoch: Option<u64>) -> Change {
        Change::FreezeBucket(FreezeBucket { bucket_id: 1, epoch })
    }

    fn thaw(epoch: Option<u64>) -> Change {
        Change::ThawBucket(ThawBucket { bucket_id: 1, epoch })
    }

    fn is_frozen(rows: &MemoryRows) -> bool {
        let row = bucket::mirror_row(BucketId(1));
        decode::<Mirror>(&rows.0[&row]).unwrap().frozen
    }

    #[test]
    fn a_late_write_of_an_ended_term_of_duty_is_rejected() {
        let mut rows = MemoryRows::default();
        let set = |duty_term| Change::SetBucketTerm(SetBucketTerm { bucket_id: 1, duty_term });
        assert_eq!(applied(&mut rows, set(5)), Err(Reject::NoSuchBucket));
        applied(&mut rows, mirrored(1)).unwrap();
        let delete = |duty_term, epoch| {
            let (key, change) = ("k".into(), Some(ObjectChange::Delete(DeleteObject::default())));
            let command = ObjectCommand { bucket_id: 1, epoch, key, change, duty_term, ..Default::default() };
            Change::Object(command)
        };
        let is_applied = |reply: Result<Reply, Reject>| matches!(reply, Ok(Reply::Deleted { .. }));
        assert!(is_applied(applied(&mut rows, delete(Some(4), 1))));
        applied(&mut rows, set(5)).unwrap();
        let ended = Err(Reject::TermEnded { term: 5 });
        assert_eq!(applied(&mut rows, delete(Some(4), 1)), ended);
        assert_eq!(applied(&mut rows, set(4)), ended);
        // A new epoch keeps the term, and a local write has none.
        applied(&mut rows, mirrored(2)).unwrap();
        assert_eq!(applied(&mut rows, delete(Some(4), 2)), ended);
        assert!(is_applied(applied(&mut rows, delete(Some(5), 2))));
        assert!(is_applied(applied(&mut rows, delete(None, 2))));
    }

    #[test]
    fn a_mirror_of_an_earlier_run_than_the_last_drop_creates_no_row() {
        let mut rows = MemoryRows::default();
        let mirror = |bucket_id, run| {
            Change::MirrorBucket(MirrorBucket { bucket_id, epoch: 1, run, ..MirrorBucket::default() })
        };
        let drop = |run| Change::DropBucket(DropBucket { bucket_id: 1, rows_max: 10, run });
        let has = |rows: &MemoryRows, id| rows.0.contains_key(&bucket::mirror_row(BucketId(id)));
        applied(&mut rows, mirror(1, Some(5))).unwrap();
        applied(&mut rows, freeze(Some(1))).unwrap();
        assert_eq!(applied(&mut rows, drop(Some(7))), Ok(Reply::StepDone { more: false }));
        assert_eq!(applied(&mut rows, mirror(1, Some(6))), Err(Reject::SagaEnded));
        assert!(!has(&rows, 1));
        assert_eq!(applied(&mut rows, drop(Some(6))), Err(Reject::SagaEnded));
        assert_eq!(applied(&mut rows, drop(Some(7))), Ok(Reply::StepDone { more: false }), "the next step");
        // A later run, and a build that names none.
        applied(&mut rows, mirror(2, Some(8))).unwrap();
        applied(&mut rows, mirror(3, None)).unwrap();
        assert!(has(&rows, 2) && has(&rows, 3));
    }

    #[test]
    fn a_freeze_of_an_earlier_epoch_changes_nothing() {
        let mut rows = MemoryRows::default();
        applied(&mut rows, mirrored(1)).unwrap();
        assert_eq!(applied(&mut rows, freeze(Some(1))), Ok(Reply::Done));
        assert!(is_frozen(&rows));
        // The bucket becomes active again.
        applied(&mut rows, mirrored(2)).unwrap();
        assert_eq!(applied(&mut rows, thaw(Some(2))), Ok(Reply::Done));
        assert_eq!(applied(&mut rows, freeze(Some(1))), Err(Reject::StaleEpoch));
        assert!(!is_frozen(&rows));
        assert_eq!(applied(&mut rows, freeze(Some(2))), Ok(Reply::Done), "the next deletion");
        assert!(is_frozen(&rows));
    }

    #[test]
    fn a_thaw_of_an_earlier_epoch_changes_nothing() {
        let mut rows = MemoryRows::default();
        applied(&mut rows, mirrored(3)).unwrap();
        applied(&mut rows, freeze(Some(3))).unwrap();
        assert_eq!(applied(&mut rows, thaw(Some(2))), Err(Reject::StaleEpoch));
        assert!(is_frozen(&rows));
    }

    #[test]
    fn a_freeze_or_thaw_without_an_epoch_is_applied_at_every_epoch() {
        let mut rows = MemoryRows::default();
        applied(&mut rows, mirrored(2)).unwrap();
        assert_eq!(applied(&mut rows, freeze(None)), Ok(Reply::Done));
        assert!(is_frozen(&rows));
        assert_eq!(applied(&mut rows, thaw(None)), Ok(Reply::Done));
        assert!(!is_frozen(&rows));
    }
}
