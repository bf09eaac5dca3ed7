//! The shapes of protocol bodies, only for the OpenAPI document.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A turn: the tool calls of one model response. Supply the calls in exactly one of `calls`, `tool_calls` (OpenAI
/// Chat), `content` (Anthropic Messages) and `answer` (text of a model without function calling).
#[derive(Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "the shape of a body that the protocol's own parser reads")]
pub(crate) struct TurnBody {
    /// Agent that makes the calls.
    #[schema(example = "kelly")]
    agent: String,
    /// Tenant of the key. Usually omitted; another tenant is rejected.
    tenant: Option<String>,
    /// Your own id. A turn with an id that is already known runs once. Ids in the form of derived ids, such as
    /// `job.step-1`, are rejected.
    turn_id: Option<String>,
    /// Task of the agent whose budget the turn debits.
    task_id: Option<String>,
    /// Rejected: the gateway keeps the reply.
    reply_to: Option<String>,
    /// `low`, `normal`, `high` or `urgent`.
    priority: Option<String>,
    /// Expiry, RFC 3339. Default: 24 hours from now.
    deadline: Option<String>,
    /// Calls: `{id?, name, arguments}`.
    #[schema(example = json!([{"name": "echo", "arguments": {"text": "hi"}}]))]
    calls: Option<Vec<Map<String, Value>>>,
    /// Calls in the form of OpenAI Chat.
    tool_calls: Option<Vec<Map<String, Value>>>,
    /// Content of an assistant message in the form of Anthropic.
    content: Option<Vec<Map<String, Value>>>,
    /// Model output as text that contains calls.
    answer: Option<String>,
    /// Dialect of the calls, if the message leaves it open.
    format: Option<String>,
    /// True if the model had strict definitions.
    strict: Option<bool>,
    /// Stop reason of the provider (`length`, `max_tokens`). The last call of a truncated response does not run.
    stop_reason: Option<String>,
    /// Tools that the calls can use, among those of the agent.
    allowed_tools: Option<Vec<String>>,
    /// True if consecutive calls of read-only tools can run in parallel.
    parallel_reads: Option<bool>,
    /// True if the reply contains the audit entries of the calls.
    tool_call_audits: Option<bool>,
    /// True if an extra reply announces each call that waits for approval.
    pending_approval: Option<bool>,
    /// True if the client claims the calls of local tools, see `POST /v1/turns/{turn_id}/claim`.
    local_calls: Option<bool>,
    /// User data for tools and rules.
    user_context: Option<Map<String, Value>>,
    /// Conversation data for tools and rules.
    session_data: Option<Value>,
    /// Session of the facts. A conversation with an agent outside the key is rejected.
    session_id: Option<String>,
    /// Your own id, which the reply repeats.
    correlation_id: Option<String>,
    /// W3C trace context.
    traceparent: Option<String>,
    /// W3C trace state.
    tracestate: Option<String>,
}

/// A task for an agent.
#[derive(Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "the shape of a body that the protocol's own parser reads")]
pub(crate) struct TaskBody {
    /// Agent that receives the task.
    #[schema(example = "kelly")]
    target_agent: String,
    /// Task, in words.
    task_description: String,
    /// `delegate`, or omitted.
    op: Option<String>,
    /// Tenant of the key. Usually omitted; another tenant is rejected.
    tenant: Option<String>,
    /// Your own id. A task with an id that is already known runs once. Ids in the form of derived ids, such as
    /// `ses-talk-1`, are rejected.
    task_id: Option<String>,
    /// Agent that delegates the task; the key must cover it. With `parent_task_id`, defaults to the parent's agent.
    delegator: Option<String>,
    /// Running parent task, whose budget is debited. The key must cover its agent.
    parent_task_id: Option<String>,
    /// Rejected: the gateway keeps the reply.
    reply_to: Option<String>,
    /// Structured input.
    input: Option<Value>,
    /// `low`, `normal`, `high` or `urgent`.
    priority: Option<String>,
    /// Expiry, RFC 3339.
    deadline: Option<String>,
    /// Calls that turns under the task can make.
    budget: Option<u32>,
    /// Capabilities that turns under the task keep, among those of the delegator.
    capabilities: Option<Vec<String>>,
    /// Tools that turns under the task can use, among those of the agent.
    allowed_tools: Option<Vec<String>>,
    /// User data for tools and rules.
    user_context: Option<Map<String, Value>>,
    /// Conversation data for tools and rules.
    session_data: Option<Value>,
    /// Session of the facts. A conversation with an agent outside the key is rejected.
    session_id: Option<String>,
    /// Your own id, which the reply repeats.
    correlation_id: Option<String>,
    /// W3C trace context.
    traceparent: Option<String>,
    /// W3C trace state.
    tracestate: Option<String>,
}

/// The reply to a turn or task, with one result per call, in order.
#[derive(Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "the shape of what the protocol writes")]
pub(crate) struct ReplyBody {
    /// Turn. Absent in the reply to a task.
    turn_id: Option<String>,
    /// Task. Absent in the reply to a turn.
    task_id: Option<String>,
    /// Tenant.
    tenant: String,
    /// Agent that made the calls.
    agent: String,
    /// `done`, `rejected` or `conflict`.
    status: String,
    /// Dialect of `messages`.
    dialect: String,
    /// Reason of a rejection.
    error: Option<ErrorBody>,
    /// One result per call, in order.
    results: Vec<ResultBody>,
    /// Messages to append to the conversation, in the dialect of the turn. Absent for plain turns.
    messages: Option<Value>,
}

/// The result of one call.
#[derive(Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "the shape of what the protocol writes")]
pub(crate) struct ResultBody {
    /// Call id of the provider, unchanged.
    tool_call_id: Option<String>,
    /// Call id of the fleet, `<turn>/<position>`.
    call: String,
    /// Tool, as the model named it.
    tool: String,
    /// True if `outcome` is `ok`.
    success: bool,
    /// `ok`, `denied`, `invalid_arguments`, `transient`, `outcome_unknown` …
    outcome: String,
    /// Output of the tool.
    output: Option<Value>,
    /// Error, in words that a model can act on.
    error: Option<ErrorBody>,
    /// Duration of the last attempt in milliseconds.
    duration_ms: u64,
    /// Number of attempts. 0 if the call never ran.
    attempts: u32,
}

/// An error within a reply.
#[derive(Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "the shape of what the protocol writes")]
pub(crate) struct ErrorBody {
    /// Error code for programs.
    code: String,
    /// Message for people and models.
    message: String,
    /// Details that depend on the code.
    details: Option<Value>,
}
