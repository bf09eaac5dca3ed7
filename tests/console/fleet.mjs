// Starts a fleet with a day's work of agents: tools that fail, full limits, approvals, tasks, and a stuck worker.
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

const tool = (name, at, { effect = "read", path = `/${name}`, fields = "", more = "" } = {}) => `  ${name}:
    description: Works with the service ${name}.
    effect: ${effect}
    input_schema: {type: object, properties: {${fields}}, additionalProperties: false}
    http: {method: ${effect === "read" ? "GET" : "POST"}, base_url: http://${at}, path: ${path}, allow_private: ["${at}"]}
${more}`;

const files = (at) => ({
  "tickfleet.yaml": "caps: {tick: 2s, max_actions_per_day: 100000}\nworker: {retry_delays: [200ms], lease: 20s, slots: 16}\n",
  "agents.yaml": `agents:
  kelly: {}
  fran: {}
  nora: {}
  max: {calls_per_tick: 2}
  tina: {}
  lead: {task_handler: {llm: {system: You plan., models: [scripted]}}}
  buyer: {task_handler: {llm: {system: You buy., models: [scripted]}}}
  payer: {task_handler: {llm: {system: You pay., models: [scripted]}}}
`,
  "tenants.yaml": "tenants: {demo: {}, acme: {}, globex: {}}\n",
  "models.yaml": `models:
  scripted: {api: openai, model: scripted, base_url: "http://${at}/v1", allow_private: ["${at}"], prices: {input: 40, output: 160}}
`,
  "limits.yaml": `limits:
  emails_per_agent: {per: [agent], max: 6, every: 1h, match: {tools: [send_email]}}
  payments_per_day: {per: [tenant], sum: {argument: /amount, max: 20000}, every: day, on_reach: reject, match: {tools: [pay]}}
  reports_at_once: {per: [tenant], concurrent: 2, match: {tools: [sales_report]}}
  orders_of_fran: {per: [agent], max: 1, every: 1h, match: {agents: [fran], tools: [crm_update]}}
`,
  "tools.yaml": `tools:
${tool("get_stock", at, { fields: "item: {type: string}" })}
${tool("find_customer", at, { fields: "email: {type: string}" })}
${tool("convert", at)}
${tool("scrape_page", at)}
${tool("sales_report", at)}
${tool("crm_update", at, { effect: "idempotent", fields: "order: {type: string}" })}
${tool("send_email", at, { effect: "once", fields: "to: {type: string}, text: {type: string}" })}
${tool("export_ledger", at, { more: "    timeout_ms: 1800000\n" })}
${tool("pay", at, { effect: "once", fields: "to: {type: string}, amount: {type: number}" })}`,
  "permissions.yaml": `permissions:
  echo: {everyone: true}
  sleep: {everyone: true}
  delegate_task: {everyone: true}
  get_stock: {everyone: true}
  find_customer: {everyone: true}
  convert: {agents: [nora, tina]}
  scrape_page: {everyone: true}
  sales_report: {everyone: true}
  crm_update: {everyone: true}
  send_email: {everyone: true}
  export_ledger: {everyone: true}
  pay:
    everyone: true
    rules:
      - {name: large, require: args.amount <= 500, message: 'the payment of {args.amount} is above 500', otherwise: ask, approval: {by: [finance], narrow: [/amount]}}
      - {name: small, require: args.amount <= 50, mode: shadow}
approvers: {ann: {roles: [finance]}}
`,
});

function services() {
  const state = { isUp: false, calls: 0 };
  const model = (body) => {
    const agent = /You (\w+)\./.exec(body.messages[0].content)?.[1];
    if (agent === "pay") return [400, { error: { message: "The account of the payer is closed." } }];
    const isFirst = !body.messages.some((one) => one.role === "tool");
    const target = agent === "plan" ? "buyer" : "payer";
    const task = agent === "plan" ? "Buy 20 chairs for the office in Turin." : "Pay invoice 2291 of Stark Chairs.";
    const call = { id: "call_0", type: "function", function: { name: "delegate_task", arguments: JSON.stringify({ target_agent: target, task_description: task, wait: true }) } };
    const message = isFirst ? { role: "assistant", content: `I ask ${target}.`, tool_calls: [call] } : { role: "assistant", content: "The order could not be paid." };
    return [200, { choices: [{ message, finish_reason: isFirst ? "tool_calls" : "stop" }], usage: { prompt_tokens: 900, completion_tokens: 120 } }];
  };
  const server = createServer(async (request, response) => {
    let text = "";
    for await (const part of request) text += part;
    const send = (status, body) => response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
    const name = new URL(request.url, "http://x").pathname.slice(1);
    state.calls += 1;
    const later = (ms, status, body) => setTimeout(() => send(status, body), ms);
    if (name === "v1/chat/completions") return send(...model(JSON.parse(text)));
    if (name === "get_stock") return state.isUp || state.calls % 4 === 0 ? send(200, { stock: 3 }) : send(503, { error: "the warehouse is closed" });
    if (name === "sales_report") return later(400, 200, { total: 18250.4, days: [{ day: "Mon", total: 9120 }, { day: "Tue", total: 9130.4 }] });
    if (name === "scrape_page") return later(120, state.calls % 9 === 0 ? 404 : 200, { text: "Stark Chairs: quiet chairs for offices" });
    if (name === "export_ledger") return state.freed ? send(200, {}) : (state.hanging ??= []).push(() => send(200, {}));
    if (name === "send_email" && state.calls % 13 === 0) return request.socket.destroy();
    return later(5, 200, { ok: true, id: state.calls });
  });
  return { state, server };
}

