//! Quotas of buckets and access keys, over all groups.
//!
//! Group 0 keeps a quota in the record of its bucket or access key; every group also keeps it in the row that
//! `apply` reads. A quota is set in group 0 first and then in the other groups. A crash in between leaves the
//! old quota in some of them, and the next open continues. With one group a quota is exact. A quota that
//! counts in several groups is divided into slices, at the end of each change: `allotments.rs`.

use super::allotments::{owner_of_bucket, owner_of_key};
use super::groups::SYSTEM_GROUP;
use super::inner::CatalogueInner;
use super::options::ProposeError;
use super::{Catalogue, read};
use crate::store_error::ReadError;
use crate::view::RowReader as _;
use mlgw_formats::command::{Change, Command, DeleteCredential, Reject, SetBucketQuota, SetKeyQuota};
use mlgw_formats::key::Family;
use mlgw_formats::schema::quota::{payer_key_of, payer_row};
use mlgw_formats::schema::{
    Bucket, BucketState, BucketUsage, Credential, Mirror, Payer, Quota, bucket, decode,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Catalogue {
    /// Changes the quota of the bucket `name`; returns the record before and after.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn change_bucket_quota(
        &self,
        name: &str,
        change: impl FnOnce(Quota) -> Quota + Send,
    ) -> Result<(Arc<Bucket>, Arc<Bucket>), ProposeError> {
        let alone = self.inner.saga.lock().await;
        let before = self.bucket(name).ok_or(Reject::NoSuchBucket)?;
        let quota = change(before.quota.unwrap_or_default()).non_empty();
        let set = SetBucketQuota { name: name.to_owned(), bucket_id: before.id, quota };
        let groups = self.inner.groups_of(before.bucket_id());
        self.inner.propose_in_system_and(groups, &Change::SetBucketQuota(set)).await?;
        drop(alone);
        self.inner.divide_changed(owner_of_bucket(before.id)).await;
        let after = self.bucket(name).ok_or(Reject::NoSuchBucket)?;
        Ok((before, after))
    }

    /// Changes the quota of an access key; returns the new record.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn change_key_quota(
        &self,
        access_key: &str,
        change: impl FnOnce(Quota) -> Quota + Send,
    ) -> Result<Arc<Credential>, ProposeError> {
        let alone = self.inner.saga.lock().await;
        let before = self.credential(access_key).ok_or(Reject::NoSuchCredential)?;
        let quota = change(before.quota.unwrap_or_default()).non_empty();
        let set = SetKeyQuota { access_key: access_key.to_owned(), quota };
        self.inner.propose_in_system_and(self.inner.object_groups(), &Change::SetKeyQuota(set)).await?;
        drop(alone);
        self.inner.divide_changed(owner_of_key(access_key)).await;
        self.credential(access_key).ok_or(Reject::NoSuchCredential.into())
    }

    /// Deletes an access key and its quota. The usage attributed to it continues to be counted. Other nodes
    /// may accept the key until [`Catalogue::until_applied_elsewhere`] returns. If a group does not confirm
    /// that its row of the quota is deleted, the leader of the system group deletes the row later.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`]. After an error the key may be deleted only if the outcome is unknown.
    pub async fn delete_credential(&self, access_key: &str) -> Result<(), ProposeError> {
        let _alone = self.inner.saga.lock().await;
        let delete = DeleteCredential { access_key: access_key.to_owned() };
        self.inner
            .propose_to(SYSTEM_GROUP, Arc::new(Command::from(Change::DeleteCredential(delete))))
            .await?;
        let set = SetKeyQuota { access_key: access_key.to_owned(), quota: None };
        let groups = self.inner.object_groups();
        if let Err(error) = self.inner.propose_in_others(groups, &Change::SetKeyQuota(set)).await {
            tracing::info!(%error, "a group may still have the quota of a deleted access key");
            self.inner.resident.saga_broken.notify_one();
        }
        Ok(())
    }

    /// Usage that is attributed to an access key, in all buckets.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn payer_usage(&self, access_key: &str) -> Result<BucketUsage, ReadError> {
        let mut usage = BucketUsage::default();
        for state in self.inner.object_states()? {
            let share: Option<Payer> = read(&state, &payer_row(access_key))?;
            usage.add(&share.unwrap_or_default().usage);
        }
        Ok(usage)
    }
}

