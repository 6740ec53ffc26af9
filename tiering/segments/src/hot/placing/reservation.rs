//! Reservation of space for a copy, given back unless the copy is kept.

use std::io;

use mlgw_formats::schema::SegmentRecord;

use crate::hot::space::DiskSpace;

/// Space in a tier for one segment.
pub(in crate::hot) struct CopyReservation<'a> {
    space: &'a DiskSpace,
    bytes: u64,
}

impl<'a> CopyReservation<'a> {
    /// Reserves space for the segment of `record` in the tier named `tier`.
    pub(in crate::hot) fn reserve(
        space: &'a DiskSpace,
        tier: &str,
        record: &SegmentRecord,
    ) -> io::Result<Self> {
        let bytes = record.length;
        if space.reserve(bytes) { Ok(Self { space, bytes }) } else { Err(no_room_error(tier, record)) }
    }

    /// Charges the space permanently: the copy is complete.
    pub(in crate::hot) fn keep(mut self) {
        self.space.finish(std::mem::take(&mut self.bytes));
    }
}

impl Drop for CopyReservation<'_> {
    fn drop(&mut self) {
        self.space.cancel(self.bytes);
    }
}

pub(super) fn no_room_error(tier: &str, record: &SegmentRecord) -> io::Error {
    io::Error::new(
        io::ErrorKind::StorageFull,
        format!("the {tier} tier has no space for {} bytes", record.length),
    )
}
