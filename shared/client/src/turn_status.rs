//! The status of turns, for callers that follow many turns: what each turn waits for, whether a worker runs it, and
//! which calls have results.

use futures::future::join_all;
use serde::Serialize;
use tickfleet_core::CounterKey;
use tickfleet_core::call::progress::CallProgress;
use tickfleet_core::keys::limits;
use tickfleet_core::turn::{State, WaitReason};
use tickfleet_model::{CallResult, Outcome, TaskId, TurnId};
use tickfleet_store::{FollowedTurn, Store, StoreError, TurnName};

/// The status of an unfinished turn, with the results of its calls.
#[derive(Debug, Clone)]
pub struct TurnStatus {
    /// The agent that makes the turn's calls.
    pub agent: String,
    /// The turn's state.
    pub phase: TurnPhase,
    /// The results of calls from the requested position on, about 16 at most. The next request returns further results.
    pub results: Vec<CallEnd>,
}

/// The states of an unfinished turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TurnPhase {
    /// The turn is accepted. No scheduler has decided it yet.
    Queued,
    /// The turn's next call waits.
    Waiting(TurnWait),
    /// Calls were admitted and wait for a free worker.
    Dispatched,
    /// A worker runs the turn's calls, starting with `call`. Short calls after `call` may already have ended.
    Running {
        /// The first call that has no result in Redis, `<turn>/<position>`.
        call: String,
        /// The latest progress that a running tool has reported, if any.
        #[serde(skip_serializing_if = "Option::is_none")]
        progress: Option<ToolProgress>,
    },
    /// The turn is ending: its remaining calls do not run.
    Ending,
}

/// The progress that a tool has reported. A worker stores at most one report per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolProgress {
    /// The call, `<turn>/<position>`.
    pub call: String,
    /// From 0 to 1, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    /// The tool's text for people; may be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl ToolProgress {
    /// Converts the progress of a turn's call.
    #[must_use]
    pub fn of(turn: &TurnId, progress: &CallProgress) -> Self {
        let CallProgress { position, fraction, message } = progress;
        Self { call: format!("{turn}/{position}"), fraction: *fraction, message: message.clone() }
    }
}

/// The wait of a turn's next call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TurnWait {
    /// The reason.
    #[serde(flatten)]
    pub reason: TurnWaitReason,
    /// The latest end of the wait, or the time of the next check (ms of shard time), if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
}

/// Why the next call of a turn waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "for", rename_all = "snake_case")]
pub enum TurnWaitReason {
    /// A cap or limit is used up, or earlier turns of the agent are admitted first.
    Limit {
        /// The name of a limit, `calls per tick` or `actions per day`.
        limit: String,
    },
    /// An operator has paused the agent or the tenant.
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
        /// The call's tool.
        tool: String,
        /// The approvers that the call needs, as text.
        needs: String,
    },
    /// The call waits for a task that it has delegated.
    Task {
        /// The task.
        task: String,
    },
    /// The call waits for another turn: a turn that it started, a turn that may change a fact, or a turn with an equal
    /// call.
    Turn {
        /// The turn.
        turn: String,
    },
    /// The call waits until its retry is due, a circuit breaker allows the call, or a tool's pause ends. Or it waits
    /// for a worker with a build that can read the turn's next calls.
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
    /// True if the outcome is `ok`.
    pub success: bool,
    /// How the call ended.
    pub outcome: Outcome,
    /// The number of attempts; 0 if the call never ran.
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

/// Returns the statuses of turns of one shard. Each requested turn comes with the position from which its results are
/// returned. The status is `None` for a turn that is not in progress. If a turn's record cannot be read, only this turn
/// yields an error.
///
/// # Errors
/// [`StoreError`] if no turn could be read.
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
    let phase = match &turn.state {
        State::Throttled { counter, .. } => TurnPhase::Waiting(throttled(counter, &stand)),
        State::Retrying { .. } | State::Waiting { .. } => TurnPhase::Waiting(parked(store, name, &stand).await?),
        State::Ready { .. } | State::Running { .. } if stand.is_held => {
            let progress = stand.progress.as_ref().map(|progress| ToolProgress::of(&name.turn, progress));
            TurnPhase::Running { call: format!("{}/{}", name.turn, turn.position), progress }
        }
        State::Ready { .. } | State::Running { .. } => TurnPhase::Dispatched,
        State::Ending { .. } => TurnPhase::Ending,
    };
    // Stop at an unreadable result. Otherwise, the caller would assign the results after it to the wrong calls.
    let results = stand.results.iter().map_while(|result| serde_json::from_str::<CallResult>(result).ok());
    let results = results.map(|result| CallEnd::from(&result)).collect();
    Ok(TurnStatus { agent: turn.head.agent.to_string(), phase, results })
}

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
            // A call whose approval is decided is dispatched again, like a call after a circuit breaker's wait.
            WaitReason::Approval { .. } | WaitReason::Breaker { .. } | WaitReason::Reader { .. } => {
                TurnWaitReason::NextTry
            }
        },
        _ => TurnWaitReason::NextTry,
    };
    Ok(TurnWait { reason, until_ms: stand.timer_ms })
}

fn throttled(counter: &CounterKey, stand: &FollowedTurn) -> TurnWait {
    if let Some(pause) = &stand.pause {
        return TurnWait { reason: TurnWaitReason::Pause { reason: pause.reason.clone() }, until_ms: None };
    }
    TurnWait { reason: TurnWaitReason::Limit { limit: limit_of(counter) }, until_ms: stand.due_ms }
}

/// The names of the caps in lists of limits and in filters. Both caps per day have the same name.
pub const CAP_NAMES: [&str; 2] = [TICK_NAME, DAY_NAME];
/// The cap of an agent per tick.
pub const TICK_NAME: &str = "max_calls_per_tick";
/// The caps of an agent and of a tenant per day.
pub const DAY_NAME: &str = "max_actions_per_day";

/// Returns the name of a counter's cap or limit for filters.
pub(crate) fn filter_name(counter: &CounterKey) -> &str {
    match &*counter.limit {
        limits::TICK => TICK_NAME,
        limits::DAY | limits::TENANT_DAY => DAY_NAME,
        limit => limit,
    }
}

/// Returns the name of a counter's cap or limit for people. A built-in cap has a name in words.
pub(crate) fn limit_of(counter: &CounterKey) -> String {
    match &*counter.limit {
        limits::TICK => "calls per tick".into(),
        limits::DAY | limits::TENANT_DAY => "actions per day".into(),
        limit => limit.to_owned(),
    }
}
