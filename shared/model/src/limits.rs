//! All fixed bounds. Relations between bounds are asserted at compile time. docs/reference/limits-and-defaults.md lists
//! the bounds.

/// Tenant, agent, inbox or tool. Long enough for a UUID with a prefix.
pub const NAME_BYTES_MAX: usize = 64;
/// Turn, task or consumer. Long enough for two UUIDs.
pub const ID_BYTES_MAX: usize = 96;
/// Larger than [`NAME_BYTES_MAX`]: a call with a long invented name ends as `unknown_tool`, but does not make the
/// whole turn invalid.
pub const TOOL_NAME_BYTES_MAX: usize = 256;
pub const CORRELATION_ID_BYTES_MAX: usize = 256;
/// The maximum that W3C Trace Context recommends.
pub const TRACESTATE_BYTES_MAX: usize = 512;
/// The lease of an external task is the ID of a stream entry.
pub const LEASE_BYTES_MAX: usize = 64;

/// One commit contains the whole turn.
pub const CALLS_PER_TURN_MAX: usize = 128;
pub const TURN_BYTES_MAX: usize = 1024 * 1024;
pub const ARGUMENTS_BYTES_MAX: usize = 256 * 1024;
pub const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// Below the 128 of serde_json.
pub const JSON_DEPTH_MAX: usize = 64;
/// `user_context`, `session_data` and `correlation_id` together.
pub const CONTEXT_BYTES_MAX: usize = 16 * 1024;
pub const PROGRESS_BYTES_MAX: usize = 500;
pub const TASK_DESCRIPTION_BYTES_MAX: usize = 64 * 1024;

/// About 1,000 results of 16 KiB.
pub const TASK_HISTORY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Maximum number of tasks in the list of a tenant, and in the list of subtasks. The oldest are removed first.
pub const TASKS_LISTED_MAX: u64 = 10_000;
/// Kept after the last addition for longer than any task lasts.
pub const TASKS_LISTED_MS: i64 = DEADLINE_MS_MAX + 24 * 3_600_000;

pub const MESSAGE_BYTES_MAX: usize = 8 * 1024;
/// Per agent. Further messages are rejected.
pub const MESSAGES_UNREAD_MAX: usize = 100;
/// Read messages of an agent are remembered, so that no message is delivered twice.
pub const MESSAGES_READ_MAX: usize = 100;
pub const MESSAGES_KEPT_MS: i64 = 7 * 24 * 3_600_000;
/// The messages that a `read_messages` call returned are remembered for retries of that call.
pub const MESSAGES_HEARD_MS: i64 = DEADLINE_DEFAULT_MS;

/// Larger outputs are not cached.
pub const CACHED_OUTPUT_BYTES_MAX: usize = 64 * 1024;
pub const CACHED_ANSWERS_MAX: usize = 10_000;
/// The output that expires first is evicted first.
pub const CACHED_TENANT_BYTES_MAX: usize = 8 * 1024 * 1024;

pub const PAUSES_MAX: usize = 1_000;

pub const DRAINS_MAX: usize = 1_000;

/// The number of dead workers' drain flags that one cleanup step removes.
pub const DRAINS_FORGOTTEN_MAX: usize = 100;

/// Per conversation.
pub const SESSION_EXCHANGES_MAX: u64 = 50;
/// Per conversation.
pub const SESSION_BYTES_MAX: usize = 256 * 1024;
/// Per answer that a conversation keeps.
pub const SESSION_ANSWER_BYTES_MAX: usize = 32 * 1024;
/// Counted from the conversation's last message.
pub const SESSION_KEPT_MS: i64 = 7 * 24 * 3_600_000;

pub const REASON_BYTES_MAX: usize = 1_000;
/// Bounds the reason that results and records keep.
pub const CANCEL_REASON_BYTES_MAX: usize = 500;
/// How long a cancel request waits for a turn or task that has not arrived.
pub const EARLY_CANCEL_MS: i64 = DEADLINE_DEFAULT_MS;
/// Per tenant: about 3 MB with the longest reasons.
pub const EARLY_CANCELS_MAX: usize = 4_096;
pub const TASK_CAPABILITIES_MAX: usize = 128;

/// Each limit is evaluated for every call.
pub const LIMITS_MAX: usize = 64;
/// Counters of one limit in one shard: about 200 MB.
pub const LIMIT_KEYS_MAX: u64 = 1_000_000;

