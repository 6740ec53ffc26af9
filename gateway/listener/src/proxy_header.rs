//! Header of the PROXY protocol, version 2: the address of the client of a proxy, at the beginning of a
//! connection.
//!
//! The header begins with a preamble of 16 bytes, which has the length of the rest: the addresses of both
//! ends of the client's connection, then further fields, which are not read. The decoder is pure. It never
//! requests more than [`PROXY_HEADER_BYTES_MAX`] bytes, and nothing after the header.

use mlgw_common::limits::PROXY_HEADER_BYTES_MAX;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Length of a preamble.
pub const PREAMBLE_BYTES: usize = 16;
/// First bytes of version 2, which no other protocol begins with.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// First bytes of version 1, which is a line of text.
const SIGNATURE_1: &[u8] = b"PROXY ";

const VERSION: u8 = 2;
const LOCAL: u8 = 0;
const PROXY: u8 = 1;

/// Family and protocol: not stated, TCP over IPv4, TCP over IPv6, a stream socket of the proxy's host.
const UNSPECIFIED: u8 = 0x00;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
const UNIX_STREAM: u8 = 0x31;

/// Lengths of the addresses and ports of both ends.
const TCP4_BYTES: usize = 12;
const TCP6_BYTES: usize = 36;

/// The client that a header states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxiedClient {
    /// The proxy itself, for example for a health check, or a client without an IP address.
    Proxy,
    /// A client of the proxy.
    Remote(SocketAddr),
}

/// Error of a header that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyHeaderError {
    /// The header is one of version 1.
    #[error("version 1 of the PROXY protocol is not supported; let the proxy send version 2")]
    FirstVersion,
    /// There is no header.
    #[error(
        "the connection does not begin with a header of the PROXY protocol; let the proxy send version 2"
    )]
    Absent,
    /// The version is not 2.
    #[error("version {0} of the PROXY protocol is not known")]
    Version(u8),
    /// The command is neither `LOCAL` nor `PROXY`.
    #[error("command {0} of the PROXY protocol is not known")]
    Command(u8),
    /// The client is not connected by a stream.
    #[error("family and protocol {0:#04x} of the PROXY protocol are not supported")]
    Family(u8),
    /// The header is longer than [`PROXY_HEADER_BYTES_MAX`].
    #[error("a header of {0} bytes is longer than {max}", max = PROXY_HEADER_BYTES_MAX)]
    TooLong(usize),
    /// The header ends before the addresses do.
    #[error("a header with {0} bytes after the preamble has no room for its addresses")]
    TooShort(usize),
}

/// Preamble of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyPreamble {
    command: u8,
    family: u8,
    rest_bytes: usize,
}

impl ProxyPreamble {
    /// Decodes a preamble.
    ///
    /// # Errors
    /// If it is none, has an unknown version or command, or belongs to a header that is too long.
    pub fn decode(bytes: &[u8; PREAMBLE_BYTES]) -> Result<Self, ProxyHeaderError> {
        if bytes.starts_with(SIGNATURE_1) {
            return Err(ProxyHeaderError::FirstVersion);
        }
        let Some([version_and_command, family, high, low]) = bytes.strip_prefix(SIGNATURE) else {
            return Err(ProxyHeaderError::Absent);
        };
        let (version, command) = (version_and_command >> 4, version_and_command & 0x0f);
        if version != VERSION {
            return Err(ProxyHeaderError::Version(version));
        }
        if !matches!(command, LOCAL | PROXY) {
            return Err(ProxyHeaderError::Command(command));
        }
        let rest_bytes = usize::from(u16::from_be_bytes([*high, *low]));
        if PREAMBLE_BYTES + rest_bytes > PROXY_HEADER_BYTES_MAX {
            return Err(ProxyHeaderError::TooLong(PREAMBLE_BYTES + rest_bytes));
        }
        Ok(Self { command, family: *family, rest_bytes })
    }

    /// Returns the number of bytes of the header after the preamble.
    #[must_use]
    pub const fn rest_bytes(&self) -> usize {
        self.rest_bytes
    }

    /// Returns the client, from the bytes after the preamble.
    ///
    /// # Errors
    /// If the addresses are incomplete or not those of a stream.
    pub fn client(&self, rest: &[u8]) -> Result<ProxiedClient, ProxyHeaderError> {
        // The addresses of `LOCAL` are not read, also not their family.
        if self.command == LOCAL {
            return Ok(ProxiedClient::Proxy);
        }
        let (ip, port): (IpAddr, [u8; 2]) = match self.family {
            UNSPECIFIED | UNIX_STREAM => return Ok(ProxiedClient::Proxy),
            TCP4 => {
                let ends = rest.first_chunk::<TCP4_BYTES>().ok_or(ProxyHeaderError::TooShort(rest.len()))?;
                (Ipv4Addr::new(ends[0], ends[1], ends[2], ends[3]).into(), [ends[8], ends[9]])
            }
            TCP6 => {
                let ends = rest.first_chunk::<TCP6_BYTES>().ok_or(ProxyHeaderError::TooShort(rest.len()))?;
                let source: [u8; 16] = std::array::from_fn(|at| ends[at]);
                (Ipv6Addr::from(source).into(), [ends[32], ends[33]])
            }
            family => return Err(ProxyHeaderError::Family(family)),
        };
        Ok(ProxiedClient::Remote(SocketAddr::new(ip.to_canonical(), u16::from_be_bytes(port))))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{
        LOCAL, PREAMBLE_BYTES, PROXY, PROXY_HEADER_BYTES_MAX, ProxiedClient, ProxyHeaderError, ProxyPreamble,
        SIGNATURE, TCP4, TCP6, UNIX_STREAM, UNSPECIFIED,
    };
    use proptest::prelude::*;
    use std::net::{IpAddr, SocketAddr};

    /// Family and protocol of UDP over IPv4.
    const UDP4: u8 = 0x12;

    /// Returns a header of any version, command and family.
    fn header(version_and_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[version_and_command, family], &length, rest].concat()
    }

