//! Statistics of calls: number, outcomes and durations, by day, tenant, agent and tool.
//!
//! A reader counts the new entries of the audit log, and stores the counts next to the log ([`count_on`]). Each entry
//! is counted once, even with several readers. Entries that are trimmed from the log before the first read are not
//! counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use tickfleet_model::{Outcome, TenantId};
use tickfleet_protocol::{AuditEntry, AuditMeta};
use tickfleet_store::{Addition, LogEntry, Store, StoreError, entry_ms};

use crate::model_use::ModelUse;
use crate::rules::{RuleEffect, field};

/// In entries. The Redis script that adds the counts of one step takes far less than 10 ms.
const STEP: usize = 1_000;
const DAY_MS: i64 = 86_400_000;
/// The name for tools that do not exist, and for all further tools of a day with too many names.
const OTHERS: &str = "~";

/// A dimension by which rows can be grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StatsDimension {
    /// The day, UTC.
    Day,
    /// The tenant.
    Tenant,
    /// The agent that made the calls, or that ran the task.
    Agent,
    /// The tool, by its name.
    Tool,
}

/// A query for statistics. An unset filter selects all calls.
#[derive(Debug, Clone, Default)]
pub struct StatsQuery {
    /// Only calls of this tenant.
    pub tenant: Option<TenantId>,
    /// Only calls of this agent.
    pub agent: Option<String>,
    /// Only calls of this tool, by its name.
    pub tool: Option<String>,
    /// First day, in days since the epoch.
    pub from_day: i64,
    /// Last day, inclusive, in days since the epoch.
    pub until_day: i64,
    /// The dimensions of the rows.
    pub by: BTreeSet<StatsDimension>,
}

/// One row of statistics.
#[derive(Debug, Clone, Default, Serialize)]
pub struct StatsRow {
    /// The day, UTC: `2026-11-26`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// The tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Calls that have ended.
    pub calls: u64,
    /// Successful calls.
    pub ok: u64,
    /// All calls by outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// Attempts after each call's first attempt.
    pub retries: u64,
    /// Mean duration of the last attempt, in milliseconds.
    pub mean_ms: u64,
    /// Median duration in milliseconds. May be up to a fifth too high.
    pub p50_ms: u64,
    /// 95th percentile of the duration, in milliseconds. May be up to a fifth too high.
    pub p95_ms: u64,
    /// 99th percentile of the duration, in milliseconds. May be up to a fifth too high.
    pub p99_ms: u64,
    /// `None` before [`add_use`](crate::usage::add_use).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<ModelUse>,
}

impl StatsRow {
    /// Returns the day, tenant, agent and tool.
    #[must_use]
    pub fn key(&self) -> [Option<String>; 4] {
        [self.day.clone(), self.tenant.clone(), self.agent.clone(), self.tool.clone()]
    }
}

/// The counted part of a shard's audit log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CountProgress {
    /// Entries that this call counted.
    pub entries: usize,
    /// Time of the last counted entry (ms of the Redis server's clock).
    pub upto_ms: i64,
    /// True if the log has uncounted entries.
    pub more: bool,
    /// True if the log may have lost entries before they were counted.
    pub gap: bool,
}

/// Counts new entries of a shard's audit log: at most `steps` × 1,000 entries.
pub async fn count_on(store: &Store, steps: usize) -> Result<CountProgress, StoreError> {
    let mut counted = CountProgress::default();
    for _ in 0..steps {
        let before = store.rolled_up_through().await?.unwrap_or_default();
        let from = if before.is_empty() { "-".to_owned() } else { format!("({before}") };
        let entries = store.log_entries(&from, "+", STEP).await?;
        counted.upto_ms = entry_ms(entries.last().map_or(before.as_str(), |last| &last.id)).unwrap_or(0);
        counted.more = entries.len() == STEP;
        let Some(last) = entries.last() else { break };
        counted.gap |= !before.is_empty() && store.log_entries(&before, &before, 1).await?.is_empty();
        if store.roll_up(&before, &last.id, &additions(&entries)).await? {
            counted.entries += entries.len();
        }
        if !counted.more {
            break;
        }
    }
    Ok(counted)
}

