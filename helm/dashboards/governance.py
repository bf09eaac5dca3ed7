"""Governance: what the caps, limits, permissions and ticks decided."""

from grafana import BLUE, GREEN, RED, YELLOW, dashboard, graph, row, stat, steps, table

REFUSED = "denied|unknown_tool|invalid_arguments|approval_refused"
TICK_BUCKETS = "sum by (le) (rate(tickfleet_tick_duration_seconds_bucket{@}[$__rate_interval]))"


def make():
    return dashboard(
        "tickfleet-governance",
        "What admission, caps, ticks and permissions decided. Who was capped is in `tickfleet explain`, not in a label.",
        [*glance(), *admission(), *ticks(), *limits(), *rules(), *permission(), *consent(), *audit(), *policy()],
    )


def glance():
    return [
        row("At a glance"),
        stat(
            "Waiting for a cap", "Turns on lanes: they wait for their agent's next tick or day. A cap that holds is no fault.",
            'sum(max by (namespace) (tickfleet_backlog{@, state="parked_capped"}))', thresholds=steps((None, BLUE)),
        ),
        stat(
            "Oldest of them", "Age of the oldest that was seen; it is sampled. Turns that wait for a day may be a day old.",
            'max(tickfleet_oldest_age_seconds{@, state="parked_capped"})', "s", thresholds=steps((None, BLUE)),
        ),
        stat(
            "Tick lag", "How late lanes are released. More than a tick (5 s) is an alert.",
            "max(tickfleet_tick_lag_seconds{@})", "s", decimals=2,
            thresholds=steps((None, GREEN), (1, YELLOW), (5, RED)),
        ),
        stat(
            "Calls over the day cap", "Calls of the last hour that ended as daily_cap_reached.",
            'sum(increase(tickfleet_calls_total{@, outcome="daily_cap_reached"}[1h]))', decimals=0,
            thresholds=steps((None, BLUE)),
        ),
        stat(
            "Denied", "Calls of the last hour that no permission allows.",
            'sum(increase(tickfleet_calls_total{@, outcome="denied"}[1h]))', decimals=0, thresholds=steps((None, BLUE)),
        ),
        stat(
            "Configurations in force", "How many different ones. More than one, for long: a roll-out is stuck.",
            "count(count by (namespace, digest) (tickfleet_config_info{@}))",
            thresholds=steps((None, GREEN), (2, YELLOW)),
        ),
    ]


def admission():
    return [
        row("Admission"),
        graph(
            "Decisions", "Dispatched at once, laned for a later tick, ended at a cap, duplicate, conflict, rejected.",
            [("sum by (decision) (rate(tickfleet_turns_admitted_total{@}[$__rate_interval]))", "{{decision}}")],
            "ops", stacked=True,
        ),
        graph(
            "Part of turns that had to wait", "Laned or capped, of all turns that were new.",
            [(
                'sum by (decision) (rate(tickfleet_turns_admitted_total{@, decision=~"laned|capped"}[$__rate_interval])) '
                "/ on () group_left () (sum(rate(tickfleet_turns_admitted_total"
                '{@, decision=~"dispatched|laned|capped"}[$__rate_interval])) > 0)',
                "{{decision}}",
            )],
            "percentunit", maximum=1,
        ),
        graph(
            "Refused turns", "Turns that were answered with an error before admission, by its code.",
            [("sum by (reason) (rate(tickfleet_turns_refused_total{@}[$__rate_interval])) > 0", "{{reason}}")],
            "ops", stacked=True,
        ),
    ]


