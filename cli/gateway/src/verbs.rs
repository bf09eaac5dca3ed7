//! Permissions of keys and tokens.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use tickfleet_model::{IdError, TenantId};

use crate::problem::Problem;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Submit turns, delegate tasks, talk to agents.
    Submit,
    /// Read replies, tasks and tool definitions.
    Read,
    Cancel,
    View,
    /// Pause and resume, and cancel many turns at once.
    Operate,
    Approve,
}

impl Verb {
    pub const ALL: [Self; 6] = [Self::Submit, Self::Read, Self::Cancel, Self::View, Self::Operate, Self::Approve];
    pub const OF_SERVICES: [Self; 3] = [Self::Submit, Self::Read, Self::Cancel];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Read => "read",
            Self::Cancel => "cancel",
            Self::View => "view",
            Self::Operate => "operate",
            Self::Approve => "approve",
        }
    }

    #[must_use]
    pub const fn is_of_operators(self) -> bool {
        matches!(self, Self::View | Self::Operate | Self::Approve)
    }
}

pub(crate) fn is_pattern(text: &str) -> bool {
    !text.is_empty() && !text.strip_suffix('*').unwrap_or(text).contains('*')
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Viewer,
    Operator,
    Approver,
}

impl Role {
    #[must_use]
    pub fn verbs(self) -> BTreeSet<Verb> {
        match self {
            Self::Viewer => [Verb::View].into(),
            Self::Operator => [Verb::View, Verb::Operate].into(),
            Self::Approver => [Verb::View, Verb::Approve].into(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    pub per_second: u32,
    /// Requests that may arrive at once. Default: `per_second`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

impl Rate {
    /// A higher rate would not limit anything.
    pub const MAX: u32 = 1_000_000;

    #[must_use]
    pub fn burst_size(self) -> u32 {
        self.burst.unwrap_or(self.per_second)
    }

    fn check(self) -> Result<(), String> {
        let bounds = 1..=Self::MAX;
        if bounds.contains(&self.per_second) && bounds.contains(&self.burst_size()) {
            return Ok(());
        }
        Err(format!("rate: per_second and burst: expected numbers from 1 to {}", Self::MAX))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CredentialKind {
    Key,
    Token,
}

impl CredentialKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Token => "token",
        }
    }
}

/// A name in a token is unique only within its tenant, so the identity includes the tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CallerIdentity {
    pub(crate) credential: CredentialKind,
    pub(crate) tenant: TenantScope,
    pub(crate) id: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Written to logs: the name of the key, or the name in the token.
    pub id: String,
    pub credential: CredentialKind,
    /// Only operators cover all tenants.
    pub tenant: TenantScope,
    /// `*` for all; a name that ends in `*` for all with that prefix.
    pub agents: Vec<String>,
    pub verbs: BTreeSet<Verb>,
    pub approver: Option<String>,
    pub rate: Option<Rate>,
    pub expires: Option<DateTime<Utc>>,
}

impl Grant {
    #[must_use]
    pub fn covers(&self, agent: &str) -> bool {
        self.agents.iter().any(|row| match row.strip_suffix('*') {
            Some(beginning) => agent.starts_with(beginning),
            None => agent == row,
        })
    }

    pub(crate) fn holder(&self) -> CallerIdentity {
        CallerIdentity { credential: self.credential, tenant: self.tenant.clone(), id: self.id.clone() }
    }

    pub(crate) fn named(&self) -> String {
        format!("the {} {:?}", self.credential.as_str(), self.id)
    }

    pub(crate) fn require_permission(&self, verb: Verb) -> Result<(), Problem> {
        if self.verbs.contains(&verb) {
            return Ok(());
        }
        Err(Problem::forbidden(format!("{} may not {}", self.named(), verb.as_str())))
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { tenant, agents, verbs, approver, rate, .. } = self;
        if agents.is_empty() {
            return Err("agents: expected at least one, or \"*\"".into());
        }
        if let Some(odd) = agents.iter().find(|row| !is_pattern(row)) {
            return Err(format!("agents: {odd:?}: expected an agent, or a prefix followed by *"));
        }
        if verbs.is_empty() {
            let all = Verb::ALL.map(Verb::as_str).join(", ");
            return Err(format!("verbs: expected at least one of {all}"));
        }
        // Operator verbs cover all agents, and service verbs need one tenant.
        if tenant.one().is_none() && verbs.iter().any(|verb| !verb.is_of_operators()) {
            return Err("tenant: required; only view, operate and approve may cover all tenants".into());
        }
        if verbs.iter().any(|verb| verb.is_of_operators()) && !agents.iter().any(|row| row == "*") {
            return Err("agents: expected \"*\", because view, operate and approve cover all agents".into());
        }
        if verbs.contains(&Verb::Approve) != approver.is_some() {
            return Err("approver: required with approve, and allowed only then".into());
        }
        rate.map_or(Ok(()), Rate::check)
    }
}

/// In the key file, `*` means all tenants.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TenantScope {
    One(TenantId),
    All,
}

impl TenantScope {
    #[must_use]
    pub const fn one(&self) -> Option<&TenantId> {
        match self {
            Self::One(tenant) => Some(tenant),
            Self::All => None,
        }
    }
}

impl std::str::FromStr for TenantScope {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        if text == "*" { Ok(Self::All) } else { TenantId::new(text).map(Self::One) }
    }
}

impl TryFrom<String> for TenantScope {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<TenantScope> for String {
    fn from(scope: TenantScope) -> Self {
        scope.one().map_or_else(|| "*".into(), ToString::to_string)
    }
}
