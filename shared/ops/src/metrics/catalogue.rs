//! Every metric by name: what it counts, its labels and their values, which processes export it. The page
//! `docs/metrics.md` is written from this table, and a process registers nothing that is not in it.

use super::labels::{self, RELOADS, STREAMS, VERBS};

/// Prefix of every metric but the `process_*` ones.
pub(super) const PREFIX: &str = "tickfleet_";

/// Buckets of a call's duration, seconds: from a look-up in memory to far beyond the default timeout of 30 s.
pub(super) const CALL_SECONDS: [f64; 14] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];

/// Buckets of waiting for a worker, seconds: from idle slots to a fleet that is far too small.
pub(super) const WAIT_SECONDS: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0, 600.0];

/// Buckets of a turn's whole life, seconds: within one tick, over some ticks, over a night.
pub(super) const TURN_SECONDS: [f64; 13] =
    [0.005, 0.025, 0.1, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0, 3_600.0, 86_400.0];

/// Buckets of one round of the tick, seconds: from nothing due to a shard that cannot keep up.
pub(super) const TICK_SECONDS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0];

/// Buckets of one question to Redis, seconds: few, for there is one histogram a verb.
pub(super) const REDIS_SECONDS: [f64; 8] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0];

/// The processes that export a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Everyone,
    Schedulers,
    Workers,
    Exporters,
    Gateways,
}

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram(&'static [f64]),
}

/// The values that a label may have.
#[derive(Clone, Copy)]
pub(super) enum Values {
    /// These words of the code.
    Words(fn() -> Vec<&'static str>),
    /// Values from outside, with what bounds them.
    Bounded(#[cfg_attr(not(test), allow(dead_code, reason = "for the page, which a test writes"))] &'static str),
}

/// One metric.
#[derive(Clone, Copy)]
pub(super) struct Def {
    /// Its name without [`PREFIX`].
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) by: By,
    pub(super) labels: &'static [(&'static str, Values)],
    /// A sentence or two that say what it is for.
    pub(super) help: &'static str,
}

/// The table: a constant a metric, and the list of them all.
macro_rules! catalogue {
    ($($constant:ident = $name:literal, $kind:expr, $by:ident, [$($label:literal: $values:expr),*], $help:literal;)*) => {
        $(pub(super) const $constant: Def = Def {
            name: $name, kind: $kind, by: By::$by, labels: &[$(($label, $values)),*], help: $help,
        };)*
        /// All of them, in the order of the page.
        #[cfg(test)]
        pub(super) const ALL: &[Def] = &[$($constant),*];
    };
}

use Kind::{Counter, Gauge, Histogram};
use Values::{Bounded, Words};

const TOOLS: Values = Bounded("tools of the configuration, at most 500, and `other`");