async function freePort() {
  const server = createServer();
  await new Promise((up) => server.listen(0, "127.0.0.1", up));
  const { port } = server.address();
  await new Promise((down) => server.close(down));
  return port;
}

const lines = async (child, on) => {
  for await (const line of createInterface({ input: child.stdout })) if (on(line)) return;
};

/** Starts the fleet, a second worker, and a gateway that accepts turns. */
export async function start(binary) {
  const program = resolve(binary);
  const folder = mkdtempSync(join(tmpdir(), "tickfleet-console-"));
  const { state, server } = services();
  await new Promise((up) => server.listen(0, "127.0.0.1", up));
  const conf = join(folder, "conf");
  mkdirSync(conf);
  for (const [name, text] of Object.entries(files(`127.0.0.1:${server.address().port}`))) writeFileSync(join(conf, name), text);
  const env = { ...process.env, TICKFLEET_HTTP_ADDRESS: "127.0.0.1:0" };
  delete env.REDIS_URL;
  const children = [];
  process.once("exit", () => children.forEach((child) => child.kill("SIGKILL")));
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => process.exit(1));
  const run = (args, more = {}) => {
    const child = spawn(program, args, { env: { ...env, ...more }, stdio: ["ignore", "pipe", "pipe"] });
    let said = "";
    child.stderr.on("data", (data) => (said = `${said}${data}`.slice(-2000)));
    child.once("exit", (code) => { if (code && !child.isEnded) console.log(`BAD ${args[0]} ended with ${code}: ${said}`); });
    children.push(child);
    return child;
  };
  const fleet = { folder, conf, env, program, service: state, children, run };
  const dev = run(["dev", "--redis", "--console", "0", "--no-open", "--config", conf, "--dir", join(folder, "redis")]);
  await lines(dev, (line) => {
    const link = /^Console: (\S+)#key=(\S+)$/.exec(line);
    if (link) [, fleet.url, fleet.key] = link;
    const redis = /export REDIS_URL='(.*)'/.exec(line);
    if (redis) fleet.redis = redis[1];
    return line.startsWith("Ctrl-C");
  });
  dev.stdout.resume();
  fleet.dev = dev;
  await accept(fleet);
  fleet.end = async () => {
    clearInterval(fleet.work);
    for (const child of children) {
      child.isEnded = true;
      child.kill("SIGCONT");
      child.kill("SIGKILL");
    }
    await Promise.all(children.map((child) => child.exitCode ?? child.signalCode ?? new Promise((ended) => child.once("exit", ended))));
    server.closeAllConnections();
    server.close();
    rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  };
  return fleet;
}

/** One key per tenant may submit turns. The other keys may do less. */
async function accept(fleet) {
  const { createHash } = await import("node:crypto");
  const sha = (key) => createHash("sha256").update(key).digest("hex");
  const secret = (name) => `tfk_${name.padEnd(43, "0")}`;
  fleet.keys = { agents: secret("agents"), viewer: secret("viewer"), tenant: secret("tenant") };
  const row = (id, tenant, verbs) => `- id: ${id}\n  sha256: ${sha(fleet.keys[id])}\n  tenant: "${tenant}"\n  agents: ["*"]\n  verbs: [${verbs}]\n`;
  const tenants = ["demo", "acme", "globex"];
  for (const tenant of tenants) fleet.keys[`agents-${tenant}`] = secret(`agents${tenant}`);
  const keys = join(fleet.folder, "keys.yaml");
  const rows = tenants.map((tenant) => row(`agents-${tenant}`, tenant, "submit, read, cancel")).join("");
  writeFileSync(keys, `keys:\n${rows}${row("viewer", "*", "view")}${row("tenant", "acme", "view, operate")}`.replace(/^keys:\n/, ""));
  fleet.gateway = `http://127.0.0.1:${await freePort()}`;
  const child = fleet.run(["gateway", "--keys", keys, "--address", new URL(fleet.gateway).host, "--config", fleet.conf], { REDIS_URL: fleet.redis });
  child.stdout.resume();
  while (!(await fetch(`${fleet.gateway}/v1/openapi.json`).catch(() => false)).ok) {
    // A starting gateway sends no event, so this polls.
    await new Promise((go) => setTimeout(go, 100));
  }
  const post = async (path, tenant, body) => {
    const headers = { authorization: `Bearer ${fleet.keys[`agents-${tenant}`]}`, "content-type": "application/json" };
    const answer = await fetch(`${fleet.gateway}${path}`, { method: "POST", headers, body: JSON.stringify(body) });
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return answer.json();
  };
  fleet.consoleOfGateway = `${fleet.gateway}/console/`;
  fleet.submit = (tenant, agent, turn_id, ...calls) => post("/v1/turns", tenant, { agent, turn_id, calls: calls.map(([name, args]) => ({ name, arguments: args ?? {} })) });
  fleet.delegate = (tenant, agent, task_id, task) => post("/v1/tasks", tenant, { target_agent: agent, task_id, task_description: task });
}

