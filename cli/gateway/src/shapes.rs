//! The shapes of what the protocol reads and writes, for the OpenAPI document alone.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A turn: the tool calls of one model response, as `docs/protocol.md` has it. Give the calls in one of `calls`, `tool_calls`
/// (OpenAI Chat), `content` (Anthropic Messages) or `answer` (a model that answers in words).
#[derive(Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "the shape of a body that the protocol's own parser reads")]
pub(crate) struct TurnBody {
    /// The agent that makes the calls.
    #[schema(example = "kelly")]
    agent: String,
    /// The key's tenant; leave it out.
    tenant: Option<String>,
    /// An id of your own: sent again under it, the turn is carried out once. Ids that the fleet derives from others, such as
    /// `job.step-1`, are refused.
    turn_id: Option<String>,
    /// The task of this agent that the turn is made for, whose budget it debits.
    task_id: Option<String>,
    /// Refused: a gateway keeps the reply itself.
    reply_to: Option<String>,
    /// `low`, `normal`, `high` or `urgent`.
    priority: Option<String>,
    /// When it expires, RFC 3339; 24 hours from now unless said otherwise.
    deadline: Option<String>,
    /// The calls: `{id?, name, arguments}`.
    #[schema(example = json!([{"name": "echo", "arguments": {"text": "hi"}}]))]
    calls: Option<Vec<Map<String, Value>>>,
    /// The calls as OpenAI Chat gives them.
    tool_calls: Option<Vec<Map<String, Value>>>,
    /// An assistant's content as Anthropic gives it.
    content: Option<Vec<Map<String, Value>>>,
    /// A model's answer in words that holds calls.
    answer: Option<String>,
    /// The form of the calls, where the message leaves it open.
    format: Option<String>,
    /// True where the model was shown strict definitions.
    strict: Option<bool>,
    /// Why the model stopped, in the provider's word (`length`, `max_tokens`): the last call of a response that was cut is
    /// not carried out.
    stop_reason: Option<String>,
    /// The only tools that the calls may use, of those that the agent may call.
    allowed_tools: Option<Vec<String>>,
    /// True if consecutive calls of tools that only read may run at the same time.
    parallel_reads: Option<bool>,
    /// True if the audit entries of the calls come with the reply.
    tool_call_audits: Option<bool>,
    /// True if a note is written when a call waits for people's consent.
    pending_approval: Option<bool>,
    /// What tools and rules may know of the user.
    user_context: Option<Map<String, Value>>,
    /// The conversation's own data, for tools and rules.
    session_data: Option<Value>,
    /// The session that facts are kept for. A conversation with an agent that the key does not cover is refused.
    session_id: Option<String>,
    /// An id of your own that comes back with the reply.
    correlation_id: Option<String>,
    /// W3C trace context.
    traceparent: Option<String>,
    /// The vendors' data beside it.
    tracestate: Option<String>,
}

/// A task for an agent, as `docs/protocol.md` has it.
#[derive(Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "the shape of a body that the protocol's own parser reads")]
pub(crate) struct TaskBody {
    /// The agent that is to do it.
    #[schema(example = "kelly")]
    target_agent: String,
    /// What is to be done, in words.
    task_description: String,
    /// `delegate`, or left out.
    op: Option<String>,
    /// The key's tenant; leave it out.
    tenant: Option<String>,
    /// An id of your own: sent again under it, it is one task. Ids that the fleet derives from others, such as `ses-talk-1`,
    /// are refused.
    task_id: Option<String>,
    /// The agent that delegates it, one that the key covers. Left out with `parent_task_id`, it is the parent's agent.
    delegator: Option<String>,
    /// The task under way that it is delegated from, of an agent that the key covers. Its budget is debited.
    parent_task_id: Option<String>,
    /// Refused: a gateway keeps the reply itself.
    reply_to: Option<String>,
    /// Structured input beside the words.
    input: Option<Value>,
    /// `low`, `normal`, `high` or `urgent`.
    priority: Option<String>,
    /// When it expires, RFC 3339.
    deadline: Option<String>,
    /// Calls that turns under the task may make.
    budget: Option<u32>,
    /// Capabilities that turns under the task keep, of those that its delegator has.
    capabilities: Option<Vec<String>>,
    /// The only tools that turns under the task may use, of those that its agent may call.
    allowed_tools: Option<Vec<String>>,
    /// What tools and rules may know of the user.
    user_context: Option<Map<String, Value>>,
    /// The conversation's own data, for tools and rules.
    session_data: Option<Value>,
    /// The session that facts are kept for. A conversation with an agent that the key does not cover is refused.
    session_id: Option<String>,
    /// An id of your own that comes back with the reply.
    correlation_id: Option<String>,
    /// W3C trace context.
    traceparent: Option<String>,
    /// The vendors' data beside it.
    tracestate: Option<String>,
}

/// The reply to a turn or task: one result for every call, in call order.
#[derive(Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "the shape of what the protocol writes")]
pub(crate) struct ReplyBody {
    /// The turn; absent where the reply is about a task.
    turn_id: Option<String>,
    /// The task; absent where the reply is about a turn.
    task_id: Option<String>,
    /// Whose.
    tenant: String,
    /// The agent that made the calls.
    agent: String,
    /// `done`, `rejected` or `conflict`.
    status: String,
    /// The dialect of `messages`.
    dialect: String,
    /// Why it was refused, where it was.
    error: Option<ErrorBody>,
    /// One for every call, in call order.
    results: Vec<ResultBody>,
    /// Messages to append to the conversation, in the dialect that the turn came in; absent for plain turns.
    messages: Option<Value>,
}

/// The result of one call.
#[derive(Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "the shape of what the protocol writes")]
pub(crate) struct ResultBody {
    /// The provider's id of the call, unchanged.
    tool_call_id: Option<String>,
    /// Its own id, `<turn>/<position>`.
    call: String,
    /// The tool, as the model named it.
    tool: String,
    /// True if `outcome` is `ok`.
    success: bool,
    /// How it ended: `ok`, `denied`, `invalid_arguments`, `transient`, `outcome_unknown` …
    outcome: String,
    /// What the tool answered.
    output: Option<Value>,
    /// Why it failed, in words that a model can act on.
    error: Option<ErrorBody>,
    /// Milliseconds of the last try.
    duration_ms: u64,
    /// Tries; 0 if it never ran.
    attempts: u32,
}

/// An error within a reply.
#[derive(Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "the shape of what the protocol writes")]
pub(crate) struct ErrorBody {
    /// A word for programs.
    code: String,
    /// Words for people and models.
    message: String,
    /// What belongs to it.
    details: Option<Value>,
}
