"""Runs the services of compose.yaml as plain processes of this machine, with the same commands, environments and Redis
options. The service `keys` makes a key, and the gateway must return the reply to a turn.

    python3 run_compose.py CACHE BINARY

CACHE is a folder for the Python libraries (see ../helm/toolbox.py). BINARY is the program of the image. Unlike with
containers, the names of services are 127.0.0.1, ports are any free ports, and volumes are temporary folders. If
something is wrong, exits with 1 and the reason.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import compose as checks  # The import adds the folder of the other checks to the path.
from run_chart import PATIENCE_S, Wrong, asked, free_port, wait_for
from toolbox import Missing, Toolbox


class Project:
    """The services of compose.yaml as processes, in one folder."""

    def __init__(self, binary, folder, stack):
        self.binary, self.folder, self.stack = binary, folder, stack
        self.services = checks.loaded("compose.yaml")["services"]
        self.redis_port, self.gateway_port = free_port(), free_port()
        self.processes = []

    def start(self, name, words, environment):
        process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.stack.callback(self.kill, process)
        self.processes.append((name, process))
        return process

    @staticmethod
    def kill(process):
        process.kill()
        process.wait()

    def redis(self):
        """Starts the server with the options of its service, and waits until its health check passes."""
        service = self.services["redis"]
        program = os.environ.get("TICKFLEET_REDIS_SERVER") or service["command"][0]
        data = os.path.join(self.folder, "redis")
        os.makedirs(data)
        here = ["--port", str(self.redis_port), "--bind", "127.0.0.1", "--dir", data]
        process = self.start("redis", [program, *service["command"][1:], *here], dict(os.environ))
        test = service["healthcheck"]["test"]
        probe = [test[1], "-p", str(self.redis_port), *test[2:]]
        wait_for("Redis is healthy", lambda: subprocess.run(probe, capture_output=True, check=False).returncode == 0, process)

    def make_key(self):
        """Returns the output of the service `keys`."""
        shell, options, script = self.services["keys"]["command"]
        script = script.replace("$$", "$").replace("/keys/", f"{self.folder}/")
        done = subprocess.run([shell, options, script], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Wrong(f"keys: {done.stderr}")
        return done.stdout

    def environment(self, name, port):
        found = {key: str(value) for key, value in self.services[name]["environment"].items()}
        found["REDIS_URL"] = found["REDIS_URL"].replace("://redis:6379", f"://127.0.0.1:{self.redis_port}")
        return found | {"TICKFLEET_HTTP_ADDRESS": f"127.0.0.1:{port}", "HOSTNAME": name, "PATH": "/nowhere"}

    def fleet(self):
        """Starts the scheduler and the workers, and waits until they are ready."""
        for name in ("scheduler", "worker"):
            for _ in range(self.services[name].get("deploy", {}).get("replicas", 1)):
                port = free_port()
                process = self.start(name, [self.binary, *self.services[name]["command"]], self.environment(name, port))
                wait_for(f"{name} is ready", lambda port=port: asked(port, "/readyz") == 200, process)

    def gateway(self):
        words = [word.replace("/keys/", f"{self.folder}/") for word in self.services["gateway"]["command"]]
        at = words.index("--address") + 1
        words[at] = f"127.0.0.1:{self.gateway_port}"
        metrics = free_port()
        words[words.index("--metrics") + 1] = f"127.0.0.1:{metrics}"
        process = self.start("gateway", [self.binary, *words], self.environment("gateway", free_port()))
        wait_for("gateway ready", lambda: asked(self.gateway_port, "/v1/openapi.json") == 200, process)
        wait_for("the gateway has metrics", lambda: asked(metrics, "/metrics") == 200, process)

    def turn(self, key):
        """Submits one call of the agent kelly, as in docs/operate/docker-compose.md."""
        body = {"agent": "kelly", "calls": [{"name": "echo", "arguments": {"text": "hi"}}]}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.gateway_port}/v1/turns?wait={PATIENCE_S}",
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=2 * PATIENCE_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return {"status": error.code, "body": error.read().decode("utf-8", "replace")}

    def end(self):
        """Ends every process with the signal that Docker sends, in reverse order."""
        for name, process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired as late:
                raise Wrong(f"{name} does not end by SIGTERM") from late
            if code != 0:
                raise Wrong(f"{name} ended with {code}")


def play(binary):
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        project = Project(binary, folder, stack)
        project.redis()
        key = re.search(r"tfk_[A-Za-z0-9_-]{43}", project.make_key())
        if key is None:
            raise Wrong("no key was shown")
        with open(os.path.join(folder, "keys.yaml"), encoding="utf-8") as file:
            if key[0] in file.read():
                raise Wrong("the file has the key itself")
        if "tfk_" in project.make_key():
            raise Wrong("the second start makes another key")
        project.fleet()
        project.gateway()
        answered = project.turn(key[0])
        if [result["output"] for result in answered.get("results", [])] != [{"text": "hi"}]:
            raise Wrong(f"the turn was answered with {answered}")
        if project.turn("tfk_" + "x" * 43).get("status") != 401:
            raise Wrong("another key is good, too")
        project.end()
        print(f"compose.yaml as processes: {', '.join(name for name, _ in project.processes)}; a turn was answered")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        Toolbox(sys.argv[1])
        play(os.path.abspath(sys.argv[2]))
    except (Missing, Wrong) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
