//! Counters of agents, as scripts pack them.

/// The amounts that an agent has used up, as `budget.lua` packs them. A counter means nothing once its end has passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentBudget {
    /// Calls of the tick.
    pub tick_used: i64,
    /// When that tick ends, ms of shard time.
    pub tick_ends_ms: i64,
    /// Calls of the day.
    pub day_used: i64,
    /// When that day ends, ms of shard time.
    pub day_ends_ms: i64,
    /// When that tick began, ms of shard time: no earlier than its last call by more than a tick.
    pub tick_began_ms: i64,
}

impl AgentBudget {
    /// Reads numbers of eight bytes each: the fields in order. What is missing is zero.
    #[must_use]
    pub fn unpack(packed: &[u8]) -> Self {
        let mut numbers =
            packed.chunks_exact(size_of::<f64>()).map(|bytes| bytes.try_into().map_or(0.0, f64::from_le_bytes));
        let mut next = || numbers.next().unwrap_or(0.0) as i64;
        Self { tick_used: next(), tick_ends_ms: next(), day_used: next(), day_ends_ms: next(), tick_began_ms: next() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_counters_are_read_and_absent_ones_are_zero() {
        let packed: Vec<u8> =
            [10.0, 1_767_571_205_000.0, 42.0, 9.0, 5.0].iter().flat_map(|n: &f64| n.to_le_bytes()).collect();
        let (tick_ends_ms, tick_began_ms) = (1_767_571_205_000, 5);
        let whole = AgentBudget { tick_used: 10, tick_ends_ms, day_used: 42, day_ends_ms: 9, tick_began_ms };
        assert_eq!(AgentBudget::unpack(&packed), whole);
        assert_eq!(AgentBudget::unpack(&packed[..12]), AgentBudget { tick_used: 10, ..AgentBudget::default() });
        assert_eq!(AgentBudget::unpack(b""), AgentBudget::default());
    }
}
