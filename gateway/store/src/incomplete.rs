//! Objects that lack bytes: those that the last node of a cluster does not have, and those that a backup
//! would lack.

use mlgw_common::{BucketId, SegmentId};
use mlgw_metadata::offline::Offline;
use mlgw_metadata::store_error::StoreError;
use std::collections::BTreeSet;
use std::fmt;

/// Maximum number of objects and segments that an error names; the others are counted.
const NAMED_MAX: usize = 1000;

/// An object that lacks bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IncompleteObject {
    /// Name of the bucket, or its id if it has no record.
    pub bucket: String,
    /// The key.
    pub key: String,
}

impl fmt::Display for IncompleteObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.key.escape_default())
    }
}

/// Segments that are missing or damaged, and the objects that lack bytes without them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingSegments {
    /// The segments.
    pub segments: BTreeSet<SegmentId>,
    /// The objects, and uploads in progress.
    pub objects: Vec<IncompleteObject>,
}

impl MissingSegments {
    /// Returns the missing segments with the objects of a catalogue that lack bytes without them.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub(crate) fn of(catalogue: &Offline, segments: BTreeSet<SegmentId>) -> Result<Self, StoreError> {
        let objects = objects_lacking(catalogue, &mut |id, _| segments.contains(&SegmentId(id)))?;
        Ok(Self { segments, objects })
    }
}

impl fmt::Display for MissingSegments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segments are missing or damaged:")?;
        for id in self.segments.iter().take(NAMED_MAX) {
            write!(f, " {id}")?;
        }
        write_rest(f, self.segments.len())?;
        if self.objects.is_empty() {
            return Ok(());
        }
        write!(f, "\nThese {} objects lack bytes:", self.objects.len())?;
        for object in self.objects.iter().take(NAMED_MAX) {
            write!(f, "\n{object}")?;
        }
        write_rest(f, self.objects.len())
    }
}

fn write_rest(f: &mut fmt::Formatter<'_>, all: usize) -> fmt::Result {
    match all.checked_sub(NAMED_MAX) {
        None | Some(0) => Ok(()),
        Some(more) => write!(f, " and {more} more"),
    }
}

/// Returns the objects, and uploads in progress, with an extent for which `is_lacking` is true. It gets the
/// id of a segment and the end of the extent in it.
///
/// # Errors
/// When the catalogue cannot be read.
pub(crate) fn objects_lacking(
    catalogue: &Offline,
    is_lacking: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Vec<IncompleteObject>, StoreError> {
    let mut found = BTreeSet::new();
    catalogue.each_extent(&mut |of| {
        if is_lacking(of.extent.segment, of.end()) {
            let key = String::from_utf8_lossy(of.key).into_owned();
            found.insert(IncompleteObject { bucket: bucket_name(catalogue, of.bucket), key });
        }
        Ok(())
    })?;
    Ok(found.into_iter().collect())
}

fn bucket_name(catalogue: &Offline, bucket: BucketId) -> String {
    let record = catalogue.facts.buckets.get(&bucket.0);
    record.map_or_else(|| bucket.to_string(), |record| record.name.clone())
}

#[cfg(test)]
mod tests {
    use super::{IncompleteObject, MissingSegments, NAMED_MAX};
    use mlgw_common::SegmentId;

    #[test]
    fn missing_segments_are_named_with_their_objects_and_a_long_list_ends_with_a_count() {
        let object = |n: usize| IncompleteObject { bucket: "b".to_owned(), key: format!("k\n{n}") };
        let segments = [7, 9].map(SegmentId).into();
        let few = MissingSegments { segments, objects: vec![object(1), object(2)] };
        let expected =
            "segments are missing or damaged: 7 9\nThese 2 objects lack bytes:\ns3://b/k\\n1\ns3://b/k\\n2";
        assert_eq!(few.to_string(), expected);
        let many = MissingSegments { objects: (0..NAMED_MAX + 3).map(object).collect(), ..few };
        let text = many.to_string();
        assert_eq!(text.lines().count(), NAMED_MAX + 2);
        assert!(text.ends_with(" and 3 more"), "{text}");
    }
}
