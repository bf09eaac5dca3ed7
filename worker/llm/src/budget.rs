//! Budgets of tokens and money: what a request may use at most is debited before it is sent, and what a model's answers have
//! used is counted with the step that writes them down.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tickfleet_engine::active_policy::ActivePolicy;
use tickfleet_engine::time::rfc3339;
use tickfleet_model::day::{day_bounds, zone};
use tickfleet_model::limit::counters::{Debits, Maker, Spend, model_counters};
use tickfleet_model::limit::{LimitBound, amount};
use tickfleet_model::limits;
use tickfleet_model::policy::TenantPolicy;
use tickfleet_models::{Answer, Message, Request, Usage};
use tickfleet_ops::metrics::LimitAction;
use tickfleet_store::{
    BudgetDebit, CounterDebits, LimitRow, Reservation, Reserved, ShortBudget, ShortReach, Spent, TurnName,
};
use tickfleet_tools::{Awaited, CallContext, ToolFailure};

use crate::LlmAgent;
use crate::failure::{away, stale, transient};

/// Bytes of text that a token has at least, reckoned over a whole request.
const BYTES_PER_TOKEN: usize = 3;
/// Tokens that providers add to a message or a tool for its form.
const TOKENS_PER_PART: u64 = 16;

/// What decides about the budgets of a task, as it was when its step began.
pub(crate) struct Budgets<'a> {
    agent: &'a LlmAgent,
    context: &'a CallContext,
    name: &'a TurnName,
    active: Arc<ActivePolicy>,
    /// ms of shard time.
    pub(crate) now_ms: i64,
}

/// The tokens that a request may use at most, its answer included.
pub(crate) fn tokens_at_most(request: &Request) -> (u64, u64) {
    let message = |message: &Message| match message {
        Message::User(text) => text.len(),
        Message::Model { text, calls } => {
            text.len() + calls.iter().map(|call| call.tool.len() + call.arguments.len() + call.id.len()).sum::<usize>()
        }
        Message::Result { id, content, .. } => id.len() + content.len(),
    };
    let tools = request.tools.iter();
    let tools = tools.map(|tool| tool.name.len() + tool.description.len() + tool.parameters.to_string().len());
    let bytes = request.system.len() + request.messages.iter().map(message).sum::<usize>() + tools.sum::<usize>();
    let parts = request.messages.len() + request.tools.len() + 1;
    let input = bytes.div_ceil(BYTES_PER_TOKEN) as u64 + parts as u64 * TOKENS_PER_PART;
    (input, u64::from(request.tokens_max))
}

/// What an answer has used. Where the provider does not say, and so would be free, it is reckoned by length.
pub(crate) fn used(request: &Request, answer: &Answer) -> Usage {
    let Usage { input, output } = answer.usage;
    if (input, output) == (0, 0) {
        let calls = answer.calls.iter().map(|call| call.tool.len() + call.arguments.len()).sum::<usize>();
        let output = (answer.text.len() + calls).div_ceil(BYTES_PER_TOKEN) as u64;
        return Usage { input: tokens_at_most(request).0, output };
    }
    Usage { input: input.min(limits::ANSWER_TOKENS_MAX), output: output.min(limits::ANSWER_TOKENS_MAX) }
}

impl<'a> Budgets<'a> {
    /// Reads the clock of the shard once.
    pub(crate) async fn now(
        agent: &'a LlmAgent,
        context: &'a CallContext,
        name: &'a TurnName,
    ) -> Result<Self, ToolFailure> {
        let now_ms = agent.store.now_ms().await.map_err(away)?;
        Ok(Self { agent, context, name, active: agent.active.load(), now_ms })
    }

    /// Debits what a request to `model` may use at most. Nothing is asked of Redis where no limit counts it.
    ///
    /// # Errors
    /// [`ToolFailure::Waits`] until there may be room; or why the task ends.
    pub(crate) async fn reserve(&mut self, number: &str, model: &str, request: &Request) -> Result<bool, ToolFailure> {
        let (input, output) = tokens_at_most(request);
        let at_most = Spend { tokens: input + output, money: self.agent.set.cost(model, input, output) };
        // Once would do: the second time, the bounds are those of the shard's own time.
        for _ in 0..3 {
            let (rows, debits) = self.debits(at_most)?;
            if debits.is_empty() {
                return Ok(false);
            }
            let of = self.reservation(number);
            match self.agent.store.reserve(of, &rows, &debits).await.map_err(away)? {
                Reserved::Ok(shadows) => {
                    self.agent.metrics.limits_reached(&shadows, LimitAction::Shadow);
                    return Ok(true);
                }
                Reserved::Short(short) => return Err(self.short(&short)),
                Reserved::Stale => return Err(stale()),
                // The clock of the shard is past the day by which its bounds were reckoned.
                Reserved::DayStale(now_ms) => self.now_ms = now_ms,
            }
        }
        Err(transient("The day that budgets are counted in has just ended.".to_owned(), None))
    }