impl CatalogueInner {
    /// Proposes a change in the system group, and then in others.
    async fn propose_in_system_and(
        &self,
        groups: BTreeSet<u32>,
        change: &Change,
    ) -> Result<(), ProposeError> {
        self.propose_to(SYSTEM_GROUP, Arc::new(Command::from(change.clone()))).await?;
        self.propose_in_others(groups, change).await
    }

    /// Proposes a change in those of the groups that are not the system group.
    async fn propose_in_others(&self, groups: BTreeSet<u32>, change: &Change) -> Result<(), ProposeError> {
        for group in groups.into_iter().filter(|group| *group != SYSTEM_GROUP) {
            self.propose_to(group, Arc::new(Command::from(change.clone()))).await?;
        }
        Ok(())
    }

    /// Object groups whose quotas this node can read. A leader that can read the others resumes those.
    fn groups_with_quotas(&self) -> impl Iterator<Item = u32> {
        let here = |group: &u32| *group != SYSTEM_GROUP && self.groups.get(*group).is_some();
        self.object_groups().into_iter().filter(here)
    }

    /// True if a group has another quota than group 0. A change of the quota may be in progress.
    pub(super) fn has_missing_quotas(&self) -> bool {
        let is_missing = |group| self.missing_quota_changes(group).is_ok_and(|missing| !missing.is_empty());
        self.groups_with_quotas().any(is_missing)
    }

    /// Sets the quotas that group 0 has and other groups lack.
    pub(super) async fn resume_quotas(&self) -> Result<(), ProposeError> {
        let _alone = self.saga.lock().await;
        for group in self.groups_with_quotas() {
            for change in self.missing_quota_changes(group).map_err(|error| self.unreadable(&error))? {
                tracing::info!(group, ?change, "resuming");
                self.propose_to(group, Arc::new(Command::from(change))).await?;
            }
        }
        Ok(())
    }

    fn unreadable(&self, error: &ReadError) -> ProposeError {
        match error {
            ReadError::GroupElsewhere { .. } => ProposeError::NotLeader { leader: None },
            ReadError::Store(why) => {
                (self.fatal)(why);
                ProposeError::Stopping
            }
        }
    }

    /// Commands that bring the quotas of `group` up to date with group 0.
    fn missing_quota_changes(&self, group: u32) -> Result<Vec<Change>, ReadError> {
        let state = self.state_of_group(group)?;
        let mut missed = Vec::new();
        let buckets: Vec<_> = self.resident.buckets.read().values().cloned().collect();
        let here = |of: &Bucket| self.groups_of(of.bucket_id()).contains(&group);
        for of in buckets.iter().filter(|of| of.state() == BucketState::Active && here(of)) {
            let known = state.get(&bucket::mirror_row(of.bucket_id()))?;
            let known: Mirror = known.as_deref().map(decode).transpose()?.unwrap_or_default();
            if known.quota != of.quota {
                let set = SetBucketQuota { name: of.name.clone(), bucket_id: of.id, quota: of.quota };
                missed.push(Change::SetBucketQuota(set));
            }
        }
        let mut known = BTreeMap::new();
        for (row, value) in state.range(&Family::Payer.start(), &Family::Payer.end(), usize::MAX)? {
            if let Some(quota) = decode::<Payer>(&value)?.quota {
                known.insert(payer_key_of(&row)?.to_owned(), quota);
            }
        }
        let wanted = self.resident.credentials();
        let wanted: BTreeMap<String, Quota> =
            wanted.iter().filter_map(|key| Some((key.access_key.clone(), key.quota?))).collect();
        for access_key in known.keys().chain(wanted.keys()).collect::<BTreeSet<_>>() {
            let quota = wanted.get(access_key).copied();
            if known.get(access_key).copied() != quota {
                missed.push(Change::SetKeyQuota(SetKeyQuota { access_key: access_key.clone(), quota }));
            }
        }
        Ok(missed)
    }
}
