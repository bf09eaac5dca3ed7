//! Addresses that connections come from.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Peer(pub(super) IpAddr);

impl Peer {
    /// Somebody's address; of IPv6, the network of 64 bits: whoever has one address of it mostly has all.
    pub(super) fn of(address: SocketAddr) -> Self {
        Self(match address.ip().to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address @ IpAddr::V4(_) => address,
        })
    }
}
