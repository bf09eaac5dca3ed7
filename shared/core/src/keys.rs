//! Names of records, counters, sets and streams. The store adds the shard's prefix to each name.

use tickfleet_model::{AgentId, InboxName, Priority, TaskId, TenantId, TurnId};

use crate::transaction::{CounterKey, InboxKey, RecordKey, SetKey, StreamKey};

/// The name of a turn or task. As text: `<tenant>:<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TurnName {
    pub tenant: TenantId,
    pub turn: TurnId,
}

impl std::fmt::Display for TurnName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.tenant, self.turn)
    }
}

impl TurnName {
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (tenant, turn) = text.split_once(':')?;
        Some(Self { tenant: TenantId::new(tenant).ok()?, turn: TurnId::new(turn).ok()? })
    }

    #[must_use]
    pub fn task(tenant: &TenantId, task: &TaskId) -> Self {
        Self { tenant: tenant.clone(), turn: TurnId::from(task.clone()) }
    }

    /// The record of the unfinished turn.
    #[must_use]
    pub fn record(&self) -> RecordKey {
        RecordKey::new(format!("turn:{self}"))
    }

    /// The record of the finished turn.
    #[must_use]
    pub fn finished(&self) -> RecordKey {
        RecordKey::new(format!("done:{self}"))
    }

    /// The record that reserves this ID. It exists only if a producer chose the ID.
    #[must_use]
    pub fn given(&self) -> RecordKey {
        RecordKey::new(format!("id:{self}"))
    }

    #[must_use]
    pub fn cancellation(&self) -> RecordKey {
        RecordKey::new(format!("cancel:{self}"))
    }

    #[must_use]
    pub fn timer(&self) -> String {
        format!("turn:{self}")
    }

    /// IDs of the unfinished turns and tasks that this turn or task started.
    #[must_use]
    pub fn descendants(&self) -> SetKey {
        SetKey::new(format!("under:{self}"))
    }
}

/// IDs of a tenant's turns and tasks that were canceled before they arrived. The score is the time in milliseconds at
/// which the cancel is dropped.
#[must_use]
pub fn early(tenant: &TenantId) -> SetKey {
    SetKey::new(format!("early:{tenant}"))
}

/// IDs of a tenant's newest tasks. The score is the time of delegation in milliseconds.
#[must_use]
pub fn tasks_of(tenant: &TenantId) -> SetKey {
    SetKey::new(format!("tasks:{tenant}"))
}

/// IDs of the newest tasks that a task delegated. The score is the time of delegation in milliseconds.
#[must_use]
pub fn children(task: &TurnName) -> SetKey {
    SetKey::new(format!("children:{task}"))
}

#[must_use]
pub fn externals() -> SetKey {
    SetKey::new("externals")
}

/// Turns that wait for room in a token or money budget. The scores are the same as in throttle queues.
#[must_use]
pub fn budget_queue(counter: &CounterKey) -> SetKey {
    SetKey::new(format!("short:{}@{}", counter.limit, counter.counter))
}

/// The history of a task. Each entry is a part of the record.
#[must_use]
pub fn steps(task: &TurnName) -> RecordKey {
    RecordKey::new(format!("steps:{task}"))
}

/// Begun calls that the store knows only from reports of workers after a restart.
#[must_use]
pub fn recovered_calls(turn: &TurnName) -> RecordKey {
    RecordKey::new(format!("ran:{turn}"))
}

/// Turns and tasks that are parked for any reason except an approval. Metrics read this set. The score is the start of
/// the wait in milliseconds.
#[must_use]
pub fn parked() -> SetKey {
    SetKey::new("parked")
}

/// All timers of a shard. The score is the due time in milliseconds.
#[must_use]
pub fn timers() -> SetKey {
    SetKey::new("timers")
}

#[must_use]
pub fn turns() -> StreamKey {
    StreamKey::new("turns")
}

#[must_use]
pub fn tasks() -> StreamKey {
    StreamKey::new("tasks")
}

#[must_use]
pub fn audit() -> StreamKey {
    StreamKey::new("audit")
}

#[must_use]
pub fn dead() -> StreamKey {
    StreamKey::new("dead")
}

#[must_use]
pub fn ready(priority: Priority) -> StreamKey {
    StreamKey::new(format!("ready:{}", priority.as_str()))
}

/// Slices with this priority that were redelivered after a crash.
#[must_use]
pub fn suspect(priority: Priority) -> StreamKey {
    StreamKey::new(format!("ready:suspect:{}", priority.as_str()))
}

/// Names of canceled turns that this consumer holds as slices. The consumer's heartbeat returns them. The score is the
/// time of the cancel notice in milliseconds.
#[must_use]
pub fn canceled(consumer: &str) -> SetKey {
    SetKey::new(format!("canceled:{consumer}"))
}

#[must_use]
pub fn external(tenant: &TenantId, agent: &AgentId) -> StreamKey {
    StreamKey::new(format!("external:{tenant}:{agent}"))
}

/// The queue that offers a call of this turn to the caller's process. The queue exists only while a call is offered.
#[must_use]
pub fn local(tenant: &TenantId, turn: &TurnId) -> StreamKey {
    StreamKey::new(format!("local:{tenant}:{turn}"))
}

#[must_use]
pub fn inbox(tenant: &TenantId, inbox: &InboxName) -> InboxKey {
    InboxKey { tenant: tenant.as_str().into(), inbox: inbox.as_str().into() }
}

#[must_use]
pub fn throttle_queue(counter: &CounterKey) -> SetKey {
    SetKey::new(format!("throttle:{}@{}", counter.limit, counter.counter))
}

#[must_use]
pub fn throttle_timer(counter: &CounterKey) -> String {
    format!("throttle:{}@{}", counter.limit, counter.counter)
}

/// Names of the built-in limits, which every fleet has. Built-in names start with `_`.
pub mod limits {
    /// Returns true for the name of a built-in limit. Other internal names can also start with `_`, but contain a `:`.
    #[must_use]
    pub fn is_built_in(limit: &str) -> bool {
        limit.starts_with('_') && !limit.contains(':')
    }

    /// The built-in limits with windows. Their idle counters are deleted.
    pub const WINDOWED: [&str; 3] = [TICK, DAY, TENANT_DAY];

    /// Calls of an agent in a tick. The counter is `<tenant>:<agent>`.
    pub const TICK: &str = "_tick";
    /// Calls of an agent in a day. The counter is `<tenant>:<agent>`.
    pub const DAY: &str = "_day";
    /// Calls of a tenant in a day. The counter is `<tenant>`.
    pub const TENANT_DAY: &str = "_tenant_day";
    /// Calls of a task and of tasks below it. The counter is `<tenant>:<task>`.
    pub const TASK: &str = "_task";
    /// Unfinished turns and tasks of a tenant. The counter is `<tenant>`.
    pub const UNFINISHED: &str = "_unfinished";
    /// Bytes of unfinished turns and tasks of a tenant. The counter is `<tenant>`.
    pub const BYTES: &str = "_bytes";
    /// Slices of a tenant that are on queues or with workers. The counter is `<tenant>`.
    pub const IN_FLIGHT: &str = "_out";
}
