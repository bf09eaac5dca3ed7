"""Generates alerts.md and helm-values.md from the rules and values of the chart."""

import os
import re

from text import anchor, cell, escaped, sentence, table

CHART = "helm/tickfleet"
# Fields with these last parts of their paths have the same meaning in all sections.
COMMON = {
    "enabled": "Whether to install it.",
    "replicas": "Number of pods.",
    "image.repository": "Repository of the image.",
    "image.registry": "Prefix of the repository.",
    "image.tag": "Tag of the image.",
    "image.digest": "Digest of the image. Overrides the tag.",
    "pullPolicy": "Pull policy of the image.",
    "imagePullSecrets": "Secrets for the registry.",
    "existingSecret.name": "Name of the Secret.",
    "existingSecret.key": "Key in the Secret.",
    "Secret.name": "Name of the Secret.",
    "Secret.key": "Key in the Secret.",
    "secret.name": "Name of the Secret.",
    "secret.key": "Key in the Secret.",
    "redis.port": "Port of Redis.",
    "redis.database": "Database number.",
    "redis.tls": "Connects with TLS.",
    "redis.username": "User of Redis.",
    "tlsCA.configMap": "Name of the ConfigMap.",
    "tlsCA.secret": "Name of the Secret.",
    "tlsCA.key": "Key in the ConfigMap or Secret.",
    "jwksConfigMap.name": "Name of the ConfigMap.",
    "jwksConfigMap.key": "Key in the ConfigMap.",
    "tls.secretName": "Name of the Secret.",
    "tls.cert": "Key of the certificate.",
    "tls.key": "Key of the private key.",
    "persistence.size": "Size of the volume.",
    "tmp.sizeLimit": "Size of the volume.",
    "resources.requests": "Resource requests.",
    "resources.limits": "Resource limits.",
    "terminationGracePeriodSeconds": "Seconds until Kubernetes kills a pod that is shutting down.",
    "strategy.type": "Update strategy of the Deployment.",
    "strategy.rollingUpdate": "Bounds of a rolling update.",
    "podDisruptionBudget.minAvailable": "Pods that must stay available.",
    "podDisruptionBudget.maxUnavailable": "Pods that can be unavailable.",
    "env": "Environment variables.",
    "envFrom": "Sources of environment variables.",
    "podLabels": "Labels of the pods.",
    "podAnnotations": "Annotations of the pods.",
    "nodeSelector": "Node selector.",
    "tolerations": "Tolerations.",
    "affinity": "Affinity.",
    "priorityClassName": "Priority class.",
    "runtimeClassName": "Runtime class.",
    "dnsPolicy": "DNS policy.",
    "dnsConfig": "DNS configuration.",
    "hostAliases": "Entries of the hosts file.",
    "podSecurityContext": "Merged over the security context of all pods.",
    "securityContext": "Merged over the security context of all containers.",
    "extraVolumes": "Further volumes.",
    "extraVolumeMounts": "Further volume mounts.",
    "initContainers": "Init containers.",
    "extraContainers": "Further containers.",
    "annotations": "Annotations.",
    "commonAnnotations": "Annotations of every object.",
    "labels": "Labels.",
    "service.type": "Type of the Service.",
    "port": "Port.",
    "hosts": "Host names.",
    "hostnames": "Host names.",
    "path": "Path prefix.",
    "ingress.className": "Ingress class.",
    "ingress.tls": "TLS hosts and Secrets.",
    "parentRefs": "Gateways of the route.",
    "filters": "Filters of the route.",
    "timeouts": "Timeouts of the route.",
    "maxReplicas": "Largest number of pods.",
    "metricName": "Name of the external metric.",
    "serverAddress": "URL of Prometheus.",
    "pollingIntervalSeconds": "Seconds between queries.",
    "oidc.issuer": "URL of the issuer.",
    "oidc.audience": "Accepted `aud` claims.",
    "oidc.nameClaim": "Claim with the name for the audit log.",
    "oidc.leeway": "Accepted clock difference.",
    "topologyKeys": "Topology keys.",
    "maxSkew": "Largest difference of pods between domains.",
    "serviceAccount.create": "Whether to create the account.",
    "interval": "Interval of scrapes.",
    "scrapeTimeout": "Timeout of a scrape.",
    "relabelings": "Relabelings.",
    "metricRelabelings": "Metric relabelings.",
    "http.port": "Port of probes and metrics.",
}
# These sections about pods share most of their fields.
PODS = ("exporter", "notifier", "worker", "gateway")


def read(root, path):
    with open(os.path.join(root, CHART, path), encoding="utf-8") as file:
        return file.read()


def alerts(root):
    page = """# Alerts

The chart installs these Prometheus alerts with `monitoring.rules.enabled`. The [runbooks](../operate/runbooks.md) explain how to respond. The files `helm/tickfleet/rules/*.yaml` also work without the chart ([Monitoring](../operate/monitoring.md)).

- `page`: agents wait or a guarantee is at risk. Respond now.
- `ticket`: respond during working hours.

"""
    groups = re.split(r"^  - name: ", read(root, "rules/alerts.yaml"), flags=re.MULTILINE)[1:]
    for group in groups:
        name, rules = group.splitlines()[0].strip(), [alert(text) for text in re.split(r"^ {6}- alert: ", group, flags=re.MULTILINE)[1:]]
        title = name.removeprefix("tickfleet.").replace("-", " ").replace("_", " ").capitalize()
        rows = [[f"[`{rule['name']}`](#{anchor(rule['name'])})", rule["severity"], rule["for"], cell(plain(rule["summary"]))] for rule in rules]
        page += f"## {title}\n\n" + table(["Alert", "Severity", "For", "Summary"], rows) + "\n"
        for rule in rules:
            page += f"### {rule['name']}\n\n{escaped(plain(rule['description']))}\n\n```promql\n{rule['expr']}\n```\n\n"
            if rule["runbook"]:
                page += f"[Runbook](../{rule['runbook']}) · severity `{rule['severity']}` · for {rule['for']}\n\n"
    return page


