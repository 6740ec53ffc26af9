//! Pins of the policy driver: copies that are kept whatever their worth.

use crate::copies::PinnedCopies;
use mlgw_common::ids::BucketId;
use mlgw_policies::engine::UnreadBlock;

/// Current pins.
#[derive(Debug, Default)]
pub(super) struct PolicyPins {
    pins: Vec<PinnedCopies>,
    bytes_max: u64,
    /// True if the pins changed since the present blocks were last scanned.
    needs_scan: bool,
}

impl PolicyPins {
    pub(super) fn set(&mut self, pins: Vec<PinnedCopies>, bytes_max: u64) {
        self.needs_scan |= self.pins != pins || self.bytes_max != bytes_max;
        (self.pins, self.bytes_max) = (pins, bytes_max);
    }

    /// Returns true if the present blocks must be scanned, and clears the flag.
    pub(super) fn take_needs_scan(&mut self) -> bool {
        std::mem::take(&mut self.needs_scan)
    }

    /// Maximum number of pinned bytes.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// True if a pin includes the block.
    pub(super) fn includes(&self, block: &UnreadBlock<'_>) -> bool {
        self.pins.iter().any(|pin| pin.includes(BucketId(block.bucket), block.key))
    }
}
