"""Governance: decisions of caps, limits, permissions and ticks."""

from grafana import BLUE, GREEN, RED, YELLOW, dashboard, graph, row, stat, steps, table
from outcomes import NOT_REACHED, REFUSED

TICK_BUCKETS = "sum by (le) (rate(tickfleet_tick_duration_seconds_bucket{@}[$__rate_interval]))"


def make():
    return dashboard(
        "tickfleet-governance",
        "Decisions of admission, caps, ticks and permissions. `tickfleet explain` names agents; labels do not.",
        [*glance(), *admission(), *ticks(), *limits(), *rules(), *permission(), *consent(), *audit(), *policy()],
    )


def glance():
    return [
        row("At a glance"),
        stat(
            "Waiting for a cap", "Turns in throttle queues: they wait for their agent's next tick or day. This is not an error.",
            'sum(max by (namespace) (tickfleet_backlog{@, state="parked_capped"}))', thresholds=steps((None, BLUE)),
        ),
        stat(
            "Oldest capped", "Age of the oldest capped turn, from a sample. Turns that wait for the next day can be a day old.",
            'max(tickfleet_oldest_age_seconds{@, state="parked_capped"})', "s", thresholds=steps((None, BLUE)),
        ),
        stat(
            "Tick lag", "Delay of the release of throttle queues. More than 5 s is an alert.",
            "max(tickfleet_tick_lag_seconds{@})", "s", decimals=2,
            thresholds=steps((None, GREEN), (1, YELLOW), (5, RED)),
        ),
        stat(
            "Calls over the day cap", "Calls of the last hour that ended as daily_cap_reached.",
            'sum(increase(tickfleet_calls_total{@, outcome="daily_cap_reached"}[1h]))', decimals=0,
            thresholds=steps((None, BLUE)),
        ),
        stat(
            "Denied", "Calls of the last hour that permissions or rules denied.",
            'sum(increase(tickfleet_calls_total{@, outcome="denied"}[1h]))', decimals=0, thresholds=steps((None, BLUE)),
        ),
        stat(
            "Configurations in force", "Number of different configurations. If there is more than one for long, a rollout is stuck.",
            "count(count by (namespace, digest) (tickfleet_config_info{@}))",
            thresholds=steps((None, GREEN), (2, YELLOW)),
        ),
    ]


def admission():
    return [
        row("Admission"),
        graph(
            "Decisions", "Dispatched at once, queued for a later tick, capped, duplicate, conflict, rejected.",
            [("sum by (decision) (rate(tickfleet_turns_admitted_total{@}[$__rate_interval]))", "{{decision}}")],
            "ops", stacked=True,
        ),
        graph(
            "Share of turns that waited", "Queued or capped turns, of all new turns.",
            [(
                'sum by (decision) (rate(tickfleet_turns_admitted_total{@, decision=~"queued|capped"}[$__rate_interval])) '
                "/ on () group_left () (sum(rate(tickfleet_turns_admitted_total"
                '{@, decision=~"dispatched|queued|capped"}[$__rate_interval])) > 0)',
                "{{decision}}",
            )],
            "percentunit", maximum=1,
        ),
        graph(
            "Rejected turns", "Turns that were rejected before admission, by error code.",
            [("sum by (reason) (rate(tickfleet_turns_rejected_total{@}[$__rate_interval])) > 0", "{{reason}}")],
            "ops", stacked=True,
        ),
    ]


