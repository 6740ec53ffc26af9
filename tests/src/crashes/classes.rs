//! Which file of a data directory is of which kind, by its path.

/// Segment files.
pub(super) fn segment(path: &str) -> bool {
    path.starts_with("mlgw-data/segments/")
}
