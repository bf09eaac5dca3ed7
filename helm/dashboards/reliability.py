"""Reliability: what failed, what was repeated, what was taken over, and what nobody knows."""

from grafana import GREEN, RED, YELLOW, dashboard, graph, row, stat, steps, table

ANY_IS_BAD = steps((None, GREEN), (1, RED))


def make():
    return dashboard(
        "tickfleet-reliability",
        "What failed, what was tried again, what others took over, and what nobody knows.",
        [*glance(), *retries(), *recovery(), *dead(), *loops()],
    )


def glance():
    return [
        row("At a glance: the last hour"),
        stat(
            "Outcome unknown", "Calls that must not run twice and may have happened. Somebody has to check each.",
            'sum(increase(tickfleet_calls_total{@, outcome="outcome_unknown"}[1h]))', decimals=0, thresholds=ANY_IS_BAD,
        ),
        stat(
            "Internal errors", "Calls that ended by a bug: in a tool, or in a slice that killed its workers.",
            'sum(increase(tickfleet_calls_total{@, outcome="internal"}[1h]))', decimals=0, thresholds=ANY_IS_BAD,
        ),
        stat(
            "Quarantined", "Slices that were ended because they lost their worker too often.",
            "sum(increase(tickfleet_quarantined_total{@}[1h]))", decimals=0, thresholds=ANY_IS_BAD,
        ),
        stat(
            "Reaped", "Slices and entries that were taken back from the dead.",
            "sum(increase(tickfleet_reaped_total{@}[1h]))", decimals=0, thresholds=steps((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Invariants broken", "Findings of the sweep that should be impossible. Since the processes started.",
            "sum(tickfleet_invariant_violations_total{@})", decimals=0, thresholds=ANY_IS_BAD,
        ),
        stat(
            "Started within 1 s", "Part of the slices of the last hour that a worker began within a second. The objective is 99 %.",
            'sum(increase(tickfleet_schedule_to_start_seconds_bucket{@, le="1"}[1h])) '
            "/ sum(increase(tickfleet_schedule_to_start_seconds_count{@}[1h]))",
            "percentunit", decimals=2, maximum=1,
            thresholds=steps((None, RED), (0.95, YELLOW), (0.99, GREEN)),
        ),
    ]


def retries():
    return [
        row("Failures and retries"),
        graph(
            "Failed calls", "Calls that ended badly after all retries. `permanent` is the far side's refusal.",
            [(
                'sum by (outcome) (rate(tickfleet_calls_total'
                '{@, outcome=~"transient|permanent|internal|outcome_unknown"}[$__rate_interval]))',
                "{{outcome}}",
            )],
            "ops", stacked=True,
        ),
        graph(
            "Retries", "Tries that failed and are repeated.",
            [("sum by (reason) (rate(tickfleet_retries_total{@}[$__rate_interval]))", "{{reason}}")], "ops", stacked=True,
        ),
        graph(
            "Waiting for another try", "Turns that are parked until their next try.",
            [('sum(max by (namespace) (tickfleet_backlog{@, state="delayed"}))', "delayed")],
        ),
        graph(
            "Tools that rest", "By circuit breakers of workers: how many tools a worker does not call now, since they failed too often in a row.",
            [("max by (instance) (tickfleet_tools_resting{@}) > 0", "{{instance}}")], decimals=0,
        ),
        graph(
            "Breakers", "`opened`: a tool rests from now on. `waited`: a call was not sent. `tried` without `closed`: it is still away. `gave_up`: a call has waited for as long as it may.",
            [("sum by (tool, event) (increase(tickfleet_tool_breaker_total{@}[$__rate_interval])) > 0", "{{tool}} {{event}}")],
        ),
        graph(
            "Durable begins", "Calls of `once` tools whose begin had to be durable before they ran. Those that were not confirmed in time did not run.",
            [("sum by (outcome) (rate(tickfleet_durable_begins_total{@}[$__rate_interval]))", "{{outcome}}")], "ops", stacked=True,
        ),
        graph(
            "Outcome unknown by tool", "Calls whose effect may have happened.",
            [(
                'sum by (tool) (increase(tickfleet_calls_total{@, outcome="outcome_unknown"}[$__rate_interval])) > 0',
                "{{tool}}",
            )],
            width=12,
        ),
        table(
            "Failures by tool", "Calls of the last hour that ended badly.",
            'topk(50, round(sum by (tool, outcome) (increase(tickfleet_calls_total'
            '{@, outcome=~"transient|permanent|internal|outcome_unknown"}[1h]))) > 0)',
            ["tool", "outcome"], width=12,
        ),
    ]


def recovery():
    return [
        row("Recovery"),
        graph(
            "Taken back", "Slices and inbound entries taken from consumers whose heartbeat was gone.",
            [("sum(increase(tickfleet_reaped_total{@}[$__rate_interval]))", "reaped")],
        ),
        graph(
            "Leases lost", "By processes that could not renew their lease in time, and by external runtimes that fell silent.",
            [("sum by (holder) (increase(tickfleet_leases_lost_total{@}[$__rate_interval]))", "{{holder}}")],
        ),
        graph(
            "Fenced", "Acts that came too late and were refused: somebody else had taken over. This is the safety net at work.",
            [("sum by (verb) (increase(tickfleet_fenced_total{@}[$__rate_interval]))", "{{verb}}")],
        ),
        graph(
            "Quarantined", "Slices that were ended because they lost their worker too often.",
            [("sum(increase(tickfleet_quarantined_total{@}[$__rate_interval]))", "quarantined")],
        ),
        graph(
            "Longest in work", "Age of the oldest slice that a worker holds. It should not exceed the longest tool timeout by much.",
            [('max(tickfleet_oldest_age_seconds{@, state="running"})', "oldest running")], "s",
        ),
        graph(
            "Invariants broken", "Findings of the sweep, each seen twice before it counts.",
            [("sum by (invariant) (increase(tickfleet_invariant_violations_total{@}[$__rate_interval]))", "{{invariant}}")],
            thresholds=ANY_IS_BAD, line_at=True,
        ),
    ]


def dead():
    return [
        row("Dead letters"),
        graph(
            "New dead letters", "Messages that were refused, by reason. `poison` killed the schedulers that read it.",
            [("sum by (reason) (increase(tickfleet_dead_total{@}[$__rate_interval])) > 0", "{{reason}}")],
            stacked=True, width=12,
        ),
        graph(
            "On the dead stream", "Entries that are kept to be looked at. `tickfleet doctor` shows the newest.",
            [('sum(max by (namespace) (tickfleet_backlog{@, state="dead"}))', "dead")], width=12,
        ),
    ]


def loops():
    return [
        row("Loops and processes"),
        graph(
            "Time since a loop advanced", "The furthest behind of each kind. Liveness probes fail on a loop that stands still.",
            [("max by (loop) (time() - tickfleet_loop_progress_timestamp_seconds{@})", "{{loop}}")], "s",
            thresholds=steps((None, GREEN), (180, RED)), line_at=True,
        ),
        graph(
            "Processes that run", "By job, as Prometheus reaches them.",
            [("sum by (job) (up{@} and on (namespace, job, instance) tickfleet_build_info{@})", "{{job}}")],
        ),
        table(
            "Alerts that fire", "Each has a section in the operating guide.",
            'ALERTS{alertname=~"Tickfleet.*", alertstate="firing", namespace=~"$namespace"}',
            ["alertname", "severity", "namespace", "instance", "tool", "loop"],
        ),
    ]
