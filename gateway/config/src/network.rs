//! Networks of IP addresses.
//!
//! Invariant: a network has one text form and one value. Bits beyond the prefix are 0, and IPv4 addresses are
//! never in the form of IPv6, in which a listener for both reports them.

use super::value::{SettingType, quoted};
use std::fmt;
use std::net::IpAddr;

const ADDRESS_BITS: u8 = 128;
const IPV4_BITS: u8 = 32;

/// The addresses that begin with the same bits, such as `10.0.0.0/8`, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    prefix_bits: u8,
}

impl IpNetwork {
    /// Returns true if the address is one of the network.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4()
            && prefix_of(address, self.prefix_bits) == prefix_of(self.address, self.prefix_bits)
    }
}

/// Returns the number of bits of an address.
const fn bits_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { IPV4_BITS } else { ADDRESS_BITS }
}

/// Returns an address with its first bit as the highest one. Bits beyond the prefix are 0.
fn prefix_of(address: IpAddr, prefix_bits: u8) -> u128 {
    let bits = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << (ADDRESS_BITS - IPV4_BITS),
        IpAddr::V6(address) => address.to_bits(),
    };
    // A shift by all bits, of a prefix without bits, is no number.
    bits & u128::MAX.checked_shl(u32::from(ADDRESS_BITS - prefix_bits)).unwrap_or(0)
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        match self.prefix_bits == bits_of(self.address) {
            true => Ok(()),
            false => write!(f, "/{}", self.prefix_bits),
        }
    }
}

impl SettingType for IpNetwork {
    const EXPECTS: &'static str = "an IP address or a network such as \"10.0.0.0/8\"";

    fn from_text(text: &str) -> Result<Self, String> {
        let (address, prefix) = match text.trim().split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| format!("invalid IP address {address:?}"))?;
        let canonical = address.to_canonical();
        if canonical != address {
            return Err(format!("an IPv4 address in the form of IPv6; use the IPv4 form, as in {canonical}"));
        }
        let bits = bits_of(address);
        let prefix_bits = match prefix {
            None => bits,
            Some(prefix) => match prefix.parse() {
                Ok(prefix_bits) if prefix_bits <= bits => prefix_bits,
                _ => return Err(format!("invalid length of a prefix {prefix:?}; it is 0 to {bits}")),
            },
        };
        if prefix_of(address, prefix_bits) != prefix_of(address, bits) {
            return Err(format!("{address} has bits beyond the prefix of {prefix_bits} bits"));
        }
        Ok(Self { address, prefix_bits })
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

/// A list of networks, in the same form as a list of texts.
impl SettingType for Vec<IpNetwork> {
    const EXPECTS: &'static str = "a list of IP addresses or networks such as [\"10.0.0.5\", \"fd00::/8\"], \
                                   or \"10.0.0.5,fd00::/8\" in the environment";

    fn from_text(text: &str) -> Result<Self, String> {
        let network = |item: &String| IpNetwork::from_text(item).map_err(|why| format!("{item:?}: {why}"));
        Vec::<String>::from_text(text)?.iter().map(network).collect()
    }

    fn to_text(&self) -> String {
        let items: Vec<String> = self.iter().map(ToString::to_string).collect();
        items.join(",")
    }

    fn to_toml(&self) -> String {
        let items: Vec<String> = self.iter().map(|network| quoted(&network.to_string())).collect();
        format!("[{}]", items.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::{IpNetwork, SettingType, bits_of, prefix_of};
    use proptest::prelude::*;
    use std::net::IpAddr;

    fn network(text: &str) -> IpNetwork {
        IpNetwork::from_text(text).unwrap()
    }

    #[test]
    fn a_network_has_the_addresses_that_begin_with_its_prefix() {
        for (text, inside, outside) in [
            ("10.0.0.5", "10.0.0.5", "10.0.0.4"),
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("192.0.2.128/25", "192.0.2.129", "192.0.2.127"),
            ("0.0.0.0/0", "203.0.113.9", "2001:db8::1"),
            ("fd00::/8", "fdff::1", "fe00::"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
        ] {
            let network = network(text);
            assert!(network.contains(inside.parse().unwrap()), "{text}: {inside}");
            assert!(!network.contains(outside.parse().unwrap()), "{text}: {outside}");
        }
    }

    #[test]
    fn an_ipv4_address_is_the_same_one_in_the_form_of_ipv6() {
        let mapped: IpAddr = "::ffff:10.0.0.5".parse().unwrap();
        assert!(network("10.0.0.0/8").contains(mapped) && !network("::/0").contains(mapped));
    }

    #[test]
    fn a_text_that_is_no_network_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", "invalid IP address \"\""),
            ("proxy.example", "invalid IP address \"proxy.example\""),
            ("10.0.0.0/33", "invalid length of a prefix \"33\"; it is 0 to 32"),
            ("10.0.0.0/", "invalid length of a prefix \"\"; it is 0 to 32"),
            ("fd00::/129", "invalid length of a prefix \"129\"; it is 0 to 128"),
            ("10.0.0.1/8", "10.0.0.1 has bits beyond the prefix of 8 bits"),
            ("::ffff:10.0.0.1", "an IPv4 address in the form of IPv6; use the IPv4 form, as in 10.0.0.1"),
        ] {
            assert_eq!(IpNetwork::from_text(text), Err(reason.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_list_of_networks_is_read_item_by_item() {
        let read = Vec::<IpNetwork>::from_text("10.0.0.5/32, fd00::/8").unwrap();
        assert_eq!(read.to_text(), "10.0.0.5,fd00::/8");
        assert_eq!(read.to_toml(), "[\"10.0.0.5\", \"fd00::/8\"]");
        assert_eq!(Vec::<IpNetwork>::from_text(""), Ok(Vec::new()));
        assert!(Vec::<IpNetwork>::from_text("10.0.0.5,x").unwrap_err().starts_with("\"x\": "));
    }

    fn any_network() -> impl Strategy<Value = IpNetwork> {
        let four = (any::<u32>(), 0..=32_u8).prop_map(|(bits, prefix_bits)| {
            let kept = u32::MAX.checked_shl(u32::from(32 - prefix_bits)).unwrap_or(0);
            IpNetwork { address: IpAddr::V4((bits & kept).into()), prefix_bits }
        });
        let six = (any::<u128>(), 0..=128_u8).prop_map(|(bits, prefix_bits)| {
            let kept = u128::MAX.checked_shl(u32::from(128 - prefix_bits)).unwrap_or(0);
            IpNetwork { address: IpAddr::V6((bits & kept).into()), prefix_bits }
        });
        // IPv4 addresses in the form of IPv6 are no values.
        prop_oneof![four, six].prop_filter("canonical", |of| of.address.to_canonical() == of.address)
    }

    proptest! {
        #[test]
        fn networks_read_back_as_written_and_have_their_first_address(network in any_network()) {
            prop_assert_eq!(IpNetwork::from_text(&network.to_text()), Ok(network));
            prop_assert!(network.contains(network.address));
            let prefix = prefix_of(network.address, network.prefix_bits);
            prop_assert_eq!(prefix, prefix_of(network.address, bits_of(network.address)));
        }
    }
}