catalogue! {
    INBOUND_ENTRIES = "inbound_entries_total", Counter, Schedulers, ["stream": Words(|| STREAMS.to_vec())],
        "Entries read from the inbound streams. One that is read again after a crash counts again.";
    TURNS_ADMITTED = "turns_admitted_total", Counter, Schedulers, ["decision": Words(labels::decisions)],
        "Turns by what admission decided about them. Each turn counts once, whatever happens to it later.";
    LIMITS_REACHED = "limits_reached_total", Counter, Everyone,
        ["limit": Bounded("limits of `limits.yaml`"), "action": Words(|| labels::LIMIT_ACTIONS.to_vec())],
        "Turns that a limit made wait, calls that it refused, and turns that it would have held up (shadow), by limit. \
         Workers count tasks whose budget of tokens or money is short.";
    RULES_UNMET = "rules_unmet_total", Counter, Workers,
        ["rule": Bounded("rules of `permissions.yaml` as `details.rule` names them, the first 200 that were not met, and \
         `other`"), "action": Words(|| labels::RULE_ACTIONS.to_vec())],
        "Calls that a rule on arguments and context, or a fact that is required or forbidden, denied, because they do not meet it (deny) or because that cannot be \
         said (undecided), and calls that it would have denied (shadow), by rule.";
    APPROVALS = "approvals_total", Counter, Workers, ["event": Words(|| labels::APPROVAL_EVENTS.to_vec())],
        "What became of calls that need people's consent: people were asked (asked), they agreed and the call went on \
         (approved), one of them denied it, they did not decide in time (expired), what they had changed of the arguments \
         could not be used (not_narrowed), nobody could be asked (not_asked).";
    APPROVALS_TOLD = "approvals_told_total", Counter, Exporters, ["result": Words(|| labels::TOLD.to_vec())],
        "Requests of `tickfleet approvals notify`: taken by the receiver, failed and tried again, or given up because nobody \
         took it in time or it was trimmed before.";
    READS_CACHED = "reads_cached_total", Counter, Workers, ["result": Words(|| labels::CACHED_READS.to_vec())],
        "Calls of tools whose answers are kept (`cache`): answered so (hit), or carried out (miss).";
    LOOPS = "loops_total", Counter, Workers, ["action": Words(|| labels::LOOP_ACTIONS.to_vec())],
        "Calls that were made in a row too often with the same result (`loops`): their agent was told so, or they were \
         refused.";
    FACT_WAITS = "fact_waits_total", Counter, Workers, [],
        "Times that a call waited, without a slot, for another call of its session that was under way and could change what \
         its facts allow.";
    RECONCILED = "reconciled_total", Counter, Workers, ["verdict": Words(|| labels::VERDICTS.to_vec())],
        "Calls of which nobody knew whether they had taken effect, by what the tool that their own names found out: they had \
         (happened), they had not (not_happened), or it could not tell within its tries (unknown).";
    AUDIT_SEALED = "audit_sealed_total", Counter, Schedulers, [],
        "Entries of the audit log that this process sealed.";
    AUDIT_UNSEALED = "audit_gone_unsealed_total", Counter, Schedulers, [],
        "Entries of the audit log that were trimmed or deleted before they were sealed.";
    UNSEALED_AGE = "audit_unsealed_age_seconds", Gauge, Schedulers, [],
        "Age of the oldest entry of the audit log that is not sealed yet, asked of Redis at each scrape; 0 where all are. Every \
         scheduler sees the whole fleet: take the maximum. Absent where no `seal.key` is configured, or Redis does not answer.";
    SEAL_FAILURES = "audit_seal_failures_total", Counter, Schedulers, [],
        "Times that the audit log could not be sealed: Redis did not answer, or `seal.key_id` is another key's.";
    ANCHOR_FAILURES = "audit_anchor_failures_total", Counter, Schedulers, [],
        "Times that heads of the sealed audit log could not be kept where `seal.anchor` says.";
    AUDIT_EXPORTED = "audit_exported_total", Counter, Exporters, [],
        "Entries of the audit log that this process has exported. One that is sent again after a crash counts again.";
    AUDIT_GONE_UNEXPORTED = "audit_gone_unexported_total", Counter, Exporters, [],
        "Entries of the audit log that were trimmed or deleted before they were exported.";
    EXPORT_REFUSED = "audit_export_refused_total", Counter, Exporters, [],
        "Records of the audit log that the collector took and refused for good. The log says what it answered.";
    EXPORT_FAILURES = "audit_export_failures_total", Counter, Exporters, [],
        "Times that the audit log could not be exported: Redis or the destination did not take part. It is tried again.";
    EXPORT_AGE = "audit_unexported_age_seconds", Gauge, Exporters, [],
        "Age of the oldest entry of the audit log that is not exported yet, as of the last look; 0 where all are.";
    CALLS_ADMITTED = "calls_admitted_total", Counter, Schedulers, [],
        "Calls that were debited from their budgets and let through, at admission or when a lane was released.";
    TURNS_REFUSED = "turns_refused_total", Counter, Schedulers, ["reason": Words(labels::rejections)],
        "Turns that were refused with a reply, by its error code.";
    RELEASED = "released_total", Counter, Schedulers, [],
        "Slices that were released from lanes when their agent's next window began.";
    PROMOTED = "promoted_total", Counter, Schedulers, [],
        "Slices that were parked for another try and went back to their queue.";
    TICK_LAG = "tick_lag_seconds", Gauge, Schedulers, [],
        "How late a lane was released that was due, the worst case of the last 30 s or a little longer.";
    TICK_DURATION = "tick_duration_seconds", Histogram(&TICK_SECONDS), Schedulers, [],
        "Time that one round of the tick took, releasing lanes and promoting what is due.";
    BACKLOG = "backlog", Gauge, Schedulers, ["state": Words(labels::places)],
        "How much waits or runs in all shards, asked of Redis at each scrape. Every scheduler sees the whole fleet: \
         take the maximum over them, not the sum. Absent while Redis does not answer. Entries for inbound and dead, \
         slices for ready, suspect and running (and in ready the turns that wait for their tenant's share of the slots), \
         turns for parked_capped, delayed and approval.";
    OLDEST_AGE = "oldest_age_seconds", Gauge, Schedulers, ["state": Words(labels::places)],
        "Age of the oldest entry, slice or turn in a state, 0 where there is none. For running it is the oldest \
         pending age: since the slice was dispatched. For parked_capped it counts from admission and is sampled.";
    SCHEDULE_TO_START = "schedule_to_start_seconds", Histogram(&WAIT_SECONDS), Workers, [],
        "Time from the dispatch of a slice to its beginning on a worker, by the clock of Redis.";
    TURN_DURATION = "turn_duration_seconds", Histogram(&TURN_SECONDS), Everyone, [],
        "Time from the submission of a turn or task to its settled end, waiting for ticks and retries included.";
    CALLS = "calls_total", Counter, Everyone, ["tool": TOOLS, "outcome": Words(labels::outcomes)],
        "Calls that ended, by tool and outcome. Those that schedulers end (capped, expired, tasks of external runtimes) \
         have the tool other.";
    CALL_DURATION = "call_duration_seconds", Histogram(&CALL_SECONDS), Workers, ["tool": TOOLS],
        "Time that the last try of a call took. Calls that never ran are not in it.";
    RETRIES = "retries_total", Counter, Everyone, ["reason": Words(|| labels::RETRIES.to_vec())],
        "Tries that failed and will be repeated.";
    TOOL_BREAKER = "tool_breaker_total", Counter, Workers,
        ["tool": TOOLS, "event": Words(labels::breaker_events)],
        "What circuit breakers of tools did (`worker.breaker_failures`): they opened, a call waited without being sent, one call \
         tried the tool after a rest, the tool was called again as before, or a call had waited for as long as it may and ended.";
    TOOLS_RESTING = "tools_resting", Gauge, Workers, [],
        "Tools that this process does not call now, for all tenants or for one, since they failed too often in a row.";
    DURABLE_BEGINS = "durable_begins_total", Counter, Workers,
        ["durable": Words(|| labels::DURABLE.to_vec()), "outcome": Words(|| labels::CONFIRMED.to_vec())],
        "Calls of once tools whose begin had to be durable before they ran (`worker.durable`, a tool's `durable`). Those that \
         were not confirmed in time did not run.";
    DURABLE_WAIT = "durable_wait_seconds", Histogram(&WAIT_SECONDS), Workers, [],
        "Time from asking for such a begin to knowing whether it is durable, with the wait for the batch before it.";
    LEASES_LOST = "leases_lost_total", Counter, Everyone, ["holder": Words(|| labels::HOLDERS.to_vec())],
        "Leases that ended against their holder's will: a process that could not renew its own in time, or an \
         external runtime that fell silent and lost its task.";
    REAPED = "reaped_total", Counter, Schedulers, [],
        "Slices and inbound entries that were taken back from consumers whose heartbeat was gone.";
    FENCED = "fenced_total", Counter, Everyone, ["verb": Words(|| labels::FENCED.to_vec())],
        "Acts that were refused because the slice was no longer the actor's.";
    QUARANTINED = "quarantined_total", Counter, Schedulers, [],
        "Slices that were ended because they lost their worker too often.";
    DEAD = "dead_total", Counter, Schedulers, ["reason": Words(labels::rejections)],
        "Entries that went to the dead stream: refused messages, and entries that killed whoever read them (poison).";
    SLOTS = "slots", Gauge, Workers, [],
        "Slots of the process: slices that it can carry out at the same time.";
    SLOTS_BUSY = "slots_busy", Gauge, Workers, [],
        "Slots that carry out a slice now.";
    TOOL_LISTS_LEFT_OUT = "tool_lists_left_out", Gauge, Workers, [],
        "Agents of a shard whose list of tools is not written: the lists of all agents together have more than 64 MiB.";
    MCP_SERVER_UP = "mcp_server_up", Gauge, Workers,
        ["server": Bounded("servers of `mcp.yaml`, the first 64 by name")],
        "1 while this process has a connection to the MCP server and calls can be sent on it, else 0.";
    MCP_QUARANTINED = "mcp_tools_quarantined", Gauge, Workers,
        ["server": Bounded("servers of `mcp.yaml`, the first 64 by name")],
        "Tools of the MCP server that are not called because they no longer are what was pinned. As last seen on a connection.";
    SANDBOX_LEVELS = "sandbox_level_held", Gauge, Workers, ["level": Words(|| labels::SANDBOX_LEVELS.to_vec())],
        "1 where the worker's machine can hold the sandbox level, 0 where it cannot. Only where a tool wants a sandbox.";
    SANDBOX_REFUSED = "sandbox_tools_refused", Gauge, Workers, [],
        "Tools whose calls this worker refuses, since its machine cannot hold their sandbox (`worker.without_sandbox: refuse_calls`).";
    MODEL_REQUESTS = "model_requests_total", Counter, Workers,
        ["model": Bounded("models of `models.yaml`"), "outcome": Words(|| labels::MODEL_OUTCOMES.to_vec())],
        "Requests to models that agents are run on, by how they ended. One that fell back to the next model counts for each.";
    MODEL_TOKENS = "model_tokens_total", Counter, Workers,
        ["model": Bounded("models of `models.yaml`"), "direction": Words(|| labels::DIRECTIONS.to_vec())],
        "Tokens of answered requests, as the providers count them.";
    MODEL_COST = "model_cost_millionths_total", Counter, Workers, ["model": Bounded("models of `models.yaml`")],
        "What those tokens cost by the prices of `models.yaml`, in millionths of the currency.";
    TASK_STEPS = "task_steps_total", Counter, Workers, ["step": Words(|| labels::STEPS.to_vec())],
        "Steps of tasks that a model carries out: its answers (plan), turns of its calls (execute), their results \
         (validate), ends (answer), and summaries of old ones (compact).";
    GATEWAY_REQUESTS = "gateway_requests_total", Counter, Gateways,
        ["request": Words(|| labels::REQUESTS.to_vec()), "status": Words(|| labels::STATUSES.to_vec())],
        "Requests by what they ask for and the class of the answer's status; `gone`: whoever asked went away before there was one. \
         Operators' requests are view, operate and approve, as the verbs of keys; `other` is what has no path.";
    GATEWAY_DURATION = "gateway_request_duration_seconds", Histogram(&CALL_SECONDS), Gateways,
        ["request": Words(|| labels::REQUESTS.to_vec())],
        "Time from a request to the beginning of its answer. Those that are asked to wait for a reply (submit_wait, reply_wait) \
         are told apart; mcp has calls of tools in it.";
    GATEWAY_REFUSED = "gateway_refused_total", Counter, Gateways, ["reason": Words(|| labels::REFUSALS.to_vec())],
        "Requests that were refused: without a key or with one that is not good (key, 401), with one that is not for this \
         (forbidden, 403), with a body too large (too_large, 413), to be sent again later as queues are full or too many wait \
         (busy, 429), as Redis is away or nearly full (unavailable, 503), as its key or token is over its own rate (rate, 429) or as \
         too many keys that are not good have come from its address (wrong_keys, 429).";
    GATEWAY_WAITING = "gateway_waiting", Gauge, Gateways, [],
        "Requests that wait for a reply now; at most 10,000.";
    GATEWAY_STREAMS = "gateway_streams", Gauge, Gateways, [],
        "Answers that are sent event by event now: of turns, tasks, conversations, the console, MCP.";
    GATEWAY_MCP_CALLS = "gateway_mcp_calls_total", Counter, Gateways, ["answer": Words(|| labels::MCP_ANSWERS.to_vec())],
        "Calls of tools over MCP by what was answered: a result, or words for the model that say why there is none (result), a task \
         to ask for (task), nothing, as its client had given it up (given_up), or an error of the protocol (error).";
    REDIS_COMMANDS = "redis_commands_total", Counter, Everyone, ["verb": Words(|| VERBS.to_vec())],
        "Questions to Redis that were answered. A script, a pipeline or a single command counts as one.";
    REDIS_DURATION = "redis_command_duration_seconds", Histogram(&REDIS_SECONDS), Everyone,
        ["verb": Words(|| VERBS.to_vec())],
        "Time from asking Redis to its answer. Blocking reads wait on purpose and are not in it.";
    REDIS_ERRORS = "redis_errors_total", Counter, Everyone, ["verb": Words(|| VERBS.to_vec())],
        "Questions to Redis that failed: no connection, no answer in time, or an error.";
    REDIS_UP = "redis_up", Gauge, Everyone, [],
        "1 if Redis answered this process during the scrape and took writes, else 0.";
    REDIS_REFUSES = "redis_refuses", Gauge, Everyone, ["reason": Words(labels::refusals)],
        "1 for the reason for which Redis answered this process during the scrape and refused it, else 0: its disk fails \
         (misconf), it is a replica (readonly), it lacks replicas (noreplicas), the user lacks a right (noperm) or the login \
         is wrong (noauth), it reads its files (loading), a script blocks it (busy), or its cluster does not serve the shard.";
    REDIS_PRIMARY_MOVES = "redis_primary_moves_total", Counter, Everyone, [],
        "Times that sentinels, or the nodes of a cluster, led this process to another primary than before: failovers and \
         moved slots, as it saw them; of a cluster, each shard counts. 0 where the URL names neither.";
    REDIS_PRIMARY_MISSING = "redis_primary_missing_seconds", Gauge, Everyone, [],
        "Time for which no sentinel, or no node of a cluster, has led this process to a primary, 0 while one does; of \
         several shards, the longest. Absent where the URL names neither.";
    REDIS_TURNED_AWAY = "redis_turned_away_total", Counter, Everyone, ["answer": Words(tickfleet_store::turned_away)],
        "Answers by which a server said that it is not the one (MOVED, READONLY, UNBLOCKED), or not now (ASK, TRYAGAIN, \
         CLUSTERDOWN, LOADING, MASTERDOWN). The process looks for the primary anew, or waits.";
    REDIS_MEMORY_USED = "redis_memory_used_bytes", Gauge, Schedulers, [],
        "Memory that Redis uses, as it said during the scrape. Absent while it does not answer.";
    REDIS_MEMORY_MAX = "redis_memory_max_bytes", Gauge, Schedulers, [],
        "The bound that Redis has for its memory (maxmemory), 0 where it has none. Absent while it does not answer.";
    REDIS_PRESSURE = "redis_pressure", Gauge, Schedulers, [],
        "1 while new work is refused because Redis is nearly full, else 0. Absent while it does not answer.";
    POLICY_STALE = "policy_stale_total", Counter, Schedulers, [],
        "Times that this process heard that its policy is outdated. It grows for as long as the process stands by.";
    CLOCK_STEPS = "clock_steps_total", Counter, Schedulers, [],
        "Large steps back of Redis' clock that this process saw.";
    CLOCK_JUMPS = "clock_jumps_total", Counter, Schedulers, [],
        "Times that shard time had gone a minute or more further than this process' own clock since its last heartbeat: Redis' clock \
         jumped ahead, or the process stood still.";
    CLOCK_AHEAD = "shard_clock_ahead_seconds", Gauge, Schedulers, [],
        "Shard time, by which windows, deadlines and days go, less the clock of this process' machine; of several shards that which \
         is furthest off. Absent while Redis does not answer.";
    EPOCH_CHANGES = "epoch_changes_total", Counter, Schedulers, [],
        "Restarts of Redis that this process saw.";
    STATE_LOST = "state_lost_total", Counter, Everyone, [],
        "Times that Redis had lost its streams or groups.";
    LOOP_PROGRESS = "loop_progress_timestamp_seconds", Gauge, Everyone,
        ["loop": Bounded("loops of the code: `turns`, `tasks`, `tick`, `reap`, `collect`, `weigh`, `seal`, `lease`, `lease_suspects`, `beat`, `export`, `notify`")],
        "When a loop last advanced, seconds since the epoch. Absent while it does not run. Of several with one name (one a shard) the one that is furthest behind.";
    INVARIANT_VIOLATIONS = "invariant_violations_total", Counter, Schedulers,
        ["invariant": Words(labels::invariants)],
        "Findings of the sweep that should be impossible, each seen twice before it counts.";
    BUILD_INFO = "build_info", Gauge, Everyone, ["version": Bounded("the one version of the program")],
        "Always 1. The label is the version of the program.";
    CONFIG_INFO = "config_info", Gauge, Everyone,
        ["digest": Bounded("the one configuration in force, first 12 digits of its digest")],
        "Always 1. The label names the configuration in force in this process.";
    CONFIG_GENERATION = "config_generation", Gauge, Everyone, [],
        "Generation of the policy that this process decides by, the highest of its shards, 0 before it knows one.";
    CONFIG_AGENTS = "config_agents", Gauge, Schedulers, [],
        "Agents of the configuration in force. With 0, every turn is rejected.";
    CONFIG_TENANTS = "config_tenants", Gauge, Schedulers, [],
        "Tenants in force, configured and set at run time. With 0, every turn is rejected.";
    CONFIG_RELOADS = "config_reloads_total", Counter, Everyone, ["result": Words(|| RELOADS.to_vec())],
        "Reloads of the configuration. A rejected one changed nothing.";
    CONFIG_SUCCESSFUL = "config_last_reload_successful", Gauge, Everyone, [],
        "1 where the last reload of the configuration was taken over, 0 where it was rejected. 1 before the first.";
    CONFIG_RELOADED = "config_last_reload_success_timestamp_seconds", Gauge, Everyone, [],
        "When the configuration in force was loaded, seconds since the epoch.";
}

/// The metrics of the process that the library adds by itself: name and type.
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
