//! Addresses of nodes: a host name or IP address with a port, resolved at every dial; and the book of them.
//!
//! Invariant: an address in the book has a host and a port, and is at most [`PEER_ADDRESS_BYTES_MAX`] long.
//! The book is in memory. After a restart its owner fills it again, from rows and from the configuration.

use mlgw_common::NodeId;
use mlgw_common::limits::PEER_ADDRESS_BYTES_MAX;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// Address under which other nodes dial a node: `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerAddress {
    text: String,
    /// Bytes of the host in `text`, with the brackets of an IPv6 address.
    host_len: usize,
    port: u16,
}

/// Error of a text that is not an address of a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPeerAddress {
    /// It is too long.
    #[error("an address of {0} bytes is too long: use one of at most {PEER_ADDRESS_BYTES_MAX}")]
    TooLong(usize),
    /// The port is missing or no port.
    #[error("{0:?} has no port: write HOST:PORT with a port of 1 to 65535")]
    Port(String),
    /// The host is missing or has a character that no host has.
    #[error("{0:?} has no valid host: write HOST:PORT with a name or an IP address, IPv6 in brackets")]
    Host(String),
}

impl PeerAddress {
    /// The host without brackets, to resolve it.
    #[must_use]
    pub fn host(&self) -> &str {
        let host = &self.text[..self.host_len];
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// True if the host is an address that stands for all interfaces of a machine: no other host can dial it.
    #[must_use]
    pub fn is_unspecified(&self) -> bool {
        self.ip().is_some_and(|ip| ip.is_unspecified())
    }

    /// True if only the machine itself can dial it.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.host().eq_ignore_ascii_case("localhost") || self.ip().is_some_and(|ip| ip.is_loopback())
    }

    fn ip(&self) -> Option<IpAddr> {
        self.host().parse().ok()
    }

    /// The whole text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for PeerAddress {
    type Err = BadPeerAddress;

