//! Sagas of bucket creation and deletion: steps over the groups of the bucket's keys, each repeatable,
//! resumed at open.
//!
//! Create: reserve the name in group 0 and assign the ranges of the bucket to groups (`Creating`), write the
//! mirror into every group of the bucket, then set `Active`. Delete: set `Deleting`, freeze every group that
//! finds the bucket empty, then drop it group by group and free the name. If a group has objects, every group
//! gets the next epoch and is thawed, and the bucket returns to `Active`. A crash in between leaves the state
//! `Creating` or `Deleting`. The next open continues: it finishes a creation and decides a deletion again. If
//! a group has the next epoch already, the decision was to keep the bucket, and stays.
//!
//! A saga runs on the leader of the system group only, and its commands to that group enter the log of that
//! leadership only. The next leader resumes it; a runner that has lost the leadership cannot complete a step
//! that the next one has decided otherwise. Other nodes send the whole saga to the leader.
//!
//! A command to another group may be delayed until a later runner has decided. So freezes and thaws name the
//! epoch of their decision, and a group with a higher one rejects them.

use super::groups::SYSTEM_GROUP;
use super::inner::{CatalogueInner, propose_error, unreachable_reply};
use super::options::{CreateBucketError, DeleteBucketError, NewBucket, ProposeError};
use mlgw_common::limits::JOB_ROWS_MAX;
use mlgw_common::{BucketName, ObjectKey};
use mlgw_formats::cluster_version::SERVING_CLUSTER_VERSION;
use mlgw_formats::command::{
    Change, Command, CreateBucket, DropBucket, FreezeBucket, MirrorBucket, RebindBucket, Reject,
    RemoveBucket, Reply, SetBucketState, SplitKey, ThawBucket,
};
use mlgw_formats::log_types::Leadership;
use mlgw_formats::schema::{Binding, Bucket, BucketState};
use std::sync::Arc;

impl CatalogueInner {
    pub(super) async fn create_bucket(
        self: &Arc<Self>,
        new: NewBucket,
    ) -> Result<Arc<Bucket>, CreateBucketError> {
        // The leader chooses the groups.
        let split = |key: &ObjectKey| SplitKey { key: key.as_str().to_owned(), group: SYSTEM_GROUP };
        let create = Change::CreateBucket(CreateBucket {
            name: new.name.as_str().to_owned(),
            owner: new.owner,
            created_ms: self.clock.now().as_millis(),
            region: new.region,
            binding: new.binding,
            group: None,
            splits: new.split_keys.as_slice().iter().map(split).collect(),
        });
        self.check_leader_knows(&create).map_err(CreateBucketError::Propose)?;
        match self.lead_saga(create).await {
            Ok(Reply::Bucket(bucket)) => Ok(Arc::new(bucket)),
            Ok(other) => unreachable_reply(&other),
            Err(ProposeError::Rejected(Reject::TooManyBuckets)) => Err(CreateBucketError::TooMany),
            Err(ProposeError::Rejected(Reject::BucketBusy)) => Err(CreateBucketError::Busy),
            Err(ProposeError::Rejected(Reject::BucketExists { .. })) => {
                let existing = self.resident.bucket(new.name.as_str());
                Err(existing.map_or(CreateBucketError::Busy, CreateBucketError::Exists))
            }
            Err(error) => Err(CreateBucketError::Propose(error)),
        }
    }

    /// Checks that a leader of an older build does not ignore fields of a saga's change.
    fn check_leader_knows(&self, change: &Change) -> Result<(), ProposeError> {
        let (needs, has) = (change.cluster_version(), self.resident.cluster_version());
        if self.opener.peers.is_some() && needs > has {
            return Err(ProposeError::NotFinalized { needs, has });
        }
        Ok(())
    }

    pub(super) async fn rebind_bucket(
        self: &Arc<Self>,
        bucket: &Bucket,
        from: Binding,
        to: Binding,
        duty_term: Option<u64>,
    ) -> Result<Arc<Bucket>, ProposeError> {
        let rebind = RebindBucket { name: bucket.name.clone(), bucket_id: bucket.id, from, to, duty_term };
        match self.lead_saga(Change::RebindBucket(rebind)).await? {
            Reply::Bucket(bucket) => Ok(Arc::new(bucket)),
            other => unreachable_reply(&other),
        }
    }

    pub(super) async fn delete_bucket(self: &Arc<Self>, name: &BucketName) -> Result<(), DeleteBucketError> {
        let bucket = self.resident.bucket(name.as_str()).ok_or(DeleteBucketError::NoSuchBucket)?;
        let remove = RemoveBucket { name: bucket.name.clone(), bucket_id: bucket.id };
        match self.lead_saga(Change::RemoveBucket(remove)).await {
            Ok(_) => Ok(()),
            Err(ProposeError::Rejected(Reject::BucketNotEmpty)) => Err(DeleteBucketError::NotEmpty),
            Err(ProposeError::Rejected(Reject::NoSuchBucket)) => Err(DeleteBucketError::NoSuchBucket),
            Err(error) => Err(DeleteBucketError::Propose(error)),
        }
    }

