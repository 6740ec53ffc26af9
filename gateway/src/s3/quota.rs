//! Quotas: who a write counts for, a look before its body is read, and the words of a refusal.
//!
//! What decides is the catalogue, where commands come one after the other. The look is for clients: what would be refused at the end is
//! refused before it is sent, where its length is known. It costs a write nothing that no quota is set for.

use super::error::{Code, S3Error};
use super::get::current;
use super::{Gateway, bucket_id};
use crate::config::ByteSize;
use crate::credentials::Principal;
use crate::metrics::refused_by_quota;
use mlgw_common::{ObjectKey, PartNumber};
use mlgw_metadata::ReadError;
use mlgw_metadata::command::QuotaOf;
use mlgw_metadata::schema::{self, Bucket, BucketUsage, Excess, Measure, ObjectVersion, Quota};

/// Whose a new object is, and whom it counts for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writer {
    /// Owner id.
    pub(crate) owner: String,
    /// The access key that it counts for; empty for nobody.
    pub(crate) payer: String,
}

impl From<&Principal> for Writer {
    fn from(principal: &Principal) -> Self {
        Self { owner: principal.owner.clone(), payer: principal.payer().to_owned() }
    }
}

/// A write that is about to begin.
struct Look<'a> {
    bucket: &'a Bucket,
    payer: &'a str,
    of_bucket: Option<Quota>,
    of_key: Option<Quota>,
}

impl<'a> Look<'a> {
    /// Nothing when no quota is set for the write.
    fn new(gateway: &Gateway, bucket: &'a Bucket, payer: &'a str) -> Option<Self> {
        let of_key = match payer {
            "" => None,
            payer => gateway.catalogue.credential(payer).and_then(|key| key.quota),
        };
        let of_bucket = bucket.quota;
        (of_bucket.is_some() || of_key.is_some()).then_some(Self { bucket, payer, of_bucket, of_key })
    }

    /// Refuses what would put `come` where `gone` was, which counted for `was_paid_by`.
    fn check(
        &self,
        gateway: &Gateway,
        come: BucketUsage,
        gone: BucketUsage,
        was_paid_by: &str,
    ) -> Result<(), S3Error> {
        let gone_of_key = if was_paid_by == self.payer { gone } else { BucketUsage::default() };
        let catalogue = &gateway.catalogue;
        let used_of_bucket = || catalogue.usage(bucket_id(self.bucket));
        let mut excess =
            excess(self.of_bucket, used_of_bucket, come, gone)?.map(|excess| (QuotaOf::Bucket, excess));
        if excess.is_none() {
            let used_of_key = || catalogue.payer_usage(self.payer);
            let of_key = self::excess(self.of_key, used_of_key, come, gone_of_key)?;
            excess = of_key.map(|excess| (QuotaOf::Key(self.payer.to_owned()), excess));
        }
        let Some((of, excess)) = excess else { return Ok(()) };
        refused_by_quota(&gateway.metrics, &of);
        Err(exceeded(&of, excess))
    }
}

/// What of a quota would be exceeded.
fn excess(
    quota: Option<Quota>,
    used: impl FnOnce() -> Result<BucketUsage, ReadError>,
    come: BucketUsage,
    gone: BucketUsage,
) -> Result<Option<Excess>, S3Error> {
    let Some(quota) = quota else { return Ok(None) };
    let before = used()?;
    let mut after = before;
    after.add(&come);
    // What is replaced may have gone since it was looked up; then it is not counted any more.
    Ok(quota.excess(&before, &after.without(&gone).unwrap_or(after)))
}

fn held(version: &ObjectVersion) -> BucketUsage {
    of_object(version.size)
}

fn of_object(bytes: u64) -> BucketUsage {
    BucketUsage { objects: 1, versions: 1, bytes, ..BucketUsage::default() }
}

impl Gateway {
    /// Refuses an object of `bytes`, if that is known, that a quota would refuse at its end.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(crate) fn check_quota(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        payer: &str,
        bytes: Option<u64>,
    ) -> Result<(), S3Error> {
        let Some(look) = Look::new(self, bucket, payer) else { return Ok(()) };
        let there = current(self, bucket_id(bucket), key)?;
        let gone = there.as_ref().map(held).unwrap_or_default();
        look.check(
            self,
            of_object(bytes.unwrap_or(0)),
            gone,
            there.as_ref().map_or("", |version| &version.payer),
        )
    }

    /// Refuses to begin an upload that would become an object too many.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(super) fn check_quota_of_upload(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        payer: &str,
    ) -> Result<(), S3Error> {
        let Some(look) = Look::new(self, bucket, payer) else { return Ok(()) };
        let there = current(self, bucket_id(bucket), key)?;
        let gone = there.as_ref().map(|_| of_object(0)).unwrap_or_default();
        look.check(self, of_object(0), gone, there.as_ref().map_or("", |version| &version.payer))
    }

    /// Refuses a part of `bytes`, if that is known, that a quota would refuse at its end.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(super) fn check_quota_of_part(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        upload: &schema::Upload,
        number: PartNumber,
        bytes: Option<u64>,
    ) -> Result<(), S3Error> {
        let Some(look) = Look::new(self, bucket, &upload.payer) else { return Ok(()) };
        let there = self.catalogue.part(bucket_id(bucket), key, upload.body(), number)?;
        let of_part = |bytes| BucketUsage { upload_bytes: bytes, ..BucketUsage::default() };
        let gone = there.map(|part| of_part(part.size)).unwrap_or_default();
        look.check(self, of_part(bytes.unwrap_or(0)), gone, &upload.payer)
    }
}

/// The refusal: which quota, how much of it is used, and what helps.
pub(super) fn exceeded(of: &QuotaOf, excess: Excess) -> S3Error {
    let Excess { measure, limit, used } = excess;
    let amount = |amount| match measure {
        Measure::Bytes => format!("{amount} bytes ({})", ByteSize(amount).human()),
        Measure::Objects => format!("{amount} objects"),
    };
    let whose = match of {
        QuotaOf::Bucket => "The bucket's quota".to_owned(),
        QuotaOf::Key(access_key) => format!("The quota of the access key {access_key}"),
    };
    let message = format!(
        "{whose} is {}, and {} are used: this would go beyond it. Delete objects or abort uploads, or ask for a larger quota.",
        amount(limit),
        amount(used)
    );
    S3Error::new(Code::QuotaExceeded)
        .message(message)
        .field("Limit", limit.to_string())
        .field("Used", used.to_string())
}
