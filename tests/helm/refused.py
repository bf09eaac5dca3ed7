"""Values that the chart must reject, each with a text that the error message must contain. All get a Redis, except
those with `--no-redis`."""

# The start of a valid tool host.
HOST = '"name":"shop","image":"shop:1","modules":["shop"]'
# A configuration with one entry, whose host is the tool host `shop`.
SHOP = r'config.files={"tools.yaml":"python: {shop: {host: /run/tickfleet/shop.sock, processes: 3}}"}'
# A user of Redis for each part that always exists.
OWN = "scheduler.redisSecret.name=s,worker.redisSecret.name=w,test.redisSecret.name=t"
# Gateways that accept tokens of an issuer.
SIGN_IN = "gateway.enabled=true,gateway.oidc.issuer=https://id.example.com,gateway.oidc.audience={fleet},gateway.oidc.rules[0].name=x"

REFUSED = [
    # Redis has no default, and must not be ambiguous.
    (["--no-redis"], "No Redis is configured for the"),
    (["--no-redis"], "for all parts without a Secret of their own, one of redis.existingSecret.name"),
    (["--no-redis", "--set", f"{OWN},test.redisSecret.name="], "No Redis is configured for the test. Set test.redisSecret.name, or test.enabled=false"),
    (["--no-redis", "--set", f"{OWN},worker.redisSecret.name="], "No Redis is configured for the worker. Set worker.redisSecret.name"),
    (["--no-redis", "--set", f"{OWN},gateway.enabled=true,gateway.keysSecret.name=keys"], "No Redis is configured for the gateway."),
    (["--no-redis", "--set", f"{OWN},redis.host=redis,redis.url=redis://redis"], "Redis is configured more than once (host, url)"),
    (["--set", "redis.host=redis"], "Redis is configured more than once (existingSecret, host)"),
    (["--set", "trialRedis.enabled=true"], "Redis is configured more than once (existingSecret, trial)"),
    (["--no-redis", "--set", "redis.host=redis,redis.username=fleet"], "redis.username needs redis.passwordSecret.name"),
    (["--no-redis", "--set", "redis.url=http://redis"], "at '/redis/url'"),
    # Settings that other values determine.
    (["--no-redis", "--set", "redis.host=redis,redis.tlsCA.configMap=ca"], "redis.tlsCA needs TLS"),
    (["--set", "redis.tlsCA.configMap=ca,redis.tlsCA.secret=ca"], "set configMap or secret, not both"),
    (["--set", "config.settings.permission.samples=true"], "use config.samples"),
    (["--set", "config.settings.redis.tls_ca=/ca.pem"], "use redis.tlsCA"),
    # Misspelled values and wrong types.
    (["--set", "worker.slot=4"], "at '/worker': additional properties 'slot' not allowed"),
    (["--set", "workers.slots=4"], "additional properties 'workers' not allowed"),
    (["--set", "worker.slots=0"], "at '/worker/slots': minimum: got 0, want 1"),
    (["--set-string", "worker.slots=many"], "at '/worker/slots': got string, want integer"),
    (["--set-json", 'workerPools={"fast":{"slot":4}}'], "additional properties 'slot' not allowed"),
    (["--set-json", 'worker.priorities=["asap"]'], "at '/worker/priorities/0': value must be one of"),
    (["--set", "worker.autoscaling.kind=vpa"], "at '/worker/autoscaling/kind': value must be one of"),
    (["--set", "image.digest=latest"], "at '/image/digest'"),
    (["--set", "monitoring.serviceMonitor.interval=often"], "at '/monitoring/serviceMonitor/interval'"),
    (["--set", "http.port=70000"], "at '/http/port'"),
    # An export that could not be written, or that would show a password.
    (["--set", "exporter.enabled=true,exporter.to=file:/var/audit.jsonl"], "mount a volume for it"),
    (["--set", "exporter.to=otlp:http://me:secret@collector"], "at '/exporter/to'"),
    (["--set", "notifier.enabled=true,notifier.secret.name=webhook"], "notifier.to is empty"),
    (["--set", "notifier.enabled=true,notifier.to=https://hooks.example.com"], "notifier.secret.name is empty"),
    (["--set", "notifier.to=https://me:secret@hooks.example.com"], "at '/notifier/to'"),
    # Times that would kill running calls.
    (["--set", "worker.drainSeconds=30"], "drainSeconds (30) must exceed the longest timeout of a tool (30 s)"),
    (["--set", "worker.terminationGracePeriodSeconds=54"], "must be at least drainSeconds + 10 (55)"),
    (["--set", "worker.lifecycle.preStop.sleep.seconds=6"], "lifecycle.preStop.sleep.seconds + drainSeconds + 10 (61)"),
    (["--set", "config.settings.worker.tool_timeout=2m"], "the longest timeout of a tool (120 s)"),
    (
        ["--set-json", r'config.files={"tools.yaml":"tools: {slow: {timeout_ms: 50500}}"}'],
        "the longest timeout of a tool (50.5 s)",
    ),
    (["--set-json", 'workerPools={"fast":{"drainSeconds":10}}'], 'worker pool "fast": drainSeconds (10)'),
    (["--set", "config.settings.worker.tool_timeout=5"], "at '/config/settings/worker/tool_timeout': got number, want string"),
    (["--set", "config.settings.worker.tool_timeout=5sec"], "at '/config/settings/worker/tool_timeout'"),
    (["--set", "config.settings.worker.tool_timout=5s"], "at '/config/settings/worker': additional properties 'tool_timout' not allowed"),
    (["--set", "config.settings.caps.on_day_cap=drop"], "at '/config/settings/caps/on_day_cap': value must be one of"),
    (["--set-json", r'config.files={"tools.yaml":"tools: ["}'], "config.files.tools.yaml is not valid YAML"),
    # Work that no pool would do.
    (["--set-json", 'worker.priorities=["urgent","high","normal"]'], 'no pool serves priority "low"'),
    (["--set-json", 'workerPools={"default":null}'], "no pool is left"),
    (["--set-json", 'workerPools={"a-name-that-is-too-long":{}}'], "is not a valid pool name"),
    # Scaling and disruptions.
    (["--set", "worker.autoscaling.kind=hpa,worker.autoscaling.minReplicas=0"], "needs at least 1"),
    (["--set", "worker.autoscaling.kind=keda,worker.autoscaling.maxReplicas=1"], "maxReplicas (1) is below minReplicas"),
    (["--set", "worker.podDisruptionBudget.minAvailable=1"], "needs one of maxUnavailable and minAvailable"),
    # Configuration that would have no effect.
    (["--set", "config.settings.worker.drain=5s"], "config.settings.worker.drain has no effect here"),
    (["--set", "config.settings.redis.url=redis://redis"], "config.settings.redis.url has no effect here"),
    (["--set", "config.settings.http.address=0.0.0.0:1"], "config.settings.http.address has no effect here"),
    (["--set", r"config.files.agent\.yaml=x"], 'unknown file "agent.yaml"; expected one of agents.yaml'),
    (["--set", r"config.files.tickfleet\.yaml=x"], "tickfleet.yaml is generated from config.settings"),
    # Prompts without effect, or with a conflict.
    (["--set", r"config.prompts.desk\.txt=x"], 'config.prompts: unknown prompt "desk.txt"; expected agent.<name>.txt'),
    (["--set", r"config.prompts.agent\.txt=x"], 'unknown prompt "agent.txt"'),
    (["--set", r"config.prompts.agent\.desk\.md=x"], "or one of no_tools.txt, tool.txt, tools.txt"),
    (["--set-json", 'config.prompts={"agent.my desk.txt":"x"}'], "with letters, digits, - _ and . in its name"),
    (["--set-json", 'config.prompts={"prompts/agent.desk.txt":"x"}'], 'unknown prompt "prompts/agent.desk.txt"'),
    (["--set", "config.existingConfigMap=policy", "--set", r"config.prompts.desk\.txt="], 'unknown prompt "desk.txt"'),
    (["--set", r"config.files.tool\.txt=x,config.prompts.tool\.txt=x"], '"tool.txt" is also in config.files'),
    (["--set", r"config.files.prompts=x,config.prompts.tool\.txt=x"], "conflicts with the folder of config.prompts"),
    (["--set-json", 'config.prompts={"tool.txt":["x"]}'], "at '/config/prompts/tool.txt': got array, want string"),
    # Gateways.
    (["--set", "gateway.enabled=true"], "gateway.keysSecret.name is empty"),
    (["--set", "gateway.enabled=true,gateway.oidc.issuer=https://id.example.com"], "gateway.oidc needs audience"),
    (["--set", "gateway.enabled=true,gateway.keysSecret.name=keys,gateway.oidc.audience={fleet}"], "gateway.oidc.issuer is empty"),
    (["--set", f"{SIGN_IN},gateway.oidc.clientId=console"], "gateway.oidc.clientId needs gateway.oidc.issuer and gateway.publicUrl"),
    (["--set", f"{SIGN_IN},gateway.oidc.scopes={{groups}}"], "gateway.oidc.clientId is empty"),
    (["--set", f"{SIGN_IN},gateway.oidc.clientSecret.name=x"], "gateway.oidc.clientId is empty"),
    (["--set", f"{SIGN_IN},gateway.publicUrl=https://fleet.example.com,gateway.oidc.clientId=console,gateway.oidc.jwksConfigMap.name=keys"], "needs the issuer's metadata"),
    (["--set", "gateway.oidc.scopes={a b}"], "at '/gateway/oidc/scopes/0'"),
    (["--set", "gateway.oidc.issuer=https://me:secret@id.example.com"], "at '/gateway/oidc/issuer'"),
    (["--set", "gateway.oidc.issuer=id.example.com"], "at '/gateway/oidc/issuer'"),
    (["--set", "gateway.ingress.enabled=true"], "gateway.ingress has no gateway to route to"),
    (["--set", "gateway.httpRoute.enabled=true"], "gateway.httpRoute has no gateway to route to"),
    (["--set", "gateway.enabled=true,gateway.keysSecret.name=keys,gateway.ingress.enabled=true"], "gateway.ingress.hosts is empty"),
    (["--set", "gateway.enabled=true,gateway.keysSecret.name=keys,gateway.httpRoute.enabled=true"], "gateway.httpRoute.parentRefs is empty"),
    (["--set", "gateway.enabled=true,gateway.keysSecret.name=keys,gateway.port=9090"], "gateway.port and http.port are both 9090"),
    (["--set", "gateway.tls.secret=x"], "additional properties 'secret' not allowed"),
    (["--set", "gateway.port=80"], "at '/gateway/port': minimum: got 80, want 1,024"),
    (["--set", "gateway.keys=x"], "additional properties 'keys' not allowed"),
    (["--set", "image.registry=https://registry.example.com"], "at '/image/registry'"),
    (["--set", "monitoring.serviceMonitor.enabled=true,monitoring.podMonitor.enabled=true"], "would scrape every pod twice"),
    # Tool hosts.
    (["--set-json", 'worker.toolHosts=[{"name":"shop","modules":["shop"]}]'], "missing property 'image'"),
    (["--set-json", 'worker.toolHosts=[{"name":"shop","image":"shop:1"}]'], "missing property 'modules'"),
    (["--set-json", "worker.toolHosts=[{%s,\"module\":\"x\"}]" % HOST], "additional properties 'module' not allowed"),
    (["--set-json", 'worker.toolHosts=[{"name":"Shop","image":"shop:1","modules":["shop"]}]'], "at '/worker/toolHosts/0/name'"),
    (["--set-json", 'worker.toolHosts=[{"name":"%s","image":"shop:1","modules":["shop"]}]' % ("n" * 33)], "at '/worker/toolHosts/0/name'"),
    (["--set-json", 'worker.toolHosts=[{"name":"shop","image":"reg:5000/shop","modules":["shop"]}]'], "at '/worker/toolHosts/0/image'"),
    (["--set-json", 'worker.toolHosts=[{"name":"shop","image":"shop@sha256:12","modules":["shop"]}]'], "at '/worker/toolHosts/0/image'"),
    (["--set-json", 'worker.toolHosts=[{"name":"shop","image":"shop:1","modules":[]}]'], "at '/worker/toolHosts/0/modules': minItems"),
    (["--set-json", 'worker.toolHosts=[{"name":"shop","image":"shop:1","modules":["shop/tools.py"]}]'], "at '/worker/toolHosts/0/modules/0'"),
    (["--set-json", "worker.toolHosts=[{%s,\"path\":[\"--listen\"]}]" % HOST], "at '/worker/toolHosts/0/path/0'"),
    (["--set-json", "worker.toolHosts=[{%s,\"processes\":65}]" % HOST], "at '/worker/toolHosts/0/processes': maximum: got 65, want 64"),
    (["--set-json", "worker.toolHosts=[{%s,\"concurrency\":0}]" % HOST], "at '/worker/toolHosts/0/concurrency': minimum: got 0, want 1"),
    (["--set-json", "worker.toolHosts=[{%s},{%s}]" % (HOST, HOST)], 'worker pool "default": toolHosts has "shop" twice'),
    (["--set-json", SHOP], "/run/tickfleet/shop.sock, but no tool host listens there; tool hosts: none"),
    (
        ["--set-json", SHOP, "--set-json", 'worker.toolHosts=[{"name":"shops","image":"shop:1","modules":["shop"]}]'],
        "but no tool host listens there; tool hosts: shops",
    ),
    (
        ["--set-json", SHOP, "--set-json", "worker.toolHosts=[{%s}]" % HOST],
        'needs 3 processes, but tool host "shop" has 2; make them equal',
    ),
    (
        ["--set-json", SHOP, "--set-json", "worker.toolHosts=[{%s,\"processes\":3}]" % HOST, "--set-json", 'workerPools={"default":{},"fast":{"toolHosts":[]}}'],
        'worker pool "fast": python.shop.host',
    ),
]
