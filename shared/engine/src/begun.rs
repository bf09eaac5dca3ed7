//! Turns that a call begins while it runs: submitted once, whoever comes by, and read when they have ended.

use tickfleet_model::{Turn, TurnId, content_digest, limits};
use tickfleet_protocol::{parse_turn, write_turn};
use tickfleet_store::{Store, StoreError, Submission, Submitted, TurnName, TurnView};

/// Where a turn stands that was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BegunTurn {
    /// It has ended: its reply, JSON.
    Ended(String),
    /// It is under way: its end wakes whoever waits for it.
    Out(TurnId),
    /// It was begun, and nothing is left of it: nobody knows whether it was carried out.
    Forgotten,
    /// No call of it was carried out, and none will be; why, for whoever wanted it.
    Refused(String),
    /// There is no room for it now; nothing was submitted.
    Later(&'static str),
}

/// When what stands under the id of a turn is that turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Same {
    /// It has the same calls: they are written down before they are submitted.
    Calls,
    /// It is of the same agent: who is run again may say other arguments, and hears of the first ones.
    Agent,
}

/// Where the agent is not said, nobody can tell.
fn is_agent(turn: &Turn, found: Option<&str>) -> bool {
    found.is_none_or(|found| found == turn.agent.as_str())
}

fn agent_of(reply: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Of {
        agent: String,
    }
    serde_json::from_str::<Of>(reply).ok().map(|of| of.agent)
}

/// Why nothing is begun where a turn of other content has the id.
const ID_IS_TAKEN: &str = "its id is used by another turn.";

/// Submits `turn` under its own id, unless that was done before, and looks what it came to. To be repeated until it has
/// ended: a turn is the same by its id and its calls.
///
/// An id is remembered for a while only ([`StoreOptions::dedupe_ms`](tickfleet_store::StoreOptions::dedupe_ms)). So where
/// nothing is known of the turn, `is_new` has to say that it cannot have ended so long ago; else it is not submitted, for
/// it would be carried out twice. It is asked right before. `same` says which turn of that id counts as this one.
///
/// # Errors
/// [`StoreError`]; it may be repeated.
pub async fn begin_turn(
    store: &Store,
    turn: &Turn,
    same: Same,
    is_new: impl Future<Output = Result<bool, StoreError>>,
) -> Result<BegunTurn, StoreError> {
    let Some(id) = turn.id.clone() else {
        return Ok(BegunTurn::Refused("a turn that is begun by a call has an id".to_owned()));
    };
    let name = TurnName { tenant: turn.tenant.clone(), turn: id };
    let view = store.look(&name).await?;
    // Anybody of the tenant may have given a turn this id: its results are not those of these calls.
    let is_ours = match (&view, same) {
        (TurnView::Unknown, _) => true,
        (_, Same::Calls) => store.content_of(&name).await?.is_none_or(|found| found == content_digest(turn)),
        (TurnView::Live(live), Same::Agent) => is_agent(turn, Some(live.turn.head.agent.as_str())),
        (TurnView::Finished(finished), Same::Agent) => is_agent(turn, agent_of(&finished.reply).as_deref()),
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
    // A scheduler would refuse it, and nobody would hear why.
    if let Err(refusal) = parse_turn(payload.as_bytes()) {
        return Ok(BegunTurn::Refused(refusal.message));
    }
    if payload.len() > limits::TURN_BYTES_MAX {
        let (found, max) = (payload.len(), limits::TURN_BYTES_MAX);
        let why = format!("they have {found} bytes together; {max} are allowed. Make fewer or smaller ones.");
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

/// The turn was submitted earlier, and there was nothing of it under way then: it waits for admission, has been admitted
/// meanwhile, or ended so long ago that its reply is gone.
async fn submitted_before(store: &Store, name: &TurnName) -> Result<BegunTurn, StoreError> {
    if store.waits_for_admission(name).await? {
        return Ok(BegunTurn::Out(name.turn.clone()));
    }
    Ok(match store.look(name).await? {
        TurnView::Live(_) | TurnView::Finished(_) => BegunTurn::Out(name.turn.clone()),
        TurnView::Unknown => BegunTurn::Forgotten,
    })
}
