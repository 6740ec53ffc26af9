//! `X-Forwarded-For`: the address of the client of a proxy.
//!
//! Each proxy appends the address from which it received the request. A client can send the header itself, so
//! only the addresses that trusted proxies have appended are evidence: they are the last ones. The search
//! goes backwards, and nothing before the client's address is read. The functions here are pure.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Returns the last address that is not one of a trusted proxy, from the lines of the header in their order.
/// If all addresses are trusted, that is the first one. Returns `None` without the header, and if the search
/// reaches something that is no address. The port is 0 if the header has none.
pub fn stated_client<'a>(
    lines: impl DoubleEndedIterator<Item = &'a [u8]>,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Option<SocketAddr> {
    let mut first = None;
    for item in lines.rev().flat_map(|line| line.rsplit(|byte| *byte == b',')) {
        let address = parse(item)?;
        if !is_trusted(address.ip()) {
            return Some(address);
        }
        first = Some(address);
    }
    first
}

/// Reads an address, with or without a port. IPv4 addresses are returned as such.
fn parse(item: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(item.trim_ascii()).ok()?;
    let without_port = |ip: IpAddr| SocketAddr::new(ip.to_canonical(), 0);
    if let Ok(ip) = text.parse() {
        return Some(without_port(ip));
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match bare {
        Some(bare) => bare.parse::<Ipv6Addr>().ok().map(|ip| without_port(ip.into())),
        None => text.parse::<SocketAddr>().ok().map(|at| SocketAddr::new(at.ip().to_canonical(), at.port())),
    }
}

#[cfg(test)]
mod tests {
    use super::stated_client;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr};

    /// Proxies are those of 10.0.0.0/8.
    fn is_proxy(address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(address) if address.octets()[0] == 10)
    }

    fn client(lines: &[&str]) -> Option<String> {
        stated_client(lines.iter().map(|line| line.as_bytes()), is_proxy).map(|address| address.to_string())
    }

    #[test]
    fn the_last_address_that_is_no_proxy_is_the_client() {
        for (lines, expected) in [
            (&["192.0.2.7"][..], "192.0.2.7:0"),
            (&["192.0.2.7, 10.0.0.1, 10.0.0.2"], "192.0.2.7:0"),
            (&["203.0.113.1, 192.0.2.7,10.0.0.1"], "192.0.2.7:0"),
            (&["203.0.113.1", "192.0.2.7", "10.0.0.1"], "192.0.2.7:0"),
            (&["10.0.0.3, 10.0.0.1"], "10.0.0.3:0"),
            (&["192.0.2.7:4711"], "192.0.2.7:4711"),
            (&["2001:db8::1"], "[2001:db8::1]:0"),
            (&["[2001:db8::1]"], "[2001:db8::1]:0"),
            (&["[2001:db8::1]:80"], "[2001:db8::1]:80"),
            (&["::ffff:192.0.2.7"], "192.0.2.7:0"),
        ] {
            assert_eq!(client(lines).as_deref(), Some(expected), "{lines:?}");
        }
    }

    #[test]
    fn what_a_client_has_sent_before_its_address_is_not_read() {
        assert_eq!(client(&["\u{fffd} anything, , 192.0.2.7, 10.0.0.1"]).as_deref(), Some("192.0.2.7:0"));
        assert_eq!(client(&["10.0.0.9", "anything", "192.0.2.7"]).as_deref(), Some("192.0.2.7:0"));
    }

    #[test]
    fn a_header_without_a_usable_address_states_none() {
        let absent: [&[&str]; 7] = [
            &[],
            &[""],
            &["unknown"],
            &["192.0.2.7, "],
            &["192.0.2.7", "x"],
            &["192.0.2"],
            &["\"192.0.2.7\""],
        ];
        for lines in absent {
            assert_eq!(client(lines), None, "{lines:?}");
        }
    }

    proptest! {
        /// A client writes anything. The proxies append its address and those of each other.
        #[test]
        fn a_client_cannot_choose_its_address(
            written in "[ -~]{0,40}",
            own in any::<u32>(),
            proxies in prop::collection::vec(any::<[u8; 3]>(), 0..4),
        ) {
            let own = Ipv4Addr::from_bits(own);
            prop_assume!(!is_proxy(own.into()));
            let hops = proxies.iter().map(|[b, c, d]| format!(", 10.{b}.{c}.{d}")).collect::<String>();
            let line = format!("{written}, {own}{hops}");
            prop_assert_eq!(client(&[&line]), Some(format!("{own}:0")));
        }
    }
}