def alert(text):
    """Parses an alert from the YAML of the rules. All alerts have the same layout."""

    def field(name):
        found = re.search(rf"^ +{name}: (.*)$", text, re.MULTILINE)
        return found[1].strip() if found else ""

    def unquoted(value):
        return value[1:-1].replace('\\"', '"') if value.startswith('"') else value

    expr = re.search(r"^( +)expr: >-\n((?:\1  .*\n)+)", text, re.MULTILINE)
    lines = [line.strip() for line in expr[2].splitlines()] if expr else [unquoted(field("expr"))]
    return {
        "name": text.splitlines()[0].strip(),
        "severity": re.search(r"severity: (\w+)", text)[1],
        "for": field("for") or "0s",
        "expr": "\n".join(lines),
        "summary": unquoted(field("summary")),
        "description": unquoted(field("description")),
        "runbook": field("runbook_url").partition("/docs/")[2],
    }


def plain(text):
    """Replaces the template expressions of an annotation with plain text."""
    text = re.sub(r"\{\{ ?with \$labels\.\w+ ?\}\}.*?\{\{ ?end ?\}\}", "", text)
    text = re.sub(r"\{\{ ?\$labels\.(\w+) ?\}\}", r"`\1`", text)
    text = re.sub(r"\{\{ ?(?:printf \S+ )?\$value[^}]*\}\}", "`value`", text)
    return sentence(re.sub(r"\{\{.*?\}\}", "…", text))


def values(root):
    page = """# Helm values

Values of the chart `helm/tickfleet` with their defaults. The chart rejects unknown values. [Kubernetes in production](../operate/kubernetes.md) explains how to install it.

"""
    entries = list(parsed(read(root, "values.yaml")))
    tops = []
    for path, _, _, comment in entries:
        if path.split(".")[0] not in tops:
            tops.append(path.split(".")[0])
    by_top = {top: [entry for entry in entries if entry[0].split(".")[0] == top] for top in tops}
    single = [group[0] for group in by_top.values() if len(group) == 1]
    page += "## General\n\n" + rows(single)
    pods = {entry[0].removeprefix("scheduler."): entry[1] for entry in by_top["scheduler"]}
    for top, group in by_top.items():
        if len(group) > 1:
            intro = group[0][3]
            page += f"\n## {top}\n\n" + (f"{escaped(intro)}\n\n" if intro else "")
            own = [entry for entry in group[1:] if top == "scheduler" or entry[3] or pods.get(entry[0].removeprefix(f"{top}.")) is None]
            page += rows(own)
            if top in PODS:
                page += "\nFields without a row here are those of [`scheduler`](#scheduler).\n"
    return page


def rows(entries):
    shown = [
        [f"`{path}`", f"`{default}`" if default else "", cell(sentence(described(path, comment)))]
        for path, default, leaf, comment in entries
        if leaf or comment
    ]
    return table(["Value", "Default", "Description"], shown)


def described(path, comment):
    """Returns the comment of a value. Without one, returns the common description of its field, with any
    example."""
    if comment and not comment.startswith("Example:"):
        return comment
    known = next((COMMON[end] for end in sorted(COMMON, key=len, reverse=True) if path == end or path.endswith(("." + end, end if end[0] == "S" else "." + end))), "")
    return f"{known} {comment}".strip()


def parsed(text):
    """Yields (path, default, whether it has a value, comment) for every key of the file."""
    comment, path, lines = [], [], text.splitlines()
    # Commented-out examples have more indentation than the next key, so they are not part of its comment.
    for at, line in enumerate(lines):
        found = re.match(r"( *)([A-Za-z][\w-]*):(?: +(.*))?$", line)
        note = re.match(r"( *)# ?(.*)", line)
        if note:
            if not note[2].startswith(("---", "  ")):
                comment.append((len(note[1]), note[2]))
            continue
        if not found:
            comment = []
            continue
        depth, rest = len(found[1]) // 2, found[3] or ""
        path = path[:depth] + [found[2]]
        default, _, trailing = rest.partition(" # ") if not rest.startswith("#") else ("", "", rest[1:])
        said = " ".join(line.strip() for indent, line in comment if indent == len(found[1]))
        trailing = trailing.strip()
        if re.match(r"[\[{]", trailing):
            example, rest = re.match(r"([\[{].*[\]}])(.*)", trailing).groups()
            trailing = f"Example: `{example}`{rest}"
        said = " ".join(part for part in (sentence(said), trailing) if part)
        following = next((one for one in lines[at + 1 :] if one.strip() and not one.strip().startswith("#")), "")
        nested = not default.strip() and len(following) - len(following.lstrip()) > len(found[1])
        is_list = nested and following.strip().startswith("- ")
        if is_list:
            default = "(see values.yaml)"
        if not any(part in ("toolEgress", "oidcEgress", "behavior") for part in path[:-1]):
            yield ".".join(path), default.strip(), bool(default.strip()), said
        comment = []
