//! The states of turns, for callers that follow many of them: what each turn waits for, whether a worker runs it, and
//! which calls have results.

use futures::future::join_all;
use serde::Serialize;
use tickfleet_core::CounterKey;
use tickfleet_core::keys::limits;
use tickfleet_core::turn::{State, WaitReason};
use tickfleet_model::{CallResult, Outcome, TaskId};
use tickfleet_store::{FollowedTurn, Store, StoreError, TurnName};

/// The state of an unfinished turn, with results.
#[derive(Debug, Clone)]
pub struct TurnStatus {
    /// The agent that makes its calls.
    pub agent: String,
    /// Its state.
    pub standing: TurnPhase,
    /// The results from the requested one on, at most about 16. The next request returns more.
    pub results: Vec<CallEnd>,
}

/// The states of an unfinished turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TurnPhase {
    /// Accepted, and not yet decided by a scheduler.
    Queued,
    /// Its next call waits.
    Waiting(TurnWait),
    /// Calls were admitted, and wait for a free worker.
    Dispatched,
    /// A worker runs its calls, starting with this one. Short calls after it may already have ended.
    Running {
        /// The first call that has no result in Redis, `<turn>/<position>`.
        call: String,
    },
    /// It is ending: its remaining calls do not run.
    Ending,
}

/// The wait of a turn's next call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TurnWait {
    /// The reason.
    #[serde(flatten)]
    pub reason: TurnWaitReason,
    /// The latest end of the wait, or the time of the next check, ms of shard time, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
}

/// The reasons to wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "for", rename_all = "snake_case")]
pub enum TurnWaitReason {
    /// A cap or limit is used up, or earlier turns of the agent go first.
    Limit {
        /// The name of a limit, `calls per tick` or `actions per day`.
        limit: String,
    },
    /// An operator has paused its agent or its tenant.
    Pause {
        /// The operator's reason.
        reason: String,
    },
    /// People have to approve the call.
    Approval {
        /// The approval.
        approval: String,
        /// The call, `<turn>/<position>`.
        call: String,
        /// Its tool.
        tool: String,
        /// The demands for approvers, in words.
        needs: String,
    },
    /// A task that the call has delegated.
    Task {
        /// The task.
        task: String,
    },
    /// Another turn: one that the call began, one that may change a fact, or one with an equal call.
    Turn {
        /// The turn.
        turn: String,
    },
    /// A retry, the end of a circuit breaker's wait or of a tool's pause, or a worker that can read the slice.
    NextTry,
}

/// The end of a call, without its output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallEnd {
    /// The call, `<turn>/<position>`.
    pub call: String,
    /// The provider's ID of the call.
    pub tool_call_id: Option<String>,
    /// The tool as the model named it.
    pub tool: String,
    /// True if its outcome is `ok`.
    pub success: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// Attempts; 0 if it never ran.
    pub attempts: u32,
}

impl From<&CallResult> for CallEnd {
    fn from(result: &CallResult) -> Self {
        Self {
            call: result.call.clone(),
            tool_call_id: result.tool_call_id.clone(),
            tool: result.tool.clone(),
            success: result.success,
            outcome: result.outcome,
            attempts: result.attempts,
        }
    }
}

/// The states of these turns of one shard, each with the ends of its calls from the given one on. `None` for a turn
/// that is not in progress. An error for a turn whose record cannot be read, which does not affect the others.
///
/// # Errors
/// [`StoreError`] if none of them could be read.
pub async fn turn_statuses(
    store: &Store,
    turns: &[(TurnName, usize)],
) -> Result<Vec<Result<Option<TurnStatus>, StoreError>>, StoreError> {
    let found = store.followed_turns(turns).await?;
    let statuses = turns.iter().zip(found).map(async |((name, _), stand)| match stand? {
        Some(stand) => turn_status(store, name, stand).await.map(Some),
        None => Ok(None),
    });
    Ok(join_all(statuses).await)
}

async fn turn_status(store: &Store, name: &TurnName, stand: FollowedTurn) -> Result<TurnStatus, StoreError> {
    let turn = &stand.turn;
    let standing = match &turn.state {
        State::Throttled { counter, .. } => TurnPhase::Waiting(throttled(counter, &stand)),
        State::Retrying { .. } | State::Waiting { .. } => TurnPhase::Waiting(parked(store, name, &stand).await?),
        State::Ready { .. } | State::Running { .. } if stand.is_held => {
            TurnPhase::Running { call: format!("{}/{}", name.turn, turn.position) }
        }
        State::Ready { .. } | State::Running { .. } => TurnPhase::Dispatched,
        State::Ending { .. } => TurnPhase::Ending,
    };
    // An unreadable result ends the list: otherwise the caller would count later results as earlier ones.
    let results = stand.results.iter().map_while(|result| serde_json::from_str::<CallResult>(result).ok());
    let results = results.map(|result| CallEnd::from(&result)).collect();
    Ok(TurnStatus { agent: turn.head.agent.to_string(), standing, results })
}

/// The wait of a call that was dispatched before.
async fn parked(store: &Store, name: &TurnName, stand: &FollowedTurn) -> Result<TurnWait, StoreError> {
    let state = &stand.turn.state;
    if let State::Waiting { reason: WaitReason::Approval { approval }, .. } = state
        && let Some(asked) = crate::approvals::find(store, &name.tenant, approval).await?
        && asked.state == "waiting"
    {
        let needs = asked.needed();
        let until_ms = Some(asked.until_ms);
        let reason = TurnWaitReason::Approval { approval: asked.id, call: asked.call, tool: asked.tool, needs };
        return Ok(TurnWait { reason, until_ms });
    }
    let reason = match state {
        State::Waiting { reason: WaitReason::Child { turn: awaits }, .. } if TaskId::new(awaits.as_str()).is_ok() => {
            TurnWaitReason::Task { task: awaits.to_string() }
        }
        State::Waiting { reason, .. } => match reason {
            WaitReason::Child { turn } | WaitReason::Fact { turn } | WaitReason::EqualCall { turn } => {
                TurnWaitReason::Turn { turn: turn.to_string() }
            }
            WaitReason::Budget { counter } => TurnWaitReason::Limit { limit: limit_of(counter) },
            // A call with a decided approval is dispatched again, as after a breaker's wait.
            WaitReason::Approval { .. } | WaitReason::Breaker { .. } | WaitReason::Reader { .. } => {
                TurnWaitReason::NextTry
            }
        },
        _ => TurnWaitReason::NextTry,
    };
    Ok(TurnWait { reason, until_ms: stand.timer_ms })
}

/// The wait of a call in a throttle queue.
fn throttled(counter: &CounterKey, stand: &FollowedTurn) -> TurnWait {
    if let Some(pause) = &stand.pause {
        return TurnWait { reason: TurnWaitReason::Pause { reason: pause.reason.clone() }, until_ms: None };
    }
    TurnWait { reason: TurnWaitReason::Limit { limit: limit_of(counter) }, until_ms: stand.due_ms }
}

/// The name of a counter's limit; in words for the caps that every fleet has.
pub(crate) fn limit_of(counter: &CounterKey) -> String {
    match &*counter.limit {
        limits::TICK => "calls per tick".into(),
        limits::DAY | limits::TENANT_DAY => "actions per day".into(),
        limit => limit.to_owned(),
    }
}
