//! Tools about the fleet itself. Every agent may call them unless a row of the permission matrix forbids it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_client::Reply;
use tickfleet_client::tasks::{HistoryStep, step_of};
use tickfleet_core::turn::Turn;
use tickfleet_core::turn::state::Finished;
use tickfleet_core::{Query, Stored, Value as StoreValue, keys::TurnName};
use tickfleet_model::{AgentId, Dialect, Effect, TaskId, TurnId};
use tickfleet_protocol::define;
use tickfleet_store::{Store, StoreError};

use crate::tools::{CallContext, ToolError, TypedTool, wording};

const DEFINITIONS_MAX: usize = 20;
const SUMMARY_BYTES_MAX: usize = 200;

#[must_use]
pub fn all(store: &Store) -> Vec<TypedTool> {
    vec![list_tools(), check_task(store.clone()), fetch_result(store.clone())]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListTools {
    /// Names of tools to define in full, at most 20. If omitted, all tools are listed in short form.
    #[serde(default)]
    #[schemars(length(max = DEFINITIONS_MAX))]
    names: Option<Vec<String>>,
    /// The dialect of the definitions. Default: raw.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    dialect: Option<Dialect>,
}

#[derive(Serialize, JsonSchema)]
struct Listed {
    /// The tools in order of their names: either names with short descriptions, or full definitions.
    tools: Vec<Value>,
    /// The number of tools that you may call.
    total: usize,
}

fn list_tools() -> TypedTool {
    TypedTool::new(
        "list_tools",
        "Lists the tools that you may call, each with a summary. Pass names to get their full definitions with the \
         schema of their arguments.",
        Effect::Read,
        |context: CallContext, args: ListTools| async move {
            let tools = context.tools.may_call(&context.tenant, &context.agent);
            let total = tools.len();
            let Some(names) = args.names else {
                let short = |spec: &tickfleet_model::ToolSpec| {
                    let description = wording::cut(spec.description.trim(), SUMMARY_BYTES_MAX);
                    serde_json::json!({"name": spec.name, "description": description, "effect": spec.effect})
                };
                return Ok(Listed { tools: tools.iter().map(|tool| short(&tool.spec)).collect(), total });
            };
            let wanted = tools.iter().filter(|tool| names.contains(&tool.spec.name)).take(DEFINITIONS_MAX);
            let specs: Vec<_> = wanted.map(|tool| &tool.spec).collect();
            match define(args.dialect.unwrap_or_default(), &specs) {
                Value::Array(tools) => Ok(Listed { tools, total }),
                _ => Err(ToolError::Permanent("This dialect has no definitions in JSON; ask for another.".into())),
            }
        },
    )
    .category("fleet")
    .answers_by_agent()
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CheckTask {
    /// The job ID that delegate_task returned.
    task_id: String,
}

#[derive(Serialize, JsonSchema)]
struct TaskStatus {
    /// The task's ID.
    task_id: String,
    /// `waiting`, `running` or `ended`.
    status: &'static str,
    /// The agent that carries it out.
    agent: String,
    /// The current step, if a model carries out the task: `plan`, `execute` or `answer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'static str>,
    /// The number of answers of its model so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    iterations: Option<usize>,
    /// When the task expires unless it is finished; only for a task that has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<String>,
    /// How the task ended (`ok`, `permanent`, `expired` …).
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    /// The error, if the task did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn check_task(store: Store) -> TypedTool {
    TypedTool::new(
        "check_task",
        "Reports the state of a task that you delegated: waiting, running or ended, and how. Its answer arrives \
         by itself; ask only if you need to know earlier. fetch_result returns its result.",
        Effect::Read,
        move |context: CallContext, args: CheckTask| {
            let store = store.clone();
            async move {
                let task = TaskId::new(&args.task_id).map_err(|_| unknown_id("task", &args.task_id))?;
                let name = TurnName::task(&context.tenant, &task);
                match look_up(&store, &name).await? {
                    TurnLookup::Live(live) => {
                        let status = live_task(&store, &name, &live, &context.agent).await?;
                        let steps = store.steps(&name, 0).await.map_err(|e| ToolError::Transient(e.to_string()))?;
                        let steps: Vec<HistoryStep> = steps.iter().map(|entry| HistoryStep::read(entry)).collect();
                        let (step, iterations) = step_of(&steps).unzip();
                        Ok(TaskStatus { step, iterations, ..status })
                    }
                    TurnLookup::Finished(finished) => ended_task(&finished, &context.agent, &args.task_id),
                    TurnLookup::Unknown => Err(unknown_id("task", &args.task_id)),
                }
            }
        },
    )
    .category("fleet")
    .answers_by_agent()
}

async fn live_task(
    store: &Store,
    name: &TurnName,
    live: &Stored<Turn>,
    asker: &AgentId,
) -> Result<TaskStatus, ToolError> {
    let task_id = name.turn.as_str();
    if !is_delegator(&live.value, asker) {
        return Err(unknown_id("task", task_id));
    }
    Ok(TaskStatus {
        task_id: task_id.to_owned(),
        status: if is_held(store, name, live).await? { "running" } else { "waiting" },
        agent: live.value.head.agent.to_string(),
        step: None,
        iterations: None,
        deadline: Some(tickfleet_engine::time::rfc3339(live.value.head.deadline_ms)),
        outcome: None,
        error: None,
    })
}

async fn is_held(store: &Store, name: &TurnName, live: &Stored<Turn>) -> Result<bool, ToolError> {
    let Some(entry) = live.in_flight_entry() else { return Ok(false) };
    let holder = Query::Holder(live.value.queue(&name.tenant), entry.clone());
    let holder = store.query(holder).await.map_err(store_error)?;
    Ok(matches!(holder, StoreValue::Holder(Some(_))))
}

pub(crate) fn is_delegator(turn: &Turn, asker: &AgentId) -> bool {
    // The last agent in the chain has delegated the task.
    let delegator = turn.head.task.as_ref().and_then(|(_, grant)| grant.chain.last());
    turn.is_task() && delegator == Some(asker)
}

fn ended_task(finished: &Finished, asker: &AgentId, task_id: &str) -> Result<TaskStatus, ToolError> {
    let reply = reply(finished)?;
    if reply.delegator.as_deref() != Some(asker.as_str()) {
        return Err(unknown_id("task", task_id));
    }
    let result = reply.results.first();
    Ok(TaskStatus {
        task_id: task_id.to_owned(),
        status: "ended",
        agent: reply.agent,
        step: None,
        iterations: None,
        deadline: None,
        outcome: result.map(|result| result.outcome.as_str().to_owned()),
        error: result.and_then(|result| result.error.as_ref()).map(|error| error.message.clone()),
    })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FetchResult {
    /// ID of one of your turns, or of a task that you delegated or worked on.
    id: String,
    /// Position of the call whose result you want, from 0. Default: the first call.
    #[serde(default)]
    position: usize,
}

#[derive(Serialize, JsonSchema)]
struct Fetched {
    /// The ID of the turn or task.
    id: String,
    /// The number of results.
    results: usize,
    /// How the call ended.
    outcome: String,
    /// The call's output.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    output: Option<Box<RawValue>>,
    /// The error, if the call did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn fetch_result(store: Store) -> TypedTool {
    TypedTool::new(
        "fetch_result",
        "Returns the result of a call of one of your earlier turns, or of a task that you delegated, while results \
         are kept. A result that was truncated when it arrived stays truncated.",
        Effect::Read,
        move |context: CallContext, args: FetchResult| {
            let store = store.clone();
            async move {
                let turn = TurnId::new(&args.id).map_err(|_| unknown_id("turn or task", &args.id))?;
                let name = TurnName { tenant: context.tenant.clone(), turn };
                let finished = match look_up(&store, &name).await? {
                    TurnLookup::Finished(finished) => finished,
                    TurnLookup::Live(live) if live.value.head.agent == context.agent => {
                        return Err(ToolError::Permanent(format!("{:?} has not ended yet. Ask again later.", args.id)));
                    }
                    TurnLookup::Live(_) | TurnLookup::Unknown => return Err(unknown_id("turn or task", &args.id)),
                };
                fetched(&finished, &context.agent, &args)
            }
        },
    )
    .category("fleet")
    .answers_by_agent()
}

fn fetched(finished: &Finished, asker: &AgentId, args: &FetchResult) -> Result<Fetched, ToolError> {
    let mut reply = reply(finished)?;
    if reply.agent != asker.as_str() && reply.delegator.as_deref() != Some(asker.as_str()) {
        return Err(unknown_id("turn or task", &args.id));
    }
    let results = reply.results.len();
    if args.position >= results {
        return Err(ToolError::Permanent(format!("{:?} has {results} results; position counts from 0.", args.id)));
    }
    let result = reply.results.swap_remove(args.position);
    Ok(Fetched {
        id: args.id.clone(),
        results,
        outcome: result.outcome.as_str().to_owned(),
        output: result.output,
        error: result.error.map(|error| error.message),
    })
}

pub(crate) enum TurnLookup {
    Live(Box<Stored<Turn>>),
    Finished(Box<Finished>),
    /// Also for a turn or task that ended so long ago that its records are no longer kept.
    Unknown,
}

/// Reads the records in the order of a turn's states, so that a turn that ends between the two reads is found.
pub(crate) async fn look_up(store: &Store, name: &TurnName) -> Result<TurnLookup, ToolError> {
    let queries = [name.record(), name.finished()].map(Query::Record);
    let mut values = store.seam().read(&queries).await.map_err(store_error)?.into_iter();
    let unreadable = |why| ToolError::internal(format!("record of {name}: {why}"));
    if let Some(StoreValue::Record(Some(live))) = values.next() {
        return Ok(TurnLookup::Live(Box::new(Stored::read(&live).map_err(unreadable)?)));
    }
    if let Some(StoreValue::Record(Some(finished))) = values.next() {
        return Ok(TurnLookup::Finished(Box::new(Stored::read(&finished).map_err(unreadable)?.value)));
    }
    Ok(TurnLookup::Unknown)
}

fn store_error(error: StoreError) -> ToolError {
    ToolError::Transient(error.to_string())
}

pub(crate) fn reply(finished: &Finished) -> Result<Reply, ToolError> {
    if finished.reply.is_empty() {
        let message = "Its results were not stored: memory was short when it ended, so only its reply contained them.";
        return Err(ToolError::Permanent(message.into()));
    }
    serde_json::from_str(&finished.reply).map_err(ToolError::internal)
}

/// The message is the same for unknown IDs and for IDs of other agents, so that agents cannot probe for IDs.
pub(crate) fn unknown_id(what: &str, id: &str) -> ToolError {
    let id = wording::cut(id, 80);
    ToolError::Permanent(format!(
        "You have no {what} {id:?}: it is unknown, belongs to another agent, or ended longer ago than results are kept."
    ))
}
