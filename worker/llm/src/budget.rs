//! Budgets of tokens and money. The maximum that a request can use is debited before the request.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tickfleet_core::task::spend::{
    BudgetDebit, ReportedModelUse, Reserve, ReserveResult, Shortage, ShortageAction, Unreserve,
};
use tickfleet_core::turn::limit::ResolvedLimit;
use tickfleet_core::turn::limit::evaluate::WINDOW_CHECK_MS;
use tickfleet_core::turn::state::BudgetUnit;
use tickfleet_core::usage::{Day, ModelUse};
use tickfleet_core::{ConditionalDebit, EntryId, Query, Value, keys};
use tickfleet_engine::active_policy::ActivePolicy;
use tickfleet_engine::resolved_limits::{counter_of, known_zone};
use tickfleet_engine::time::rfc3339;
use tickfleet_model::day::day_bounds;
use tickfleet_model::limit::counters::{Debits, LimitCaller, ModelAmounts, model_counters};
use tickfleet_model::limit::{LimitBound, OnReach, amount};
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::{Limit, limits};
use tickfleet_models::{ChatMessage, ModelAnswer, ModelRequest, TokenUsage};
use tickfleet_ops::metrics::LimitAction;
use tickfleet_store::TurnName;
use tickfleet_tools::{Awaited, CallContext, ToolFailure};

use crate::LlmAgent;
use crate::failure::{stale, store_unavailable, transient};

/// The minimum number of bytes per token, averaged over a request.
const BYTES_PER_TOKEN: usize = 3;
/// Providers add these tokens to each message or tool for its format.
const TOKENS_PER_PART: u64 = 16;

pub(crate) struct Budgets<'a> {
    agent: &'a LlmAgent,
    context: &'a CallContext,
    name: &'a TurnName,
    active: Arc<ActivePolicy>,
    /// In ms of shard time.
    pub(crate) now_ms: i64,
}

pub(crate) fn tokens_at_most(request: &ModelRequest) -> (u64, u64) {
    let message = |message: &ChatMessage| match message {
        ChatMessage::User(text) => text.len(),
        ChatMessage::Model { text, calls } => {
            text.len() + calls.iter().map(|call| call.tool.len() + call.arguments.len() + call.id.len()).sum::<usize>()
        }
        ChatMessage::Result { id, content, .. } => id.len() + content.len(),
    };
    let tools = request.tools.iter();
    let tools = tools.map(|tool| tool.name.len() + tool.description.len() + tool.parameters.to_string().len());
    let bytes = request.system.len() + request.messages.iter().map(message).sum::<usize>() + tools.sum::<usize>();
    let parts = request.messages.len() + request.tools.len() + 1;
    let input = bytes.div_ceil(BYTES_PER_TOKEN) as u64 + parts as u64 * TOKENS_PER_PART;
    (input, u64::from(request.tokens_max))
}

/// If the provider reports no usage, an estimate replaces it, so that the answer is not free.
pub(crate) fn used(request: &ModelRequest, answer: &ModelAnswer) -> TokenUsage {
    let TokenUsage { input, output } = answer.usage;
    if (input, output) == (0, 0) {
        let calls = answer.calls.iter().map(|call| call.tool.len() + call.arguments.len()).sum::<usize>();
        let output = (answer.text.len() + calls).div_ceil(BYTES_PER_TOKEN) as u64;
        return TokenUsage { input: tokens_at_most(request).0, output };
    }
    TokenUsage { input: input.min(limits::ANSWER_TOKENS_MAX), output: output.min(limits::ANSWER_TOKENS_MAX) }
}

impl<'a> Budgets<'a> {
    pub(crate) async fn now(
        agent: &'a LlmAgent,
        context: &'a CallContext,
        name: &'a TurnName,
    ) -> Result<Self, ToolFailure> {
        let now_ms = agent.store.refresh_state().await.map_err(store_unavailable)?.now_ms;
        Ok(Self { agent, context, name, active: agent.active.load(), now_ms })
    }

    /// Returns false if no limit counts the request. The error is [`ToolFailure::Waits`] if the budget may permit the
    /// request later.
    pub(crate) async fn reserve(
        &mut self,
        number: &str,
        model: &str,
        request: &ModelRequest,
    ) -> Result<bool, ToolFailure> {
        let (input, output) = tokens_at_most(request);
        let at_most = ModelAmounts { tokens: input + output, money: self.agent.set.cost(model, input, output) };
        // If a window ends during an attempt, the next attempt uses the next window.
        for _ in 0..3 {
            let debits = self.debits(at_most)?;
            if debits.is_empty() {
                return Ok(false);
            }
            let name = self.name.clone();
            let request = number.to_owned();
            let reserve = Reserve { name, entry: self.entry(), request, debits };
            let receipt = self.agent.store.decide(reserve).await.map_err(|error| store_unavailable(error.into()))?;
            match receipt.result {
                ReserveResult::Ok(_) => {
                    let shadowed = receipt.committed.map(|committed| committed.shadowed).unwrap_or_default();
                    let shadowed: Vec<String> = shadowed.iter().map(|counter| counter.limit.to_string()).collect();
                    self.agent.metrics.limits_reached(&shadowed, LimitAction::Shadow);
                    return Ok(true);
                }
                ReserveResult::Already(_) => return Ok(true),
                ReserveResult::Short(shortage) => return Err(self.shortage_failure(&shortage).await?),
                ReserveResult::Stale => return Err(stale()),
                ReserveResult::WindowOver => {
                    self.now_ms = self.agent.store.refresh_state().await.map_err(store_unavailable)?.now_ms
                }
            }
        }
        Err(transient("The day for which budgets are counted has just ended.".to_owned(), None))
    }