/// Per tenant.
pub const APPROVALS_WAITING_MAX: u64 = 1_000;
/// Smaller than the tenant's maximum, so that one agent cannot use it up.
pub const APPROVALS_WAITING_OF_AGENT_MAX: u64 = APPROVALS_WAITING_MAX / 4;
/// Approvers must see all arguments, so a call with more bytes cannot be approved. All waiting approvals of a tenant
/// take at most 16 MiB, those of one agent at most 4 MiB.
pub const APPROVAL_ARGUMENTS_BYTES_MAX: usize = 16 * 1024;
/// The short form is for lists, webhooks and API keys that may not decide.
pub const APPROVAL_SHORT_BYTES_MAX: usize = 4 * 1024;
pub const APPROVAL_NARROWED_BYTES_MAX: usize = 16 * 1024;
pub const APPROVERS_MAX: usize = 1_000;
pub const APPROVER_ROLES_MAX: usize = 32;
pub const APPROVERS_QUORUM_MAX: u32 = 16;

/// Each rule is evaluated for every call.
pub const RULES_PER_TOOL_MAX: usize = 32;
/// In each of a tool's four lists: facts to require, forbid, set and clear.
pub const FACTS_PER_TOOL_MAX: usize = 16;
/// About 200 bytes each. A call that would exceed this number does not run.
pub const FACTS_PER_SESSION_MAX: usize = 512;
pub const RULE_BYTES_MAX: usize = 4 * 1024;
/// Names, constants and operators of one condition.
pub const RULE_NODES_MAX: usize = 512;
pub const RULE_DEPTH_MAX: u16 = 64;
/// Nesting of `all`, `exists` and `exists_one`.
pub const RULE_QUANTIFIERS_MAX: usize = 2;
/// Evaluation steps of all rules of one call: a few milliseconds. A typical rule takes fewer than 20 steps.
pub const RULE_WORK_MAX: usize = 100_000;
/// A longer text is not matched against a pattern.
pub const RULE_PATTERN_TEXT_BYTES_MAX: usize = 8 * 1024;

/// In one shard. Agents with the same tools share a list.
pub const TOOL_LISTS_BYTES_MAX: usize = 64 * 1024 * 1024;
pub const ALLOWED_TOOLS_MAX: usize = 128;

/// Default of `worker.output_bytes_max`, for one call.
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Longer outputs fail the check against the output schema.
pub const OUTPUT_CHECKED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// In one document, about 70 bytes of memory each.
pub const JSON_VALUES_MAX: usize = 200_000;
/// All outputs of one turn together, and maximum of `worker.output_bytes_max`.
pub const TURN_OUTPUT_BYTES_MAX: usize = 512 * 1024;

/// Returns the maximum output of one call, at most `max`. The share of each call is fixed, so the result of a call does
/// not depend on which worker ran the earlier calls, or when.
#[must_use]
pub const fn output_bytes_max(calls: usize, max: usize) -> usize {
    let share = TURN_OUTPUT_BYTES_MAX / if calls == 0 { 1 } else { calls };
    if share < max { share } else { max }
}
pub const ERROR_BYTES_MAX: usize = 1_000;
/// Replayed or dropped calls of a shard that the audit log still contains. Beyond this number, replay and drop are
/// rejected.
pub const HANDLED_CALLS_MAX: usize = 100_000;
pub const STATS_KEPT_MS: i64 = 400 * 24 * 3_600_000;
/// Counters of a tenant on one day. Further counts go to an overflow counter.
pub const STATS_FIELDS_MAX: u64 = 20_000;
pub const USAGE_DAYS_MAX: i64 = 40;
/// Agents of a tenant with separate counters of daily usage.
pub const USAGE_AGENTS_MAX: usize = 1_000;
/// Tokens of one model response beyond this number are not counted.
pub const ANSWER_TOKENS_MAX: u64 = 1_000_000_000;
/// In millionths. Cost of one model response beyond this number is not counted.
pub const ANSWER_COST_MAX: u64 = 1_000_000_000_000;
/// Default characters of a result in the audit log.
pub const AUDIT_RESULT_CHARS: usize = 1_000;
pub const AUDIT_ARGUMENTS_BYTES_MAX: usize = 8 * 1024;
pub const REFUSED_REPLY_BYTES_MAX: usize = 2 * TURN_BYTES_MAX + 256 * 1024;
/// An oversized message is searched for its ID and inbox up to this number of bytes.
pub const SALVAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

