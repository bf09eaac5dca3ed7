//! Every bound, in one place, with its reason. Their relations are asserted at compile time.

/// Names (tenant, agent, inbox, tool): long enough for a UUID with a prefix, short enough for a key.
pub const NAME_BYTES_MAX: usize = 64;
/// Turn, task and consumer ids: a producer may join two UUIDs.
pub const ID_BYTES_MAX: usize = 96;
/// The tool's name as a model said it. Longer than [`NAME_BYTES_MAX`], so that a made-up name costs its own
/// call (`unknown_tool`) and not the whole turn.
pub const TOOL_NAME_BYTES_MAX: usize = 256;
/// `correlation_id` is echoed only.
pub const CORRELATION_ID_BYTES_MAX: usize = 256;
/// Bytes of a `tracestate`: what the standard asks everybody to pass on.
pub const TRACESTATE_BYTES_MAX: usize = 512;
/// The `lease` of an external task is a stream entry's id: two 64-bit numbers and a dash, and room to spare.
pub const LEASE_BYTES_MAX: usize = 64;

/// Calls in one turn. Providers stop far earlier; one script unpacks a whole turn at most.
pub const CALLS_PER_TURN_MAX: usize = 128;
/// Bytes of one turn as it arrives on the stream.
pub const TURN_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of one call's arguments.
pub const ARGUMENTS_BYTES_MAX: usize = 256 * 1024;
/// Bytes of one tool's schema, written without spaces. The largest seen in the field have about 60 KiB.
pub const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// Nesting of a turn or of arguments. serde_json itself stops at 128.
pub const JSON_DEPTH_MAX: usize = 64;
/// Bytes of `user_context`, `session_data` and `correlation_id` together.
pub const CONTEXT_BYTES_MAX: usize = 16 * 1024;
/// Bytes of one task description.
pub const TASK_DESCRIPTION_BYTES_MAX: usize = 64 * 1024;

/// Bytes of the history of one task that is carried out in steps: some 1,000 results of 16 KiB.
pub const TASK_HISTORY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Tasks that are listed of a tenant, and as delegated from one task; older ones are left out first.
pub const TASKS_LISTED_MAX: u64 = 10_000;
/// How long such a list is kept after the last task was added: no task is under way longer.
pub const TASKS_LISTED_MS: i64 = DEADLINE_MS_MAX + 24 * 3_600_000;

/// Bytes of a message from agent to agent.
pub const MESSAGE_BYTES_MAX: usize = 8 * 1024;
/// Messages of one agent that are unread: whoever tells it more is refused.
pub const MESSAGES_UNREAD_MAX: usize = 100;
/// Messages of one agent that have been read and are remembered, so that they are not told twice.
pub const MESSAGES_READ_MAX: usize = 100;
/// How long a message is kept.
pub const MESSAGES_KEPT_MS: i64 = 7 * 24 * 3_600_000;
/// How long it is known which messages a call has read: as long as that call may be made again.
pub const MESSAGES_HEARD_MS: i64 = DEADLINE_DEFAULT_MS;

/// Bytes of an output that is kept for those who ask the same: a larger one is asked for again.
pub const CACHED_OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Answers of one tenant's reads that are kept.
pub const CACHED_ANSWERS_MAX: usize = 10_000;
/// Bytes of one tenant's answers that are kept: what would go first by its time makes room.
pub const CACHED_TENANT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Tenants and agents of a shard that may be paused at once: each look at what was set at run time reads them all.
pub const PAUSES_MAX: usize = 1_000;

/// Workers that operators have take no new work: each of their heartbeats looks for its own, and a list shows them all.
pub const DRAINS_MAX: usize = 1_000;

/// Drained workers that are gone and are forgotten in one step.
pub const DRAINS_FORGOTTEN_MAX: usize = 100;

/// Exchanges of a session that are kept.
pub const SESSION_EXCHANGES_MAX: u64 = 50;
/// Bytes of a session that are kept.
pub const SESSION_BYTES_MAX: usize = 256 * 1024;
/// Bytes of an answer that a session keeps.
pub const SESSION_ANSWER_BYTES_MAX: usize = 32 * 1024;
/// How long a session is kept after something was said last.
pub const SESSION_KEPT_MS: i64 = 7 * 24 * 3_600_000;

/// Bytes of a reason or message that a producer gives (cancel, fail).
pub const REASON_BYTES_MAX: usize = 1_000;
/// Bytes of a cancel's reason that are kept, for results, records and marks of cancels that came early.
pub const CANCEL_REASON_BYTES_MAX: usize = 500;
/// The time for which a cancel waits for a turn or task that has not come yet, ms: as long as either may wait by
/// default.
pub const EARLY_CANCEL_MS: i64 = DEADLINE_DEFAULT_MS;
/// Cancels of one tenant that wait for what has not come yet, at most: about 3 MB with the longest reasons.
pub const EARLY_CANCELS_MAX: usize = 4_096;
/// Capabilities that one task may name.
pub const TASK_CAPABILITIES_MAX: usize = 128;

