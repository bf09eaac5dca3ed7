//! Reads the states of many turns in a few round trips.

use tickfleet_core::call::progress::CallProgress;
use tickfleet_core::settings::{self, Setting};
use tickfleet_core::turn::end::parts;
use tickfleet_core::turn::{State, Turn};
use tickfleet_core::{Query, Stored, Value, keys};
use tickfleet_model::policy::{Pause, Paused};

use crate::reads::turn_view::read_turn;
use crate::reads::{score, text};
use crate::{Store, StoreError, TurnName};

const RESULTS_READ: usize = 16;

#[derive(Debug, Clone)]
pub struct FollowedTurn {
    pub turn: Turn,
    pub results: Vec<String>,
    pub timer_ms: Option<i64>,
    /// When the turn's throttle queue is evaluated next, in shard time; `None` if the turn is in no throttle queue.
    pub due_ms: Option<i64>,
    /// The pause of a throttled turn's agent or tenant. If the stored pause is unreadable, the value is empty, and the
    /// pause still applies.
    pub pause: Option<Pause>,
    pub is_held: bool,
    pub progress: Option<CallProgress>,
}

/// `None` if the turn has ended or is unknown. An unreadable record causes an error only for its own turn.
type FollowedTurnResult = Result<Option<FollowedTurn>, StoreError>;

impl Store {
    /// The number is the index of the first result; at most 16 results are read. Pass at most a few hundred turns.
    pub async fn followed_turns(&self, turns: &[(TurnName, usize)]) -> Result<Vec<FollowedTurnResult>, StoreError> {
        let mut queries = Vec::with_capacity(3 * turns.len());
        for (name, from) in turns {
            let results = (*from..from.saturating_add(RESULTS_READ)).map(parts::result);
            queries.push(Query::Record(name.record()));
            queries.push(Query::Parts(name.record(), std::iter::once(parts::progress()).chain(results).collect()));
            queries.push(Query::Score(keys::timers(), name.timer().into()));
        }
        let mut found = self.values(&queries).await?;
        let (mut states, mut further, mut asked): (Vec<FollowedTurnResult>, _, _) =
            (Vec::new(), Vec::new(), Vec::new());
        for (at, (name, from)) in turns.iter().enumerate() {
            let record = found.next();
            let results = found.next();
            let timer = found.next();
            let turn_state = match read_turn(&name.record(), record) {
                Ok(None) => Ok(None),
                Err(error) => Err(error),
                Ok(Some(stored)) => {
                    let state_queries = state_queries(name, &stored);
                    if !state_queries.is_empty() {
                        asked.push((at, state_queries.len()));
                        further.extend(state_queries);
                    }
                    Ok(Some(followed_turn(stored.value, results, score(timer), *from)))
                }
            };
            states.push(turn_state);
        }
        let mut values = self.values(&further).await?;
        for (at, count) in asked {
            let values: Vec<Value> = values.by_ref().take(count).collect();
            if let Some(Ok(Some(turn_state))) = states.get_mut(at) {
                complete(turn_state, values);
            }
        }
        Ok(states)
    }
}

fn state_queries(name: &TurnName, stored: &Stored<Turn>) -> Vec<Query> {
    let turn = &stored.value;
    if let Some(entry) = stored.in_flight_entry() {
        return vec![Query::Holder(turn.queue(&name.tenant), entry.clone())];
    }
    let State::Throttled { counter, .. } = &turn.state else { return Vec::new() };
    let agent = Paused { tenant: name.tenant.clone(), agent: Some(turn.head.agent.clone()) };
    let tenant = Paused { tenant: name.tenant.clone(), agent: None };
    let pauses = [agent, tenant].map(|paused| Setting::Pause(paused).part()).to_vec();
    let timer = Query::Score(keys::timers(), keys::throttle_timer(counter).into());
    vec![timer, Query::Parts(settings::key(), pauses)]
}

fn followed_turn(turn: Turn, parts: Option<Value>, timer_ms: Option<i64>, from: usize) -> FollowedTurn {
    let mut results = if let Some(Value::Parts(parts)) = parts { parts.into_iter() } else { Vec::new().into_iter() };
    let progress = results.next().flatten().and_then(|part| CallProgress::parse(&part));
    let progress = progress.filter(|progress| progress.position >= turn.position);
    let known = turn.position.saturating_sub(from);
    let results = results.take(known).map_while(|result| result.map(|result| text(&result))).collect();
    FollowedTurn { turn, results, timer_ms, due_ms: None, pause: None, is_held: false, progress }
}

fn complete(turn_state: &mut FollowedTurn, values: Vec<Value>) {
    for value in values {
        match value {
            Value::Holder(holder) => turn_state.is_held = holder.is_some(),
            Value::Parts(notes) => {
                let note = notes.into_iter().flatten().next();
                turn_state.pause = note.map(|note| serde_json::from_slice(&note).unwrap_or_default());
            }
            due => turn_state.due_ms = score(Some(due)),
        }
    }
}
