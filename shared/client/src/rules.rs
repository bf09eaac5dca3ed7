//! Counts the calls that rules, conditions on facts, and limits affected. A rule in shadow mode stops no call.
//!
//! The module [`stats`](crate::stats) computes the counts.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tickfleet_model::limit::LimitMode;
use tickfleet_model::policy::{FactCondition, Policy, Rule, RuleMode, ToolGrant};
use tickfleet_model::{Limit, Outcome, TenantId};
use tickfleet_store::{Store, StoreError};

/// Separates the parts of a counted name. No tenant name contains this character.
const BETWEEN: char = '|';

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleEffect {
    /// The rule is in shadow mode, so it did not stop the call.
    Shadow,
    Deny,
}

impl RuleEffect {
    const fn word(self) -> &'static str {
        match self {
            Self::Shadow => "shadow",
            Self::Deny => "deny",
        }
    }
}

pub(crate) fn field(did: RuleEffect, tenant: &str, rule: &str) -> String {
    // Replace colons: a field with three colons would be read as a count by outcome.
    format!("{}{BETWEEN}{tenant}{BETWEEN}{}", did.word(), rule.replace(':', "/"))
}

pub(crate) fn call_of(field: &str) -> Option<&str> {
    let (tenant, rest) = field.split_once(':')?;
    let (_, what) = rest.split_once(':')?.1.rsplit_once(':')?;
    Outcome::ALL.into_iter().any(|outcome| outcome.as_str() == what).then_some(tenant)
}

fn read(field: &str) -> Option<(RuleEffect, &str, &str)> {
    let mut parts = field.splitn(3, BETWEEN);
    let word = parts.next()?;
    let tenant = parts.next()?;
    let rule = parts.next()?;
    let did = [RuleEffect::Shadow, RuleEffect::Deny].into_iter().find(|did| did.word() == word)?;
    Some((did, tenant, rule))
}

/// A rule, a condition on a fact, or a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfiguredRule {
    /// The path in the configuration, such as `permissions.send_money.rules.small_amounts`.
    pub rule: String,
    /// `rule`, `fact` or `limit`; `other` for a name that is no longer in the configuration.
    pub kind: &'static str,
    /// `enforce`, `ask` or `shadow`; `None` for `other`. In mode `ask`, people can approve a call against the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
    /// The rule as text for people; empty for `other`.
    pub says: String,
}

/// A rule with its counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleRow {
    /// The rule.
    #[serde(flatten)]
    pub here: ConfiguredRule,
    /// Calls that the rule in shadow mode would have stopped or delayed.
    pub shadow: u64,
    /// Calls that the rule denied, without delayed calls.
    pub denied: u64,
    /// The last day (UTC, days since the epoch) on which the rule affected a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_day: Option<i64>,
}

/// Rules with their counts.
#[derive(Debug, Clone, Default)]
pub struct RuleCounts {
    /// The rules.
    pub rules: Vec<RuleRow>,
    /// Number of calls that ended in the requested days.
    pub calls: u64,
}

const fn mode(mode: RuleMode) -> &'static str {
    match mode {
        RuleMode::Enforce => "enforce",
        RuleMode::Shadow => "shadow",
    }
}

/// Returns the rules, conditions on facts, and limits of a policy.
#[must_use]
pub fn rules_of(policy: &Policy) -> Vec<ConfiguredRule> {
    let rows = policy.permissions.matrix.iter().flat_map(|(tool, row)| of_row(tool, row));
    rows.chain(policy.limits.iter().map(of_limit)).collect()
}

fn of_row(tool: &str, row: &ToolGrant) -> Vec<ConfiguredRule> {
    let rule = |(at, rule): (usize, &Rule)| ConfiguredRule {
        rule: rule.place(tool, at),
        kind: "rule",
        mode: Some(if rule.otherwise_ask.is_some() && rule.mode.is_enforced() { "ask" } else { mode(rule.mode) }),
        says: match &rule.when {
            Some(when) => format!("when {when}: require {}", rule.require),
            None => format!("require {}", rule.require),
        },
    };
    let fact = |list: &'static str| {
        move |condition: &FactCondition| ConfiguredRule {
            rule: format!("permissions.{tool}.facts.{list}.{}", condition.fact.name),
            kind: "fact",
            mode: Some(mode(condition.mode)),
            says: format!("{list} the fact {}", condition.fact),
        }
    };
    let rules = row.rules.iter().enumerate().map(rule);
    let required = row.facts.require.iter().map(fact("require"));
    rules.chain(required).chain(row.facts.forbid.iter().map(fact("forbid"))).collect()
}

