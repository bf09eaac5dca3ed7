"""Checks compose.yaml and the files that it mounts against the chart, the configuration and the files of the project.

    python3 compose.py CACHE

CACHE is a folder for the Python libraries (see ../helm/toolbox.py). If this machine has `docker compose` or
`docker-compose`, this command also reads the file, which needs no engine. If something is wrong, exits with 1 and a
message.
"""

import copy
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "helm"))

from toolbox import HERE_CHART, Missing, Toolbox  # noqa: E402 - the folder of the other checks is in the path now

FLEET = ("scheduler", "worker", "gateway")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def loaded(*path):
    import yaml

    return yaml.safe_load(read(*path))


def seconds(text):
    """Parses 30s or 2m."""
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()
    return int(number) * {"s": 1, "m": 60}[unit]


def images(compose):
    """The fleet's image must be pinned to the workspace's version, and Redis to the image in the chart's trial."""
    version = re.search(r'^\[workspace\.package\]\nversion = "(.+)"$', read("Cargo.toml"), re.MULTILINE)[1]
    trial = loaded("helm/tickfleet/values.yaml")["trialRedis"]["image"]
    known = dict.fromkeys(FLEET, f"tickfleet:{version}") | dict.fromkeys(("redis", "keys"), f"{trial['repository']}:{trial['tag']}")
    for name, service in compose["services"].items():
        image = service.get("image", "")
        if not re.search(r":v?\d+\.\d+", image):
            yield f"{name}: the image {image!r} is not pinned by version"
        if image != known.get(name, image):
            yield f"{name}: the image is {image}, elsewhere {known[name]}"
    built = [name for name in FLEET if "build" in compose["services"][name]]
    if len(built) != 1:
        yield f"the fleet's image is built by {built}; once is enough"


def volumes(compose):
    """Mounted files exist, and are read-only."""
    used = set()
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source, target, *options = volume.split(":")
            if source.startswith("./"):
                if not os.path.exists(os.path.join(ROOT, source)):
                    yield f"{name} mounts {source}, which is not there"
                if options != ["ro"]:
                    yield f"{name} may write to {source}"
            else:
                used.add(source)
            if not target.startswith("/"):
                yield f"{name} mounts {source} at {target}"
    if used != set(compose["volumes"]):
        yield f"volumes: {sorted(used)} are used, {sorted(compose['volumes'])} declared"


def ports(compose):
    """Ports are reachable from this machine only, differ from each other, and lead to a process that listens."""
    listening = {"redis": 6379, "prometheus": 9090, "grafana": 3000}
    command = compose["services"]["gateway"]["command"]
    listening["gateway"] = int(command[command.index("--address") + 1].rsplit(":", 1)[1])
    taken = []
    for name, service in compose["services"].items():
        for port in service.get("ports", []):
            found = re.fullmatch(r"127\.0\.0\.1:\$\{([A-Z_]+):-(\d+)\}:(\d+)", port)
            if not found:
                yield f"{name}: {port} is not 127.0.0.1:${{NAME:-number}}:number"
                continue
            if found[1].startswith("TICKFLEET_"):
                yield f"{name}: {found[1]} looks like a setting of the fleet"
            taken.append(found[2])
            if int(found[3]) != listening.get(name):
                yield f"{name}: port {found[3]} is given out, {listening.get(name)} listens"
    if len(set(taken)) != len(taken):
        yield f"two have one port: {taken}"


def fleet(compose):
    """Services are locked down, have time to drain, and start after Redis is ready."""
    defaults = loaded("config/tickfleet.yaml")
    for name in FLEET:
        service = compose["services"][name]
        locked = service.get("read_only") and service.get("cap_drop") == ["ALL"] and "no-new-privileges:true" in service.get("security_opt", [])
        if not locked:
            yield f"{name} is not locked down"
        if service["command"][0] != name:
            yield f"{name} runs {service['command'][0]}"
        if service["depends_on"].get("redis") != {"condition": "service_healthy"}:
            yield f"{name} does not wait for Redis"
        if "://redis:6379" not in service["environment"]["REDIS_URL"]:
            yield f"{name} looks for Redis at {service['environment']['REDIS_URL']}"
    worker = compose["services"]["worker"]
    drain, tool = seconds(worker["environment"]["TICKFLEET_WORKER_DRAIN"]), seconds(defaults["worker"]["tool_timeout"])
    for tools in (loaded("config/tools.yaml").get("tools") or {}).values():
        tool = max(tool, (tools or {}).get("timeout_ms", 0) / 1000)
    if not seconds(worker["stop_grace_period"]) >= drain + 10 or not drain > tool:
        yield f"a worker drains {drain} s; its longest tool takes {tool} s, and it is killed after {worker['stop_grace_period']}"
    if worker["deploy"]["replicas"] != 2:
        yield "there are not two workers"
    redis = compose["services"]["redis"]["command"]
    for option, value in (("--appendonly", "yes"), ("--maxmemory-policy", "noeviction")):
        if option not in redis or redis[redis.index(option) + 1] != value:
            yield f"redis: {option} is not {value}"