    /// Runs a saga on this node, which leads the system group: one that ends with the change.
    pub(super) async fn run_saga(&self, change: Change) -> Result<Reply, ProposeError> {
        let _alone = self.saga.lock().await;
        let saga = self.begin_saga()?;
        let outcome = match change {
            Change::CreateBucket(create) => saga.create(create).await,
            Change::RemoveBucket(remove) => saga.delete(&remove).await,
            other => saga.propose(SYSTEM_GROUP, other).await,
        };
        if is_broken_off(&outcome) {
            self.resident.saga_broken.notify_one();
        }
        outcome
    }

    /// A saga under the present leadership of this node.
    fn begin_saga(&self) -> Result<Saga<'_>, ProposeError> {
        let leadership = self.groups.system().leadership().map_err(propose_error)?;
        Ok(Saga { catalogue: self, leadership })
    }

    /// Resumes the sagas that a crash or a change of the leader interrupted. The failure of one saga does not
    /// stop the others.
    pub(super) async fn resume_sagas(&self) -> Result<(), ProposeError> {
        let _alone = self.saga.lock().await;
        let saga = self.begin_saga()?;
        let interrupted: Vec<Arc<Bucket>> = {
            let buckets = self.resident.buckets.read();
            buckets.values().filter(|bucket| bucket.state() != BucketState::Active).cloned().collect()
        };
        let mut result = Ok(());
        for bucket in interrupted {
            tracing::info!(bucket = bucket.name, state = ?bucket.state(), "resuming");
            let resumed = match bucket.state() {
                BucketState::Creating => saga.finish_create(&bucket).await.map(drop),
                BucketState::Deleting => saga.decide_delete(&bucket).await.map(drop),
                BucketState::Active => Ok(()),
            };
            if let Err(error) = &resumed {
                tracing::warn!(bucket = bucket.name, %error, "failed to resume");
            }
            result = result.and(resumed);
        }
        result
    }
}

/// True if a saga may have ended between two steps, so that it is resumed: its last step may have been
/// carried out, or its group was in another state than the steps before it left, because a delayed command
/// of an earlier runner arrived in between.
fn is_broken_off(outcome: &Result<Reply, ProposeError>) -> bool {
    matches!(outcome, Err(ProposeError::UnknownOutcome | ProposeError::Rejected(Reject::Malformed { .. })))
}

/// Steps of a saga under one leadership of the system group.
struct Saga<'c> {
    catalogue: &'c CatalogueInner,
    leadership: Leadership,
}

