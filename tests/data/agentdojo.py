"""Fetches AgentDojo's tools, user tasks and injection tasks. Writes them as tools and calls.

    python3 agentdojo.py OUTDIR

The data comes from the PyPI package `agentdojo` (MIT), pinned by version and SHA-256. Its tasks are Python code that
computes the expected calls, so this script runs the package. The few packages that this needs are pinned by version and
installed only below OUTDIR. Model clients are stubs, which are not called. OUTDIR must not be committed. A second run
finds the output of the first and returns at once.

OUTDIR then has these files, with one JSON object per line:

  tools.jsonl   {suite, name, description, input_schema}
  tasks.jsonl   {suite, task, kind, calls: [{tool, arguments}]}
                `kind` is user or injection; the calls are those that carry out the task

Python 3.10 and later.
"""

import importlib.abc
import importlib.machinery
import json
import os
import subprocess
import sys
import types
import zipfile

import pypi

PACKAGE = "agentdojo"
VERSION = "0.1.35"
WHEEL = "agentdojo-0.1.35-py3-none-any.whl"
SHA256 = "364bea4219716b716bf639f504d195943f7f6a5535d312ca41d7098704a2affd"
NEEDED = ("pydantic==2.12.5", "email-validator==2.3.0", "pyyaml==6.0.3", "docstring-parser==0.17.0")
BENCHMARK = "v1.2.2"
# Stubs replace these modules, because the expected calls do not need them.
STOOD_IN = ("agentdojo.agent_pipeline", "openai", "anthropic", "cohere", "deepdiff")
OUTPUTS = ("tools.jsonl", "tasks.jsonl")


class StandIn(types.ModuleType):
    """A module in which every name is an empty class."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if any(name == module or name.startswith(module + ".") for module in STOOD_IN):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def install(outdir):
    """Unpacks the wheel and installs the packages that it needs below `outdir`. Returns their folder."""
    site = os.path.join(outdir, "site")
    options = ["--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--upgrade", "--target", site]
    command = [sys.executable, "-m", "pip", "install", *options, *NEEDED]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        said = done.stdout.decode("utf-8", "replace").strip().splitlines()[-6:]
        raise pypi.BadData("\n".join(["pip could not install " + ", ".join(NEEDED) + ":", *said]))
    with zipfile.ZipFile(pypi.fetch(outdir, PACKAGE, VERSION, WHEEL, SHA256)) as wheel:
        wheel.extractall(site)
    return site


def suites(site):
    sys.path.insert(0, site)
    sys.meta_path.insert(0, StandIns())
    # This script has the same name as the package, so the script's folder must not be in the path.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != os.path.dirname(os.path.abspath(__file__))]
    from agentdojo.task_suite.load_suites import get_suites

    return get_suites(BENCHMARK)


def tools_of(name, suite):
    for tool in suite.tools:
        schema = tool.parameters.model_json_schema()
        yield {"suite": name, "name": tool.name, "description": tool.description, "input_schema": schema}


def tasks_of(name, suite):
    environment = suite.load_and_inject_default_environment({})
    for task_id, task in suite.user_tasks.items():
        own = task.init_environment(environment.model_copy(deep=True))
        yield row(name, task_id, "user", task.ground_truth(own))
    for task_id, task in suite.injection_tasks.items():
        yield row(name, task_id, "injection", task.ground_truth(environment.model_copy(deep=True)))


def row(suite, task_id, kind, calls):
    calls = [{"tool": call.function, "arguments": dict(call.args)} for call in calls]
    return {"suite": suite, "task": task_id, "kind": kind, "calls": calls}


def to_lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows).encode("utf-8")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: agentdojo.py OUTDIR")
    outdir = os.path.abspath(sys.argv[1])
    manifest = json.dumps({"sha256": SHA256, "needed": NEEDED, "converter": pypi.sha256_of(__file__)}).encode()
    complete = os.path.join(outdir, "manifest.json")
    if os.path.exists(complete):
        with open(complete, "rb") as file:
            if file.read() == manifest:
                return
    os.makedirs(outdir, exist_ok=True)
    try:
        found = sorted(suites(install(outdir)).items())
    except pypi.BadData as error:
        sys.exit(f"agentdojo.py: {error}")
    tools = [tool for name, suite in found for tool in tools_of(name, suite)]
    tasks = [task for name, suite in found for task in tasks_of(name, suite)]
    for name, rows in zip(OUTPUTS, (tools, tasks)):
        pypi.write_whole(os.path.join(outdir, name), to_lines(rows))
    pypi.write_whole(complete, manifest)


if __name__ == "__main__":
    main()
