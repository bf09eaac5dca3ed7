use redis::Value;

use super::slot::SLOTS;
use crate::script::reply::{number_of, text_of};

const NODES_MAX: usize = 2_000;

pub(super) type NodeAddress = (String, u16);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    primary: Option<NodeAddress>,
    replicas: Vec<NodeAddress>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct View {
    ranges: Vec<Range>,
}

impl View {
    pub(super) fn read(answer: &Value, own_host: &str) -> Result<Self, String> {
        let Value::Array(items) = answer else { return Err(format!("it answered {answer:?}")) };
        let range = |item: &Value| {
            let Value::Array(parts) = item else { return None };
            let slot = |value: &Value| u16::try_from(number_of(value)?).ok();
            let mut nodes = parts.iter().skip(2).map(|node| place(node, own_host));
            let first = slot(parts.first()?)?;
            let last = slot(parts.get(1)?)?;
            Some(Range { first, last, primary: nodes.next()?, replicas: nodes.take(NODES_MAX).flatten().collect() })
        };
        let ranges = items.iter().map(|item| range(item).ok_or_else(|| format!("it answered {item:?}")));
        Ok(Self { ranges: ranges.collect::<Result<_, _>>()? })
    }

    pub(super) fn primary_of(&self, slot: u16) -> Result<&NodeAddress, String> {
        let range = self.ranges.iter().find(|range| (range.first..=range.last).contains(&slot));
        let range = range.ok_or_else(|| format!("reports no owner of slot {slot}"))?;
        range.primary.as_ref().ok_or_else(|| format!("does not report the address of the owner of slot {slot}"))
    }

    pub(super) fn primaries(&self) -> Vec<(NodeAddress, u32)> {
        let mut found: Vec<(NodeAddress, u32)> = Vec::new();
        for range in self.ranges.iter().take(usize::from(SLOTS)) {
            let Some(primary) = &range.primary else { continue };
            let count = u32::from(range.last.saturating_sub(range.first)) + 1;
            match found.iter_mut().find(|(place, _)| place == primary) {
                Some((_, sum)) => *sum += count,
                None => found.push((primary.clone(), count)),
            }
        }
        found
    }

    pub(super) fn nodes(&self) -> Vec<NodeAddress> {
        let mut found: Vec<NodeAddress> = self.primaries().into_iter().map(|(place, _)| place).collect();
        for replica in self.ranges.iter().flat_map(|range| &range.replicas) {
            if found.len() < NODES_MAX && !found.contains(replica) {
                found.push(replica.clone());
            }
        }
        found
    }
}

/// `[endpoint, port, id, [more, …]]`. A nil or empty endpoint means the host of the node that was asked.
fn place(node: &Value, own_host: &str) -> Option<NodeAddress> {
    let Value::Array(parts) = node else { return None };
    let port = u16::try_from(number_of(parts.get(1)?)?).ok()?;
    let host = match parts.first()? {
        Value::Nil => own_host.to_owned(),
        endpoint => match text_of(endpoint)?.as_str() {
            "" => own_host.to_owned(),
            // `?` means that the node should announce a host name, but the name is not set.
            "?" => match address_in(parts.get(3)?)?.as_str() {
                "" => own_host.to_owned(),
                address => address.to_owned(),
            },
            host => host.to_owned(),
        },
    };
    Some((host, port))
}

/// `more` alternates names and values, or is a map. The address is empty if the node does not know its own IP address.
fn address_in(more: &Value) -> Option<String> {
    match more {
        Value::Array(parts) => {
            parts.chunks(2).find_map(|pair| (text_of(&pair[0])? == "ip").then(|| text_of(pair.get(1)?))?)
        }
        Value::Map(pairs) => pairs.iter().find_map(|(name, value)| (text_of(name)? == "ip").then(|| text_of(value))?),
        _ => None,
    }
}

/// `redirect` is `host:port`. An empty host means the host of the node that was asked.
pub(super) fn place_in(redirect: &str, own_host: &str) -> Option<NodeAddress> {
    let (host, port) = redirect.rsplit_once(':')?;
    let host = match host {
        "" => own_host,
        "?" => return None,
        host => host,
    };
    Some((host.trim_start_matches('[').trim_end_matches(']').to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn answer(text: &str) -> Value {
        redis::parse_redis_value(text.replace('\n', "\r\n").as_bytes()).unwrap()
    }

    fn view(endpoint: &str, more: &str) -> View {
        let text = format!("*1\n*3\n:0\n:16383\n*4\n{endpoint}\n:7999\n$2\nid\n{more}\n");
        View::read(&answer(&text), "seed").unwrap()
    }

    #[test]
    fn a_node_without_an_endpoint_uses_the_queried_host() {
        for (endpoint, more, host) in [
            ("$9\n127.0.0.1", "*0", Some("127.0.0.1")),
            ("$4\nname", "*2\n$2\nip\n$7\n1.2.3.4", Some("name")),
            ("$-1", "*2\n$2\nip\n$7\n1.2.3.4", Some("seed")),
            ("$0\n", "*0", Some("seed")),
            ("$1\n?", "*2\n$2\nip\n$7\n1.2.3.4", Some("1.2.3.4")),
            ("$1\n?", "*2\n$2\nip\n$0\n", Some("seed")),
            ("$1\n?", "*0", None),
        ] {
            let found = view(endpoint, more).primary_of(866).ok().cloned();
            assert_eq!(found, host.map(|host| (host.to_owned(), 7_999)), "{endpoint:?} {more:?}");
        }
    }

    #[test]
    fn unassigned_slots_are_reported_and_nodes_are_listed_once() {
        let node = |port: u16| format!("*3\n$1\na\n:{port}\n$2\nid\n");
        let text = format!(
            "*3\n*4\n:0\n:99\n{}{}*4\n:200\n:200\n{}{}*3\n:300\n:399\n{}",
            node(1),
            node(3),
            node(1),
            node(3),
            node(2)
        );
        let view = View::read(&answer(&text), "seed").unwrap();
        let at = |port: u16| ("a".to_owned(), port);
        assert_eq!(view.primaries(), [(at(1), 101), (at(2), 100)]);
        assert_eq!(view.nodes(), [at(1), at(2), at(3)]);
        assert_eq!(view.primary_of(200), Ok(&at(1)));
        assert!(view.primary_of(150).unwrap_err().contains("slot 150"));
        assert!(View::read(&answer("+OK\n"), "seed").is_err());
        assert!(View::read(&answer("*1\n*2\n:0\n:1\n"), "seed").is_err());
    }

    #[test]
    fn a_redirect_without_a_host_uses_the_queried_host() {
        for (redirect, place) in [
            ("10.0.0.7:6379", Some(("10.0.0.7", 6_379))),
            (":6379", Some(("seed", 6_379))),
            ("?:6379", None),
            ("::1:6379", Some(("::1", 6_379))),
            ("a", None),
        ] {
            assert_eq!(place_in(redirect, "seed"), place.map(|(host, port)| (host.to_owned(), port)), "{redirect}");
        }
    }
}