    /// Only for a request that was certainly not carried out.
    pub(crate) async fn return_debits(&self, number: &str) -> Result<(), ToolFailure> {
        let unreserve = Unreserve { name: self.name.clone(), entry: self.entry(), request: number.to_owned() };
        self.agent.store.decide(unreserve).await.map_err(|error| store_unavailable(error.into()))?;
        Ok(())
    }

    fn entry(&self) -> EntryId {
        EntryId::new(&self.context.fence)
    }

    /// The step that stores the response also counts this usage.
    pub(crate) fn spent(&self, number: &str, input: u64, output: u64, cost: u64) -> ReportedModelUse {
        let policy = &self.active.policy;
        let of_tenant = policy.tenants.get(&self.context.tenant).map(|owner| policy.time_zone(owner));
        let (start_ms, end_ms) = day_bounds(self.now_ms, known_zone(of_tenant.unwrap_or(&policy.defaults.time_zone)));
        let used = ModelUse {
            request: number.to_owned(),
            tokens_in: input.min(limits::ANSWER_TOKENS_MAX),
            tokens_out: output.min(limits::ANSWER_TOKENS_MAX),
            cost: cost.min(limits::ANSWER_COST_MAX),
        };
        ReportedModelUse { used, day: Day { start_ms, end_ms } }
    }

    fn debits(&self, at_most: ModelAmounts) -> Result<Vec<BudgetDebit>, ToolFailure> {
        let policy = &self.active.policy;
        let tenant = &self.context.tenant;
        let agent = &self.context.agent;
        if !policy.limits.iter().any(|limit| limit.bound.is_of_models()) {
            return Ok(Vec::new());
        }
        let unknown = |_| transient(format!("Tenant {tenant} and its agent {agent} are not known here."), None);
        let (owner, of_agent) = policy.look_up(tenant, agent).map_err(unknown)?;
        let task = self.context.task.as_ref().map(|(task, _)| task);
        let context = &*self.context.context;
        let caller = LimitCaller { tenant, owner, agent, policy: of_agent, context, task, parallel_reads: false };
        let found = model_counters(&policy.limits, &caller, at_most);
        Ok(found.iter().map(|debits| self.debit(owner, debits)).collect())
    }

    fn debit(&self, owner: &TenantPolicy, debits: &Debits) -> BudgetDebit {
        let policy = &self.active.policy;
        let store = &self.agent.store;
        let limit = &policy.limits[debits.limit];
        let resolved = ResolvedLimit::configured(policy, owner, limit, (store.shard(), store.options().shards));
        let (counter, stagger_ms) = counter_of(&resolved, &debits.key);
        let debit = ConditionalDebit {
            counter,
            amount: debits.amounts.first().copied().flatten().unwrap_or(0),
            max: resolved.max,
            window: resolved.window.at(self.now_ms, stagger_ms),
            behind_queue: false,
            shadow: resolved.is_shadow(),
            counters_max: resolved.counters_max,
        };
        let unit = if matches!(limit.bound, LimitBound::Tokens(_)) { BudgetUnit::Tokens } else { BudgetUnit::Money };
        BudgetDebit { debit, unit, waits: resolved.on_reach == OnReach::Wait }
    }

    async fn shortage_failure(&self, shortage: &Shortage) -> Result<ToolFailure, ToolFailure> {
        let Shortage { counter, used, amount, ends_ms, action } = shortage;
        let name = &*counter.limit;
        if *action == ShortageAction::Wait {
            let set = keys::budget_queue(counter);
            let member = self.name.to_string().into();
            let score = self.agent.store.query(Query::Score(set, member)).await.map_err(store_unavailable)?;
            if score == Value::Score(None) {
                self.agent.metrics.limit_reached(name, LimitAction::Wait, 1);
            }
            // Checks before the window ends, because an operator can raise the limit.
            let look_ms = if *ends_ms > 0 { *ends_ms - self.now_ms } else { WINDOW_CHECK_MS };
            let at_most = Duration::from_millis(look_ms.clamp(1, WINDOW_CHECK_MS).unsigned_abs());
            let awaits = Awaited::Budget { limit: name.to_owned(), counter: counter.counter.to_string() };
            return Ok(ToolFailure::Waits { awaits, at_most });
        }
        self.agent.metrics.limit_reached(name, LimitAction::Reject, 1);
        let limit = self.limit_of(name);
        let show = |number: u64| match limit.as_ref().map(|limit| &limit.bound) {
            Some(LimitBound::Money(_)) => amount::show(number),
            _ => format!("{number} tokens"),
        };
        let used = show(*used);
        let needed = show(*amount);
        let resets_at = rfc3339(*ends_ms);
        let allows = limit.as_ref().map_or_else(String::new, Limit::to_string);
        let message = if *action == ShortageAction::Never {
            format!(
                "The limit {name:?} allows {allows}, but the next model request alone may use {needed}: the task \
                 cannot continue. A smaller task may fit."
            )
        } else {
            format!(
                "The limit {name:?} is reached: it allows {allows}, {used} are used, and the next request to a model may use \
                 {needed}. It resets at {resets_at}."
            )
        };
        let details = json!({"limit": name, "used": used, "needed": needed, "resets_at": resets_at});
        Ok(ToolFailure::permanent(message, Some(details)))
    }

    fn limit_of(&self, name: &str) -> Option<Limit> {
        let policy = &self.active.policy;
        let limit = policy.limits.iter().find(|limit| limit.name == name)?;
        let owner = policy.tenants.get(&self.context.tenant);
        Some(owner.map_or_else(|| limit.clone(), |owner| owner.limit(limit).into_owned()))
    }
}
