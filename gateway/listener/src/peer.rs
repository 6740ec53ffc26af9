//! The client of a connection or of a request.

use mlgw_objects::memory::Account;
use std::net::SocketAddr;

/// The client of a connection, or of a request that a proxy sends for it.
#[derive(Clone)]
pub struct Peer {
    /// Its address. The port is 0 if a proxy does not state it.
    pub address: SocketAddr,
    /// Memory account of its connection, or of its request if that arrived through a proxy.
    pub account: Account,
    /// True if its connection is encrypted.
    pub is_secure: bool,
    /// True if its connection has a reserved slot, in which only probes are answered.
    pub is_probe_only: bool,
}
