use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::{Limit, LimitBound, LimitKey, LimitMatch, amount, fits};
use crate::digest::short_hash;
use crate::tool::{KnownTools, ToolTraits, at as value_at, canonical};
use crate::{AgentId, AgentPolicy, Call, Context, Effect, TaskId, TenantId, limits, policy::TenantPolicy};

#[derive(Debug, Clone, Copy)]
pub struct LimitCaller<'a> {
    pub tenant: &'a TenantId,
    pub owner: &'a TenantPolicy,
    pub agent: &'a AgentId,
    pub policy: &'a AgentPolicy,
    pub context: &'a Context,
    pub task: Option<&'a TaskId>,
    pub parallel_reads: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Debits {
    /// Index in the list of limits.
    pub limit: usize,
    /// Names and hashes, separated by colons.
    pub key: String,
    /// One per call. `None` if the limit sums an argument and the call has no valid amount.
    pub amounts: Vec<Option<u64>>,
}

#[must_use]
pub fn counters(limits: &[Limit], tools: &KnownTools, caller: &LimitCaller<'_>, calls: &[Call]) -> Vec<Debits> {
    // A call counts for the tool that it runs, regardless of the model's spelling.
    let meant: Vec<&str> = calls.iter().map(|call| tools.meant(&call.tool)).collect();
    let mut found: BTreeMap<(usize, String), Vec<Option<u64>>> = BTreeMap::new();
    // Argument values stay text, so numbers are compared with all their digits.
    let mut arguments: Vec<Option<Option<&RawValue>>> = vec![None; calls.len()];
    for (number, limit) in limits.iter().enumerate() {
        if limit.bound.is_of_models() || !counts(limit, caller) {
            continue;
        }
        let reads = matches!(limit.bound, LimitBound::Sum { .. })
            || limit.per.iter().any(|key| matches!(key, LimitKey::Argument(_)));
        for (at, tool) in
            meant.iter().copied().enumerate().filter(|(_, tool)| matches_tool(&limit.matches, tools, tool))
        {
            let parsed = &mut arguments[at];
            if reads && parsed.is_none() {
                *parsed = Some(serde_json::from_str(&calls[at].arguments).ok());
            }
            let parsed = parsed.flatten();
            let amount = match &limit.bound {
                LimitBound::Sum { argument, .. } => {
                    let value = parsed.and_then(|arguments| value_at(arguments, argument));
                    value.and_then(|value| amount::of(&serde_json::from_str(value.get()).ok()?))
                }
                _ => Some(1),
            };
            let category = tools.traits(tool).map_or("", |traits| &traits.category);
            let amounts = found.entry((number, key(limit, caller, tool, category, parsed)));
            amounts.or_insert_with(|| vec![Some(0); calls.len()])[at] = amount;
        }
    }
    let debits = found.into_iter().map(|((limit, key), mut amounts)| {
        if limits[limit].bound.holds_permits() {
            share_permits(&mut amounts, |at| caller.parallel_reads && may_read(tools, meant[at]));
        }
        Debits { limit, key, amounts }
    });
    debits.collect()
}

