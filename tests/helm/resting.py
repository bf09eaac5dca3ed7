"""Checks when the alert about a fleet without workers fires. `promtool test rules` evaluates the rules that the chart
renders."""

import os
import subprocess
import tempfile

from toolbox import HERE_CHART

ALERT = "TickfleetNoWorker"
# Fleets that can scale to zero.
RESTING = {
    "keda": [],
    "two pools": ["--set-json", 'workerPools={"default":{},"fast":{}}'],
    "another pool is off": ["--set-json", 'workerPools={"default":{},"fast":{"replicas":0,"autoscaling":{"kind":"off"}}}'],
    "a selector of one's own": ["--set", 'monitoring.selector=cluster="c"'],
}
ALWAYS_ON = {
    "one pod stays": ["--set", "worker.autoscaling.minReplicas=1"],
    "another pool stays": ["--set-json", 'workerPools={"default":{},"fast":{"autoscaling":{"kind":"off"}}}'],
    "no autoscaling": ["--set", "worker.autoscaling.kind=off,worker.autoscaling.minReplicas=0"],
    "nobody started": ["--set", "worker.autoscaling.kind=off,worker.replicas=0"],
}
# A case has the numbers of ready, running and suspect slices over ten minutes, and true if the alert must fire.
COMES = ("0x5 1x5", "0x10", "0x10")
CASES = {
    "nothing": (("0x10", "0x10", "0x10"), False),
    "work waits": (("1x10", "0x10", "0x10"), True),
    "work was left": (("0x10", "1x10", "0x10"), True),
    "work lost its worker": (("0x10", "0x10", "1x10"), True),
    "work comes": (COMES, True),
    "unknown": ((), True),
}


def series(namespace, backlog):
    """Yields the metrics that a scheduler exports for a fleet without workers."""
    labels = f'namespace="{namespace}",cluster="c",job="fleet-tickfleet-scheduler",instance="s0"'
    yield f"tickfleet_build_info{{{labels}}}", "1x10"
    yield f"tickfleet_redis_up{{{labels}}}", "1x10"
    yield f'tickfleet_loop_progress_timestamp_seconds{{{labels},loop="tick"}}', "0+60x10"
    for state, values in zip(("ready", "running", "suspect"), backlog):
        yield f'tickfleet_backlog{{{labels},state="{state}"}}', values
    yield f'tickfleet_backlog{{{labels},state="parked_capped"}}', "9x10"


def tests(rests):
    """Yields a test for each case, at two times. In the sixth minute, work that has just arrived is not yet a fault."""
    for name, (backlog, fault) in CASES.items():
        for minute in (6, 10):
            fires = fault and (minute == 10 or backlog is not COMES) or not rests
            yield {
                "name": f"{name}, minute {minute}",
                "interval": "1m",
                "input_series": [{"series": key, "values": values} for key, values in series("agents", backlog)],
                "promql_expr_test": [
                    {
                        "expr": f'count by (namespace) (ALERTS{{alertname="{ALERT}",alertstate="firing"}})',
                        "eval_time": f"{minute}m",
                        "exp_samples": [{"labels": '{namespace="agents"}', "value": 1}] if fires else [],
                    }
                ],
            }


def elsewhere():
    """Returns a test with a second fleet, which cannot scale to zero, in another namespace of the same Prometheus."""
    (test,) = [test for test in tests(False) if test["name"] == "nothing, minute 10"]
    test["input_series"] = [{"series": key, "values": values} for key, values in series("others", CASES["nothing"][0])]
    test["promql_expr_test"][0]["exp_samples"][0]["labels"] = '{namespace="others"}'
    return test


def rendered(toolbox, values):
    """Returns the rendered group of the alert, and Helm's output."""
    import yaml

    keda = os.path.join(HERE_CHART, "ci", "keda-values.yaml")
    done = toolbox.helm("template", "fleet", HERE_CHART, "--namespace", "agents", "--values", keda, *values)
    found = [m for m in yaml.safe_load_all(done.stdout) if m and m["kind"] == "PrometheusRule"]
    groups = [group for m in found for group in m["spec"]["groups"] if any(rule.get("alert") == ALERT for rule in group["rules"])]
    return groups, done.stderr


def check(toolbox):
    """Returns the number of fleets, and complaints. If a fleet may have no worker, the alert must not page. For other
    fleets without workers, it must page."""
    import yaml

    complaints = []
    for name, values in (RESTING | ALWAYS_ON).items():
        groups, said = rendered(toolbox, values)
        if not groups:
            complaints.append(f"{name}: the alert is not rendered: {said}")
            continue
        cases = list(tests(name in RESTING))
        if name != "a selector of one's own":
            cases.append(elsewhere())
        with tempfile.TemporaryDirectory() as folder:
            rules, file = os.path.join(folder, "rules.yaml"), os.path.join(folder, "tests.yaml")
            judged = {"rule_files": [rules], "evaluation_interval": "1m", "tests": cases}
            for path, content in ((rules, {"groups": groups}), (file, judged)):
                with open(path, "w", encoding="utf-8") as written:
                    yaml.safe_dump(content, written)
            done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            complaints.append(f"{name}: {done.stdout}{done.stderr}")
    return len(RESTING | ALWAYS_ON), complaints
