//! Quotas of buckets and access keys. Usage is counted and checked against them in [`usage`](super::usage).
//!
//! A quota is stored where `apply` reads it with or before the counters: in a bucket's mirror and in a
//! payer's row. Group 0 also has it in the records of buckets and access keys, which the API returns. With
//! one group both change in the same command.
//!
//! A quota that counts in several groups is divided: each group has a slice beside the quota, and refuses
//! growth beyond it. An allotment has a number. A group takes part in one allotment at a time, the newest
//! that it knows, and its slice grows only by commands of that one. So once all groups take part in an
//! allotment, no command of an earlier one raises a slice, however late it comes: `catalogue/allotments.rs`.

use super::malformed;
use crate::store_error::StoreError;
use crate::view::{ApplyError, View};
use mlgw_common::BucketId;
use mlgw_formats::command::{
    BeginAllotment, QuotaSubject, Reject, Reply, SetBucketQuota, SetKeyQuota, SetSlice,
};
use mlgw_formats::schema::meta::{Counter, MetaRow};
use mlgw_formats::schema::quota::payer_row;
use mlgw_formats::schema::usage::bucket_row;
use mlgw_formats::schema::{
    Bucket, BucketUsage, Credential, Measure, Mirror, Payer, Quota, QuotaSlice, SliceState, bucket,
    credential,
};

/// Limits of a bucket or an access key in this group.
#[derive(Clone, Copy, Default)]
pub(super) struct GroupLimits {
    pub(super) quota: Option<Quota>,
    pub(super) slice: Option<QuotaSlice>,
}

impl From<&Mirror> for GroupLimits {
    fn from(mirror: &Mirror) -> Self {
        Self { quota: mirror.quota, slice: mirror.slice }
    }
}

impl From<&Payer> for GroupLimits {
    fn from(payer: &Payer) -> Self {
        Self { quota: payer.quota, slice: payer.slice }
    }
}

impl GroupLimits {
    /// Returns the rejection of a change of usage, if it exceeds a limit.
    pub(super) fn refusal(
        &self,
        of: impl FnOnce() -> QuotaSubject,
        before: &BucketUsage,
        after: &BucketUsage,
    ) -> Option<Reject> {
        let quota = self.quota?;
        if let Some(excess) = quota.excess(before, after) {
            return Some(Reject::QuotaExceeded { of: of(), excess });
        }
        let QuotaSlice { limits, allotment } = self.slice?;
        limits.excess(before, after)?;
        let growth = |measure: Measure| measure.amount_in(after).saturating_sub(measure.amount_in(before));
        let (bytes, objects) = (growth(Measure::Bytes), growth(Measure::Objects));
        Some(Reject::SliceFull { of: of(), bytes, objects, allotment })
    }
}

/// Allocates the number of an allotment.
pub(super) fn begin_allotment(view: &mut View<'_>, command: &BeginAllotment) -> Result<Reply, ApplyError> {
    let row = MetaRow::NextAllotment.row();
    let next = view.get::<Counter>(&row)?.unwrap_or_default().next;
    let number = next.max(1).max(command.after.saturating_add(1));
    let next = number.checked_add(1).ok_or_else(|| malformed("the number of an allotment is too high"))?;
    view.put(row, &Counter { next });
    Ok(Reply::Allotment { number })
}

/// Sets the slice of this group.
pub(super) fn set_slice(view: &mut View<'_>, command: &SetSlice) -> Result<Reply, ApplyError> {
    let owner = &command.owner;
    if owner.bucket_id == 0 {
        let row = payer_row(&owner.access_key);
        let payer: Payer = view.get(&row)?.unwrap_or_default();
        let limits = GroupLimits::from(&payer);
        let slice = changed_slice(limits, command)?;
        view.put(row, &Payer { slice: Some(slice), ..payer });
        return Ok(slice_reply(limits.slice, slice, &payer.usage));
    }
    let row = bucket::mirror_row(BucketId(owner.bucket_id));
    let mirror: Mirror = view.get(&row)?.ok_or(Reject::NoSuchBucket)?;
    let usage: BucketUsage = view.get(&bucket_row(BucketId(owner.bucket_id)))?.unwrap_or_default();
    let limits = GroupLimits::from(&mirror);
    let slice = changed_slice(limits, command)?;
    view.put(row, &Mirror { slice: Some(slice), ..mirror });
    Ok(slice_reply(limits.slice, slice, &usage))
}

