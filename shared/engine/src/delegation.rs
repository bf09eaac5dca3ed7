//! Checks a delegated task, and plans the task's record.

use std::collections::BTreeSet;

use crate::active_policy::ActivePolicy;
use tickfleet_core::bounds::Bounds;
use tickfleet_core::keys::TurnName;
use tickfleet_core::task::delegate::{Delegate, Source};
use tickfleet_core::task::refusal::Refusal;
use tickfleet_core::turn::{Destination, Head};
use tickfleet_model::policy::Caller;
use tickfleet_model::{
    AgentId, Call, CallId, Context, Dialect, InboxName, RejectionCode, Task, TaskGrant, TaskId, TenantId, limits,
    task_digest,
};
use tickfleet_protocol::write_task;
use tickfleet_store::{Queue, entry_ms};

/// The tool name in a task's only result.
pub const TASK_TOOL: &str = "delegate_task";

const TASK_TOOL_ID: &str = "tool_delegate_task";

#[derive(Debug, Clone)]
pub struct PlannedTask {
    tenant: TenantId,
    agent: AgentId,
    queue: Queue,
    deadline_ms: i64,
    planned_ms: i64,
    external_lease_ms: i64,
    parent: Option<TaskId>,
    grant: TaskGrant,
    context: Context,
    reply_to: Option<InboxName>,
    arguments: String,
    wire: Task,
    digest: String,
    by: Option<CallId>,
    awaited: bool,
}

/// The grant gets only capabilities that the delegator also has. The budget is checked later, when the task is written.
/// An error is a stable code with a message for the delegator.
pub fn plan(active: &ActivePolicy, task: &Task, now_ms: i64) -> Result<PlannedTask, (RejectionCode, String)> {
    if active.policy.withheld.contains(&task.tenant) {
        return Err((RejectionCode::UnreadableTenant, unreadable(&task.tenant)));
    }
    if !active.policy.tenants.contains_key(&task.tenant) {
        return Err((RejectionCode::UnknownTenant, format!("tenant {:?} is not configured", task.tenant.as_str())));
    }
    if active.policy.look_up(&task.tenant, &task.target).is_err() {
        return Err((
            RejectionCode::UnknownAgent,
            format!("unknown agent {:?}; {}", task.target.as_str(), targets(active)),
        ));
    }
    let Some(handler) = active.task_handlers.get(&task.target) else {
        let message = format!("agent {:?} does not take tasks; {}", task.target.as_str(), targets(active));
        return Err((RejectionCode::NoTaskHandler, message));
    };
    let grant = TaskGrant { chain: chain(task)?, capabilities: capabilities(active, task)?, ..task.grant.clone() };
    let deadline_ms = task.deadline_ms.unwrap_or(now_ms + limits::DEADLINE_DEFAULT_MS);
    // A past deadline is rejected only when the task is written. So a task that already exists is accepted as a
    // duplicate.
    if deadline_ms > now_ms + limits::DEADLINE_MS_MAX {
        let days = limits::DEADLINE_MS_MAX / 86_400_000;
        return Err((RejectionCode::InvalidDeadline, format!("the deadline is more than {days} days away")));
    }
    let (queue, external_lease_ms) = match handler.external_lease() {
        Some(lease) => {
            let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(60_000).max(1);
            (Queue::External(task.tenant.clone(), task.target.clone()), lease_ms)
        }
        None => (Queue::Ready(task.priority), 0),
    };
    Ok(PlannedTask {
        tenant: task.tenant.clone(),
        agent: task.target.clone(),
        queue,
        deadline_ms,
        planned_ms: now_ms,
        external_lease_ms,
        parent: task.parent.clone(),
        context: task.context.clone(),
        reply_to: task.reply_to.clone(),
        arguments: arguments(task),
        wire: Task { grant: grant.clone(), ..task.clone() },
        digest: task_digest(task),
        by: None,
        awaited: false,
        grant,
    })
}

#[must_use]
pub fn unreadable(tenant: &TenantId) -> String {
    let tenant = tenant.as_str();
    format!("tenant {tenant:?} has unreadable run-time settings; set it again, then retry")
}