pub const MCP_MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
pub const MCP_TOOLS_MAX: usize = 512;
/// Of one server, all pages together.
pub const MCP_LIST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// In all schemas of a tool list, about 70 bytes of memory each.
pub const MCP_LIST_VALUES_MAX: usize = 200_000;
pub const MCP_EMPTY_PAGES_MAX: usize = 8;
/// In one result. Further blocks are only counted.
pub const MCP_BLOCKS_MAX: usize = 1_000;
pub const MCP_DEFINITION_BYTES_MAX: usize = 64 * 1024;
/// The lock file adds five levels to a schema, and YAML files allow 64.
pub const MCP_SCHEMA_DEPTH_MAX: usize = 48;
/// Maximum length of a member's name. A YAML key allows 1,024 characters, and one byte can be escaped to six
/// characters.
pub const MCP_SCHEMA_KEY_BYTES_MAX: usize = 160;

pub const DOCUMENTS_MAX: usize = 10_000;
/// In Redis, embeddings included. A searching worker needs about three times as much memory.
pub const KNOWLEDGE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// About 80 pages.
pub const DOCUMENT_BYTES_MAX: usize = 512 * 1024;
pub const DOCUMENT_PASSAGES_MAX: usize = 4_096;
pub const DOCUMENT_NAME_BYTES_MAX: usize = 512;
pub const EMBEDDING_NUMBERS_MAX: usize = 4_096;
/// Calls of other tools within one call.
pub const INNER_CALLS_MAX: usize = 32;
pub const INNER_DEPTH_MAX: usize = 3;
/// Approximate.
pub const PASSAGE_CHARS: usize = 1_000;
pub const QUERY_BYTES_MAX: usize = 4 * 1024;

/// Per agent. The oldest are removed first.
pub const MEMORIES_MAX: usize = 1_000;
pub const MEMORIES_BYTES_MAX: usize = 1024 * 1024;
pub const MEMORY_BYTES_MAX: usize = 8 * 1024;
pub const MEMORY_TAGS_MAX: usize = 16;

pub const DEAD_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Redis serves other clients between batches.
pub const BATCH_ENTRIES_MAX: usize = 256;
/// Default number of turns per commit, which takes Redis about 6 ms.
pub const BATCH_TURNS_USUAL: usize = 64;
/// Redis needs about 2 ms for a batch of this size.
pub const BATCH_CALLS_MAX: usize = 1_000;
pub const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
pub const SETTLE_BYTES_MAX: usize = TURN_OUTPUT_BYTES_MAX;

/// A slice is quarantined after it has crashed this many workers while it ran alone.
pub const CRASHES_MAX: u32 = 3;
/// Number of times that an unreadable slice is offered to other workers, after 1, 2, 4 … seconds. In total this takes
/// four minutes, so that a rollout can finish.
pub const UNREAD_OFFERS_MAX: u32 = 8;
/// A longer `Retry-After` ends the call.
pub const RETRY_AFTER_MS_MAX: u64 = 60_000;
pub const DEADLINE_DEFAULT_MS: i64 = 24 * 3_600_000;
pub const DEADLINE_MS_MAX: i64 = 30 * 24 * 3_600_000;
pub const DELEGATION_DEPTH_MAX: u32 = 5;
pub const TASK_BUDGET_DEFAULT: u32 = 100;

/// With a shorter lease, a stalled Redis would make workers look dead.
pub const LEASE_MS_MIN: u64 = 1_000;
/// The work of a dead worker waits until its lease ends.
pub const LEASE_MS_MAX: u64 = 600_000;
pub const BEATS_PER_LEASE: u64 = 4;
/// A blocking read lasts at most the lease divided by this number.
pub const BLOCK_FRACTION: u64 = 4;

const _: () = assert!((RETRY_AFTER_MS_MAX as i64) < DEADLINE_DEFAULT_MS);
/// A worker can miss several heartbeats before it counts as dead.
const _: () = assert!(BEATS_PER_LEASE >= 3);
/// In the longest turn, each call may still return at least 4 KiB of output.
const _: () = assert!(output_bytes_max(CALLS_PER_TURN_MAX, OUTPUT_BYTES_MAX) >= 4 * 1024);
const _: () = assert!(BLOCK_FRACTION > 2);
const _: () = assert!(REFUSED_REPLY_BYTES_MAX <= BATCH_BYTES_MAX);
const _: () = assert!(TURN_BYTES_MAX <= BATCH_BYTES_MAX && CALLS_PER_TURN_MAX <= BATCH_CALLS_MAX);
const _: () = assert!(ARGUMENTS_BYTES_MAX < TURN_BYTES_MAX && CONTEXT_BYTES_MAX < TURN_BYTES_MAX);
/// The knowledge base can store any document with its embeddings, and an agent can store any memory.
const _: () =
    assert!((DOCUMENT_BYTES_MAX as u64) * 16 < KNOWLEDGE_BYTES_MAX && MEMORY_BYTES_MAX * 16 < MEMORIES_BYTES_MAX);
