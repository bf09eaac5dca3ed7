//! Ownership of turns and tasks. If the key does not cover the agent, the response is the same as for an unknown id.
//! The Redis queries and the wait are the same, too.

use serde::Deserialize;
use tickfleet_client::Reply;
use tickfleet_model::RejectionCode;
use tickfleet_store::{TurnName, TurnView};

use crate::Shared;
use crate::caller::Caller;
use crate::problem::Problem;

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

/// A tenant that is not configured owns no agent, so every caller may see its rejections.
pub(crate) fn may_see_reply(caller: &Caller, reply: &Reply) -> bool {
    let is_of_no_tenant = || {
        let code = reply.error.as_ref().map(|error| &*error.code);
        code == Some(RejectionCode::UnknownTenant.as_str())
    };
    caller.can_read_agent(Some(&reply.agent)) || is_of_no_tenant()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordOwner {
    Nothing,
    Own,
    /// Includes records of unknown agents.
    Others,
}

pub(crate) async fn record_owner(shared: &Shared, caller: &Caller, name: &TurnName) -> Result<RecordOwner, Problem> {
    match shared.client.store(&name.tenant).record(name).await.map_err(Problem::from) {
        Ok(TurnView::Unknown) => Ok(RecordOwner::Nothing),
        Ok(view) if agent_of(&view).is_some_and(|agent| caller.can_read_agent(Some(&agent))) => Ok(RecordOwner::Own),
        Ok(_) => Ok(RecordOwner::Others),
        Err(problem) if problem.is_damaged() => Ok(RecordOwner::Others),
        Err(problem) => Err(problem),
    }
}

/// A key for all agents may act on any id, even before the turn arrives. Any other key needs a record that names one of
/// the key's agents.
pub(crate) async fn may_act_on(shared: &Shared, caller: &Caller, name: &TurnName) -> Result<bool, Problem> {
    Ok(caller.can_read_agent(None) || record_owner(shared, caller, name).await? == RecordOwner::Own)
}
