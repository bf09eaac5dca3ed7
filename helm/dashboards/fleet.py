"""The fleet: intake, backlog, running work and results."""

from grafana import BLUE, GREEN, RED, YELLOW, bars, dashboard, graph, heatmap, row, stat, steps, table
from outcomes import TOOL_FAILED

LOOPS = "tickfleet_loop_progress_timestamp_seconds"


def make():
    return dashboard(
        "tickfleet-fleet",
        "Intake, backlog, running work and results of the whole fleet.",
        [*glance(), *intake(), *backlog(), *starts(), *tools(), *sandboxes(), *gateways(), *processes()],
    )


def glance():
    return [
        row("At a glance"),
        stat(
            "Schedulers", "Active schedulers. Schedulers on standby with an older policy are not counted. Run two or more.",
            f'count({LOOPS}{{@, loop="tick"}}) or vector(0)',
            thresholds=steps((None, RED), (1, YELLOW), (2, GREEN)),
        ),
        stat(
            "Workers", "Workers that take work.",
            f'count({LOOPS}{{@, loop="lease"}}) or vector(0)',
            thresholds=steps((None, RED), (1, GREEN)),
        ),
        stat(
            "Calls ended", "Calls that ended, with any outcome.",
            "sum(rate(tickfleet_calls_total{@}[$__rate_interval]))", "ops", decimals=1,
            thresholds=steps((None, BLUE)),
        ),
        stat(
            "Oldest ready", "Age of the oldest slice that waits for a worker.",
            'max(tickfleet_oldest_age_seconds{@, state="ready"})', "s", decimals=1,
            thresholds=steps((None, GREEN), (5, YELLOW), (30, RED)),
        ),
        stat(
            "Slots busy", "Share of all slots that run a slice now. Near 100 % for long: add workers.",
            "sum(tickfleet_slots_busy{@}) / sum(tickfleet_slots{@})", "percentunit", maximum=1,
            thresholds=steps((None, GREEN), (0.8, YELLOW), (0.95, RED)),
        ),
        stat(
            "Alerts firing", "Firing Tickfleet alerts, pages and tickets.",
            'count(ALERTS{alertname=~"Tickfleet.*", alertstate="firing", namespace=~"$namespace"}) or vector(0)',
            thresholds=steps((None, GREEN), (1, RED)),
        ),
    ]


def intake():
    return [
        row("Intake"),
        graph(
            "Messages read", "Entries that schedulers read from the inbound streams.",
            [("sum by (stream) (rate(tickfleet_inbound_entries_total{@}[$__rate_interval]))", "{{stream}}")], "ops",
        ),
        graph(
            "Turns admitted", "Admission decisions. Queued turns wait for their agent's next tick.",
            [("sum by (decision) (rate(tickfleet_turns_admitted_total{@}[$__rate_interval]))", "{{decision}}")],
            "ops", stacked=True,
        ),
        graph(
            "Calls in and out", "Admitted and ended calls. The lines diverge while work accumulates.",
            [
                ("sum(rate(tickfleet_calls_admitted_total{@}[$__rate_interval]))", "admitted"),
                ("sum(rate(tickfleet_calls_total{@}[$__rate_interval]))", "ended"),
            ],
            "ops",
        ),
    ]


def backlog():
    return [
        row("Backlog"),
        graph(
            "Unfinished work", "Entries for inbound, slices for ready, running and suspect.",
            [('sum by (state) (max by (namespace, state) (tickfleet_backlog{@, state=~"inbound|ready|running|suspect"}))', "{{state}}")],
            stacked=True,
        ),
        graph(
            "Throttled and delayed", "Turns that wait for a cap or a retry. More workers do not help them.",
            [('sum by (state) (max by (namespace, state) (tickfleet_backlog{@, state=~"parked_capped|delayed"}))', "{{state}}")],
            stacked=True,
        ),
        graph(
            "Oldest age", "Ready and inbound should stay near zero. Running is as long as the longest call.",
            [('max by (state) (tickfleet_oldest_age_seconds{@, state!="dead"})', "{{state}}")], "s",
            thresholds=steps((None, GREEN), (30, RED)), line_at=True,
        ),
    ]


