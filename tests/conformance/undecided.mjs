// Checks that a reply of an earlier turn is not returned: `undecided.mjs DIST`, against a `REDIS_URL` without a fleet.
import assert from "node:assert/strict";
import { resolve } from "node:path";

const dist = process.argv[2];
const { Conflict, Fleet, ReplyTimeout } = await import(resolve(dist, "index.js"));
const { Redis } = await import(resolve(dist, "redis.js"));

const PREFIX = "{tickfleet:0}:";
const head = { turn_id: "used", tenant: "acme", agent: "kelly", dialect: "raw", results: [] };
const reply = (status, more = {}) => JSON.stringify({ ...head, status, ...more });

const link = await new Redis(process.env.REDIS_URL, 1_000).dedicated();
const ask = (...args) => link.send(args[1], args, false);
const decide = async () => {
  const [[entry]] = await ask("XRANGE", `${PREFIX}turns`, "-", "+");
  await ask("XDEL", `${PREFIX}turns`, entry);
};

await ask("SET", `${PREFIX}done:acme:used`, `anything\n${reply("done")}`);
const fleet = new Fleet({ tenant: "acme", inbox: "box" });
const turn = { agent: "kelly", calls: [{ name: "echo" }], turnId: "used" };
const refused = await fleet.submit(turn);
await assert.rejects(refused.reply({ timeoutMs: 1_000 }), ReplyTimeout);
const error = { code: "conflict", message: "used" };
await ask("XADD", `${PREFIX}replies:acme:box`, "*", "reply", reply("conflict", { error }), "seq", "1");
await decide();
await assert.rejects(refused.reply({ timeoutMs: 10_000 }), Conflict);
// Nothing writes a reply here, so the client must read the reply from the record.
const again = await fleet.submit(turn);
await decide();
assert.equal((await again.reply({ timeoutMs: 10_000 })).status, "done");
await fleet.close();
link.drop();
console.log("ok");