    /// Gives back what a request has debited: it was certainly not carried out.
    pub(crate) async fn give_back(&self, number: &str) -> Result<(), ToolFailure> {
        self.agent.store.give_back(self.reservation(number)).await.map_err(away)
    }

    fn reservation<'n>(&'n self, number: &'n str) -> Reservation<'n> {
        Reservation { task: self.name, fence: &self.context.fence, number }
    }

    /// What an answer has used, to be counted with its step.
    pub(crate) fn spent(&self, number: &str, input: u64, output: u64, cost: u64) -> Spent {
        let policy = &self.active.policy;
        let of_tenant = policy.tenants.get(&self.context.tenant).map(|owner| policy.time_zone(owner));
        let day_ms = self.day(of_tenant.unwrap_or(&policy.defaults.time_zone));
        Spent { number: number.to_owned(), agent: self.context.agent.clone(), input, output, cost, day_ms }
    }

    fn day(&self, name: &str) -> (i64, i64) {
        // Configuration has checked the zone.
        day_bounds(self.now_ms, zone(name).unwrap_or(chrono_tz::UTC))
    }

    fn debits(&self, at_most: Spend) -> Result<(Vec<LimitRow>, Vec<BudgetDebit>), ToolFailure> {
        let policy = &self.active.policy;
        let (tenant, agent) = (&self.context.tenant, &self.context.agent);
        if !policy.limits.iter().any(|limit| limit.bound.is_of_models()) {
            return Ok((Vec::new(), Vec::new()));
        }
        // Who is not known has no budget.
        let unknown = |_| transient(format!("Tenant {tenant} and its agent {agent} are not known here."), None);
        let (owner, of_agent) = policy.look_up(tenant, agent).map_err(unknown)?;
        let task = self.context.task.as_ref().map(|(task, _)| task);
        let context = &*self.context.context;
        let maker = Maker { tenant, owner, agent, policy: of_agent, context, task, parallel_reads: false };
        let found = model_counters(&policy.limits, &maker, at_most);
        Ok(found.into_iter().enumerate().map(|(row, debits)| self.debit(owner, row, debits)).unzip())
    }

    fn debit(&self, owner: &TenantPolicy, row: usize, debits: Debits) -> (LimitRow, BudgetDebit) {
        let policy = &self.active.policy;
        let limit = owner.limit(&policy.limits[debits.limit]);
        let of_tenant = if limit.is_of_tenants() { policy.time_zone(owner) } else { &policy.defaults.time_zone };
        let shard = (self.agent.store.shard(), self.agent.store.options().shards);
        let tick_ms = policy.defaults.tick_ms;
        let period_ms = limit.period_ms(tick_ms).unwrap_or(1);
        let stagger_ms = tickfleet_engine::time::counter_stagger_ms(&limit.name, &debits.key, period_ms);
        let counter = CounterDebits { row, stagger_ms, debits };
        (LimitRow::new(&limit, shard, tick_ms, self.day(of_tenant)), BudgetDebit::new(counter, &limit.bound))
    }

    fn short(&self, short: &ShortBudget) -> ToolFailure {
        let action = if short.reach == ShortReach::Wait { LimitAction::Wait } else { LimitAction::Reject };
        if short.is_news || short.reach != ShortReach::Wait {
            self.agent.metrics.limit_reached(&short.limit, action, 1);
        }
        if short.reach == ShortReach::Wait {
            let at_most = Duration::from_millis((short.look_ms - self.now_ms).max(1).unsigned_abs());
            return ToolFailure::Waits { awaits: Awaited::Time, at_most };
        }
        let bound = self.active.policy.limits.iter().find(|limit| limit.name == short.limit).map(|limit| &limit.bound);
        let show = |number: u64| match bound {
            Some(LimitBound::Money(_)) => amount::show(number),
            _ => format!("{number} tokens"),
        };
        let (used, needed, resets_at) = (show(short.used), show(short.amount), rfc3339(short.ends_ms));
        let ShortBudget { limit, allows, .. } = short;
        let message = if short.reach == ShortReach::Never {
            format!(
                "The limit {limit:?} allows {allows}, and the next request to a model alone may use {needed}: the task \
                 cannot go on. A smaller task may."
            )
        } else {
            format!(
                "The limit {limit:?} is reached: it allows {allows}, {used} are used, and the next request to a model may use \
                 {needed}. It resets at {resets_at}."
            )
        };
        let details = json!({"limit": limit, "used": used, "needed": needed, "resets_at": resets_at});
        ToolFailure::Permanent { message, details: Some(details) }
    }
}
