//! The extents of an object: the byte ranges of segments that hold its body.
//!
//! This module only reads, so a power failure changes nothing.

use mlgw_common::{BucketId, ObjectKey, PartNumber};
use mlgw_formats::schema::{Extent, ObjectVersion};
use mlgw_metadata::{Catalogue, ReadError};

/// Maximum number of extents returned. Covers 9.7 GiB of full-size (1 MiB) extents.
const EXTENTS_MAX: usize = 10_000;

/// Returns the first [`EXTENTS_MAX`] extents of an object, in the order of its bytes.
///
/// # Errors
/// When the catalogue cannot be read.
pub fn extents(
    catalogue: &Catalogue,
    bucket: BucketId,
    key: &ObjectKey,
    object: &ObjectVersion,
) -> Result<Vec<Extent>, ReadError> {
    let mut found = object.extents.clone();
    let _pin = catalogue.pin(object.body());
    let reader = catalogue.reader();
    for page in reader.extent_pages(bucket, key, object.body(), 0) {
        let (_, page) = page?;
        found.extend(page.extents);
        for number in page.parts.iter().filter_map(|part| PartNumber::new(part.number)) {
            let part = catalogue.part(bucket, key, object.body(), number)?;
            found.extend(part.into_iter().flat_map(|part| part.extents));
            if found.len() >= EXTENTS_MAX {
                break;
            }
        }
        if found.len() >= EXTENTS_MAX {
            break;
        }
    }
    found.truncate(EXTENTS_MAX);
    Ok(found)
}