def ticks():
    return [
        row("Ticks and lanes"),
        graph(
            "Waiting for a cap", "Turns on lanes, and turns that wait for another try after a failure.",
            [('sum by (state) (max by (namespace, state) (tickfleet_backlog{@, state=~"parked_capped|delayed"}))', "{{state}}")],
        ),
        graph(
            "Released and promoted", "Slices that left a lane when their tick came, and slices that went back for another try.",
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
            "Tick lag by scheduler", "How late each scheduler's last round found the lane that was due first.",
            [("max by (instance) (tickfleet_tick_lag_seconds{@})", "{{instance}}")], "s",
            thresholds=steps((None, GREEN), (5, RED)), line_at=True,
        ),
        graph(
            "Tick duration", "Time of one round: releasing lanes and promoting what is due.",
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
            "Turns that a limit made wait", "By limit, each time that a turn came to its lane. Which counters are full says `tickfleet limits`.",
            of("wait"), "ops", stacked=True,
        ),
        graph("Calls that a limit refused", "By limit: they got the result limit_reached.", of("reject"), "ops", stacked=True),
        graph(
            "What limits in shadow would have held up", "Turns by limit. Nothing was held up: it is what enforcing the limit would do.",
            of("shadow"), "ops", stacked=True,
        ),
        table(
            "Limits that were reached", "Of the last hour, by what became of the turns or calls.",
            "topk(50, round(sum by (limit, action) (increase(tickfleet_limits_reached_total{@}[1h]))) > 0)",
            ["limit", "action"],
        ),
    ]


def rules():
    def of(actions):
        return [(f'sum by (rule) (rate(tickfleet_rules_unmet_total{{@, action=~"{actions}"}}[$__rate_interval])) > 0', "{{rule}}")]

    return [
        row("Rules on arguments and context"),
        graph("Calls that a rule denied", "By rule: they do not meet it, or whether they do cannot be said.", of("deny|undecided"), "ops", stacked=True),
        graph(
            "What rules in shadow would have denied", "Calls by rule. Nothing was denied: it is what enforcing the rule would do.",
            of("shadow"), "ops", stacked=True,
        ),
        table(
            "Rules that were not met", "Of the last hour, by what became of the calls. Undecided: an argument is missing, or is another kind of value than the rule takes it for.",
            "topk(50, round(sum by (rule, action) (increase(tickfleet_rules_unmet_total{@}[1h]))) > 0)",
            ["rule", "action"],
        ),
    ]


def permission():
    capped = "daily_cap_reached|expired|cancelled|rejected"
    return [
        row("Permission and arguments"),
        graph(
            "Calls refused before they ran", "No such tool, no permission, arguments that do not fit, an approval that was refused.",
            [(f'sum by (outcome) (rate(tickfleet_calls_total{{@, outcome=~"{REFUSED}"}}[$__rate_interval]))', "{{outcome}}")],
            "ops", stacked=True,
        ),
        graph(
            "Calls ended by the clock or a cap", "Their day was used up, their deadline passed, or somebody cancelled them.",
            [(f'sum by (outcome) (rate(tickfleet_calls_total{{@, outcome=~"{capped}"}}[$__rate_interval]))', "{{outcome}}")],
            "ops", stacked=True,
        ),
        table(
            "Refused calls by tool", "Of the last hour. An agent that keeps trying a tool that it may not call needs another prompt or a row in permissions.yaml.",
            f'topk(50, round(sum by (tool, outcome) (increase(tickfleet_calls_total{{@, outcome=~"{REFUSED}"}}[1h]))) > 0)',
            ["tool", "outcome"],
        ),
    ]


