"""Checks which ports of Redis the network policies open."""

from toolbox import HERE_CHART

WAYS = {
    "redis.existingSecret.name=redis": [6379],
    "redis.existingSecret.name=redis,networkPolicy.redisPort=6380": [6380],
    "redis.host=redis,redis.port=6390": [6390],
    "trialRedis.enabled=true,trialRedis.password=x,networkPolicy.redisPort=6380": [6379],
    "redis.url=redis://redis": [6379],
    "redis.url=rediss://fleet:1234@redis:6380/0?tls_ca=/ca:1": [6380],
    "redis.url=rediss://[fd00::1]:6381/0": [6381],
    "redis.url=redis://[fd00::1]": [6379],
    "redis.url=redis+cluster://a:7000\\,b:7001\\,c": [6379, 7000, 7001],
    "redis.url=redis+sentinel://u:p@a:26380\\,b/main/2?sentinel_username=s": [6379, 26379, 26380],
    "redis.url=rediss+sentinel://a\\,b/main,networkPolicy.redisPort=6380": [6380, 26379],
}


def check(toolbox):
    """Returns the number of settings, and complaints about those with other open ports."""
    import yaml

    complaints = []
    for values, expected in WAYS.items():
        done = toolbox.helm("template", "fleet", HERE_CHART, "--set", f"networkPolicy.enabled=true,{values}")
        found = [m for m in yaml.safe_load_all(done.stdout) if m and m["kind"] == "NetworkPolicy"]
        fleets = [m for m in found if m["metadata"]["name"] == "fleet-tickfleet"]
        ports = [sorted(port["port"] for port in m["spec"]["egress"][1]["ports"]) for m in fleets]
        if ports != [expected]:
            complaints.append(f"{values}: expected {expected}, found {ports}: {done.stderr}")
    return len(WAYS), complaints
