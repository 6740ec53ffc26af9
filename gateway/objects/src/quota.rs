//! Quotas: the owner and payer of a write, and the check before its body is read.
//!
//! The catalogue decides when it applies the change. The check in this module refuses a write of known
//! length before its body is sent. It costs nothing for writes without a quota. It only reads, so a power
//! failure changes nothing.

use crate::{ObjectError, ObjectLayer};
use mlgw_common::{ObjectKey, PartNumber};
use mlgw_formats::command::{QuotaSubject, Reject};
use mlgw_formats::schema::{self, Bucket, BucketUsage, Excess, ObjectVersion, Quota};
use mlgw_metadata::{ReadError, UsageOf};

/// The owner and the payer of a new object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteAttribution {
    /// Owner id.
    pub owner: String,
    /// The access key that the object counts against, or an empty string for none.
    pub payer: String,
}

/// The quotas that a write is checked against.
struct QuotaCheck<'a> {
    bucket: &'a Bucket,
    payer: &'a str,
    of_bucket: Option<Quota>,
    of_key: Option<Quota>,
}

impl<'a> QuotaCheck<'a> {
    /// Returns `None` when no quota is set for the write.
    fn new(objects: &ObjectLayer, bucket: &'a Bucket, payer: &'a str) -> Option<Self> {
        let of_key = match payer {
            "" => None,
            payer => objects.catalogue.credential(payer).and_then(|key| key.quota),
        };
        let of_bucket = bucket.quota;
        (of_bucket.is_some() || of_key.is_some()).then_some(Self { bucket, payer, of_bucket, of_key })
    }

    /// Asks for the usage in the groups of other nodes.
    async fn ask_usage(&self, objects: &ObjectLayer) {
        if self.of_bucket.is_some() {
            objects.catalogue.ask_usage(UsageOf::Bucket(self.bucket.bucket_id())).await;
        }
        if self.of_key.is_some() {
            objects.catalogue.ask_usage(UsageOf::Payer(self.payer.to_owned())).await;
        }
    }

    /// Refuses a write that replaces `gone`, paid by `was_paid_by`, with `come` if a quota would be exceeded.
    fn check(
        &self,
        objects: &ObjectLayer,
        come: BucketUsage,
        gone: BucketUsage,
        was_paid_by: &str,
    ) -> Result<(), ObjectError> {
        let gone_of_key = if was_paid_by == self.payer { gone } else { BucketUsage::default() };
        let catalogue = &objects.catalogue;
        let bucket = self.bucket.bucket_id();
        let used_of_bucket = || match catalogue.has_sets() {
            true => catalogue.quota_usage(&UsageOf::Bucket(bucket)),
            false => catalogue.usage(bucket),
        };
        let mut excess =
            excess(self.of_bucket, used_of_bucket, come, gone)?.map(|excess| (QuotaSubject::Bucket, excess));
        if excess.is_none() {
            let used_of_key = || match catalogue.has_sets() {
                true => catalogue.quota_usage(&UsageOf::Payer(self.payer.to_owned())),
                false => catalogue.payer_usage(self.payer),
            };
            let of_key = self::excess(self.of_key, used_of_key, come, gone_of_key)?;
            excess = of_key.map(|excess| (QuotaSubject::Key(self.payer.to_owned()), excess));
        }
        let Some((of, excess)) = excess else { return Ok(()) };
        objects.metrics.refuse_by_quota(&of);
        Err(ObjectError::Rejected(Reject::QuotaExceeded { of, excess }))
    }
}

/// Returns the exceeded limit of a quota after adding `come` and removing `gone`, or `None` if it holds.
fn excess(
    quota: Option<Quota>,
    used: impl FnOnce() -> Result<BucketUsage, ReadError>,
    come: BucketUsage,
    gone: BucketUsage,
) -> Result<Option<Excess>, ObjectError> {
    let Some(quota) = quota else { return Ok(None) };
    let before = used()?;
    let mut after = before;
    after.add(&come);
    // The replaced object may have been removed since it was read. It is then no longer counted in the usage.
    Ok(quota.excess(&before, &after.without(&gone).unwrap_or(after)))
}

fn version_usage(version: &ObjectVersion) -> BucketUsage {
    object_usage(version.size)
}

fn object_usage(bytes: u64) -> BucketUsage {
    BucketUsage { objects: 1, versions: 1, bytes, ..BucketUsage::default() }
}

impl ObjectLayer {
    /// True if a quota limits what `payer` writes to `bucket`.
    #[must_use]
    pub fn has_quota(&self, bucket: &Bucket, payer: &str) -> bool {
        QuotaCheck::new(self, bucket, payer).is_some()
    }

    /// Asks other nodes for the usage that a check of a quota needs and that this node cannot count. Without
    /// sets, without a quota, and on a node that has all groups it does nothing.
    pub async fn ask_quota_usage(&self, bucket: &Bucket, payer: &str) {
        let Some(look) = QuotaCheck::new(self, bucket, payer).filter(|_| self.catalogue.has_sets()) else {
            return;
        };
        // Boxed, so that a change without a quota pays for a lookup only.
        Box::pin(look.ask_usage(self)).await;
    }

    /// Refuses an object of `bytes`, if known, that would exceed a quota once it is written.
    ///
    /// # Errors
    /// [`Reject::QuotaExceeded`].
    pub fn check_quota(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        payer: &str,
        bytes: Option<u64>,
    ) -> Result<(), ObjectError> {
        let Some(look) = QuotaCheck::new(self, bucket, payer) else { return Ok(()) };
        let there = self.current(bucket.bucket_id(), key)?;
        let gone = there.as_ref().map(version_usage).unwrap_or_default();
        look.check(
            self,
            object_usage(bytes.unwrap_or(0)),
            gone,
            there.as_ref().map_or("", |version| &version.payer),
        )
    }

    /// Refuses to create an upload whose object would exceed a quota.
    ///
    /// # Errors
    /// [`Reject::QuotaExceeded`].
    pub fn check_quota_of_upload(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        payer: &str,
    ) -> Result<(), ObjectError> {
        let Some(look) = QuotaCheck::new(self, bucket, payer) else { return Ok(()) };
        let there = self.current(bucket.bucket_id(), key)?;
        let gone = there.as_ref().map(|_| object_usage(0)).unwrap_or_default();
        look.check(self, object_usage(0), gone, there.as_ref().map_or("", |version| &version.payer))
    }

    /// Refuses a part of `bytes`, if known, that would exceed a quota once it is written.
    ///
    /// # Errors
    /// [`Reject::QuotaExceeded`].
    pub fn check_quota_of_part(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        upload: &schema::Upload,
        number: PartNumber,
        bytes: Option<u64>,
    ) -> Result<(), ObjectError> {
        let Some(look) = QuotaCheck::new(self, bucket, &upload.payer) else { return Ok(()) };
        let there = self.catalogue.part(bucket.bucket_id(), key, upload.body(), number)?;
        let of_part = |bytes| BucketUsage { upload_bytes: bytes, ..BucketUsage::default() };
        let gone = there.map(|part| of_part(part.size)).unwrap_or_default();
        look.check(self, of_part(bytes.unwrap_or(0)), gone, &upload.payer)
    }
}
