//! Steps of the sagas of buckets, over the groups of a catalogue or those of a simulation
//! (`saga_simulation.rs`). What holds, also after a power failure, is in `sagas.rs`.

use super::groups::SYSTEM_GROUP;
use super::options::ProposeError;
use super::unexpected_reply::unreachable_reply;
use mlgw_common::BucketId;
use mlgw_common::limits::JOB_ROWS_MAX;
use mlgw_formats::command::{
    Change, CreateBucket, DropBucket, FreezeBucket, MirrorBucket, Reject, RemoveBucket, Reply,
    SetBucketState, ThawBucket,
};
use mlgw_formats::schema::{Bucket, BucketState};
use std::collections::BTreeSet;

/// The groups to which a saga proposes its steps.
pub(super) trait SagaGroups: Sync {
    /// The groups of a bucket's ranges.
    fn groups_of(&self, bucket: BucketId) -> BTreeSet<u32>;

    /// The epoch as commands name it; `None` while a member may be of a build that would ignore it.
    fn named_epoch(&self, epoch: u64) -> Option<u64>;

    /// The run as commands name it; `None` while a member may be of a build that would ignore it.
    fn named_run(&self, run: u64) -> Option<u64>;

    /// Proposes the first step of a run, in the system group. Returns its reply and the run: the index of its
    /// log entry.
    fn begin_run(&self, change: Change) -> impl Future<Output = Result<(Reply, u64), ProposeError>> + Send;

    /// Proposes a step. A step in the system group enters the log of one leadership only; one in another
    /// group begins under this leadership.
    fn propose(&self, group: u32, change: Change)
    -> impl Future<Output = Result<Reply, ProposeError>> + Send;
}

/// Reserves the name of a bucket, and finishes its creation.
pub(super) async fn create(groups: &impl SagaGroups, create: CreateBucket) -> Result<Reply, ProposeError> {
    let (bucket, run) = begun_by(groups, Change::CreateBucket(create)).await?;
    Ok(Reply::Bucket(begun(finish_create(groups, &bucket, run).await)?))
}

/// Goes on with an interrupted saga, if the bucket is still in the state of `bucket`.
pub(super) async fn resume(groups: &impl SagaGroups, bucket: &Bucket) -> Result<(), ProposeError> {
    // The state stays, and the command begins a run.
    let (bucket, run) = match begun_by(groups, in_state(bucket, bucket.state())).await {
        Ok(begun) => begun,
        Err(ProposeError::Rejected(_)) => return Ok(()),
        Err(error) => return Err(error),
    };
    match bucket.state() {
        BucketState::Creating => finish_create(groups, &bucket, run).await.map(drop),
        BucketState::Deleting => decide_delete(groups, &bucket, run).await.map(drop),
        BucketState::Active => Ok(()),
    }
}

/// Begins a run by a command that replies with the bucket.
async fn begun_by(groups: &impl SagaGroups, change: Change) -> Result<(Bucket, u64), ProposeError> {
    match groups.begin_run(change).await? {
        (Reply::Bucket(bucket), run) => Ok((bucket, run)),
        (other, _) => unreachable_reply(&other),
    }
}

/// Makes a bucket with a reserved name active.
async fn finish_create(groups: &impl SagaGroups, bucket: &Bucket, run: u64) -> Result<Bucket, ProposeError> {
    assert_eq!(bucket.state(), BucketState::Creating, "only a reserved name becomes a bucket");
    let mirror = MirrorBucket { run: groups.named_run(run), ..MirrorBucket::from(bucket) };
    for group in groups.groups_of(bucket.bucket_id()) {
        groups.propose(group, Change::MirrorBucket(mirror.clone())).await?;
    }
    set_state(groups, bucket, BucketState::Active).await
}

/// Removes a bucket if every group finds it empty. `bucket` may have an older epoch.
pub(super) async fn delete(groups: &impl SagaGroups, bucket: &Bucket) -> Result<Reply, ProposeError> {
    // With its present epoch: this node may not have applied everything before the command.
    let (bucket, run) = match begun_by(groups, in_state(bucket, BucketState::Deleting)).await {
        Ok(begun) => begun,
        Err(ProposeError::Rejected(_)) => return Err(Reject::NoSuchBucket.into()),
        Err(error) => return Err(error),
    };
    if begun(decide_delete(groups, &bucket, run).await)? {
        Ok(Reply::Done)
    } else {
        Err(Reject::BucketNotEmpty.into())
    }
}

