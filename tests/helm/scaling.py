"""Checks the metrics by which workers are scaled. `promtool test rules` evaluates the queries."""

import re
import subprocess
import tempfile

from install_doc import snippet

# Every scheduler of a fleet exports the whole backlog, so a query must not add up the schedulers.
OURS = [("agents", "fleet-tickfleet-scheduler", instance) for instance in ("a", "b")]
THEIRS = [("others", "fleet-tickfleet-scheduler", "c")]
BACKLOG = {"inbound": 50, "ready": 30, "running": 12, "suspect": 5, "parked_capped": 100_000, "delayed": 7_000, "dead": 9}
WORK = BACKLOG["ready"] + BACKLOG["running"] + BACKLOG["suspect"]


def series(fleet, backlog):
    """Returns the series that a fleet's schedulers export, for ten minutes."""
    return [
        {
            "series": f'tickfleet_backlog{{namespace="{namespace}",job="{job}",instance="{instance}",state="{state}"}}',
            "values": f"{count}x10",
        }
        for namespace, job, instance in fleet
        for state, count in backlog.items()
    ]


def queries(shapes):
    """Yields the query of every ScaledObject, and of the rule for prometheus-adapter."""
    for manifest in shapes["keda"]:
        if manifest["kind"] == "ScaledObject":
            yield manifest["spec"]["triggers"][0]["metadata"]["query"]
    metric = next(manifest for manifest in shapes["hpa"] if manifest["kind"] == "HorizontalPodAutoscaler")
    selector = metric["spec"]["metrics"][0]["external"]["metric"]["selector"]["matchLabels"]
    query = re.search(r"metricsQuery: '(.+)'", snippet("prometheus-adapter.yaml"))[1]
    # prometheus-adapter inserts the namespace before the selector.
    matchers = ",".join(f'{name}="{value}"' for name, value in {"namespace": "agents", **selector}.items())
    yield query.replace("<<.Series>>", "tickfleet_backlog").replace("<<.LabelMatchers>>", matchers)


def check(shapes):
    """Returns complaints about queries. A query must not count work twice, and must not count another fleet's work or
    work that no worker could take. If there is no data, it must not return 0."""
    import yaml

    found = list(queries(shapes))
    there = {
        "interval": "1m",
        "input_series": series(OURS, BACKLOG) + series(THEIRS, {"ready": 1_000}),
        "promql_expr_test": [
            {"expr": query, "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": WORK}]} for query in found
        ],
    }
    away = {
        "interval": "1m",
        "input_series": series(THEIRS, {"ready": 1_000}),
        "promql_expr_test": [{"expr": query, "eval_time": "5m", "exp_samples": []} for query in found],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": [there, away]}, file)
        file.flush()
        done = subprocess.run(["promtool", "test", "rules", file.name], capture_output=True, text=True, check=False)
    return len(found), [] if done.returncode == 0 else [done.stdout + done.stderr]