/// Limits of one configuration: each is looked at for every call.
pub const LIMITS_MAX: usize = 64;
/// Counters that one limit may have in one shard: about 200 MB.
pub const LIMIT_KEYS_MAX: u64 = 1_000_000;

/// Approvals of a tenant that wait for people at the same time.
pub const APPROVALS_WAITING_MAX: u64 = 1_000;
/// Approvals of one agent of a tenant that wait at the same time: no agent takes the places of all others.
pub const APPROVALS_WAITING_OF_AGENT_MAX: u64 = APPROVALS_WAITING_MAX / 4;
/// Bytes of the arguments of a tenant's approvals that wait, together.
pub const APPROVALS_WAITING_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Bytes of the arguments of a call that people are asked about. Whoever decides sees them all, so a call with more is not
/// asked about.
pub const APPROVAL_ARGUMENTS_BYTES_MAX: usize = 64 * 1024;
/// Bytes of their short form, for lists, notices and whoever may not decide.
pub const APPROVAL_SHORT_BYTES_MAX: usize = 4 * 1024;
/// Bytes of the values that an approver gives instead of a call's.
pub const APPROVAL_NARROWED_BYTES_MAX: usize = 16 * 1024;
/// People who may approve.
pub const APPROVERS_MAX: usize = 1_000;
/// Roles of one of them.
pub const APPROVER_ROLES_MAX: usize = 32;
/// Approvers who have to agree to one call.
pub const APPROVERS_QUORUM_MAX: u32 = 16;

/// Rules of one tool: each is evaluated for every call of it.
pub const RULES_PER_TOOL_MAX: usize = 32;
/// Facts that a row of the permission matrix requires, forbids, sets and clears, of each at most.
pub const FACTS_PER_TOOL_MAX: usize = 16;
/// Facts that are kept for one session; each takes some 200 bytes. A call that would set another does not run.
pub const FACTS_PER_SESSION_MAX: usize = 512;
/// Bytes of one condition: a list of some hundred names fits in.
pub const RULE_BYTES_MAX: usize = 4 * 1024;
/// Parts (names, constants, operators) of one condition.
pub const RULE_NODES_MAX: usize = 512;
/// Levels of one condition: its evaluation goes as deep on the stack.
pub const RULE_DEPTH_MAX: u16 = 64;
/// `all`, `exists` and `exists_one` within each other.
pub const RULE_QUANTIFIERS_MAX: usize = 2;
/// Steps of work that all rules of one call may take together: some milliseconds, of a worker that renews its lease
/// every few seconds. A usual rule takes fewer than twenty.
pub const RULE_WORK_MAX: usize = 100_000;
/// Bytes of a text that is compared with a pattern.
pub const RULE_PATTERN_TEXT_BYTES_MAX: usize = 8 * 1024;

/// Bytes of all lists of tools that one shard holds for readers. Agents that may call the same tools share a list: some
/// hundred different lists of twenty tools fit, in every dialect.
pub const TOOL_LISTS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Tools that a turn or a task may be narrowed to, by name.
pub const ALLOWED_TOOLS_MAX: usize = 128;

/// Bytes of one call's output in a result: the one choke point that keeps contexts small.
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a result that are checked against the tool's output schema; what is longer does not fit it. As much as
/// an MCP server may send at once.
pub const OUTPUT_CHECKED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Values in JSON that is read whole: each takes some seventy bytes of memory, however short its text is.
pub const JSON_VALUES_MAX: usize = 200_000;
/// Bytes of all outputs of one turn: its reply and its record are written in one script, with its last result.
pub const TURN_OUTPUT_BYTES_MAX: usize = 512 * 1024;

