//! Inner calls: a call of a turn can make calls of other tools.

use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use serde::Serialize;
use tickfleet_model::turn::inner::inner_turn;
use tickfleet_model::{CallId, Outcome, TurnId, limits};
use tickfleet_store::{LiveTurn, Store, StoreError, TurnName, TurnView};

use crate::Reply;

const TOGETHER: usize = 8;

/// A call of another tool that a call has made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InnerCall {
    /// The position of the outer call in its turn.
    pub made_by: usize,
    /// The turn with the inner call. `tickfleet explain` accepts this ID.
    pub id: TurnId,
    /// The tool; `None` if the record was not kept because Redis memory was nearly full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The outcome; `None` while the call is in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The number of attempts so far.
    pub attempts: u32,
    /// The duration of the last attempt (ms); `None` while the call is in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The error message, if the call failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The inner calls that this inner call made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inner: Vec<Self>,
}

/// Returns the inner calls of the calls at `positions`, in the order in which they were made. Ignores a turn of another
/// agent, even if the turn has the ID of an inner call.
pub async fn inner_calls(
    store: &Store,
    name: &TurnName,
    agent: &str,
    positions: impl Iterator<Item = usize>,
) -> Result<Vec<InnerCall>, StoreError> {
    below(store, name, agent, positions.collect()).await
}

/// Boxed because the function is recursive. [`inner_turn`] bounds the depth.
fn below<'a>(
    store: &'a Store,
    name: &'a TurnName,
    agent: &'a str,
    positions: Vec<usize>,
) -> BoxFuture<'a, Result<Vec<InnerCall>, StoreError>> {
    async move {
        let mut found = Vec::new();
        for position in positions {
            let outer = CallId { turn: name.turn.clone(), position };
            let mut number = 1;
            // Most calls make no inner calls, so the first step looks for only one.
            let mut together = 1;
            while number <= limits::INNER_CALLS_MAX {
                let numbers = (number..number + together).filter_map(|number| inner_turn(&outer, number).ok());
                let names: Vec<TurnName> = numbers.map(|turn| TurnName { tenant: name.tenant.clone(), turn }).collect();
                let looks = join_all(names.iter().map(|name| store.turn_view(name))).await;
                let before = found.len();
                for (inner, view) in names.iter().zip(looks) {
                    let Some(mut call) = inner_call(position, inner, agent, view?) else { continue };
                    call.inner = below(store, inner, agent, vec![0]).await?;
                    found.push(call);
                }
                if found.len() == before {
                    break;
                }
                (number, together) = (number + together, TOGETHER);
            }
        }
        Ok(found)
    }
    .boxed()
}

fn inner_call(made_by: usize, name: &TurnName, agent: &str, view: TurnView) -> Option<InnerCall> {
    let under_way = |live: &LiveTurn| InnerCall {
        made_by,
        id: name.turn.clone(),
        tool: live.remaining_tools().pop_first(),
        outcome: None,
        attempts: live.turn.attempts + u32::from(live.holder.is_some()),
        duration_ms: None,
        error: None,
        inner: Vec::new(),
    };
    match view {
        TurnView::Live(live) => {
            let is_its = live.turn.head.agent.as_str() == agent;
            is_its.then(|| under_way(&live))
        }
        TurnView::Finished(finished) => {
            let reply: Option<Reply> = serde_json::from_str(&finished.reply).ok();
            if reply.as_ref().is_some_and(|reply| reply.agent != agent) {
                return None;
            }
            let result = reply.and_then(|reply| reply.results.into_iter().next());
            Some(InnerCall {
                made_by,
                id: name.turn.clone(),
                attempts: result.as_ref().map_or(0, |result| result.attempts),
                duration_ms: result.as_ref().map(|result| result.duration_ms),
                outcome: result.as_ref().map(|result| result.outcome),
                error: result.as_ref().and_then(|result| Some(result.error.as_ref()?.message.clone())),
                tool: result.map(|result| result.tool),
                inner: Vec::new(),
            })
        }
        TurnView::Unknown => None,
    }
}
