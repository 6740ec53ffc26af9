//! Names of segment files, also of unfinished copies and of files that were set aside. Pure: nothing here
//! reads a directory.

use mlgw_common::ids::SegmentId;

/// Extension of a segment file that was set aside, followed by a number.
pub(super) const ASIDE_EXTENSION: &str = "aside-";

/// Returns the name of a segment's file.
#[must_use]
pub fn segment_file_name(id: SegmentId) -> String {
    format!("{:016x}.seg", id.0)
}

/// Returns the segment whose file has this name.
#[must_use]
pub fn segment_of_file_name(name: &str) -> Option<SegmentId> {
    let hex = name.strip_suffix(".seg")?;
    let id = SegmentId(u64::from_str_radix(hex, 16).ok()?);
    (segment_file_name(id) == name).then_some(id)
}

/// Extension of a segment file while it is copied from another directory.
pub(super) const COPYING_EXTENSION: &str = ".copying";

/// True for the name of an unfinished copy of a segment.
pub(super) fn is_copying(name: &str) -> bool {
    name.strip_suffix(COPYING_EXTENSION).is_some_and(|name| segment_of_file_name(name).is_some())
}

/// Returns the segment whose file had this name before it was set aside.
pub(super) fn segment_of_aside_name(name: &str) -> Option<SegmentId> {
    let (name, number) = name.rsplit_once('.')?;
    number.strip_prefix(ASIDE_EXTENSION)?.parse::<u64>().ok()?;
    segment_of_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::{segment_file_name, segment_of_aside_name, segment_of_file_name};
    use mlgw_common::ids::SegmentId;

    #[test]
    fn a_file_name_names_one_segment() {
        assert_eq!(segment_file_name(SegmentId(255)), "00000000000000ff.seg");
        assert_eq!(segment_of_file_name("00000000000000ff.seg"), Some(SegmentId(255)));
        assert_eq!(segment_of_aside_name("00000000000000ff.seg.aside-2"), Some(SegmentId(255)));
        assert_eq!(segment_of_aside_name("00000000000000ff.seg.aside-"), None);
        for other in ["ff.seg", "00000000000000FF.seg", "00000000000000ff", "+0000000000000ff.seg", "ballast"]
        {
            assert_eq!(segment_of_file_name(other), None, "{other}");
        }
    }
}