/// Bytes of one call's output in a turn of so many calls. Each has its share, whatever the others return: what a call
/// is told must not depend on which worker ran the calls before it, or when.
#[must_use]
pub const fn output_bytes_max(calls: usize) -> usize {
    let share = TURN_OUTPUT_BYTES_MAX / if calls == 0 { 1 } else { calls };
    if share < OUTPUT_BYTES_MAX { share } else { OUTPUT_BYTES_MAX }
}
/// Bytes of an error message that a model reads.
pub const ERROR_BYTES_MAX: usize = 1_000;
/// Failed calls of a shard that operators are done with and that the audit log still has: beyond it, none is replayed or
/// dropped before old ones have gone.
pub const HANDLED_CALLS_MAX: usize = 100_000;
/// The time for which the counts of calls of a day are kept, ms (400 days).
pub const STATS_KEPT_MS: i64 = 400 * 24 * 3_600_000;
/// Counts of one day in one shard: what comes beyond is counted for its tenant as a whole.
pub const STATS_FIELDS_MAX: usize = 20_000;
/// The days for which what models have used is kept.
pub const USAGE_DAYS_MAX: i64 = 40;
/// Agents that a tenant's day tells apart there; all others count as one.
pub const USAGE_AGENTS_MAX: usize = 1_000;
/// Tokens that are believed of one answer: no model takes as many. What a provider says is added up for a day.
pub const ANSWER_TOKENS_MAX: u64 = 1_000_000_000;
/// Millionths that one answer may cost: likewise.
pub const ANSWER_COST_MAX: u64 = 1_000_000_000_000;
/// Bytes of a turn's log of admissions and failed tries: every verb that ends the turn reads it.
pub const LOG_BYTES_MAX: usize = 4 * 1024;
/// Characters of a result in the audit log.
pub const AUDIT_RESULT_CHARS: usize = 1_000;
/// Bytes of redacted arguments in the audit log: most calls whole, and no entry as large as a turn.
pub const AUDIT_ARGUMENTS_BYTES_MAX: usize = 8 * 1024;
/// Bytes of the reply to a message that is not accepted. The longest id of a message fits in twice (in its result and
/// in its message), and so do thousands of calls.
pub const REFUSED_REPLY_BYTES_MAX: usize = 2 * TURN_BYTES_MAX + 256 * 1024;
/// Bytes of an oversized message that are still searched for whom to answer.
pub const SALVAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of one message of an MCP server: a result may carry an image, of which models are only told.
pub const MCP_MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Tools that one MCP server may list; the largest public ones have about a hundred.
pub const MCP_TOOLS_MAX: usize = 512;
/// Bytes of the whole list, over all of its pages.
pub const MCP_LIST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Values in all schemas of the list: each takes some seventy bytes of memory once it is read.
pub const MCP_LIST_VALUES_MAX: usize = 200_000;
/// Pages of the list without a single tool.
pub const MCP_EMPTY_PAGES_MAX: usize = 8;
/// Blocks of content in one result of an MCP server: further ones are counted, not shown.
pub const MCP_BLOCKS_MAX: usize = 1_000;
/// Bytes of one tool's definition by an MCP server: models read all of it.
pub const MCP_DEFINITION_BYTES_MAX: usize = 64 * 1024;
/// Nesting of a schema in it. It is pinned in a file five levels deep, and files of a configuration have 64 levels.
pub const MCP_SCHEMA_DEPTH_MAX: usize = 48;
/// Bytes of a member's name in it. YAML takes 1,024 characters, and a byte may take six of them.
pub const MCP_SCHEMA_KEY_BYTES_MAX: usize = 160;

/// Documents of one tenant's knowledge base: their list is read whole when something has changed, some 4 MB.
pub const DOCUMENTS_MAX: usize = 10_000;
/// Bytes of one tenant's knowledge base in Redis, vectors included. A worker that searches it holds about three times as
/// much.
pub const KNOWLEDGE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Bytes of one document's text: a book of 80 pages. It is replaced in one script.
pub const DOCUMENT_BYTES_MAX: usize = 512 * 1024;
/// Passages of one document: each is embedded, and a text of nothing but headings would have tens of thousands.
pub const DOCUMENT_PASSAGES_MAX: usize = 4_096;
/// Bytes of a document's title, source or category.
pub const DOCUMENT_NAME_BYTES_MAX: usize = 512;
/// Numbers in one embedding; the largest public models have 4,096.
pub const EMBEDDING_NUMBERS_MAX: usize = 4_096;
/// Calls of other tools that one call of a tool makes: one that wants more is a task for an agent.
pub const INNER_CALLS_MAX: usize = 32;
/// Levels of calls within calls: as with tasks, what is deeper is a mistake.
pub const INNER_DEPTH_MAX: usize = 3;
/// Characters of a passage: what an embedding model reads whole, and a few of which fit a result.
pub const PASSAGE_CHARS: usize = 1_000;
/// Bytes of what is searched for.
pub const QUERY_BYTES_MAX: usize = 4 * 1024;

/// Memories of one agent; the oldest go first.
pub const MEMORIES_MAX: usize = 1_000;
/// Bytes of one agent's memories: they are read whole when something has changed.
pub const MEMORIES_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of one memory's text.
pub const MEMORY_BYTES_MAX: usize = 8 * 1024;
/// Tags of one memory.
pub const MEMORY_TAGS_MAX: usize = 16;

