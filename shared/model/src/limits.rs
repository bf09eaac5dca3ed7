//! All fixed bounds. Relations between bounds are asserted at compile time. docs/reference/limits-and-defaults.md lists
//! the bounds, with these comments as their meanings.

/// Maximum bytes of a name: tenant, agent, inbox or tool. Long enough for a UUID with a prefix.
pub const NAME_BYTES_MAX: usize = 64;
/// Maximum bytes of a turn, task or consumer id. Long enough for two UUIDs.
pub const ID_BYTES_MAX: usize = 96;
/// Maximum bytes of a tool name in a call. Larger than [`NAME_BYTES_MAX`]: a call with a long invented name ends as
/// `unknown_tool`, but does not make the whole turn invalid.
pub const TOOL_NAME_BYTES_MAX: usize = 256;
/// Maximum bytes of a `correlation_id`.
pub const CORRELATION_ID_BYTES_MAX: usize = 256;
/// Maximum bytes of a `tracestate`, as W3C Trace Context recommends.
pub const TRACESTATE_BYTES_MAX: usize = 512;
/// Maximum bytes of the `lease` of an external task, which is the id of a stream entry.
pub const LEASE_BYTES_MAX: usize = 64;

/// Maximum number of calls in one turn. One commit contains the whole turn.
pub const CALLS_PER_TURN_MAX: usize = 128;
/// Maximum bytes of one turn as it is submitted.
pub const TURN_BYTES_MAX: usize = 1024 * 1024;
/// Maximum bytes of the arguments of one call.
pub const ARGUMENTS_BYTES_MAX: usize = 256 * 1024;
/// Maximum bytes of one tool's schema without whitespace.
pub const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// Maximum nesting depth of a turn or of arguments, below the 128 of serde_json.
pub const JSON_DEPTH_MAX: usize = 64;
/// Maximum bytes of `user_context`, `session_data` and `correlation_id` together.
pub const CONTEXT_BYTES_MAX: usize = 16 * 1024;
/// Maximum bytes of the text of a progress report.
pub const PROGRESS_BYTES_MAX: usize = 500;
/// Maximum bytes of one task description.
pub const TASK_DESCRIPTION_BYTES_MAX: usize = 64 * 1024;

/// Maximum bytes of the history of one task: about 1,000 results of 16 KiB.
pub const TASK_HISTORY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Maximum number of tasks in the list of a tenant, and in the list of subtasks. The oldest are removed first.
pub const TASKS_LISTED_MAX: u64 = 10_000;
/// Time for which a list of tasks is kept after its last addition: longer than any task lasts.
pub const TASKS_LISTED_MS: i64 = DEADLINE_MS_MAX + 24 * 3_600_000;

/// Maximum bytes of a message between agents.
pub const MESSAGE_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of unread messages of one agent. Further messages are rejected.
pub const MESSAGES_UNREAD_MAX: usize = 100;
/// Maximum number of read messages of one agent that are remembered, so that no message is delivered twice.
pub const MESSAGES_READ_MAX: usize = 100;
/// Time for which a message is kept.
pub const MESSAGES_KEPT_MS: i64 = 7 * 24 * 3_600_000;
/// Time for which the messages that a `read_messages` call returned are remembered, for retries of that call.
pub const MESSAGES_HEARD_MS: i64 = DEADLINE_DEFAULT_MS;

/// Maximum bytes of an output that the read cache stores. Larger outputs are not cached.
pub const CACHED_OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of cached outputs of one tenant.
pub const CACHED_ANSWERS_MAX: usize = 10_000;
/// Maximum bytes of the cached outputs of one tenant. The output that expires first is evicted first.
pub const CACHED_TENANT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Maximum number of paused tenants, agents and tools of a shard.
pub const PAUSES_MAX: usize = 1_000;

/// Maximum number of drained workers.
pub const DRAINS_MAX: usize = 1_000;

/// Maximum number of dead workers' drain flags that a single cleanup step removes.
pub const DRAINS_FORGOTTEN_MAX: usize = 100;

/// Maximum number of exchanges that a conversation keeps.
pub const SESSION_EXCHANGES_MAX: u64 = 50;
/// Maximum bytes that a conversation keeps.
pub const SESSION_BYTES_MAX: usize = 256 * 1024;
/// Maximum bytes of one answer that a conversation keeps.
pub const SESSION_ANSWER_BYTES_MAX: usize = 32 * 1024;
/// Time for which a conversation is kept after its last message.
pub const SESSION_KEPT_MS: i64 = 7 * 24 * 3_600_000;

