"""Redis, as the fleet sees it."""

from grafana import BLUE, GREEN, RED, YELLOW, dashboard, graph, heatmap, row, stat, steps

BUCKETS = "rate(tickfleet_redis_command_duration_seconds_bucket{@}[$__rate_interval])"
ANY_IS_BAD = steps((None, GREEN), (1, RED))


def make():
    return dashboard(
        "tickfleet-redis",
        "Redis as schedulers and workers see it: answers, errors, latency, memory, clock and restarts.",
        [*glance(), *commands(), *memory(), *state()],
    )


def glance():
    return [
        row("At a glance"),
        stat(
            "Reached by", "Part of the processes that Redis answered during the last scrape.",
            "avg(tickfleet_redis_up{@})", "percentunit", maximum=1,
            thresholds=steps((None, RED), (0.5, YELLOW), (1, GREEN)),
        ),
        stat(
            "Memory used", "Of maxmemory. Absent where Redis has no bound. From 80 % on, new work is refused.",
            "max(tickfleet_redis_memory_used_bytes{@} / (tickfleet_redis_memory_max_bytes{@} > 0))", "percentunit",
            maximum=1, thresholds=steps((None, GREEN), (0.7, YELLOW), (0.8, RED)),
        ),
        stat(
            "Pressure", "1 while new work is refused because memory is nearly full.",
            "max(tickfleet_redis_pressure{@})", thresholds=ANY_IS_BAD,
        ),
        stat(
            "Questions", "Scripts, pipelines and commands that were answered. Each counts once.",
            "sum(rate(tickfleet_redis_commands_total{@}[$__rate_interval]))", "ops", decimals=0,
            thresholds=steps((None, BLUE)),
        ),
        stat(
            "p99", "Time to an answer, all verbs together. Blocking reads are not in it.",
            f"histogram_quantile(0.99, sum by (le) ({BUCKETS}))", "s",
            thresholds=steps((None, GREEN), (0.05, YELLOW), (0.25, RED)),
        ),
        stat(
            "State lost", "Times that streams or groups were gone, since the processes started.",
            "sum(tickfleet_state_lost_total{@})", thresholds=ANY_IS_BAD,
        ),
    ]


def commands():
    return [
        row("Questions and answers"),
        graph(
            "Questions by verb", "The twelve most frequent. A script that carries a batch counts once.",
            [("topk(12, sum by (verb) (rate(tickfleet_redis_commands_total{@}[$__rate_interval])) > 0)", "{{verb}}")],
            "ops", stacked=True,
        ),
        graph(
            "p99 by verb", "Time to an answer. The ten slowest verbs.",
            [(f"topk(10, histogram_quantile(0.99, sum by (verb, le) ({BUCKETS})) > 0)", "{{verb}}")], "s",
        ),
        heatmap("Time to an answer, spread", "How many answers took how long, all verbs together.", f"sum by (le) ({BUCKETS})"),
        graph(
            "Errors by verb", "No connection, no answer in time, or an error in the answer.",
            [("sum by (verb) (rate(tickfleet_redis_errors_total{@}[$__rate_interval])) > 0", "{{verb}}")],
            "ops", stacked=True,
        ),
        graph(
            "Part that failed", "Errors over questions.",
            [(
                "sum(rate(tickfleet_redis_errors_total{@}[$__rate_interval])) "
                "/ (sum(rate(tickfleet_redis_errors_total{@}[$__rate_interval])) "
                "+ sum(rate(tickfleet_redis_commands_total{@}[$__rate_interval])))",
                "failed",
            )],
            "percentunit", maximum=1, thresholds=steps((None, GREEN), (0.01, RED)), line_at=True,
        ),
        graph(
            "Questions per call", "How many questions to Redis one call costs. Batches make it fall under load.",
            [(
                "sum(rate(tickfleet_redis_commands_total{@}[$__rate_interval])) "
                "/ (sum(rate(tickfleet_calls_total{@}[$__rate_interval])) > 0)",
                "questions per call",
            )],
        ),
    ]


def memory():
    return [
        row("Memory"),
        graph(
            "Memory", "What Redis uses, and its bound (0: none).",
            [
                ("max by (namespace) (tickfleet_redis_memory_used_bytes{@})", "used"),
                ("max by (namespace) (tickfleet_redis_memory_max_bytes{@})", "bound"),
            ],
            "bytes",
        ),
        graph(
            "Part of the bound", "From 80 % on, new work is refused; what was accepted is finished.",
            [("max by (namespace) (tickfleet_redis_memory_used_bytes{@} / (tickfleet_redis_memory_max_bytes{@} > 0))", "used")],
            "percentunit", maximum=1, thresholds=steps((None, GREEN), (0.7, YELLOW), (0.8, RED)), line_at=True,
        ),
        graph(
            "Pressure", "1 while new work is refused.",
            [("max by (namespace) (tickfleet_redis_pressure{@})", "pressure")], maximum=1,
        ),
    ]


def state():
    return [
        row("State, epochs and clock"),
        graph(
            "Reached", "1 where Redis answered the process.",
            [("min by (instance) (tickfleet_redis_up{@})", "{{instance}}")], maximum=1,
        ),
        graph(
            "Restarts and lost state",
            "Epochs: another Redis answers than before. Failovers: sentinels named another primary. State lost: streams "
            "or groups were gone.",
            [
                ("max(increase(tickfleet_epoch_changes_total{@}[$__rate_interval]))", "epochs"),
                ("max(increase(tickfleet_redis_primary_moves_total{@}[$__rate_interval]))", "failovers"),
                ("max(increase(tickfleet_state_lost_total{@}[$__rate_interval]))", "state lost"),
            ],
        ),
        graph(
            "Clock steps", "Large steps back of Redis' clock, as schedulers saw them.",
            [("max(increase(tickfleet_clock_steps_total{@}[$__rate_interval]))", "steps")],
        ),
        graph(
            "Shard time ahead", "Shard time less the schedulers' own clocks: below 0 it is behind.",
            [
                ("max by (namespace) (tickfleet_shard_clock_ahead_seconds{@})", "furthest ahead"),
                ("min by (namespace) (tickfleet_shard_clock_ahead_seconds{@})", "furthest behind"),
            ],
            unit="s",
        ),
    ]