    /// Returns the header that a proxy sends for this client, with further fields.
    pub(crate) fn header_of(client: SocketAddr, further: &[u8]) -> Vec<u8> {
        let (family, [from, to]) = match client.ip() {
            IpAddr::V4(ip) => (TCP4, [ip.octets().to_vec(), vec![192, 0, 2, 1]]),
            IpAddr::V6(ip) => (TCP6, [ip.octets().to_vec(), vec![0; 16]]),
        };
        let ports = [client.port().to_be_bytes(), 9000_u16.to_be_bytes()].concat();
        header(0x20 | PROXY, family, &[&from[..], &to, &ports, further].concat())
    }

    /// Returns the header of a health check by the proxy itself.
    pub(crate) fn local_header() -> Vec<u8> {
        header(0x20 | LOCAL, UNSPECIFIED, &[])
    }

    fn decode(bytes: &[u8]) -> Result<ProxiedClient, ProxyHeaderError> {
        let (preamble, rest) = bytes.split_first_chunk::<PREAMBLE_BYTES>().unwrap();
        let preamble = ProxyPreamble::decode(preamble)?;
        assert_eq!(preamble.rest_bytes(), rest.len());
        preamble.client(rest)
    }

    #[test]
    fn a_header_states_the_client_of_the_proxy() {
        // Connection from 192.0.2.7:56324 to 192.0.2.1:443.
        let bytes = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\xc0\0\x02\x01\xdc\x04\x01\xbb";
        assert_eq!(decode(bytes), Ok(ProxiedClient::Remote("192.0.2.7:56324".parse().unwrap())));
        let six: SocketAddr = "[2001:db8::7]:56324".parse().unwrap();
        assert_eq!(decode(&header_of(six, b"")), Ok(ProxiedClient::Remote(six)));
        let mapped = header_of("[::ffff:192.0.2.7]:1".parse().unwrap(), b"");
        assert_eq!(decode(&mapped), Ok(ProxiedClient::Remote("192.0.2.7:1".parse().unwrap())));
    }

    #[test]
    fn a_header_without_a_client_states_the_proxy() {
        for header in [
            local_header(),
            header(0x20 | LOCAL, TCP4, &[7; 12]),
            header(0x20 | LOCAL, UDP4, &[]),
            header(0x20 | PROXY, UNSPECIFIED, &[1, 2, 3]),
            header(0x20 | PROXY, UNIX_STREAM, &[0; 216]),
        ] {
            assert_eq!(decode(&header), Ok(ProxiedClient::Proxy), "{header:?}");
        }
    }

    #[test]
    fn a_header_that_cannot_be_used_is_refused_with_its_reason() {
        let room = PROXY_HEADER_BYTES_MAX - PREAMBLE_BYTES;
        assert_eq!(decode(&header(0x20 | LOCAL, UNSPECIFIED, &vec![0; room])), Ok(ProxiedClient::Proxy));
        for (bytes, reason) in [
            (b"PROXY TCP4 192.0.2.7 192.0.2.1 1 2\r\n".to_vec(), ProxyHeaderError::FirstVersion),
            (b"GET / HTTP/1.1\r\nhost: h\r\n\r\n".to_vec(), ProxyHeaderError::Absent),
            (header(0x11, TCP4, &[0; 12]), ProxyHeaderError::Version(1)),
            (header(0x22, TCP4, &[0; 12]), ProxyHeaderError::Command(2)),
            (header(0x21, UDP4, &[0; 12]), ProxyHeaderError::Family(UDP4)),
            (header(0x21, 0x41, &[0; 12]), ProxyHeaderError::Family(0x41)),
            (header(0x21, TCP4, &[0; 11]), ProxyHeaderError::TooShort(11)),
            (header(0x21, TCP6, &[0; 35]), ProxyHeaderError::TooShort(35)),
            (header(0x21, TCP4, &vec![0; room + 1]), ProxyHeaderError::TooLong(PROXY_HEADER_BYTES_MAX + 1)),
        ] {
            assert_eq!(decode(&bytes), Err(reason), "{bytes:?}");
        }
    }

    fn any_client() -> impl Strategy<Value = SocketAddr> {
        let ip = prop_oneof![
            any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
            any::<u128>().prop_map(|bits| IpAddr::V6(bits.into())),
        ];
        (ip, any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip.to_canonical(), port))
    }

    proptest! {
        #[test]
        fn each_client_is_read_as_the_proxy_states_it(
            client in any_client(), further in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            prop_assert_eq!(decode(&header_of(client, &further)), Ok(ProxiedClient::Remote(client)));
        }

        #[test]
        fn any_preamble_is_decoded_or_refused(
            tail in any::<[u8; 4]>(), rest in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let bytes: [u8; PREAMBLE_BYTES] = [SIGNATURE, &tail].concat().try_into().unwrap();
            if let Ok(preamble) = ProxyPreamble::decode(&bytes) {
                prop_assert!(PREAMBLE_BYTES + preamble.rest_bytes() <= PROXY_HEADER_BYTES_MAX);
                let _ = preamble.client(&rest);
            }
        }
    }
}
