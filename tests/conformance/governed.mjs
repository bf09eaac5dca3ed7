/**
 * Checks governed functions in this process. Usage: `governed.mjs DIST`, against `GATEWAY_URL` with `GATEWAY_KEY`, or
 * against `REDIS_URL`, with a running fleet that has the configuration in `governed/conf`. Payments are counted in the
 * ledger of a bank, which is a file.
 *
 * `governed.mjs DIST pay ORDER TURN LEDGER` is the command of a second process, which dies inside the function.
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { appendFileSync, existsSync, mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const [, , dist, mode, ...rest] = process.argv;
const { CallRefused, Conflict, Fleet, OutcomeUnknown, ToolError, governed } = await import(pathToFileURL(join(dist, "index.js")));

const { GATEWAY_URL: url, GATEWAY_KEY: apiKey } = process.env;
const fleet = url === undefined ? new Fleet({ tenant: "bank-js" }) : new Fleet({ url, apiKey });

function bank(ledger) {
  return {
    ledger,
    pay: ({ order, amount }) => {
      appendFileSync(ledger, `${order}\n`);
      return { order, amount };
    },
    paid: (order) => (existsSync(ledger) ? readFileSync(ledger, "utf8").split("\n").filter((line) => line === order).length : 0),
  };
}

if (mode === "pay") {
  const [order, turnId, ledger] = rest;
  const dies = governed(fleet, { agent: "kelly", tool: "refund" }, (args) => {
    bank(ledger).pay(args);
    process.kill(process.pid, "SIGKILL");
  });
  await dies({ order, amount: 5 }, { turnId });
}

const newOrder = () => `A-${randomUUID().slice(0, 12)}`;
const own = bank(join(mkdtempSync(join(tmpdir(), "governed-")), "ledger"));
const refund = governed(fleet, { agent: "kelly", tool: "refund" }, own.pay);

const one = newOrder();
const turnId = `turn-${randomUUID()}`;
assert.deepEqual(await refund({ order: one, amount: 5 }, { turnId }), { order: one, amount: 5 });
assert.deepEqual(await refund({ order: one, amount: 5 }, { turnId }), { order: one, amount: 5 });
assert.deepEqual(await refund({ order: one, amount: 6 }), { order: one, amount: 5 });
assert.equal(own.paid(one), 1);
await assert.rejects(refund({ order: one, amount: 7 }, { turnId }), Conflict);
console.log("an equal call: ok");

const denied = newOrder();
const notAllowed = governed(fleet, { agent: "fran", tool: "refund" }, own.pay);
await assert.rejects(notAllowed({ order: denied, amount: 5 }), (error) => error instanceof CallRefused && error.code === "denied");
await assert.rejects(refund({ order: denied, amount: 500 }), CallRefused);
assert.equal(own.paid(denied), 0);
console.log("a refused call: ok");

const failed = newOrder();
const refuses = governed(fleet, { agent: "kelly", tool: "refund" }, () => {
  throw new ToolError("There is no cover.");
});
await assert.rejects(refuses({ order: failed, amount: 1 }), /no cover/);
const breaks = governed(fleet, { agent: "kelly", tool: "refund" }, async () => {
  throw new TypeError("The line was cut.");
});
await assert.rejects(breaks({ order: failed, amount: 1 }), TypeError);
await assert.rejects(refund({ order: failed, amount: 1 }), OutcomeUnknown);
console.log("a function that fails: ok");

const slow = governed(fleet, { agent: "kelly", tool: "refund" }, async (args) => {
  // The pause lasts three leases, so only heartbeats can keep the claim.
  await sleep(3_000);
  return own.pay(args);
});
assert.equal((await slow({ order: newOrder(), amount: 1 })).amount, 1);
console.log("heartbeats: ok");

const two = newOrder();
const other = `turn-${randomUUID()}`;
const died = spawnSync(process.execPath, [process.argv[1], dist, "pay", two, other, own.ledger], { stdio: "inherit" });
assert.equal(died.signal, "SIGKILL");
await assert.rejects(refund({ order: two, amount: 5 }, { turnId: other }), OutcomeUnknown);
assert.equal(own.paid(two), 1);
console.log("a process that dies: ok");

const orders = Array.from({ length: 20 }, newOrder);
await Promise.all(orders.map((order) => refund({ order, amount: 1 })));
assert.ok(orders.every((order) => own.paid(order) === 1));
console.log("many at once: ok");
await fleet.close();
