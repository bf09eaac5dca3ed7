//! The hosts that an HTTP tool may reach. The client connects only to addresses that were checked.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::{self, AddressBlock, NotPublic};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Blocked {
    #[error("the address does not start with http:// or https://")]
    Scheme,
    #[error("the address has no host")]
    NoHost,
    #[error("the address carries a user name or password")]
    Userinfo,
    /// All addresses of the host are special, and none of them is allowed.
    #[error("'{host}' is {what}, which this tool may not reach (allow_private)")]
    Special { host: String, what: &'static str },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostTrust {
    /// The host is not allowed by name: only public addresses and allowed blocks can be reached.
    Unnamed,
    /// The host is allowed by name: private addresses can also be reached.
    Named,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Guard {
    names: BTreeSet<(String, Option<u16>)>,
    blocks: BTreeSet<AddressBlock>,
}

impl Guard {
    /// An entry is `host`, `host:port`, `[v6]:port`, an address or a CIDR block. The error is the first invalid entry.
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut guard = Self::default();
        for entry in entries.into_iter().map(str::trim).filter(|e| !e.is_empty()) {
            guard.add(entry).ok_or_else(|| entry.to_owned())?;
        }
        Ok(guard)
    }

    fn add(&mut self, entry: &str) -> Option<()> {
        if let Some(block) = AddressBlock::parse(entry.trim_start_matches('[').trim_end_matches(']')) {
            self.blocks.insert(block);
            return Some(());
        }
        let url = Url::parse(&format!("http://{entry}")).ok()?;
        let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
        // For `http://host:80`, the URL parser drops the port, because 80 is the scheme's default.
        let port = url.port().or_else(|| entry.ends_with(":80").then_some(80));
        let host = host_of(&url).filter(|_| bare && !entry.ends_with('/'))?;
        self.names.insert((host, port));
        Some(())
    }

    pub fn names_any(&self) -> bool {
        !self.names.is_empty()
    }

    /// Makes all checks that are possible before a name is resolved.
    pub fn check(&self, url: &Url) -> Result<HostTrust, Blocked> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Blocked::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Blocked::Userinfo);
        }
        let host = host_of(url).ok_or(Blocked::NoHost)?;
        let port = url.port_or_known_default();
        let named = self.names.contains(&(host.clone(), None)) || self.names.contains(&(host.clone(), port));
        let standing = if named { HostTrust::Named } else { HostTrust::Unnamed };
        // `named` covers a literal address with its port. A literal address without a port is in `blocks`.
        match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            Ok(literal) if !named => {
                self.admits(literal, HostTrust::Unnamed).map_err(|what| Blocked::Special { host, what })?;
            }
            _ => {}
        }
        Ok(standing)
    }

    /// Checks an address before a connection. The error names the reserved range of the address, such as loopback.
    fn admits(&self, address: IpAddr, standing: HostTrust) -> Result<(), &'static str> {
        let allowed = |address| self.blocks.iter().any(|block| block.contains(address));
        match address::special(address) {
            None => Ok(()),
            Some(NotPublic::Private(_)) if standing == HostTrust::Named => Ok(()),
            Some(_) if allowed(address) || allowed(address::plain(address)) => Ok(()),
            Some(special) => Err(special.description()),
        }
    }

    fn admitted(&self, host: &str, all: Vec<SocketAddr>, standing: HostTrust) -> Result<Vec<SocketAddr>, Blocked> {
        let mut refused = None;
        let admitted: Vec<SocketAddr> = all
            .into_iter()
            .filter(|a| self.admits(a.ip(), standing).map_err(|what| refused = Some(what)).is_ok())
            .collect();
        match refused {
            Some(what) if admitted.is_empty() => Err(Blocked::Special { host: host.to_owned(), what }),
            _ => Ok(admitted),
        }
    }
}

/// Ignores a final dot. URL parsing has already made the host lower case.
fn host_of(url: &Url) -> Option<String> {
    let host = url.host_str()?.trim_end_matches('.');
    (!host.is_empty()).then(|| host.to_owned())
}