def starts():
    bucket = "sum by (le) (rate(tickfleet_schedule_to_start_seconds_bucket{@}[$__rate_interval]))"
    return [
        row("Starting work"),
        graph(
            "Schedule to start", "Time from the dispatch of a slice to its start on a worker. Objective: 99 % within 1 s.",
            [(f"histogram_quantile({q}, {bucket})", f"p{int(float(q) * 100)}") for q in ("0.5", "0.9", "0.99")], "s",
            thresholds=steps((None, GREEN), (1, RED)), line_at=True,
        ),
        heatmap("Schedule to start, distribution", "Slices by waiting time.", bucket),
        graph(
            "Slots", "All slots, and busy slots.",
            [("sum(tickfleet_slots{@})", "slots"), ("sum(tickfleet_slots_busy{@})", "busy")],
        ),
        graph(
            "Work per slot", "Ready, running and suspect slices per slot, the metric for autoscaling. Capped work is excluded.",
            [(
                'sum(max by (namespace, state) (tickfleet_backlog{@, state=~"ready|running|suspect"})) / sum(tickfleet_slots{@})',
                "work per slot",
            )],
            thresholds=steps((None, GREEN), (1, RED)), line_at=True,
        ),
        graph(
            "Slots busy by worker", "The ten busiest workers. Even lines are good: work goes to workers with free slots.",
            [("topk(10, tickfleet_slots_busy{@})", "{{instance}}")],
        ),
        graph(
            "Turn duration", "Time from submit to end, including waits and retries.",
            [
                (f"histogram_quantile({q}, sum by (le) (rate(tickfleet_turn_duration_seconds_bucket{{@}}[$__rate_interval])))",
                 f"p{int(float(q) * 100)}")
                for q in ("0.5", "0.9", "0.99")
            ],
            "s",
        ),
    ]


def tools():
    failed = f'outcome=~"{TOOL_FAILED}"'
    return [
        row("Tools"),
        graph(
            "Calls by outcome", "Ended calls by outcome. The reference of outcomes explains each.",
            [("sum by (outcome) (rate(tickfleet_calls_total{@}[$__rate_interval])) > 0", "{{outcome}}")],
            "ops", stacked=True,
        ),
        graph(
            "Calls by tool", "The ten most called tools. Calls that ended without a worker are under `other`.",
            [("topk(10, sum by (tool) (rate(tickfleet_calls_total{@}[$__rate_interval])) > 0)", "{{tool}}")], "ops",
        ),
        bars(
            "Failing tools", "Share of a tool's calls that failed on the tool's side, after all retries.",
            f"topk(10, sum by (tool) (rate(tickfleet_calls_total{{@, {failed}}}[$__rate_interval])) "
            "/ (sum by (tool) (rate(tickfleet_calls_total{@}[$__rate_interval])) > 0))",
            "{{tool}}", "percentunit", maximum=1,
            thresholds=steps((None, GREEN), (0.05, YELLOW), (0.25, RED)),
        ),
        graph(
            "Call duration, p95 by tool", "Duration of the last attempt of a call. The ten slowest tools.",
            [(
                "topk(10, histogram_quantile(0.95, "
                "sum by (tool, le) (rate(tickfleet_call_duration_seconds_bucket{@}[$__rate_interval]))) > 0)",
                "{{tool}}",
            )],
            "s", width=12,
        ),
        table(
            "Outcomes by tool", "Calls of the last hour that did not end as ok.",
            'topk(50, round(sum by (tool, outcome) (increase(tickfleet_calls_total{@, outcome!="ok"}[1h]))) > 0)',
            ["tool", "outcome"], width=12,
        ),
    ]