def consent():
    return [
        row("Consent, sequence, repetition"),
        graph(
            "Approvals", "What became of calls that need consent. Not asked: nobody could be. Not narrowed: what people had changed could not be used.",
            [("sum by (event) (rate(tickfleet_approvals_total{@}[$__rate_interval]))", "{{event}}")], "ops", stacked=True,
        ),
        graph(
            "Calls that wait for consent", "Their slots are free. The oldest says how long people take.",
            [('sum(max by (namespace) (tickfleet_backlog{@, state="approval"}))', "calls")],
        ),
        graph(
            "Approvals that others were told of", "Requests of `tickfleet approvals notify`: taken, failed and tried again, or given up.",
            [("sum by (result) (rate(tickfleet_approvals_told_total{@}[$__rate_interval]))", "{{result}}")], "ops", stacked=True,
        ),
        graph(
            "Answers known before", "Reads that were answered from a kept answer, and those that asked their tool.",
            [("sum by (result) (rate(tickfleet_reads_cached_total{@}[$__rate_interval]))", "{{result}}")], "ops", stacked=True,
        ),
        graph(
            "Waits for a fact, and loops", "Calls that waited for what another one brings; agents that were told of, or refused, the same call again and again.",
            [
                ("sum(rate(tickfleet_fact_waits_total{@}[$__rate_interval]))", "waits for a fact"),
                ("sum by (action) (rate(tickfleet_loops_total{@}[$__rate_interval]))", "loop: {{action}}"),
            ],
            "ops",
        ),
        graph(
            "Unknown outcomes that were asked for", "What a `reconcile` tool found: whether the call had taken effect.",
            [("sum by (verdict) (rate(tickfleet_reconciled_total{@}[$__rate_interval]))", "{{verdict}}")], "ops", stacked=True,
        ),
    ]


def audit():
    def more(name):
        return f"sum(increase(tickfleet_audit_{name}_total{{@}}[$__rate_interval]))"

    return [
        row("Audit log"),
        graph(
            "Sealed and exported", "Entries of the audit log. One that is sent again after a crash counts again.",
            [
                ("sum(rate(tickfleet_audit_sealed_total{@}[$__rate_interval]))", "sealed"),
                ("sum(rate(tickfleet_audit_exported_total{@}[$__rate_interval]))", "exported"),
            ],
            "ops",
        ),
        graph(
            "Oldest without a seal", "Until it has one, nobody could tell if it were changed. More than 5 minutes are an alert.",
            [("max(tickfleet_audit_unsealed_age_seconds{@})", "oldest")], "s",
            thresholds=steps((None, GREEN), (300, RED)), line_at=True,
        ),
        graph(
            "Oldest not exported", "Trimming does not wait for an exporter. More than 15 minutes are an alert.",
            [("max(tickfleet_audit_unexported_age_seconds{@})", "oldest")], "s",
            thresholds=steps((None, GREEN), (900, RED)), line_at=True,
        ),
        graph(
            "Gaps and failures", "Entries that were gone before they were sealed or exported, and tries to seal, anchor or export that failed.",
            [
                (more("gone_unsealed"), "gone unsealed"),
                (more("gone_unexported"), "gone unexported"),
                (more("seal_failures"), "not sealed"),
                (more("anchor_failures"), "not anchored"),
                (more("export_failures"), "not exported"),
                (more("export_refused"), "refused by the collector"),
            ],
        ),
    ]


def policy():
    return [
        row("Policy and configuration"),
        table(
            "Configurations", "Which configuration how many processes have in force: the first 12 digits of its digest.",
            "count by (job, digest) (tickfleet_config_info{@})", ["job", "digest"],
        ),
        graph(
            "Reloads", "Configurations that were taken over while the process ran, and those that were rejected.",
            [("sum by (result) (increase(tickfleet_config_reloads_total{@}[$__rate_interval]))", "{{result}}")],
        ),
        graph(
            "Policy generation", "The generation that each scheduler decides by. Lines that stay apart: one stands by.",
            [("max by (instance) (tickfleet_config_generation{@})", "{{instance}}")],
        ),
        graph(
            "Policies that were outdated", "Times that a scheduler learned that its policy is older than the fleet's.",
            [("sum(increase(tickfleet_policy_stale_total{@}[$__rate_interval]))", "outdated")],
        ),
        graph(
            "Age of the configuration", "Time since the configuration in force was loaded, the oldest of each job.",
            [("max by (job) (time() - (tickfleet_config_last_reload_success_timestamp_seconds{@} > 0))", "{{job}}")], "s",
        ),
    ]
