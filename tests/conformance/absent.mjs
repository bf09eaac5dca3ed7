// A tenant that does not exist is rejected at once. Run `absent.mjs DIST` with `REDIS_URL`, `GATEWAY_URL` and
// `GATEWAY_KEY` (a key for tenant `nowhere-js`). DIST is the folder of the built client.
import assert from "node:assert/strict";
import { resolve } from "node:path";

const { Fleet, NoDefinitions, Rejected } = await import(resolve(process.argv[2], "index.js"));
const calls = [{ name: "echo", arguments: { text: "hi" } }];
const timeoutMs = 30_000;

async function refused(what, work) {
  await assert.rejects(work, (error) => {
    assert(error instanceof Rejected, `${what}: ${error}`);
    assert.equal(error.code, "unknown_tenant");
    assert.match(error.message, /nowhere/);
    return true;
  });
}

async function eachWay(fleet) {
  await refused("run", fleet.run({ agent: "kelly", calls }, { timeoutMs }));
  await refused("run, with an id", fleet.run({ agent: "kelly", calls, turnId: "order-17" }, { timeoutMs }));
  const turn = await fleet.submit({ agent: "kelly", calls });
  await refused("submit and reply", turn.reply({ timeoutMs }));
  await refused("wait", fleet.wait(turn.id, { timeoutMs }));
  const task = await fleet.delegate({ agent: "noter", description: "Note this." });
  const events = [];
  for await (const event of task.events()) events.push(event);
  assert.deepEqual(events.map(({ kind, reply }) => [kind, reply?.error?.code]), [["ended", "unknown_tenant"]]);
  await refused("delegate and reply", task.reply({ timeoutMs }));
  await assert.rejects(fleet.tools("kelly"), NoDefinitions);
  await fleet.close();
}

await eachWay(new Fleet({ tenant: "nowhere" }));
const there = new Fleet({ tenant: "typescript" });
assert((await there.run({ agent: "kelly", calls })).ok);
await there.close();
const { GATEWAY_URL: url, GATEWAY_KEY: apiKey } = process.env;
await eachWay(new Fleet({ url, apiKey }));
console.log("absent: ok");