def ticks():
    return [
        row("Ticks and throttle queues"),
        graph(
            "Waiting for a cap", "Turns in throttle queues, and turns that wait for a retry.",
            [('sum by (state) (max by (namespace, state) (tickfleet_backlog{@, state=~"parked_capped|delayed"}))', "{{state}}")],
        ),
        graph(
            "Released and promoted", "Slices that left a throttle queue with their tick, and slices that returned for a retry.",
            [
                ("sum(rate(tickfleet_released_total{@}[$__rate_interval]))", "released"),
                ("sum(rate(tickfleet_promoted_total{@}[$__rate_interval]))", "promoted"),
            ],
            "ops",
        ),
        graph(
            "Calls admitted", "Calls that were debited from their budgets. Retries do not debit.",
            [("sum(rate(tickfleet_calls_admitted_total{@}[$__rate_interval]))", "calls")], "ops",
        ),
        graph(
            "Tick lag by scheduler", "Delay with which each scheduler's last round released the first due queue.",
            [("max by (instance) (tickfleet_tick_lag_seconds{@})", "{{instance}}")], "s",
            thresholds=steps((None, GREEN), (5, RED)), line_at=True,
        ),
        graph(
            "Tick duration", "Duration of one round, which releases throttle queues and due retries.",
            [(f"histogram_quantile({q}, {TICK_BUCKETS})", f"p{int(float(q) * 100)}") for q in ("0.5", "0.99")], "s",
        ),
        graph(
            "Rounds", "Rounds of the tick, all schedulers together.",
            [("sum(rate(tickfleet_tick_duration_seconds_count{@}[$__rate_interval]))", "rounds")], "ops",
        ),
    ]


def limits():
    def of(action):
        return [(f'sum by (limit) (rate(tickfleet_limits_reached_total{{@, action="{action}"}}[$__rate_interval])) > 0', "{{limit}}")]

    return [
        row("Limits"),
        graph(
            "Turns that waited for a limit", "By limit. `tickfleet limits` shows the full counters.",
            of("wait"), "ops", stacked=True,
        ),
        graph("Calls rejected by a limit", "By limit. Their code is limit_reached.", of("reject"), "ops", stacked=True),
        graph(
            "Limits in shadow mode", "Turns that each limit would have held up. Nothing was held up.",
            of("shadow"), "ops", stacked=True,
        ),
        table(
            "Limits that were reached", "In the last hour, by action.",
            "topk(50, round(sum by (limit, action) (increase(tickfleet_limits_reached_total{@}[1h]))) > 0)",
            ["limit", "action"],
        ),
    ]


def rules():
    def of(actions):
        return [(f'sum by (rule) (rate(tickfleet_rule_denials_total{{@, action=~"{actions}"}}[$__rate_interval])) > 0', "{{rule}}")]

    return [
        row("Rules on arguments and context"),
        graph("Calls denied by a rule", "By rule: the call does not meet it, or it cannot be evaluated.", of("deny|undecided"), "ops", stacked=True),
        graph(
            "Rules in shadow mode", "Calls that each rule would have denied. Nothing was denied.",
            of("shadow"), "ops", stacked=True,
        ),
        table(
            "Rules that were not met", "In the last hour, by action. Undecided: an argument is missing or has another type than the rule expects.",
            "topk(50, round(sum by (rule, action) (increase(tickfleet_rule_denials_total{@}[1h]))) > 0)",
            ["rule", "action"],
        ),
    ]


def permission():
    return [
        row("Permission and arguments"),
        graph(
            "Calls rejected before they ran", "Unknown tool, no permission, invalid arguments, or a refused approval.",
            [(f'sum by (outcome) (rate(tickfleet_calls_total{{@, outcome=~"{REFUSED}"}}[$__rate_interval]))', "{{outcome}}")],
            "ops", stacked=True,
        ),
        graph(
            "Calls ended by the clock or a cap", "The day cap was used up, the deadline passed, or the turn was canceled.",
            [(f'sum by (outcome) (rate(tickfleet_calls_total{{@, outcome=~"{NOT_REACHED}"}}[$__rate_interval]))', "{{outcome}}")],
            "ops", stacked=True,
        ),
        table(
            "Rejected calls by tool", "In the last hour. If an agent keeps calling a denied tool, change its prompt or grant the tool in permissions.yaml.",
            f'topk(50, round(sum by (tool, outcome) (increase(tickfleet_calls_total{{@, outcome=~"{REFUSED}"}}[1h]))) > 0)',
            ["tool", "outcome"],
        ),
    ]


