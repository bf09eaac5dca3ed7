// Payments must happen once, whatever happens to processes. A separate server, the bank, counts the payments. The tests
// need `tickfleet` and `redis-server` in the PATH.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { EventEmitter, once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { generateText } from "ai";

import { fleetTools } from "../dist/adapters/ai-sdk.js";
import { Conflict, Fleet, OutcomeUnknown, ReplyTimeout, governed } from "../dist/index.js";
import { ask, model, post, prompt } from "./data/payer.mjs";

const PAYER = fileURLToPath(new URL("data/payer.mjs", import.meta.url));
const home = mkdtempSync(join(tmpdir(), "payments-"));

const ledger = [];
const booked = new EventEmitter();
booked.setMaxListeners(0);
/** Orders whose payments get no response until the test releases them. */
const held = new Set();

const bank = createServer(async (request, response) => {
  let text = "";
  for await (const part of request) text += part;
  const { order, amount } = JSON.parse(text);
  ledger.push(order);
  booked.emit(order);
  if (order.startsWith("cut-")) return request.socket.destroy();
  if (held.has(order)) await once(booked, `release ${order}`);
  response.setHeader("content-type", "application/json").end(JSON.stringify({ order, amount }));
});
bank.listen(0, "127.0.0.1");
await once(bank, "listening");
const bankUrl = `http://127.0.0.1:${bank.address().port}`;

const payments = (order) => ledger.filter((one) => one === order).length;

function heldOrder() {
  const order = `held-${randomUUID()}`;
  held.add(order);
  const release = () => {
    held.delete(order);
    booked.emit(`release ${order}`);
  };
  return { order, release, isBooked: once(booked, order) };
}

async function paidOnly(order, count = 1) {
  // No event reports that an extra payment is absent, so this waits for one tick plus the duration of a call.
  await sleep(400);
  assert.equal(payments(order), count);
}

const input = {
  type: "object",
  properties: { order: { type: "string", description: "The order." }, amount: { type: "number", description: "The amount." } },
  required: ["order", "amount"],
};
const tools = {
  pay: {
    description: "Pays an order.",
    effect: "once",
    input_schema: input,
    http: { method: "POST", base_url: bankUrl, path: "/pay", body: { order: "{{order}}", amount: "{{amount}}" }, allow_private: ["127.0.0.1"] },
  },
  refund: { description: "Refunds an order.", effect: "once", effect_key: ["/order"], input_schema: input, local: { lease_ms: 1000 } },
};
const conf = {
  tickfleet: { caps: { tick: "100ms", max_calls_per_tick: 1000 } },
  tenants: { tenants: { acme: {} } },
  agents: { agents: { kelly: {} } },
  permissions: { permissions: { pay: { everyone: true }, refund: { everyone: true } } },
  tools: { tools },
};
mkdirSync(join(home, "conf"));
// JSON is valid YAML.
for (const [name, content] of Object.entries(conf)) writeFileSync(join(home, `conf/${name}.yaml`), JSON.stringify(content));

const foreign = ["REDIS_URL", "FLEET_URL", "FLEET_KEY", "TICKFLEET_CONFIG"];
const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !foreign.includes(name)));
const args = ["dev", "--redis", "--config", join(home, "conf"), "--dir", join(home, "dev"), "--console", "0"];
const dev = spawn("tickfleet", args, { env: { ...env, TICKFLEET_HTTP_ADDRESS: "127.0.0.1:0" }, stdio: ["ignore", "pipe", "inherit"] });
process.once("exit", () => dev.kill());
for await (const line of createInterface({ input: dev.stdout })) if (line.startsWith("Ctrl-C")) break;
dev.stdout.resume();
const here = JSON.parse(readFileSync(join(home, "dev/dev.json"), "utf8"));

const ways = {
  "over Redis": { url: here.redis_url, tenant: "acme" },
  "through a gateway": { url: here.fleet_url, apiKey: here.fleet_key },
};
const clients = [];

after(async () => {
  for (const client of clients) await client.close();
  const ended = once(dev, "exit");
  dev.kill();
  await ended;
  bank.close();
  bank.closeAllConnections();
  rmSync(home, { recursive: true });
});

