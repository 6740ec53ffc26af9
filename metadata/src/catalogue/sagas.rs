//! Sagas of bucket creation and deletion: steps over the groups of the bucket's keys, each repeatable,
//! resumed at open.
//!
//! Create: reserve the name in group 0 and assign the ranges of the bucket to groups (`Creating`), write the
//! mirror into every group of the bucket, then set `Active`. Delete: set `Deleting`, freeze every group that
//! finds the bucket empty, then drop it group by group and free the name. If a group has objects, every group
//! gets the next epoch and is thawed, and the bucket returns to `Active`. A crash in between leaves the state
//! `Creating` or `Deleting`. The next open continues: it finishes a creation and decides a deletion again. If
//! a group has the next epoch already, the decision was to keep the bucket, and stays. The leader also
//! searches for such buckets at intervals, since a step of unknown outcome may be applied late.
//!
//! A saga runs on the leader of the system group only, and its commands to that group enter the log of that
//! leadership only. The next leader resumes it; a runner that has lost the leadership cannot complete a step
//! that the next one has decided otherwise. Other nodes send the whole saga to the leader.
//!
//! A command to another group may be delayed until a later runner has decided. So freezes and thaws name the
//! epoch of their decision, and a group with a higher one rejects them. Mirrors and drops name their run of a
//! saga. A group that has dropped a bucket rejects mirrors of earlier runs, or one of them could leave a
//! mirror of a bucket that does not exist. A run begins with a command to the system group, whose log index
//! is its number, so runs are ordered across leaders and restarts.
//!
//! The steps are in `saga_steps.rs`.

use super::groups::SYSTEM_GROUP;
use super::inner::{CatalogueInner, propose_error};
use super::options::{CreateBucketError, DeleteBucketError, NewBucket, ProposeError};
use super::saga_steps::{self, SagaGroups};
use super::unexpected_reply::unreachable_reply;
use mlgw_common::{BucketId, BucketName, ObjectKey};
use mlgw_formats::cluster_version::{SAGA_RUNS_CLUSTER_VERSION, SERVING_CLUSTER_VERSION};
use mlgw_formats::command::{
    Change, Command, CreateBucket, RebindBucket, Reject, RemoveBucket, Reply, SplitKey,
};
use mlgw_formats::log_types::Leadership;
use mlgw_formats::schema::{Binding, Bucket, BucketState};
use std::collections::BTreeSet;
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
        if let Change::BeginAllotment(begin) = change {
            return self.run_allotment(begin).await;
        }
        let _alone = self.saga.lock().await;
        let saga = self.begin_saga()?;
        let outcome = match change {
            Change::CreateBucket(create) => saga.create(create).await,
            Change::RemoveBucket(remove) => saga.delete(&remove).await,
            other => saga.propose(SYSTEM_GROUP, other).await,
        };
        if saga_steps::is_broken_off(&outcome) {
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
            let resumed = saga_steps::resume(&saga, &bucket).await;
            if let Err(error) = &resumed {
                tracing::warn!(bucket = bucket.name, %error, "failed to resume");
            }
            result = result.and(resumed);
        }
        result
    }
}

/// Sagas under one leadership of the system group.
struct Saga<'c> {
    catalogue: &'c CatalogueInner,
    leadership: Leadership,
}

impl Saga<'_> {
    async fn create(&self, create: CreateBucket) -> Result<Reply, ProposeError> {
        let create = self.with_groups(create);
        let needs = Change::CreateBucket(create.clone()).cluster_version();
        // A server without peers needs no agreement about its version.
        if self.is_without_peers() && needs > self.catalogue.resident.cluster_version() {
            self.catalogue.raise_cluster_version(needs).await?;
        }
        saga_steps::create(self, create).await
    }

    async fn delete(&self, remove: &RemoveBucket) -> Result<Reply, ProposeError> {
        let bucket = self.catalogue.resident.bucket(&remove.name);
        let bucket = bucket.filter(|bucket| bucket.id == remove.bucket_id).ok_or(Reject::NoSuchBucket)?;
        saga_steps::delete(self, &bucket).await
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
}

impl SagaGroups for Saga<'_> {
    fn groups_of(&self, bucket: BucketId) -> BTreeSet<u32> {
        self.catalogue.groups_of(bucket)
    }

    fn named_epoch(&self, epoch: u64) -> Option<u64> {
        let is_known = self.catalogue.resident.cluster_version() >= SERVING_CLUSTER_VERSION;
        is_known.then_some(epoch)
    }

    fn named_run(&self, run: u64) -> Option<u64> {
        let is_known = self.catalogue.resident.cluster_version() >= SAGA_RUNS_CLUSTER_VERSION;
        is_known.then_some(run)
    }

    async fn begin_run(&self, change: Change) -> Result<(Reply, u64), ProposeError> {
        let applied = self.catalogue.apply_under(self.leadership, Arc::new(Command::from(change))).await?;
        Ok((applied.reply, applied.index))
    }

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
