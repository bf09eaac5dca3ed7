//! Rules, conditions of facts and limits with their modes, and how often each has denied a call, or would have: by the counts
//! that [statistics](crate::stats) make of the audit log. They stand beside those of calls in the counts of a day, in fields
//! that a build which does not know them takes for none of its own.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tickfleet_model::limit::LimitMode;
use tickfleet_model::policy::{FactCondition, Policy, Rule, RuleMode, ToolGrant};
use tickfleet_model::{Limit, Outcome, TenantId};
use tickfleet_store::{Store, StoreError};

/// What is between the parts of a field: nothing that a tenant's name may have.
const BETWEEN: char = '|';

/// What a rule did with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Did {
    /// It would have stopped it, or held it up, were it not in shadow.
    Shadow,
    /// It denied it.
    Deny,
}

impl Did {
    const fn word(self) -> &'static str {
        match self {
            Self::Shadow => "shadow",
            Self::Deny => "deny",
        }
    }
}

/// The field that counts what a rule did with calls of a tenant.
pub(crate) fn field(did: Did, tenant: &str, rule: &str) -> String {
    // With three colons it would be a count of calls.
    format!("{}{BETWEEN}{tenant}{BETWEEN}{}", did.word(), rule.replace(':', "/"))
}

/// The tenant whose calls a field counts, by how they ended; none of any other count.
pub(crate) fn call_of(field: &str) -> Option<&str> {
    let (tenant, rest) = field.split_once(':')?;
    let (_, what) = rest.split_once(':')?.1.rsplit_once(':')?;
    Outcome::ALL.into_iter().any(|outcome| outcome.as_str() == what).then_some(tenant)
}

/// What a field counts; none where it is no count of rules.
fn read(field: &str) -> Option<(Did, &str, &str)> {
    let mut parts = field.splitn(3, BETWEEN);
    let (word, tenant, rule) = (parts.next()?, parts.next()?, parts.next()?);
    let did = [Did::Shadow, Did::Deny].into_iter().find(|did| did.word() == word)?;
    Some((did, tenant, rule))
}

/// Something that may stop a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleHere {
    /// Where the configuration has it, as results and the audit log name it: `permissions.send_money.rules.small_amounts`.
    pub rule: String,
    /// `rule`, `fact`, `limit`; `other` for what is counted and stands in none of these.
    pub kind: &'static str,
    /// `enforce`, `ask` (people may let pass what it does not), or `shadow`; absent for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
    /// What it says, in words or as it is written.
    pub says: String,
}

/// The same, with what it did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleRow {
    /// The rule.
    #[serde(flatten)]
    pub here: RuleHere,
    /// Calls that it would have stopped or held up, were it not in shadow.
    pub shadow: u64,
    /// Calls that it has denied. What limits hold up is no denial, and not in it.
    pub denied: u64,
    /// The last day (UTC) with one of these, days since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_day: Option<i64>,
}

/// Rules with what they did.
#[derive(Debug, Clone, Default)]
pub struct RuleCounts {
    /// The rules.
    pub rules: Vec<RuleRow>,
    /// Calls that were counted.
    pub calls: u64,
}

const fn mode(mode: RuleMode) -> &'static str {
    match mode {
        RuleMode::Enforce => "enforce",
        RuleMode::Shadow => "shadow",
    }
}

/// The rules, conditions of facts and limits of a policy.
#[must_use]
pub fn rules_of(policy: &Policy) -> Vec<RuleHere> {
    let rows = policy.permissions.matrix.iter().flat_map(|(tool, row)| of_row(tool, row));
    rows.chain(policy.limits.iter().map(of_limit)).collect()
}

fn of_row(tool: &str, row: &ToolGrant) -> Vec<RuleHere> {
    let rule = |(at, rule): (usize, &Rule)| RuleHere {
        rule: rule.place(tool, at),
        kind: "rule",
        mode: Some(if rule.otherwise_ask.is_some() && rule.mode.is_enforced() { "ask" } else { mode(rule.mode) }),
        says: match &rule.when {
            Some(when) => format!("when {when}: require {}", rule.require),
            None => format!("require {}", rule.require),
        },
    };
    let fact = |list: &'static str| {
        move |condition: &FactCondition| RuleHere {
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

fn of_limit(limit: &Limit) -> RuleHere {
    RuleHere {
        rule: format!("limits.{}", limit.name),
        kind: "limit",
        mode: Some(match limit.mode {
            LimitMode::Enforce => "enforce",
            LimitMode::Shadow => "shadow",
        }),
        says: limit.to_string(),
    }
}

/// How often they did something in these days, of a tenant or of all, as far as the log is [counted](crate::stats::count_on);
/// behind them, what did something and is none of them: rows of the matrix, rules that are not in the configuration any more.
///
/// # Errors
/// [`StoreError`].
pub async fn rule_rows(
    shards: &[Store],
    here: Vec<RuleHere>,
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
                *if did == Did::Shadow { shadow } else { denied } += amount;
                *last = day.max(*last);
            }
        }
    }
    Ok(RuleCounts { rules: joined(here, counts), calls })
}

fn joined(here: Vec<RuleHere>, mut counts: BTreeMap<String, (u64, u64, i64)>) -> Vec<RuleRow> {
    let row = |here: RuleHere, found: Option<(u64, u64, i64)>| {
        let (shadow, denied, last) = found.unwrap_or_default();
        RuleRow { here, shadow, denied, last_day: found.map(|_| last) }
    };
    let known: BTreeSet<String> = here.iter().map(|one| counted_as(&one.rule)).collect();
    let others: Vec<(String, (u64, u64, i64))> =
        counts.iter().filter(|(rule, _)| !known.contains(*rule)).map(|(rule, found)| (rule.clone(), *found)).collect();
    let mut rows: Vec<RuleRow> = here
        .into_iter()
        .map(|one| {
            let found = counts.remove(&counted_as(&one.rule));
            row(one, found)
        })
        .collect();
    rows.extend(
        others
            .into_iter()
            .map(|(rule, found)| row(RuleHere { rule, kind: "other", mode: None, says: String::new() }, Some(found))),
    );
    rows
}

fn counted_as(rule: &str) -> String {
    rule.replace(':', "/")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_field_tells_what_it_was_made_of_and_is_no_count_of_calls() {
        for rule in ["limits.three", "permissions.mcp:a:b.rules.x", "permissions.send|money.rules[0]", "~"] {
            let text = field(Did::Shadow, "demo", rule);
            assert!(!text.contains(':'), "{text} would be a count of calls");
            assert_eq!(read(&text), Some((Did::Shadow, "demo", counted_as(rule).as_str())));
        }
        assert!(read("demo:kelly:x:ok").is_none() && read("since").is_none() && read("nod|demo|x").is_none());
    }

    #[test]
    fn what_is_counted_and_is_not_in_the_configuration_stands_behind_the_rest() {
        let here = RuleHere { rule: "limits.three".into(), kind: "limit", mode: Some("shadow"), says: String::new() };
        let quiet = RuleHere { rule: "limits.quiet".into(), ..here.clone() };
        let counts = [("limits.three".into(), (4, 0, 7)), ("permissions.echo".into(), (0, 2, 9))].into();
        let rows = joined(vec![here, quiet], counts);
        let told: Vec<_> =
            rows.iter().map(|row| (row.here.rule.as_str(), row.shadow, row.denied, row.last_day)).collect();
        assert_eq!(
            told,
            [("limits.three", 4, 0, Some(7)), ("limits.quiet", 0, 0, None), ("permissions.echo", 0, 2, Some(9))]
        );
    }
}