/// Maximum bytes of a reason, such as that of a cancellation, and of a producer's message.
pub const REASON_BYTES_MAX: usize = 1_000;
/// Time for which a cancel request waits for a turn or task that has not arrived.
pub const EARLY_CANCEL_MS: i64 = DEADLINE_DEFAULT_MS;
/// Maximum number of waiting cancel requests of one tenant: about 5 MB with the longest reasons.
pub const EARLY_CANCELS_MAX: usize = 4_096;
/// Maximum number of capabilities that a task can name.
pub const TASK_CAPABILITIES_MAX: usize = 128;

/// Maximum number of limits in one configuration. Each limit is evaluated for every call.
pub const LIMITS_MAX: usize = 64;
/// Maximum number of counters of one limit in one shard: about 200 MB.
pub const LIMIT_KEYS_MAX: u64 = 1_000_000;

/// Maximum number of approvals of a tenant that wait at the same time.
pub const APPROVALS_WAITING_MAX: u64 = 1_000;
/// Maximum number of approvals of one agent that wait at the same time, so that no agent uses up the tenant's bound.
pub const APPROVALS_WAITING_OF_AGENT_MAX: u64 = APPROVALS_WAITING_MAX / 4;
/// Maximum bytes of the arguments of one approval. Approvers must see all arguments, so a call with more bytes
/// cannot be approved. All waiting approvals of a tenant take at most 16 MiB, those of one agent at most 4 MiB.
pub const APPROVAL_ARGUMENTS_BYTES_MAX: usize = 16 * 1024;
/// Maximum bytes of the short form of an approval's arguments, for lists, webhooks and API keys that may not decide.
pub const APPROVAL_SHORT_BYTES_MAX: usize = 4 * 1024;
/// Maximum bytes of the values that an approver changes.
pub const APPROVAL_NARROWED_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of approvers.
pub const APPROVERS_MAX: usize = 1_000;
/// Maximum number of roles of one approver.
pub const APPROVER_ROLES_MAX: usize = 32;
/// Maximum number of approvals that a call can require.
pub const APPROVERS_QUORUM_MAX: u32 = 16;

/// Maximum number of rules of one tool. Each rule is evaluated for every call.
pub const RULES_PER_TOOL_MAX: usize = 32;
/// Maximum number of facts in each of a tool's four lists: facts to require, forbid, set and clear.
pub const FACTS_PER_TOOL_MAX: usize = 16;
/// Maximum number of facts of one session, about 200 bytes each. A call that would exceed this number does not run.
pub const FACTS_PER_SESSION_MAX: usize = 512;
/// Maximum bytes of one condition.
pub const RULE_BYTES_MAX: usize = 4 * 1024;
/// Maximum number of nodes of one condition: names, constants, operators.
pub const RULE_NODES_MAX: usize = 512;
/// Maximum nesting depth of one condition.
pub const RULE_DEPTH_MAX: u16 = 64;
/// Maximum nesting of `all`, `exists` and `exists_one`.
pub const RULE_QUANTIFIERS_MAX: usize = 2;
/// Maximum number of evaluation steps of all rules of one call: a few milliseconds. A typical rule takes fewer
/// than 20 steps.
pub const RULE_WORK_MAX: usize = 100_000;
/// Maximum bytes of a text that is matched against a pattern.
pub const RULE_PATTERN_TEXT_BYTES_MAX: usize = 8 * 1024;

/// Maximum bytes of all tool lists in one shard. Agents with the same tools share a list.
pub const TOOL_LISTS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of tools in `allowed_tools` of a turn or task.
pub const ALLOWED_TOOLS_MAX: usize = 128;

/// Default of `worker.output_bytes_max`: the maximum bytes of one call's output in a result.
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Maximum bytes of an output that are checked against the output schema. Longer outputs fail the check.
pub const OUTPUT_CHECKED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of values in one JSON document, about 70 bytes of memory each.
pub const JSON_VALUES_MAX: usize = 200_000;
/// Maximum bytes of all outputs of one turn, and maximum of `worker.output_bytes_max`.
pub const TURN_OUTPUT_BYTES_MAX: usize = 512 * 1024;

