//! Checks the names in a request body against the key of the request. `tests/names.rs` fails if a new field is not
//! listed there.

use std::fmt::Display;

use axum::http::StatusCode;
use tickfleet_model::reserved::reserved;
use tickfleet_model::{Context, InboxName, Task};
use tickfleet_store::TurnName;

use crate::Shared;
use crate::caller::Caller;
use crate::problem::Problem;

/// Rejects ids in the form of derived ids, such as ids of steps: such ids may belong to another caller's work.
pub(crate) fn chosen(field: &str, id: Option<&impl Display>) -> Result<(), Problem> {
    let Some(id) = id.map(ToString::to_string) else { return Ok(()) };
    match reserved(&id) {
        Some(of) => Err(Problem::invalid(format!("{field}: {id:?} has the form of ids of {of}; choose another id"))),
        None => Ok(()),
    }
}

/// Rejects a named inbox: other callers could read it, and it would count against the tenant's maximum.
pub(crate) fn no_inbox(inbox: Option<&InboxName>) -> Result<(), Problem> {
    match inbox {
        Some(_) => Err(Problem::invalid(
            "reply_to: not accepted; the gateway stores the reply. Read it with GET /v1/turns/{id}",
        )),
        None => Ok(()),
    }
}

/// Rejects a conversation with an agent that the key does not cover.
pub(crate) async fn session(shared: &Shared, caller: &Caller, context: &Context) -> Result<(), Problem> {
    let Some(id) = &context.session_id else { return Ok(()) };
    let held = shared.client.store(caller.tenant()).session(caller.tenant(), id).await?;
    match held.agent {
        Some(agent) if !caller.can_read_agent(Some(agent.as_str())) => Err(Problem::forbidden(format!(
            "session_id: {:?} belongs to an agent that the key does not cover; choose another session",
            id.as_str()
        ))),
        _ => Ok(()),
    }
}

/// Makes the parent's agent the delegator, if the task has no delegator. The scheduler compares the delegator with the
/// parent's agent, so a parent that changes meanwhile cannot make another agent the delegator. 404: the key does not
/// cover the parent's agent, or the parent has ended or was never accepted.
pub(crate) async fn under_parent(shared: &Shared, caller: &Caller, task: &mut Task) -> Result<(), Problem> {
    let Some(parent) = &task.parent else { return Ok(()) };
    let name = TurnName::task(caller.tenant(), parent);
    let agent = match shared.client.store(caller.tenant()).task_grant(&name).await? {
        Some((agent, _, _)) => Some(agent),
        None => shared.client.undecided(&name).await?.and_then(|waits| waits.agent),
    };
    let Some(agent) = agent.filter(|agent| caller.can_read_agent(Some(agent.as_str()))) else {
        return Err(Problem::named(
            StatusCode::NOT_FOUND,
            "unknown_parent",
            format!("parent_task_id: the key covers no running task {parent}"),
        ));
    };
    task.delegator.get_or_insert(agent);
    Ok(())
}
