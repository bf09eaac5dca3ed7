//! What keys and tokens are for: the verbs that they open, and whose things.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use tickfleet_model::{IdError, TenantId};

use crate::problem::Problem;

/// What the holder of a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Submit turns, delegate tasks, talk with agents.
    Submit,
    /// Read replies, tasks and lists of tools.
    Read,
    /// End turns and tasks before their time.
    Cancel,
    /// Look at all that operators look at, and change nothing.
    View,
    /// Pause and resume, and end many turns.
    Operate,
    /// Approve and deny calls that wait for people.
    Approve,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Submit, Self::Read, Self::Cancel, Self::View, Self::Operate, Self::Approve];
    /// Those of services that have agents work.
    pub const OF_SERVICES: [Self; 3] = [Self::Submit, Self::Read, Self::Cancel];

    /// The verb as the file has it.
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

    /// Returns true for those of people who look after the fleet.
    #[must_use]
    pub const fn is_of_operators(self) -> bool {
        matches!(self, Self::View | Self::Operate | Self::Approve)
    }
}

/// Whether a text is a name, or a beginning with a * behind it.
pub(crate) fn is_pattern(text: &str) -> bool {
    !text.is_empty() && !text.strip_suffix('*').unwrap_or(text).contains('*')
}

/// What somebody does who looks after the fleet: a name for some verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Looks, and changes nothing.
    Viewer,
    /// Looks, pauses, resumes, ends turns, replays.
    Operator,
    /// Looks, approves and denies.
    Approver,
}

impl Role {
    /// What it may do.
    #[must_use]
    pub fn verbs(self) -> BTreeSet<Verb> {
        match self {
            Self::Viewer => [Verb::View].into(),
            Self::Operator => [Verb::View, Verb::Operate].into(),
            Self::Approver => [Verb::View, Verb::Approve].into(),
        }
    }
}

/// How many requests the holder of a key or token may send through one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Requests a second, in the long run.
    pub per_second: u32,
    /// Requests that may come at once; without it, those of one second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

impl Rate {
    /// The largest of both: more is as good as none.
    pub const MAX: u32 = 1_000_000;

    /// Requests that may come at once.
    #[must_use]
    pub fn at_once(self) -> u32 {
        self.burst.unwrap_or(self.per_second)
    }

    fn check(self) -> Result<(), String> {
        let bounds = 1..=Self::MAX;
        if bounds.contains(&self.per_second) && bounds.contains(&self.at_once()) {
            return Ok(());
        }
        Err(format!("rate: per_second and burst: expected numbers from 1 to {}", Self::MAX))
    }
}

/// What somebody holds who sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Held {
    /// An API key.
    Key,
    /// A token of an issuer.
    Token,
}

impl Held {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Token => "token",
        }
    }
}

/// Who sends requests: the holder of a key by the key's name, of tokens by the name in them, which is one within its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub(crate) held: Held,
    pub(crate) tenant: Whose,
    pub(crate) id: String,
}

/// What the holder of a key or token may do: a key's row says it, or a rule about a token's claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Who it is, in logs and in the audit log: the name of the key, or the one in the token.
    pub id: String,
    /// What was sent.
    pub held: Held,
    /// The tenant whose agents it may speak for; all, for operators alone.
    pub tenant: Whose,
    /// Those agents; `*` stands for all, at the end of a name for all that begin so.
    pub agents: Vec<String>,
    /// What it may do.
    pub verbs: BTreeSet<Verb>,
    /// The approver of `permissions.yaml` that decides with it.
    pub approver: Option<String>,
    /// How many requests it may send; none: as many as it likes.
    pub rate: Option<Rate>,
    /// When it ends to be good.
    pub expires: Option<DateTime<Utc>>,
}

impl Grant {
    /// Returns true if its holder may speak for this agent.
    #[must_use]
    pub fn covers(&self, agent: &str) -> bool {
        self.agents.iter().any(|row| match row.strip_suffix('*') {
            Some(beginning) => agent.starts_with(beginning),
            None => agent == row,
        })
    }

    /// Who it is, for what is counted by callers.
    pub(crate) fn holder(&self) -> Holder {
        Holder { held: self.held, tenant: self.tenant.clone(), id: self.id.clone() }
    }

    /// What it is, in words: `the key "shop"`.
    pub(crate) fn named(&self) -> String {
        format!("the {} {:?}", self.held.as_str(), self.id)
    }

    /// Lets a request pass that it is for.
    ///
    /// # Errors
    /// 403, with what its holder may not.
    pub(crate) fn may(&self, verb: Verb) -> Result<(), Problem> {
        if self.verbs.contains(&verb) {
            return Ok(());
        }
        Err(Problem::forbidden(format!("{} may not {}", self.named(), verb.as_str())))
    }

    /// Refuses what makes no sense: nothing granted, agents that are no pattern, services of all tenants, operators of some
    /// agents, an approval that nobody gives.
    ///
    /// # Errors
    /// The field, and what was expected.
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
        // What operators look at and do is not divided by agents; and nobody submits for all tenants.
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

/// Whose turns, agents and approvals a key is about: `*` in the file stands for all tenants.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Whose {
    /// One tenant's.
    One(TenantId),
    /// Everybody's.
    All,
}

impl Whose {
    /// The tenant; none where it is about all.
    #[must_use]
    pub const fn one(&self) -> Option<&TenantId> {
        match self {
            Self::One(tenant) => Some(tenant),
            Self::All => None,
        }
    }
}

impl std::str::FromStr for Whose {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        if text == "*" { Ok(Self::All) } else { TenantId::new(text).map(Self::One) }
    }
}

impl TryFrom<String> for Whose {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<Whose> for String {
    fn from(whose: Whose) -> Self {
        whose.one().map_or_else(|| "*".into(), ToString::to_string)
    }
}
