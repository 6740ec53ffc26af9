//! What proxies state about their clients: the header of the PROXY protocol and the value of
//! `X-Forwarded-For`. Properties: a header is never longer than its limit; an address is written as it was
//! read; a client that is found is no trusted proxy, unless all addresses are; what is written before the
//! client's address does not change it.

use crate::forwarded_for::stated_client;
use crate::proxy_header::{PREAMBLE_BYTES, ProxiedClient, ProxyPreamble};
use mlgw_common::limits::PROXY_HEADER_BYTES_MAX;
use std::net::{IpAddr, SocketAddr};

/// Decodes the bytes as each of them.
pub fn run(data: &[u8]) {
    header(data);
    forwarded_for(data);
}

fn header(data: &[u8]) {
    let Some((preamble, rest)) = data.split_first_chunk::<PREAMBLE_BYTES>() else { return };
    let Ok(preamble) = ProxyPreamble::decode(preamble) else { return };
    assert!(PREAMBLE_BYTES + preamble.rest_bytes() <= PROXY_HEADER_BYTES_MAX);
    let rest = &rest[..preamble.rest_bytes().min(rest.len())];
    if let Ok(ProxiedClient::Remote(client)) = preamble.client(rest) {
        assert_eq!(client.ip(), client.ip().to_canonical());
        assert_eq!(preamble.client(&[rest, b"further fields"].concat()), Ok(ProxiedClient::Remote(client)));
    }
}

/// The proxies are those of 10.0.0.0/8.
fn is_proxy(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if address.octets()[0] == 10)
}

fn forwarded_for(data: &[u8]) {
    let lines = || data.split(|byte| *byte == b'\n');
    let Some(client) = stated_client(lines(), is_proxy) else { return };
    if is_proxy(client.ip()) {
        assert!(lines().flat_map(|line| line.split(|byte| *byte == b',')).all(is_of_proxy));
        return;
    }
    let written_before = [b"anything".as_slice(), b"198.51.100.1"];
    assert_eq!(stated_client(written_before.into_iter().chain(lines()), is_proxy), Some(client));
}

/// Returns true if an item is an address of a proxy: alone, it states that proxy.
fn is_of_proxy(item: &[u8]) -> bool {
    stated_client([item].into_iter(), is_proxy).is_some_and(|address: SocketAddr| is_proxy(address.ip()))
}