fn rules(meta: &AuditMeta<'_>) -> Vec<(RuleEffect, String)> {
    let mut rules: Vec<_> = meta.shadow.iter().map(|denial| (RuleEffect::Shadow, denial.rule.clone())).collect();
    if meta.outcome == Some(Outcome::Denied) {
        let rule = meta.error.as_ref().and_then(|error| error.detail("rule"));
        rules.extend(rule.map(|rule| (RuleEffect::Deny, rule)));
    }
    rules
}

fn additions(entries: &[LogEntry]) -> Vec<Addition> {
    let mut sums: HashMap<(i64, String, String, String), u64> = HashMap::new();
    for entry in entries {
        let Some(logged) = AuditEntry::read_call(&entry.text) else { continue };
        let (Some(tenant), Some(outcome)) = (&logged.tenant, logged.meta.outcome) else { continue };
        let day = entry_ms(&entry.id).unwrap_or(0).div_euclid(DAY_MS);
        for (did, rule) in rules(&logged.meta) {
            let count = field(did, tenant, &rule);
            *sums.entry((day, tenant.clone(), count, field(did, tenant, OTHERS))).or_default() += 1;
        }
        let agent = logged.agent();
        // A model can invent any number of tool names, so unknown tools are counted under one name.
        let tool = if outcome == Outcome::UnknownTool { OTHERS } else { &*logged.entity_id };
        let took = format!("h{}", bucket(logged.meta.duration_ms));
        let counts = [
            (outcome.as_str(), 1),
            ("ms", logged.meta.duration_ms),
            ("retries", u64::from(logged.meta.retry_count)),
            (&took, 1),
        ];
        for (what, amount) in counts.into_iter().filter(|(_, amount)| *amount > 0) {
            let overflow = format!("{tenant}:{OTHERS}:{OTHERS}:{what}");
            let count = format!("{tenant}:{agent}:{tool}:{what}");
            *sums.entry((day, tenant.clone(), count, overflow)).or_default() += amount;
        }
    }
    let addition = |((day, tenant, count, overflow), amount)| Addition { day, tenant, count, overflow, amount };
    sums.into_iter().map(addition).collect()
}

/// Each bucket's upper bound is 2^(1/4) times the previous bound.
fn bucket(ms: u64) -> u32 {
    ((ms as f64 + 1.0).log2() * 4.0).ceil() as u32
}

fn longest_of(bucket: u32) -> u64 {
    (f64::from(bucket) / 4.0).exp2() as u64 - 1
}

#[derive(Default)]
struct Sums {
    outcomes: BTreeMap<String, u64>,
    buckets: BTreeMap<u32, u64>,
    ms: u64,
    retries: u64,
}

impl Sums {
    fn add(&mut self, what: &str, amount: u64) {
        match what {
            "ms" => self.ms += amount,
            "retries" => self.retries += amount,
            _ => match what.strip_prefix('h').and_then(|bucket| bucket.parse().ok()) {
                Some(bucket) => *self.buckets.entry(bucket).or_default() += amount,
                None => *self.outcomes.entry(what.to_owned()).or_default() += amount,
            },
        }
    }

    fn quantile(&self, percent: u64) -> u64 {
        let all: u64 = self.buckets.values().sum();
        let wanted = (all * percent).div_ceil(100);
        let mut seen = 0;
        for (bucket, count) in &self.buckets {
            seen += count;
            if seen >= wanted {
                return longest_of(*bucket);
            }
        }
        0
    }
}

/// Returns the statistics of the calls that match the query. Entries of the log that are not [counted](count_on) yet
/// are not included.
pub async fn stats(shards: &[Store], query: &StatsQuery) -> Result<Vec<StatsRow>, StoreError> {
    let mut rows: BTreeMap<[Option<String>; 4], Sums> = BTreeMap::new();
    for store in shards {
        if query.tenant.as_ref().is_some_and(|tenant| !store.is_home_of(tenant)) {
            continue;
        }
        for day in query.from_day..=query.until_day {
            for (field, amount) in store.day_counts(day).await? {
                let Some((of, what)) = key_of(query, day, &field) else { continue };
                rows.entry(of).or_default().add(what, amount);
            }
        }
    }
    Ok(rows.into_iter().map(|(of, sums)| row(of, &sums)).collect())
}

