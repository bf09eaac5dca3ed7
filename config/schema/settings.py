"""The settings of tickfleet.yaml: type, bounds and description of each. Defaults are those of config/tickfleet.yaml."""

from words import (
    SIZE,
    SIZE_BOUND,
    SOME_TEXT,
    TEXT,
    U32,
    WORDS,
    YES_OR_NO,
    described,
    duration,
    items,
    number,
    word,
)

SECRET_PLACE = {"type": "string", "pattern": "^(env:.+|file:/.+)?$"}
LONG = duration("1s", "366d")
SHORT = duration("1s", "30d")

SETTINGS = {
    "redis": (
        "How processes reach Redis.",
        {
            "url": described(
                "URL of Redis: `redis://`, `rediss://` (TLS) or `unix://`; `redis+sentinel://HOST,HOST/NAME/0` for Sentinel;"
                " `redis+cluster://HOST,HOST` for a cluster. The variable `REDIS_URL` overrides it.",
                SOME_TEXT,
            ),
            "tls_ca": described(
                "File with the PEM certificates of the authorities that sign the certificate of Redis. Requires a URL with TLS."
                " If empty, the authorities of the operating system apply.",
                TEXT,
            ),
            "namespace": described("Prefix of every key, 1 to 64 of `A-Z a-z 0-9 _ . -`. Fleets that share a Redis need different ones.", SOME_TEXT),
            "shards": described(
                "Number of shards. A tenant belongs to shard CRC32(tenant) mod `shards`. Redis stores the number at the first start;"
                " a process with another number refuses to start.",
                number(1, 16_384),
            ),
            "pool_size": described("Connections for commands outside the hot path, such as checks.", number(1, 1_000)),
        },
    ),
    "caps": (
        "Call caps for every agent, across the whole fleet. `agents.yaml` and `tenants.yaml` can override them.",
        {
            "tick": described("Length of a tick.", duration("100ms", "1h")),
            "max_calls_per_tick": described("Calls of one agent that are admitted in one tick.", number(1, 1_000)),
            "max_actions_per_day": described(
                "Calls of one agent that are admitted in one day. The variable `MAX_ACTIONS_PER_DAY` overrides it.", number(0, U32)
            ),
            "time_zone": described("IANA time zone in which a day begins and ends.", SOME_TEXT),
            "on_day_cap": described(
                "Result of calls beyond the day cap. `reject` ends them with `daily_cap_reached`; `defer` queues them until the next day.",
                word("reject", "defer"),
            ),
        },
    ),
    "fairness": (
        "Built-in limits on worker slots. An entry `fair_share` or `tool_slots` in `limits.yaml` replaces the built-in one.",
        {
            "tenants": described("Divides slots among waiting tenants by weight while slots are short (limit `fair_share`).", YES_OR_NO),
            "tool_slots_percent": described(
                "Share of all slots, in percent, that calls of one tool can occupy (limit `tool_slots`). 100 disables the limit.", number(1, 100)
            ),
        },
    ),
    "worker": (
        "How workers run calls.",
        {
            "slots": described("Slices that a process runs at the same time.", number(1, 10_000)),
            "lease": described("Time without a heartbeat after which a worker counts as dead and its work is redelivered.", duration("1s", "10m")),
            "drain": described(
                "Time that running calls get to finish after SIGTERM. Keep it above the longest tool timeout and below the pod's `terminationGracePeriodSeconds`.", duration("1s", "1h")
            ),
            "priorities": described(
                "Priorities that this process serves. The workers of a fleet together must serve all four.",
                items(word("urgent", "high", "normal", "low"), minItems=1, uniqueItems=True),
            ),
            "tool_timeout": described("Time limit of one attempt, for tools without a `timeout_ms`.", duration("1ms", "1h")),
            "retry_delays": described(
                "Waits before each retry of a transient failure. The number of waits is the number of retries.", items(duration("1ms", "1h"), maxItems=16)
            ),
            "allow_dynamic_registration": described(
                "Allows a worker program to register tools while it runs. Permissions can then name tools that do not exist yet.", YES_OR_NO
            ),
            "workspaces": described(
                "Absolute path of the workspaces of shell and file tools. All workers need the same shared volume."
                " If empty, a folder below the machine's temporary folder.",
                {"type": "string", "pattern": "^(/.*)?$"},
            ),
            "workspace_ttl": described("Time that a workspace is kept after its last use.", duration("1m", "365d")),
            "durable": described(
                "Durability that Redis confirms before a call of a `once` tool runs: `none`, `local` (primary's disk, WAITAOF),"
                " `replica` (a replica's memory, WAIT). A tool's own `durable` overrides it, and applies to any effect.",
                word("none", "local", "replica"),
            ),
            "durable_wait": described("Time to wait for that confirmation. Without it, the call is retried and ends as `transient`.", duration("10ms", "1m")),
            "output_bytes_max": described(
                "Bytes of one call's output in a result. A longer output is truncated.",
                SIZE | {"x-minimum": "4KiB", "x-maximum": "512KiB"},
            ),
            "breaker_failures": described(
                "Consecutive failures after which this process opens the circuit breaker of a tool. 0 disables circuit breakers.", number(0, 1_000)
            ),
            "breaker_cooldown": described("Time that a circuit breaker stays open before one call probes the tool.", duration("100ms", "1h")),
            "without_sandbox": described(
                "Behavior on a machine that cannot provide a required sandbox. `refuse_start` stops the worker; `refuse_calls` ends those calls"
                " with `not_configured`.",
                word("refuse_start", "refuse_calls"),
            ),
        },
    ),
    "scheduler": (
        "How schedulers admit turns and poll timers.",
        {
            "batch": described("Entries that a scheduler reads and admits at once.", number(1, 256)),
            "tick_poll": described("Interval between checks for due ticks and due retries.", duration("1ms", "1m")),
            "collect_every": described("Interval of cleanup: audit log, dead letters, expired budgets.", duration("100ms", "10m")),
            "reap_every": described("Longest interval between checks for dead workers. Checks run at least six times per `worker.lease`.", duration("10ms", "10m")),
        },
    ),
    "retention": (
        "How long finished work is kept. Unfinished work does not expire.",
        {
            "records": described("Status and results of a turn or task, for `tickfleet explain` and `tickfleet reply`.", SHORT),
            "dedupe_for": described("Time that the id of a finished turn is remembered. At least `records`.", SHORT),
            "replies": described("Replies in inboxes.", SHORT),
            "audit": described("Audit entries, by age.", LONG),
            "audit_bytes_max": described("Audit entries of one shard, by size.", SIZE_BOUND),
            "dead": described("Dead letters: malformed and quarantined messages.", LONG),
        },
    ),
    "queues": (
        "Queue bounds. A turn beyond a bound is rejected with `queue_full`, `tenant_queue_full`, `inbox_full` or `too_many_inboxes`.",
        {
            "turns_max": described("Turns that wait for admission in one shard.", number(1, 1_000_000_000)),
            "turns_bytes_max": described("Bytes of turns that wait for admission in one shard, at most half of the memory of Redis.", SIZE_BOUND),
            "tenant_turns_max": described("Turns of one tenant that wait, throttle queues included.", number(1, 1_000_000_000)),
            "tenant_bytes_max": described(
                "Bytes of turns of one tenant that wait, with the results that they have so far; at most a quarter of the memory of Redis.",
                SIZE_BOUND,
            ),
            "tenant_ready_max": described("Slices of one tenant that are ready for workers.", number(1, 1_000_000_000)),
            "inbox_unread_max": described("Unread replies in one inbox.", number(1, 1_000_000_000)),
            "inboxes_max": described("Inboxes of one tenant: those that a turn named or that received a reply within `retention.replies`.", number(1, 1_000_000_000)),
        },
    ),
    "audit": (
        "Contents of the audit log.",
        {
            "log_tool_calls": described("Writes an audit entry for every tool call.", YES_OR_NO),
            "redact_keys": described("Argument names whose values are redacted, in addition to the built-in ones such as `password` and `token`.", WORDS),
            "result_chars": described("Characters of a result that an entry keeps.", number(0, 65_536)),
            "admissions": described(
                "Records the admission time and the debited counters of each call. `tickfleet prove` needs them to check caps."
                " Adds about 60 bytes per entry and counter.",
                YES_OR_NO,
            ),
            "policy_inputs": described(
                "Records the other inputs of a policy decision: allowed tools, task, user context, session data and session."
                " `tickfleet whatif` needs them.",
                YES_OR_NO,
            ),
        },
    ),
    "seal": (
        "Signatures that make changes to the audit log detectable. Without a key, nothing is sealed.",
        {
            "key": described("Place of the secret key: `env:NAME` or `file:/PATH`. `tickfleet audit key --new PATH` creates one.", SECRET_PLACE),
            "key_id": described("Name of the key. Every new key needs a new name.", SOME_TEXT),
            "every": described("Interval between seals.", duration("100ms", "1h")),
            "anchor": described(
                "Where the latest hash is copied outside the sealed log, to detect truncation: `log`, `file:/PATH`, `stream:KEY` of another Redis"
                " or `stream`. If empty, nowhere.",
                {"type": "string", "pattern": "^(log|stream(:.+)?|file:/.+)?$"},
            ),
            "anchor_redis": described("Place of the URL of the Redis for `stream:KEY`: `env:NAME` or `file:/PATH`.", SECRET_PLACE),
        },
    ),
    "loops": (
        "Detection of agents that repeat the same call: same tool, arguments and result. Agents on the model loop have `repeats_max` instead.",
        {
            "warn_after": described("Equal calls after which results tell the model about the repetition. 0 disables detection; 1 is invalid.", number(0, 1_000)),
            "deny_after": described("Further equal calls after which the call is denied with reason `loop`.", number(1, 1_000_000)),
            "deny_for": described("Time for which that call stays denied.", duration("1s", "1d")),
            "reset_after": described("Time between two equal calls after which they no longer count as a streak.", duration("1s", "1d")),
            "except": described("Tools that can be polled without limit.", WORDS),
        },
    ),
    "permission": (
        "Defaults of permission checks.",
        {
            "strict_capabilities": described("Requires every capability that a tool names. `false` only logs a warning.", YES_OR_NO),
            "disabled_tools": described("Names or ids of tools that no agent can call.", WORDS),
            "trial_tools": described("Grants `echo`, `sleep`, `fail` and `fail_once` to every agent, unless the folder has a `permissions.yaml`.", YES_OR_NO),
            "samples": described(
                "Uses the built-in sample business for `agents.yaml`, `tools.yaml`, `permissions.yaml` and `tenants.yaml` if the folder lacks them."
                " `false` treats a missing file as empty.",
                YES_OR_NO,
            ),
        },
    ),
    "http": ("Health checks and metrics.", {"address": described("Address and port of `/livez`, `/readyz` and `/metrics`.", SOME_TEXT)}),
    "log": (
        "Logs of schedulers, workers and gateways.",
        {
            "format": described("`pretty` for people, `json` for collectors.", word("pretty", "json")),
            "level": described("`off`, `error`, `warn`, `info`, `debug`, `trace`, or directives such as `info,tickfleet_store=debug`.", SOME_TEXT),
        },
    ),
    "tracing": (
        "OpenTelemetry traces.",
        {
            "otlp_endpoint": described(
                "Base URL of an OTLP/HTTP collector, such as `http://otel-collector:4318`. If empty, no spans are exported."
                " The variable `OTEL_EXPORTER_OTLP_ENDPOINT` overrides it.",
                {"type": "string", "pattern": "^(https?://.*)?$"},
            ),
            "sample_ratio": described(
                "Share of traces to sample, for traces that start in the fleet. A `traceparent` of the producer overrides it.",
                {"type": "number", "minimum": 0, "maximum": 1},
            ),
            "service_name": described("`service.name` of the spans.", SOME_TEXT),
            "gen_ai": described(
                "Adds spans and a histogram by the OpenTelemetry conventions for generative AI, which are not stable yet.", YES_OR_NO
            ),
            "gen_ai_content": described("Adds redacted arguments and results to those spans.", YES_OR_NO),
        },
    ),
}
