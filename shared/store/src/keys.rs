//! Names of keys. All keys of a shard have the form `{namespace:shard}:…`.

use std::fmt;

use tickfleet_model::{AgentId, InboxName, Priority, TenantId};

#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    #[must_use]
    pub fn new(namespace: &str, shard: u32) -> Self {
        Self { prefix: format!("{{{namespace}:{shard}}}:") }
    }

    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// For example `turns`, `meta`, `ready:normal`.
    #[must_use]
    pub fn key(&self, suffix: impl fmt::Display) -> String {
        format!("{}{suffix}", self.prefix)
    }

    #[must_use]
    pub fn turn(&self, name: &TurnName) -> String {
        self.key(format_args!("turn:{name}"))
    }

    #[must_use]
    pub fn done(&self, name: &TurnName) -> String {
        self.key(format_args!("done:{name}"))
    }

    #[must_use]
    pub fn steps(&self, task: &TurnName) -> String {
        self.key(format_args!("steps:{task}"))
    }

    #[must_use]
    pub fn tasks(&self, tenant: &TenantId) -> String {
        self.key(format_args!("tasks:{tenant}"))
    }

    #[must_use]
    pub fn children(&self, task: &TurnName) -> String {
        self.key(format_args!("children:{task}"))
    }

    #[must_use]
    pub fn session(&self, tenant: &TenantId, session: &str) -> String {
        self.key(format_args!("session:{tenant}:{session}"))
    }

    #[must_use]
    pub fn replies(&self, tenant: &TenantId, inbox: &InboxName) -> String {
        self.key(format_args!("replies:{tenant}:{inbox}"))
    }
}

pub use tickfleet_core::keys::TurnName;

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterName {
    pub limit: String,
    pub counter: String,
}

impl fmt::Display for CounterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.limit, self.counter)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Queue {
    Ready(Priority),
    /// For redelivery after a crash of the worker. Each worker runs at most one such slice at once.
    Suspect(Priority),
    External(TenantId, AgentId),
}

impl Queue {
    #[must_use]
    pub const fn priority(&self) -> Priority {
        match self {
            Self::Ready(priority) | Self::Suspect(priority) => *priority,
            Self::External(..) => Priority::Normal,
        }
    }

    /// The ready queues come first. In each group, the most urgent queue comes first.
    pub fn of_workers() -> impl Iterator<Item = Self> {
        Priority::ALL.into_iter().map(Self::Ready).chain(Priority::ALL.into_iter().map(Self::Suspect))
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(priority) = text.strip_prefix("ready:suspect:") {
            return Priority::parse(priority).map(Self::Suspect);
        }
        if let Some(priority) = text.strip_prefix("ready:") {
            return Priority::parse(priority).map(Self::Ready);
        }
        let (tenant, agent) = text.strip_prefix("external:")?.split_once(':')?;
        Some(Self::External(TenantId::new(tenant).ok()?, AgentId::new(agent).ok()?))
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(priority) => write!(f, "ready:{}", priority.as_str()),
            Self::Suspect(priority) => write!(f, "ready:suspect:{}", priority.as_str()),
            Self::External(tenant, agent) => write!(f, "external:{tenant}:{agent}"),
        }
    }
}
