//! Anchors are heads of chains in storage that cannot be changed with write access to Redis. A chain that was truncated
//! or rewritten lacks an anchored head.

use serde::{Deserialize, Serialize};

use crate::seal::{ChainName, SealBody, encode, head_of};

const FORMAT: u32 = 1;

/// Stored as one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    pub anchor: u32,
    pub fleet: String,
    pub shard: u32,
    /// Empty for entries without a tenant.
    pub tenant: String,
    pub number: u64,
    /// Entries in the chain up to this seal.
    pub entries: u64,
    /// The hash of the seal's body.
    pub head: String,
    pub sealed_ms: i64,
    pub key_id: String,
    pub public_key: String,
    pub signature: String,
}

impl Anchor {
    #[must_use]
    pub fn of(body: &str, signature: &str, public_key: &str) -> Option<Self> {
        let seal: SealBody = serde_json::from_str(body).ok()?;
        Some(Self {
            anchor: FORMAT,
            entries: seal.first.saturating_sub(1) + seal.count,
            head: encode(&head_of(body)),
            fleet: seal.fleet,
            shard: seal.shard,
            tenant: seal.tenant,
            number: seal.number,
            sealed_ms: seal.sealed_ms,
            key_id: seal.key_id,
            public_key: public_key.to_owned(),
            signature: signature.to_owned(),
        })
    }

    #[must_use]
    pub fn chain(&self) -> ChainName {
        ChainName { fleet: self.fleet.clone(), shard: self.shard, tenant: self.tenant.clone() }
    }

    /// Accepts the line itself, the text after `anchor=`, or the member `fields.anchor` or `anchor` of a JSON log line.
    /// `None` without an anchor.
    #[must_use]
    pub fn read(line: &str) -> Option<Self> {
        let line = line.trim();
        if let Ok(anchor) = serde_json::from_str(line) {
            return Some(anchor);
        }
        if let Ok(log) = serde_json::from_str::<serde_json::Value>(line) {
            let text = log.pointer("/fields/anchor").or_else(|| log.get("anchor"))?.as_str()?;
            return serde_json::from_str(text).ok();
        }
        let (_, behind) = line.split_once("anchor=")?;
        serde_json::Deserializer::from_str(behind).into_iter().next()?.ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::seal::{Head, Leaf, Losses, Signer, seal};

    #[test]
    fn an_anchor_is_parsed_from_a_log_line() {
        let signer = Signer::new("k", &"01".repeat(32)).unwrap();
        let chain = ChainName { fleet: "f".into(), shard: 0, tenant: "acme".into() };
        let leaf = Leaf::of("1-0".parse().unwrap(), "", "x");
        let made = seal(&chain, &Head::default(), &[leaf], &Losses::default(), 5, &signer);
        let anchor = Anchor::of(&made.body, &made.signature, &signer.public_key()).unwrap();
        assert_eq!((anchor.number, anchor.entries, anchor.chain()), (1, 1, chain));
        let line = serde_json::to_string(&anchor).unwrap();
        let quoted = serde_json::to_string(&line).unwrap();
        for line in [
            line.clone(),
            format!("2026-01-01T00:00:00Z  INFO tickfleet: sealed anchor={line} shard=0"),
            format!(r#"{{"level":"INFO","fields":{{"message":"sealed","anchor":{quoted}}}}}"#),
        ] {
            assert_eq!(Anchor::read(&line).unwrap(), anchor, "{line}");
        }
        assert_eq!(Anchor::read("something else"), None);
    }
}
