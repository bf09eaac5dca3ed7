//! Classifies IP addresses, and parses blocks of addresses (CIDR).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotPublic {
    /// In a private network, or on this machine. A host that is allowed by name may resolve to such an address.
    Private(&'static str),
    /// An address that no tool calls on purpose, such as a cloud's metadata service. A host that is allowed by name
    /// must not resolve to such an address.
    Forbidden(&'static str),
}

impl NotPublic {
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Private(what) | Self::Forbidden(what) => what,
        }
    }
}

/// Converts an IPv4 address inside IPv6 (mapped, NAT64) to IPv4.
pub(crate) fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => match v6.segments() {
            [0, 0, 0, 0, 0, 0xffff, a, b] | [0x64, 0xff9b, 0, 0, 0, 0, a, b] => IpAddr::V4(v4(a, b)),
            _ => address,
        },
        IpAddr::V4(_) => address,
    }
}

fn v4(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low))
}

pub(crate) fn special(address: IpAddr) -> Option<NotPublic> {
    match plain(address) {
        IpAddr::V4(v4) => special_v4(v4),
        IpAddr::V6(v6) => special_v6(v6),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<NotPublic> {
    use NotPublic::{Forbidden, Private};
    let known = match address.octets() {
        // Alibaba's address is in the block of carriers' private addresses. Azure's address is a public address.
        [100, 100, 100, 200] | [168, 63, 129, 16] => Forbidden("an address of a cloud's own services"),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Private("a private address"),
        [127, ..] => Private("a loopback address"),
        [100, 64..=127, ..] => Private("a carrier's private address"),
        [198, 18..=19, ..] => Private("a benchmarking address"),
        [169, 254, ..] => Forbidden("a link-local address, where clouds keep their metadata"),
        [0, ..] => Forbidden("an unspecified address"),
        [224..=239, ..] => Forbidden("a multicast address"),
        [240..=255, ..] => Forbidden("a reserved address"),
        // This block contains Oracle's metadata service.
        [192, 0, 0, _] => Forbidden("a protocol address"),
        [192, 88, 99, _] => Forbidden("a 6to4 relay"),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Forbidden("a documentation address"),
        _ => return None,
    };
    Some(known)
}

fn special_v6(address: Ipv6Addr) -> Option<NotPublic> {
    use NotPublic::{Forbidden, Private};
    Some(match address.segments() {
        // Metadata, pod credentials, DNS and time services of AWS, Google, Oracle, Linode and Scaleway.
        [0xfd00, 0xec2, ..]
        | [0xfd20, 0xce, ..]
        | [0xfd00, 0xc1, ..]
        | [0xfd00, 0xa9fe, 0xa9fe, ..]
        | [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42] => Forbidden("an address of a cloud's own services"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Private("a loopback address"),
        [0xfc00..=0xfdff, ..] => Private("a private address"),
        [0xfe80..=0xfebf, ..] => Forbidden("a link-local address"),
        [0xfec0..=0xfeff, ..] => Forbidden("a site-local address"),
        [0xff00..=0xffff, ..] => Forbidden("a multicast address"),
        // A tunnel leads to an embedded IPv4 address that was not checked, so tunnels are forbidden.
        [0x2002, ..] => Forbidden("a 6to4 address"),
        [0x2001, 0, ..] => Forbidden("a Teredo address"),
        [0x2001, 0x1..=0x1ff, ..] => Forbidden("a protocol address"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Forbidden("a documentation address"),
        [0x2000..=0x3fff, ..] => return None,
        // Outside the global unicast block: unspecified, IPv4-compatible, local NAT64, unassigned.
        _ => Forbidden("a reserved address"),
    })
}

/// A block such as `10.1.0.0/16`, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AddressBlock {
    network: IpAddr,
    bits: u8,
}

impl AddressBlock {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
            None => (text, None),
        };
        let network: IpAddr = address.parse().ok()?;
        let width = if network.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(width);
        (bits <= width).then_some(Self { network, bits })
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let differ = a.to_bits() ^ b.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let differ = a.to_bits() ^ b.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn public_addresses_are_public_in_every_form() {
        for public in [
            "1.1.1.1",
            "172.15.255.255",
            "172.32.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2606:4700::1111",
            "2001:200::1",
            "2001:4860:4860::8888",
        ] {
            assert_eq!(special(ip(public)), None, "{public}");
        }
    }

    #[test]
    fn private_addresses_are_private_in_every_form() {
        for private in [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "127.0.0.1",
            "127.255.255.254",
            "100.64.0.1",
            "198.18.0.1",
            "::1",
            "fd12::1",
            "fc00::",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
        ] {
            assert!(matches!(special(ip(private)), Some(NotPublic::Private(_))), "{private}");
        }
    }

    #[test]
    fn metadata_and_reserved_addresses_are_forbidden_in_every_form() {
        for forbidden in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "fd00:ec2::254",
            "100.100.100.200",
            "fd00:ec2::23",
            "fd00:ec2::253",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "fd00:a9fe:a9fe::1",
            "fd00:42::42",
            "169.254.170.2",
            "169.254.170.23",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "fe80::1",
            "ff02::1",
            "::7f00:1",
            "::10.0.0.1",
            "2002:7f00:1::",
            "2001:0:1::1",
            "64:ff9b:1::7f00:1",
            "192.0.0.192",
            "192.88.99.1",
            "2001:db8::1",
            "4000::1",
            "fec0::1",
        ] {
            assert!(matches!(special(ip(forbidden)), Some(NotPublic::Forbidden(_))), "{forbidden}");
        }
    }

    #[test]
    fn cloud_service_addresses_are_forbidden_in_every_ipv6_form() {
        for cloud in ["168.63.129.16", "100.100.100.200", "192.0.0.192", "169.254.169.254", "169.254.170.23"] {
            let v4: Ipv4Addr = cloud.parse().unwrap();
            let [a, b, c, d] = v4.octets().map(u16::from);
            let high = (a << 8) | b;
            let low = (c << 8) | d;
            let mapped = v4.to_ipv6_mapped();
            let forms = [
                IpAddr::V4(v4),
                IpAddr::V6(mapped),
                IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low)),
                IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low)),
                IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low)),
                IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low)),
                IpAddr::V6(Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1)),
                // Teredo: as the server's address, and as the client's address with inverted bits.
                IpAddr::V6(Ipv6Addr::new(0x2001, 0, high, low, 0, 0, 0, 0)),
                IpAddr::V6(Ipv6Addr::new(0x2001, 0, 0x4136, 0xe378, 0x8000, 0x63bf, !high, !low)),
            ];
            for form in forms {
                assert!(matches!(special(form), Some(NotPublic::Forbidden(_))), "{cloud} as {form}");
            }
        }
        assert_eq!(special(ip("168.63.129.17")), None, "its neighbors are public");
        assert!(matches!(special(ip("fd00:ec3::254")), Some(NotPublic::Private(_))));
    }

    #[test]
    fn blocks_contain_their_addresses_only() {
        let block = AddressBlock::parse("10.1.0.0/16").unwrap();
        assert!(block.contains(ip("10.1.255.1")) && !block.contains(ip("10.2.0.1")));
        assert!(AddressBlock::parse("0.0.0.0/0").unwrap().contains(ip("9.9.9.9")));
        assert!(AddressBlock::parse("fd00::/8").unwrap().contains(ip("fd12::1")));
        assert!(!AddressBlock::parse("::/0").unwrap().contains(ip("9.9.9.9")));
        assert_eq!(AddressBlock::parse("10.0.0.1"), AddressBlock::parse("10.0.0.1/32"));
        for bad in ["10.0.0.0/33", "10.0.0/8", "::/129", "host", "10.0.0.0/-1", ""] {
            assert_eq!(AddressBlock::parse(bad), None, "{bad}");
        }
    }
}
