//! The counters that the calls of a turn debit.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Limit, LimitBound, LimitKey, LimitMatch, amount, fits};
use crate::digest::short_hash;
use crate::tool::ToolTraits;
use crate::{AgentId, AgentPolicy, Call, Context, TaskId, TenantId, limits, policy::TenantPolicy};

/// Who makes the calls.
#[derive(Debug, Clone, Copy)]
pub struct Maker<'a> {
    /// The tenant.
    pub tenant: &'a TenantId,
    /// Its declaration.
    pub owner: &'a TenantPolicy,
    /// The agent.
    pub agent: &'a AgentId,
    /// Its declaration.
    pub policy: &'a AgentPolicy,
    /// The context of the turn.
    pub context: &'a Context,
    /// The task that the turn is made for.
    pub task: Option<&'a TaskId>,
}

/// What each of a turn's calls debits of one counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Debits {
    /// The limit, by its place in the list.
    pub limit: usize,
    /// The counter among those of the limit: names and hashes, separated by colons.
    pub key: String,
    /// Per call; none where the call is to be summed up and has no amount.
    pub amounts: Vec<Option<u64>>,
}

/// The counters of all limits that any of these calls debits, in the order of the limits.
#[must_use]
pub fn counters(
    limits: &[Limit],
    tools: &BTreeMap<String, ToolTraits>,
    maker: &Maker<'_>,
    calls: &[Call],
) -> Vec<Debits> {
    let mut found: BTreeMap<(usize, String), Vec<Option<u64>>> = BTreeMap::new();
    let mut arguments: Vec<Option<Value>> = vec![None; calls.len()];
    for (number, limit) in limits.iter().enumerate() {
        if !matches_maker(&limit.matches, maker) || limit.per.contains(&LimitKey::Task) && maker.task.is_none() {
            continue;
        }
        let reads = matches!(limit.bound, LimitBound::Sum { .. })
            || limit.per.iter().any(|key| matches!(key, LimitKey::Argument(_)));
        for (at, call) in calls.iter().enumerate().filter(|(_, call)| matches_tool(&limit.matches, tools, &call.tool)) {
            let parsed = &mut arguments[at];
            if reads && parsed.is_none() {
                // What is no JSON has no arguments.
                *parsed = Some(serde_json::from_str(&call.arguments).unwrap_or_default());
            }
            let parsed = parsed.as_ref().unwrap_or(&Value::Null);
            let amount = match &limit.bound {
                LimitBound::Calls(_) => Some(1),
                LimitBound::Sum { argument, .. } => parsed.pointer(argument).and_then(amount::of),
            };
            let amounts = found.entry((number, key(limit, maker, call, parsed)));
            amounts.or_insert_with(|| vec![Some(0); calls.len()])[at] = amount;
        }
    }
    found.into_iter().map(|((limit, key), amounts)| Debits { limit, key, amounts }).collect()
}

fn matches_maker(wanted: &LimitMatch, maker: &Maker<'_>) -> bool {
    let any = |patterns: &[String], name: &str| patterns.is_empty() || patterns.iter().any(|p| fits(p, name));
    any(&wanted.agents, maker.agent.as_str())
        && (wanted.roles.is_empty() || wanted.roles.iter().any(|role| maker.policy.roles.contains(role)))
        && (wanted.plans.is_empty() || wanted.plans.contains(&maker.owner.plan))
}

fn matches_tool(wanted: &LimitMatch, tools: &BTreeMap<String, ToolTraits>, tool: &str) -> bool {
    if !wanted.tools.is_empty() && !wanted.tools.iter().any(|pattern| fits(pattern, tool)) {
        return false;
    }
    if wanted.effects.is_empty() && wanted.categories.is_empty() {
        return true;
    }
    let undeclared = ToolTraits::default();
    let traits = tools.get(tool).unwrap_or(&undeclared);
    (wanted.effects.is_empty() || wanted.effects.contains(&traits.effect))
        && (wanted.categories.is_empty() || wanted.categories.contains(&traits.category))
}

/// Stands for a user, a session or an argument that a call does not say: all of a tenant's share one counter.
const UNSAID: &str = "-";

/// The counter that a call debits. What others wrote is hashed: it is no name, and may be private.
fn key(limit: &Limit, maker: &Maker<'_>, call: &Call, arguments: &Value) -> String {
    let of_tenant = limit.is_of_tenants().then(|| maker.tenant.to_string());
    let parts = limit.per.iter().filter(|key| **key != LimitKey::Tenant).map(|key| match key {
        LimitKey::Tenant => String::new(),
        LimitKey::Agent => maker.agent.to_string(),
        LimitKey::User => said(maker, maker.context.user_context.as_deref(), &["user_id", "id"]),
        LimitKey::Session => said(maker, maker.context.session_data.as_deref(), &["session_id", "id"]),
        LimitKey::Task => maker.task.map(ToString::to_string).unwrap_or_default(),
        LimitKey::Tool => tool(&call.tool),
        LimitKey::Argument(pointer) => {
            let said = arguments.pointer(pointer);
            said.map_or_else(|| UNSAID.to_owned(), |value| short_hash(maker.tenant.as_str(), &value.to_string()))
        }
    });
    of_tenant.into_iter().chain(parts).collect::<Vec<_>>().join(":")
}