    fn from_str(text: &str) -> Result<Self, BadPeerAddress> {
        if text.len() > PEER_ADDRESS_BYTES_MAX {
            return Err(BadPeerAddress::TooLong(text.len()));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| BadPeerAddress::Port(text.to_owned()))?;
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse::<u16>().ok().filter(|port| digits && *port != 0);
        let port = port.ok_or_else(|| BadPeerAddress::Port(text.to_owned()))?;
        if !is_host(host) {
            return Err(BadPeerAddress::Host(text.to_owned()));
        }
        Ok(Self { text: text.to_owned(), host_len: host.len(), port })
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_host(host: &str) -> bool {
    if let Some(inner) = host.strip_prefix('[') {
        return inner.strip_suffix(']').is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok());
    }
    !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

/// Addresses of the nodes, by source. Clones share the book.
#[derive(Clone, Debug, Default)]
pub struct AddressBook {
    entries: Arc<RwLock<BookEntries>>,
}

#[derive(Debug, Default)]
struct BookEntries {
    /// From the configuration; they come first.
    overrides: BTreeMap<NodeId, PeerAddress>,
    /// Stated by the nodes themselves, at their last handshake.
    stated: BTreeMap<NodeId, PeerAddress>,
    /// Stated by the nodes to other ones.
    learned: BTreeMap<NodeId, PeerAddress>,
    /// Rows of the catalogue.
    rows: BTreeMap<NodeId, PeerAddress>,
}

impl AddressBook {
    /// Replaces the addresses of the configuration, which are tried before all others.
    pub fn set_overrides(&self, overrides: BTreeMap<NodeId, PeerAddress>) {
        self.entries.write().overrides = overrides;
    }

    /// Replaces the addresses of the catalogue's rows, which are tried last.
    pub fn set_rows(&self, rows: BTreeMap<NodeId, PeerAddress>) {
        self.entries.write().rows = rows;
    }

    /// Records the address that a node stated; true if it is a new one.
    pub(crate) fn record_stated(&self, node: NodeId, address: &PeerAddress) -> bool {
        let mut entries = self.entries.write();
        if entries.stated.get(&node) == Some(address) {
            return false;
        }
        entries.stated.insert(node, address.clone());
        true
    }

    /// Returns the address that a node stated at its last handshake with this node, since its start.
    #[must_use]
    pub fn stated(&self, node: NodeId) -> Option<PeerAddress> {
        self.entries.read().stated.get(&node).cloned()
    }

    /// Replaces the address of a node that another one knows. It is tried after the stated one.
    pub fn set_learned(&self, node: NodeId, address: PeerAddress) {
        self.entries.write().learned.insert(node, address);
    }

    /// Removes the stated address of a node, and the one that was learned.
    pub(crate) fn forget_stated(&self, node: NodeId) {
        let mut entries = self.entries.write();
        entries.stated.remove(&node);
        entries.learned.remove(&node);
    }

    /// Addresses of a node in the order in which they are dialed, each once.
    #[must_use]
    pub fn addresses(&self, node: NodeId) -> Vec<PeerAddress> {
        let entries = self.entries.read();
        let mut addresses: Vec<PeerAddress> = Vec::with_capacity(4);
        for source in [&entries.overrides, &entries.stated, &entries.learned, &entries.rows] {
            if let Some(address) = source.get(&node).filter(|address| !addresses.contains(address)) {
                addresses.push(address.clone());
            }
        }
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::{AddressBook, BadPeerAddress, PeerAddress};
    use mlgw_common::NodeId;
    use std::collections::BTreeMap;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for (text, host, port) in [
            ("node-1.example:7000", "node-1.example", 7000),
            ("10.0.0.1:1", "10.0.0.1", 1),
            ("[::1]:65535", "::1", 65535),
        ] {
            let address: PeerAddress = text.parse().unwrap();
            assert_eq!((address.host(), address.port(), address.as_str()), (host, port, text));
        }
        let port = |text: &str| BadPeerAddress::Port(text.to_owned());
        for text in ["", "host", "host:", "host:0", "host:65536", "host:+1", "host:a"] {
            assert_eq!(text.parse::<PeerAddress>(), Err(port(text)), "{text}");
        }
        let host = |text: &str| BadPeerAddress::Host(text.to_owned());
        for text in [":1", "::1:7000", "a b:1", "[::1:7000", "[x]:1", "a/b:1", "a@b:1"] {
            assert_eq!(text.parse::<PeerAddress>(), Err(host(text)), "{text}");
        }
        let long = format!("{}:1", "a".repeat(400));
        assert_eq!(long.parse::<PeerAddress>(), Err(BadPeerAddress::TooLong(402)));
    }

    #[test]
    fn addresses_that_other_hosts_cannot_dial_are_recognized() {
        for (text, is_unspecified, is_loopback) in [
            ("0.0.0.0:1", true, false),
            ("[::]:1", true, false),
            ("127.1.2.3:1", false, true),
            ("[::1]:1", false, true),
            ("Localhost:1", false, true),
            ("10.0.0.1:1", false, false),
            ("node-1:1", false, false),
        ] {
            let address: PeerAddress = text.parse().unwrap();
            assert_eq!(
                (address.is_unspecified(), address.is_loopback()),
                (is_unspecified, is_loopback),
                "{text}"
            );
        }
    }

    #[test]
    fn overrides_come_first_then_stated_and_learned_addresses_then_rows() {
        let address = |text: &str| text.parse::<PeerAddress>().unwrap();
        let of_seven = |text: &str| BTreeMap::from([(NodeId(7), address(text))]);
        let book = AddressBook::default();
        assert_eq!(book.addresses(NodeId(7)), []);
        book.set_rows(of_seven("row:1"));
        assert!(book.record_stated(NodeId(7), &address("stated:1")));
        assert!(!book.record_stated(NodeId(7), &address("stated:1")));
        assert_eq!(book.addresses(NodeId(7)), [address("stated:1"), address("row:1")]);
        book.set_learned(NodeId(7), address("learned:1"));
        let [stated, learned, row] = ["stated:1", "learned:1", "row:1"].map(address);
        assert_eq!(book.addresses(NodeId(7)), [stated.clone(), learned, row.clone()]);
        assert_eq!(book.stated(NodeId(7)), Some(stated));
        book.forget_stated(NodeId(7));
        assert_eq!((book.addresses(NodeId(7)), book.stated(NodeId(7))), (vec![row], None));
        assert!(book.record_stated(NodeId(7), &address("stated:1")));
        book.set_overrides(of_seven("row:1"));
        assert_eq!(book.addresses(NodeId(7)), [address("row:1"), address("stated:1")]);
        assert_eq!(book.addresses(NodeId(8)), []);
    }
}
