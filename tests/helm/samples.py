"""Checks that the agents and permissions of the values are active. The sample business is active only on request."""

from toolbox import HERE_CHART

FOUR = ("agents", "tools", "permissions", "tenants")
OWN = ",".join(f"config.files.{name}\\.yaml={name}: {{}}" for name in FOUR)
NO_AGENTS = "Without agents and tenants, the fleet rejects every turn"
RELEASES = {
    "": ("false", NO_AGENTS, set()),
    OWN: ("false", None, {f"{name}.yaml" for name in FOUR}),
    "config.files.tools\\.yaml=tools: {}": ("false", NO_AGENTS, {"tools.yaml"}),
    "config.samples=true": ("true", "agents.yaml, tools.yaml, permissions.yaml, tenants.yaml are from the sample", None),
    "config.samples=true,config.files.agents\\.yaml=agents: {}": ("true", "tools.yaml, permissions.yaml, tenants.yaml are", None),
    "config.existingConfigMap=own": ("false", None, None),
}
WARNINGS = (NO_AGENTS, "from the sample business")


def check(toolbox):
    """Returns the number of releases, and complaints."""
    import yaml

    complaints = []
    for values, (switch, says, names) in RELEASES.items():
        given = ["--set", f"redis.url=redis://redis{',' if values else ''}{values}"]
        found = [m for m in yaml.safe_load_all(toolbox.helm("template", "fleet", HERE_CHART, *given).stdout) if m]
        pods = [m["spec"]["template"]["spec"] for m in found if m["kind"] == "Deployment"]
        pods += [m["spec"] for m in found if m["kind"] == "Pod"]
        for variables in [container["env"] for pod in pods for container in pod["containers"][:1]]:
            if {"name": "TICKFLEET_PERMISSION_SAMPLES", "value": switch} not in variables:
                complaints.append(f"{values}: a pod does not say {switch}")
        maps = [set(m["data"]) - {"tickfleet.yaml"} for m in found if m["kind"] == "ConfigMap"]
        if names is not None and maps != [names]:
            complaints.append(f"{values}: expected the files {names}, found {maps}")
        notes = toolbox.helm("install", "fleet", HERE_CHART, "--dry-run=client", *given).stdout.partition("NOTES:")[2]
        warned = [warning for warning in WARNINGS if warning in notes]
        if not notes or (says is None and warned) or (says is not None and says not in notes):
            complaints.append(f"{values}: the notes should say {says!r}: {notes}")
    return len(RELEASES), complaints
