//! What a tenant has used and has waiting, in one round trip: for tools that tell agents about their own account.

use redis::Value;

use crate::connection::question::Question;
use crate::records::budgets::AgentBudget;
use crate::records::schema::tenant as counters;
use crate::script::reply::number_of;
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, TenantId};

/// A tenant as its shard counts it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// Shard time, ms since the epoch.
    pub now_ms: i64,
    /// Turns and tasks that have not ended.
    pub unfinished: u64,
    /// Slices that are out.
    pub out: u64,
    /// Calls of all its agents in the day that is running; zero where the last one has ended.
    pub day_used: u64,
    /// When that day ends, ms of shard time; none where nothing was called in it.
    pub day_ends_ms: Option<i64>,
    /// Budgets of the agents that were asked about, in their order. One that never called anything is all zero.
    pub agents: Vec<AgentBudget>,
}

impl Store {
    /// Looks at what a tenant and some of its agents have used. Whoever asks bounds the number of agents.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn standing(&self, tenant: &TenantId, agents: &[AgentId]) -> Result<Standing, StoreError> {
        let fields = [counters::UNFINISHED, counters::OUT, counters::DAY_USED, counters::DAY_END];
        let mut pipe = redis::pipe();
        pipe.cmd("HMGET").arg(self.keys.key(format_args!("tenant:{tenant}"))).arg(&fields[..]);
        if !agents.is_empty() {
            let names: Vec<String> = agents.iter().map(|agent| format!("{tenant}:{agent}")).collect();
            pipe.cmd("HMGET").arg(self.keys.key("budgets")).arg(names);
        }
        let (found, now_ms) =
            tokio::try_join!(self.connection.pipeline::<Vec<Vec<Value>>>(Question::Look, &pipe), self.now_ms())?;
        let mut found = found.into_iter();
        let counts = found.next().unwrap_or_default();
        let count = |at: usize| counts.get(at).and_then(number_of).unwrap_or(0);
        let day_ends_ms = Some(count(3)).filter(|end| *end > now_ms);
        let budgets = found.next().unwrap_or_default();
        let budget = |at: usize| match budgets.get(at) {
            Some(Value::BulkString(packed)) => AgentBudget::unpack(packed),
            _ => AgentBudget::default(),
        };
        Ok(Standing {
            now_ms,
            unfinished: count(0).max(0).unsigned_abs(),
            out: count(1).max(0).unsigned_abs(),
            day_used: if day_ends_ms.is_some() { count(2).max(0).unsigned_abs() } else { 0 },
            day_ends_ms,
            agents: (0..agents.len()).map(budget).collect(),
        })
    }
}
