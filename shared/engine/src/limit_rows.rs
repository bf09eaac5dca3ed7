//! Configured limits as rows of the core, and their counters.

use tickfleet_core::CounterKey;
use tickfleet_core::turn::limit::{LimitRow, WindowKind};
use tickfleet_model::day::{Tz, zone};
use tickfleet_model::limit::Every;
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::{Limit, Policy};

use crate::time::counter_stagger_ms;

/// The row of a limit of `policy` in shard `shard` of `shards`, for counters of the tenant that `owner` declares.
#[must_use]
pub fn limit_row(policy: &Policy, owner: &TenantPolicy, limit: &Limit, (shard, shards): (u32, u32)) -> LimitRow {
    let limit = owner.limit(limit);
    let time_zone = if limit.is_of_tenants() { policy.time_zone(owner) } else { &policy.defaults.time_zone };
    let window = match (limit.every, limit.period_ms(policy.defaults.tick_ms)) {
        (Every::Held, _) => WindowKind::Held,
        (_, Some(length_ms)) => WindowKind::Fixed { length_ms },
        (_, None) => WindowKind::Day { zone: known_zone(time_zone) },
    };
    LimitRow {
        name: limit.name.as_str().into(),
        max: limit.share(shard, shards),
        window,
        on_reach: limit.on_reach,
        mode: limit.mode,
        counters_max: limit.keys_max,
    }
}

/// A counter of a limit, and the offset of its windows within their length, ms.
#[must_use]
pub fn counter_of(row: &LimitRow, key: &str) -> (CounterKey, i64) {
    let stagger_ms = match row.window {
        WindowKind::Fixed { length_ms } => counter_stagger_ms(&row.name, key, length_ms),
        WindowKind::Day { .. } | WindowKind::Rolling { .. } | WindowKind::Held | WindowKind::Total => 0,
    };
    (CounterKey::new(&*row.name, key), stagger_ms)
}

/// The zone with this name. The configuration has checked it.
#[must_use]
pub fn known_zone(name: &str) -> Tz {
    zone(name).unwrap_or(Tz::UTC)
}
