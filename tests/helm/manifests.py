"""Rules for rendered manifests: Kubernetes accepts them, their references exist, and pods are locked down. Functions
that check return a list of complaints."""

import json
import os
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))

KUBERNETES_VERSIONS = tuple(f"1.{minor}" for minor in range(27, 38))

CUSTOM = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): "servicemonitor_v1.json",
    ("monitoring.coreos.com/v1", "PodMonitor"): "podmonitor_v1.json",
    ("monitoring.coreos.com/v1", "PrometheusRule"): "prometheusrule_v1.json",
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): "httproute_v1.json",
    ("keda.sh/v1alpha1", "ScaledObject"): "scaledobject_v1alpha1.json",
}


def shown(manifest):
    """Returns the name of a manifest in complaints."""
    return f"{manifest.get('kind')}/{manifest.get('metadata', {}).get('name')}"


class Schemas:
    """Strict validators by version and kind. An unknown field or an unknown kind is an error."""

    def __init__(self, toolbox):
        import jsonschema
        import referencing

        self.jsonschema, self.referencing = jsonschema, referencing
        self.archive = zipfile.ZipFile(toolbox.schemas)
        self.names = set(self.archive.namelist())
        self.definitions = {}
        self.validators = {}

    def validator(self, version, api, kind):
        """Returns the validator, or None for an unknown kind."""
        key = (version, api, kind)
        if key not in self.validators:
            self.validators[key] = self.custom(api, kind) if (api, kind) in CUSTOM else self.own(*key)
        return self.validators[key]

    def custom(self, api, kind):
        with open(os.path.join(HERE, "crds", CUSTOM[api, kind]), encoding="utf-8") as file:
            return self.jsonschema.Draft7Validator(json.load(file))

    def own(self, version, api, kind):
        folder = f"kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict/"
        # File names have the group without its domain: networking.k8s.io/v1 becomes networking-v1.
        group, _, number = api.rpartition("/")
        name = f"{kind.lower()}-{group.split('.')[0] + '-' if group else ''}{number}.json"
        if folder + name not in self.names:
            return None
        if version not in self.definitions:
            self.definitions[version] = self.resource(folder + "_definitions.json")
        registry = self.definitions[version] @ self.referencing.Registry()
        schema = json.loads(self.archive.read(folder + name))
        return self.jsonschema.Draft202012Validator(schema, registry=registry)

    def resource(self, path):
        return self.referencing.Resource.from_contents(json.loads(self.archive.read(path)))

    def complaints(self, manifest, version):
        """Returns the problems for which this version of Kubernetes would reject the manifest."""
        validator = self.validator(version, manifest.get("apiVersion", ""), manifest.get("kind", ""))
        if validator is None:
            return [f"{shown(manifest)}: Kubernetes {version} has no {manifest.get('apiVersion')} {manifest.get('kind')}"]
        return [
            f"{shown(manifest)}: Kubernetes {version}: at {'.'.join(map(str, error.path))}: {error.message[:300]}"
            for error in validator.iter_errors(manifest)
        ]


def pod_templates(manifests):
    """Yields metadata and spec of every pod that the manifests make, with the manifest."""
    for manifest in manifests:
        if manifest["kind"] in ("Deployment", "StatefulSet"):
            template = manifest["spec"]["template"]
            yield manifest, template["metadata"], template["spec"]
        elif manifest["kind"] == "Pod":
            yield manifest, manifest["metadata"], manifest["spec"]


