//! Counters: usage of buckets and payers, and references to segments.
//!
//! The usage of a bucket or payer consists of versions and of the parts of uploads in progress. Commands
//! apply one after the other, so checking the usage after each command against the quotas makes a quota exact
//! within its group, and so is the group's slice of a quota that is divided.
//!
//! Every reference is counted here when a record begins to hold it, so this is also where a fenced segment
//! refuses new ones. The counter of a referenced segment carries its fence; only the first reference to a
//! segment reads the fenced ranges.

use super::object_target::ObjectTarget;
use super::quota::GroupLimits;
use super::{fence, quota};
use crate::store_error::StoreError;
use crate::view::{ApplyError, View};
use mlgw_formats::command::{PutObject, QuotaSubject, Reject};
use mlgw_formats::schema::quota::payer_row;
use mlgw_formats::schema::usage::{bucket_row, segment_row};
use mlgw_formats::schema::{BucketUsage, Extent, ObjectVersion, Payer, SegmentUsage, Upload};
use std::collections::{BTreeMap, BTreeSet};

/// Usage that one record adds to its bucket and its payer.
#[derive(Clone, Copy)]
pub(super) struct ChargedUsage<'a> {
    payer: &'a str,
    usage: BucketUsage,
}

impl<'a> ChargedUsage<'a> {
    pub(super) fn of_version(version: &'a ObjectVersion) -> Self {
        let usage = BucketUsage { objects: 1, versions: 1, bytes: version.size, ..BucketUsage::default() };
        Self { payer: &version.payer, usage }
    }

    /// Usage of an upload with all its parts.
    pub(super) fn of_upload(upload: &'a Upload) -> Self {
        let usage = BucketUsage { uploads: 1, upload_bytes: upload.part_bytes, ..BucketUsage::default() };
        Self { payer: &upload.payer, usage }
    }

    /// Usage of `bytes` of an upload's parts.
    pub(super) fn of_parts(upload: &'a Upload, bytes: u64) -> Self {
        Self { payer: &upload.payer, usage: BucketUsage { upload_bytes: bytes, ..BucketUsage::default() } }
    }
}

/// Application of quotas to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuotaCheck {
    /// A command that exceeds a quota is rejected.
    Enforced,
    /// The command is counted and never rejected.
    Exempt,
}

impl QuotaCheck {
    /// The check of a put.
    pub(super) const fn of(put: &PutObject) -> Self {
        if put.is_exempt { Self::Exempt } else { Self::Enforced }
    }

    /// Rejects a command that is refused, unless it is exempt.
    fn check(self, refusal: Option<Reject>) -> Result<(), Reject> {
        match refusal {
            Some(refusal) if self == Self::Enforced => Err(refusal),
            _ => Ok(()),
        }
    }
}

