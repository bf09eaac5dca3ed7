"""The commands and values that docs/install.md shows: those of Helm are run as `helm template`, which takes the same
arguments and needs no cluster."""

import os
import re
import shlex
import shutil

from toolbox import HERE_CHART

ROOT = os.path.dirname(os.path.dirname(HERE_CHART))
PAGE = os.path.join(ROOT, "docs", "install.md")
CONFIGURATION = ("agents.yaml", "tools.yaml", "permissions.yaml", "tenants.yaml")
# Options of `helm install` that `helm template` does not have, or that would hide what is tested.
NOT_FOR_TEMPLATE = {"--wait", "--reset-then-reuse-values"}


def blocks(language):
    """The fenced blocks of one language, without the indentation of a list that they stand in."""
    with open(PAGE, encoding="utf-8") as file:
        found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", file.read(), re.MULTILINE | re.DOTALL)
    return [re.sub(f"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def commands():
    """Every command of the page, continued lines joined."""
    for block in blocks("sh"):
        yield from filter(None, map(str.strip, block.replace("\\\n", " ").splitlines()))


def rendered(command):
    """`helm install` or `helm upgrade` as `helm template`; none for other commands."""
    words = shlex.split(command.replace("$REGISTRY", "registry.example.com/platform"))
    if words[:2] not in (["helm", "install"], ["helm", "upgrade"]):
        return None
    return ["template", *(word for word in words[2:] if word not in NOT_FOR_TEMPLATE)]


def check(toolbox, scratch):
    """Renders what the page says, in a folder laid out as the page says. Gives how many, and complaints."""
    os.makedirs(os.path.join(scratch, "helm"))
    os.symlink(HERE_CHART, os.path.join(scratch, "helm", "tickfleet"))
    os.makedirs(os.path.join(scratch, "conf"))
    for name in CONFIGURATION:
        shutil.copy(os.path.join(ROOT, "config", name), os.path.join(scratch, "conf", name))
    os.makedirs(os.path.join(scratch, "conf", "prompts"))
    prompt = os.path.join(ROOT, "config", "prompts", "agent.guidance.txt")
    shutil.copy(prompt, os.path.join(scratch, "conf", "prompts", "agent.desk.txt"))
    whole = [block for block in blocks("yaml") if block.startswith("# fleet.yaml")]
    with open(os.path.join(scratch, "fleet.yaml"), "w", encoding="utf-8") as file:
        file.write(whole[0])
    runs = [arguments for arguments in map(rendered, commands()) if arguments]
    # Parts of values stand beside a Redis; the adapter's rule is for another chart.
    parts = [block for block in blocks("yaml") if block not in whole and not block.startswith("rules:")]
    for number, part in enumerate(parts):
        path = os.path.join(scratch, f"part-{number}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(part)
        runs.append(["template", "fleet", "helm/tickfleet", "--set", "redis.existingSecret.name=redis", "--values", path])
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
    """Names that the page uses in other commands must be those that the installation makes."""
    if arguments[1:3] != ["fleet", "helm/tickfleet"] or "fleet.yaml" not in arguments:
        return []
    used = set()
    for command in commands():
        used |= set(re.findall(r"deployment/([\w-]+)", command))
    return [f"the page names deployment/{name}" for name in sorted(used) if f"name: {name}\n" not in manifests]
