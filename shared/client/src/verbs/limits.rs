use std::fmt;

use chrono::{DateTime, SecondsFormat};
use serde::{Deserialize, Serialize};
use serde_json::Number;
use tickfleet_core::CounterKey;
use tickfleet_core::audit::AuditAppend;
use tickfleet_core::settings::reset::{ResetCounter, ResetLimit};
use tickfleet_model::Limit;
use tickfleet_model::limit::counters::{OTHERS, tenant_of};
use tickfleet_model::limit::{LimitBound, LimitWindow, amount};
use tickfleet_model::suggest::closest;
use tickfleet_protocol::{AuditAction, AuditValue, OperatorAct};
use tickfleet_store::{Store, StoreError};

use super::{OperatorVerb, Reason, VerbContext, VerbError};

/// Per shard, to find a similar name.
const COUNTERS_MAX: usize = 10_000;

/// Reset a counter to zero.
///
/// The end of the window does not change: a reset allows the full limit once more until then. Waiting calls are
/// reconsidered at once.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
pub struct ResetLimitRequest {
    /// Name of the limit.
    #[cfg_attr(feature = "cli", arg(value_name = "LIMIT"))]
    pub limit: String,
    /// Counter, as `tickfleet limits` shows it. Omit it if the limit has a single counter.
    #[serde(default)]
    #[cfg_attr(feature = "cli", arg(value_name = "COUNTER", default_value = "", hide_default_value = true))]
    pub counter: String,
    /// Reason for the audit log.
    #[cfg_attr(feature = "cli", arg(long))]
    pub reason: Reason,
}

/// The result of a reset, summed over all shards.
#[derive(Debug, Serialize)]
pub struct ResetReport {
    /// The use before the reset, in the unit of the limit.
    pub used_before: Number,
    /// The end of the window (ms of shard time). `None` without a window.
    pub window_ends_ms: Option<i64>,
    /// The turns that waited for the counter.
    pub waiting: u64,
    /// The shards that had the counter.
    pub shards: Vec<u32>,
    /// The result in words.
    pub message: String,
}

impl fmt::Display for ResetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl OperatorVerb for ResetLimitRequest {
    const NAME: &'static str = "limits/reset";
    const ERRORS: &'static [(u16, &'static str)] = &[(404, "Unknown limit or counter")];
    type Report = ResetReport;

    async fn run(&self, context: &VerbContext<'_>) -> Result<ResetReport, VerbError> {
        let limit = context.names.limit(&self.limit);
        if limit.is_some_and(|limit| limit.every == LimitWindow::Concurrency) {
            return Err(VerbError::Conflict(format!(
                "{} counts running calls: each releases its slot when it ends. To end a turn, run tickfleet cancel",
                self.limit
            )));
        }
        let mut done: Vec<(u32, ResetCounter)> = Vec::new();
        // A counter of a tenant is in one shard. A counter of the whole fleet has a share in every shard.
        for store in context.client.stores() {
            let entry = self.entry(store, context, limit, store.now_ms().await?);
            let reset = ResetLimit { counter: CounterKey::new(&self.limit, &self.counter), entry };
            let was = store.decide(reset).await.map_err(StoreError::from)?.result;
            done.extend(was.map(|was| (store.shard(), was)));
        }
        if done.is_empty() {
            return Err(self.unknown(context, limit).await?);
        }
        let mut report = ResetReport {
            used_before: in_unit(done.iter().map(|(_, was)| was.used).sum(), limit),
            window_ends_ms: done.iter().map(|(_, was)| was.ends_ms).filter(|ends_ms| *ends_ms > 0).max(),
            waiting: done.iter().map(|(_, was)| was.waiting).sum(),
            shards: done.iter().map(|(shard, _)| *shard).collect(),
            message: String::new(),
        };
        report.message = self.describe(&report, limit);
        Ok(report)
    }
}

impl ResetLimitRequest {
    fn entry(&self, store: &Store, context: &VerbContext<'_>, limit: Option<&Limit>, timestamp_ms: i64) -> AuditAppend {
        let Self { limit: name, counter, reason } = self;
        let tenant = limit.and_then(|limit| tenant_of(limit, counter));
        let id = if counter.is_empty() { name.clone() } else { format!("{name}@{counter}") };
        let unit = match limit.map(|limit| &limit.bound) {
            None => "unknown",
            Some(bound) if bound.is_of_amounts() => "millionths",
            Some(LimitBound::Tokens(_)) => "tokens",
            Some(_) => "calls",
        };
        let act = OperatorAct {
            action: AuditAction::LimitReset,
            entity_type: "limit",
            entity_id: &id,
            did: &format!("reset {id}"),
            tenant: tenant.as_ref(),
            details: &[
                ("limit", AuditValue::Name(name)),
                ("counter", AuditValue::Name(counter)),
                ("unit", AuditValue::Name(unit)),
            ],
        };
        store.audit_append(&act, context.operator(reason), timestamp_ms)
    }

    fn describe(&self, report: &ResetReport, limit: Option<&Limit>) -> String {
        let Self { limit: name, counter, .. } = self;
        let which = if counter.is_empty() { name.clone() } else { format!("{name} of {counter}") };
        let max = limit.and_then(|known| known.bound.fixed_max());
        let allowed = max.map(|max| format!(" of {}", in_unit(max, limit))).unwrap_or_default();
        let ends = report.window_ends_ms.and_then(DateTime::from_timestamp_millis);
        let ends = ends.map(|ends| format!(". Its window ends at {}", ends.to_rfc3339_opts(SecondsFormat::Secs, true)));
        let waiting = match report.waiting {
            _ if counter == OTHERS => {
                ". Turns that share it wait in throttle queues and are checked when that window ends".to_owned()
            }
            0 => ". Nothing waited for it".to_owned(),
            1 => ". 1 waiting turn is checked now".to_owned(),
            turns => format!(". {turns} waiting turns are checked now"),
        };
        let used = &report.used_before;
        format!("{which}: {used}{allowed} used before, 0 now{}{waiting}", ends.unwrap_or_default())
    }

    async fn unknown(&self, context: &VerbContext<'_>, limit: Option<&Limit>) -> Result<VerbError, VerbError> {
        let Self { limit: name, counter, .. } = self;
        if limit.is_none() {
            return Ok(context.names.unknown_limit(name));
        }
        let mut known = Vec::new();
        for store in context.client.stores() {
            known.extend(store.counters(name, false, COUNTERS_MAX).await?.counters.into_keys());
        }
        let meant = closest(counter, known.iter().map(String::as_str)).filter(|meant| !meant.is_empty());
        let meant = meant.map(|meant| format!(" Did you mean {meant:?}?")).unwrap_or_default();
        let which =
            if counter.is_empty() { "no counter for all calls".into() } else { format!("no counter {counter:?}") };
        Ok(VerbError::Unknown(format!(
            "{name} has {which}: no calls were counted recently.{meant} tickfleet limits --limit {name} shows its \
             fullest counters"
        )))
    }
}

/// Returns a use or maximum in the unit of the limit.
#[must_use]
pub fn in_unit(value: u64, limit: Option<&Limit>) -> Number {
    match limit.map(|limit| &limit.bound) {
        // The text of an amount is a valid number.
        Some(bound) if bound.is_of_amounts() => amount::show(value).parse().unwrap_or_else(|_| value.into()),
        _ => value.into(),
    }
}
