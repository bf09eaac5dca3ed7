"""The configuration files other than tickfleet.yaml: their fields, types, defaults and descriptions."""

from words import (
    AMOUNT,
    ANYTHING,
    APPROVAL,
    DURATION,
    EFFECT,
    POINTER,
    SCHEMA,
    SECRETS,
    SIZE,
    SOME_TEXT,
    TEXT,
    TEXTS,
    TIMEOUT_MS,
    U32,
    WORDS,
    YES_OR_NO,
    described,
    duration,
    either,
    fields,
    items,
    listed,
    mapping,
    number,
    word,
)

ALLOW_PRIVATE = described("Private hosts, `host:port` pairs or CIDR blocks that requests can reach. `${NAME:-default}` reads the environment.", TEXTS)
HTTP = fields(
    required=["method", "base_url", "path"],
    method=described("HTTP method.", word("GET", "POST", "PUT", "PATCH", "DELETE")),
    base_url=described("Scheme and host of the service. `${NAME:-default}` reads the environment.", SOME_TEXT),
    path=described("Path below `base_url`. `{{argument}}` inserts an argument, encoded; `${SECRET}` inserts a secret.", TEXT),
    query=described("Query parameters, as templates. A parameter whose argument is missing is omitted.", mapping(ANYTHING)),
    headers=described("Request headers, as templates.", mapping(ANYTHING)),
    body=described("Request body, as JSON. A text that is exactly `{{argument}}` becomes the argument's JSON value.", ANYTHING),
    defaults=described("Values for arguments that a call omits. `${NAME:-}` reads the environment.", mapping(ANYTHING)),
    secrets=described("Secrets by the name that templates use.", SECRETS),
    oauth2=described(
        "OAuth 2.0 sign-in. The access token is sent in the header `Authorization`.",
        fields(
            required=["grant", "token_url", "client_id"],
            grant=described("OAuth 2.0 grant.", word("client_credentials", "refresh_token")),
            token_url=described("Token endpoint. `${NAME:-default}` reads the environment.", SOME_TEXT),
            client_id=described("Client id, as a template over secrets.", SOME_TEXT),
            client_secret=described("Client secret, such as `${SECRET}`.", SOME_TEXT),
            refresh_token=described("Refresh token of the grant `refresh_token`.", SOME_TEXT),
            scope=described("Scopes, separated by spaces.", TEXT),
            params=described("Further form fields of the token request, such as `audience`.", mapping(ANYTHING)),
            client_auth=described("Place of the client credentials: the header `Authorization` or the form.", word("basic", "body"), default="basic"),
        ),
    ),
    outcomes=described(
        "Rules that map a response to an outcome when the status alone does not. The first match applies.",
        items(
            fields(
                required=["outcome"],
                status=described("Statuses that the rule matches.", items(number(200, 599))),
                at=described("JSON pointer into the response body.", POINTER),
                equals=described("Value, or list of values, that the body must have there.", ANYTHING),
                present=described("Whether the body must have a non-empty value there.", YES_OR_NO, default=True),
                outcome=described("Outcome of the call.", word("ok", "permanent", "transient", "not_executed")),
                message=described("JSON pointer to the error message.", POINTER),
                retry_after=described("JSON pointer to the seconds to wait before a retry.", POINTER),
            )
        ),
    ),
    not_executed=described("Statuses that guarantee that the request had no effect. 429 always does.", items(number(400, 599))),
    result=described("JSON pointer to the output within the response body. If missing, the whole body.", POINTER),
    idempotency_header=described("Request header for the idempotency key of the call.", SOME_TEXT),
    response_bytes_max=described("Largest response body, in bytes.", number(1, 16_777_216), default=1_048_576),
    allow_private=ALLOW_PRIVATE,
    redirects_max=described("Redirects to follow. Tools with `effect: once` follow none.", number(0, 10), default=0),
)
PATHS = items(
    fields(
        required=["path"],
        path=described("Absolute path on the worker's machine.", {"type": "string", "pattern": "^/"}),
        write=described("Whether the process can write there.", YES_OR_NO, default=False),
    )
)
TCP_PORTS = described("TCP ports that the process can connect to.", items(number(1, 65_535)))
LEVEL = word("basic", "strict", "docker")
SHELL = fields(
    required=["level", "command"],
    level=described("Sandbox level.", LEVEL),
    command=described("Program and arguments, one element each. `{{argument}}` inserts an argument, except into the program.", items(TEXT, minItems=1)),
    image=described("Container image. Required at level `docker`.", SOME_TEXT),
    stdin=described("Standard input, as a template.", TEXT),
    environment=described("Environment variables of the command.", mapping(TEXT)),
    paths=described("Paths that the command can use besides its workspace.", PATHS),
    tcp_ports=TCP_PORTS,
    transient_exits=described("Exit codes that mean a transient failure.", items(number(1, 255))),
    permanent_exits=described("Exit codes that mean a permanent failure.", items(number(1, 255))),
    limits=described(
        "Resource limits of one run.",
        fields(
            memory_bytes=described("Memory.", SIZE, default="512MiB"),
            file_bytes=described("Size of one file.", SIZE, default="64MiB"),
            workspace_bytes=described("Size of the workspace.", SIZE, default="256MiB"),
            output_bytes=described("Output that is kept, up to 1 MiB.", SIZE, default="256KiB"),
            cpu_ms=described("CPU time in milliseconds.", number(1, 3_600_000), default=20_000),
            wall_ms=described("Wall-clock time in milliseconds.", number(1, 3_600_000), default=25_000),
            processes=described("Processes and threads.", number(1, 10_000), default=64),
            open_files=described("Open files.", number(1, 100_000), default=256),
            workspace_files=described("Files in the workspace.", number(1, 10_000_000), default=10_000),
        ),
    ),
)
REQUIRED_CAPABILITIES = described("Capabilities that the agent needs, all of them.", WORDS)
REQUIRED_FEATURES = described("Features that the tenant's plan needs, all of them.", WORDS)
EFFECT_KEY = "Required arguments, as JSON pointers, that identify the effect of a `once` tool. Equal calls of a tenant share one outcome."
EFFECT_WINDOW = described("Time after the first call ends during which equal calls share its outcome.", duration("1s", "31d"), default="24h")
TOOL_TIMEOUT = "Time limit of one attempt in milliseconds. If missing, `worker.tool_timeout`."
RUNNERS = {
    "http": described("HTTP request that runs the tool.", HTTP),
    "shell": described("Sandboxed command that runs the tool.", SHELL),
    "local": described(
        "The tool runs in the process of its caller, and the fleet decides about each call. Excludes `cache`, `durable` and `timeout_ms`.",
        fields(lease_ms=described("Time that a process keeps a call without a heartbeat, in milliseconds.", number(1_000, 3_600_000), default=30_000)),
    ),
}
TOOL = fields(
    description=described("Description that the model reads. Required, unless a Python or built-in tool of this name has one.", SOME_TEXT),
    input_schema=described("JSON Schema of the arguments. Required, unless a Python or built-in tool of this name has one.", SCHEMA),
    output_schema=described("JSON Schema of the output.", SCHEMA),
    effect=described(
        "Effect of a second run: `read` has none, `idempotent` has the same effect, `once` repeats the effect and is never retried blindly. If missing, that of the Python or built-in tool of this name, or `once`.",
        EFFECT,
    ),
    id=described("Stable id. If missing, `tool_<name>`.", SOME_TEXT),
    display_name=described("Name for people. If missing, the tool's name.", SOME_TEXT),
    category=described("Category, for limits and lists.", SOME_TEXT, default="general"),
    version=described("Semantic version.", TEXT),
    timeout_ms=described(TOOL_TIMEOUT, TIMEOUT_MS),
    effect_key=described(EFFECT_KEY, items(POINTER, minItems=1)),
    effect_window=EFFECT_WINDOW,
    cache=described(
        "Caching of a `read` tool's output.",
        fields(
            required=["ttl"],
            ttl=described("Time that an output is reused for equal arguments.", duration("1s", "1d")),
            per=described("Who shares cached outputs: all agents of a tenant, or one agent.", word("tenant", "agent"), default="tenant"),
        ),
    ),
    reconcile=described(
        "Lookup that resolves the unknown outcome of a `once` call.",
        fields(
            required=["tool", "happened"],
            tool=described("A tool with `effect: read` that looks the effect up.", SOME_TEXT),
            arguments=described("Arguments of the lookup: `$call`, `$idempotency_key`, JSON pointers into the call's arguments, or values.", mapping(ANYTHING)),
            happened=described("JSON pointer to true or false in the output of the lookup.", POINTER),
            output=described("JSON pointer to the value that becomes the call's output. If missing, the whole output.", POINTER),
            tries=described("Lookups before the outcome stays unknown.", number(1, 20), default=5),
            grace=described("Time that a request can still be in flight.", duration("1s", "1h"), default="60s"),
        ),
    ),
    durable=described(
        "Durability that Redis confirms before a call of the tool runs. If missing, `worker.durable` for `once` tools, and `none` for others.",
        word("none", "local", "replica"),
    ),
    required_capabilities=REQUIRED_CAPABILITIES,
    required_features=REQUIRED_FEATURES,
    requires_approval=described("Whether a person must approve each call.", YES_OR_NO, default=False),
    approval=described("Whose approval each call needs. Implies `requires_approval`.", APPROVAL),
    **RUNNERS,
) | {
    # Without a runner, the section may only override fields of another tool of the same name.
    "if": {"anyOf": [{"required": [runner]} for runner in RUNNERS]},
    "then": {"required": ["description", "input_schema"]},
}


