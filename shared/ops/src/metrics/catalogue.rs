//! The table of all metrics. The page `docs/reference/metrics.md` is generated from this table.

use super::labels::{
    self, ApprovalEvent, BreakerEvent, CachedRead, Decision, LimitAction, LoopAction, NotificationResult, RELOADS,
    RuleAction, STREAMS, VERBS, WorkStage,
};

/// Prefix of every metric except `process_*`.
pub(super) const PREFIX: &str = "tickfleet_";

/// Covers a lookup in memory, and far more than the default timeout of 30 s.
pub(super) const CALL_SECONDS: [f64; 14] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];

/// Covers fleets with idle slots, and fleets with far too few workers.
pub(super) const WAIT_SECONDS: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0, 600.0];

/// Covers one tick to one day.
pub(super) const TURN_SECONDS: [f64; 13] =
    [0.005, 0.025, 0.1, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0, 3_600.0, 86_400.0];

/// Covers rounds without work, and overloaded shards.
pub(super) const TICK_SECONDS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0];

/// Only a few buckets, because each verb has its own histogram.
pub(super) const REDIS_SECONDS: [f64; 8] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExportedBy {
    Everyone,
    Schedulers,
    Workers,
    Exporters,
    Gateways,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
    Histogram(&'static [f64]),
}

#[derive(Clone, Copy)]
pub(super) enum LabelValues {
    Words(fn() -> Vec<&'static str>),
    Bounded(#[cfg_attr(not(test), allow(dead_code, reason = "for the page, which a test writes"))] &'static str),
}

#[derive(Clone, Copy)]
pub(super) struct MetricDef {
    /// Without [`PREFIX`].
    pub(super) name: &'static str,
    pub(super) kind: MetricKind,
    pub(super) by: ExportedBy,
    pub(super) labels: &'static [(&'static str, LabelValues)],
    pub(super) help: &'static str,
}

macro_rules! catalogue {
    ($($constant:ident = $name:literal, $kind:expr, $by:ident, [$($label:literal: $values:expr),*], $help:literal;)*) => {
        $(pub(super) const $constant: MetricDef = MetricDef {
            name: $name, kind: $kind, by: ExportedBy::$by, labels: &[$(($label, $values)),*], help: $help,
        };)*
        /// In the order of `docs/reference/metrics.md`.
        #[cfg(test)]
        pub(super) const ALL: &[MetricDef] = &[$($constant),*];
    };
}

use LabelValues::{Bounded, Words};
use MetricKind::{Counter, Gauge, Histogram};

const TOOLS: LabelValues = Bounded("tools of the configuration, at most 500, and `other`");

catalogue! {
    INBOUND_ENTRIES = "inbound_entries_total", Counter, Schedulers, ["stream": Words(|| STREAMS.to_vec())],
        "Entries read from the inbound streams. An entry that is read again after a crash counts again.";
    TURNS_ADMITTED = "turns_admitted_total", Counter, Schedulers, ["decision": Words(Decision::words)],
        "Turns by admission decision. Each turn counts once, whatever happens to it later.";
    LIMITS_REACHED = "limits_reached_total", Counter, Everyone,
        ["limit": Bounded("limits of `limits.yaml`"), "action": Words(LimitAction::words)],
        "Turns that waited for a limit, calls that it rejected, and turns that it would have held up in shadow mode, \
         by limit. Workers count tasks whose token or money budget is short.";
    RULE_DENIALS = "rule_denials_total", Counter, Workers,
        ["rule": Bounded("rules as `details.rule` names them, at most 200, and `other`"), "action": Words(RuleAction::words)],
        "Calls that a rule or a fact condition denied (deny), could not evaluate and denied (undecided), or would \
         have denied in shadow mode (shadow), by rule.";
    APPROVALS = "approvals_total", Counter, Workers, ["event": Words(ApprovalEvent::words)],
        "Approvals by event. approved: the call continued. expired: no decision in time. not_narrowed: the changed \
         arguments are invalid. not_asked: no approver can be asked.";
    APPROVAL_NOTIFICATIONS = "approval_notifications_total", Counter, Exporters, ["result": Words(NotificationResult::words)],
        "Notifications of `tickfleet approvals notify`: accepted by the receiver (taken), failed and retried \
         (failed), or dropped, because none was accepted in time or the event was trimmed (given_up).";
    READS_CACHED = "reads_cached_total", Counter, Workers, ["result": Words(CachedRead::words)],
        "Calls of tools with `cache`: answered from the cache (hit) or run (miss).";
    REPEATED_CALLS = "repeated_calls_total", Counter, Workers, ["action": Words(LoopAction::words)],
        "Repeated equal calls that were detected (`loops`), by action: the agent was warned, or the call was denied.";
    FACT_WAITS = "fact_waits_total", Counter, Workers, [],
        "Waits of a call, without a slot, for another call of its session that can change its facts.";
    RECONCILED = "reconciled_total", Counter, Workers, ["verdict": Words(|| labels::VERDICTS.to_vec())],
        "Calls with an unknown outcome that their `reconcile` tool looked up: the effect happened, did not happen, or \
         is still unknown after all attempts.";
    AUDIT_SEALED = "audit_sealed_total", Counter, Schedulers, [],
        "Audit entries that this process sealed.";
    AUDIT_UNSEALED = "audit_trimmed_unsealed_total", Counter, Schedulers, [],
        "Audit entries that were trimmed or deleted before they were sealed.";
    UNSEALED_AGE = "audit_unsealed_age_seconds", Gauge, Schedulers, [],
        "Age of the oldest audit entry without a seal, read from Redis at each scrape; 0 if all are sealed. Every \
         scheduler reports the whole fleet: take the maximum. Absent without `seal.key`, or while Redis does not \
         answer.";
    SEAL_FAILURES = "audit_seal_failures_total", Counter, Schedulers, [],
        "Failed attempts to seal the audit log: Redis did not answer, or `seal.key_id` belongs to another key.";
    ANCHOR_FAILURES = "audit_anchor_failures_total", Counter, Schedulers, [],
        "Failed attempts to write anchors of the audit log to `seal.anchor`.";
    AUDIT_EXPORTED = "audit_exported_total", Counter, Exporters, [],
        "Audit entries that this process exported. An entry that is sent again after a crash counts again.";
    AUDIT_TRIMMED_UNEXPORTED = "audit_trimmed_unexported_total", Counter, Exporters, [],
        "Audit entries that were trimmed or deleted before they were exported.";
    EXPORT_REJECTED = "audit_export_rejected_total", Counter, Exporters, [],
        "Audit records that the collector rejected permanently. The log has its response.";
    EXPORT_FAILURES = "audit_export_failures_total", Counter, Exporters, [],
        "Failed attempts to export the audit log, because Redis or the destination failed. They are retried.";
    EXPORT_AGE = "audit_unexported_age_seconds", Gauge, Exporters, [],
        "Age of the oldest audit entry that is not exported, as of the last read; 0 if all are exported.";
    CALLS_ADMITTED = "calls_admitted_total", Counter, Schedulers, [],
        "Calls that were debited from their budgets and admitted, at once or from a throttle queue.";
    TURNS_REJECTED = "turns_rejected_total", Counter, Schedulers, ["reason": Words(labels::rejections)],
        "Turns that were rejected with a reply, by error code.";
    RELEASED = "released_total", Counter, Schedulers, [],
        "Slices that left a throttle queue when their agent's next window began.";
    PROMOTED = "promoted_total", Counter, Schedulers, [],
        "Slices that returned to their queue for a retry.";
    TICK_LAG = "tick_lag_seconds", Gauge, Schedulers, [],
        "Delay of the throttle queue that was released latest, the maximum of about the last 30 s.";
    TICK_DURATION = "tick_duration_seconds", Histogram(&TICK_SECONDS), Schedulers, [],
        "Duration of one round of the tick, which releases throttle queues and due retries.";
    BACKLOG = "backlog", Gauge, Schedulers, ["state": Words(WorkStage::words)],
        "Waiting and running work of all shards, read from Redis at each scrape. Every scheduler reports the whole \
         fleet: take the maximum, not the sum. Absent while Redis does not answer. Counts entries for inbound and \
         dead, slices for ready, suspect and running, turns for parked_capped, delayed and approval. ready includes \
         turns that wait for their tenant's share of the slots.";
    OLDEST_AGE = "oldest_age_seconds", Gauge, Schedulers, ["state": Words(WorkStage::words)],
        "Age of the oldest entry, slice or turn in a state, 0 if there is none. running counts from dispatch, \
         parked_capped from admission and from a sample.";
    SCHEDULE_TO_START = "schedule_to_start_seconds", Histogram(&WAIT_SECONDS), Workers, [],
        "Time from the dispatch of a slice to its start on a worker, by the clock of Redis.";
    TURN_DURATION = "turn_duration_seconds", Histogram(&TURN_SECONDS), Everyone, [],
        "Time from the submit of a turn or task to its end, including waits and retries.";
    CALLS = "calls_total", Counter, Everyone, ["tool": TOOLS, "outcome": Words(labels::outcomes)],
        "Ended calls by tool and outcome, also those that no worker ran (capped, expired). A task is a call of \
         delegate_task.";
    CALL_DURATION = "call_duration_seconds", Histogram(&CALL_SECONDS), Workers, ["tool": TOOLS],
        "Duration of the last attempt of a call. Calls that did not run are excluded.";
    RETRIES = "retries_total", Counter, Everyone, ["reason": Words(|| labels::RETRIES.to_vec())],
        "Failed attempts that are retried.";
    TOOL_BREAKER = "tool_breaker_total", Counter, Workers,
        ["tool": TOOLS, "event": Words(BreakerEvent::words)],
        "Events of circuit breakers of tools (`worker.breaker_failures`): opened, a call waited, one call probed the \
         tool (tried), closed, or a call ended after its longest wait (gave_up).";
    TOOL_BREAKERS_OPEN = "tool_breakers_open", Gauge, Workers, [],
        "Tools whose circuit breaker is open in this process, for one tenant or all.";
    DURABLE_BEGINS = "durable_begins_total", Counter, Workers,
        ["durable": Words(|| labels::DURABLE.to_vec()), "outcome": Words(|| labels::CONFIRMED.to_vec())],
        "Calls whose start had to be durable first (`worker.durable`, or `durable` of a tool). Calls that were not \
         confirmed in time did not run.";
    DURABLE_WAIT = "durable_wait_seconds", Histogram(&WAIT_SECONDS), Workers, [],
        "Time until such a start is confirmed as durable or not, including the wait for the previous batch.";
    LEASES_LOST = "leases_lost_total", Counter, Everyone, ["holder": Words(|| labels::HOLDERS.to_vec())],
        "Leases that expired although the holder was alive: a process that could not renew in time, or an external \
         runtime that stopped responding and lost its task.";
    REAPED = "reaped_total", Counter, Schedulers, [],
        "Slices and inbound entries that were taken back from consumers without a heartbeat.";
    FENCED = "fenced_total", Counter, Everyone, ["verb": Words(|| labels::FENCED.to_vec())],
        "Writes that were rejected because another process had taken over the slice.";
    QUARANTINED = "quarantined_total", Counter, Schedulers, [],
        "Slices that were ended because they lost their worker too often.";
    DEAD = "dead_letters_total", Counter, Schedulers, ["reason": Words(labels::rejections)],
        "Entries that became dead letters: rejected messages, and messages that crashed their readers (poison).";
    SLOTS = "slots", Gauge, Workers, [],
        "Slots of the process: slices that it can run at the same time.";
    SLOTS_BUSY = "slots_busy", Gauge, Workers, [],
        "Slots that run a slice now.";
    TOOL_LISTS_OMITTED = "tool_lists_omitted", Gauge, Workers, [],
        "Agents of a shard without a tool list, because the lists of the shard exceed 64 MiB.";
    MCP_SERVER_UP = "mcp_server_up", Gauge, Workers,
        ["server": Bounded("servers of `mcp.yaml`, the first 64 by name")],
        "1 while this process has a usable connection to the MCP server, otherwise 0.";
    MCP_QUARANTINED = "mcp_tools_quarantined", Gauge, Workers,
        ["server": Bounded("servers of `mcp.yaml`, the first 64 by name")],
        "Tools of the MCP server that are blocked because they differ from the pinned definitions, as of the last \
         connection.";
    SANDBOX_LEVELS = "sandbox_level_held", Gauge, Workers, ["level": Words(|| labels::SANDBOX_LEVELS.to_vec())],
        "1 if the worker's machine provides the sandbox level, otherwise 0. Only if a tool needs a sandbox.";
    SANDBOX_REFUSED = "sandbox_tools_refused", Gauge, Workers, [],
        "Tools whose calls this worker refuses because its machine lacks their sandbox (`worker.without_sandbox: \
         refuse_calls`).";
    MODEL_REQUESTS = "model_requests_total", Counter, Workers,
        ["model": Bounded("models of `models.yaml`"), "outcome": Words(|| labels::MODEL_OUTCOMES.to_vec())],
        "Requests to models of agents, by outcome. A request that falls back to the next model counts for each.";
    MODEL_TOKENS = "model_tokens_total", Counter, Workers,
        ["model": Bounded("models of `models.yaml`"), "direction": Words(|| labels::DIRECTIONS.to_vec())],
        "Tokens of answered requests, as the providers report them.";
    MODEL_COST = "model_cost_millionths_total", Counter, Workers, ["model": Bounded("models of `models.yaml`")],
        "Cost of those tokens by the prices of `models.yaml`, in millionths of the currency.";
    TASK_STEPS = "task_steps_total", Counter, Workers, ["step": Words(|| labels::STEPS.to_vec())],
        "Steps of tasks that run on a model: model responses (plan), turns of calls (execute), their results \
         (validate), ends (answer), and summaries of old steps (compact).";
    GATEWAY_REQUESTS = "gateway_requests_total", Counter, Gateways,
        ["request": Words(|| labels::REQUESTS.to_vec()), "status": Words(|| labels::STATUSES.to_vec())],
        "Requests by route and status class. client_closed: the client disconnected before the response. view, \
         operate and approve are operator requests by permission; other has no route.";
    GATEWAY_DURATION = "gateway_request_duration_seconds", Histogram(&CALL_SECONDS), Gateways,
        ["request": Words(|| labels::REQUESTS.to_vec())],
        "Time from a request to the start of its response. submit_wait and reply_wait include the wait for a reply, \
         mcp includes tool calls.";
    GATEWAY_REJECTED = "gateway_rejected_total", Counter, Gateways, ["reason": Words(|| labels::REFUSALS.to_vec())],
        "Rejected requests by reason. key: missing or invalid key (401); forbidden: the key lacks the permission \
         (403); too_large: large body (413); busy: full queues, or too many waiting requests (429); unavailable: Redis is \
         away or nearly full (503); rate: the key or token exceeds its rate (429); auth_failure_rate: too many invalid keys \
         from one address (429).";
    GATEWAY_WAITING = "gateway_waiting", Gauge, Gateways, [],
        "Requests that wait for a reply now, at most 10,000.";
    GATEWAY_STREAMS = "gateway_streams", Gauge, Gateways, [],
        "Open event streams: turns, tasks, conversations, console, MCP.";
    GATEWAY_MCP_CALLS = "gateway_mcp_calls_total", Counter, Gateways, ["response": Words(|| labels::MCP_RESPONSES.to_vec())],
        "Tool calls over MCP by response: a result, including errors for the model (result), a task to poll (task), \
         none because the client gave up (given_up), or a protocol error (error).";
    REDIS_COMMANDS = "redis_commands_total", Counter, Everyone, ["verb": Words(|| VERBS.to_vec())],
        "Answered Redis requests. A script, a pipeline or a single command counts as one.";
    REDIS_DURATION = "redis_command_duration_seconds", Histogram(&REDIS_SECONDS), Everyone,
        ["verb": Words(|| VERBS.to_vec())],
        "Time from a Redis request to its response. Blocking reads are excluded.";
    REDIS_ERRORS = "redis_errors_total", Counter, Everyone, ["verb": Words(|| VERBS.to_vec())],
        "Failed Redis requests: no connection, a timeout or an error response.";
    REDIS_UP = "redis_up", Gauge, Everyone, [],
        "1 if Redis answered this process during the scrape and accepted writes, otherwise 0.";
    REDIS_REJECTING = "redis_rejecting", Gauge, Everyone, ["reason": Words(labels::refusals)],
        "1 for the reason why Redis rejected this process during the scrape, otherwise 0: disk failure (misconf), replica \
         (readonly), missing replicas (noreplicas), missing right (noperm), wrong login (noauth), full memory (oom), \
         loading, busy script (busy), or shard not served (cluster).";
    REDIS_PRIMARY_MOVES = "redis_primary_moves_total", Counter, Everyone, [],
        "Changes of the primary that sentinels or cluster nodes reported to this process, by failover or moved slots. \
         Each shard of a cluster counts. 0 without Sentinel and Cluster.";
    REDIS_PRIMARY_MISSING = "redis_primary_missing_seconds", Gauge, Everyone, [],
        "Time without a known primary, 0 while there is one; of several shards the longest. Absent without Sentinel \
         and Cluster.";
    REDIS_REDIRECTS = "redis_redirects_total", Counter, Everyone, ["response": Words(tickfleet_store::refusal_names)],
        "Responses that name another server (MOVED, READONLY, UNBLOCKED) or ask to wait (ASK, TRYAGAIN, CLUSTERDOWN, \
         LOADING, MASTERDOWN). The process then looks up the primary again, or waits.";
    REDIS_MEMORY_USED = "redis_memory_used_bytes", Gauge, Schedulers, [],
        "Memory that Redis uses, read during the scrape. Absent while Redis does not answer.";
    REDIS_MEMORY_MAX = "redis_memory_max_bytes", Gauge, Schedulers, [],
        "Memory limit of Redis (maxmemory), 0 without a limit. Absent while Redis does not answer.";
    REDIS_PRESSURE = "redis_pressure", Gauge, Schedulers, [],
        "1 while new work is rejected because Redis is nearly full, otherwise 0. Absent while Redis does not answer.";
    POLICY_STALE = "policy_stale_total", Counter, Schedulers, [],
        "Checks that found this process' policy outdated. Grows while the process is on standby.";
    CLOCK_JUMPS = "clock_jumps_total", Counter, Schedulers, [],
        "Heartbeats after which shard time had advanced a minute or more beyond this process' clock: Redis' clock \
         jumped ahead, or the process stood still.";
    CLOCK_AHEAD = "shard_clock_ahead_seconds", Gauge, Schedulers, [],
        "Shard time, which windows, deadlines and days follow, minus the clock of this process' machine; of several \
         shards the furthest from 0. Absent while Redis does not answer.";
    EPOCH_CHANGES = "epoch_changes_total", Counter, Schedulers, [],
        "Restarts of Redis that this process detected.";
    STATE_LOST = "state_lost_total", Counter, Everyone, [],
        "Detected losses of streams or groups in Redis.";
    LOOP_PROGRESS = "loop_progress_timestamp_seconds", Gauge, Everyone,
        ["loop": Bounded("`turns`, `tasks`, `tick`, `reap`, `collect`, `memory`, `seal`, `lease`, `lease_suspects`, `heartbeat`, `export`, `notify`")],
        "Time at which a loop last advanced, seconds since the epoch. Absent while the loop does not run. Of several \
         loops with one name (one per shard), the furthest behind.";
    BUILD_INFO = "build_info", Gauge, Everyone, ["version": Bounded("the version")],
        "Always 1. The label is the version of the program.";
    CONFIG_INFO = "config_info", Gauge, Everyone,
        ["digest": Bounded("the first 12 digits of its digest")],
        "Always 1. The label is the configuration in force in this process.";
    CONFIG_GENERATION = "config_generation", Gauge, Everyone, [],
        "Generation of the policy that this process uses, the highest of its shards; 0 before it has one.";
    CONFIG_AGENTS = "config_agents", Gauge, Schedulers, [],
        "Agents in the configuration in force. With 0, every turn is rejected.";
    CONFIG_TENANTS = "config_tenants", Gauge, Schedulers, [],
        "Tenants in force, configured and set at run time. With 0, every turn is rejected.";
    CONFIG_RELOADS = "config_reloads_total", Counter, Everyone, ["result": Words(|| RELOADS.to_vec())],
        "Reloads of the configuration. A rejected reload changes nothing.";
    CONFIG_SUCCESSFUL = "config_last_reload_successful", Gauge, Everyone, [],
        "1 if the last reload of the configuration succeeded, 0 if it was rejected. 1 before the first.";
    CONFIG_RELOADED = "config_last_reload_success_timestamp_seconds", Gauge, Everyone, [],
        "Time at which the configuration in force was loaded, seconds since the epoch.";
}

#[cfg(test)]
pub(super) const PROCESS: [(&str, &str); 7] = [
    ("process_cpu_seconds_total", "counter"),
    ("process_max_fds", "gauge"),
    ("process_open_fds", "gauge"),
    ("process_resident_memory_bytes", "gauge"),
    ("process_start_time_seconds", "gauge"),
    ("process_threads", "gauge"),
    ("process_virtual_memory_bytes", "gauge"),
];
