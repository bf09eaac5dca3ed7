//! Chains of seals over the audit log, and copies of the chains' heads (anchors).
//!
//! Only the process with the sealer's lease adds seals. It seals the entries after the last sealed entry. It writes
//! nothing if the stored state differs from the state that it started from. So no entry is sealed twice or skipped.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::decision::{Context, Decision, Step};
use crate::leases::{Candidate, Lease};
use crate::record::Record;
use crate::transaction::{RecordKey, StreamKey, Transaction, Write};
use crate::view::{Query, Undecided, View};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealing {
    #[serde(rename = "le")]
    pub lease: Lease,
    /// In the sealer's format. Empty at the start.
    #[serde(rename = "st")]
    pub state: String,
    /// ID → public key.
    #[serde(rename = "ky")]
    pub keys: BTreeMap<String, String>,
    /// The last seal with copied heads. Empty at the start.
    #[serde(rename = "an", default, skip_serializing_if = "String::is_empty")]
    pub anchored: String,
}

impl Record for Sealing {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn key() -> RecordKey {
    RecordKey::new("sealing")
}

#[must_use]
pub fn head(tenant: &str) -> Arc<str> {
    format!("head:{tenant}").into()
}

#[must_use]
pub fn seals() -> StreamKey {
    StreamKey::new("seals")
}

#[must_use]
pub fn anchors() -> StreamKey {
    StreamKey::new("anchors")
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealKey {
    pub id: String,
    pub public: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    /// Empty for entries without a tenant.
    pub tenant: String,
    /// Includes this seal.
    pub head: String,
    /// JSON.
    pub body: String,
    pub signature: String,
}

/// If `after` equals `before`, only takes the lease.
#[derive(Debug, Clone)]
pub struct ExtendSeals {
    pub candidate: Candidate,
    pub key: SealKey,
    pub before: String,
    pub after: String,
    pub seals: Vec<Seal>,
    pub seals_max: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SealResult {
    Done,
    /// The stored state is not `before`, so nothing was written.
    Stale {
        state: String,
    },
    Held,
    /// Another key has this ID.
    OtherKey,
}

impl Decision for ExtendSeals {
    type Output = SealResult;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(key())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<SealResult>, Undecided> {
        let (mut transaction, present) = context.update::<Sealing>(view, &key())?;
        let lease = self.candidate.take(present.as_ref().map(|one| &one.lease), context.now_ms, &mut transaction);
        let Some(lease) = lease else { return Ok(Step::Return(SealResult::Held)) };
        let mut sealing = match present {
            Some(present) => Sealing { lease, ..present },
            None => Sealing { lease, state: String::new(), keys: BTreeMap::new(), anchored: String::new() },
        };
        if sealing.keys.get(&self.key.id).is_some_and(|known| *known != self.key.public) {
            return Ok(Step::Return(SealResult::OtherKey));
        }
        if sealing.state != self.before {
            return Ok(Step::Return(SealResult::Stale { state: sealing.state }));
        }
        if self.after != self.before {
            sealing.keys.insert(self.key.id.clone(), self.key.public.clone());
            sealing.state.clone_from(&self.after);
            self.seals.iter().for_each(|seal| self.write(seal, &mut transaction));
        }
        transaction.put(&key(), &sealing);
        transaction.dedupe_record = Some(key());
        Ok(Step::Commit(transaction, SealResult::Done))
    }
}

impl ExtendSeals {
    fn write(&self, seal: &Seal, transaction: &mut Transaction) {
        let text = |text: &String| Bytes::from(text.clone());
        transaction.write(Write::PutPart(key(), head(&seal.tenant), text(&seal.head)));
        transaction.write(Write::Append {
            log: seals(),
            fields: vec![("body".into(), text(&seal.body)), ("signature".into(), text(&seal.signature))],
            max_entries: self.seals_max,
        });
    }
}

#[derive(Debug, Clone)]
pub struct Anchor {
    pub candidate: Candidate,
    pub before: String,
    pub upto: String,
    /// Chain heads to append to the shard's own stream. Empty if the heads are copied to another place.
    pub anchors: Vec<Bytes>,
    pub anchors_max: u64,
}

impl Decision for Anchor {
    type Output = SealResult;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(key())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<SealResult>, Undecided> {
        let (mut transaction, stored) = context.update::<Sealing>(view, &key())?;
        let Some(mut sealing) = stored else { return Ok(Step::Return(SealResult::Stale { state: String::new() })) };
        let Some(lease) = self.candidate.take(Some(&sealing.lease), context.now_ms, &mut transaction) else {
            return Ok(Step::Return(SealResult::Held));
        };
        if sealing.anchored != self.before {
            return Ok(Step::Return(SealResult::Stale { state: sealing.anchored }));
        }
        (sealing.lease, sealing.anchored) = (lease, self.upto.clone());
        for anchor in &self.anchors {
            let fields = vec![("anchor".into(), anchor.clone())];
            transaction.write(Write::Append { log: anchors(), fields, max_entries: self.anchors_max });
        }
        transaction.put(&key(), &sealing);
        transaction.dedupe_record = Some(key());
        Ok(Step::Commit(transaction, SealResult::Done))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tickfleet_model::ConsumerId;

    use super::*;
    use crate::trial::Trial;

    fn candidate(process: &str) -> Candidate {
        Candidate { process: ConsumerId::new(process).unwrap(), lease_ms: 100 }
    }

    fn extend(process: &str, before: &str, after: &str) -> ExtendSeals {
        let seal = |tenant: &str| Seal {
            tenant: tenant.into(),
            head: format!("{tenant}-{after}"),
            body: format!("{before}..{after}"),
            signature: "s".into(),
        };
        ExtendSeals {
            candidate: candidate(process),
            key: SealKey { id: "k1".into(), public: "pub".into() },
            before: before.into(),
            after: after.into(),
            seals: if before == after { vec![] } else { vec![seal("t")] },
            seals_max: 100,
        }
    }

    #[test]
    fn only_the_lease_holder_extends_a_seal_chain() {
        let mut shard = Trial::at(1_000);
        assert_eq!(shard.run(&extend("a", "", "5")), SealResult::Done);
        assert_eq!(shard.run(&extend("a", "", "6")), SealResult::Stale { state: "5".into() });
        assert_eq!(shard.run(&extend("b", "5", "6")), SealResult::Held);
        let other = ExtendSeals { key: SealKey { id: "k1".into(), public: "x".into() }, ..extend("a", "5", "6") };
        assert_eq!(shard.run(&other), SealResult::OtherKey);
        assert_eq!(shard.run(&extend("a", "5", "5")), SealResult::Done);
        assert_eq!(shard.log(&seals()).len(), 1);
        assert_eq!(shard.parts[&key()][&head("t")], "t-5");
    }

    #[test]
    fn each_anchor_is_recorded_once() {
        let mut shard = Trial::at(1_000);
        let anchor = |before: &str, upto: &str| Anchor {
            candidate: candidate("a"),
            before: before.into(),
            upto: upto.into(),
            anchors: vec![Bytes::from_static(b"{}")],
            anchors_max: 10,
        };
        assert_eq!(shard.run(&anchor("", "1-0")), SealResult::Stale { state: String::new() });
        shard.receipt(&extend("a", "", "5"));
        assert_eq!(shard.run(&anchor("", "1-0")), SealResult::Done);
        assert_eq!(shard.run(&anchor("", "1-0")), SealResult::Stale { state: "1-0".into() });
        assert_eq!(shard.log(&anchors()).len(), 1);
        assert_eq!(shard.record::<Sealing>(&key()).unwrap().state, "5");
    }

    #[test]
    fn two_sealers_do_not_anchor_the_same_heads() {
        let mut shard = Trial::at(1_000);
        shard.receipt(&extend("a", "", "5"));
        shard.pass(100);
        let anchor = |process: &str| Anchor {
            candidate: candidate(process),
            before: String::new(),
            upto: "1-0".into(),
            anchors: vec![Bytes::from_static(b"{}")],
            anchors_max: 10,
        };
        let decided = shard.step(&anchor("a"));
        assert_eq!(shard.run(&anchor("b")), SealResult::Done);
        assert_eq!(shard.finish(&anchor("a"), decided).result, SealResult::Held);
        assert_eq!(shard.log(&anchors()).len(), 1);
    }

    proptest! {
        #[test]
        fn each_entry_is_sealed_once(steps in prop::collection::vec((0..2usize, 0..3i64, any::<bool>()), 1..30)) {
            let mut shard = Trial::at(1_000);
            let mut decided = None;
            for (who, hundreds, keep) in steps {
                shard.pass(hundreds * 60);
                let state = shard.record::<Sealing>(&key()).map(|one| one.state).unwrap_or_default();
                let next = (state.parse::<u64>().unwrap_or(0) + 1).to_string();
                let step = extend(["a", "b"][who], &state, &next);
                if keep {
                    decided = Some((shard.step(&step), step));
                    continue;
                }
                shard.receipt(&step);
                if let Some((old, step)) = decided.take() {
                    shard.finish(&step, old);
                }
            }
            let bodies: Vec<Bytes> = shard.log(&seals()).iter().map(|(_, fields)| fields[0].1.clone()).collect();
            let mut before = String::new();
            for (index, body) in bodies.iter().enumerate() {
                let after = (index + 1).to_string();
                prop_assert_eq!(String::from_utf8_lossy(body), format!("{before}..{after}"));
                before = after;
            }
        }
    }
}
