"""The files of the configuration beside tickfleet.yaml: which fields each may have."""

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
    either,
    fields,
    items,
    mapping,
    number,
    word,
)

HTTP = fields(
    required=["method", "base_url", "path"],
    secrets=SECRETS,
    method=word("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"),
    body=ANYTHING,
    headers=mapping(ANYTHING),
    oauth2=fields(
        required=["grant", "token_url", "client_id"],
        grant=word("client_credentials", "refresh_token"),
        token_url=SOME_TEXT,
        client_id=SOME_TEXT,
        client_secret=SOME_TEXT,
        refresh_token=SOME_TEXT,
        scope=TEXT,
        params=mapping(ANYTHING),
        client_auth=word("basic", "body"),
    ),
    base_url=SOME_TEXT,
    path=TEXT,
    query=mapping(ANYTHING),
    defaults=mapping(ANYTHING),
    not_executed=items(number(400, 599)),
    outcomes=items(
        fields(
            required=["outcome"],
            status=items(number(200, 599)),
            at=POINTER,
            equals=ANYTHING,
            present=YES_OR_NO,
            outcome=word("ok", "permanent", "transient", "not_executed"),
            message=POINTER,
            retry_after=POINTER,
        )
    ),
    result=POINTER,
    idempotency_header=SOME_TEXT,
    response_bytes_max=number(1),
    allow_private=TEXTS,
    redirects_max=number(0),
)
PATHS = items(fields(required=["path"], path={"type": "string", "pattern": "^/"}, write=YES_OR_NO))
LEVEL = word("basic", "strict", "docker")
SHELL = fields(
    required=["level", "command"],
    level=LEVEL,
    image=SOME_TEXT,
    command=items(TEXT, minItems=1),
    stdin=TEXT,
    environment=mapping(TEXT),
    paths=PATHS,
    tcp_ports=items(number(1, 65_535)),
    transient_exits=items(number(1, 255)),
    permanent_exits=items(number(1, 255)),
    limits=fields(
        memory_bytes=SIZE,
        file_bytes=SIZE,
        workspace_bytes=SIZE,
        output_bytes=SIZE,
        cpu_ms=number(1),
        wall_ms=number(1),
        processes=number(1, 10_000),
        open_files=number(1, 100_000),
        workspace_files=number(1, 10_000_000),
    ),
)
TOOL = fields(
    required=["description", "input_schema"],
    input_schema=SCHEMA,
    effect=EFFECT,
    id=SOME_TEXT,
    display_name=SOME_TEXT,
    description=SOME_TEXT,
    output_schema=SCHEMA,
    category=SOME_TEXT,
    version=TEXT,
    effect_key=items(POINTER, minItems=1),
    effect_window=DURATION,
    cache=fields(required=["ttl"], ttl=DURATION, per=word("tenant", "agent")),
    reconcile=fields(
        required=["tool", "happened"],
        tool=SOME_TEXT,
        arguments=mapping(ANYTHING),
        happened=POINTER,
        output=POINTER,
        tries=number(1),
        grace=DURATION,
    ),
    durable=word("none", "local", "replica"),
    timeout_ms=TIMEOUT_MS,
    required_capabilities=WORDS,
    required_features=WORDS,
    requires_approval=YES_OR_NO,
    approval=APPROVAL,
    http=HTTP,
    shell=SHELL,
)
PYTHON = fields(
    module=either(SOME_TEXT, items(SOME_TEXT, minItems=1)),
    host={"type": "string", "pattern": "^/"},
    path=TEXTS,
    interpreter=SOME_TEXT,
    cwd=SOME_TEXT,
    processes=number(1, 64),
    concurrency=number(1),
    recycle_after_calls=number(1),
    memory_max=SIZE,
    start_timeout=DURATION,
    cancel_grace=DURATION,
    env=mapping(ANYTHING),
    secrets=SECRETS,
    sandbox=fields(required=["level"], level=word("basic", "strict"), paths=PATHS, tcp_ports=items(number(1, 65_535))),
)
LLM = fields(
    prompt=SOME_TEXT,
    system=SOME_TEXT,
    models=WORDS,
    compact_with=WORDS,
    max_iterations=number(1, 500),
    temperature={"type": "number", "minimum": 0, "maximum": 2},
    tokens_max=number(1, 1_000_000),
    result_bytes_max=number(256, 65_536),
    context_bytes_max=number(1_024, 4_194_304),
    repeats_max=number(1, 100),
    timeout_ms=TIMEOUT_MS,
    answer_schema=SCHEMA,
)
FACT_CHANGES = items(
    either(
        SOME_TEXT,
        fields(required=["fact"], fact=SOME_TEXT, on=items(word("ok", "permanent", "transient", "internal"), minItems=1), for_=DURATION),
    ),
    minItems=1,
)
FACT_CONDITIONS = items(
    either(SOME_TEXT, fields(required=["fact"], fact=SOME_TEXT, mode=word("enforce", "shadow"), message=SOME_TEXT)), minItems=1
)
FILES = {
    "tools": fields(tools=mapping(TOOL), python=mapping(PYTHON)),
    "agents": fields(
        required=["agents"],
        agents=mapping(
            fields(
                roles=WORDS,
                capabilities=WORDS,
                tool_versions=mapping(TEXT),
                calls_per_tick=number(1),
                max_actions_per_day=number(0, U32),
                task_handler=fields(
                    typed=SOME_TEXT, llm=LLM, http=HTTP, effect=EFFECT, timeout_ms=TIMEOUT_MS, external=fields(lease_ms=number(1, 3_600_000))
                ),
            )
        ),
    ),
    "permissions": fields(
        required=["permissions"],
        permissions=mapping(
            fields(
                everyone=YES_OR_NO,
                agents=WORDS,
                roles=WORDS,
                deny_agents=WORDS,
                deny_roles=WORDS,
                rules=items(
                    fields(
                        required=["require"],
                        name={"type": "string", "pattern": "^[a-z0-9_]+$"},
                        when=SOME_TEXT,
                        require=SOME_TEXT,
                        message=SOME_TEXT,
                        mode=word("enforce", "shadow"),
                        otherwise=word("deny", "ask"),
                        approval=APPROVAL,
                    )
                ),
                facts=fields(
                    sets=FACT_CHANGES,
                    clears=FACT_CHANGES,
                    require=FACT_CONDITIONS,
                    forbid=FACT_CONDITIONS,
                    of=word("session", "task", "agent"),
                ),
            )
        ),
        approvers=mapping(fields(roles=WORDS)),
    ),
    "tenants": fields(
        required=["tenants"],
        tenants=mapping(
            fields(
                plan=SOME_TEXT,
                features=WORDS,
                time_zone=SOME_TEXT,
                max_actions_per_day=number(0, U32),
                agents=WORDS,
                users=items(either(SOME_TEXT, fields(required=["name"], name=SOME_TEXT, roles=WORDS, email=SOME_TEXT, status=SOME_TEXT))),
                limits=mapping(either({"type": "number"}, TEXT)),
            )
        ),
    ),
    "limits": fields(
        required=["limits"],
        limits=mapping(
            fields(
                match=fields(
                    tools=items(SOME_TEXT, minItems=1),
                    effects=items(EFFECT, minItems=1),
                    categories=items(SOME_TEXT, minItems=1),
                    agents=items(SOME_TEXT, minItems=1),
                    roles=items(SOME_TEXT, minItems=1),
                    plans=items(SOME_TEXT, minItems=1),
                ),
                per=items({"type": "string", "pattern": "^(tenant|agent|user|session|task|tool|category|argument:/.*)$"}),
                max=number(0, U32),
                concurrent=either(number(1, U32), {"type": "string", "pattern": "^(share|[0-9]+%)$"}),
                sum=fields(required=["argument", "max"], argument=POINTER, max=AMOUNT),
                tokens=number(0),
                money=AMOUNT,
                every={"type": "string", "pattern": "^(tick|day|task|[0-9]+ *(ms|s|m|h|d))$"},
                on_reach=word("wait", "reject"),
                mode=word("enforce", "shadow"),
                keys_max=number(1),
            )
        ),
    ),
    "mcp": fields(
        servers=mapping(
            fields(
                secrets=SECRETS,
                command=SOME_TEXT,
                args=TEXTS,
                env=mapping(ANYTHING),
                cwd=SOME_TEXT,
                url=SOME_TEXT,
                headers=mapping(ANYTHING),
                allow_private=TEXTS,
                effects=mapping(EFFECT),
                effect_keys=mapping(items(POINTER, minItems=1)),
                effect_window=DURATION,
                timeout_ms=TIMEOUT_MS,
                timeout_max_ms=TIMEOUT_MS,
                tools=WORDS,
                exclude=WORDS,
                prefix=TEXT,
                trust_annotations=YES_OR_NO,
                category=SOME_TEXT,
                required_capabilities=WORDS,
                required_features=WORDS,
                requires_approval=YES_OR_NO,
            )
        )
    ),
    "models": fields(
        required=["models"],
        models=mapping(
            fields(
                from_environment=YES_OR_NO,
                api=word("openai", "openai-responses", "anthropic", "gemini"),
                model=SOME_TEXT,
                base_url=SOME_TEXT,
                key=fields(env=SOME_TEXT, file=SOME_TEXT),
                function_calling=YES_OR_NO,
                timeout_ms=TIMEOUT_MS,
                allow_private=TEXTS,
                prices=fields(input=AMOUNT, output=AMOUNT),
            )
        ),
    ),
}
