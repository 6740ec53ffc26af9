//! Proxies between a listener and its clients: what they state about a client is used in its place.
//!
//! A proxy states its client by a header of the PROXY protocol at the beginning of a connection
//! ([`crate::proxy_header`]), or by `X-Forwarded-For` in each request ([`crate::forwarded_for`]).
//!
//! Invariant: only the statements of trusted addresses are used. From any other address the headers of a
//! request have no effect, and where connections begin with a header of the PROXY protocol, a connection is
//! closed before anything of it is read.

use super::forwarded_for::stated_client;
use super::peer::Peer;
use super::proxy_header::{PREAMBLE_BYTES, ProxiedClient, ProxyHeaderError, ProxyPreamble};
use http::{HeaderMap, HeaderValue};
use mlgw_config::IpNetwork;
use mlgw_objects::memory::{Account, RequestMemory};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The trusted proxies of a listener. Clones share them. By default there are none.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies {
    networks: Arc<[IpNetwork]>,
    has_header: bool,
}

/// Error of reading the header of a proxy.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyReadError {
    /// The connection failed, or ended within the header.
    #[error("the connection ended before the header of the proxy: {0}")]
    Connection(#[from] io::Error),
    /// The header cannot be used.
    #[error(transparent)]
    Header(#[from] ProxyHeaderError),
}

impl TrustedProxies {
    /// Returns the proxies at these addresses.
    #[must_use]
    pub fn new(networks: &[IpNetwork]) -> Self {
        Self { networks: networks.into(), has_header: false }
    }

    /// Returns the same proxies, for a listener on which each connection begins with a header of the PROXY
    /// protocol.
    #[must_use]
    pub fn with_header(self) -> Self {
        Self { has_header: true, ..self }
    }

    /// Returns true if each connection begins with a header of the PROXY protocol.
    pub(super) const fn has_header(&self) -> bool {
        self.has_header
    }

    /// Returns true if a connection from this address is accepted.
    pub(super) fn is_admitted(&self, address: IpAddr) -> bool {
        !self.has_header || self.has_proxy(address)
    }

    /// Returns the account of a connection from this address. Requests of a proxy have accounts of their own.
    pub(super) fn account(&self, memory: &RequestMemory, address: IpAddr) -> Account {
        if self.has_proxy(address) { memory.proxy_account(address) } else { memory.account(address) }
    }

    /// Returns the client of a request that arrived on the connection of `peer`.
    pub(super) fn client(&self, peer: &Peer, headers: &HeaderMap) -> Peer {
        let mut client = peer.clone();
        if !self.has_proxy(peer.address.ip()) {
            return client;
        }
        let lines = headers.get_all("x-forwarded-for").iter().map(HeaderValue::as_bytes);
        if let Some(address) = stated_client(lines, |address| self.has_proxy(address)) {
            client.address = address;
            client.account = peer.account.memory().account(address.ip());
        }
        client
    }

    fn has_proxy(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }
}

/// Reads the header of a proxy, and nothing after it.
pub(super) async fn read_header(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<ProxiedClient, ProxyReadError> {
    let mut preamble = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut preamble).await?;
    let preamble = ProxyPreamble::decode(&preamble)?;
    let mut rest = vec![0; preamble.rest_bytes()];
    stream.read_exact(&mut rest).await?;
    Ok(preamble.client(&rest)?)
}

#[cfg(test)]
mod tests {
    use super::{Peer, ProxiedClient, ProxyReadError, TrustedProxies, read_header};
    use crate::proxy_header::tests::header_of;
    use http::{HeaderMap, HeaderValue};
    use mlgw_config::{IpNetwork, SettingType as _};
    use mlgw_objects::memory::RequestMemory;
    use tokio::io::AsyncReadExt as _;

    fn proxies() -> TrustedProxies {
        TrustedProxies::new(&Vec::<IpNetwork>::from_text("10.0.0.0/8,fd00::1").unwrap())
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    /// Returns address and account of the client of a request from `peer`.
    fn client_of(peer: &str, lines: &[(&'static str, &str)]) -> (String, String) {
        let (proxies, memory) = (proxies(), RequestMemory::new(0, 50, None));
        let address: std::net::SocketAddr = peer.parse().unwrap();
        let account = proxies.account(&memory, address.ip());
        let peer = Peer { address, account, is_secure: false, is_probe_only: false };
        let client = proxies.client(&peer, &headers(lines));
        (client.address.to_string(), client.account.address().to_string())
    }

    #[test]
    fn a_trusted_proxy_states_its_client() {
        let lines = [("x-forwarded-for", "203.0.113.9"), ("x-forwarded-for", "192.0.2.7, 10.1.1.1")];
        for proxy in ["10.0.0.1:80", "[fd00::1]:80", "[::ffff:10.0.0.1]:80"] {
            let stated = client_of(proxy, &lines);
            assert_eq!(stated, ("192.0.2.7:0".to_owned(), "192.0.2.7".to_owned()), "{proxy}");
        }
    }

    #[test]
    fn the_headers_of_an_untrusted_peer_have_no_effect() {
        let lines = [("x-forwarded-for", "192.0.2.7")];
        for peer in ["203.0.113.9:80", "[fd00::2]:80"] {
            let own: std::net::SocketAddr = peer.parse().unwrap();
            assert_eq!(client_of(peer, &lines), (peer.to_owned(), own.ip().to_string()));
        }
    }

    #[test]
    fn a_proxy_that_states_nothing_usable_is_the_client() {
        for lines in [&[("x-forwarded-for", "unknown")][..], &[], &[("forwarded", "for=192.0.2.7")]] {
            let own = ("10.0.0.1:80".to_owned(), "10.0.0.1".to_owned());
            assert_eq!(client_of("10.0.0.1:80", lines), own, "{lines:?}");
        }
    }

    #[test]
    fn with_headers_on_connections_only_proxies_are_admitted() {
        let (proxy, other) = ("10.0.0.1".parse().unwrap(), "203.0.113.9".parse().unwrap());
        assert!(proxies().is_admitted(proxy) && proxies().is_admitted(other));
        let proxies = proxies().with_header();
        assert!(proxies.is_admitted(proxy) && !proxies.is_admitted(other));
    }

    #[tokio::test]
    async fn a_header_is_read_and_nothing_after_it() {
        let client = "192.0.2.7:4711".parse().unwrap();
        let bytes = [header_of(client, b"fields"), b"GET /".to_vec()].concat();
        let mut stream = &bytes[..];
        assert_eq!(read_header(&mut stream).await.unwrap(), ProxiedClient::Remote(client));
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "GET /");
        let ended = read_header(&mut &bytes[..20]).await;
        assert!(matches!(ended, Err(ProxyReadError::Connection(_))), "{ended:?}");
    }
}
