"""Checks the containers in which Python tools run, next to their worker."""

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile

import manifests as rules
from toolbox import HERE_CHART

PACKAGE = os.path.normpath(os.path.join(HERE_CHART, "../../python/src"))
FOLDER = "/run/tickfleet"
VOLUME = "tool-hosts"
SHAPE = "tool-hosts"
LISTEN = ["python", "-m", "tickfleet.host", "--listen"]
SHOP = [*LISTEN, f"{FOLDER}/shop.sock", "--concurrency", "8", "--processes-max", "4", "shop.tools", "shop.orders"]
REPORTS = [*LISTEN, f"{FOLDER}/reports.sock", "--concurrency"]
FOLDERS = ["--path", "/srv/tools", "--path", "/srv/more"]
COMMANDS = {
    "fleet-tickfleet-worker": {
        "tool-host-shop": SHOP,
        "tool-host-reports": [*REPORTS, "16", "--processes-max", "6", *FOLDERS, "reports"],
    },
    "fleet-tickfleet-worker-urgent": {
        "tool-host-shop": ["/srv/shop-host", "--listen", f"{FOLDER}/shop.sock"],
        "tool-host-reports": [*REPORTS, "8", "--processes-max", "6", "reports"],
    },
}
PATIENCE_S = 30
STAYS_S = 1


def mounts(container):
    return {mount["mountPath"]: mount for mount in container.get("volumeMounts", [])}


def volumes(spec):
    return {volume["name"]: volume for volume in spec.get("volumes", [])}


def asked_for(name, spec):
    """Returns complaints about one pod of the shape. The pod must have the hosts of the values, and its worker must
    reach these hosts."""
    worker, *hosts = spec["containers"]
    complaints = []
    commands = {host["name"]: host["command"] for host in hosts}
    if commands != COMMANDS.get(name, {}):
        complaints.append(f"{name}: the commands are {commands}, not {COMMANDS.get(name)}")
    if volumes(spec).get(VOLUME, {}).get("emptyDir") != {"medium": "Memory", "sizeLimit": "1Mi"}:
        complaints.append(f"{name}: the folder of sockets is {volumes(spec).get(VOLUME)}")
    if mounts(worker).get(FOLDER) != {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}:
        complaints.append(f"{name}: the worker does not reach the sockets, or could replace them")
    probe = worker["startupProbe"]
    patience = probe["periodSeconds"] * probe["failureThreshold"]
    theirs = sum(h["startupProbe"]["periodSeconds"] * h["startupProbe"]["failureThreshold"] for h in hosts)
    if patience < theirs + 60:
        complaints.append(f"{name}: the worker is killed after {patience} s, while its hosts may take {theirs} s")
    for host in hosts:
        if mounts(host).get(FOLDER) != {"name": VOLUME, "mountPath": FOLDER}:
            complaints.append(f"{name}: {host['name']} has nowhere to listen")
        tmp = mounts(host).get("/tmp", {}).get("name")
        if "sizeLimit" not in volumes(spec).get(tmp, {}).get("emptyDir", {}):
            complaints.append(f"{name}: {host['name']} has no /tmp of a bounded size")
        if [tmp in [m["name"] for m in other.get("volumeMounts", [])] for other in spec["containers"]].count(True) != 1:
            complaints.append(f"{name}: {host['name']} shares its /tmp")
        # The worker can open a socket of mode 0660 only if the host runs as the same user.
        if host["securityContext"] != worker["securityContext"]:
            complaints.append(f"{name}: {host['name']} and its worker have other privileges or other users")
    return complaints


def elsewhere(shape, name, spec):
    """Returns complaints about a pod without hosts, which must not have the hosts' folder."""
    traced = VOLUME in volumes(spec) or any(FOLDER in mounts(container) for container in spec["containers"])
    return [f"{shape}: {name} has a folder for sockets of tool hosts"] if traced else []


def started(command, folder, libraries):
    """Starts a command of a host's container, with its socket in `folder` and this machine's Python."""
    words = [sys.executable if word == "python" else word.replace(FOLDER, folder) for word in command]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{PACKAGE}:{libraries}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(words, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def ends(process, within_s=PATIENCE_S):
    """Returns the exit code, or None for a process that still runs."""
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        return None


def at_work(host, libraries):
    """Runs the container's host as a kubelet would, and returns complaints. The probe checks the host, which receives
    SIGTERM while its worker is connected."""
    complaints = []
    with tempfile.TemporaryDirectory() as folder:

        def listens():
            process = started(host["startupProbe"]["exec"]["command"], folder, libraries)
            process.communicate(timeout=PATIENCE_S)
            return process.returncode == 0

        os.makedirs(os.path.join(folder, "shop"))
        for module in ("tools", "orders"):
            with open(os.path.join(folder, "shop", f"{module}.py"), "w", encoding="utf-8"):
                pass
        path = os.path.join(folder, "shop.sock")
        if listens():
            complaints.append("a host that does not listen is taken for one that does")
        with open(path, "w", encoding="utf-8"):
            pass
        if listens():
            complaints.append("a file is taken for a socket")
        os.unlink(path)
        process = started(host["command"], folder, libraries)
        try:
            said = process.stderr.readline()
            if not listens() or stat.S_IMODE(os.stat(path).st_mode) != 0o660:
                return [*complaints, f"the host does not listen for its group: {said}{process.stderr.read()}"]
            with socket.socket(socket.AF_UNIX) as worker:
                worker.settimeout(PATIENCE_S)
                worker.connect(path)
                greeting = worker.recv(65536)
                if b'"failed"' in greeting or not greeting:
                    complaints.append(f"the interpreter says {greeting!r}")
                process.send_signal(signal.SIGTERM)
                if ends(process, STAYS_S) is not None:
                    complaints.append("a host ends while its worker is connected")
            if ends(process) != 0:
                complaints.append("a host does not end when its worker has")
        finally:
            process.kill()
            process.communicate()
    return complaints


def check(rendered, libraries):
    """Returns the number of tool hosts, and complaints. `libraries` is a folder with the dependencies of the package
    tickfleet."""
    count, complaints, tried = 0, [], None
    for shape, found in rendered.items():
        for manifest, _, spec in rules.pod_templates(found):
            name = manifest["metadata"]["name"]
            if shape != SHAPE or name not in COMMANDS:
                complaints += elsewhere(shape, name, spec)
                continue
            complaints += asked_for(name, spec)
            count += len(spec["containers"]) - 1
            tried = tried or next(c for c in spec["containers"] if c["name"] == "tool-host-shop")
    return count, complaints + (at_work(tried, libraries) if tried else ["no pod has any"])
