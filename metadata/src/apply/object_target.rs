//! Target of an object command.

use super::quota::GroupLimits;
use crate::view::{ApplyError, View};
use mlgw_common::{BucketId, Seq};
use mlgw_formats::schema::{ObjectVersion, object};

/// Bucket, key and sequence number of an object command that passed the bucket's checks.
#[derive(Clone, Copy)]
pub(super) struct ObjectTarget<'c> {
    pub(super) bucket: BucketId,
    pub(super) key: &'c [u8],
    pub(super) seq: Seq,
    /// Limits of the bucket in this group.
    pub(super) limits: GroupLimits,
    /// True if Last-Modified must not fall.
    pub(super) grows_times: bool,
}

impl ObjectTarget<'_> {
    pub(super) fn row(&self) -> Vec<u8> {
        object::row(self.bucket, self.key)
    }

    pub(super) fn current(&self, view: &View<'_>) -> Result<Option<ObjectVersion>, ApplyError> {
        Ok(view.get(&self.row())?)
    }
}