function each(name, run) {
  for (const [way, connection] of Object.entries(ways)) {
    const fleet = new Fleet(connection);
    clients.push(fleet);
    const other = (asked) => {
      const child = spawn(process.execPath, [PAYER, JSON.stringify({ connection, bank: bankUrl, ...asked })], {
        stdio: ["ignore", "pipe", "inherit"],
      });
      let output = "";
      child.stdout.on("data", (data) => (output += data));
      const ended = once(child, "close").then(([code, signal]) => (code === 0 ? JSON.parse(output) : { code, signal }));
      return Object.assign(child, { ended });
    };
    test(`${name}, ${way}`, () => run({ fleet, other }));
  }
}

const newOrder = () => `order-${randomUUID()}`;
const newId = () => `id-${randomUUID()}`;

function refundOf(fleet, options = {}, run = (args) => post(bankUrl, args)) {
  return governed(fleet, { agent: "kelly", tool: "refund", ...options }, run);
}

each("a governed function whose process dies after it has paid is not run again", async ({ fleet, other }) => {
  const [order, turnId] = [newOrder(), newId()];
  const died = await other({ order, turnId, how: "dies after it has paid" }).ended;
  assert.equal(died.signal, "SIGKILL");
  await assert.rejects(refundOf(fleet)({ order, amount: 5 }, { turnId }), OutcomeUnknown);
  await assert.rejects(refundOf(fleet)({ order, amount: 5 }), OutcomeUnknown);
  await paidOnly(order);
});

each("a governed function whose process dies before it has paid has an unknown outcome", async ({ fleet, other }) => {
  const [order, turnId] = [newOrder(), newId()];
  await other({ order, turnId, how: "dies before it pays" }).ended;
  await assert.rejects(refundOf(fleet)({ order, amount: 5 }, { turnId }), OutcomeUnknown);
  await paidOnly(order, 0);
});

each("two processes that make one governed call pay once and get one result", async ({ fleet, other }) => {
  const [order, turnId] = [newOrder(), newId()];
  const both = await Promise.all([1, 2].map(() => other({ order, turnId }).ended));
  assert.deepEqual(both, [{ value: { order, amount: 5 } }, { value: { order, amount: 5 } }]);
  assert.deepEqual(await refundOf(fleet)({ order, amount: 5 }, { turnId }), { order, amount: 5 });
  await assert.rejects(refundOf(fleet)({ order, amount: 6 }, { turnId }), Conflict);
  await paidOnly(order);
});

each("a governed function whose process pauses beyond its lease does not report success afterwards", async ({ fleet, other }) => {
  const [order, turnId] = [newOrder(), newId()];
  const isBooked = once(booked, order);
  const paused = other({ order, turnId, how: "pauses after it has paid" });
  await isBooked;
  await assert.rejects(refundOf(fleet)({ order, amount: 5 }, { turnId }), OutcomeUnknown);
  paused.kill("SIGCONT");
  assert.deepEqual(await paused.ended, { error: "outcome_unknown" });
  await paidOnly(order);
});

each("a governed call that is repeated after a timeout gets the first result", async ({ fleet }) => {
  const [{ order, release, isBooked }, turnId] = [heldOrder(), newId()];
  const first = refundOf(fleet, { timeoutMs: 500 })({ order, amount: 5 }, { turnId });
  await isBooked;
  await assert.rejects(refundOf(fleet, { timeoutMs: 600 })({ order, amount: 5 }, { turnId }), ReplyTimeout);
  release();
  assert.deepEqual(await first, { order, amount: 5 });
  assert.deepEqual(await refundOf(fleet)({ order, amount: 5 }, { turnId }), { order, amount: 5 });
  await paidOnly(order);
});

each("a governed function whose connection is cut after it has paid is not run again", async ({ fleet }) => {
  const order = `cut-${randomUUID()}`;
  await assert.rejects(refundOf(fleet)({ order, amount: 5 }), TypeError);
  await assert.rejects(refundOf(fleet)({ order, amount: 5 }), OutcomeUnknown);
  await paidOnly(order);
});

