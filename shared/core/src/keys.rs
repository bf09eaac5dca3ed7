//! Names of records, counters, sets and streams. The store adds the shard's prefix.

use tickfleet_model::{AgentId, InboxName, Priority, TaskId, TenantId, TurnId};

use crate::transaction::{CounterKey, InboxKey, RecordKey, SetKey, StreamKey};

/// As text: `<tenant>:<id>`.
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

    #[must_use]
    pub fn record(&self) -> RecordKey {
        RecordKey::new(format!("turn:{self}"))
    }

    #[must_use]
    pub fn finished(&self) -> RecordKey {
        RecordKey::new(format!("done:{self}"))
    }

    /// Exists only if a producer chose the ID.
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

    /// Unfinished turns and tasks that this turn or task started.
    #[must_use]
    pub fn descendants(&self) -> SetKey {
        SetKey::new(format!("under:{self}"))
    }
}

/// Canceled IDs that have not arrived. The score is the time (ms) at which the cancel is dropped.
#[must_use]
pub fn early(tenant: &TenantId) -> SetKey {
    SetKey::new(format!("early:{tenant}"))
}

/// The newest tasks. The score is the time of delegation (ms).
#[must_use]
pub fn tasks_of(tenant: &TenantId) -> SetKey {
    SetKey::new(format!("tasks:{tenant}"))
}

/// The newest tasks. The score is the time of delegation (ms).
#[must_use]
pub fn children(task: &TurnName) -> SetKey {
    SetKey::new(format!("children:{task}"))
}

#[must_use]
pub fn externals() -> SetKey {
    SetKey::new("externals")
}

/// The scores are the same as in throttle queues.
#[must_use]
pub fn budget_queue(counter: &CounterKey) -> SetKey {
    SetKey::new(format!("short:{}@{}", counter.limit, counter.counter))
}

/// Each entry of the history is a part of the record.
#[must_use]
pub fn steps(task: &TurnName) -> RecordKey {
    RecordKey::new(format!("steps:{task}"))
}

#[must_use]
pub fn recovered_calls(turn: &TurnName) -> RecordKey {
    RecordKey::new(format!("ran:{turn}"))
}

/// Parked turns, except turns that wait for approvals. Metrics read this set. The score is the start of the wait (ms).
#[must_use]
pub fn parked() -> SetKey {
    SetKey::new("parked")
}

/// The score is the due time (ms).
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

/// After a crash, the slices of the crashed worker return to this queue.
#[must_use]
pub fn suspect(priority: Priority) -> StreamKey {
    StreamKey::new(format!("ready:suspect:{}", priority.as_str()))
}

/// The consumer's heartbeat returns these turns. The score is the time of the notice (ms).
#[must_use]
pub fn canceled(consumer: &str) -> SetKey {
    SetKey::new(format!("canceled:{consumer}"))
}

#[must_use]
pub fn external(tenant: &TenantId, agent: &AgentId) -> StreamKey {
    StreamKey::new(format!("external:{tenant}:{agent}"))
}

/// Offers a call to the caller's process. The queue exists only while a call is offered.
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

pub mod limits {
    /// Other internal names can also start with `_`, but contain a `:`.
    #[must_use]
    pub fn is_built_in(limit: &str) -> bool {
        limit.starts_with('_') && !limit.contains(':')
    }

    /// Idle counters of these limits are deleted.
    pub const WINDOWED: [&str; 3] = [TICK, DAY, TENANT_DAY];

    /// The counter is `<tenant>:<agent>`.
    pub const TICK: &str = "_tick";
    /// The counter is `<tenant>:<agent>`.
    pub const DAY: &str = "_day";
    /// The counter is `<tenant>`.
    pub const TENANT_DAY: &str = "_tenant_day";
    /// Includes tasks below the task. The counter is `<tenant>:<task>`.
    pub const TASK: &str = "_task";
    /// Turns and tasks. The counter is `<tenant>`.
    pub const UNFINISHED: &str = "_unfinished";
    /// Of unfinished turns and tasks. The counter is `<tenant>`.
    pub const BYTES: &str = "_bytes";
    /// Slices in queues or with workers. The counter is `<tenant>`.
    pub const IN_FLIGHT: &str = "_out";
}