/// Bytes of the dead stream in one shard: its 10,000 entries at their usual size.
pub const DEAD_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Entries of one batch. Redis answers other clients between batches.
pub const BATCH_ENTRIES_MAX: usize = 256;
/// Turns that one script admits or settles, unless more is configured: with some 30 µs a turn it stays near 2 ms. In a
/// larger batch a turn costs as much: what a script takes for itself is some 0.5 % then.
pub const SCRIPT_TURNS_USUAL: usize = 64;
/// Calls of one batch: with about 2 µs a call a script stays near 2 ms.
pub const BATCH_CALLS_MAX: usize = 1_000;
/// Bytes of one batch.
pub const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes that one script moves where it must read them back from Redis, as `reap` does: about 2 ms. One entry may be
/// more.
pub const SCRIPT_BYTES_MAX: usize = 512 * 1024;
/// Bytes of results that one script settles: it copies them some eight times (record, reply, audit), and stays near 2 ms.
pub const SETTLE_BYTES_MAX: usize = TURN_OUTPUT_BYTES_MAX;
/// Values that a script unpacks onto Lua's stack at most (Lua itself stops near 8,000).
pub const UNPACK_MAX: usize = 1_000;

/// A slice that was started and lost this often is quarantined.
pub const CRASHES_MAX: u32 = 3;
/// A slice that a worker cannot read is offered to others this often, after 1, 2, 4… s: four minutes of a roll-out.
pub const UNREAD_OFFERS_MAX: u32 = 8;
/// `Retry-After` beyond this is a final failure, ms.
pub const RETRY_AFTER_MS_MAX: u64 = 60_000;
/// Deadline of whatever gives none, ms (24 h).
pub const DEADLINE_DEFAULT_MS: i64 = 24 * 3_600_000;
/// Furthest deadline that is accepted, ms (30 days).
pub const DEADLINE_MS_MAX: i64 = 30 * 24 * 3_600_000;
/// The depth to which tasks may delegate.
pub const DELEGATION_DEPTH_MAX: u32 = 5;
/// Actions of a task that asks for no budget of its own.
pub const TASK_BUDGET_DEFAULT: u32 = 100;

/// Shortest lease, ms: shorter, and a stalled Redis looks like a dead worker.
pub const LEASE_MS_MIN: u64 = 1_000;
/// Longest lease, ms: what a dead process held waits for its end.
pub const LEASE_MS_MAX: u64 = 600_000;
/// Timers, of turns and of lanes, that one script counts turns by, to compare tenants' counters with them: with so many
/// it takes some 10 ms.
pub const REPAIR_COUNTED_MAX: u64 = 8_192;
/// A worker renews its lease this often per lease.
pub const BEATS_PER_LEASE: u64 = 4;
/// A blocking read lasts a lease divided by this at most, so that a beat is never far away.
pub const BLOCK_FRACTION: u64 = 4;

/// Retry-After waits are bounded far below any deadline.
const _: () = assert!((RETRY_AFTER_MS_MAX as i64) < DEADLINE_DEFAULT_MS);
/// A worker misses several beats before it is taken for dead.
const _: () = assert!(BEATS_PER_LEASE >= 3);
/// Even of the longest turn, each call can say something.
const _: () = assert!(output_bytes_max(CALLS_PER_TURN_MAX) >= 4 * 1024);
/// BLOCK < lease / 2 (rule 12).
const _: () = assert!(BLOCK_FRACTION > 2);
/// The reply to a refused message fits a batch.
const _: () = assert!(REFUSED_REPLY_BYTES_MAX <= BATCH_BYTES_MAX);
/// A whole turn with its bookkeeping fits one unpack.
const _: () = assert!(CALLS_PER_TURN_MAX * 4 < UNPACK_MAX);
/// One turn fits a batch.
const _: () = assert!(TURN_BYTES_MAX <= BATCH_BYTES_MAX && CALLS_PER_TURN_MAX <= BATCH_CALLS_MAX);
// Below the bound of one agent, neither that one nor the bound in bytes is reached: the script does not count then.
const _: () =
    assert!(APPROVALS_WAITING_OF_AGENT_MAX * (APPROVAL_ARGUMENTS_BYTES_MAX as u64) <= APPROVALS_WAITING_BYTES_MAX);
const _: () = assert!(ARGUMENTS_BYTES_MAX < TURN_BYTES_MAX && CONTEXT_BYTES_MAX < TURN_BYTES_MAX);
/// A document fits the knowledge base with room for its vectors, a memory its agent's, whatever is in them already.
const _: () =
    assert!((DOCUMENT_BYTES_MAX as u64) * 16 < KNOWLEDGE_BYTES_MAX && MEMORY_BYTES_MAX * 16 < MEMORIES_BYTES_MAX);
