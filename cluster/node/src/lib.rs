//! A node of a cluster.
//!
//! It joins ([`join_cluster`]), and at each start connects the parts that do not know each other: the
//! catalogue calls other members through the transport, forwarded requests are streams of it, and the
//! decisions of `mlgw-membership` are carried out on the node that leads a group. A start has two halves,
//! because the catalogue needs the peers and the transport needs the catalogue: [`PreparedNode::prepare`]
//! reads the files and binds the listener, and [`PreparedNode::start`] opens it to peers.
//!
//! Every storage node serves requests. Gateways forward them, and so does every node those for remote-backed
//! buckets, which the duty node serves ([`DutyWork`]).
//!
//! Rows of the catalogue are the only lasting state here, besides the files of `mlgw-trust` in the folder
//! `cluster`. After a power loss a start continues from both.

mod addresses;
mod admin_calls;
mod admission;
mod authorities;
mod authority;
mod book;
mod connections;
mod contact;
mod copies;
mod driver;
mod duty;
mod facts;
mod join_wire;
mod joining;
mod known_version;
mod leaving;
mod mover;
mod node;
mod node_parts;
mod numbers;
mod own_groups;
mod peers;
mod prepared;
mod probes;
mod rebalance;
mod recency;
mod refusals;
mod removals;
mod renewal;
mod replacing;
mod replicas;
mod reports;
mod rotation;
mod routes;
mod row_comparer;
mod seeds;
mod services;
mod set_facts;
mod sets;
mod settings;
mod status;
mod streams;
#[cfg(test)]
mod test_nodes;
mod tokens;

pub use admin_calls::{AdminAnswer, AdminCall, AdminServer};
pub use authorities::AuthorityChange;
pub use authority::AuthorityRowError;
pub use connections::ChannelTotals;
pub use copies::{CopyStatus, LeavingNode};
pub use duty::{DutyBeginError, DutyWork};
pub use joining::{JoinCluster, JoinClusterError, JoinedNode, join_cluster};
pub use known_version::known_cluster_version;
pub use leaving::{DRAIN_COPIES, DRAIN_COPIES_MIN, LeaveError, RemovedNode};
pub use mlgw_replication::LeavingCounts;
pub use node::ClusterNode;
pub use node_parts::{AdminCallError, NodePart, PartError};
pub use prepared::{NodeError, NodeOptions, PreparedNode};
pub use rebalance::{RebalanceError, RebalanceRequest};
pub use replacing::ReplacedNode;
pub use replicas::{SegmentServer, SegmentSpace};
pub use rotation::RotationError;
pub use services::RequestServer;
pub use set_facts::{SetStatus, SetsStatus};
pub use status::{ClusterStatus, ClusterUpgrade, GroupMemberStatus, GroupStatus, NodeStatus};
pub use tokens::{NewToken, TokenError};
