//! Submits the turns that running calls begin. Each turn is submitted only once, even if the call is retried.

use tickfleet_model::{Turn, TurnId, content_digest, limits};
use tickfleet_protocol::{parse_turn, write_turn};
use tickfleet_store::{Store, StoreError, Submission, Submitted, TurnName, TurnView};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BegunTurn {
    /// The reply as JSON.
    Ended(String),
    /// When the turn ends, the waiting calls are woken.
    Out(TurnId),
    /// Redis no longer has the turn's record, so it is unknown whether the turn ran.
    RecordExpired,
    /// The reason. No call of the turn ran, and no call will run.
    Refused(String),
    /// The reason. The store cannot accept the turn now, so nothing was submitted.
    Later(&'static str),
}

/// When an existing turn with the same ID counts as the turn to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SameTurn {
    /// The content must be equal. For callers that store the turn's calls before the submission.
    Calls,
    /// The agent must be equal. A tool that runs again with other arguments gets the results for the first arguments.
    Agent,
}

/// An unknown agent (`None`) also matches.
fn is_agent(turn: &Turn, found: Option<&str>) -> bool {
    found.is_none_or(|found| found == turn.agent.as_str())
}

fn agent_of(reply: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct ReplyAgent {
        agent: String,
    }
    serde_json::from_str::<ReplyAgent>(reply).ok().map(|of| of.agent)
}

const ID_IS_TAKEN: &str = "its id is used by another turn.";

/// Submits `turn` under its own ID, unless `same` recognizes an earlier submission. Call this function again until the
/// turn has ended. After an error, the call may be repeated.
///
/// The store drops an ID some time after the turn's end
/// ([`StoreOptions::dedupe_ms`](tickfleet_store::StoreOptions::dedupe_ms)). `is_new` must return false if the ID may
/// have been dropped, because the turn could then run twice.
pub async fn begin_turn(
    store: &Store,
    turn: &Turn,
    same: SameTurn,
    is_new: impl Future<Output = Result<bool, StoreError>>,
) -> Result<BegunTurn, StoreError> {
    let Some(id) = turn.id.clone() else {
        return Ok(BegunTurn::Refused("a turn that a call starts must have an id".to_owned()));
    };
    let name = TurnName { tenant: turn.tenant.clone(), turn: id };
    let view = store.turn_view(&name).await?;
    // Another producer of the tenant may have chosen this ID. The results of that turn must not be returned here.
    let is_ours = match (&view, same) {
        (TurnView::Unknown, _) => true,
        (_, SameTurn::Calls) => store.content_of(&name).await?.is_none_or(|found| found == content_digest(turn)),
        (TurnView::Live(live), SameTurn::Agent) => is_agent(turn, Some(live.turn.head.agent.as_str())),
        (TurnView::Finished(finished), SameTurn::Agent) => is_agent(turn, agent_of(&finished.reply).as_deref()),
    };
    if !is_ours {
        return Ok(BegunTurn::Refused(ID_IS_TAKEN.to_owned()));
    }
    match view {
        TurnView::Finished(finished) => Ok(BegunTurn::Ended(finished.reply)),
        TurnView::Live(_) => Ok(BegunTurn::Out(name.turn)),
        TurnView::Unknown if is_new.await? => submit(store, turn, name).await,
        TurnView::Unknown => submitted_before(store, &name).await,
    }
}

async fn submit(store: &Store, turn: &Turn, name: TurnName) -> Result<BegunTurn, StoreError> {
    let payload = write_turn(turn);
    // A scheduler would also reject an invalid turn, but the caller would not get the reason.
    if let Err(refusal) = parse_turn(payload.as_bytes()) {
        return Ok(BegunTurn::Refused(refusal.message));
    }
    if payload.len() > limits::TURN_BYTES_MAX {
        let found = payload.len();
        let max = limits::TURN_BYTES_MAX;
        let why = format!("together they have {found} bytes; at most {max} are allowed. Make fewer or smaller calls.");
        return Ok(BegunTurn::Refused(why));
    }
    let submission = Submission {
        tenant: turn.tenant.clone(),
        turn: Some(name.turn.clone()),
        digest: content_digest(turn),
        reply_to: None,
        payload: payload.into(),
    };
    Ok(match store.submit(&[submission]).await?.pop().transpose()? {
        Some(Submitted::Accepted { .. }) => BegunTurn::Out(name.turn),
        Some(Submitted::Duplicate) => submitted_before(store, &name).await?,
        Some(Submitted::Conflict) => BegunTurn::Refused(ID_IS_TAKEN.to_owned()),
        Some(Submitted::QueueFull | Submitted::InboxFull | Submitted::TooManyInboxes) => {
            BegunTurn::Later("Too much work is waiting already.")
        }
        Some(Submitted::Pressure) => BegunTurn::Later("Redis is nearly full and takes no new work."),
        None => BegunTurn::Later("Redis gave no answer."),
    })
}

/// Handles a turn that exists: it waits for admission, was admitted after the first read, or has lost its reply because
/// it ended long ago.
async fn submitted_before(store: &Store, name: &TurnName) -> Result<BegunTurn, StoreError> {
    if store.waits_for_admission(name).await? {
        return Ok(BegunTurn::Out(name.turn.clone()));
    }
    Ok(match store.turn_view(name).await? {
        TurnView::Live(_) | TurnView::Finished(_) => BegunTurn::Out(name.turn.clone()),
        TurnView::Unknown => BegunTurn::RecordExpired,
    })
}