/// Without a delegator, returns all granted capabilities.
fn capabilities(active: &ActivePolicy, task: &Task) -> Result<Option<BTreeSet<String>>, (RejectionCode, String)> {
    let granted = task.grant.capabilities.clone();
    let Some(delegator) = &task.delegator else { return Ok(granted) };
    let Ok((tenant, policy)) = active.policy.look_up(&task.tenant, delegator) else {
        return Err((
            RejectionCode::UnknownAgent,
            format!("unknown agent {:?}; it cannot delegate", delegator.as_str()),
        ));
    };
    // A task that is enqueued in an agent's name gets no more rights than a call by this agent.
    let caller = Caller { agent: delegator, policy, tenant, granted: None };
    if let Err(denial) = active.policy.permissions.decide_name(caller, TASK_TOOL, TASK_TOOL_ID) {
        let message = format!("agent {:?} may not delegate ({})", delegator.as_str(), denial.reason());
        return Err((RejectionCode::MayNotDelegate, message));
    }
    let own = &policy.capabilities;
    Ok(Some(granted.map_or_else(|| own.clone(), |granted| &granted & own)))
}

/// For a task that a service delegates: makes `agent`, the agent of the parent task, the delegator, and narrows the
/// task's rights to those of the parent task. Fails if the task names another delegator, or if the parent task may not
/// delegate.
pub fn under_parent(task: &mut Task, agent: &AgentId, parent: &TaskGrant) -> Result<(), (RejectionCode, String)> {
    if task.delegator.as_ref().is_some_and(|delegator| delegator != agent) {
        // The delegator may have guessed the parent's ID, so the message does not name the parent's agent.
        let message = "the delegator does not work on the parent task, so it cannot delegate under it".to_owned();
        return Err((RejectionCode::WrongDelegator, message));
    }
    if parent.tools.as_ref().is_some_and(|tools| !tools.contains(TASK_TOOL)) {
        let message = "the parent task was narrowed to tools that do not include delegate_task".to_owned();
        return Err((RejectionCode::MayNotDelegate, message));
    }
    task.delegator = Some(agent.clone());
    task.grant.chain.clone_from(&parent.chain);
    task.grant.tools = narrower(task.grant.tools.take(), parent.tools.clone());
    if let Some(above) = &parent.capabilities {
        task.grant.capabilities = Some(match task.grant.capabilities.take() {
            Some(granted) => &granted & above,
            None => above.clone(),
        });
    }
    Ok(())
}

/// `ends_ms` is the end of the work that began the task. If the task's deadline is earlier, it stays.
pub fn end_with(task: &mut Task, ends_ms: i64, now_ms: i64) {
    let own_ms = task.deadline_ms.unwrap_or(now_ms + limits::DEADLINE_DEFAULT_MS);
    if ends_ms < own_ms {
        task.deadline_ms = Some(ends_ms);
    }
}

/// `None` does not narrow the other list.
#[must_use]
pub fn narrower(one: Option<BTreeSet<String>>, other: Option<BTreeSet<String>>) -> Option<BTreeSet<String>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(&one & &other),
        (one, other) => one.or(other),
    }
}

#[must_use]
pub const fn refused(refusal: Refusal) -> (RejectionCode, &'static str) {
    match refusal {
        Refusal::BudgetExceedsParent => (
            RejectionCode::BudgetExceedsParent,
            "The parent task has too little of its action budget left for this task.",
        ),
        Refusal::ParentEnded => (
            RejectionCode::UnknownParent,
            "The parent of this task has ended or was canceled: no new work starts under it.",
        ),
        Refusal::UnknownParent => (RejectionCode::UnknownParent, "The parent task is unknown or has ended."),
        Refusal::TenantQueueFull => {
            (RejectionCode::TenantQueueFull, "Too much work is waiting already. Try again later.")
        }
        Refusal::InboxFull => {
            (RejectionCode::InboxFull, "The inbox of the reply has too many unread replies; read and trim them first.")
        }
        Refusal::TooManyInboxes => {
            (RejectionCode::TooManyInboxes, "The tenant has too many inboxes; use fewer reply_to names.")
        }
        Refusal::DeadlinePassed => (RejectionCode::InvalidDeadline, "The deadline has passed already."),
    }
}