def sandboxes():
    return [
        row("Sandboxes of tools"),
        graph(
            "Workers by sandbox level", "Workers that provide each level, and all workers with sandboxed tools. If the lines differ, so do the machines.",
            [
                ("sum by (level) (tickfleet_sandbox_level_held{@})", "{{level}}"),
                ("count(count by (namespace, instance) (tickfleet_sandbox_level_held{@}))", "all"),
            ],
            width=12,
        ),
        graph(
            "Tools without their sandbox", "Tools that a worker refuses because its machine lacks their sandbox. The ten worst workers.",
            [("topk(10, tickfleet_sandbox_tools_refused{@})", "{{instance}}")],
            width=12, thresholds=steps((None, GREEN), (1, RED)), line_at=True,
        ),
    ]


GATEWAY = "tickfleet_gateway_requests_total"
WAITS = ".*_wait|chat|events|mcp"


def gateways():
    return [
        row("Gateways"),
        graph(
            "Requests", "HTTP requests by route. `other` has no route.",
            [(f"sum by (request) (rate({GATEWAY}{{@}}[$__rate_interval])) > 0", "{{request}}")], "ops", stacked=True,
        ),
        graph(
            "Failed requests", "Share of requests that ended with a 5xx: Redis is away, or a bug.",
            [(
                f'sum(rate({GATEWAY}{{@, status="5xx"}}[$__rate_interval])) '
                f"/ sum(rate({GATEWAY}{{@}}[$__rate_interval]))",
                "5xx",
            )],
            "percentunit", thresholds=steps((None, GREEN), (0.05, RED)), line_at=True,
        ),
        graph(
            "Time to answer", "Duration of requests that neither wait for a reply nor run a call.",
            [
                (
                    f"histogram_quantile({quantile}, sum by (le) (rate(tickfleet_gateway_request_duration_seconds_bucket"
                    f'{{@, request!~"{WAITS}"}}[$__rate_interval])))',
                    legend,
                )
                for quantile, legend in ((0.5, "p50"), (0.99, "p99"))
            ],
            "s",
        ),
        graph(
            "Waiting requests and streams", "Requests that wait for a reply (at most 10,000 per gateway), and open event streams.",
            [("sum(tickfleet_gateway_waiting{@})", "waiting"), ("sum(tickfleet_gateway_streams{@})", "streams")],
        ),
        graph(
            "Rejected requests", "`key`: missing or invalid key. `busy`: full queues, or too many waiting requests. `unavailable`: Redis is away or nearly full.",
            [("sum by (reason) (rate(tickfleet_gateway_rejected_total{@}[$__rate_interval]))", "{{reason}}")], "ops", stacked=True,
        ),
        graph(
            "Calls over MCP", "Tool calls by response. `task`: the call continues, and its client polls.",
            [("sum by (response) (rate(tickfleet_gateway_mcp_calls_total{@}[$__rate_interval]))", "{{response}}")], "ops", stacked=True,
        ),
    ]


def processes():
    return [
        row("Processes"),
        graph(
            "CPU", "CPU seconds per second, by job.",
            [("sum by (job) (rate(process_cpu_seconds_total{@}[$__rate_interval]))", "{{job}}")], "short",
        ),
        graph(
            "Memory", "Resident memory of the largest process of each job.",
            [("max by (job) (process_resident_memory_bytes{@})", "{{job}}")], "bytes",
        ),
        graph(
            "Open files", "Share of the process' limit on open files that is used.",
            [("max by (job) (process_open_fds{@} / process_max_fds{@})", "{{job}}")], "percentunit",
            thresholds=steps((None, GREEN), (0.8, RED)), line_at=True,
        ),
        graph(
            "Restarts", "Restarts of processes at the same address within the last hour.",
            [("sum by (job) (changes(process_start_time_seconds{@}[1h]))", "{{job}}")], width=12,
        ),
        table(
            "Versions", "Processes by version.",
            "count by (job, version) (tickfleet_build_info{@})", ["job", "version"], width=12,
        ),
    ]