each("an agent whose process dies while it pays is resumed and gets the result", async ({ fleet, other }) => {
  const [{ order, release, isBooked }, runId] = [heldOrder(), newId()];
  const died = other({ order, runId });
  await isBooked;
  died.kill("SIGKILL");
  await died.ended;
  const resumed = ask(fleet, { order, runId });
  release();
  assert.deepEqual((await resumed).outputs, [{ order, amount: 10 }]);
  await paidOnly(order);
});

each("two processes that resume one thread pay once", async ({ fleet, other }) => {
  const [{ order, release, isBooked }, runId] = [heldOrder(), newId()];
  const both = [1, 2].map(() => other({ order, runId }));
  await isBooked;
  release();
  for (const { value } of await Promise.all(both.map((one) => one.ended))) {
    assert.deepEqual(value.outputs, [{ order, amount: 10 }]);
  }
  assert.deepEqual((await ask(fleet, { order, runId })).outputs, [{ order, amount: 10 }]);
  await paidOnly(order);
});

each("an agent that is replayed from older messages pays nothing again", async ({ fleet }) => {
  const [order, runId] = [newOrder(), newId()];
  const { messages, outputs } = await ask(fleet, { order, runId, payments: 2 });
  assert.equal(outputs.length, 2);
  // The history after the first payment, and the history before it.
  for (const kept of [2, 0]) {
    const old = JSON.parse(JSON.stringify([...prompt, ...messages.slice(0, kept)]));
    await ask(fleet, { order, runId, payments: 2, messages: old });
  }
  await paidOnly(order, 2);
});

each("a history that is edited after its call has paid is refused", async ({ fleet }) => {
  const [order, runId] = [newOrder(), newId()];
  await ask(fleet, { order, runId });
  const edited = [{ role: "user", content: "Pay less." }];
  assert.deepEqual((await ask(fleet, { order, runId, messages: edited })).outputs, [{ order, amount: 10 }]);
  const { errors } = await ask(fleet, { order, runId, amount: 9 });
  assert.deepEqual(new Set(errors), new Set(["conflict"]));
  await paidOnly(order);
});

each("a saved approval whose arguments are edited after it has paid is refused", async ({ fleet }) => {
  const order = newOrder();
  const { pay } = await fleetTools(fleet, "kelly", { runId: newId() });
  const asked = { model: model({ order }), tools: { pay: { ...pay, needsApproval: true } } };
  const { content, response } = await generateText({ ...asked, messages: prompt });
  const request = content.find((part) => part.type === "tool-approval-request");
  const answer = { type: "tool-approval-response", approvalId: request.approvalId, approved: true };
  const saved = JSON.stringify([...prompt, ...response.messages, { role: "tool", content: [answer] }]);
  const resume = async (text) => {
    const { response } = await generateText({ ...asked, messages: JSON.parse(text) });
    return response.messages.flatMap((message) => (message.role === "tool" ? message.content : []))[0].output;
  };
  const [first, again] = [await resume(saved), await resume(saved)];
  assert.match(String(first.value), new RegExp(order));
  assert.deepEqual(again, first);
  const edited = saved.replace('"amount":10', '"amount":9');
  assert.notEqual(edited, saved);
  const refused = await resume(edited);
  assert.match(refused.type, /^error/);
  assert.match(String(refused.value), /conflict/);
  await paidOnly(order);
});

each("an agent that is retried after a timeout gets the first result", async ({ fleet }) => {
  const [{ order, release, isBooked }, runId] = [heldOrder(), newId()];
  const first = ask(fleet, { order, runId, timeoutMs: 500 });
  await isBooked;
  assert.equal((await first).errors[0], "timeout");
  release();
  assert.deepEqual((await ask(fleet, { order, runId })).outputs, [{ order, amount: 10 }]);
  await paidOnly(order);
});

each("an agent reads an unknown outcome if the bank's connection is cut, and a retry does not pay again", async ({ fleet }) => {
  const [order, runId] = [`cut-${randomUUID()}`, newId()];
  for (const _ of [1, 2]) {
    const { errors } = await ask(fleet, { order, runId });
    assert.equal(errors[0], "outcome_unknown");
  }
});
