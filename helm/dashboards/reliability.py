"""Reliability: failures, retries, takeovers and unknown outcomes."""

from grafana import GREEN, RED, YELLOW, dashboard, graph, row, stat, steps, table
from outcomes import FAILED

ANY_IS_BAD = steps((None, GREEN), (1, RED))


def make():
    return dashboard(
        "tickfleet-reliability",
        "Failures, retries, takeovers and unknown outcomes.",
        [*glance(), *retries(), *recovery(), *dead(), *loops()],
    )


def glance():
    return [
        row("At a glance: the last hour"),
        stat(
            "Outcome unknown", "Calls of `once` tools that may have happened. A person must check each.",
            'sum(increase(tickfleet_calls_total{@, outcome="outcome_unknown"}[1h]))', decimals=0, thresholds=ANY_IS_BAD,
        ),
        stat(
            "Internal errors", "Calls that ended because of a bug in a tool, or a slice that crashed its workers.",
            'sum(increase(tickfleet_calls_total{@, outcome="internal"}[1h]))', decimals=0, thresholds=ANY_IS_BAD,
        ),
        stat(
            "Quarantined", "Slices that were ended because they lost their worker too often.",
            "sum(increase(tickfleet_quarantined_total{@}[1h]))", decimals=0, thresholds=ANY_IS_BAD,
        ),
        stat(
            "Reaped", "Slices and entries that were taken back from dead processes.",
            "sum(increase(tickfleet_reaped_total{@}[1h]))", decimals=0, thresholds=steps((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Started within 1 s", "Share of the slices of the last hour that started within a second. The objective is 99 %.",
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
            "Failed calls", "Calls that failed after all retries. `permanent`: the service rejected the call.",
            [(
                f'sum by (outcome) (rate(tickfleet_calls_total{{@, outcome=~"{FAILED}"}}[$__rate_interval]))',
                "{{outcome}}",
            )],
            "ops", stacked=True,
        ),
        graph(
            "Retries", "Failed attempts that are retried.",
            [("sum by (reason) (rate(tickfleet_retries_total{@}[$__rate_interval]))", "{{reason}}")], "ops", stacked=True,
        ),
        graph(
            "Waiting for a retry", "Turns that wait for their next attempt.",
            [('sum(max by (namespace) (tickfleet_backlog{@, state="delayed"}))', "delayed")],
        ),
        graph(
            "Open circuit breakers", "Tools that a worker does not call now because they failed too often in a row.",
            [("max by (instance) (tickfleet_tool_breakers_open{@}) > 0", "{{instance}}")], decimals=0,
        ),
        graph(
            "Circuit breaker events", "`waited`: a call was not sent. `tried` without `closed`: the probe failed. `gave_up`: a call ended after its longest wait.",
            [("sum by (tool, event) (increase(tickfleet_tool_breaker_total{@}[$__rate_interval])) > 0", "{{tool}} {{event}}")],
        ),
        graph(
            "Durable begins", "Calls whose start had to be durable first. Unconfirmed calls did not run.",
            [("sum by (outcome) (rate(tickfleet_durable_begins_total{@}[$__rate_interval]))", "{{outcome}}")], "ops", stacked=True,
        ),
        graph(
            "Outcome unknown by tool", "Calls that may have taken effect.",
            [(
                'sum by (tool) (increase(tickfleet_calls_total{@, outcome="outcome_unknown"}[$__rate_interval])) > 0',
                "{{tool}}",
            )],
            width=12,
        ),
        table(
            "Failures by tool", "Failed calls of the last hour.",
            f'topk(50, round(sum by (tool, outcome) (increase(tickfleet_calls_total{{@, outcome=~"{FAILED}"}}[1h]))) > 0)',
            ["tool", "outcome"], width=12,
        ),
    ]


def recovery():
    return [
        row("Recovery"),
        graph(
            "Taken back", "Slices and inbound entries taken from consumers without a heartbeat.",
            [("sum(increase(tickfleet_reaped_total{@}[$__rate_interval]))", "reaped")],
        ),
        graph(
            "Leases lost", "Processes that could not renew in time, and external runtimes that stopped responding.",
            [("sum by (holder) (increase(tickfleet_leases_lost_total{@}[$__rate_interval]))", "{{holder}}")],
        ),
        graph(
            "Fenced", "Late writes that were rejected because another process had taken over. The work itself is safe.",
            [("sum by (verb) (increase(tickfleet_fenced_total{@}[$__rate_interval]))", "{{verb}}")],
        ),
        graph(
            "Quarantined", "Slices that were ended because they lost their worker too often.",
            [("sum(increase(tickfleet_quarantined_total{@}[$__rate_interval]))", "quarantined")],
        ),
        graph(
            "Oldest running", "Age of the oldest running slice. It should not exceed the longest tool timeout by much.",
            [('max(tickfleet_oldest_age_seconds{@, state="running"})', "oldest running")], "s",
        ),
    ]


def dead():
    return [
        row("Dead letters"),
        graph(
            "New dead letters", "Rejected messages by reason. `poison` crashed the schedulers that read it.",
            [("sum by (reason) (increase(tickfleet_dead_letters_total{@}[$__rate_interval])) > 0", "{{reason}}")],
            stacked=True, width=12,
        ),
        graph(
            "Stored dead letters", "Entries that are kept for review. `tickfleet dead list` shows them.",
            [('sum(max by (namespace) (tickfleet_backlog{@, state="dead"}))', "dead")], width=12,
        ),
    ]


def loops():
    return [
        row("Loops and processes"),
        graph(
            "Time since a loop advanced", "The slowest loop of each kind. Liveness probes fail if a loop stalls.",
            [("max by (loop) (time() - tickfleet_loop_progress_timestamp_seconds{@})", "{{loop}}")], "s",
            thresholds=steps((None, GREEN), (180, RED)), line_at=True,
        ),
        graph(
            "Processes that run", "Processes that Prometheus can scrape, by job.",
            [("sum by (job) (up{@} and on (namespace, job, instance) tickfleet_build_info{@})", "{{job}}")],
        ),
        table(
            "Firing alerts", "Each alert has a runbook.",
            'ALERTS{alertname=~"Tickfleet.*", alertstate="firing", namespace=~"$namespace"}',
            ["alertname", "severity", "namespace", "instance", "tool", "loop"],
        ),
    ]