/// A model may call what it likes: a name that no tool can have is hashed too.
fn tool(name: &str) -> String {
    let is_name = name.len() <= limits::NAME_BYTES_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    if is_name { name.to_owned() } else { short_hash("", name) }
}

/// What a context says under one of these names, or where it is a text itself.
fn said(maker: &Maker<'_>, context: Option<&serde_json::value::RawValue>, names: &[&str]) -> String {
    let Some(context) = context.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok()) else {
        return UNSAID.to_owned();
    };
    let named = names.iter().find_map(|name| context.get(name));
    let said = named.or_else(|| Some(&context).filter(|context| context.is_string()));
    said.map_or_else(|| UNSAID.to_owned(), |value| short_hash(maker.tenant.as_str(), &value.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::BTreeSet;

    use super::*;
    use crate::limit::{Every, LimitMode, OnReach};

    fn limit(tools: &[&str], per: &[LimitKey], bound: LimitBound) -> Limit {
        Limit {
            name: "x".into(),
            matches: LimitMatch { tools: tools.iter().map(ToString::to_string).collect(), ..LimitMatch::default() },
            per: per.iter().cloned().collect::<BTreeSet<_>>(),
            bound,
            every: Every::Day,
            on_reach: OnReach::Wait,
            mode: LimitMode::Enforce,
            keys_max: 9,
        }
    }

    fn call(tool: &str, arguments: &str) -> Call {
        Call { provider_id: None, tool: tool.into(), arguments: arguments.into() }
    }

    fn found(limits: &[Limit], context: &Context, calls: &[Call]) -> Vec<(String, Vec<Option<u64>>)> {
        let (tenant, agent) = (TenantId::new("acme").unwrap(), AgentId::new("kelly").unwrap());
        let (owner, policy) = (TenantPolicy::default(), AgentPolicy::default());
        let maker = Maker { tenant: &tenant, owner: &owner, agent: &agent, policy: &policy, context, task: None };
        counters(limits, &BTreeMap::new(), &maker, calls).into_iter().map(|d| (d.key, d.amounts)).collect()
    }

    #[test]
    fn calls_debit_the_counters_that_they_fit() {
        let limits =
            [limit(&["send_*"], &[LimitKey::Agent], LimitBound::Calls(5)), limit(&[], &[], LimitBound::Calls(9))];
        let calls = [call("send_mail", "{}"), call("search", "{}"), call("send_sms", "{}")];
        let expected = [("acme:kelly".to_owned(), vec![Some(1), Some(0), Some(1)]), (String::new(), vec![Some(1); 3])];
        assert_eq!(found(&limits, &Context::default(), &calls), expected);
    }

    #[test]
    fn values_of_arguments_have_counters_of_their_own_and_are_never_shown() {
        let per = [LimitKey::Argument("/to".into())];
        let limits = [limit(&[], &per, LimitBound::Sum { argument: "/amount".into(), max: 9 })];
        let calls = [
            call("pay", r#"{"to":"a@example.org","amount":1.5}"#),
            call("pay", r#"{"amount":2}"#),
            call("pay", r#"{"to":"a@example.org","amount":"much"}"#),
            call("pay", "no JSON"),
        ];
        let found = found(&limits, &Context::default(), &calls);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], ("acme:-".to_owned(), vec![Some(0), Some(2_000_000), Some(0), None]));
        assert_eq!(found[1].1, [Some(1_500_000), Some(0), None, Some(0)]);
        assert!(!found[1].0.contains("example"), "{found:?}");
    }

    #[test]
    fn users_are_told_apart_by_what_the_context_says() {
        let limits = [limit(&[], &[LimitKey::User], LimitBound::Calls(1))];
        let of = |json: &str| {
            let raw = serde_json::value::RawValue::from_string(json.to_owned()).unwrap();
            let context = Context { user_context: Some(raw), ..Context::default() };
            found(&limits, &context, &[call("x", "{}")])[0].0.clone()
        };
        assert_eq!(of(r#"{"user_id":"u1","id":"x"}"#), of(r#"{"user_id":"u1"}"#));
        assert_eq!(of(r#"{"id":"u1"}"#), of(r#""u1""#));
        assert_ne!(of(r#"{"id":"u1"}"#), of(r#"{"id":"u2"}"#));
        assert_eq!(of("{}"), "acme:-");
    }
}
