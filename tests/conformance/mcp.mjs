// Runs the official MCP conformance suite against the MCP server of a gateway:
//  node tests/conformance/mcp.mjs TICKFLEET PACKAGES [OPTION…]
// PACKAGES is the folder where npm installed @modelcontextprotocol/conformance (Node.js 22 or later). The options are
// those of the suite's command `server`. The suite sends no API keys, so a proxy adds one.
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const [program, packages, ...options] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "tickfleet-mcp-"));
const listen = (server) => new Promise((up) => server.listen(0, "127.0.0.1", () => up(server.address().port)));

// `seconds` is a delay. known-failures.yaml lists the kinds of tools that a fleet cannot offer.
const TOOLS = {
  test_simple_text: { text: "This is a simple text response for testing." },
  test_error_handling: { text: "This tool intentionally returns an error for testing", status: 400 },
  test_logging_tool: { text: "nothing is logged" },
  test_streaming_elicitation: { text: "nothing is asked" },
  greet: { text: "Hello, {name}!", takes: { name: { type: "string" } } },
  slow_compute: { text: "computed", takes: { seconds: { type: "integer" }, label: { type: "string" } } },
  failing_job: { text: "the job failed", status: 400, seconds: 3 },
  json_schema_2020_12_tool: {
    text: "fine",
    schema: {
      $schema: "https://json-schema.org/draft/2020-12/schema",
      type: "object",
      $defs: { address: { $anchor: "addressDef", type: "object", properties: { street: { type: "string" }, city: { type: "string" } } } },
      properties: { name: { type: "string" }, address: { $ref: "#/$defs/address" }, contactMethod: { type: "string", enum: ["phone", "email"] }, phone: { type: "string" }, email: { type: "string" } },
      allOf: [{ anyOf: [{ required: ["phone"] }, { required: ["email"] }] }],
      if: { properties: { contactMethod: { const: "phone" } }, required: ["contactMethod"] },
      then: { required: ["phone"] },
      else: { required: ["email"] },
      additionalProperties: false,
    },
  },
};

const service = createServer((req, res) => {
  const at = new URL(req.url, "http://service");
  const tool = TOOLS[at.pathname.slice(1)];
  const text = tool.text.replace("{name}", at.searchParams.get("name"));
  const seconds = tool.seconds ?? Number(at.searchParams.get("seconds") ?? 0);
  const say = () => res.writeHead(tool.status ?? 200, { "content-type": "application/json" }).end(JSON.stringify(text));
  // With one second more, the call lasts long enough to be reported as a task.
  const timer = setTimeout(say, seconds && (seconds + 1) * 1000);
  res.on("close", () => clearTimeout(timer));
});

function configuration(port) {
  const tools = {};
  for (const [name, { takes, schema }] of Object.entries(TOOLS)) {
    const query = takes && Object.fromEntries(Object.keys(takes).map((parameter) => [parameter, `{{${parameter}}}`]));
    tools[name] = {
      description: `${name} of the suite.`,
      effect: "read",
      input_schema: schema ?? { type: "object", properties: takes ?? {} },
      timeout_ms: 120000,
      http: { method: "GET", base_url: `http://127.0.0.1:${port}`, path: `/${name}`, query, allow_private: [`127.0.0.1:${port}`] },
    };
  }
  const conf = join(folder, "conf");
  mkdirSync(conf);
  const write = (name, value) => writeFileSync(join(conf, name), JSON.stringify(value));
  write("tools.yaml", { tools });
  write("agents.yaml", { agents: { kelly: { calls_per_tick: 100 } } });
  write("permissions.yaml", { permissions: Object.fromEntries(Object.keys(TOOLS).map((name) => [name, { everyone: true }])) });
  return conf;
}

async function start(args, more, found) {
  const env = { ...process.env, TICKFLEET_HTTP_ADDRESS: "127.0.0.1:0", TICKFLEET_LOG_FORMAT: "json", ...more };
  if (!more.REDIS_URL) delete env.REDIS_URL;
  const child = spawn(program, args, { env, stdio: ["ignore", "pipe", "pipe"] });
  const lines = createInterface({ input: child[more.REDIS_URL ? "stderr" : "stdout"] });
  const what = await new Promise((is, not) => {
    lines.on("line", (line) => found(line) && is(found(line)));
    lines.on("close", () => not(new Error(`tickfleet ${args[0]} ended`)));
  });
  child.stdout.resume();
  child.stderr.resume();
  return { child, what };
}

function key(file) {
  const made = spawnSync(program, ["gateway", "key", "--id", "suite", "--tenant", "demo"], { encoding: "utf8" });
  writeFileSync(file, made.stdout);
  return /tfk_\S+/.exec(made.stderr)[0];
}

function proxy(gateway, key) {
  return createServer((req, res) => {
    const headers = { ...req.headers, authorization: `Bearer ${key}` };
    const [host, port] = gateway.split(":");
    const on = request({ host, port, path: req.url, method: req.method, headers }, (got) => {
      res.writeHead(got.statusCode, got.headers);
      got.pipe(res);
    });
    on.on("error", () => res.destroy());
    res.on("close", () => on.destroy());
    req.pipe(on);
  });
}

const conf = configuration(await listen(service));
const keys = join(folder, "keys.yaml");
const secret = key(keys);
const fleet = await start(["dev", "--config", conf, "--dir", join(folder, "redis")], {}, (line) => /export REDIS_URL='(.*)'/.exec(line)?.[1]);
const gateway = await start(["gateway", "--config", conf, "--address", "127.0.0.1:0", "--keys", keys], { REDIS_URL: fleet.what },
  (line) => /"gateway ready"/.test(line) && JSON.parse(line).address);
const door = proxy(gateway.what, secret);
const url = `http://127.0.0.1:${await listen(door)}/v1/agents/kelly/mcp`;
try {
  const main = join(packages, "node_modules/@modelcontextprotocol/conformance/dist/index.js");
  const judge = spawn(process.execPath, [main, "server", "--url", url, ...options], { cwd: folder, stdio: "inherit" });
  process.exitCode = await new Promise((ended) => judge.once("exit", (code) => ended(code ?? 1)));
} finally {
  for (const { child } of [gateway, fleet]) {
    child.kill();
    await new Promise((ended) => child.once("exit", ended));
  }
  door.closeAllConnections();
  door.close();
  service.closeAllConnections();
  service.close();
  rmSync(folder, { recursive: true, force: true });
}