def unrestricted(manifests):
    """Returns violations of the Pod Security Standard "restricted", and of the chart's stricter promises."""
    complaints = []
    for manifest, _, spec in pod_templates(manifests):
        pod = spec.get("securityContext", {})
        rules = {
            "runs as root": pod.get("runAsNonRoot") is True and pod.get("runAsUser", 0) > 0,
            "has no seccomp profile": pod.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "shares namespaces of its node": not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")),
            "has a token for the API": spec.get("automountServiceAccountToken") is False,
            "has variables of services": spec.get("enableServiceLinks") is False,
            "mounts a path of its node": not any("hostPath" in volume for volume in spec.get("volumes", [])),
        }
        for container in spec["containers"]:
            context = container.get("securityContext", {})
            name = container["name"]
            rules |= {
                f"{name} may gain privileges": context.get("allowPrivilegeEscalation") is False,
                f"{name} keeps capabilities": context.get("capabilities") == {"drop": ["ALL"]},
                f"{name} may write its image": context.get("readOnlyRootFilesystem") is True,
                f"{name} has no bound on memory": "memory" in container["resources"]["limits"],
                f"{name} asks for no share": {"cpu", "memory"} <= set(container["resources"]["requests"]),
                f"{name} has a URL in its arguments": not any("://" in argument for argument in unaddressed(container)),
            }
        complaints += [f"{shown(manifest)} {rule}" for rule, kept in rules.items() if not kept]
    return complaints


# These options take addresses. The schema of the chart's values rejects passwords in addresses.
PLACES = ("--to", "--oidc-issuer", "--public-url")


def unaddressed(container):
    """Returns the arguments of the container, except addresses."""
    arguments = container.get("args", [])
    return [argument for before, argument in zip(["", *arguments], arguments) if before not in PLACES]


def selected(selector, labels):
    """Returns whether a label selector matches these labels."""
    equal = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    among = all(
        rule["operator"] == "In" and labels.get(rule["key"]) in rule["values"]
        for rule in selector.get("matchExpressions", [])
    )
    return equal and among


def served(manifests):
    """Returns names of Services with their ports, by name and by number."""
    return {
        (manifest["metadata"]["name"], port[key])
        for manifest in manifests
        if manifest["kind"] == "Service"
        for port in manifest["spec"]["ports"]
        for key in ("name", "port")
    }


def routes(manifest):
    """Returns the Services, each with a port, to which an Ingress or an HTTPRoute leads."""
    rules = manifest["spec"]["rules"] if manifest["kind"] in ("Ingress", "HTTPRoute") else []
    ends = set()
    for rule in rules:
        ends |= {(end["name"], end["port"]) for end in rule.get("backendRefs", [])}
        for path in rule.get("http", {}).get("paths", []):
            service = path["backend"]["service"]
            ends.add((service["name"], service["port"].get("name") or service["port"]["number"]))
    return ends


def misfits(manifests):
    """Returns references that lead nowhere: selectors, targets of autoscaling, ConfigMaps, mounts without a volume."""
    pods = list(pod_templates(manifests))
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    complaints = []
    for manifest in manifests:
        spec, kind = manifest.get("spec", {}), manifest["kind"]
        if kind == "Service":
            selector = {"matchLabels": spec["selector"]}
        elif kind == "NetworkPolicy":
            selector = spec["podSelector"]
        elif kind in ("PodDisruptionBudget", "Deployment", "StatefulSet"):
            selector = spec["selector"]
        else:
            selector = None
        if selector is not None and not any(selected(selector, metadata["labels"]) for _, metadata, _ in pods):
            complaints.append(f"{shown(manifest)} selects no pod")
        if kind == "ServiceMonitor" and not any(
            selected(spec["selector"], other["metadata"]["labels"])
            and {port["name"] for port in other["spec"]["ports"]} >= {end["port"] for end in spec["endpoints"]}
            for other in manifests
            if other["kind"] == "Service"
        ):
            complaints.append(f"{shown(manifest)} selects no Service with its port")
        if kind == "PodMonitor" and not any(
            selected(spec["selector"], metadata["labels"])
            and {port["name"] for port in pod["containers"][0].get("ports", [])} >= {end["port"] for end in spec["podMetricsEndpoints"]}
            for _, metadata, pod in pods
        ):
            complaints.append(f"{shown(manifest)} selects no pod with its port")
        complaints += [f"{shown(manifest)} leaves out {name}" for name in unscraped(manifest, manifests)]
        complaints += [f"{shown(manifest)} leads to {end}, which is not there" for end in routes(manifest) - served(manifests)]
        target = spec.get("scaleTargetRef") if isinstance(spec, dict) else None
        if target and (target["kind"], target["name"]) not in names:
            complaints.append(f"{shown(manifest)} scales {target['name']}, which is not there")
    for manifest, _, spec in pods:
        claims = manifest["spec"].get("volumeClaimTemplates", [])
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | {claim["metadata"]["name"] for claim in claims}
        for container in spec["containers"]:
            lost = {mount["name"] for mount in container.get("volumeMounts", [])} - volumes
            complaints += [f"{shown(manifest)} mounts {name}, which is no volume" for name in lost]
    return complaints


