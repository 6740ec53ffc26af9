//! Sagas of bucket creation and deletion: steps over the groups of the bucket's keys, each repeatable,
//! resumed at open.
//!
//! Create: reserve the name and choose a group in group 0 (`Creating`), write the mirror into every group of
//! the bucket, then set `Active`. Delete: set `Deleting`, freeze every group that finds the bucket empty,
//! then drop it group by group and free the name. If a group has objects, every group gets the next epoch
//! and is thawed, and the bucket returns to `Active`. A crash in between leaves `Creating` or `Deleting`, and
//! the next open continues: it finishes a creation and decides a deletion again.
//!
//! A saga runs on the leader of the system group only, and its commands to that group enter the log of that
//! leadership only. The next leader resumes it; a runner that has lost the leadership cannot complete a step
//! that the next one has decided otherwise. Other nodes send the whole saga to the leader.

use super::groups::SYSTEM_GROUP;
use super::inner::{CatalogueInner, propose_error, unreachable_reply};
use super::options::{CreateBucketError, DeleteBucketError, NewBucket, ProposeError};
use mlgw_common::BucketName;
use mlgw_common::limits::JOB_ROWS_MAX;
use mlgw_formats::command::{
    Change, Command, CreateBucket, DropBucket, FreezeBucket, MirrorBucket, RebindBucket, Reject,
    RemoveBucket, Reply, SetBucketState, ThawBucket,
};
use mlgw_formats::log_types::Leadership;
use mlgw_formats::schema::{Binding, Bucket, BucketState};
use std::sync::Arc;

impl CatalogueInner {
    pub(super) async fn create_bucket(
        self: &Arc<Self>,
        new: NewBucket,
    ) -> Result<Arc<Bucket>, CreateBucketError> {
        let create = CreateBucket {
            name: new.name.as_str().to_owned(),
            owner: new.owner,
            created_ms: self.clock.now().as_millis(),
            region: new.region,
            binding: new.binding,
            group: None,
        };
        match self.lead_saga(Change::CreateBucket(create)).await {
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

    pub(super) async fn rebind_bucket(
        self: &Arc<Self>,
        bucket: &Bucket,
        from: Binding,
        to: Binding,
    ) -> Result<Arc<Bucket>, ProposeError> {
        let rebind = RebindBucket { name: bucket.name.clone(), bucket_id: bucket.id, from, to };
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
        if outcome == Err(ProposeError::UnknownOutcome) {
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

/// Steps of a saga under one leadership of the system group.
struct Saga<'c> {
    catalogue: &'c CatalogueInner,
    leadership: Leadership,
}

impl Saga<'_> {
    async fn create(&self, create: CreateBucket) -> Result<Reply, ProposeError> {
        let create = CreateBucket { group: self.catalogue.group_for_bucket(), ..create };
        match self.propose(SYSTEM_GROUP, Change::CreateBucket(create)).await? {
            Reply::Bucket(bucket) => Ok(Reply::Bucket(begun(self.finish_create(&bucket).await)?)),
            other => unreachable_reply(&other),
        }
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
        match self.set_state(&bucket, BucketState::Deleting).await {
            Ok(_) => {}
            Err(ProposeError::Rejected(_)) => return Err(Reject::NoSuchBucket.into()),
            Err(error) => return Err(error),
        }
        if begun(self.decide_delete(&bucket).await)? {
            Ok(Reply::Done)
        } else {
            Err(Reject::BucketNotEmpty.into())
        }
    }

    /// Removes a bucket that is being deleted and returns true if every group finds it empty; else makes it
    /// active again.
    async fn decide_delete(&self, bucket: &Bucket) -> Result<bool, ProposeError> {
        for group in self.catalogue.groups_of(bucket.bucket_id()) {
            let freeze = Change::FreezeBucket(FreezeBucket { bucket_id: bucket.id });
            match self.propose(group, freeze).await {
                // A group without a mirror of the bucket dropped it before a crash.
                Ok(_) | Err(ProposeError::Rejected(Reject::NoSuchBucket)) => {}
                Err(ProposeError::Rejected(Reject::BucketNotEmpty)) => {
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
            self.propose(group, Change::ThawBucket(ThawBucket { bucket_id: bucket.id })).await?;
        }
        self.set_state(bucket, BucketState::Active).await?;
        Ok(())
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
    use super::begun;
    use crate::catalogue::options::ProposeError;

    #[test]
    fn a_saga_that_has_begun_does_not_report_that_nothing_changed() {
        for error in [ProposeError::NotLeader { leader: None }, ProposeError::Overloaded] {
            assert_eq!(begun::<()>(Err(error)), Err(ProposeError::UnknownOutcome));
        }
    }
}
