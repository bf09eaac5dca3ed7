// The host, as a worker talks to it: frames over a socket.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const MAIN = fileURLToPath(new URL("../dist/host/main.js", import.meta.url));
const DATA = fileURLToPath(new URL("data", import.meta.url));
const TOOLS = fileURLToPath(new URL("../dist/tools/index.js", import.meta.url));
const FACTS = { tenant: "acme", agent: "kelly", call_id: "t1/0", idempotency_key: "key-1", attempt: 2, timeout_ms: 5_000, deadline_ms: null };

class Worker {
  #received = Buffer.alloc(0);
  #waiting = [];
  messages = [];

  constructor(socket, child) {
    Object.assign(this, { socket, child });
    this.closed = new Promise((resolve) => socket.once("close", resolve));
    socket.on("data", (bytes) => this.#receive(bytes));
    socket.on("error", () => {});
  }

  #receive(bytes) {
    this.#received = Buffer.concat([this.#received, bytes]);
    while (this.#received.length >= 4 && this.#received.length >= 4 + this.#received.readUInt32BE()) {
      const end = 4 + this.#received.readUInt32BE();
      this.messages.push(JSON.parse(this.#received.subarray(4, end).toString()));
      this.#received = this.#received.subarray(end);
    }
    this.#waiting.splice(0).forEach((wake) => wake());
  }

  send(message) {
    const body = Buffer.from(typeof message === "string" ? message : JSON.stringify(message));
    const length = Buffer.alloc(4);
    length.writeUInt32BE(body.length);
    this.socket.write(Buffer.concat([length, body]));
  }

  call(id, tool, args = {}, context = FACTS) {
    const text = typeof args === "string" ? args : JSON.stringify(args);
    this.send({ type: "call", id, tool, arguments: text, context });
  }

  async next(type, id) {
    for (;;) {
      const found = this.messages.findIndex((message) => message.type === type && (id === undefined || message.id === id));
      if (found >= 0) return this.messages.splice(found, 1)[0];
      await new Promise((wake) => this.#waiting.push(wake));
    }
  }

  async result(id, tool, args, context) {
    this.call(id, tool, args, context);
    return this.next("result", id);
  }
}

function started(t, modules = ["trial_tools.mjs"], folder = DATA) {
  const args = [MAIN, "--fd", "3", "--path", folder, ...modules];
  const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "pipe", "pipe"], detached: true });
  let text = "";
  child.stderr.on("data", (bytes) => (text += bytes));
  t.after(() => child.kill("SIGKILL"));
  const worker = new Worker(child.stdio[3], child);
  worker.exited = new Promise((resolve) => child.once("exit", (code, signal) => resolve(code ?? signal)));
  worker.stderr = () => text;
  return worker;
}

function written(text) {
  const folder = mkdtempSync(join(tmpdir(), "tools-"));
  writeFileSync(join(folder, "shop.mjs"), text.replace("TOOLS", TOOLS));
  return folder;
}

test("it describes its tools, runs calls, and ends", async (t) => {
  const worker = started(t);
  assert.equal((await worker.next("ready")).protocol, 1);
  worker.send({ type: "describe" });
  const { tools } = await worker.next("tools");
  const add = tools.find((tool) => tool.name === "add");
  assert.deepEqual(add.input_schema.required, ["a"]);
  assert.equal(add.input_schema.$schema, undefined);
  assert.deepEqual([add.effect, add.timeout_ms, add.output_schema], ["read", null, null]);
  assert.deepEqual((await worker.result(1, "add", { a: 1 })).output, "3");
  const chart = await worker.result(2, "chart");
  const blocks = [{ type: "text", text: "a chart" }, { type: "image", data: "R0lGODlh", mimeType: "image/gif" }];
  assert.deepEqual([JSON.parse(chart.output), chart.content_blocks], [blocks, true]);
  worker.send({ type: "bye" });
  assert.equal(await worker.exited, 0);
});

test("a call gets its context, logs through the worker, and its output never breaks a frame", async (t) => {
  const worker = started(t);
  const context = `{"tenant":"acme","agent":"kelly","call_id":"t1/0","idempotency_key":"key-1","attempt":2,"user_context":{"id":12345678901234567890},"session_data":null,"correlation_id":null,"traceparent":null,"task":"t0","deadline_ms":null,"timeout_ms":5000}`;
  worker.send(`{"type":"call","id":1,"tool":"who","arguments":"{}","context":${context}}`);
  const { output } = await worker.next("result", 1);
  assert.match(output, /"userContext":\{"id":12345678901234567890\}/);
  const seen = JSON.parse(output);
  assert.deepEqual([seen.tenant, seen.agent, seen.callId, seen.idempotencyKey, seen.attempt, seen.task], ["acme", "kelly", "t1/0", "key-1", 2, "t0"]);
  assert(seen.left > 4_000 && seen.left <= 5_000, `${seen.left}`);
  const log = await worker.next("log");
  assert.deepEqual([log.call, log.level], ["t1/0", "info"]);
  assert.match(log.message, /^seen\nError: a cause\n {4}at .*trial_tools\.mjs/);
});