#[derive(Debug)]
pub(crate) struct Resolver {
    pub(crate) guard: Arc<Guard>,
    pub(crate) standing: HostTrust,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = Arc::clone(&self.guard);
        let standing = self.standing;
        Box::pin(async move {
            let host = name.as_str();
            let all: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            let admitted = guard.admitted(host, all, standing)?;
            Ok(Box::new(admitted.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    fn guard(entries: &[&str]) -> Guard {
        Guard::parse(entries.iter().copied()).unwrap()
    }

    fn check(guard: &Guard, url: &str) -> Result<HostTrust, Blocked> {
        guard.check(&Url::parse(url).unwrap())
    }

    #[test]
    fn a_literal_private_address_is_rejected_in_every_spelling() {
        for url in [
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://017700000001/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://169.254.169.254/latest",
            "http://[fd00:ec2::254]/",
            "http://[fd00:ec2::23]/",
            "http://[fd20:ce::254]/",
            "http://168.63.129.16/",
            "http://0xa83f8110/",
            "http://[::ffff:a83f:8110]/",
            "http://0/",
            "http://127.0.0.1./",
            "http://①②⑦.0.0.1/",
        ] {
            assert!(matches!(check(&guard(&[]), url), Err(Blocked::Special { .. })), "{url}");
        }
    }

    #[test]
    fn an_allow_entry_trusts_only_its_own_host_and_port() {
        let by_port = guard(&["127.0.0.1:8080", "Crm.internal:80", "10.1.0.0/16", "[::1]:9", "fd00:ec2::254"]);
        assert_eq!(check(&by_port, "http://127.0.0.1:8080/"), Ok(HostTrust::Named));
        assert!(check(&by_port, "http://127.0.0.1:8081/").is_err());
        assert_eq!(check(&by_port, "http://crm.internal./x"), Ok(HostTrust::Named));
        assert_eq!(check(&by_port, "http://crm.internal:81/x"), Ok(HostTrust::Unnamed));
        assert_eq!(check(&by_port, "http://10.1.2.3/"), Ok(HostTrust::Unnamed));
        assert!(check(&by_port, "http://10.2.2.3/").is_err());
        assert_eq!(check(&by_port, "http://[::1]:9/"), Ok(HostTrust::Named));
        assert!(check(&by_port, "http://[::1]/").is_err());
        assert_eq!(check(&by_port, "http://[fd00:ec2::254]/"), Ok(HostTrust::Unnamed), "named as an address");
    }

    #[test]
    fn a_dns_answer_loses_metadata_and_untrusted_private_addresses() {
        let metadata = "169.254.169.254:0";
        let public = "1.1.1.1:0";
        let private = "10.0.0.1:0";
        let answers = |list: &[&str]| list.iter().map(|a| a.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let named = guard(&["crm.internal"]);
        let admitted = |list: &[&str], standing| named.admitted("crm.internal", answers(list), standing);
        for cloud in [metadata, "168.63.129.16:0", "[fd00:ec2::23]:0", "[fd20:ce::254]:0"] {
            assert!(admitted(&[cloud], HostTrust::Named).is_err(), "{cloud}");
        }
        assert_eq!(admitted(&[private], HostTrust::Named), Ok(answers(&[private])));
        assert_eq!(admitted(&[private, public, metadata], HostTrust::Unnamed), Ok(answers(&[public])));
        assert!(admitted(&[private, metadata], HostTrust::Unnamed).is_err());
    }

    #[test]
    fn invalid_entries_unknown_schemes_and_userinfo_are_rejected() {
        for bad in ["http://host", "host/path", "10.0.0.0/40", "a b", "user@host", "host?x", "host:99999"] {
            assert_eq!(Guard::parse([bad]), Err(bad.to_owned()), "{bad}");
        }
        assert_eq!(check(&guard(&[]), "ftp://example.com/"), Err(Blocked::Scheme));
        assert_eq!(check(&guard(&[]), "file:///etc/passwd"), Err(Blocked::Scheme));
        assert_eq!(check(&guard(&[]), "http://a:b@example.com/"), Err(Blocked::Userinfo));
    }
}
