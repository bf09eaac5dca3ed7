"""Values that the chart must refuse, each with words that its message must have. `--no-redis`: without the Redis that
the others are given."""

REFUSED = [
    # Nothing is taken for granted, and nothing is ambiguous.
    (["--no-redis"], "Where is Redis? Set one of redis.existingSecret.name"),
    (["--set", "redis.host=redis"], "Redis is given more than once (existingSecret, host)"),
    (["--set", "trialRedis.enabled=true"], "Redis is given more than once (existingSecret, trial)"),
    (["--no-redis", "--set", "redis.host=redis,redis.username=fleet"], "redis.username needs redis.passwordSecret.name"),
    (["--no-redis", "--set", "redis.url=http://redis"], "at '/redis/url'"),
    # Misspelt values and wrong types.
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
    # Times that would kill what runs.
    (["--set", "worker.drainSeconds=30"], "drainSeconds (30) must be more than the longest time-out of a tool (40 s)"),
    (["--set", "worker.terminationGracePeriodSeconds=54"], "must be at least drainSeconds + 10 (55)"),
    (["--set", "config.settings.worker.tool_timeout=2m"], "the longest time-out of a tool (120 s)"),
    (
        ["--set-json", r'config.files={"tools.yaml":"tools: {slow: {timeout_ms: 50500}}"}'],
        "the longest time-out of a tool (50.5 s)",
    ),
    (["--set-json", 'workerPools={"fast":{"drainSeconds":10}}'], 'worker pool "fast": drainSeconds (10)'),
    (["--set", "config.settings.worker.tool_timeout=5"], 'found "5"; expected a duration such as'),
    (["--set-json", r'config.files={"tools.yaml":"tools: ["}'], "config.files.tools.yaml is no YAML"),
    # Work that nobody would do.
    (["--set-json", 'worker.priorities=["urgent","high","normal"]'], 'no pool takes work of priority "low"'),
    (["--set-json", 'workerPools={"default":null}'], "there is no pool"),
    (["--set-json", 'workerPools={"a-name-that-is-too-long":{}}'], "is no name for a pool"),
    # Scaling and disruptions.
    (["--set", "worker.autoscaling.kind=hpa,worker.autoscaling.minReplicas=0"], "keeps at least 1"),
    (["--set", "worker.autoscaling.kind=keda,worker.autoscaling.maxReplicas=1"], "maxReplicas (1) is below minReplicas"),
    (["--set", "worker.podDisruptionBudget.minAvailable=1"], "needs one of maxUnavailable and minAvailable"),
    # Configuration that would have no effect.
    (["--set", "config.settings.worker.drain=5s"], "config.settings.worker.drain has no effect here"),
    (["--set", "config.settings.redis.url=redis://redis"], "config.settings.redis.url has no effect here"),
    (["--set", "config.settings.http.address=0.0.0.0:1"], "config.settings.http.address has no effect here"),
    (["--set", r"config.files.agent\.yaml=x"], 'nothing reads "agent.yaml"; expected one of agents.yaml'),
    (["--set", r"config.files.tickfleet\.yaml=x"], "tickfleet.yaml is made of config.settings"),
]