fn counts(limit: &Limit, caller: &LimitCaller<'_>) -> bool {
    matches_caller(&limit.matches, caller) && (caller.task.is_some() || !limit.per.contains(&LimitKey::Task))
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelAmounts {
    /// Request and response together.
    pub tokens: u64,
    /// In millionths of the currency.
    pub money: u64,
}

/// Each [`Debits`] has one amount.
#[must_use]
pub fn model_counters(limits: &[Limit], caller: &LimitCaller<'_>, at_most: ModelAmounts) -> Vec<Debits> {
    // Limits on tools and arguments do not apply to requests to models.
    let of = |(number, limit): (usize, &Limit)| {
        let amount = match limit.bound {
            LimitBound::Tokens(_) => at_most.tokens,
            LimitBound::Money(_) => at_most.money,
            _ => return None,
        };
        let key = key(limit, caller, "", "", None);
        counts(limit, caller).then(|| Debits { limit: number, key, amounts: vec![Some(amount)] })
    };
    limits.iter().enumerate().filter_map(of).collect()
}

/// Calls that run one after another share one permit. A call that may run in parallel needs its own permit.
fn share_permits(amounts: &mut [Option<u64>], runs_in_parallel: impl Fn(usize) -> bool) {
    let mut has_permit = false;
    for (at, amount) in amounts.iter_mut().enumerate().filter(|(_, amount)| **amount != Some(0)) {
        if !runs_in_parallel(at) {
            *amount = Some(u64::from(!has_permit));
            has_permit = true;
        }
    }
}

/// Also true without a declared effect: the tool may be a worker's own `read` tool.
fn may_read(tools: &KnownTools, tool: &str) -> bool {
    tools.traits(tool).and_then(|traits| traits.effect).is_none_or(|effect| effect == Effect::Read)
}

impl LimitMatch {
    #[must_use]
    pub fn fits_agent(&self, agent: &AgentId, policy: &AgentPolicy) -> bool {
        (self.agents.is_empty() || self.agents.iter().any(|pattern| fits(pattern, agent.as_str())))
            && (self.roles.is_empty() || self.roles.iter().any(|role| policy.roles.contains(role)))
    }

    #[must_use]
    pub fn fits_tenant(&self, owner: &TenantPolicy) -> bool {
        self.plans.is_empty() || self.plans.contains(&owner.plan)
    }
}

fn matches_caller(wanted: &LimitMatch, caller: &LimitCaller<'_>) -> bool {
    wanted.fits_agent(caller.agent, caller.policy) && wanted.fits_tenant(caller.owner)
}

fn matches_tool(wanted: &LimitMatch, tools: &KnownTools, tool: &str) -> bool {
    if !wanted.tools.is_empty() && !wanted.tools.iter().any(|pattern| fits(pattern, tool)) {
        return false;
    }
    if wanted.effects.is_empty() && wanted.categories.is_empty() {
        return true;
    }
    let undeclared = ToolTraits::default();
    let traits = tools.traits(tool).unwrap_or(&undeclared);
    (wanted.effects.is_empty() || wanted.effects.contains(&traits.effect.unwrap_or_default()))
        && (wanted.categories.is_empty() || wanted.categories.contains(&traits.category))
}

/// Replaces a missing user, session, argument or category in a key.
const UNSPECIFIED: &str = "-";

/// Values from producers and models are hashed, because they may be private.
fn key(limit: &Limit, caller: &LimitCaller<'_>, called: &str, category: &str, arguments: Option<&RawValue>) -> String {
    let of_tenant = limit.is_of_tenants().then(|| caller.tenant.to_string());
    let parts = limit.per.iter().filter(|key| **key != LimitKey::Tenant).map(|key| match key {
        LimitKey::Tenant => String::new(),
        LimitKey::Agent => caller.agent.to_string(),
        LimitKey::User => context_key(caller, caller.context.user_context.as_deref(), &["user_id", "id"]),
        LimitKey::Session => context_key(caller, caller.context.session_data.as_deref(), &["session_id", "id"]),
        LimitKey::Task => caller.task.map(ToString::to_string).unwrap_or_default(),
        LimitKey::Tool => tool(called),
        LimitKey::Category if category.is_empty() => UNSPECIFIED.to_owned(),
        LimitKey::Category => tool(category),
        LimitKey::Argument(pointer) => one_text(caller, arguments.and_then(|arguments| value_at(arguments, pointer))),
    });
    of_tenant.into_iter().chain(parts).collect::<Vec<_>>().join(":")
}

/// All keys beyond the limit's maximum share this counter.
pub const OTHERS: &str = "~";

/// `None` if calls of several tenants can debit the counter.
#[must_use]
pub fn tenant_of(limit: &Limit, counter: &str) -> Option<TenantId> {
    let first = counter.split(':').next().filter(|_| limit.is_of_tenants() && counter != OTHERS)?;
    TenantId::new(first).ok()
}

#[must_use]
pub fn may_debit(limit: &Limit, counter: &str, tenant: &TenantId, agent: Option<&AgentId>) -> bool {
    if !limit.is_of_tenants() || counter == OTHERS {
        return true;
    }
    let mut parts = counter.split(':');
    if parts.next() != Some(tenant.as_str()) {
        return false;
    }
    // In the keys of [`key`], the agent follows directly after the tenant.
    let agent = agent.filter(|_| limit.per.contains(&LimitKey::Agent));
    agent.is_none_or(|agent| parts.next() == Some(agent.as_str()))
}

/// A model may write any text as a tool's name. A text that cannot be a tool's name is hashed.
fn tool(name: &str) -> String {
    let is_name = name.len() <= limits::NAME_BYTES_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    if is_name { name.to_owned() } else { short_hash("", name) }
}

/// Returns the hash of the first of `names` in the context, or of a context that is a text. Otherwise returns `UNSPECIFIED`.
fn context_key(caller: &LimitCaller<'_>, context: Option<&RawValue>, names: &[&str]) -> String {
    let Some(context) = context else { return UNSPECIFIED.to_owned() };
    let named = names.iter().find_map(|name| value_at(context, &format!("/{name}")));
    one_text(caller, named.or_else(|| Some(context).filter(|context| context.get().starts_with('"'))))
}

/// Returns `UNSPECIFIED` without a value. Equal values share a counter: `7`, `7.0` and `7e0` are the same customer.
fn one_text(caller: &LimitCaller<'_>, value: Option<&RawValue>) -> String {
    let text = value.and_then(canonical);
    text.map_or_else(|| UNSPECIFIED.to_owned(), |text| short_hash(caller.tenant.as_str(), &text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::BTreeSet;

    use super::*;
    use crate::limit::{LimitMode, LimitWindow, OnReach};

    fn limit(tools: &[&str], per: &[LimitKey], bound: LimitBound) -> Limit {
        Limit {
            name: "x".into(),
            matches: LimitMatch { tools: tools.iter().map(ToString::to_string).collect(), ..LimitMatch::default() },
            per: per.iter().cloned().collect::<BTreeSet<_>>(),
            bound,
            every: LimitWindow::Day,
            on_reach: OnReach::Wait,
            mode: LimitMode::Enforce,
            keys_max: 9,
        }
    }

    fn call(tool: &str, arguments: &str) -> Call {
        Call { provider_id: None, tool: tool.into(), arguments: arguments.into() }
    }

    fn found(limits: &[Limit], context: &Context, calls: &[Call]) -> Vec<(String, Vec<Option<u64>>)> {
        let tenant = TenantId::new("acme").unwrap();
        let agent = AgentId::new("kelly").unwrap();
        let owner = TenantPolicy::default();
        let policy = AgentPolicy::default();
        let caller = LimitCaller {
            tenant: &tenant,
            owner: &owner,
            agent: &agent,
            policy: &policy,
            context,
            task: None,
            parallel_reads: true,
        };
        let traits = |effect, category: &str| ToolTraits { effect: Some(effect), category: category.into() };
        let read = traits(Effect::Read, "general");
        let write = traits(Effect::Once, "messaging");
        let tools = [("search", read), ("send_mail", write.clone()), ("send_sms", write.clone()), ("crm.pay", write)];
        let tools = tools.into_iter().map(|(name, traits)| (name.to_owned(), traits)).collect();
        let spellings = [("crm_x2E_pay", "crm.pay"), ("crm_x2E_of_a_binary", "crm.of_a_binary")];
        let spellings = spellings.map(|(spelling, name)| (spelling.to_owned(), name.to_owned()));
        let tools = KnownTools::new(tools, spellings.into());
        counters(limits, &tools, &caller, calls).into_iter().map(|d| (d.key, d.amounts)).collect()
    }

    #[test]
    fn tools_of_one_category_share_a_counter() {
        let limits = [limit(&[], &[LimitKey::Category], LimitBound::Calls(9))];
        let calls = ["send_mail", "search", "send_sms", "of_a_binary"].map(|tool| call(tool, "{}"));
        let found = found(&limits, &Context::default(), &calls);
        let expected = [("-", [0, 0, 0, 1]), ("general", [0, 1, 0, 0]), ("messaging", [1, 0, 1, 0])];
        assert_eq!(found, expected.map(|(key, amounts)| (key.to_owned(), amounts.map(Some).to_vec())));
    }

    #[test]
    fn known_spellings_of_a_tool_debit_its_counter() {
        let of_category = LimitMatch { categories: ["messaging".to_owned()].into(), ..LimitMatch::default() };
        let limits = [
            limit(&["crm.*"], &[LimitKey::Tool], LimitBound::Calls(9)),
            Limit { matches: of_category, ..limit(&[], &[], LimitBound::Calls(9)) },
        ];
        let calls = ["crm.pay", "crm_x2E_pay", "crm_x2E_of_a_binary", "_x63_rm.pay"].map(|tool| call(tool, "{}"));
        let found = found(&limits, &Context::default(), &calls);
        let expected = [("crm.of_a_binary", [0, 0, 1, 0]), ("crm.pay", [1, 1, 0, 0]), ("", [1, 1, 0, 0])];
        assert_eq!(found, expected.map(|(key, amounts)| (key.to_owned(), amounts.map(Some).to_vec())));
    }

    #[test]
    fn equal_argument_values_share_one_counter() {
        let limits = [limit(&[], &[LimitKey::Argument("/customer".into())], LimitBound::Calls(9))];
        let counter = |customer: &str| {
            let calls = [call("pay", &format!(r#"{{"customer":{customer}}}"#))];
            found(&limits, &Context::default(), &calls).remove(0).0
        };
        for (one, same) in [
            ("7", &["7.0", "7e0", "0.7e1", "70E-1"][..]),
            ("0", &["-0.0", "0e5"]),
            ("7.5", &["75e-1", "7.50"]),
            ("10000000000000000000", &["1e19"]),
            (r#"{"a":1,"b":"x"}"#, &[r#"{ "b": "\u0078", "a": 1.0 }"#]),
            ("[7]", &["[7.0]"]),
        ] {
            same.iter().for_each(|same| assert_eq!(counter(same), counter(one), "{same}"));
        }
        for other in ["8", "\"7\"", "[7]", "-7", "7.1", "null"] {
            assert_ne!(counter(other), counter("7"), "{other}");
        }
        let one = "123456789012345678901234567890";
        let other = "123456789012345678901234567891";
        assert_ne!(counter(one), counter(other), "beyond what a double tells apart");
        assert_eq!(counter(r#"7,"total":1e400"#), counter("7"), "another number hides no argument");
    }

    #[test]
    fn sequential_calls_share_one_concurrency_slot() {
        let limits = [limit(&[], &[], LimitBound::Concurrent(9)), limit(&["s*"], &[], LimitBound::Concurrent(9))];
        let calls = ["send_mail", "search", "search", "send_sms", "of_a_binary"].map(|tool| call(tool, "{}"));
        let found = found(&limits, &Context::default(), &calls);
        assert_eq!(found[0].1, [1, 1, 1, 0, 1].map(Some));
        assert_eq!(found[1].1, [1, 1, 1, 0, 0].map(Some));
    }

    #[test]
    fn only_model_requests_debit_token_and_money_budgets() {
        let per = [LimitKey::Agent];
        let limits = [
            limit(&[], &per, LimitBound::Tokens(9)),
            limit(&[], &[], LimitBound::Calls(9)),
            limit(&[], &[LimitKey::Task], LimitBound::Money(9)),
            limit(&[], &[], LimitBound::Money(9)),
        ];
        let calls = found(&limits, &Context::default(), &[call("search", "{}")]);
        assert_eq!(calls, [(String::new(), vec![Some(1)])]);
        let tenant = TenantId::new("acme").unwrap();
        let agent = AgentId::new("kelly").unwrap();
        let owner = TenantPolicy::default();
        let policy = AgentPolicy::default();
        let context = Context::default();
        let tenant = &tenant;
        let agent = &agent;
        let owner = &owner;
        let policy = &policy;
        let context = &context;
        let caller = LimitCaller { tenant, owner, agent, policy, context, task: None, parallel_reads: false };
        let found = model_counters(&limits, &caller, ModelAmounts { tokens: 700, money: 12 });
        let of = |limit, key: &str, amount| Debits { limit, key: key.into(), amounts: vec![Some(amount)] };
        assert_eq!(found, [of(0, "acme:kelly", 700), of(3, "", 12)], "without a task, none of a task's is debited");
    }

    #[test]
    fn calls_debit_only_matching_counters() {
        let limits =
            [limit(&["send_*"], &[LimitKey::Agent], LimitBound::Calls(5)), limit(&[], &[], LimitBound::Calls(9))];
        let calls = [call("send_mail", "{}"), call("search", "{}"), call("send_sms", "{}")];
        let expected = [("acme:kelly".to_owned(), vec![Some(1), Some(0), Some(1)]), (String::new(), vec![Some(1); 3])];
        assert_eq!(found(&limits, &Context::default(), &calls), expected);
    }

    #[test]
    fn counters_per_argument_value_do_not_reveal_the_value() {
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
    fn a_counter_key_identifies_its_tenant_and_agent() {
        let acme = TenantId::new("acme").unwrap();
        let bolt = TenantId::new("bolt").unwrap();
        let kelly = AgentId::new("kelly").unwrap();
        let fran = AgentId::new("fran").unwrap();
        let calls = [call("pay", r#"{"to":"x"}"#)];
        let per = [LimitKey::Tenant, LimitKey::Agent, LimitKey::Tool, LimitKey::Argument("/to".into())];
        let of_agents = limit(&[], &per, LimitBound::Calls(1));
        let counter = found(std::slice::from_ref(&of_agents), &Context::default(), &calls).remove(0).0;
        assert_eq!(tenant_of(&of_agents, &counter), Some(acme.clone()));
        assert!(may_debit(&of_agents, &counter, &acme, None) && may_debit(&of_agents, &counter, &acme, Some(&kelly)));
        assert!(!may_debit(&of_agents, &counter, &bolt, None) && !may_debit(&of_agents, &counter, &acme, Some(&fran)));
        let of_users = limit(&[], &[LimitKey::User], LimitBound::Calls(1));
        assert!(may_debit(&of_users, "acme:-", &acme, Some(&fran)), "any agent's calls may be for that user");
        for (limit, counter) in [(&limit(&[], &[LimitKey::Tool], LimitBound::Calls(1)), "pay"), (&of_users, OTHERS)] {
            assert_eq!((tenant_of(limit, counter), may_debit(limit, counter, &bolt, None)), (None, true));
        }
    }

    #[test]
    fn users_are_distinguished_by_the_user_context() {
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