fn of_limit(limit: &Limit) -> ConfiguredRule {
    ConfiguredRule {
        rule: format!("limits.{}", limit.name),
        kind: "limit",
        mode: Some(match limit.mode {
            LimitMode::Enforce => "enforce",
            LimitMode::Shadow => "shadow",
        }),
        says: limit.to_string(),
    }
}

/// Returns the rules in `here` with their counts, of one tenant or of all tenants. Counted names that are not in
/// `here`, such as removed rules, follow at the end.
///
/// Entries of the audit log that are not [counted](crate::stats::count_on) yet are not included.
pub async fn rule_rows(
    shards: &[Store],
    here: Vec<ConfiguredRule>,
    tenant: Option<&TenantId>,
    (from_day, until_day): (i64, i64),
) -> Result<RuleCounts, StoreError> {
    let mut counts: BTreeMap<String, (u64, u64, i64)> = BTreeMap::new();
    let mut calls = 0_u64;
    let is_wanted = |of: &str| tenant.is_none_or(|tenant| tenant.as_str() == of);
    for store in shards.iter().filter(|store| tenant.is_none_or(|tenant| store.is_home_of(tenant))) {
        for day in from_day..=until_day {
            for (text, amount) in store.day_counts(day).await? {
                if call_of(&text).is_some_and(is_wanted) {
                    calls += amount;
                }
                let Some((did, _, rule)) = read(&text).filter(|(_, of, _)| is_wanted(of)) else { continue };
                let (shadow, denied, last) = counts.entry(rule.to_owned()).or_default();
                *if did == RuleEffect::Shadow { shadow } else { denied } += amount;
                *last = day.max(*last);
            }
        }
    }
    Ok(RuleCounts { rules: joined(here, counts), calls })
}

fn joined(here: Vec<ConfiguredRule>, mut counts: BTreeMap<String, (u64, u64, i64)>) -> Vec<RuleRow> {
    let row = |here: ConfiguredRule, found: Option<(u64, u64, i64)>| {
        let (shadow, denied, last) = found.unwrap_or_default();
        RuleRow { here, shadow, denied, last_day: found.map(|_| last) }
    };
    let known: BTreeSet<String> = here.iter().map(|one| rule_count_key(&one.rule)).collect();
    let others: Vec<(String, (u64, u64, i64))> =
        counts.iter().filter(|(rule, _)| !known.contains(*rule)).map(|(rule, found)| (rule.clone(), *found)).collect();
    let mut rows: Vec<RuleRow> = here
        .into_iter()
        .map(|one| {
            let found = counts.remove(&rule_count_key(&one.rule));
            row(one, found)
        })
        .collect();
    rows.extend(others.into_iter().map(|(rule, found)| {
        row(ConfiguredRule { rule, kind: "other", mode: None, says: String::new() }, Some(found))
    }));
    rows
}

fn rule_count_key(rule: &str) -> String {
    rule.replace(':', "/")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_rule_counter_field_parses_back_and_differs_from_call_counters() {
        for rule in ["limits.three", "permissions.mcp:a:b.rules.x", "permissions.send|money.rules[0]", "~"] {
            let text = field(RuleEffect::Shadow, "demo", rule);
            assert!(!text.contains(':'), "{text} would be a count of calls");
            assert_eq!(read(&text), Some((RuleEffect::Shadow, "demo", rule_count_key(rule).as_str())));
        }
        assert!(read("demo:kelly:x:ok").is_none() && read("since").is_none() && read("nod|demo|x").is_none());
    }

    #[test]
    fn counted_rules_missing_from_the_configuration_are_listed_last() {
        let here =
            ConfiguredRule { rule: "limits.three".into(), kind: "limit", mode: Some("shadow"), says: String::new() };
        let quiet = ConfiguredRule { rule: "limits.quiet".into(), ..here.clone() };
        let counts = [("limits.three".into(), (4, 0, 7)), ("permissions.echo".into(), (0, 2, 9))].into();
        let rows = joined(vec![here, quiet], counts);
        let messages: Vec<_> =
            rows.iter().map(|row| (row.here.rule.as_str(), row.shadow, row.denied, row.last_day)).collect();
        assert_eq!(
            messages,
            [("limits.three", 4, 0, Some(7)), ("limits.quiet", 0, 0, None), ("permissions.echo", 0, 2, Some(9))]
        );
    }
}
