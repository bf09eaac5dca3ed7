"""Checks the Redis settings of pods: they have the authorities of Redis' certificate and a user for each part, and
contain no password."""

from toolbox import HERE_CHART

PARTS = ("scheduler", "worker", "gateway", "exporter", "notifier", "test")
EVERYTHING = (
    "gateway.enabled=true,gateway.keysSecret.name=keys,exporter.enabled=true,notifier.enabled=true,"
    "notifier.to=https://hooks.example.com,notifier.secret.name=hook"
)
CA = {"name": "TICKFLEET_REDIS_TLS_CA", "value": "/etc/tickfleet-redis-ca/ca.pem"}


def pods(toolbox, values):
    """Returns part → the template of its pod."""
    import yaml

    done = toolbox.helm("template", "fleet", HERE_CHART, "--set", f"{EVERYTHING},{values}")
    found = {}
    for manifest in [m for m in yaml.safe_load_all(done.stdout) if m]:
        template = manifest if manifest["kind"] == "Pod" else manifest.get("spec", {}).get("template")
        if template and "containers" in template.get("spec", {}):
            found[template["spec"]["containers"][0]["name"]] = template
    return found


def annotation(toolbox, url):
    return pods(toolbox, f"redis.url={url}")["scheduler"]["metadata"]["annotations"]["checksum/redis"]


def without_a_common_one(toolbox):
    """Returns complaints about a release in which each part has its own Secret, and none is shared."""
    own = {part: f"redis-{part}" for part in PARTS}
    values = ",".join(f"{part}.redisSecret.name={secret}" for part, secret in own.items())
    found = pods(toolbox, f"{values},redis.tlsCA.configMap=ca,networkPolicy.enabled=true")
    secrets = {}
    for name, pod in found.items():
        urls = [v for v in pod["spec"]["containers"][0]["env"] if v["name"] == "REDIS_URL"]
        secrets[name] = [url["valueFrom"]["secretKeyRef"]["name"] for url in urls]
    expected = {part: [secret] for part, secret in own.items()}
    return [] if secrets == expected else [f"a Secret for each part and none for all: {secrets}"]


def check(toolbox):
    """Returns the number of parts, and complaints."""
    complaints = []
    for source in ("configMap", "secret"):
        for part, pod in pods(toolbox, f"redis.url=rediss://r,redis.tlsCA.{source}=ca,redis.tlsCA.key=ca.pem").items():
            first = pod["spec"]["containers"][0]
            mounted = [m["mountPath"] for m in first["volumeMounts"] if m["name"] == "redis-ca"]
            volumes = [v for v in pod["spec"]["volumes"] if v["name"] == "redis-ca" and source in v]
            if CA not in first["env"] or mounted != ["/etc/tickfleet-redis-ca"] or len(volumes) != 1:
                complaints.append(f"{part}: it does not trust the authority of the {source}")
    for part in PARTS:
        found = pods(toolbox, f"redis.url=redis://r,{part}.redisSecret.name=own")
        if sorted(found) != sorted(PARTS):
            complaints.append(f"parts: {sorted(found)}")
        for name, pod in found.items():
            urls = [v for v in pod["spec"]["containers"][0]["env"] if v["name"] == "REDIS_URL"]
            secrets = [url["valueFrom"]["secretKeyRef"]["name"] for url in urls]
            if secrets != ["own" if name == part else "fleet-tickfleet-redis"]:
                complaints.append(f"{part}.redisSecret: {name} has {secrets}")
    complaints += without_a_common_one(toolbox)
    one = annotation(toolbox, "redis://u:p@r/0?sentinel_password=p")
    if annotation(toolbox, "redis://v:q@r/0?sentinel_password=q") != one:
        complaints.append("an annotation tells two passwords apart")
    if annotation(toolbox, "redis://u:p@other/0") == one:
        complaints.append("another Redis replaces no pod")
    return len(PARTS), complaints
