"""One example for each file of the configuration. tests/packaging/schemas.py validates them."""

EXAMPLES = {
    "agents": """
agents:
  kelly:
    roles: [publisher]
    max_actions_per_day: 200
    task_handler:
      llm:
        prompt: kelly
        max_iterations: 8
  archy:
    roles: [research]
    task_handler:
      external: {lease_ms: 60000}
""",
    "tenants": """
tenants:
  acme:
    plan: business
    features: [messaging]
    time_zone: Europe/Berlin
    max_actions_per_day: 5000
    limits: {mails_per_user: 50}
""",
    "permissions": """
permissions:
  search_x: {everyone: true}
  refund:
    roles: [support]
    rules:
      - name: small_refund
        require: args.amount <= 500
        message: amount {args.amount} exceeds 500
        otherwise: ask
        approval: {by: [finance]}
approvers:
  ann: {roles: [finance]}
""",
    "limits": """
limits:
  mails_per_user:
    match: {tools: [send_*]}
    per: [user]
    max: 5
    every: 1h
  refunds_per_customer:
    match: {tools: [refund]}
    per: ["argument:/customer/id"]
    sum: {argument: /amount, max: 500}
    every: day
    on_reach: reject
  reports_in_flight:
    match: {tools: [make_report]}
    per: [tenant]
    concurrent: 2
""",
    "tools": """
tools:
  find_order:
    description: Looks an order up by its number and returns its status.
    effect: read
    cache: {ttl: 60s}
    input_schema:
      type: object
      properties: {number: {type: string}}
      required: [number]
    http:
      method: GET
      base_url: https://shop.example.com
      path: /v1/orders/{{number}}
      headers: {Authorization: "Bearer ${SHOP_KEY}"}
      secrets: {SHOP_KEY: {env: SHOP_KEY}}
  count_lines:
    description: Counts the lines of a file in the workspace.
    effect: read
    input_schema:
      type: object
      properties: {file: {type: string}}
      required: [file]
    shell:
      level: strict
      command: [wc, -l, "{{file}}"]
      limits: {memory_bytes: 64MiB, wall_ms: 5000}
python:
  shop:
    module: shop.tools
    processes: 4
node:
  carrier:
    module: carrier.ts
    path: [/srv/tools]
""",
    "models": """
models:
  default:
    api: openai
    model: gpt-4.1-mini
    key: {env: OPENAI_API_KEY}
    prices: {input: 0.40, output: 1.60}
""",
    "mcp": """
servers:
  files:
    command: npx
    args: [-y, "@modelcontextprotocol/server-filesystem@2026.1.14", /data]
    category: files
  tickets:
    url: https://tickets.example.com/mcp
    headers: {Authorization: "Bearer ${TICKETS_KEY}"}
    secrets: {TICKETS_KEY: {env: TICKETS_KEY}}
    effects: {create_ticket: once}
""",
}
