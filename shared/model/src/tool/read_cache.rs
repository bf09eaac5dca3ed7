//! Stores results of `read` tools for a limited time. Equal calls get the stored result.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::effect_key::canonical;
use crate::digest::hash_of;
use crate::{AgentId, Context, TenantId};

pub const CACHE_TTL_MS_MAX: i64 = 86_400_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CachePer {
    #[default]
    Tenant,
    Agent,
}

impl CachePer {
    pub const WORDS: [(&'static str, Self); 2] = [("tenant", Self::Tenant), ("agent", Self::Agent)];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadCache {
    pub ttl_ms: i64,
    pub per: CachePer,
}

/// All inputs on which the result of a read can depend. With a missing input, a caller could get the result of a
/// different read.
#[derive(Debug, Clone, Copy)]
pub struct CacheInputs<'a> {
    pub tenant: &'a TenantId,
    pub agent: &'a AgentId,
    pub tool: &'a str,
    pub version: &'a str,
    pub configuration: &'a str,
    pub arguments: &'a RawValue,
    /// Set only if the tool's results depend on the task.
    pub task: Option<&'a str>,
    pub context: &'a Context,
}

impl ReadCache {
    /// Returns 64 hexadecimal characters that do not reveal the inputs. Arguments and context are compared as in
    /// [`super::EffectKey::hash`]. `None` if the arguments or the context cannot be read.
    #[must_use]
    pub fn hash(&self, of: &CacheInputs<'_>) -> Option<String> {
        let canonical_or_empty = |value: &Option<Box<RawValue>>| match value {
            None => Some(String::new()),
            Some(value) => canonical(value),
        };
        let user = canonical_or_empty(&of.context.user_context)?;
        let session = canonical_or_empty(&of.context.session_data)?;
        let arguments = canonical(of.arguments)?;
        let agent = match self.per {
            CachePer::Tenant => "",
            CachePer::Agent => of.agent.as_str(),
        };
        let parts = [of.tenant.as_str(), agent, of.tool, of.version, of.configuration];
        let inputs = [arguments.as_str(), user.as_str(), session.as_str()];
        Some(hash_of(parts.into_iter().chain(inputs).chain(of.task)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn each_cache_input_changes_the_cache_key() {
        let acme = TenantId::new("acme").unwrap();
        let bolt = TenantId::new("bolt").unwrap();
        let kelly = AgentId::new("kelly").unwrap();
        let fran = AgentId::new("fran").unwrap();
        let (arguments, same, other) =
            (raw(r#"{"a":1,"b":"x"}"#), raw(r#"{"b":"x","a":1.0}"#), raw(r#"{"a":2,"b":"x"}"#));
        let nobody = Context::default();
        let of = |user: &str| Context { user_context: Some(raw(user)), ..Context::default() };
        let kim = of(r#"{"id":"kim"}"#);
        let ada = of(r#"{"id":"ada"}"#);
        let session = Context { session_data: Some(raw(r#"{"id":"kim"}"#)), ..Context::default() };
        let base = CacheInputs {
            tenant: &acme,
            agent: &kelly,
            tool: "get",
            version: "1.0.0",
            configuration: "d",
            arguments: &arguments,
            task: None,
            context: &nobody,
        };
        let cache = |per| ReadCache { ttl_ms: 1_000, per };
        let hash = |question: &CacheInputs<'_>| cache(CachePer::Tenant).hash(question).unwrap();
        assert_eq!(hash(&base).len(), 64);
        assert_eq!(hash(&CacheInputs { arguments: &same, ..base }), hash(&base));
        assert_eq!(hash(&CacheInputs { agent: &fran, ..base }), hash(&base), "agents of a tenant share it");
        let others = [
            CacheInputs { tenant: &bolt, ..base },
            CacheInputs { tool: "got", ..base },
            CacheInputs { version: "1.0.1", ..base },
            CacheInputs { configuration: "e", ..base },
            CacheInputs { arguments: &other, ..base },
            CacheInputs { task: Some("task-1"), ..base },
            CacheInputs { task: Some("task-2"), ..base },
            CacheInputs { context: &kim, ..base },
            CacheInputs { context: &ada, ..base },
            CacheInputs { context: &session, ..base },
        ];
        let hashes: std::collections::BTreeSet<String> = others.iter().chain([&base]).map(hash).collect();
        assert_eq!(hashes.len(), others.len() + 1);
        let alone = cache(CachePer::Agent);
        assert_ne!(alone.hash(&base), alone.hash(&CacheInputs { agent: &fran, ..base }));
    }
}