impl Saga<'_> {
    async fn create(&self, create: CreateBucket) -> Result<Reply, ProposeError> {
        let change = Change::CreateBucket(self.with_groups(create));
        let needs = change.cluster_version();
        // A server without peers needs no agreement about its version.
        if self.is_without_peers() && needs > self.catalogue.resident.cluster_version() {
            self.catalogue.raise_cluster_version(needs).await?;
        }
        match self.propose(SYSTEM_GROUP, change).await? {
            Reply::Bucket(bucket) => Ok(Reply::Bucket(begun(self.finish_create(&bucket).await)?)),
            other => unreachable_reply(&other),
        }
    }

    /// Chooses the groups of a new bucket's ranges. With only one group the bucket is not split.
    fn with_groups(&self, create: CreateBucket) -> CreateBucket {
        let mut groups = self.catalogue.groups_for_ranges(1 + create.splits.len()).into_iter();
        let group = groups.next();
        // A creation that is about to be rejected raises no version.
        let is_taken = self.is_without_peers() && self.catalogue.resident.bucket(&create.name).is_some();
        let splits = if is_taken { Vec::new() } else { create.splits };
        let splits = splits.into_iter().zip(groups).map(|(split, group)| SplitKey { group, ..split });
        CreateBucket { group, splits: splits.collect(), ..create }
    }

    fn is_without_peers(&self) -> bool {
        self.catalogue.opener.peers.is_none()
    }

    async fn finish_create(&self, bucket: &Bucket) -> Result<Bucket, ProposeError> {
        assert_eq!(bucket.state(), BucketState::Creating, "only a reserved name becomes a bucket");
        for group in self.catalogue.groups_of(bucket.bucket_id()) {
            self.propose(group, Change::MirrorBucket(MirrorBucket::from(bucket))).await?;
        }
        self.set_state(bucket, BucketState::Active).await
    }

    async fn set_state(&self, bucket: &Bucket, state: BucketState) -> Result<Bucket, ProposeError> {
        let set = SetBucketState { name: bucket.name.clone(), bucket_id: bucket.id, state: state as i32 };
        match self.propose(SYSTEM_GROUP, Change::SetBucketState(set)).await? {
            Reply::Bucket(bucket) => Ok(bucket),
            other => unreachable_reply(&other),
        }
    }

    async fn delete(&self, remove: &RemoveBucket) -> Result<Reply, ProposeError> {
        let bucket = self.catalogue.resident.bucket(&remove.name);
        let bucket = bucket.filter(|bucket| bucket.id == remove.bucket_id).ok_or(Reject::NoSuchBucket)?;
        // With its present epoch: this node may not have applied everything before the command.
        let bucket = match self.set_state(&bucket, BucketState::Deleting).await {
            Ok(bucket) => bucket,
            Err(ProposeError::Rejected(_)) => return Err(Reject::NoSuchBucket.into()),
            Err(error) => return Err(error),
        };
        if begun(self.decide_delete(&bucket).await)? {
            Ok(Reply::Done)
        } else {
            Err(Reject::BucketNotEmpty.into())
        }
    }

    /// Removes a bucket that is being deleted and returns true if every group finds it empty; else makes it
    /// active again, or completes that of an interrupted saga.
    async fn decide_delete(&self, bucket: &Bucket) -> Result<bool, ProposeError> {
        for group in self.catalogue.groups_of(bucket.bucket_id()) {
            let freeze = FreezeBucket { bucket_id: bucket.id, epoch: self.named_epoch(bucket.epoch) };
            match self.propose(group, Change::FreezeBucket(freeze)).await {
                // A group without a mirror of the bucket dropped it before a crash.
                Ok(_) | Err(ProposeError::Rejected(Reject::NoSuchBucket)) => {}
                Err(ProposeError::Rejected(Reject::BucketNotEmpty | Reject::StaleEpoch)) => {
                    self.reactivate(bucket).await?;
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        for group in self.catalogue.groups_of(bucket.bucket_id()) {
            self.drop_bucket_rows(group, bucket).await?;
        }
        let remove = RemoveBucket { name: bucket.name.clone(), bucket_id: bucket.id };
        self.propose(SYSTEM_GROUP, Change::RemoveBucket(remove)).await?;
        Ok(true)
    }

    async fn drop_bucket_rows(&self, group: u32, bucket: &Bucket) -> Result<(), ProposeError> {
        loop {
            let drop = DropBucket { bucket_id: bucket.id, rows_max: JOB_ROWS_MAX as u32 };
            if self.propose(group, Change::DropBucket(drop)).await? != (Reply::StepDone { more: true }) {
                return Ok(());
            }
        }
    }

    async fn reactivate(&self, bucket: &Bucket) -> Result<(), ProposeError> {
        let next = MirrorBucket { epoch: bucket.epoch + 1, ..MirrorBucket::from(bucket) };
        for group in self.catalogue.groups_of(bucket.bucket_id()) {
            self.propose(group, Change::MirrorBucket(next.clone())).await?;
            let thaw = ThawBucket { bucket_id: bucket.id, epoch: self.named_epoch(next.epoch) };
            self.propose(group, Change::ThawBucket(thaw)).await?;
        }
        self.set_state(bucket, BucketState::Active).await?;
        Ok(())
    }

    /// The epoch as commands name it; `None` while a member may be of a build that would ignore it.
    fn named_epoch(&self, epoch: u64) -> Option<u64> {
        let is_known = self.catalogue.resident.cluster_version() >= SERVING_CLUSTER_VERSION;
        is_known.then_some(epoch)
    }

    /// Proposes a step. A step in the system group enters the log of this leadership only; one in another
    /// group begins under this leadership.
    async fn propose(&self, group: u32, change: Change) -> Result<Reply, ProposeError> {
        let command = Arc::new(Command::from(change));
        let system = self.catalogue.groups.system();
        if group == SYSTEM_GROUP {
            return self.catalogue.propose_under(self.leadership, command).await;
        }
        match system.leadership() {
            Ok(leadership) if leadership == self.leadership => {
                self.catalogue.propose_to(group, command).await
            }
            Ok(_) => Err(ProposeError::NotLeader { leader: None }),
            Err(error) => Err(propose_error(error)),
        }
    }
}

/// The outcome of a saga that has begun: an error without any change holds for its last step only.
fn begun<T>(outcome: Result<T, ProposeError>) -> Result<T, ProposeError> {
    outcome.map_err(|error| match error {
        ProposeError::NotLeader { .. } | ProposeError::Overloaded => ProposeError::UnknownOutcome,
        other => other,
    })
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
        for error in [ProposeError::NotLeader { leader: None }, ProposeError::Overloaded] {
            assert_eq!(begun::<()>(Err(error)), Err(ProposeError::UnknownOutcome));
        }
    }
}