test("calls run at the same time, and a canceled one ends", async (t) => {
  const worker = started(t);
  worker.call(1, "wait");
  assert.equal((await worker.result(2, "add", { a: 5 })).output, "7");
  worker.send({ type: "cancel", id: 1 });
  assert.equal((await worker.next("result", 1)).error.kind, "cancelled");
  assert.equal((await worker.result(3, "add", { a: 5 })).output, "7");
});

test("every way to fail is reported, and the host continues", async (t) => {
  const worker = started(t);
  const failed = async (what) => (await worker.result(1, "fail", { what })).error;
  assert.deepEqual(await failed("details"), { kind: "permanent", message: "no such order", details: { order: "A-1" }, retry_after: null, not_executed: false });
  const { retry_after, not_executed, kind } = await failed("transient");
  assert.deepEqual([kind, retry_after, not_executed], ["transient", 1.5, true]);
  assert.equal((await failed("arguments")).kind, "invalid_arguments");
  const bug = await failed("bug");
  assert.equal(bug.kind, "internal");
  assert.match(bug.message, /^Error: a bug\n {4}at .*trial_tools\.mjs:\d+:\d+\)?\nCaused by: Error: its cause\n {4}at .*trial_tools\.mjs/);
  assert(!bug.message.includes("node:") && !bug.message.includes("dist/"), bug.message);
  assert.match((await failed("exit")).message, /process\.exit\(3\)/);
  assert.match((await failed("text")).message, /a value that is no error was thrown: "a text"/);
  assert.deepEqual([(await failed("permanent")).kind, (await worker.next("log")).level], ["permanent", "error"]);
  const invalid = (await worker.result(2, "add", { a: "one", b: 1.5 })).error;
  assert.equal(invalid.kind, "invalid_arguments");
  assert.match(invalid.message, /^a: Invalid input: expected number, received string; b: Invalid input/);
  assert.match((await worker.result(3, "nowhere", {})).error.message, /no tool "nowhere"/);
  assert.equal((await worker.result(4, "fail", { what: "later" })).output, '"fine"');
  assert.match(worker.stderr(), /unhandled rejection: Error: nobody waits/);
});

test("a result that cannot be sent is reported as work that is done", async (t) => {
  const worker = started(t);
  for (const what of ["large", "number"]) {
    const { output } = await worker.result(1, "result", { what });
    assert.equal(JSON.parse(output).executed, true, what);
    assert.match((await worker.next("log")).message, /the result of result cannot be/);
  }
  assert.match((await worker.result(2, "read_large")).error.message, /Ask for less at a time/);
});

test("results keep their digits, and are shown as their schema shows them", async (t) => {
  const worker = started(t);
  assert.equal((await worker.result(1, "result", { what: "nothing" })).output, "null");
  assert.equal((await worker.result(1, "result", { what: "big" })).output, '{"big":12345678901234567890,"when":"1970-01-01T00:00:00.000Z"}');
  assert.equal((await worker.result(1, "result", { what: "half" })).output, '{"half":"\ufffd \\\\ud800"}');
  assert.equal((await worker.result(2, "stock")).output, '{"sku":"A","pieces":1}');
  assert.equal((await worker.result(3, "raw", '{"n":12345678901234567890}')).output, '{"n":12345678901234567890,"type":"bigint"}');
});

test("a tool calls other tools, and ends when the worker cancels it there", async (t) => {
  const worker = started(t);
  worker.call(7, "compose");
  const first = await worker.next("inner", 7);
  assert.deepEqual([first.number, first.tool, first.arguments], [1, "quote", '{"order":"A-1"}']);
  worker.send({ type: "inner", id: 7, number: 1, outcome: "ok", output: '{"amount":42.5}', error: null });
  assert.equal((await worker.next("inner", 7)).arguments, '{"amount":42.5}');
  worker.send({ type: "inner", id: 7, number: 2, outcome: "denied", output: null, error: "not allowed" });
  assert.equal((await worker.next("result", 7)).output, '"not allowed"');
  worker.call(8, "compose");
  await worker.next("inner", 8);
  worker.send({ type: "cancel", id: 8 });
  assert.equal((await worker.next("result", 8)).error.kind, "cancelled");
});

test("progress is reported, and of many reports the latest", async (t) => {
  const worker = started(t);
  assert.equal((await worker.result(5, "steps")).output, '"done"');
  const reports = worker.messages.filter((message) => message.type === "progress");
  assert.deepEqual(reports.map(({ fraction, message }) => [fraction, message]), [[null, "begins"], [1, "step 100"]]);
});