/// Returns the maximum bytes of one call's output in a turn with this number of calls. The result is at most `max`. The
/// share of each call is fixed. So the result of a call does not depend on which worker ran the earlier calls, or when.
#[must_use]
pub const fn output_bytes_max(calls: usize, max: usize) -> usize {
    let share = TURN_OUTPUT_BYTES_MAX / if calls == 0 { 1 } else { calls };
    if share < max { share } else { max }
}
/// Maximum bytes of an error message.
pub const ERROR_BYTES_MAX: usize = 1_000;
/// Maximum number of replayed or dropped calls of a shard that the audit log still contains. Beyond this
/// number, replay and drop are rejected.
pub const HANDLED_CALLS_MAX: usize = 100_000;
/// Time for which daily call counts are kept.
pub const STATS_KEPT_MS: i64 = 400 * 24 * 3_600_000;
/// Maximum number of separate counters for a tenant on one day. Further counts go to an overflow counter.
pub const STATS_FIELDS_MAX: u64 = 20_000;
/// Number of days for which model usage is kept.
pub const USAGE_DAYS_MAX: i64 = 40;
/// Maximum number of agents of a tenant for which daily usage is counted separately.
pub const USAGE_AGENTS_MAX: usize = 1_000;
/// Maximum tokens of one model response that are counted.
pub const ANSWER_TOKENS_MAX: u64 = 1_000_000_000;
/// Maximum cost of one model response that is counted, in millionths.
pub const ANSWER_COST_MAX: u64 = 1_000_000_000_000;
/// Default maximum characters of a result in the audit log.
pub const AUDIT_RESULT_CHARS: usize = 1_000;
/// Maximum bytes of redacted arguments in the audit log.
pub const AUDIT_ARGUMENTS_BYTES_MAX: usize = 8 * 1024;
/// Maximum bytes of the reply to a rejected message.
pub const REFUSED_REPLY_BYTES_MAX: usize = 2 * TURN_BYTES_MAX + 256 * 1024;
/// Maximum bytes of an oversized message that are searched for its id and inbox.
pub const SALVAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Maximum bytes of one message of an MCP server.
pub const MCP_MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of tools of one MCP server.
pub const MCP_TOOLS_MAX: usize = 512;
/// Maximum bytes of the tool list of one server, all pages together.
pub const MCP_LIST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of values in all schemas of a tool list, about 70 bytes of memory each.
pub const MCP_LIST_VALUES_MAX: usize = 200_000;
/// Maximum number of empty pages of a tool list.
pub const MCP_EMPTY_PAGES_MAX: usize = 8;
/// Maximum number of content blocks in one result. Further blocks are only counted.
pub const MCP_BLOCKS_MAX: usize = 1_000;
/// Maximum bytes of one tool definition.
pub const MCP_DEFINITION_BYTES_MAX: usize = 64 * 1024;
/// Maximum nesting depth of a schema in a tool definition: the lock file adds five levels, and YAML files allow 64.
pub const MCP_SCHEMA_DEPTH_MAX: usize = 48;
/// Maximum bytes of a member name in a tool definition. A YAML key allows 1,024 characters, and one byte can be escaped
/// to six characters.
pub const MCP_SCHEMA_KEY_BYTES_MAX: usize = 160;

/// Maximum number of documents of one tenant's knowledge base.
pub const DOCUMENTS_MAX: usize = 10_000;
/// Maximum bytes of one tenant's knowledge base in Redis, embeddings included. A searching worker needs about three
/// times as much memory.
pub const KNOWLEDGE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum bytes of one document's text, about 80 pages.
pub const DOCUMENT_BYTES_MAX: usize = 512 * 1024;
/// Maximum number of passages of one document.
pub const DOCUMENT_PASSAGES_MAX: usize = 4_096;
/// Maximum bytes of a document's title, source or category.
pub const DOCUMENT_NAME_BYTES_MAX: usize = 512;
/// Maximum dimensions of one embedding.
pub const EMBEDDING_NUMBERS_MAX: usize = 4_096;
/// Maximum number of calls of other tools within one call.
pub const INNER_CALLS_MAX: usize = 32;
/// Maximum nesting depth of calls within calls.
pub const INNER_DEPTH_MAX: usize = 3;
/// Approximate number of characters of a passage.
pub const PASSAGE_CHARS: usize = 1_000;
/// Maximum bytes of a search text.
pub const QUERY_BYTES_MAX: usize = 4 * 1024;

