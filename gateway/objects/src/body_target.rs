//! Destination of a new body: an object or a part of an upload.

use mlgw_common::{BodyId, ObjectKey, PartNumber};
use mlgw_formats::schema::Bucket;

/// Destination of a new body.
#[derive(Clone, Copy)]
pub struct BodyTarget<'a> {
    /// The bucket.
    pub bucket: &'a Bucket,
    /// The key.
    pub key: &'a ObjectKey,
    /// The upload and the part of it, if the body becomes a part.
    pub part: Option<(BodyId, PartNumber)>,
}
