//! Where turns stand, for those who follow many of them: what each waits for, whether somebody carries it out, and which
//! calls have their results.

use futures::future::join_all;
use serde::Serialize;
use tickfleet_core::CounterKey;
use tickfleet_core::keys::limits;
use tickfleet_core::turn::{State, WaitReason};
use tickfleet_model::{CallResult, Outcome, TaskId};
use tickfleet_store::{FollowedTurn, Store, StoreError, TurnName};

/// What is known of a turn under way.
#[derive(Debug, Clone)]
pub struct Stood {
    /// The agent that makes its calls.
    pub agent: String,
    /// Where it stands.
    pub standing: Standing,
    /// The results from the one on that was asked for; some 16 at most, the rest comes with the next look.
    pub results: Vec<CallEnded>,
}

/// Where a turn stands that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Standing {
    /// It was taken in, and nobody has decided about it so far.
    Queued,
    /// Its next call waits.
    Waiting(Wait),
    /// Calls of it were admitted, and wait for a free worker.
    Dispatched,
    /// A worker has it, from this call on. Short calls behind it may be over.
    Running {
        /// The first call that has no result in Redis, `<turn>/<position>`.
        call: String,
    },
    /// It is being ended: its other calls will not run.
    Ending,
}

/// What a turn's next call waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// What it is.
    #[serde(flatten)]
    pub reason: WaitFor,
    /// Until when at most, or when it is looked at next, ms of shard time, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
}

/// The kinds of waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "for", rename_all = "snake_case")]
pub enum WaitFor {
    /// A cap or limit is used up, or turns of the agent that came before it do come before it.
    Limit {
        /// Which: the name of a limit, `calls per tick` or `actions per day`.
        limit: String,
    },
    /// An operator has paused its agent or its tenant.
    Pause {
        /// Why, as that one said.
        reason: String,
    },
    /// People have to agree.
    Approval {
        /// The approval.
        approval: String,
        /// The call, `<turn>/<position>`.
        call: String,
        /// Its tool.
        tool: String,
        /// Who has to agree, in words.
        needs: String,
    },
    /// A task that it has delegated.
    Task {
        /// Which.
        task: String,
    },
    /// Work that it has begun, or an equal call.
    Turn {
        /// The turn of that.
        turn: String,
    },
    /// Its next try, or the end of its tool's rest.
    NextTry,
}

/// The end of a call, without what it brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallEnded {
    /// The call, `<turn>/<position>`.
    pub call: String,
    /// The provider's id of it.
    pub tool_call_id: Option<String>,
    /// The tool as the model named it.
    pub tool: String,
    /// True if its outcome is `ok`.
    pub success: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// Tries; 0 if it never ran.
    pub attempts: u32,
}

impl From<&CallResult> for CallEnded {
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

/// Where these turns of one shard stand, each with the ends of its calls from that one on; none for each that is not under
/// way, and an error for each of which cannot be read what is kept: that is its own alone.
///
/// # Errors
/// [`StoreError`]: none of them could be looked at.
pub async fn stands(
    store: &Store,
    turns: &[(TurnName, usize)],
) -> Result<Vec<Result<Option<Stood>, StoreError>>, StoreError> {
    let found = store.followed_turns(turns).await?;
    let told = turns.iter().zip(found).map(async |((name, _), stand)| match stand? {
        Some(stand) => stood(store, name, stand).await.map(Some),
        None => Ok(None),
    });
    Ok(join_all(told).await)
}

async fn stood(store: &Store, name: &TurnName, stand: FollowedTurn) -> Result<Stood, StoreError> {
    let turn = &stand.turn;
    let standing = match &turn.state {
        State::Throttled { counter, .. } => Standing::Waiting(throttled(counter, &stand)),
        State::Retrying { .. } | State::Waiting { .. } => Standing::Waiting(parked(store, name, &stand).await?),
        State::Ready { .. } | State::Running { .. } if stand.is_held => {
            Standing::Running { call: format!("{}/{}", name.turn, turn.position) }
        }
        State::Ready { .. } | State::Running { .. } => Standing::Dispatched,
        State::Ending { .. } => Standing::Ending,
    };
    // An unreadable result ends the list: otherwise the caller would count later results as earlier ones.
    let results = stand.results.iter().map_while(|result| serde_json::from_str::<CallResult>(result).ok());
    let results = results.map(|result| CallEnded::from(&result)).collect();
    Ok(Stood { agent: turn.head.agent.to_string(), standing, results })
}

/// The wait of a call that was dispatched before.
async fn parked(store: &Store, name: &TurnName, stand: &FollowedTurn) -> Result<Wait, StoreError> {
    let state = &stand.turn.state;
    if let State::Waiting { reason: WaitReason::Approval { approval }, .. } = state
        && let Some(asked) = crate::approvals::find(store, &name.tenant, approval).await?
        && asked.state == "waiting"
    {
        let (needs, until_ms) = (asked.needed(), Some(asked.until_ms));
        let reason = WaitFor::Approval { approval: asked.id, call: asked.call, tool: asked.tool, needs };
        return Ok(Wait { reason, until_ms });
    }
    let reason = match state {
        State::Waiting { reason: WaitReason::Child { turn: awaits }, .. } if TaskId::new(awaits.as_str()).is_ok() => {
            WaitFor::Task { task: awaits.to_string() }
        }
        State::Waiting { reason, .. } => match reason {
            WaitReason::Child { turn } | WaitReason::Fact { turn } | WaitReason::EqualCall { turn } => {
                WaitFor::Turn { turn: turn.to_string() }
            }
            WaitReason::Budget { counter } => WaitFor::Limit { limit: limit_of(counter) },
            // A decided approval is called again, like a rest that is over.
            WaitReason::Approval { .. } | WaitReason::Breaker { .. } | WaitReason::Reader { .. } => WaitFor::NextTry,
        },
        _ => WaitFor::NextTry,
    };
    Ok(Wait { reason, until_ms: stand.timer_ms })
}

/// The wait of a call in a throttle queue.
fn throttled(counter: &CounterKey, stand: &FollowedTurn) -> Wait {
    if let Some(pause) = &stand.pause {
        return Wait { reason: WaitFor::Pause { reason: pause.reason.clone() }, until_ms: None };
    }
    Wait { reason: WaitFor::Limit { limit: limit_of(counter) }, until_ms: stand.due_ms }
}

/// The limit of a counter, in words if every fleet has it.
pub(crate) fn limit_of(counter: &CounterKey) -> String {
    match &*counter.limit {
        limits::TICK => "calls per tick".into(),
        limits::DAY | limits::TENANT_DAY => "actions per day".into(),
        limit => limit.to_owned(),
    }
}