def consent():
    return [
        row("Approvals, facts, repetition"),
        graph(
            "Approvals", "Approvals by event. not_asked: no approver can be asked. not_narrowed: the changed arguments are invalid.",
            [("sum by (event) (rate(tickfleet_approvals_total{@}[$__rate_interval]))", "{{event}}")], "ops", stacked=True,
        ),
        graph(
            "Calls that wait for approval", "They occupy no slots.",
            [('sum(max by (namespace) (tickfleet_backlog{@, state="approval"}))', "calls")],
        ),
        graph(
            "Notifications of approvals", "Requests of `tickfleet approvals notify`: accepted, failed and retried, or dropped.",
            [("sum by (result) (rate(tickfleet_approval_notifications_total{@}[$__rate_interval]))", "{{result}}")], "ops", stacked=True,
        ),
        graph(
            "Cached reads", "Reads that were answered from the cache, and reads that called their tool.",
            [("sum by (result) (rate(tickfleet_reads_cached_total{@}[$__rate_interval]))", "{{result}}")], "ops", stacked=True,
        ),
        graph(
            "Waits for a fact, and loops", "Calls that waited for the fact of another call; repeated calls that were warned about or denied.",
            [
                ("sum(rate(tickfleet_fact_waits_total{@}[$__rate_interval]))", "waits for a fact"),
                ("sum by (action) (rate(tickfleet_repeated_calls_total{@}[$__rate_interval]))", "loop: {{action}}"),
            ],
            "ops",
        ),
        graph(
            "Reconciled outcomes", "Results of `reconcile` tools: whether the call took effect.",
            [("sum by (verdict) (rate(tickfleet_reconciled_total{@}[$__rate_interval]))", "{{verdict}}")], "ops", stacked=True,
        ),
    ]


def audit():
    def more(name):
        return f"sum(increase(tickfleet_audit_{name}_total{{@}}[$__rate_interval]))"

    return [
        row("Audit log"),
        graph(
            "Sealed and exported", "Audit entries. An entry that is sent again after a crash counts again.",
            [
                ("sum(rate(tickfleet_audit_sealed_total{@}[$__rate_interval]))", "sealed"),
                ("sum(rate(tickfleet_audit_exported_total{@}[$__rate_interval]))", "exported"),
            ],
            "ops",
        ),
        graph(
            "Oldest without a seal", "Changes to unsealed entries are not detectable. More than 5 minutes is an alert.",
            [("max(tickfleet_audit_unsealed_age_seconds{@})", "oldest")], "s",
            thresholds=steps((None, GREEN), (300, RED)), line_at=True,
        ),
        graph(
            "Oldest not exported", "Trimming does not wait for an exporter. More than 15 minutes is an alert.",
            [("max(tickfleet_audit_unexported_age_seconds{@})", "oldest")], "s",
            thresholds=steps((None, GREEN), (900, RED)), line_at=True,
        ),
        graph(
            "Gaps and failures", "Entries that were removed before they were sealed or exported, and failed attempts to seal, anchor or export.",
            [
                (more("trimmed_unsealed"), "gone unsealed"),
                (more("trimmed_unexported"), "gone unexported"),
                (more("seal_failures"), "not sealed"),
                (more("anchor_failures"), "not anchored"),
                (more("export_failures"), "not exported"),
                (more("export_rejected"), "rejected by the collector"),
            ],
        ),
    ]


def policy():
    return [
        row("Policy and configuration"),
        table(
            "Configurations", "Processes by configuration in force (first 12 digits of its digest).",
            "count by (job, digest) (tickfleet_config_info{@})", ["job", "digest"],
        ),
        graph(
            "Reloads", "Accepted and rejected reloads of running processes.",
            [("sum by (result) (increase(tickfleet_config_reloads_total{@}[$__rate_interval]))", "{{result}}")],
        ),
        graph(
            "Policy generation", "Policy generation of each scheduler. If lines stay apart, one is on standby.",
            [("max by (instance) (tickfleet_config_generation{@})", "{{instance}}")],
        ),
        graph(
            "Outdated policies", "Checks of schedulers that found their own policy outdated.",
            [("sum(increase(tickfleet_policy_stale_total{@}[$__rate_interval]))", "outdated")],
        ),
        graph(
            "Age of the configuration", "Time since the configuration in force was loaded, the oldest of each job.",
            [("max by (job) (time() - (tickfleet_config_last_reload_success_timestamp_seconds{@} > 0))", "{{job}}")], "s",
        ),
    ]
