//! Whether a file beside checkpoints names one that is about to be deleted: somebody goes on from it.

use crate::admin::Admin;
use crate::s3::reader::BodyReader;
use mlgw_common::{BucketId, ObjectKey};
use mlgw_policies::checkpoints::{Generation, names, pointers_to};

/// Such a file names it in its first line or two; what follows of a longer one, as a list of all that there are, is not read.
const BYTES_MAX: u64 = 16 << 10;

/// What such a file may name: a checkpoint by its prefix, the folder of its run, and its step.
pub(crate) struct Pointee {
    bucket: BucketId,
    prefix: String,
    parent: String,
    step: Option<u64>,
}

impl From<&Generation<'_>> for Pointee {
    fn from(one: &Generation<'_>) -> Self {
        let (prefix, parent) = (one.prefix.to_owned(), one.parent.to_owned());
        Self { bucket: BucketId(one.bucket), prefix, parent, step: one.step }
    }
}

/// Why a checkpoint is still needed: a file names it, or cannot be read.
pub(crate) async fn pointed_at(admin: &Admin, one: &Pointee) -> Option<String> {
    for pointer in pointers_to(&one.parent).filter_map(|name| ObjectKey::new(&name).ok()) {
        match content(admin, one.bucket, &pointer).await {
            Ok(Some(text)) if names(&text, &one.prefix, one.step) => {
                return Some(format!("{pointer} names it"));
            }
            Ok(_) => {}
            Err(error) => return Some(format!("{pointer}, which may name it, cannot be read: {error}")),
        }
    }
    None
}

/// What an object begins with; nothing if there is none.
async fn content(admin: &Admin, bucket: BucketId, key: &ObjectKey) -> Result<Option<String>, String> {
    let found = admin.catalogue.object(bucket, key).map_err(|error| error.to_string())?;
    let Some(object) = found.filter(|object| !object.delete_marker && object.size > 0) else {
        return Ok(None);
    };
    let range = 0..object.size.min(BYTES_MAX);
    let mut reader = BodyReader::new(&admin.catalogue, &admin.tiers, bucket, key, &object, range);
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await.map_err(|error| error.to_string())? {
        bytes.extend_from_slice(&piece);
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}