/// Charges a bucket and its payers for the net change of a command, and checks the result against their
/// quotas. The arguments cover the whole command, so only its final result is checked, not intermediate
/// states.
pub(super) fn charge(
    view: &mut View<'_>,
    place: ObjectTarget<'_>,
    gone: &[ChargedUsage<'_>],
    come: &[ChargedUsage<'_>],
    check: QuotaCheck,
) -> Result<(), ApplyError> {
    let row = bucket_row(place.bucket);
    let before: BucketUsage = view.get(&row)?.unwrap_or_default();
    let after = changed(&before, &sum(gone), &sum(come)).ok_or_else(|| usage_underflow("a bucket"))?;
    check.check(place.limits.refusal(|| QuotaSubject::Bucket, &before, &after))?;
    view.put(row, &after);
    let payers = gone.iter().chain(come).map(|held| held.payer).filter(|payer| !payer.is_empty());
    for payer in payers.collect::<BTreeSet<_>>() {
        charge_payer(view, payer, gone, come, check)?;
    }
    Ok(())
}

/// Charges one payer for its share of a command's change.
fn charge_payer(
    view: &mut View<'_>,
    access_key: &str,
    gone: &[ChargedUsage<'_>],
    come: &[ChargedUsage<'_>],
    check: QuotaCheck,
) -> Result<(), ApplyError> {
    let own = |all: &[ChargedUsage<'_>]| sum(all.iter().filter(|held| held.payer == access_key));
    let row = payer_row(access_key);
    let before: Payer = view.get(&row)?.unwrap_or_default();
    let usage = changed(&before.usage, &own(gone), &own(come));
    let usage = usage.ok_or_else(|| usage_underflow("an access key"))?;
    let limits = GroupLimits::from(&before);
    check.check(limits.refusal(|| QuotaSubject::Key(access_key.to_owned()), &before.usage, &usage))?;
    quota::write_payer(view, row, &Payer { usage, ..before });
    Ok(())
}

/// Subtracts the usage of an upload from its payer; the counters of its bucket are deleted as a whole.
pub(super) fn refund_upload(view: &mut View<'_>, upload: &Upload) -> Result<(), ApplyError> {
    if upload.payer.is_empty() {
        return Ok(());
    }
    charge_payer(view, &upload.payer, &[ChargedUsage::of_upload(upload)], &[], QuotaCheck::Enforced)
}

fn sum<'h>(held: impl IntoIterator<Item = &'h ChargedUsage<'h>>) -> BucketUsage {
    let mut sum = BucketUsage::default();
    held.into_iter().for_each(|held| sum.add(&held.usage));
    sum
}

fn changed(before: &BucketUsage, gone: &BucketUsage, come: &BucketUsage) -> Option<BucketUsage> {
    let mut after = *before;
    after.add(come);
    after.without(gone)
}

fn usage_underflow(what: &str) -> StoreError {
    StoreError(format!("the usage counter of {what} would become negative"))
}

/// Counts extents that a record references from now on. Fails if their segment is fenced.
pub(super) fn add_references<'e>(
    view: &mut View<'_>,
    extents: impl IntoIterator<Item = &'e Extent>,
) -> Result<(), ApplyError> {
    for (segment, sum) in by_segment(extents) {
        let row = segment_row(segment.into());
        let known: Option<SegmentUsage> = view.get(&row)?;
        let fenced = match &known {
            Some(usage) => usage.fenced,
            None => fence::is_fenced(view, segment.into())?,
        };
        if fenced {
            return Err(Reject::SegmentFenced { segment }.into());
        }
        let mut usage = known.unwrap_or_default();
        usage.add(&sum);
        view.put(row, &usage);
    }
    Ok(())
}

/// Subtracts extents that no record references any more.
pub(super) fn remove_references<'e>(
    view: &mut View<'_>,
    extents: impl IntoIterator<Item = &'e Extent>,
) -> Result<(), StoreError> {
    let freed = extents.into_iter().inspect(|extent| view.record_freed(extent.segment.into(), extent.offset));
    for (segment, sum) in by_segment(freed) {
        let row = segment_row(segment.into());
        let usage: SegmentUsage = view.get(&row)?.unwrap_or_default();
        let (Some(bytes), Some(extents)) =
            (usage.bytes.checked_sub(sum.bytes), usage.extents.checked_sub(sum.extents))
        else {
            return Err(StoreError(format!(
                "segment {segment} has fewer references than its extents require"
            )));
        };
        if extents == 0 {
            view.delete(row);
        } else {
            view.put(row, &SegmentUsage { bytes, extents, ..usage });
        }
    }
    Ok(())
}

fn by_segment<'e>(extents: impl IntoIterator<Item = &'e Extent>) -> BTreeMap<u64, SegmentUsage> {
    let mut sums = BTreeMap::<u64, SegmentUsage>::new();
    for extent in extents {
        let sum = sums.entry(extent.segment).or_default();
        sum.bytes += extent.record_bytes();
        sum.extents += 1;
    }
    sums
}
