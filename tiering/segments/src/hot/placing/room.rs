//! Reservation of space for a copy, given back unless the copy is kept.

use std::io;

use mlgw_formats::schema::SegmentRecord;

use crate::hot::space::Space;

/// Space in a tier for one segment.
pub(super) struct Room<'a> {
    space: &'a Space,
    bytes: u64,
}

impl<'a> Room<'a> {
    /// Reserves space for the segment of `record` in the tier named `tier`.
    pub(super) fn take(space: &'a Space, tier: &str, record: &SegmentRecord) -> io::Result<Self> {
        let bytes = record.length;
        if space.admit(bytes) { Ok(Self { space, bytes }) } else { Err(no_room(tier, record)) }
    }

    /// Charges the space permanently: the copy is complete.
    pub(super) fn keep(mut self) {
        self.space.settle(std::mem::take(&mut self.bytes));
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.space.give_back(self.bytes);
    }
}

pub(super) fn no_room(tier: &str, record: &SegmentRecord) -> io::Error {
    io::Error::new(
        io::ErrorKind::StorageFull,
        format!("the {tier} tier has no room for {} bytes", record.length),
    )
}