/// Removes a bucket that is being deleted and returns true if every group finds it empty; else makes it
/// active again, or completes that of an interrupted saga.
async fn decide_delete(groups: &impl SagaGroups, bucket: &Bucket, run: u64) -> Result<bool, ProposeError> {
    for group in groups.groups_of(bucket.bucket_id()) {
        let freeze = FreezeBucket { bucket_id: bucket.id, epoch: groups.named_epoch(bucket.epoch) };
        match groups.propose(group, Change::FreezeBucket(freeze)).await {
            // A group without a mirror of the bucket dropped it before a crash.
            Ok(_) | Err(ProposeError::Rejected(Reject::NoSuchBucket)) => {}
            Err(ProposeError::Rejected(Reject::BucketNotEmpty | Reject::StaleEpoch)) => {
                reactivate(groups, bucket, run).await?;
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    for group in groups.groups_of(bucket.bucket_id()) {
        drop_bucket_rows(groups, group, bucket, run).await?;
    }
    let remove = RemoveBucket { name: bucket.name.clone(), bucket_id: bucket.id };
    groups.propose(SYSTEM_GROUP, Change::RemoveBucket(remove)).await?;
    Ok(true)
}

/// The command that sets the state of a bucket.
fn in_state(bucket: &Bucket, state: BucketState) -> Change {
    let (name, bucket_id) = (bucket.name.clone(), bucket.id);
    Change::SetBucketState(SetBucketState { name, bucket_id, state: state as i32 })
}

async fn set_state(
    groups: &impl SagaGroups,
    bucket: &Bucket,
    state: BucketState,
) -> Result<Bucket, ProposeError> {
    match groups.propose(SYSTEM_GROUP, in_state(bucket, state)).await? {
        Reply::Bucket(bucket) => Ok(bucket),
        other => unreachable_reply(&other),
    }
}

async fn drop_bucket_rows(
    groups: &impl SagaGroups,
    group: u32,
    bucket: &Bucket,
    run: u64,
) -> Result<(), ProposeError> {
    let run = groups.named_run(run);
    loop {
        let drop = DropBucket { bucket_id: bucket.id, rows_max: JOB_ROWS_MAX as u32, run };
        if groups.propose(group, Change::DropBucket(drop)).await? != (Reply::StepDone { more: true }) {
            return Ok(());
        }
    }
}

async fn reactivate(groups: &impl SagaGroups, bucket: &Bucket, run: u64) -> Result<(), ProposeError> {
    let run = groups.named_run(run);
    let next = MirrorBucket { epoch: bucket.epoch + 1, run, ..MirrorBucket::from(bucket) };
    for group in groups.groups_of(bucket.bucket_id()) {
        groups.propose(group, Change::MirrorBucket(next.clone())).await?;
        let thaw = ThawBucket { bucket_id: bucket.id, epoch: groups.named_epoch(next.epoch) };
        groups.propose(group, Change::ThawBucket(thaw)).await?;
    }
    set_state(groups, bucket, BucketState::Active).await?;
    Ok(())
}

/// The outcome of a saga that has begun: an error without any change holds for its last step only.
fn begun<T>(outcome: Result<T, ProposeError>) -> Result<T, ProposeError> {
    outcome.map_err(|error| match error {
        ProposeError::NotLeader { .. }
        | ProposeError::Overloaded
        | ProposeError::Rejected(Reject::SagaEnded) => ProposeError::UnknownOutcome,
        other => other,
    })
}

/// True if a saga may have ended between two steps, so that it is resumed: its last step may have been
/// carried out, or its group was in another state than the steps before it left, because a delayed command
/// of an earlier runner arrived in between.
pub(super) fn is_broken_off(outcome: &Result<Reply, ProposeError>) -> bool {
    matches!(outcome, Err(ProposeError::UnknownOutcome | ProposeError::Rejected(Reject::Malformed { .. })))
}

#[cfg(test)]
mod tests {
    use super::{begun, is_broken_off};
    use crate::catalogue::options::ProposeError;
    use mlgw_formats::command::{Reject, Reply};

    #[test]
    fn a_saga_is_resumed_after_a_step_with_an_unknown_outcome_or_of_another_state() {
        let what = "the bucket is not frozen".to_owned();
        for error in [ProposeError::UnknownOutcome, Reject::Malformed { what }.into()] {
            assert!(is_broken_off(&Err(error)));
        }
        for decided in [Ok(Reply::Done), Err(Reject::BucketNotEmpty.into())] {
            assert!(!is_broken_off(&decided), "{decided:?}");
        }
    }

    #[test]
    fn a_saga_that_has_begun_does_not_report_that_nothing_changed() {
        let ended = Reject::SagaEnded.into();
        for error in [ProposeError::NotLeader { leader: None }, ProposeError::Overloaded, ended] {
            assert_eq!(begun::<()>(Err(error)), Err(ProposeError::UnknownOutcome));
        }
    }
}
