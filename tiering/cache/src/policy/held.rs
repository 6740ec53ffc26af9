//! Which copies stay whatever they are worth: those that people pinned.

use crate::copies::PinnedCopies;
use mlgw_common::ids::BucketId;
use mlgw_policies::engine::Unread;

/// The pins.
#[derive(Debug, Default)]
pub(super) struct Held {
    pins: Vec<PinnedCopies>,
    bytes_max: u64,
    /// They are other ones than when the blocks that are here were gone through.
    is_new: bool,
}

impl Held {
    pub(super) fn set(&mut self, pins: Vec<PinnedCopies>, bytes_max: u64) {
        self.is_new |= self.pins != pins || self.bytes_max != bytes_max;
        (self.pins, self.bytes_max) = (pins, bytes_max);
    }

    /// Whether the blocks that are here are to be gone through; who asks does so.
    pub(super) fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// Bytes that may be pinned in all.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Whether a block is to be pinned.
    pub(super) fn holds(&self, block: &Unread<'_>) -> bool {
        self.pins.iter().any(|pin| pin.holds(BucketId(block.bucket), block.key))
    }
}
