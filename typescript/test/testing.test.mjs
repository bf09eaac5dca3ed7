// The fleet for tests. These tests need `tickfleet` in the PATH.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";

import { fleet, scriptedModel, toolCall } from "../dist/testing.js";

const TESTING = new URL("../dist/testing.js", import.meta.url);
const home = mkdtempSync(join(tmpdir(), "testing-"));
mkdirSync(join(home, "conf"));

const bank = createServer((_request, response) => response.setHeader("content-type", "application/json").end('"paid"'));
bank.listen(0, "127.0.0.1");
await once(bank, "listening");

const conf = {
  tickfleet: {},
  tenants: { tenants: { acme: { agents: ["support"] } } },
  agents: { agents: { support: {}, reports: {} } },
  permissions: {
    permissions: {
      pay: {
        agents: ["support"],
        rules: [{ name: "large", require: "args.amount <= 500.0", otherwise: "ask", message: "large", approval: { expires: "1h" } }],
      },
    },
    approvers: { ann: {} },
  },
  tools: {
    tools: {
      pay: {
        description: "Pays.",
        effect: "once",
        effect_key: ["/to"],
        input_schema: {
          type: "object",
          properties: { to: { type: "string", description: "Who gets it." }, amount: { type: "number", description: "How much." } },
          required: ["to", "amount"],
        },
        http: { method: "POST", base_url: "${BANK_URL}", path: "/pay", body: { to: "{{to}}" }, allow_private: ["127.0.0.1"] },
      },
    },
  },
};
// JSON is valid YAML.
for (const [name, content] of Object.entries(conf)) writeFileSync(join(home, `conf/${name}.yaml`), JSON.stringify(content));

const env = { BANK_URL: `http://127.0.0.1:${bank.address().port}` };
const shop = await fleet(join(home, "conf"), { env });
after(async () => {
  await shop.close();
  bank.close();
  bank.closeAllConnections();
  rmSync(home, { recursive: true });
});

const pay = (to, amount = 10) => toolCall("pay", { to, amount });
const paid = (calls) => shop.client.run({ agent: "support", calls });

test("an equal call has no second effect, and both are in the audit log", async () => {
  const before = await shop.effects("pay");
  const [first, second] = [await paid([pay("bob")]), await paid([pay("bob")])];
  assert.equal(first.results[0].output, "paid");
  assert.equal(second.results[0].output, "paid");
  assert.equal(await shop.effects("pay"), before + 1);
  const entries = await shop.audit("pay");
  assert.deepEqual(entries.slice(-2).map(({ meta }) => "repeats" in meta), [false, true]);
  assert((await shop.audit()).length >= entries.length);
});

test("a call waits until a person approves or denies it", async () => {
  const approved = await shop.client.submit({ agent: "support", calls: [pay("amy", 900)] });
  await shop.approve("ann");
  assert((await approved.reply()).ok);
  const denied = await shop.client.submit({ agent: "support", calls: [pay("eve", 900)] });
  await shop.deny("ann", { reason: "Eve is unknown." });
  const [result] = (await denied.reply()).results;
  assert.equal(result.outcome, "approval_refused");
  assert.match(result.error.message, /Eve is unknown/);
  await assert.rejects(shop.approve("ann", { timeoutMs: 0 }), /no call waits for approval after 0 ms/);
});

test("a scripted model plays the loop of an agent", async () => {
  const model = scriptedModel([[pay("kim")], "Done."]);
  const messages = [{ role: "user", content: "Pay kim." }];
  const tools = await shop.client.tools("support");
  for (;;) {
    const { message } = (await model.chat.completions.create({ messages, tools })).choices[0];
    messages.push(message);
    if (!message.tool_calls) break;
    messages.push(...(await shop.client.run({ agent: "support", toolCalls: message.tool_calls })).messages);
  }
  assert.deepEqual(messages.map(({ role }) => role), ["user", "assistant", "tool", "assistant"]);
  assert.equal(model.requests[0].messages.length, 1);
  await assert.rejects(model.chat.completions.create({ messages }), /once more than its 2 responses/);
});

test("the link leads to the console, and a failed command has its message", async () => {
  assert.equal((await fetch(shop.console)).status, 200);
  await assert.rejects(shop.command("explain", "acme:nothing"), (error) => error.stderr.length > 0);
});

test("a fleet ends at the end of its block", async () => {
  let link;
  {
    const other = await fleet(join(home, "conf"), { env, tenant: "acme" });
    link = other.console;
    await other[Symbol.asyncDispose]();
  }
  await assert.rejects(fetch(link));
});

test("a fleet with an invalid configuration does not start", async () => {
  await assert.rejects(fleet(join(home, "nothing")), /did not start/);
});

test("a fleet that is not closed ends with its process", async () => {
  const program = `
    const { fleet } = await import(${JSON.stringify(TESTING)});
    const shop = await fleet(${JSON.stringify(join(home, "conf"))});
    console.log(shop.console);
  `;
  const child = spawn(process.execPath, ["--input-type=module", "-e", program], {
    env: { ...process.env, ...env },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const link = String((await once(child.stdout, "data"))[0]).trim();
  // The fleet holds the other end of standard error, so this also waits for the fleet.
  await once(child, "close");
  assert(link.startsWith("http"));
  await assert.rejects(fetch(link));
  assert(existsSync(home));
});
