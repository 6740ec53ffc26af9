//! Headers of segment files: reads the header of a file, and compares it with a record of the catalogue.

use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use mlgw_common::{Timestamp, regular};
use mlgw_formats::schema::SegmentRecord;
use mlgw_formats::segment_header::{HeaderFault, SEGMENT_HEADER_BYTES, SegmentHeader};

/// Returns the length of a file and its header.
pub(super) fn header_of(path: &Path) -> io::Result<(u64, Result<SegmentHeader, HeaderFault>)> {
    let file = regular::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    let header = match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => SegmentHeader::decode(&bytes),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(HeaderFault::Short),
        Err(error) => return Err(error),
    };
    Ok((length, header))
}

/// True if a header belongs to the segment of a record.
pub(super) fn is_header_of(header: &SegmentHeader, record: &SegmentRecord) -> bool {
    header.is_header_of(record.segment_id(), record.seed(), Some(Timestamp(record.created_ms)))
}
