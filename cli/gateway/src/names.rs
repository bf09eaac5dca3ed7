//! Names in the bodies of requests: ids, inboxes, sessions and parent tasks, each looked up under the key that the request
//! came with. `tests/names.rs` walks every field of every body and fails for one that nobody has classified.

use std::fmt::Display;

use axum::http::StatusCode;
use tickfleet_model::reserved::reserved;
use tickfleet_model::{Context, InboxName, Task};
use tickfleet_store::TurnName;

use crate::Shared;
use crate::caller::Caller;
use crate::problem::Problem;

/// Refuses an id that the fleet derives from others: a caller that took one would stand in for work of somebody else.
///
/// # Errors
/// 400, with the field.
pub(crate) fn chosen(field: &str, id: Option<&impl Display>) -> Result<(), Problem> {
    let Some(id) = id.map(ToString::to_string) else { return Ok(()) };
    match reserved(&id) {
        Some(of) => Err(Problem::invalid(format!("{field}: {id:?} has the form of ids of {of}; choose another id"))),
        None => Ok(()),
    }
}

/// Refuses an inbox. The gateway keeps replies itself: an inbox named here would be somebody else's to read, and one more
/// of those that the tenant may have.
///
/// # Errors
/// 400.
pub(crate) fn no_inbox(inbox: Option<&InboxName>) -> Result<(), Problem> {
    match inbox {
        Some(_) => Err(Problem::invalid(
            "reply_to: not accepted; the gateway stores the reply. Read it with GET /v1/turns/{id}",
        )),
        None => Ok(()),
    }
}

/// Refuses a session that is a conversation with an agent that the key does not cover.
///
/// # Errors
/// 403; Redis does not answer.
pub(crate) async fn session(shared: &Shared, caller: &Caller, context: &Context) -> Result<(), Problem> {
    let Some(id) = &context.session_id else { return Ok(()) };
    let held = shared.client.store(caller.tenant()).session(caller.tenant(), id).await?;
    match held.agent {
        Some(agent) if !caller.sees(Some(agent.as_str())) => Err(Problem::forbidden(format!(
            "session_id: {:?} belongs to an agent that the key does not cover; choose another session",
            id.as_str()
        ))),
        _ => Ok(()),
    }
}

/// Names the agent of a task's parent as its delegator, where the key covers that agent. A scheduler compares the two when it
/// decides, so that nothing that becomes of the parent meanwhile makes another agent the delegator.
///
/// # Errors
/// 404: the parent is another agent's, or has ended, or was never taken in. Redis does not answer.
pub(crate) async fn under_parent(shared: &Shared, caller: &Caller, task: &mut Task) -> Result<(), Problem> {
    let Some(parent) = &task.parent else { return Ok(()) };
    let name = TurnName::task(caller.tenant(), parent);
    let agent = match shared.client.store(caller.tenant()).task_grant(&name).await? {
        Some((agent, _, _)) => Some(agent),
        None => shared.client.undecided(&name).await?.and_then(|waits| waits.agent),
    };
    let Some(agent) = agent.filter(|agent| caller.sees(Some(agent.as_str()))) else {
        return Err(Problem::named(
            StatusCode::NOT_FOUND,
            "unknown_parent",
            format!("parent_task_id: the key covers no running task {parent}"),
        ));
    };
    task.delegator.get_or_insert(agent);
    Ok(())
}
