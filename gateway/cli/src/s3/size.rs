//! Form of sizes in the rows of `ls` and `du`. Pure.

use clap::Args;
use mlgw_common::ByteSize;

/// Width of a size with a unit.
const WIDTH_WITH_UNIT: usize = 10;
/// Width of a size in bytes.
const WIDTH_IN_BYTES: usize = 15;

/// Options for the form of sizes.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct SizeForm {
    /// Print sizes with a unit, such as 1.5 MiB. This is the default.
    #[arg(long, alias = "human-readable", overrides_with = "bytes")]
    human: bool,
    /// Print sizes in bytes.
    #[arg(long)]
    bytes: bool,
}

impl SizeForm {
    /// The form with sizes in bytes.
    #[cfg(test)]
    pub(super) const BYTES: Self = Self { human: false, bytes: true };

    /// Returns the text of a size.
    pub(super) fn text(self, bytes: u64) -> String {
        if self.bytes { bytes.to_string() } else { ByteSize(bytes).human() }
    }

    /// Returns the width of the column.
    pub(super) const fn width(self) -> usize {
        if self.bytes { WIDTH_IN_BYTES } else { WIDTH_WITH_UNIT }
    }
}
