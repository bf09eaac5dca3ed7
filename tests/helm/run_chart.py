"""Runs the rendered chart on this machine, as a kubelet would. Each container's command gets its environment and its
mounted configuration, and uses a private Redis. Its probes check it, and SIGTERM ends it.

    python3 run_chart.py CACHE BINARY

CACHE is a folder for Helm (see toolbox.py). BINARY is the program of the image. Two things differ from a pod: the
probes use a free port of 127.0.0.1, and the configuration is in a temporary folder. If something is wrong, exits with 1
and the reason.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from toolbox import HERE_CHART, Missing, Toolbox

# On a busy machine, a check is slow.
PATIENCE_S = 60
# Other sets of values need a cluster.
SHAPES = ("trial", "pools", "own-config", "gateway", "exporter")
IN_FORCE = {
    "trial": ['slots: "32" ', "drain: 45s ", "format: json "],
    "pools": ['slots: "8" ', "priorities: [urgent, high] ", "drain: 60s "],
    "gateway": ['slots: "32" '],
    "exporter": ['slots: "32" '],
    "own-config": ['slots: "4" ', "tick: 2s ", "time_zone: Europe/Berlin ", 'max_actions_per_day: "250" '],
}


class Wrong(Exception):
    """A check failed."""


def wait_for(what, condition, process=None):
    """Waits until `condition` returns a true value, and returns that value."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        if process is not None and process.poll() is not None:
            raise Wrong(f"{what}: the process ended with {process.returncode}")
        # Probes and starting servers give no signal, so this polls.
        time.sleep(0.05)
    raise Wrong(f"not within {PATIENCE_S} s: {what}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def asked(port, path):
    """Returns the status of one GET, or None if nothing listens on the port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


class Redis:
    """A private Redis with the chart's configuration. If the chart has none, uses the settings of managed-redis.md."""

    def __init__(self, folder, configuration=None):
        self.port = free_port()
        data = os.path.join(folder, "redis")
        os.makedirs(data)
        text = configuration or "maxmemory 64mb\nmaxmemory-policy noeviction\nappendonly yes\ndir /data\n"
        self.path = os.path.join(folder, "redis.conf")
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(re.sub(r"^dir /data$", f"dir {data}", text, flags=re.MULTILINE))
        self.start()

    def start(self):
        program = os.environ.get("TICKFLEET_REDIS_SERVER") or shutil.which("redis-server") or shutil.which("valkey-server")
        command = [program, self.path, "--port", str(self.port), "--bind", "127.0.0.1"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_for("Redis listens", self.listens, self.process)

    def listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self):
        self.process.terminate()
        self.process.wait()


def held(volume, configmaps):
    """Returns the files of a volume, as text by path. The volume takes them from one or several ConfigMaps."""
    sources = [source["configMap"] for source in volume.get("projected", {"sources": [volume]})["sources"]]
    files = {}
    for source in sources:
        data = configmaps[source["name"]]
        items = source.get("items", [{"key": key, "path": key} for key in data])
        files |= {item["path"]: data[item["key"]] for item in items}
    return files


def mount(files, folder):
    """Writes a volume as a kubelet does: through two symbolic links, so that all files and folders change at once."""
    version = os.path.join(folder, "..2026_11_22_00_00_00.1")
    for path, text in files.items():
        place = os.path.join(version, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "w", encoding="utf-8") as file:
            file.write(text)
    for name in {path.split("/")[0] for path in files}:
        os.symlink(os.path.join("..data", name), os.path.join(folder, name))
    os.symlink(os.path.basename(version), os.path.join(folder, "..data"))


class Pod:
    """One container of the chart, as a process."""

    def __init__(self, binary, manifest, container, environment):
        self.name = manifest["metadata"]["name"]
        self.container, self.binary = container, binary
        self.spec = manifest["spec"].get("template", manifest)["spec"]
        self.port = self.metrics_port = free_port()
        self.environment = dict(environment)
        for entry in container.get("env", []):
            self.environment[entry["name"]] = self.value(entry)
        if "TICKFLEET_HTTP_ADDRESS" in self.environment:
            self.environment["TICKFLEET_HTTP_ADDRESS"] = f"127.0.0.1:{self.port}"
        self.arguments = list(container["args"])

    def volume_at(self, path):
        """Returns the volume that is mounted at a path."""
        mounted = {mount["mountPath"]: mount["name"] for mount in self.container["volumeMounts"]}
        if path not in mounted:
            raise Wrong(f"{self.name} looks for files at {path}, where nothing is mounted")
        return next(volume for volume in self.spec["volumes"] if volume["name"] == mounted[path])

    def is_gateway(self):
        return self.arguments[0] == "gateway"

    def give_keys(self, folder):
        """Writes the key file that a Secret would mount, without any keys, and assigns free ports."""
        place, name = os.path.split(self.arguments[self.arguments.index("--keys") + 1])
        if place not in {mount["mountPath"] for mount in self.container["volumeMounts"]}:
            raise Wrong(f"{self.name} looks for keys where none are mounted")
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("[]\n")
        self.metrics_port = free_port()
        given = {"--keys": path, "--address": f"127.0.0.1:{self.port}", "--metrics": f"127.0.0.1:{self.metrics_port}"}
        for option, value in given.items():
            self.arguments[self.arguments.index(option) + 1] = value

    def give_rules(self, configmaps, folder):
        """Writes the token rules that the chart mounts, so that the process reads exactly this text."""
        at = self.arguments.index("--oidc-rules") + 1
        place, name = os.path.split(self.arguments[at])
        source = self.volume_at(place)["configMap"]["name"]
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(next(m for m in configmaps if m["metadata"]["name"] == source)["data"][name])
        self.arguments[at] = path

    def give_secret(self, option, folder):
        """Writes the file that a Secret would mount for this option."""
        at = self.arguments.index(option) + 1
        place, name = os.path.split(self.arguments[at].removeprefix("file:"))
        if place not in {mount["mountPath"] for mount in self.container["volumeMounts"]}:
            raise Wrong(f"{self.name} looks for its secret where none is mounted")
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("0123456789abcdef\n")
        self.arguments[at] = f"file:{path}"

    def value(self, entry):
        """Returns a variable's value. `environment` already has the values of secrets, under the variable's name."""
        if "value" in entry:
            # $(NAME) stands for a variable that was defined earlier.
            return re.sub(r"\$\((\w+)\)", lambda match: self.environment[match[1]], entry["value"])
        return self.environment[entry["name"]]

    def command(self, arguments):
        return subprocess.Popen(
            [self.binary, *arguments], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, *arguments):
        """Runs a command in this container, as `kubectl exec` does; returns its output."""
        process = self.command(arguments)
        said, _ = process.communicate(timeout=PATIENCE_S)
        if process.returncode != 0:
            raise Wrong(f"{self.name}: tickfleet {' '.join(arguments)} ended with {process.returncode}:\n{said}")
        return said

    def start(self):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [self.binary, *self.arguments], env=self.environment, stdout=self.log, stderr=self.log
        )

    def said(self):
        self.log.seek(0)
        return self.log.read()[-2000:]

    def probe(self, kind):
        """Waits until a probe of the container succeeds."""
        probe = self.container[f"{kind}Probe"]
        path = probe["httpGet"]["path"]
        if probe["httpGet"]["port"] not in [port["name"] for port in self.container["ports"]]:
            raise Wrong(f"{self.name}: the {kind} probe asks at a port that the container does not have")
        wait_for(f"{self.name} answers {path}:\n{self.said()}", lambda: asked(self.port, path) == 200, self.process)

    def end(self):
        """Sends SIGTERM. The process must exit with 0, within its grace period."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=self.spec["terminationGracePeriodSeconds"])
        except subprocess.TimeoutExpired as error:
            raise Wrong(f"{self.name} outlives its grace:\n{self.said()}") from error
        if code != 0:
            raise Wrong(f"{self.name} ended with {code}:\n{self.said()}")

    def kill(self):
        if hasattr(self, "process") and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Shape:
    """One rendered shape of values."""

    def __init__(self, toolbox, shape):
        import yaml

        self.shape = shape
        values = os.path.join(HERE_CHART, "ci", f"{shape}-values.yaml")
        done = toolbox.helm("template", "fleet", HERE_CHART, "--namespace", "agents", "--values", values)
        if done.returncode != 0:
            raise Wrong(done.stderr)
        self.manifests = [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]

    def of_kind(self, kind):
        return [manifest for manifest in self.manifests if manifest["kind"] == kind]

    def redis(self, folder):
        """Returns the server and its URL. The URL is the chart's, except for host and port."""
        secrets = {key: text for secret in self.of_kind("Secret") for key, text in secret["stringData"].items()}
        redis = Redis(folder, secrets.get("redis.conf"))
        place = f"127.0.0.1:{redis.port}"
        if "redis.conf" not in secrets:
            return redis, f"redis://{place}/0"
        host = "fleet-tickfleet-redis.agents.svc:6379"
        if host not in secrets["REDIS_URL"]:
            raise Wrong(f"the URL leads elsewhere than to {host}: {secrets['REDIS_URL']}")
        return redis, secrets["REDIS_URL"].replace(host, place)

    def pods(self, binary, folder, url):
        """Yields the main container of every Deployment and Pod."""
        configmaps = {m["metadata"]["name"]: m["data"] for m in self.of_kind("ConfigMap")}
        environment = {"REDIS_URL": url, "HOSTNAME": "pod", "PATH": "/nowhere"}
        laid_out = None
        for manifest in self.of_kind("Deployment") + self.of_kind("Pod"):
            spec = manifest["spec"].get("template", manifest)["spec"]
            pod = Pod(binary, manifest, spec["containers"][0], environment)
            files = held(pod.volume_at(pod.environment["TICKFLEET_CONFIG"]), configmaps)
            if laid_out is None:
                mount(files, folder)
                laid_out = files
            if files != laid_out:
                raise Wrong(f"{pod.name} has another configuration mounted than the pods before it")
            pod.environment["TICKFLEET_CONFIG"] = folder
            if pod.is_gateway():
                pod.give_keys(os.path.dirname(folder))
                pod.give_rules(self.of_kind("ConfigMap"), os.path.dirname(folder))
                pod.give_secret("--oidc-client-secret", os.path.dirname(folder))
            elif "--secret" in pod.arguments:
                pod.give_secret("--secret", os.path.dirname(folder))
            yield pod

    def run(self, binary):
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            configuration = os.path.join(folder, "configuration")
            os.makedirs(configuration)
            redis, url = self.redis(folder)
            stack.callback(redis.stop)
            pods = list(self.pods(binary, configuration, url))
            servers = [pod for pod in pods if "ports" in pod.container]
            for pod in servers:
                pod.run("config", "check")
                pod.start()
                stack.callback(pod.kill)
            self.in_force(servers)
            for pod in servers:
                for kind in ("startup", "liveness", "readiness"):
                    pod.probe(kind)
                self.metrics(pod)
            for pod in pods:
                if pod not in servers:
                    pod.run(*pod.container["args"])
            if self.shape == "trial":
                said = servers[0].run("submit", "--tenant", "demo", "--agent", "kelly", "--call", "list_tools", "--wait")
                if "list_tools  ok" not in said:
                    raise Wrong(f"the fleet carried no call out:\n{said}")
                self.without_redis(redis, servers)
            for pod in servers:
                pod.end()
            print(f"{self.shape}: {len(servers)} processes started, probed and ended: {', '.join(p.name for p in servers)}")

    def in_force(self, servers):
        """Checks that the active configuration has the settings of the values."""
        worker = next(pod for pod in servers if "-worker" in pod.name and "-rest" not in pod.name)
        printed = worker.run("config", "print")
        for setting in IN_FORCE[self.shape]:
            if setting not in printed:
                raise Wrong(f"{self.shape}: {setting!r} is not in force:\n{printed}")

    @staticmethod
    def metrics(pod):
        with urllib.request.urlopen(f"http://127.0.0.1:{pod.metrics_port}/metrics", timeout=10) as answer:
            if b"tickfleet_build_info" not in answer.read():
                raise Wrong(f"{pod.name}: /metrics has no tickfleet_build_info")

    @staticmethod
    def without_redis(redis, servers):
        """Checks that pods become unready but are not restarted if Redis stops, and become ready again when Redis
        returns."""
        redis.stop()
        for pod in servers:
            wait_for(f"{pod.name} is unready", lambda pod=pod: asked(pod.port, "/readyz") == 503, pod.process)
            if (asked(pod.port, "/livez"), asked(pod.port, "/startupz")) != (200, 200):
                raise Wrong(f"{pod.name} would be restarted because Redis is away")
        redis.start()
        for pod in servers:
            pod.probe("readiness")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        toolbox = Toolbox(sys.argv[1])
        for shape in SHAPES:
            Shape(toolbox, shape).run(os.path.abspath(sys.argv[2]))
    except (Missing, Wrong) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
