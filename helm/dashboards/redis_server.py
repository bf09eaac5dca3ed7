"""Redis, as measured by the fleet."""

from grafana import BLUE, GREEN, RED, YELLOW, dashboard, graph, heatmap, row, stat, steps

BUCKETS = "rate(tickfleet_redis_command_duration_seconds_bucket{@}[$__rate_interval])"
ANY_IS_BAD = steps((None, GREEN), (1, RED))


def make():
    return dashboard(
        "tickfleet-redis",
        "Redis as measured by schedulers and workers: requests, errors, latency, memory, clock and restarts.",
        [*glance(), *commands(), *memory(), *state()],
    )


def glance():
    return [
        row("At a glance"),
        stat(
            "Reachable from", "Share of the processes that Redis answered during the last scrape.",
            "avg(tickfleet_redis_up{@})", "percentunit", maximum=1,
            thresholds=steps((None, RED), (0.5, YELLOW), (1, GREEN)),
        ),
        stat(
            "Memory used", "Share of maxmemory. Absent without maxmemory. From 80 % on, new work is rejected.",
            "max(tickfleet_redis_memory_used_bytes{@} / (tickfleet_redis_memory_max_bytes{@} > 0))", "percentunit",
            maximum=1, thresholds=steps((None, GREEN), (0.7, YELLOW), (0.8, RED)),
        ),
        stat(
            "Pressure", "1 while new work is rejected because memory is nearly full.",
            "max(tickfleet_redis_pressure{@})", thresholds=ANY_IS_BAD,
        ),
        stat(
            "Requests", "Answered scripts, pipelines and commands. Each counts once.",
            "sum(rate(tickfleet_redis_commands_total{@}[$__rate_interval]))", "ops", decimals=0,
            thresholds=steps((None, BLUE)),
        ),
        stat(
            "p99", "Response time of all verbs. Blocking reads are excluded.",
            f"histogram_quantile(0.99, sum by (le) ({BUCKETS}))", "s",
            thresholds=steps((None, GREEN), (0.05, YELLOW), (0.25, RED)),
        ),
        stat(
            "State lost", "Detected losses of streams or groups since the processes started.",
            "sum(tickfleet_state_lost_total{@})", thresholds=ANY_IS_BAD,
        ),
    ]


def commands():
    return [
        row("Requests"),
        graph(
            "Requests by verb", "The twelve most frequent. A script for a batch counts once.",
            [("topk(12, sum by (verb) (rate(tickfleet_redis_commands_total{@}[$__rate_interval])) > 0)", "{{verb}}")],
            "ops", stacked=True,
        ),
        graph(
            "p99 by verb", "Response time of the ten slowest verbs.",
            [(f"topk(10, histogram_quantile(0.99, sum by (verb, le) ({BUCKETS})) > 0)", "{{verb}}")], "s",
        ),
        heatmap("Response time, distribution", "Responses of all verbs by duration.", f"sum by (le) ({BUCKETS})"),
        graph(
            "Errors by verb", "No connection, a timeout, or an error response.",
            [("sum by (verb) (rate(tickfleet_redis_errors_total{@}[$__rate_interval])) > 0", "{{verb}}")],
            "ops", stacked=True,
        ),
        graph(
            "Error rate", "Errors, as a share of requests.",
            [(
                "sum(rate(tickfleet_redis_errors_total{@}[$__rate_interval])) "
                "/ (sum(rate(tickfleet_redis_errors_total{@}[$__rate_interval])) "
                "+ sum(rate(tickfleet_redis_commands_total{@}[$__rate_interval])))",
                "failed",
            )],
            "percentunit", maximum=1, thresholds=steps((None, GREEN), (0.01, RED)), line_at=True,
        ),
        graph(
            "Requests per call", "Redis requests that a call needs. Batches reduce it under load.",
            [(
                "sum(rate(tickfleet_redis_commands_total{@}[$__rate_interval])) "
                "/ (sum(rate(tickfleet_calls_total{@}[$__rate_interval])) > 0)",
                "requests per call",
            )],
        ),
    ]


def memory():
    return [
        row("Memory"),
        graph(
            "Memory", "Used memory, and maxmemory (0: none).",
            [
                ("max by (namespace) (tickfleet_redis_memory_used_bytes{@})", "used"),
                ("max by (namespace) (tickfleet_redis_memory_max_bytes{@})", "maxmemory"),
            ],
            "bytes",
        ),
        graph(
            "Share of maxmemory", "From 80 % on, new work is rejected; accepted work finishes.",
            [("max by (namespace) (tickfleet_redis_memory_used_bytes{@} / (tickfleet_redis_memory_max_bytes{@} > 0))", "used")],
            "percentunit", maximum=1, thresholds=steps((None, GREEN), (0.7, YELLOW), (0.8, RED)), line_at=True,
        ),
        graph(
            "Pressure", "1 while new work is rejected.",
            [("max by (namespace) (tickfleet_redis_pressure{@})", "pressure")], maximum=1,
        ),
    ]


def state():
    return [
        row("State, epochs and clock"),
        graph(
            "Reachable", "1 if Redis answered the process.",
            [("min by (instance) (tickfleet_redis_up{@})", "{{instance}}")], maximum=1,
        ),
        graph(
            "Restarts and lost state",
            "Epochs: Redis restarted or was replaced. Failovers: sentinels or nodes named another primary. State lost: "
            "streams or groups were missing.",
            [
                ("max(increase(tickfleet_epoch_changes_total{@}[$__rate_interval]))", "epochs"),
                ("max(increase(tickfleet_redis_primary_moves_total{@}[$__rate_interval]))", "failovers"),
                ("max(increase(tickfleet_state_lost_total{@}[$__rate_interval]))", "state lost"),
            ],
        ),
        graph(
            "Shard time ahead", "Shard time minus the schedulers' own clocks. Below 0, it is behind.",
            [
                ("max by (namespace) (tickfleet_shard_clock_ahead_seconds{@})", "furthest ahead"),
                ("min by (namespace) (tickfleet_shard_clock_ahead_seconds{@})", "furthest behind"),
            ],
            unit="s",
        ),
    ]