fn key_of<'a>(query: &StatsQuery, day: i64, field: &'a str) -> Option<([Option<String>; 4], &'a str)> {
    let (tenant, rest) = field.split_once(':')?;
    let (agent, rest) = rest.split_once(':')?;
    let (tool, what) = rest.rsplit_once(':')?;
    let is_wanted = query.tenant.as_ref().is_none_or(|wanted| wanted.as_str() == tenant)
        && query.agent.as_ref().is_none_or(|wanted| wanted == agent)
        && query.tool.as_ref().is_none_or(|wanted| wanted == tool);
    let grouped = |by: StatsDimension, text: &dyn Fn() -> String| query.by.contains(&by).then(text);
    let key = [
        grouped(StatsDimension::Day, &|| date(day)),
        grouped(StatsDimension::Tenant, &|| tenant.to_owned()),
        grouped(StatsDimension::Agent, &|| agent.to_owned()),
        grouped(StatsDimension::Tool, &|| tool.to_owned()),
    ];
    is_wanted.then_some((key, what))
}

fn row([day, tenant, agent, tool]: [Option<String>; 4], sums: &Sums) -> StatsRow {
    let calls: u64 = sums.outcomes.values().sum();
    StatsRow {
        day,
        tenant,
        agent,
        tool,
        calls,
        ok: sums.outcomes.get(Outcome::Ok.as_str()).copied().unwrap_or(0),
        retries: sums.retries,
        mean_ms: sums.ms / calls.max(1),
        p50_ms: sums.quantile(50),
        p95_ms: sums.quantile(95),
        p99_ms: sums.quantile(99),
        outcomes: sums.outcomes.clone(),
        used: None,
    }
}

fn date(day: i64) -> String {
    let time = day.checked_mul(DAY_MS).and_then(chrono::DateTime::from_timestamp_millis).unwrap_or_default();
    time.format("%Y-%m-%d").to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::rules::call_of;

    #[test]
    fn a_bucketed_duration_is_at_most_a_fifth_too_long() {
        for ms in [0, 1, 2, 7, 100, 999, 30_000, 86_400_000] {
            let estimate = longest_of(bucket(ms));
            assert!(estimate >= ms && estimate <= ms + ms / 5 + 1, "{ms} is estimated as {estimate}");
        }
    }

    #[test]
    fn a_counter_maps_to_its_row_even_if_the_tool_name_has_colons() {
        let by = [StatsDimension::Day, StatsDimension::Tool].into();
        let query = StatsQuery { agent: Some("kelly".into()), by, ..StatsQuery::default() };
        let (key, what) = key_of(&query, 20_783, "demo:kelly:mcp:files:read:transient").unwrap();
        assert_eq!(
            (key[0].as_deref(), key[3].as_deref(), what),
            (Some("2026-11-26"), Some("mcp:files:read"), "transient")
        );
        assert!(
            key[1].is_none() && key_of(&query, 0, "demo:fran:x:ok").is_none() && key_of(&query, 0, "since").is_none()
        );
    }

    #[test]
    fn each_call_is_counted_once() {
        let entry = |outcome: &str| LogEntry {
            id: "1764130000000-0".into(),
            text: format!(
                r#"{{"action":"TOOL_CALL","entity_id":"mcp:a:b","actor_id":"kelly","tenant":"demo","meta":{{"outcome":"{outcome}","duration_ms":7,"retry_count":1}}}}"#
            ),
            admitted: String::new(),
        };
        let counts = additions(&[entry("ok"), entry("ok"), entry("denied")]);
        let sum = |is_so: &dyn Fn(&str) -> bool| -> u64 {
            counts.iter().filter(|one| is_so(&one.count)).map(|one| one.amount).sum()
        };
        assert_eq!(sum(&|field| call_of(field) == Some("demo")), 3);
    }

    #[test]
    fn quantiles_cover_all_calls() {
        let mut sums = Sums::default();
        sums.add(&format!("h{}", bucket(10)), 95);
        sums.add(&format!("h{}", bucket(1_000)), 5);
        assert!(sums.quantile(50) < 13 && sums.quantile(95) < 13 && sums.quantile(99) >= 1_000);
    }
}