test("the host ends when its worker has gone, also while a tool waits", async (t) => {
  const worker = started(t);
  worker.call(1, "wait");
  await worker.result(2, "add", { a: 1 });
  worker.socket.destroy();
  assert.equal(await worker.exited, 0);
});

for (const [what, text, expected] of [
  ["throws", 'import "TOOLS";\nthrow new Error("no stock");\n', /^Error: no stock\n {4}at file:.*shop\.mjs:2:7$/],
  ["has an error of syntax", "const a = 1;\nexport const b = ;\n", /^SyntaxError: Unexpected token ';'\nfile:.*shop\.mjs:2\nexport const b = ;\n +\^/],
  ["imports what is not there", 'import { tol } from "TOOLS";\n', /does not provide an export named 'tol'\nfile:.*shop\.mjs:1\n/],
  ["is TypeScript for a Node.js that cannot strip types", null, /cannot import TypeScript: use Node.js 22.18 or later/],
]) {
  test(`a module that ${what} is reported with its place`, async (t) => {
    const folder = written(text ?? "");
    if (text === null) {
      if (process.features.typescript) return t.skip("this Node.js strips types");
      writeFileSync(join(folder, "shop.ts"), "export {};\n");
    }
    const worker = started(t, [text === null ? "shop.ts" : "shop.mjs"], folder);
    assert.match((await worker.next("failed")).message, expected);
    assert.equal(await worker.exited, 1);
  });
}

test("a module that is not there is reported", async (t) => {
  const worker = started(t, ["nowhere.mjs"]);
  assert.match((await worker.next("failed")).message, /there is no file nowhere\.mjs in \//);
});

test("TypeScript runs where Node.js strips types", { skip: !process.features.typescript }, async (t) => {
  const folder = written("");
  const text = `import { tool } from "${TOOLS}";\ntool({ name: "typed", description: "Typed.", input: { type: "object" } }, (args: { a: number }): number => args.a);\n`;
  writeFileSync(join(folder, "shop.ts"), text);
  const worker = started(t, ["shop.ts"], folder);
  assert.equal((await worker.result(1, "typed", { a: 4 })).output, "4");
});

test("a frame that is too long ends the host", async (t) => {
  const worker = started(t);
  await worker.next("ready");
  worker.socket.write(Buffer.from([0xff, 0, 0, 0]));
  assert.equal(await worker.exited, 1);
});

function listening(t, max) {
  const socket = join(mkdtempSync(join(tmpdir(), "host-")), "shop.sock");
  const args = [MAIN, "--listen", socket, "--processes-max", `${max}`, "--path", DATA, "trial_tools.mjs"];
  const child = spawn(process.execPath, args, { stdio: ["ignore", "ignore", "pipe"] });
  let text = "";
  child.stderr.on("data", (bytes) => (text += bytes));
  t.after(() => child.kill("SIGINT"));
  const exited = new Promise((resolve) => child.once("exit", resolve));
  return { socket, child, exited, ready: until(() => text.includes("a tool host listens")) };
}

async function until(isSo) {
  const end = Date.now() + 20_000;
  while (!isSo()) {
    assert(Date.now() < end, "it never was so");
    // The state is that of other processes, so this polls.
    await sleep(20);
  }
}

const dialed = (path) => new Worker(connect(path));

test("a tool host has a process for each connection, and rejects further ones", async (t) => {
  const host = listening(t, 1);
  await host.ready;
  const worker = dialed(host.socket);
  assert.equal((await worker.result(1, "add", { a: 1 })).output, "3");
  const second = dialed(host.socket);
  assert.match((await second.next("refused")).message, /it already runs 1 interpreters/);
  await second.closed;
  worker.socket.destroy();
  await until(async () => (await dialed(host.socket).result(1, "add", { a: 1 })).output === "3");
});

test("a tool host kills a process that blocks when its connection ends", async (t) => {
  const host = listening(t, 1);
  await host.ready;
  const worker = dialed(host.socket);
  await worker.next("ready");
  worker.call(1, "block");
  // The blocked process sends no event when the call has begun, so this sleeps.
  await sleep(200);
  worker.socket.destroy();
  let next;
  do {
    next = dialed(host.socket);
    await Promise.race([next.next("ready"), next.closed]);
  } while (next.messages.some((message) => message.type === "refused"));
  assert.equal((await next.result(1, "add", { a: 1 })).output, "3");
});

test("a tool host that is told to end serves until its connections have ended", async (t) => {
  const host = listening(t, 2);
  await host.ready;
  const worker = dialed(host.socket);
  await worker.next("ready");
  host.child.kill("SIGTERM");
  assert.equal((await worker.result(1, "add", { a: 1 })).output, "3");
  worker.socket.destroy();
  assert.equal(await host.exited, 0);
  assert(!existsSync(host.socket));
});