def modules(module, path, interpreter, default):
    """Returns the schema of the fields of one entry in a section of tool modules."""
    return fields(
        module=described(f"{module} Required unless `host` is set.", either(SOME_TEXT, items(SOME_TEXT, minItems=1))),
        host=described("Unix socket of a tool host in its own container. Excludes the fields that start an interpreter.", {"type": "string", "pattern": "^/"}),
        path=described(f"{path} `${{NAME:-default}}` reads the environment.", TEXTS),
        interpreter=described(interpreter, SOME_TEXT, default=default),
        cwd=described("Working directory. If missing, the worker's own.", SOME_TEXT),
        processes=described("Interpreters.", number(1, 64), default=2),
        concurrency=described("Calls that an interpreter runs at the same time.", number(1, 256), default=8),
        recycle_after_calls=described("Calls after which an interpreter is replaced.", number(1), default=10_000),
        memory_max=described("Resident memory at which an interpreter is replaced.", SIZE, default="512MiB"),
        start_timeout=described("Time limit to start an interpreter and import the modules.", DURATION, default="60s"),
        cancel_grace=described("Time that a canceled call gets before its interpreter is killed.", DURATION, default="5s"),
        env=described("Environment variables. `${SECRET}` inserts a secret.", mapping(ANYTHING)),
        secrets=described("Secrets that `env` can use, the same for all tenants.", SECRETS),
        sandbox=described(
            "Sandbox of the interpreters. If missing, they are not sandboxed.",
            fields(
                required=["level"],
                level=described("Sandbox level.", word("basic", "strict")),
                paths=described("Paths that the interpreters can use besides their own.", PATHS),
                tcp_ports=TCP_PORTS,
            ),
        ),
    )