let round = 0;
/** Submits the work that keeps arriving. */
export async function steady(fleet) {
  round += 1;
  const id = (name) => `${name}-${round}`;
  const tenant = ["acme", "globex", "demo"][round % 3];
  const jobs = [
    fleet.submit(tenant, "kelly", id("stock"), ["get_stock", { item: "chair" }], ["find_customer", { email: "kim@example.org" }], ["scrape_page"]),
    fleet.submit(tenant, "nora", id("lead"), ["find_customer", { email: "lee@example.org" }], ["crm_update", { order: "A-1001" }], ["convert"]),
  ];
  if (round % 3 === 0) jobs.push(fleet.submit("globex", "nora", id("news"), ["send_email", { to: "all@example.org", text: "The chairs of spring" }]));
  if (round % 4 === 0) jobs.push(fleet.submit("acme", "max", id("report"), ["sales_report"], ["sales_report"], ["convert"], ["scrape_page"], ["scrape_page"]));
  if (round % 5 === 0) jobs.push(fleet.submit("acme", "tina", id("invoice"), ["pay", { to: "stark", amount: 40 + (round % 7) * 30 }]));
  await Promise.all(jobs);
}

/** Creates the situations that an operator looks for. */
export async function cases(fleet) {
  await fleet.submit("demo", "fran", "order-16", ["crm_update", { order: "A-16" }]);
  for (const number of [17, 18, 19]) await fleet.submit("demo", "fran", `order-${number}`, ["find_customer", { email: "kim@example.org" }], ["crm_update", { order: `A-${number}` }]);
  await fleet.submit("demo", "tina", "payment-890", ["find_customer", { email: "lee@example.org" }], ["pay", { to: "lee", amount: 890 }]);
  await fleet.submit("acme", "tina", "payment-1200", ["pay", { to: "stark", amount: 1200 }]);
  await fleet.submit("acme", "tina", "payment-160", ["pay", { to: "kim", amount: 160 }]);
  await fleet.submit("acme", "tina", "payment-60", ["pay", { to: "kim", amount: 60 }]);
  for (let number = 0; number < 12; number += 1) await fleet.submit("acme", "nora", `mail-${number}`, ["send_email", { to: `customer-${number}@example.org`, text: "Your offer" }]);
  await fleet.delegate("demo", "lead", "chairs", "Furnish the office in Turin.");
}

/** Starts a second worker, whose only slot runs a call that does not end. */
export async function stick(fleet) {
  fleet.run(["worker", "--config", fleet.conf], { REDIS_URL: fleet.redis, TICKFLEET_WORKER_SLOTS: "1" }).stdout.resume();
  const address = fleet.url.replace("/console/", "/v1/operate/workers");
  const workers = async () => (await (await fetch(address, { headers: { authorization: `Bearer ${fleet.key}` } })).json()).workers;
  for (let number = 0; !(await workers()).some((worker) => worker.slots === 1 && worker.busy === 1); number += 1) {
    const isThere = (await workers()).some((worker) => worker.slots === 1 && worker.drain_applied);
    if (isThere && number < 40) await fleet.submit("acme", "fran", `ledger-${number}`, ["export_ledger"]);
    // The heartbeat that reports a taken call sends no event, so this polls.
    await new Promise((go) => setTimeout(go, 500));
  }
}

if (process.argv[1] === import.meta.filename) {
  const fleet = await start(process.argv[2]);
  console.log(JSON.stringify({ url: fleet.url, key: fleet.key, gateway: fleet.gateway, keys: fleet.keys, redis: fleet.redis }));
  await cases(fleet);
  await stick(fleet);
  fleet.work = setInterval(() => steady(fleet).catch((error) => console.log(error.message)), 700);
}
