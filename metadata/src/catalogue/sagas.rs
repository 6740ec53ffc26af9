//! Sagas of bucket creation and deletion: steps over the groups of the bucket's keys, each repeatable,
//! resumed at open.
//!
//! Create: reserve the name and choose a group in group 0 (`Creating`), write the mirror into every group of
//! the bucket, then set `Active`. Delete: set `Deleting`, freeze every group that finds the bucket empty,
//! then drop it group by group and free the name. If a group has objects, every group gets the next epoch
//! and is thawed, and the bucket returns to `Active`. A crash in between leaves `Creating` or `Deleting`, and
//! the next open continues: it finishes a creation and decides a deletion again.

use super::groups::SYSTEM_GROUP;
use super::inner::{CatalogueInner, unreachable_reply};
use super::options::{CreateBucketError, DeleteBucketError, NewBucket, ProposeError};
use mlgw_common::BucketName;
use mlgw_common::limits::JOB_ROWS_MAX;
use mlgw_formats::command::{
    Change, Command, CreateBucket, DropBucket, FreezeBucket, MirrorBucket, RebindBucket, Reject,
    RemoveBucket, Reply, SetBucketState, ThawBucket,
};
use mlgw_formats::schema::{Binding, Bucket, BucketState};
use std::sync::Arc;

impl CatalogueInner {
    pub(super) async fn create_bucket(&self, new: NewBucket) -> Result<Arc<Bucket>, CreateBucketError> {
        let _alone = self.saga.lock().await;
        let create = CreateBucket {
            name: new.name.as_str().to_owned(),
            owner: new.owner,
            created_ms: self.clock.now().as_millis(),
            region: new.region,
            binding: new.binding,
            group: self.group_for_bucket(),
        };
        let bucket = match self.propose_change(SYSTEM_GROUP, Change::CreateBucket(create)).await {
            Ok(Reply::Bucket(bucket)) => bucket,
            Ok(other) => unreachable_reply(&other),
            Err(ProposeError::Rejected(Reject::TooManyBuckets)) => return Err(CreateBucketError::TooMany),
            Err(ProposeError::Rejected(Reject::BucketBusy)) => return Err(CreateBucketError::Busy),
            Err(ProposeError::Rejected(Reject::BucketExists { .. })) => {
                let existing = self.resident.bucket(new.name.as_str());
                return Err(existing.map_or(CreateBucketError::Busy, CreateBucketError::Exists));
            }
            Err(error) => return Err(CreateBucketError::Propose(error)),
        };
        self.finish_create(&bucket).await.map_err(CreateBucketError::Propose)
    }

    async fn finish_create(&self, bucket: &Bucket) -> Result<Arc<Bucket>, ProposeError> {
        assert_eq!(bucket.state(), BucketState::Creating, "only a reserved name becomes a bucket");
        for group in self.groups_of(bucket.bucket_id()) {
            self.propose_change(group, Change::MirrorBucket(MirrorBucket::from(bucket))).await?;
        }
        self.set_state(bucket, BucketState::Active).await
    }

    async fn set_state(&self, bucket: &Bucket, state: BucketState) -> Result<Arc<Bucket>, ProposeError> {
        let set = SetBucketState { name: bucket.name.clone(), bucket_id: bucket.id, state: state as i32 };
        match self.propose_change(SYSTEM_GROUP, Change::SetBucketState(set)).await? {
            Reply::Bucket(bucket) => Ok(Arc::new(bucket)),
            other => unreachable_reply(&other),
        }
    }

    pub(super) async fn rebind_bucket(
        &self,
        bucket: &Bucket,
        from: Binding,
        to: Binding,
    ) -> Result<Arc<Bucket>, ProposeError> {
        let _alone = self.saga.lock().await;
        let rebind = RebindBucket { name: bucket.name.clone(), bucket_id: bucket.id, from, to };
        match self.propose_change(SYSTEM_GROUP, Change::RebindBucket(rebind)).await? {
            Reply::Bucket(bucket) => Ok(Arc::new(bucket)),
            other => unreachable_reply(&other),
        }
    }

    pub(super) async fn delete_bucket(&self, name: &BucketName) -> Result<(), DeleteBucketError> {
        let _alone = self.saga.lock().await;
        let bucket = self.resident.bucket(name.as_str()).ok_or(DeleteBucketError::NoSuchBucket)?;
        match self.set_state(&bucket, BucketState::Deleting).await {
            Ok(_) => {}
            Err(ProposeError::Rejected(_)) => return Err(DeleteBucketError::NoSuchBucket),
            Err(error) => return Err(DeleteBucketError::Propose(error)),
        }
        match self.decide_delete(&bucket).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(DeleteBucketError::NotEmpty),
            Err(error) => Err(DeleteBucketError::Propose(error)),
        }
    }

    /// Removes a bucket that is being deleted and returns true if every group finds it empty; else makes it
    /// active again.
    async fn decide_delete(&self, bucket: &Bucket) -> Result<bool, ProposeError> {
        for group in self.groups_of(bucket.bucket_id()) {
            let freeze = Change::FreezeBucket(FreezeBucket { bucket_id: bucket.id });
            match self.propose_change(group, freeze).await {
                // A group without a mirror of the bucket dropped it before a crash.
                Ok(_) | Err(ProposeError::Rejected(Reject::NoSuchBucket)) => {}
                Err(ProposeError::Rejected(Reject::BucketNotEmpty)) => {
                    self.reactivate(bucket).await?;
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        for group in self.groups_of(bucket.bucket_id()) {
            self.drop_bucket_rows(group, bucket).await?;
        }
        let remove = RemoveBucket { name: bucket.name.clone(), bucket_id: bucket.id };
        self.propose_change(SYSTEM_GROUP, Change::RemoveBucket(remove)).await?;
        Ok(true)
    }

    async fn drop_bucket_rows(&self, group: u32, bucket: &Bucket) -> Result<(), ProposeError> {
        loop {
            let drop = DropBucket { bucket_id: bucket.id, rows_max: JOB_ROWS_MAX as u32 };
            if self.propose_change(group, Change::DropBucket(drop)).await? != (Reply::StepDone { more: true })
            {
                return Ok(());
            }
        }
    }

    async fn reactivate(&self, bucket: &Bucket) -> Result<(), ProposeError> {
        let next = MirrorBucket { epoch: bucket.epoch + 1, ..MirrorBucket::from(bucket) };
        for group in self.groups_of(bucket.bucket_id()) {
            self.propose_change(group, Change::MirrorBucket(next.clone())).await?;
            self.propose_change(group, Change::ThawBucket(ThawBucket { bucket_id: bucket.id })).await?;
        }
        self.set_state(bucket, BucketState::Active).await?;
        Ok(())
    }

    /// Resumes the sagas that a crash interrupted.
    pub(super) async fn resume_sagas(&self) -> Result<(), ProposeError> {
        let _alone = self.saga.lock().await;
        let interrupted: Vec<Arc<Bucket>> = {
            let buckets = self.resident.buckets.read();
            buckets.values().filter(|bucket| bucket.state() != BucketState::Active).cloned().collect()
        };
        for bucket in interrupted {
            tracing::info!(bucket = bucket.name, state = ?bucket.state(), "resuming");
            match bucket.state() {
                BucketState::Creating => drop(self.finish_create(&bucket).await?),
                BucketState::Deleting => drop(self.decide_delete(&bucket).await?),
                BucketState::Active => {}
            }
        }
        Ok(())
    }

    async fn propose_change(&self, group: u32, change: Change) -> Result<Reply, ProposeError> {
        self.propose_to(group, Arc::new(Command::from(change))).await
    }
}
