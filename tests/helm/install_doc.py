"""Checks commands and values of the pages about Kubernetes. Helm commands run as `helm template`, which takes the
same arguments and needs no cluster. The snippets that pages include must also render."""

import os
import re
import shlex
import shutil

from toolbox import HERE_CHART

ROOT = os.path.dirname(os.path.dirname(HERE_CHART))
PAGES = ("docs/start/kubernetes.md", "docs/operate/kubernetes.md", "docs/operate/upgrade.md")
SNIPPETS = os.path.join(ROOT, "docs", "snippets", "kubernetes")
# Complete sets of values, or rules for another chart. The other snippets are rendered one by one.
WHOLE = ("production.yaml", "first-fleet.yaml", "prometheus-adapter.yaml")
CONFIGURATION = ("agents.yaml", "tools.yaml", "permissions.yaml", "tenants.yaml")
# Removed from the commands: `helm template` lacks these options, or the options would hide errors.
NOT_FOR_TEMPLATE = {"--wait", "--reset-then-reuse-values"}


def commands(page):
    """Yields every command of a page, with continued lines joined."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        for block in re.findall(r"^```sh\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL):
            yield from filter(None, map(str.strip, block.replace("\\\n", " ").splitlines()))


def snippet(name):
    """Returns the text of a snippet."""
    with open(os.path.join(SNIPPETS, name), encoding="utf-8") as file:
        return file.read()


def rendered(page):
    """Yields each `helm install` and `helm upgrade` of a page as `helm template`. If an upgrade reuses values, it gets
    the values of the page's installation."""
    installed = []
    for command in commands(page):
        words = shlex.split(command)
        if words[:2] not in (["helm", "install"], ["helm", "upgrade"]):
            continue
        release = ["template", *words[2:4]]
        options = [word for word in words[4:] if word not in NOT_FOR_TEMPLATE]
        if words[1] == "install":
            installed = options
        yield [*release, *(installed if "--reset-then-reuse-values" in words else []), *options]


def check(toolbox, scratch):
    """Renders the commands of the pages in a folder that is laid out like a clone. Returns the number of runs, and
    complaints."""
    os.makedirs(os.path.join(scratch, "helm"))
    os.symlink(HERE_CHART, os.path.join(scratch, "helm", "tickfleet"))
    os.symlink(os.path.join(ROOT, "docs"), os.path.join(scratch, "docs"))
    os.makedirs(os.path.join(scratch, "conf", "prompts"))
    for name in CONFIGURATION:
        shutil.copy(os.path.join(ROOT, "config", name), os.path.join(scratch, "conf", name))
    prompt = os.path.join(ROOT, "config", "prompts", "agent.guidance.txt")
    shutil.copy(prompt, os.path.join(scratch, "conf", "prompts", "agent.desk.txt"))
    shutil.copy(os.path.join(SNIPPETS, "production.yaml"), os.path.join(scratch, "fleet.yaml"))
    runs = [arguments for page in PAGES for arguments in rendered(page)]
    parts = sorted(set(os.listdir(SNIPPETS)) - set(WHOLE))
    for part in parts:
        values = ["--set", "redis.existingSecret.name=redis", "--values", os.path.join(SNIPPETS, part)]
        runs.append(["template", "fleet", "helm/tickfleet", *values])
    complaints = []
    for arguments in runs:
        done = toolbox.helm(*arguments, folder=scratch)
        if done.returncode != 0:
            complaints.append(f"helm {' '.join(arguments)}: {done.stderr}")
        complaints += names_it_makes(arguments, done.stdout)
    if not runs or not parts:
        complaints.append("no commands or no values were found")
    return len(runs), complaints


def names_it_makes(arguments, manifests):
    """Checks that the manifests contain the Deployments that commands name."""
    if arguments[1:3] != ["fleet", "helm/tickfleet"] or "fleet.yaml" not in arguments:
        return []
    text = "\n".join(command for page in PAGES for command in commands(page))
    used = sorted(set(re.findall(r"deployment/([\w-]+)", text)))
    return [f"a page names deployment/{name}" for name in used if f"name: {name}\n" not in manifests]