def monitoring(compose):
    """Prometheus finds every process where it listens, reads the chart's rules, and Grafana shows the chart's
    dashboards."""
    port = int(loaded("config/tickfleet.yaml")["http"]["address"].rsplit(":", 1)[1])
    jobs = set()
    for job in loaded("image/compose/prometheus.yaml")["scrape_configs"]:
        jobs.add(job["job_name"])
        for found in job["dns_sd_configs"]:
            if found["port"] != port or not set(found["names"]) <= set(compose["services"]):
                yield f"prometheus scrapes {found['names']} at {found['port']}"
        if not any(rule["target_label"] == "namespace" for rule in job["relabel_configs"]):
            yield f"{job['job_name']} has no label namespace, by which rules tell fleets apart"
    if jobs != {"tickfleet-scheduler", "tickfleet-gateway", "tickfleet-worker"}:
        yield f"jobs are {sorted(jobs)}, not those of the chart"
    mounts = {
        service: {target: source for source, target, *_ in (volume.split(":") for volume in compose["services"][service]["volumes"])}
        for service in ("prometheus", "grafana")
    }
    if loaded("image/compose/prometheus.yaml")["rule_files"] != ["/etc/prometheus/rules/*.yaml"]:
        yield "prometheus reads other rules"
    if mounts["prometheus"].get("/etc/prometheus/rules") != "./helm/tickfleet/rules":
        yield "the rules of prometheus are not the chart's"
    provider = loaded("image/compose/grafana/dashboards/tickfleet.yaml")["providers"][0]["options"]["path"]
    if mounts["grafana"].get(provider) != "./helm/tickfleet/dashboards":
        yield "the boards of grafana are not the chart's"
    home = compose["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    if os.path.dirname(home) != provider or not os.path.exists(os.path.join(HERE_CHART, "dashboards", os.path.basename(home))):
        yield f"the first board {home} is not there"
    source = loaded("image/compose/grafana/datasources/prometheus.yaml")["datasources"][0]
    if source["url"] != "http://prometheus:9090":
        yield f"grafana asks {source['url']}"
    checked = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", os.path.join(ROOT, "image/compose/prometheus.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    if checked.returncode != 0:
        yield checked.stdout + checked.stderr


def override(compose):
    """The override of the documentation names services of the file, and mounts the configuration where they read it."""
    for name, service in loaded("docs/snippets/compose/compose.override.yaml")["services"].items():
        if name not in compose["services"]:
            yield f"compose.override.yaml names {name}, which is not in compose.yaml"
        mounted = [volume.split(":")[1] for volume in service["volumes"]]
        if service["environment"]["TICKFLEET_CONFIG"] not in mounted:
            yield f"compose.override.yaml: {name} has no configuration"


def complaints(compose):
    return [said for check in (images, volumes, ports, fleet, monitoring, override) for said in check(compose)]


def spoilt(compose):
    """Returns copies of the file. Each has a fault that the checks must find."""
    for path, value in (
        (("services", "grafana", "image"), "grafana/grafana:latest"),
        (("services", "gateway", "image"), "tickfleet:9.9.9"),
        (("services", "gateway", "ports"), ["0.0.0.0:8080:8080"]),
        (("services", "gateway", "command"), ["gateway", "--address", "0.0.0.0:8081"]),
        (("services", "scheduler", "read_only"), False),
        (("services", "worker", "stop_grace_period"), "10s"),
        (("services", "prometheus", "volumes"), ["./helm/rules:/etc/prometheus/rules:ro"]),
        (("volumes",), {}),
    ):
        copied = copy.deepcopy(compose)
        place = copied
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        yield ".".join(path), copied


def read_by_docker():
    """Returns this machine's Compose command, and the command's complaints about the file. None without Compose."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if not shutil.which(command[0]):
            continue
        if subprocess.run([*command, "version"], capture_output=True, check=False).returncode != 0:
            continue
        done = subprocess.run(
            [*command, "--file", os.path.join(ROOT, "compose.yaml"), "config", "--quiet"], capture_output=True, text=True, check=False
        )
        return " ".join(command), done.stderr if done.returncode != 0 else ""
    return None, ""


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        Toolbox(sys.argv[1])
    except Missing as missing:
        sys.exit(str(missing))
    compose = loaded("compose.yaml")
    found = complaints(compose)
    faults = list(spoilt(compose))
    found += [f"a wrong {place} passes" for place, copied in faults if not complaints(copied)]
    reader, said = read_by_docker()
    found += [f"{reader}: {said}"] if said else []
    if found:
        sys.exit("\n".join(found))
    print(f"compose.yaml: {len(compose['services'])} services, {len(faults)} faults found; read by {reader or 'no docker compose'}")


if __name__ == "__main__":
    main()
