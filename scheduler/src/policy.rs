//! The policy's generation and calendar days, as the scripts want them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use shared::model::day;
use shared::model::{AgentId, AgentPolicy, Policy, TenantId, policy::TenantPolicy};
use shared::ops::metrics::Metrics;
use shared::store::PolicyRow;

/// Which generation we speak for, and which day each time zone has.
#[derive(Debug, Default)]
pub struct PolicyClock {
    generation: AtomicU64,
    days: Mutex<HashMap<String, (i64, i64)>>,
    steps: AtomicU64,
    epoch_ms: AtomicI64,
}

/// A step of Redis' clock that operators should hear of, ms.
const LARGE_STEP_MS: i64 = 1_000;

impl PolicyClock {
    /// The generation of our policy; 0 before it was announced.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    pub(crate) fn set_generation(&self, generation: u64) {
        self.generation.store(generation, Ordering::Relaxed);
    }

    /// Caps of an agent with the day that `now_ms` lies in.
    pub fn row(&self, policy: &Policy, tenant: &TenantPolicy, agent: &AgentPolicy, now_ms: i64) -> PolicyRow {
        let (day_start_ms, day_end_ms) = self.day(policy.time_zone(tenant), now_ms);
        PolicyRow { caps: policy.caps(tenant, agent), day_start_ms, day_end_ms }
    }

    /// The calendar day of a zone, kept until it is over.
    fn day(&self, zone: &str, now_ms: i64) -> (i64, i64) {
        let mut days = self.days.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(known) = days.get(zone).filter(|(start, end)| (*start..*end).contains(&now_ms)) {
            return *known;
        }
        // Configuration has checked the zone; a tenant that was set at run time may still name an unknown one.
        let tz = day::zone(zone).unwrap_or_else(|error| {
            tracing::warn!(%error, "days of this zone are counted in UTC");
            chrono_tz::UTC
        });
        let bounds = day::day_bounds(now_ms, tz);
        days.insert(zone.to_owned(), bounds);
        bounds
    }

    pub(crate) fn saw_steps(&self, (steps, step_ms): (u64, i64), metrics: &Metrics) {
        let known = self.steps.swap(steps, Ordering::Relaxed);
        if steps > known && step_ms >= LARGE_STEP_MS {
            metrics.clock_stepped();
            tracing::error!(step_ms, "Redis' clock stepped back; shard time waits until it has caught up");
        }
    }

    pub(crate) fn saw_epoch(&self, epoch_ms: i64, metrics: &Metrics) {
        let known = self.epoch_ms.swap(epoch_ms, Ordering::Relaxed);
        if epoch_ms > known && epoch_ms > 0 {
            metrics.epoch_changed();
            tracing::warn!(
                epoch_ms,
                "Redis restarted; its last writes may be lost, so no window that began before is used"
            );
        }
    }
}

/// Where in the tick an agent's windows begin: a stable hash, so that a million agents do not wake in one instant.
#[must_use]
pub fn stagger_ms(tenant: &TenantId, agent: &AgentId, tick_ms: i64) -> i64 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(tenant.as_str().as_bytes());
    hash.update(b":");
    hash.update(agent.as_str().as_bytes());
    i64::from(hash.finalize()) % tick_ms.max(1)
}

/// The policies of one batch, each once.
#[derive(Debug, Default)]
pub struct Rows {
    /// The rows, in the order of their numbers.
    pub rows: Vec<PolicyRow>,
    numbers: HashMap<PolicyRow, usize>,
}

impl Rows {
    /// The number of a row, added where it is new.
    pub fn number(&mut self, row: PolicyRow) -> usize {
        *self.numbers.entry(row).or_insert_with(|| {
            self.rows.push(row);
            self.rows.len() - 1
        })
    }
}