PYTHON = modules(
    "Python module, or list of modules, whose import registers the tools.",
    "Folders to search for modules before all others.",
    "Python program that can import the package `tickfleet`.",
    "python3",
)
NODE = modules(
    "File below a folder of `path`, or list of files, whose import registers the tools.",
    "Folders of the modules. If missing, the working directory.",
    "Node.js program, version 20 or later. The package `tickfleet` is found from the folders of `path`.",
    "node",
)
LLM = fields(
    prompt=described("System prompt from the file `prompts/agent.<prompt>.txt`. Excludes `system`.", SOME_TEXT),
    system=described("System prompt as text. Excludes `prompt`.", SOME_TEXT),
    models=described("Models of `models.yaml`, in the order in which they are tried.", WORDS, default=["default"]),
    compact_with=described("Models that summarize old steps once results exceed `context_bytes_max`.", WORDS),
    max_iterations=described("Model requests for one task. The last one gets no tools.", number(1, 500), default=10),
    temperature=described("Sampling temperature. If missing, the provider's default.", {"type": "number", "minimum": 0, "maximum": 2}),
    tokens_max=described("Output tokens of one request.", number(1, 1_000_000), default=2_048),
    result_bytes_max=described("Bytes of one tool result that the model reads. Longer results are cut in the middle.", number(256, 65_536), default=16_384),
    context_bytes_max=described("Bytes of all tool results in one request. Older results shrink to one line.", number(1_024, 4_194_304), default=262_144),
    repeats_max=described("Times that the agent can repeat the same calls with the same results.", number(1, 100), default=3),
    timeout_ms=described("Time limit of one request with its fallbacks, in milliseconds.", TIMEOUT_MS, default=120_000),
    answer_schema=described(
        "JSON Schema of the answer, an object. The task's result has the valid answer in `output`. The loop fills in a field `tool_call_audits`.", SCHEMA
    ),
)
FACT_CHANGES = items(
    either(
        SOME_TEXT,
        fields(
            required=["fact"],
            fact=described("Name of the fact, with JSON pointers to arguments if it depends on them: `quoted_price(/item)`.", SOME_TEXT),
            on=described("Outcomes of the call that apply the change.", items(word("ok", "permanent", "transient", "internal"), minItems=1), default=["ok"]),
            for_=described("Time that the fact is kept.", duration("1s", "31d"), default="24h"),
        ),
    ),
    minItems=1,
)
FACT_CONDITIONS = items(
    either(
        SOME_TEXT,
        fields(
            required=["fact"],
            fact=described("Name of the fact, with JSON pointers to arguments if it depends on them.", SOME_TEXT),
            mode=described("`shadow` only counts the calls that the condition would deny.", word("enforce", "shadow"), default="enforce"),
            message=described("Error message for the model.", SOME_TEXT),
        ),
    ),
    minItems=1,
)
ROLES_OF_AGENT = "Roles of the agent. Permissions and limits can name them."
HANDLERS = {
    "typed": described("Name of a task handler that is compiled into the worker.", SOME_TEXT),
    "llm": described("Model loop with the tools of the agent.", LLM),
    "http": described(
        "HTTP request for each task. Templates can use `{{task_id}}`, `{{tenant}}`, `{{agent}}`, `{{description}}`, `{{input}}`, `{{priority}}`,"
        " `{{deadline}}` and `{{delegator}}`.",
        HTTP,
    ),
    "external": described(
        "A process outside the fleet that leases and finishes tasks.",
        fields(lease_ms=described("Time that a task stays leased without a renewal, in milliseconds.", number(1_000, 3_600_000), default=60_000)),
    ),
}
LIMIT_KEYS = ("tenant", "agent", "user", "session", "task", "tool", "category")
FILES = {
    "tools": described(
        "Tools that are declared rather than compiled into a worker.",
        fields(
            tools=described("Tools by the name that models call. `<name>@2` declares version 2 beside the others.", mapping(TOOL)),
            python=described("Python modules that define tools, by a name for logs.", mapping(PYTHON)),
            node=described("TypeScript or JavaScript modules that define tools, by a name for logs.", mapping(NODE)),
        ),
    ),
    "agents": described(
        "Agents, their roles and caps, and the handlers of tasks that are delegated to them.",
        fields(
            required=["agents"],
            agents=described(
                "Agents by name.",
                mapping(
                    fields(
                        roles=described(ROLES_OF_AGENT, WORDS),
                        capabilities=described("Capabilities of the agent. Tools can require some.", WORDS),
                        tool_versions=described("Version of a tool that the agent gets: `latest`, or a range such as `\"1\"`. If missing, the newest.", mapping(TEXT)),
                        calls_per_tick=described("Calls per tick. Overrides `caps.max_calls_per_tick`.", number(1, 1_000)),
                        max_actions_per_day=described("Calls per day. Overrides `caps.max_actions_per_day`.", number(0, U32)),
                        task_handler=described(
                            f"Runs the tasks that are delegated to the agent: exactly one of {listed(HANDLERS, 'and')}. Without it, no task can be delegated.",
                            fields(
                                **HANDLERS,
                                effect=described("Effect of sending one task twice, for `http`.", EFFECT, default="once"),
                                timeout_ms=described("Time limit of one attempt in milliseconds, for `http`. If missing, `worker.tool_timeout`.", TIMEOUT_MS),
                            ),
                        ),
                    )
                ),
            ),
        ),
    ),
    "permissions": described(
        "Permissions: which agents can call which tools, and under which conditions. A call that no entry allows is denied.",
        fields(
            required=["permissions"],
            permissions=described(
                "Permission rows by tool name. A denial overrides everything that allows.",
                mapping(
                    fields(
                        everyone=described("Allows every agent.", YES_OR_NO, default=False),
                        agents=described("Agents to allow.", WORDS),
                        roles=described("Roles to allow.", WORDS),
                        deny_agents=described("Agents to deny.", WORDS),
                        deny_roles=described("Roles to deny.", WORDS),
                        rules=described(
                            "Conditions on arguments and context. A call must meet all of them.",
                            items(
                                fields(
                                    required=["require"],
                                    name=described("Name of the rule, for messages and metrics.", {"type": "string", "pattern": "^[a-z0-9_]+$"}),
                                    when=described("Condition that selects the calls. If missing, all calls.", SOME_TEXT),
                                    require=described("Condition that a selected call must meet.", SOME_TEXT),
                                    message=described("Error message for the model. `{args.amount}` inserts a value.", SOME_TEXT),
                                    mode=described("`shadow` only counts the calls that the rule would deny.", word("enforce", "shadow"), default="enforce"),
                                    otherwise=described("Action for a call that does not meet the rule: deny it, or ask for approval.", word("deny", "ask"), default="deny"),
                                    approval=described("Whose approval the call needs, for `otherwise: ask`.", APPROVAL),
                                )
                            ),
                        ),
                        facts=described(
                            "Order of calls: facts that a call sets, and facts that it depends on.",
                            fields(
                                sets=described("Facts that a successful call sets.", FACT_CHANGES),
                                clears=described("Facts that a successful call clears.", FACT_CHANGES),
                                require=described("Facts without which a call is denied.", FACT_CONDITIONS),
                                forbid=described("Facts with which a call is denied.", FACT_CONDITIONS),
                                of=described("Scope of the facts.", word("session", "task", "agent"), default="session"),
                            ),
                        ),
                    )
                ),
            ),
            approvers=described(
                "People who can approve calls, by name. Without approvers, calls that need approval are denied.",
                mapping(fields(roles=described("Roles of the approver.", WORDS))),
            ),
        ),
    ),
    "tenants": described(
        "Tenants. A turn of an unknown tenant is rejected.",
        fields(
            required=["tenants"],
            tenants=described(
                "Tenants by name.",
                mapping(
                    fields(
                        plan=described("Name of the plan. Limits can match it.", SOME_TEXT),
                        features=described("Features of the plan. Tools can require some.", WORDS),
                        time_zone=described("IANA time zone in which the tenant's days begin. If missing, `caps.time_zone`.", SOME_TEXT),
                        max_actions_per_day=described("Calls of all agents of the tenant per day. If missing, unlimited.", number(0, U32)),
                        agents=described("Agents of the tenant. If missing, every agent of `agents.yaml`.", WORDS),
                        users=described(
                            "People behind the tenant, for tools that list them: a name, or the fields below.",
                            items(
                                either(
                                    SOME_TEXT,
                                    fields(
                                        required=["name"],
                                        name=described("Name of the person.", SOME_TEXT),
                                        roles=described("Roles of the person.", WORDS),
                                        email=described("Email address.", SOME_TEXT),
                                        status=described("Status, such as `invited`.", SOME_TEXT),
                                    ),
                                )
                            ),
                        ),
                        limits=described("Values for limits of `limits.yaml`, by the limit's name, that override the limit's own.", mapping(either({"type": "number"}, TEXT))),
                    )
                ),
            ),
        ),
    ),
    "limits": described(
        "Limits on calls, amounts, tokens and money, in addition to the caps of `tickfleet.yaml`.",
        fields(
            required=["limits"],
            limits=described(
                "Limits by name. Each has exactly one of `max`, `concurrent`, `sum`, `tokens` and `money`.",
                mapping(
                    fields(
                        match=described(
                            "Calls that the limit counts. A call must match every list that is present.",
                            fields(
                                tools=described("Tool names. `*` matches any characters.", items(SOME_TEXT, minItems=1)),
                                effects=described("Effects of tools.", items(EFFECT, minItems=1)),
                                categories=described("Categories of tools.", items(SOME_TEXT, minItems=1)),
                                agents=described("Agent names. `*` matches any characters.", items(SOME_TEXT, minItems=1)),
                                roles=described("Roles of agents.", items(SOME_TEXT, minItems=1)),
                                plans=described("Plans of tenants.", items(SOME_TEXT, minItems=1)),
                            ),
                        ),
                        per=described(
                            f"Keys that have a counter of their own: {listed([*LIMIT_KEYS, 'argument:<JSON pointer>'])}."
                            " If missing, one counter for the fleet.",
                            items({"type": "string", "pattern": f"^({'|'.join(LIMIT_KEYS)}|argument:/.*)$"}),
                        ),
                        max=described("Calls per window.", number(0, U32)),
                        concurrent=described(
                            "Calls in flight, retries included: a number, a percentage of worker slots, or `share` to divide slots by tenant weight. Excludes `every`.",
                            either(number(1, U32), {"type": "string", "pattern": "^(share|[0-9]+%)$"}),
                        ),
                        sum=described(
                            "Bound on the sum of a numeric argument.",
                            fields(
                                required=["argument", "max"],
                                argument=described("JSON pointer to the argument.", POINTER),
                                max=described("Sum per window, with up to six decimal places.", AMOUNT),
                            ),
                        ),
                        tokens=described("Model tokens per window, requests and responses together.", number(0, 2**53)),
                        money=described("Model cost per window, in the currency of `models.yaml`.", AMOUNT),
                        every=described(
                            "Window: `tick`, `day`, `task`, or a duration from 1s to 31d. Required, except with `concurrent`.",
                            {"type": "string", "pattern": "^(tick|day|task|[0-9]+ *(ms|s|m|h|d))$"},
                        ),
                        window=described("Where windows begin: `fixed`, at a time of each counter, or `rolling`, at any time. Only `max` and `sum` with a duration can be rolling.", word("fixed", "rolling"), default="fixed"),
                        on_reach=described("Action at the limit: wait for the next window or free slot, or reject with `limit_reached`.", word("wait", "reject"), default="wait"),
                        mode=described("`shadow` only counts the calls that the limit would stop.", word("enforce", "shadow"), default="enforce"),
                        keys_max=described("Counters in one shard. Further keys share one counter.", number(1, 1_000_000), default=100_000),
                    )
                ),
            ),
        ),
    ),
    "mcp": described(
        "MCP servers whose tools agents can call. `tickfleet mcp pin` records the tool definitions in `mcp.lock.yaml`; other definitions are rejected.",
        fields(
            servers=described(
                "MCP servers by name, 1 to 32 of `a-z 0-9 _ -`. Each has either `command` or `url`.",
                mapping(
                    fields(
                        command=described("Program of a server on standard input and output. `${NAME:-default}` reads the environment.", SOME_TEXT),
                        args=described("Arguments of the program.", TEXTS),
                        env=described("Environment variables of the program besides `PATH`. `${SECRET}` inserts a secret.", mapping(ANYTHING)),
                        cwd=described("Working directory of the program. If missing, the worker's own.", SOME_TEXT),
                        url=described("URL of a server over streamable HTTP. `${NAME:-default}` reads the environment.", SOME_TEXT),
                        headers=described("Headers of every request. `${SECRET}` inserts a secret.", mapping(ANYTHING)),
                        allow_private=ALLOW_PRIVATE,
                        secrets=described("Secrets by the name that templates use.", SECRETS),
                        prefix=described("Prefix of the imported tool names. If missing, `<name>__`.", TEXT),
                        tools=described("Tools to import, by the server's names. If missing, all pinned tools.", WORDS),
                        exclude=described("Tools not to import.", WORDS),
                        trust_annotations=described("Whether the server's hints `readOnlyHint` and `idempotentHint` set the effect.", YES_OR_NO, default=True),
                        effects=described("Effect by tool. Overrides the hints.", mapping(EFFECT)),
                        effect_keys=described("Effect key by tool: required arguments, as JSON pointers, that identify its effect.", mapping(items(POINTER, minItems=1))),
                        effect_window=EFFECT_WINDOW,
                        timeout_ms=described("Longest time without progress, in milliseconds. If missing, `worker.tool_timeout`.", TIMEOUT_MS),
                        timeout_max_ms=described("Time limit of one attempt that reports progress, in milliseconds.", TIMEOUT_MS, default=300_000),
                        category=described("Category, for limits and lists.", SOME_TEXT, default="mcp"),
                        required_capabilities=REQUIRED_CAPABILITIES,
                        required_features=REQUIRED_FEATURES,
                        requires_approval=described("Whether a person must approve each call.", YES_OR_NO, default=False),
                    )
                ),
            )
        ),
    ),
    "models": described(
        "Models for agents with a handler `llm`.",
        fields(
            required=["models"],
            models=described(
                "Models by name.",
                mapping(
                    fields(
                        from_environment=described(
                            "Reads provider, model, URL and key from the usual variables, such as `LLM_PROVIDER` and `OPENAI_API_KEY`."
                            " The only other field is `prices`.",
                            YES_OR_NO,
                        ),
                        api=described("API of the provider. `openai` is Chat Completions.", word("openai", "openai-responses", "anthropic", "gemini")),
                        model=described("The provider's name of the model.", SOME_TEXT),
                        base_url=described("Base URL. If missing, the provider's own. `${NAME:-default}` reads the environment.", SOME_TEXT),
                        key=described(
                            "Place of the API key. If missing, requests carry no key.",
                            fields(
                                env=described("Environment variable that holds the key.", SOME_TEXT),
                                file=described("File that holds the key.", SOME_TEXT),
                            ),
                        ),
                        function_calling=described("`false` describes tools in the prompt and parses calls from text.", YES_OR_NO, default=True),
                        timeout_ms=described("Time limit of one request in milliseconds.", TIMEOUT_MS, default=120_000),
                        allow_private=ALLOW_PRIVATE,
                        prices=described(
                            "Prices for limits of money and for `tickfleet usage`.",
                            fields(
                                input=described("Price of a million input tokens.", AMOUNT, default=0),
                                output=described("Price of a million output tokens.", AMOUNT, default=0),
                            ),
                        ),
                    )
                ),
            ),
        ),
    ),
}
