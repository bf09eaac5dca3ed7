//! The status of unfinished turns.

use futures::future::join_all;
use serde::Serialize;
use tickfleet_core::CounterKey;
use tickfleet_core::call::progress::CallProgress;
use tickfleet_core::keys::limits;
use tickfleet_core::turn::{State, WaitReason};
use tickfleet_model::{CallResult, Outcome, TaskId, TurnId};
use tickfleet_store::{FollowedTurn, Store, StoreError, TurnName};

/// The status of an unfinished turn.
#[derive(Debug, Clone)]
pub struct TurnStatus {
    /// The agent that makes the turn's calls.
    pub agent: String,
    /// The turn's state.
    pub phase: TurnPhase,
    /// Results from the requested position on, about 16 at most.
    pub results: Vec<CallEnd>,
}

/// The phase of an unfinished turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TurnPhase {
    /// The turn waits for admission.
    Queued,
    /// The turn's next call waits.
    Waiting(TurnWait),
    /// The admitted calls wait for a free worker.
    Dispatched,
    /// A worker runs the turn. Short calls after `call` may already have ended.
    Running {
        /// The first call without a result, `<turn>/<position>`.
        call: String,
        /// The latest progress of a running tool.
        #[serde(skip_serializing_if = "Option::is_none")]
        progress: Option<ToolProgress>,
    },
    /// The remaining calls will not run.
    Ending,
}

/// The progress of a tool. A worker stores at most one report per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolProgress {
    /// The call, `<turn>/<position>`.
    pub call: String,
    /// From 0 to 1, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    /// Text for people; may be empty.
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
    /// The latest end of the wait, or the time of the next check (ms of shard time).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
}

/// Why a turn's next call waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "for", rename_all = "snake_case")]
pub enum TurnWaitReason {
    /// A cap or limit is used up, or the agent's earlier turns are first.
    Limit {
        /// A limit's name, `calls per tick` or `actions per day`.
        limit: String,
    },
    /// An operator has paused the agent or the tenant.
    Pause {
        /// The operator's reason.
        reason: String,
    },
    /// People must approve the call.
    Approval {
        /// The approval.
        approval: String,
        /// The call, `<turn>/<position>`.
        call: String,
        /// The call's tool.
        tool: String,
        /// The needed approvers, as text.
        needs: String,
    },
    /// The call waits for a task that it delegated.
    Task {
        /// The task.
        task: String,
    },
    /// The call waits for a turn. The turn was started by the call, may change a fact, or has an equal call.
    Turn {
        /// The turn.
        turn: String,
    },
    /// The call waits for its retry, a circuit breaker, the end of a tool's pause, or a worker that can read the call.
    NextTry,
}

/// A call's result without its output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallEnd {
    /// The call, `<turn>/<position>`.
    pub call: String,
    /// The ID that the model's provider gave the call.
    pub tool_call_id: Option<String>,
    /// The name in the model's call.
    pub tool: String,
    /// True for the outcome `ok`.
    pub success: bool,
    /// How the call ended.
    pub outcome: Outcome,
    /// 0 if the call never ran.
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

/// Returns the statuses of turns of one shard. Each turn has the position of the first wanted result. The status is
/// `None` if the turn is not in progress. An unreadable record is an error of this turn only.
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
    // Stop at an unreadable result. Otherwise, the caller would assign later results to the wrong calls.
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
            // The approval is already decided, so the call is dispatched again.
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

/// The names of the caps in filters. Both caps per day have the same name.
pub const CAP_NAMES: [&str; 2] = [TICK_NAME, DAY_NAME];
/// The cap of an agent per tick.
pub const TICK_NAME: &str = "max_calls_per_tick";
/// The caps of an agent and of a tenant per day.
pub const DAY_NAME: &str = "max_actions_per_day";

pub(crate) fn filter_name(counter: &CounterKey) -> &str {
    match &*counter.limit {
        limits::TICK => TICK_NAME,
        limits::DAY | limits::TENANT_DAY => DAY_NAME,
        limit => limit,
    }
}

pub(crate) fn limit_of(counter: &CounterKey) -> String {
    match &*counter.limit {
        limits::TICK => "calls per tick".into(),
        limits::DAY | limits::TENANT_DAY => "actions per day".into(),
        limit => limit.to_owned(),
    }
}
