//! Codes of the refusals of the services of a node, and their texts.
//!
//! Codes are part of the protocol between nodes, and are never used again for another reason. Pure.

use mlgw_transport::ServiceRefusal;

/// This version has no such service.
pub(crate) const UNKNOWN_SERVICE: u32 = 1;
/// The catalogue refuses a call or a snapshot.
pub(crate) const CATALOGUE_REFUSED: u32 = 2;
/// The node does not offer a service: it starts, stops or has another role.
pub(crate) const NOT_SERVING: u32 = 3;
/// A call cannot be decoded.
pub(crate) const MALFORMED: u32 = 4;
/// Bytes of a replica are not served, or a replica is not opened or closed.
pub(crate) const REPLICA_REFUSED: u32 = 5;

/// Returns the refusal with a code and a text.
pub(crate) fn refusal(code: u32, message: &str) -> ServiceRefusal {
    ServiceRefusal { code, message: message.to_owned() }
}

/// Returns the refusal of a service that this version does not have.
pub(crate) fn unknown(service: u16) -> ServiceRefusal {
    refusal(UNKNOWN_SERVICE, &format!("this version has no service {service}: upgrade this node"))
}
