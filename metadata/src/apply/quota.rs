//! Quotas of buckets and access keys. Usage is counted and checked against them in [`usage`](super::usage).
//!
//! A quota is stored where `apply` reads it with or before the counters: in a bucket's mirror and in a
//! payer's row. Group 0 also has it in the records of buckets and access keys, which the API returns. With
//! one group both change in the same command.

use crate::store_error::StoreError;
use crate::view::{ApplyError, View};
use mlgw_common::BucketId;
use mlgw_formats::command::{Reject, Reply, SetBucketQuota, SetKeyQuota};
use mlgw_formats::schema::quota::payer_row;
use mlgw_formats::schema::{Bucket, Credential, Mirror, Payer, Quota, bucket, credential};

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
        view.put(mirror_row, &Mirror { quota, ..mirror });
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
    let known: Option<Payer> = view.get(&row)?;
    if known.unwrap_or_default().quota != quota {
        write_payer(view, row, &Payer { quota, ..known.unwrap_or_default() });
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