fn chain(task: &Task) -> Result<Vec<AgentId>, (RejectionCode, String)> {
    let mut chain = task.grant.chain.clone();
    chain.extend(task.delegator.clone());
    if chain.contains(&task.target) {
        let names: Vec<&str> = chain.iter().map(AgentId::as_str).collect();
        let message = format!("{:?} has itself delegated this work ({})", task.target.as_str(), names.join(" → "));
        return Err((RejectionCode::DelegationCycle, message));
    }
    if chain.len() > limits::DELEGATION_DEPTH_MAX as usize {
        let message = format!("tasks may be delegated {} levels deep at most", limits::DELEGATION_DEPTH_MAX);
        return Err((RejectionCode::DelegationDepth, message));
    }
    Ok(chain)
}

fn targets(active: &ActivePolicy) -> String {
    let names: Vec<&str> = active.task_handlers.keys().map(AgentId::as_str).collect();
    if names.is_empty() {
        "no agent takes tasks".into()
    } else {
        format!("agents that take tasks: {}", names.join(", "))
    }
}

/// Leaves out the task's ID, which is added later. The input stays exactly as written.
fn arguments(task: &Task) -> String {
    use serde_json::value::{RawValue, to_raw_value};
    let mut map = std::collections::BTreeMap::<&str, Box<RawValue>>::new();
    let text = |value: &str| to_raw_value(value).unwrap_or_default();
    map.insert("tenant", text(task.tenant.as_str()));
    map.insert("agent", text(task.target.as_str()));
    map.insert("description", text(&task.description));
    map.insert("priority", text(task.priority.as_str()));
    if let Some(input) = &task.input {
        map.insert("input", input.clone());
    }
    if let Some(deadline) = task.deadline_ms {
        map.insert("deadline", text(&crate::time::rfc3339(deadline)));
    }
    if let Some(delegator) = &task.delegator {
        map.insert("delegator", text(delegator.as_str()));
    }
    serde_json::to_string(&map).unwrap_or_default()
}

impl PlannedTask {
    /// In shard time.
    #[must_use]
    pub const fn deadline_ms(&self) -> i64 {
        self.deadline_ms
    }

    /// The task's reply names the call (`<turn id>/<position>`), because the task's reply may arrive before the call's
    /// reply. If `awaited` is true, the task ends with the call's turn.
    #[must_use]
    pub fn by_call(mut self, call: &CallId, awaited: bool) -> Self {
        (self.by, self.awaited) = (Some(call.clone()), awaited);
        self
    }

    /// `given` is true if the producer chose the ID.
    #[must_use]
    pub fn decision(self, source: Source, task: TaskId, given: bool, bounds: &Bounds) -> Delegate<'_> {
        let inbound_ms = match &source {
            Source::Inbound(taken) => entry_ms(taken.id.as_str()),
            Source::Call => None,
        };
        let head = Head {
            agent: self.agent,
            dialect: Dialect::Raw,
            reply_to: self.reply_to,
            deadline_ms: self.deadline_ms,
            submitted_ms: inbound_ms.unwrap_or(self.planned_ms),
            digest: self.digest,
            calls: 1,
            want_audits: false,
            strict: false,
            allowed_tools: None,
            parallel_reads: false,
            pending_approval: false,
            local_calls: false,
            context: self.context,
            task: Some((task.clone(), self.grant.clone())),
            delegated_by: self.by.as_ref().map(ToString::to_string),
            span: tickfleet_ops::traces::traceparent(&tracing::Span::current()),
        };
        let (arguments, destination) = if self.external_lease_ms > 0 {
            // An external runtime receives the complete task, including the ID.
            let wire = Task { id: Some(task.clone()), deadline_ms: Some(self.deadline_ms), ..self.wire };
            (write_task(&wire), Destination::External { lease_ms: self.external_lease_ms })
        } else {
            (with_id(&self.arguments, &task), Destination::Workers(self.queue.priority()))
        };
        let call = Call { provider_id: None, tool: TASK_TOOL.into(), arguments };
        let call = serde_json::to_vec(&call).unwrap_or_default().into();
        Delegate {
            name: TurnName::task(&self.tenant, &task),
            given,
            source,
            head,
            call,
            destination,
            budget: u64::from(self.grant.budget),
            parent: self.parent,
            awaited: self.awaited,
            bounds,
        }
    }
}

fn with_id(arguments: &str, task: &TaskId) -> String {
    // IDs need no escaping: their character set is restricted.
    format!("{{\"task_id\":\"{task}\",{}", arguments.trim_start_matches('{'))
}
