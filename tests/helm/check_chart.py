"""Checks the chart with the real Helm, against the schemas of Kubernetes, without a cluster.

    python3 check_chart.py CACHE

CACHE is a folder for Helm and the schemas (see toolbox.py). Prints one line per subject, then the problems. If there
are problems, exits with 1.
"""

import base64
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import install_doc
import manifests as rules
import network
import redis
import resting
import samples
import scaling
import tool_hosts
import workspaces
from refused import REFUSED
from toolbox import HERE_CHART, Missing, Toolbox

# Calculated by hand, so that the check does not rely on the templates' calculation.
LONGEST_TOOL_S = {"own-config": 90, "locked-down": 120}
DEFAULT_TOOL_S = 30
SHAPES_MIN = 8
RUNBOOKS = "https://git.example.com/tickfleet/blob/main/docs/operate/runbooks.md#"


class Checks:
    """Checks the chart, and collects its problems."""

    def __init__(self, toolbox):
        self.toolbox = toolbox
        self.complaints = []
        self.rendered = {}

    def complain(self, subject, complaints):
        self.complaints += [f"{subject}: {complaint}" for complaint in complaints]

    def render_shapes(self):
        """Lints and renders every shape below ci/, and the chart with its default values."""
        import yaml

        folder = os.path.join(HERE_CHART, "ci")
        shapes = sorted(name.removesuffix("-values.yaml") for name in os.listdir(folder))
        if len(shapes) < SHAPES_MIN:
            self.complain("ci", [f"{len(shapes)} shapes; at least {SHAPES_MIN} are promised"])
        for values in [[], *(["--values", os.path.join(folder, f"{shape}-values.yaml")] for shape in shapes)]:
            linted = self.toolbox.helm("lint", "--strict", HERE_CHART, *values)
            if linted.returncode != 0 or "[WARNING]" in linted.stdout:
                self.complain("helm lint --strict " + " ".join(values), [linted.stdout + linted.stderr])
        for shape in shapes:
            path = os.path.join(folder, f"{shape}-values.yaml")
            done = self.toolbox.helm("template", "fleet", HERE_CHART, "--namespace", "agents", "--values", path)
            if done.returncode != 0:
                self.complain(shape, [done.stderr])
                continue
            self.rendered[shape] = [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]
        print(f"helm lint --strict, helm template: {len(shapes)} shapes: {', '.join(shapes)}")

    def validate(self):
        """Checks every manifest against every version of Kubernetes, and against the other manifests."""
        schemas = rules.Schemas(self.toolbox)
        seen = set()
        for shape, found in self.rendered.items():
            for manifest in found:
                text = json.dumps(manifest, sort_keys=True)
                for version in () if text in seen else rules.KUBERNETES_VERSIONS:
                    self.complain(shape, schemas.complaints(manifest, version))
                seen.add(text)
            self.complain(shape, rules.unrestricted(found))
            self.complain(shape, rules.misfits(found))
            self.complain(shape, rules.owned_twice(found))
            self.complain(shape, rules.named_twice(found))
            self.complain(shape, rules.impatient(found, LONGEST_TOOL_S.get(shape, DEFAULT_TOOL_S)))
        kinds = {(manifest["apiVersion"], manifest["kind"]): manifest for found in self.rendered.values() for manifest in found}
        versions = rules.KUBERNETES_VERSIONS
        print(f"schemas: {len(seen)} manifests of {len(kinds)} kinds, Kubernetes {versions[0]} to {versions[-1]}")
        self.validation_bites(schemas, kinds.values())

    def validation_bites(self, schemas, one_of_each):
        """Breaks one manifest of each kind. A broken manifest without a complaint means that the validator accepts
        everything."""
        for manifest in one_of_each:
            spoilt = copy.deepcopy(manifest)
            part = spoilt["spec"] if "spec" in spoilt else spoilt
            part["misspelt"] = True
            unknown = {**manifest, "apiVersion": "example.com/v1"}
            for what, bad in (("an unknown field", spoilt), ("an unknown kind", unknown)):
                if not schemas.complaints(bad, rules.KUBERNETES_VERSIONS[-1]):
                    self.complain("schemas", [f"{what} passes in {rules.shown(manifest)}"])
        opened = copy.deepcopy(self.rendered["external-redis"])
        for _, _, spec in rules.pod_templates(opened):
            spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = False
        if len(rules.unrestricted(opened)) != len(list(rules.pod_templates(opened))):
            self.complain("schemas", ["a writable root file system passes"])
        for shape, kind, lost in (("gateway", "Service", "Ingress"), ("gateway", "Service", "HTTPRoute"), ("edges", "Deployment", "PodMonitor")):
            left = [manifest for manifest in self.rendered[shape] if manifest["kind"] != kind]
            if not any(said.startswith(lost) for said in rules.misfits(left)):
                self.complain("misfits", [f"without any {kind}, {lost} passes"])
        unserved = [m for m in self.rendered["exporter"] if m["kind"] != "Service" or not m["metadata"]["name"].endswith("-exporter")]
        if not any("leaves out Deployment/fleet-tickfleet-exporter" in said for said in rules.misfits(unserved)):
            self.complain("misfits", ["an exporter that nobody scrapes passes"])

    def refuse(self):
        """Checks that wrong values do not render, and that the error message helps."""
        for arguments, expected in REFUSED:
            base = [] if "--no-redis" in arguments else ["--set", "redis.existingSecret.name=redis"]
            given = [argument for argument in arguments if argument != "--no-redis"]
            done = self.toolbox.helm("template", "fleet", HERE_CHART, *base, *given)
            if done.returncode == 0:
                self.complain("refused", [f"{' '.join(given)}: renders"])
            elif expected not in done.stderr:
                self.complain("refused", [f"{' '.join(given)}: expected {expected!r} in: {done.stderr.strip()}"])
        print(f"wrong values: {len(REFUSED)} refused, each with its reason")

    def rules_and_dashboards(self):
        """Checks that the chart contains the rule files and dashboards unchanged, and that promtool accepts the
        rules."""
        import yaml

        found = self.rendered["monitoring"]
        groups = [m for m in found if m["kind"] == "PrometheusRule"][0]["spec"]["groups"]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump({"groups": groups}, file)
            file.flush()
            done = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.complain("promtool check rules", [done.stdout + done.stderr])
        names = [rule.get("alert") or rule.get("record") for group in groups for rule in group["rules"]]
        for path in files("rules", ".yaml"):
            with open(path, encoding="utf-8") as file:
                own = [rule for group in yaml.safe_load(file)["groups"] for rule in group["rules"]]
            lost = {rule.get("alert") or rule.get("record") for rule in own} - set(names)
            self.complain(os.path.basename(path), [f"{name} is not in the PrometheusRule" for name in lost])
        for group in groups:
            for rule in group["rules"]:
                book = rule.get("annotations", {}).get("runbook_url")
                if book and not book.startswith(RUNBOOKS):
                    self.complain(rule["alert"], [f"its runbook is at {book}"])
        shown = {name: text for m in found if "grafana_dashboard" in m["metadata"].get("labels", {}) for name, text in m["data"].items()}
        boards = files("dashboards", ".json")
        for path in boards:
            with open(path, encoding="utf-8") as file:
                if json.loads(shown.get(os.path.basename(path), "null")) != json.load(file):
                    self.complain("dashboards", [f"{os.path.basename(path)} is not rendered as it is"])
        print(f"monitoring: {len(names)} rules, {len(boards)} dashboards")

    def package(self):
        """Checks that the package contains the configuration itself instead of a link, and no values of the checks. The
        package must render the same manifests as the folder, even without rules and dashboards."""
        with tempfile.TemporaryDirectory() as scratch:
            done = self.toolbox.helm("package", HERE_CHART, "--destination", scratch)
            if done.returncode != 0:
                return self.complain("helm package", [done.stderr])
            archive = os.path.join(scratch, next(name for name in os.listdir(scratch) if name.endswith(".tgz")))
            with tarfile.open(archive) as package:
                held = {member.name: member for member in package.getmembers()}
                for path in files("../../config", ".yaml") + files("../../config/prompts", ".txt"):
                    name = f"tickfleet/files/config/{os.path.relpath(path, os.path.join(HERE_CHART, '../../config'))}"
                    with open(path, "rb") as file:
                        if name not in held or package.extractfile(name).read() != file.read():
                            self.complain("helm package", [f"{name} is not the project's own"])
                if any(name.startswith("tickfleet/ci/") for name in held):
                    self.complain("helm package", ["it holds the values of the checks"])
                # This check has just made the package, so no path in it leads outside.
                package.extractall(scratch)
            bare = os.path.join(scratch, "tickfleet")
            values = os.path.join(HERE_CHART, "ci", "monitoring-values.yaml")
            arguments = ["template", "fleet", bare, "--namespace", "agents", "--values", values]
            import yaml

            whole = [m for m in yaml.safe_load_all(self.toolbox.helm(*arguments).stdout) if m]
            if whole != self.rendered["monitoring"]:
                self.complain("helm package", ["it renders other manifests than the folder"])
            for folder in ("rules", "dashboards"):
                shutil.rmtree(os.path.join(bare, folder), ignore_errors=True)
            done = self.toolbox.helm(*arguments)
            if done.returncode != 0 or "TickfleetOfOursBacklog" not in done.stdout:
                self.complain("without rules and dashboards", [done.stderr or "one's own rules are gone"])
            print(f"helm package: {len(held)} files")
        return None


    def about(self):
        """Checks what chart indexes show: the icon is the file next to the chart, and the README names existing
        values."""
        import yaml

        with open(os.path.join(HERE_CHART, "Chart.yaml"), encoding="utf-8") as file:
            chart = yaml.safe_load(file)
        with open(os.path.join(HERE_CHART, "icon.svg"), "rb") as file:
            icon = "data:image/svg+xml;base64," + base64.b64encode(file.read()).decode()
        if chart.get("icon") != icon:
            self.complain("Chart.yaml", [f"its icon is not icon.svg, which is {icon}"])
        with open(os.path.join(HERE_CHART, "values.yaml"), encoding="utf-8") as file:
            values = yaml.safe_load(file)
        with open(os.path.join(HERE_CHART, "README.md"), encoding="utf-8") as file:
            named = re.findall(r"^\| `([\w.]+)` \|", file.read(), re.MULTILINE)
        for path in named:
            place = values
            for key in path.split("."):
                place = place.get(key, {}) if isinstance(place, dict) else None
            if place in ({}, None) and path not in ("workerPools", "config.settings", "config.files", "config.prompts"):
                self.complain("README.md", [f"there is no value {path}"])
        print(f"README and icon: {len(named)} values named")

    def documents(self):
        """Checks commands and values of the documentation."""
        with tempfile.TemporaryDirectory() as scratch:
            count, complaints = install_doc.check(self.toolbox, scratch)
        self.complain("documentation", complaints)
        print(f"documentation: {count} commands and sets of values")

    def scaling(self):
        """Checks the metrics by which workers are scaled."""
        count, complaints = scaling.check(self.rendered)
        self.complain("scaling", complaints)
        print(f"scaling: {count} queries count ready, running and suspect work once, and nothing else")

    def resting(self):
        """Checks when a fleet without workers is a fault."""
        count, complaints = resting.check(self.toolbox)
        self.complain("resting", complaints)
        print(f"resting: {count} fleets without workers page where they should have some")

    def samples(self):
        """Checks that a release has the policy that its values select."""
        count, complaints = samples.check(self.toolbox)
        self.complain("samples", complaints)
        print(f"samples: {count} releases have the policy that their values give")

    def redis(self):
        """Checks the Redis settings of pods."""
        count, complaints = redis.check(self.toolbox)
        self.complain("redis", complaints)
        print(f"redis: {count} parts take a user of their own and an authority, and no annotation a password")

    def network(self):
        """Checks which ports of Redis a network policy opens."""
        count, complaints = network.check(self.toolbox)
        self.complain("network", complaints)
        print(f"network: {count} ways to Redis are open at the ports that they name")

    def workspaces(self):
        """Checks the volume for shell and file tools."""
        count, complaints = workspaces.check(self.rendered)
        self.complain("workspaces", complaints)
        print(f"workspaces: {count} pods have a volume for them where it is asked for, and none elsewhere")

    def tool_hosts(self):
        """Checks the containers in which Python tools run, next to their worker."""
        count, complaints = tool_hosts.check(self.rendered, self.toolbox.libraries)
        self.complain("tool hosts", complaints)
        print(f"tool hosts: {count} containers share a folder with their worker, are probed, and end after it")


def files(folder, ending):
    """Returns paths of the chart's files in `folder`; an empty list if the folder does not exist."""
    path = os.path.join(HERE_CHART, folder)
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    return [os.path.join(path, name) for name in names if name.endswith(ending)]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if not shutil.which("promtool"):
        sys.exit("promtool is missing; Debian's package prometheus has it: apt-get install prometheus")
    try:
        checks = Checks(Toolbox(sys.argv[1]))
    except Missing as missing:
        sys.exit(str(missing))
    checks.render_shapes()
    if not checks.complaints:
        checks.validate()
        checks.refuse()
        checks.rules_and_dashboards()
        checks.package()
        checks.documents()
        checks.about()
        checks.scaling()
        checks.resting()
        checks.samples()
        checks.redis()
        checks.network()
        checks.workspaces()
        checks.tool_hosts()
    if checks.complaints:
        sys.exit("\n".join([f"{len(checks.complaints)} complaints:", *checks.complaints]))


if __name__ == "__main__":
    main()
