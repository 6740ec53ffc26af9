//! Numbers of the services of a node for its peers.
//!
//! They are part of the protocol between nodes, and are never used again for another service.

/// Calls of the catalogue's members.
pub(crate) const CATALOGUE: u16 = 1;
/// Snapshots of the catalogue's groups.
pub(crate) const SNAPSHOT: u16 = 2;
/// Forwarded requests of clients.
pub(crate) const REQUEST: u16 = 3;
/// A call by which nodes find out who is reachable, and its load: [`mlgw_formats::node_load`].
pub(crate) const PING: u16 = 4;
/// Question whether a node, by its id in 8 bytes, is a member. The answer is [`YES`], or empty.
pub(crate) const MEMBER: u16 = 5;
/// Answer of a node whose rows have the node, or that reaches it.
pub(crate) const YES: &[u8] = &[1];
/// Bytes of replicas of segments, for copies and for clients.
pub(crate) const REPLICA: u16 = 6;
/// Appends to a replica of an open segment.
pub(crate) const APPEND: u16 = 7;
/// Request to close a replica of an open segment.
pub(crate) const CLOSE: u16 = 8;
/// Question for the addresses of other nodes: [`crate::addresses`].
pub(crate) const ADDRESSES: u16 = 9;
/// Question whether a node, by its id in 8 bytes, answers a call now. The answer is [`YES`], or empty.
pub(crate) const CONTACT: u16 = 10;
/// Question for the digests of the settings that all nodes should share: [`mlgw_formats::node_settings`].
pub(crate) const SETTINGS: u16 = 11;
/// Requests to the admin API: [`crate::admin_calls`].
pub(crate) const ADMIN: u16 = 12;