fn slice_reply(before: Option<QuotaSlice>, after: QuotaSlice, usage: &BucketUsage) -> Reply {
    let before = before.unwrap_or_default().limits;
    Reply::Slice { state: SliceState::new(after.limits, usage), before }
}

/// Returns the slice after a command. It has limits for the quantities that the quota limits.
fn changed_slice(group: GroupLimits, command: &SetSlice) -> Result<QuotaSlice, Reject> {
    let quota = group.quota.ok_or(Reject::NoQuota)?;
    let before = group.slice.unwrap_or_default();
    let is_joined = command.allotment == before.allotment;
    if command.allotment < before.allotment || (command.grows && !is_joined) {
        return Err(Reject::AllotmentEnded { allotment: before.allotment });
    }
    let limits = Quota::from_limits(|measure| {
        quota.limit(measure)?;
        let held = before.limits.limit(measure);
        let Some(requested) = command.slice.limit(measure) else { return held };
        match command.grows {
            true => held.map(|held| held.max(requested)),
            // Also below the usage: then nothing is added before a grant, or before the usage has fallen.
            false => Some(held.unwrap_or(u64::MAX).min(requested)),
        }
    });
    Ok(QuotaSlice { limits, allotment: command.allotment })
}

pub(super) fn set_bucket_quota(view: &mut View<'_>, command: &SetBucketQuota) -> Result<Reply, ApplyError> {
    let quota = command.quota.and_then(Quota::non_empty);
    let (row, mirror_row) = (bucket::row(&command.name), bucket::mirror_row(BucketId(command.bucket_id)));
    let mirror: Option<Mirror> = view.get(&mirror_row)?;
    let bucket = view.get::<Bucket>(&row)?.filter(|bucket| bucket.id == command.bucket_id);
    if mirror.is_none() && bucket.is_none() {
        return Err(Reject::NoSuchBucket.into());
    }
    // The groups of the bucket's keys have a mirror, and group 0 has the bucket.
    if let Some(mirror) = mirror {
        let slice = mirror.slice.and_then(|slice| slice.within(quota.as_ref()));
        view.put(mirror_row, &Mirror { quota, slice, ..mirror });
    }
    let Some(bucket) = bucket else { return Ok(Reply::Done) };
    let bucket = Bucket { quota, ..bucket };
    view.put(row, &bucket);
    Ok(Reply::Bucket(bucket))
}

pub(super) fn set_key_quota(view: &mut View<'_>, command: &SetKeyQuota) -> Result<Reply, ApplyError> {
    let quota = command.quota.and_then(Quota::non_empty);
    let row = credential::row(&command.access_key);
    if let Some(known) = view.get::<Credential>(&row)? {
        view.put(row, &Credential { quota, ..known });
    }
    set_payer_quota(view, &command.access_key, quota)?;
    Ok(Reply::Done)
}

/// Sets the quota of an access key in this group.
pub(super) fn set_payer_quota(
    view: &mut View<'_>,
    access_key: &str,
    quota: Option<Quota>,
) -> Result<(), StoreError> {
    let row = payer_row(access_key);
    let known = view.get::<Payer>(&row)?.unwrap_or_default();
    if known.quota != quota {
        let slice = known.slice.and_then(|slice| slice.within(quota.as_ref()));
        write_payer(view, row, &Payer { quota, slice, ..known });
    }
    Ok(())
}

/// Writes a payer's row, or deletes it if all of its fields have default values.
pub(super) fn write_payer(view: &mut View<'_>, row: Vec<u8>, payer: &Payer) {
    if *payer == Payer::default() {
        view.delete(row);
    } else {
        view.put(row, payer);
    }
}
