//! Lists of the tools that each agent may call, published by workers. The lists grant no rights: the permission check
//! of each call decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tickfleet_model::{AgentId, TenantId};

use crate::decision::{Context, Decision, Step};
use crate::record::{Present, Record};
use crate::transaction::{RecordKey, Transaction, Write};
use crate::view::{Undecided, View};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListsMark {
    #[serde(rename = "f")]
    pub fingerprint: String,
    /// Number of agents without a list, because all lists together would have exceeded the byte limit.
    #[serde(rename = "l")]
    pub left_out: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentList {
    #[serde(rename = "d")]
    pub digest: String,
}

/// Only JSON, so that clients in any language can read the record.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolListText(pub Box<RawValue>);

impl Record for ListsMark {
    const SCHEMA: u32 = 1;
}

impl Record for AgentList {
    const SCHEMA: u32 = 1;
}

impl Record for ToolListText {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn mark_key() -> RecordKey {
    RecordKey::new("tools")
}

#[must_use]
pub fn agent_key(tenant: &TenantId, agent: &AgentId) -> RecordKey {
    RecordKey::new(format!("tools:{tenant}:{agent}"))
}

/// `=` is not allowed in IDs, so no tenant has this key.
#[must_use]
pub fn list_key(digest: &str) -> RecordKey {
    RecordKey::new(format!("tools:=:{digest}"))
}

#[must_use]
pub fn names_key() -> RecordKey {
    RecordKey::new("tools:names")
}

/// The caller must limit the number of agents and names.
#[derive(Debug, Clone)]
pub struct Publish<'a> {
    pub content: Publication<'a>,
    pub ttl_ms: i64,
}

#[derive(Debug, Clone)]
pub enum Publication<'a> {
    List {
        digest: &'a str,
        text: &'a ToolListText,
    },
    /// Tenant, agent, digest of the agent's list.
    Agents(&'a [(TenantId, AgentId, String)]),
    /// By tool ID. Names are only added, because other workers may have published other tools.
    Names(&'a BTreeMap<String, String>),
    /// Must be published after all lists.
    Mark(&'a ListsMark),
}

impl Decision for Publish<'_> {
    type Output = ();

    fn decide(&self, _: &View, context: &Context) -> Result<Step<()>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        match &self.content {
            Publication::List { digest, text } => {
                transaction.put_for(&list_key(digest), *text, self.ttl_ms);
            }
            Publication::Agents(agents) => {
                for (tenant, agent, digest) in *agents {
                    transaction.put_for(&agent_key(tenant, agent), &AgentList { digest: digest.clone() }, self.ttl_ms);
                }
            }
            Publication::Names(names) => {
                for (id, name) in *names {
                    let id: Arc<str> = id.as_str().into();
                    let name: Bytes = name.clone().into();
                    transaction.write(Write::PutPart(names_key(), id, name));
                }
                transaction.put_for(&names_key(), &Present {}, self.ttl_ms);
            }
            Publication::Mark(mark) => {
                transaction.put_for(&mark_key(), *mark, self.ttl_ms);
            }
        }
        Ok(Step::Commit(transaction, ()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Trial;

    #[test]
    fn lists_are_published_with_their_agents() {
        let mut shard = Trial::at(1_000);
        let tenant = TenantId::new("acme").unwrap();
        let agent = AgentId::new("kelly").unwrap();
        let agents = [(tenant.clone(), agent.clone(), "0a".to_owned())];
        let mark = ListsMark { fingerprint: "f".into(), left_out: 2 };
        let text = ToolListText(RawValue::from_string(r#"{"tools":[]}"#.to_owned()).unwrap());
        let list = Publication::List { digest: "0a", text: &text };
        for content in [list, Publication::Agents(&agents), Publication::Mark(&mark)] {
            shard.receipt(&Publish { content, ttl_ms: 9_000 });
        }
        assert_eq!(shard.record(&agent_key(&tenant, &agent)), Some(AgentList { digest: "0a".into() }));
        let stored: ToolListText = shard.record(&list_key("0a")).unwrap();
        assert_eq!((stored.0.get(), &stored.encode()[..]), (text.0.get(), &b"1{\"tools\":[]}"[..]));
        assert_eq!(shard.record(&mark_key()), Some(mark));
    }
}
