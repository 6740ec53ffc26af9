//! The rebalance that is requested. One row of family `meta` in group 0. Of cluster version 6.
//!
//! While there is a row, sets are created and groups move to them. The leader of group 0 removes it when
//! nothing is left to do.

use super::meta::MetaRow;

/// A requested rebalance.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Rebalance {
    /// Time of the request, milliseconds since the epoch.
    #[prost(int64, tag = "1")]
    pub requested_ms: i64,
    /// Name of the requester.
    #[prost(string, tag = "2")]
    pub by: String,
}

impl Rebalance {
    /// Returns the row's key.
    #[must_use]
    pub fn row() -> Vec<u8> {
        MetaRow::Rebalance.row()
    }
}

#[cfg(test)]
mod tests {
    use super::{MetaRow, Rebalance};
    use crate::schema::golden;

    #[test]
    fn the_row_has_these_bytes() {
        assert_eq!(MetaRow::Rebalance.row(), [0x01, 14]);
        let rebalance = Rebalance { requested_ms: 300, by: "AK".into() };
        golden::check(&rebalance, include_str!("golden/rebalance.hex"));
    }
}
