//! Whose a turn or task is. What belongs to an agent that the key does not cover is answered as what does not exist: with
//! the same words, after the same questions to Redis and the same wait, so that the time tells no more than the answer.

use serde::Deserialize;
use tickfleet_client::Reply;
use tickfleet_model::RejectionCode;
use tickfleet_store::{TurnName, TurnView};

use crate::Shared;
use crate::caller::Caller;
use crate::problem::Problem;

/// The agent of a record; none if there is no record, or if it does not name the agent.
pub(crate) fn agent_of(view: &TurnView) -> Option<String> {
    #[derive(Deserialize)]
    struct Owner {
        agent: String,
    }
    match view {
        TurnView::Live(live) => Some(live.turn.head.agent.to_string()),
        TurnView::Finished(finished) => match &finished.agent {
            Some(agent) => Some(agent.to_string()),
            None => serde_json::from_str::<Owner>(&finished.reply).ok().map(|owner| owner.agent),
        },
        TurnView::Unknown => None,
    }
}

/// Returns true if the caller may see this reply. The reply to a message whose tenant is not configured has no agent whose
/// business it would be.
pub(crate) fn sees_reply(caller: &Caller, reply: &Reply) -> bool {
    let is_of_no_tenant = || {
        let code = reply.error.as_ref().map(|error| &*error.code);
        code == Some(RejectionCode::UnknownTenant.as_str())
    };
    caller.sees(Some(&reply.agent)) || is_of_no_tenant()
}

/// Whose a record is, to one caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// There is no record.
    Nothing,
    /// An agent's that the key covers.
    Own,
    /// Another agent's, or nobody can say whose.
    Others,
}

/// Whose the record of a turn or task is.
///
/// # Errors
/// Redis does not answer.
pub(crate) async fn kept(shared: &Shared, caller: &Caller, name: &TurnName) -> Result<Kept, Problem> {
    match shared.client.store(&name.tenant).record(name).await.map_err(Problem::from) {
        Ok(TurnView::Unknown) => Ok(Kept::Nothing),
        Ok(view) if agent_of(&view).is_some_and(|agent| caller.sees(Some(&agent))) => Ok(Kept::Own),
        Ok(_) => Ok(Kept::Others),
        Err(problem) if problem.is_damaged() => Ok(Kept::Others),
        Err(problem) => Err(problem),
    }
}

/// Returns true if the caller may act on a turn or task: on every one with a key for all agents, also before it arrives.
/// Otherwise the record has to exist and to name an agent that the key covers.
///
/// # Errors
/// Redis does not answer.
pub(crate) async fn may_act_on(shared: &Shared, caller: &Caller, name: &TurnName) -> Result<bool, Problem> {
    Ok(caller.sees(None) || kept(shared, caller, name).await? == Kept::Own)
}