/// Maximum number of memories of one agent. The oldest are removed first.
pub const MEMORIES_MAX: usize = 1_000;
/// Maximum bytes of one agent's memories.
pub const MEMORIES_BYTES_MAX: usize = 1024 * 1024;
/// Maximum bytes of one memory.
pub const MEMORY_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of tags of one memory.
pub const MEMORY_TAGS_MAX: usize = 16;

/// Maximum bytes of the dead letters in one shard.
pub const DEAD_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Maximum number of entries of one batch. Redis serves other clients between batches.
pub const BATCH_ENTRIES_MAX: usize = 256;
/// Default number of turns per commit, which takes Redis about 6 ms.
pub const BATCH_TURNS_USUAL: usize = 64;
/// Maximum number of calls of one batch, which take Redis about 2 ms.
pub const BATCH_CALLS_MAX: usize = 1_000;
/// Maximum bytes of one batch.
pub const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum bytes of results per commit.
pub const SETTLE_BYTES_MAX: usize = TURN_OUTPUT_BYTES_MAX;

/// A slice is quarantined after it has crashed this many workers while it ran alone.
pub const CRASHES_MAX: u32 = 3;
/// Number of times that an unreadable slice is offered to other workers, after 1, 2, 4 … seconds. In total this takes
/// four minutes, so that a rollout can finish.
pub const UNREAD_OFFERS_MAX: u32 = 8;
/// Longest `Retry-After` for which a call waits. A longer `Retry-After` ends the call.
pub const RETRY_AFTER_MS_MAX: u64 = 60_000;
/// Default deadline of a turn or task, counted from its submission.
pub const DEADLINE_DEFAULT_MS: i64 = 24 * 3_600_000;
/// Latest deadline of a turn or task, counted from its submission.
pub const DEADLINE_MS_MAX: i64 = 30 * 24 * 3_600_000;
/// Maximum depth of delegation from task to task.
pub const DELEGATION_DEPTH_MAX: u32 = 5;
/// Maximum number of calls of a task that sets no budget.
pub const TASK_BUDGET_DEFAULT: u32 = 100;

/// Shortest lease. If a lease were shorter, a stalled Redis would make workers look dead.
pub const LEASE_MS_MIN: u64 = 1_000;
/// Longest lease. The work of a dead worker waits until its lease ends.
pub const LEASE_MS_MAX: u64 = 600_000;
/// Number of heartbeats that a worker sends during one lease.
pub const BEATS_PER_LEASE: u64 = 4;
/// A blocking read lasts at most the lease divided by this number.
pub const BLOCK_FRACTION: u64 = 4;

/// The longest wait for `Retry-After` is far below the default deadline.
const _: () = assert!((RETRY_AFTER_MS_MAX as i64) < DEADLINE_DEFAULT_MS);
/// A worker can miss several heartbeats before it counts as dead.
const _: () = assert!(BEATS_PER_LEASE >= 3);
/// In the longest turn, each call may still return at least 4 KiB of output.
const _: () = assert!(output_bytes_max(CALLS_PER_TURN_MAX, OUTPUT_BYTES_MAX) >= 4 * 1024);
/// A blocking read lasts less than half a lease.
const _: () = assert!(BLOCK_FRACTION > 2);
/// The reply to a rejected message fits a batch.
const _: () = assert!(REFUSED_REPLY_BYTES_MAX <= BATCH_BYTES_MAX);
/// One turn fits a batch.
const _: () = assert!(TURN_BYTES_MAX <= BATCH_BYTES_MAX && CALLS_PER_TURN_MAX <= BATCH_CALLS_MAX);
const _: () = assert!(ARGUMENTS_BYTES_MAX < TURN_BYTES_MAX && CONTEXT_BYTES_MAX < TURN_BYTES_MAX);
/// The knowledge base can store any document with its embeddings, and an agent can store any memory.
const _: () =
    assert!((DOCUMENT_BYTES_MAX as u64) * 16 < KNOWLEDGE_BYTES_MAX && MEMORY_BYTES_MAX * 16 < MEMORIES_BYTES_MAX);
