//! Members of the cluster. Rows: `node` in group 0, keyed by node id. An embedded catalogue has one.

use crate::key::{Family, KeyWriter};
use mlgw_common::NodeId;

/// A member of the cluster.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Node {
    /// Id of the member.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Address at which other members connect to it; empty if there are none.
    #[prost(string, tag = "2")]
    pub address: String,
    /// Time of joining, milliseconds since the epoch.
    #[prost(int64, tag = "3")]
    pub joined_ms: i64,
}

/// Returns the row key of a node.
#[must_use]
pub fn row(node: NodeId) -> Vec<u8> {
    KeyWriter::new(Family::Node).u64(node.0).finish()
}

#[cfg(test)]
mod tests {
    use super::{Node, row};
    use crate::schema::golden;
    use mlgw_common::NodeId;
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_by_id(a: u64, b: u64) {
            prop_assert_eq!(row(NodeId(a)).cmp(&row(NodeId(b))), a.cmp(&b));
        }
    }

    #[test]
    fn the_record_has_these_bytes() {
        let node = Node { id: 1, address: "h:1".into(), joined_ms: 1_700_000_000_123 };
        golden::check(&node, include_str!("golden/node.hex"));
    }
}