def unscraped(monitor, manifests):
    """Yields pods with metrics that no monitor scrapes. To report each only once, yields them for the first monitor."""
    monitors = [other for other in manifests if other["kind"] in ("ServiceMonitor", "PodMonitor")]
    if monitors[:1] != [monitor]:
        return
    ways = [way for one in monitors for way in scraped_by(one, manifests)]
    for manifest, metadata, spec in pod_templates(manifests):
        container = spec["containers"][0]
        measured = "--metrics" in container.get("args", []) or any(entry["name"] == "TICKFLEET_HTTP_ADDRESS" for entry in container.get("env", []))
        lasts = manifest["kind"] != "Pod"
        if measured and lasts and not any(selected(way, metadata["labels"]) for way in ways):
            yield shown(manifest)


def scraped_by(monitor, manifests):
    """Returns selectors of the pods that a monitor scrapes: its own selector, or those of Services with its port."""
    selector = monitor["spec"]["selector"]
    if monitor["kind"] == "PodMonitor":
        return [selector]
    wanted = {end["port"] for end in monitor["spec"]["endpoints"]}
    return [
        {"matchLabels": other["spec"]["selector"]}
        for other in manifests
        if other["kind"] == "Service"
        and selected(selector, other["metadata"]["labels"])
        and wanted <= {port["name"] for port in other["spec"]["ports"]}
    ]


def owned_twice(manifests):
    """Returns pods that are selected by more than one Deployment."""
    complaints = []
    for manifest, metadata, _ in pod_templates(manifests):
        owners = [
            shown(other)
            for other in manifests
            if other["kind"] in ("Deployment", "StatefulSet") and selected(other["spec"]["selector"], metadata["labels"])
        ]
        if len(owners) > (manifest["kind"] != "Pod"):
            complaints.append(f"pods of {shown(manifest)} are selected by {', '.join(owners)}")
    return complaints


def named_twice(manifests):
    """Returns variables that a container has twice, because server-side apply rejects them."""
    complaints = []
    for manifest, _, spec in pod_templates(manifests):
        for container in spec["containers"] + spec.get("initContainers", []):
            names = [entry["name"] for entry in container.get("env", [])]
            twice = sorted({name for name in names if names.count(name) > 1})
            complaints += [f"{shown(manifest)}: {container['name']} has {name} twice" for name in twice]
    return complaints


def impatient(manifests, longest_tool_s):
    """Returns workers that would be killed while they drain, or that stop draining while calls run."""
    complaints = []
    for manifest, _, spec in pod_templates(manifests):
        environment = {entry["name"]: entry.get("value") for entry in spec["containers"][0].get("env", [])}
        if "TICKFLEET_WORKER_DRAIN" in environment:
            drain_s = int(environment["TICKFLEET_WORKER_DRAIN"].removesuffix("s"))
            if not spec["terminationGracePeriodSeconds"] > drain_s > longest_tool_s:
                complaints.append(f"{shown(manifest)}: drain {drain_s} s, longest tool {longest_tool_s} s")
    return complaints
