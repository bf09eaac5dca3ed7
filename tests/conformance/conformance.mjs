// Runs the conformance cases with the TypeScript client: `conformance.mjs CASES TENANT DIST`, against `REDIS_URL`, or
// through `GATEWAY_URL` with `GATEWAY_KEY`. DIST is the folder of the built client.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";

const [path, tenant, dist] = process.argv.slice(2);
const { Conflict, Fleet, NotAccepted, Rejected, shardOf } = await import(resolve(dist, "index.js"));
const { read } = await import(resolve(dist, "json.js"));
const { Redis } = await import(resolve(dist, "redis.js"));

const TIMEOUT_MS = 60_000;
const { GATEWAY_URL: url, GATEWAY_KEY: apiKey } = process.env;
const WAY = url === undefined ? {} : { url, apiKey };

const RENAMED = { tool_call_audits: "audits" };
const camel = (key) => RENAMED[key] ?? key.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());
const fields = (message) => Object.fromEntries(Object.entries(message).map(([key, value]) => [camel(key), value]));

/** Members that `expected` does not name may have any value. */
function matches(expected, found, path) {
  const reported = () => `${path}: expected ${show(expected)}, found ${show(found)}`;
  if (expected === "$any") return assert(found !== undefined && found !== null, reported());
  if (expected === null || typeof expected !== "object") return assert.equal(found ?? null, expected, reported());
  if ("$json" in expected) return assert.deepEqual(found, read(expected.$json), reported());
  if ("$contains" in expected) return assert(String(found).includes(expected.$contains), reported());
  assert(found !== null && typeof found === "object", reported());
  if (Array.isArray(expected)) {
    assert.equal(found.length, expected.length, reported());
    return expected.forEach((value, at) => matches(value, found[at], `${path}[${at}]`));
  }
  for (const [key, value] of Object.entries(expected)) {
    if (value === "$absent") assert(!(key in found), `${path}.${key} is there`);
    else matches(value, found[key], `${path}.${key}`);
  }
}

const show = (value) => JSON.stringify(value, (_, member) => (typeof member === "bigint" ? `${member}n` : member));

class Runner {
  constructor(tenant) {
    this.tenant = tenant;
    this.fleet = new Fleet({ tenant, ...WAY });
    this.kept = new Map();
    this.readers = new Map();
  }

  async step(step) {
    if ("lose" in step) return this.lose(step.inbox, step.lose);
    if (step.send) return void (await this.fleet.send(fields(step.send), step.inbox));
    let reply;
    try {
      reply = await this.ask(step);
    } catch (error) {
      const isExpectedKind = error instanceof Rejected || error instanceof Conflict || error instanceof NotAccepted;
      if (!isExpectedKind || error.code !== step.fails) throw error;
      return;
    }
    assert(!step.fails, `expected ${step.fails}, found ${show(reply)}`);
    if ("missed" in step) assert.equal(reply.missed, step.missed);
    if (step.equals) assert.deepEqual(reply.raw, this.kept.get(step.equals).raw);
    matches(step.reply ?? {}, reply.raw, "reply");
    if (step.as) this.kept.set(step.as, reply);
  }

  async ask(step) {
    const waiting = { timeoutMs: TIMEOUT_MS };
    if (step.record) return this.fleet.wait(step.record, waiting);
    if (step.next) {
      const reader = this.readers.get(step.next) ?? this.fleet.replies(step.next);
      this.readers.set(step.next, reader);
      const reply = await reader.next(TIMEOUT_MS);
      assert(reply, `no reply in ${step.next}`);
      return reply;
    }
    if (step.delegate) {
      const { target_agent: agent, task_description: description, ...rest } = step.delegate;
      const task = await this.fleet.delegate({ agent, description, ...fields(rest) });
      if (step.cancel) await this.fleet.cancel(task.id, { task: true, reason: step.cancel });
      return task.reply(waiting);
    }
    if (!step.client) return this.fleet.run(fields(step.run), waiting);
    const other = new Fleet({ tenant: this.tenant, ...WAY, ...fields(step.client) });
    try {
      return await other.run(fields(step.run), waiting);
    } finally {
      await other.close();
    }
  }

  async lose(inbox, at) {
    const key = `{tickfleet:${shardOf(this.tenant, 1)}}:replies:${this.tenant}:${inbox}`;
    const link = await new Redis(process.env.REDIS_URL, 1_000).dedicated();
    const entries = await link.send(key, ["XRANGE", key, "-", "+"], true);
    await link.send(key, ["XDEL", key, entries[at][0]], false);
    link.drop();
  }

  async close() {
    for (const reader of this.readers.values()) await reader.finish();
    await this.fleet.close();
  }
}

const { cases: all } = read(readFileSync(path, "utf8").replaceAll("{tenant}", tenant));
const cases = all.filter(({ needs }) => url === undefined || needs !== "redis");
const runner = new Runner(tenant);
for (const { name, steps } of cases) {
  for (const [number, step] of steps.entries()) {
    try {
      await runner.step(step);
    } catch (error) {
      console.error(`${name}, step ${number}: ${error.stack}`);
      process.exit(1);
    }
  }
}
await runner.close();
console.log(`${cases.length} cases`);
