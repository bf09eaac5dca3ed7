// Checks that an agent on Vercel's AI SDK pays once, although it is retried and resumed: `resumed.mjs PACKAGE`.
// Needs the `REDIS_URL` of a fleet with the configuration in `bank/conf`. PACKAGE is the folder of the built client.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const home = resolve(process.argv[2]);
const { resolve: find } = createRequire(resolve(home, "package.json"));
const { generateText, stepCountIs } = await import(find("ai"));
const { MockLanguageModelV3 } = await import(find("ai/test"));
const { Fleet, InvalidMessage, ReplyTimeout } = await import(resolve(home, "dist/index.js"));
const { fleetTools, stillWaiting } = await import(resolve(home, "dist/adapters/ai-sdk.js"));

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
const fleet = new Fleet({ tenant: "bank" });

function model(payments = 1, input = '{"to":"bob","amount":10}') {
  return new MockLanguageModelV3({
    doGenerate: async ({ prompt }) => {
      const results = prompt.flatMap((message) => (message.role === "tool" ? message.content : []));
      const done = results.filter((part) => part.type === "tool-result").length >= payments;
      const call = { type: "tool-call", toolCallId: "call_1", toolName: "pay", input };
      return done
        ? { content: [{ type: "text", text: "done" }], finishReason: { unified: "stop" }, usage, warnings: [] }
        : { content: [call], finishReason: { unified: "tool-calls" }, usage, warnings: [] };
    },
  });
}

function bank(seconds = 0) {
  const ledger = join(mkdtempSync(join(tmpdir(), "bank-")), "ledger");
  const payments = () => (existsSync(ledger) ? readFileSync(ledger, "utf8").trimEnd().split("\n") : []);
  const hasPaid = async (count) => {
    const end = Date.now() + 20_000;
    while (payments().length < count) {
      assert(Date.now() < end, `${payments()}`);
      // The ledger is a file, so this polls.
      await sleep(10);
    }
  };
  return {
    fields: { userContext: { ledger, seconds } },
    hasPaid,
    async paid(count, what) {
      await hasPaid(count);
      // No event reports that an extra payment is absent, so this waits for one tick plus the duration of a call.
      await sleep(400 + seconds * 1_000);
      assert.equal(payments().length, count, `${what}: ${payments()}`);
      console.log(`ai-sdk: ${what}: ok`);
    },
  };
}

const prompt = [{ role: "user", content: "Pay bob." }];
const stopWhen = stepCountIs(5);

async function images() {
  const results = [];
  const asking = new MockLanguageModelV3({
    doGenerate: async ({ prompt }) => {
      results.push(...prompt.flatMap((message) => (message.role === "tool" ? message.content : [])));
      const call = { type: "tool-call", toolCallId: "call_1", toolName: "statement", input: '{"account":"amy"}' };
      return results.length > 0
        ? { content: [{ type: "text", text: "done" }], finishReason: { unified: "stop" }, usage, warnings: [] }
        : { content: [call], finishReason: { unified: "tool-calls" }, usage, warnings: [] };
    },
  });
  const tools = await fleetTools(fleet, "kelly", { runId: randomUUID() });
  await generateText({ model: asking, messages: prompt, tools, stopWhen });
  const image = { type: "image-data", data: "R0lGODlh", mediaType: "image/gif" };
  assert.deepEqual(results[0].output, { type: "content", value: [{ type: "text", text: "statement of amy" }, image] });
  console.log("ai-sdk: images are content of the result: ok");
}

async function retried() {
  const { fields, paid } = bank();
  const runId = randomUUID();
  for (const input of ['{"to":"bob","amount":10}', '{"amount":10,"to":"bob"}']) {
    const tools = await fleetTools(fleet, "kelly", { ...fields, runId });
    assert.equal((await generateText({ model: model(1, input), messages: prompt, tools, stopWhen })).text, "done");
  }
  await paid(1, "a request is made again");
  const tools = await fleetTools(fleet, "kelly", { ...fields, runId: ({ experimental_context: context }) => context.run });
  for (const run of ["a", "b", "b"]) {
    const experimental_context = { run: runId + run };
    await generateText({ model: model(), messages: prompt, tools, stopWhen, experimental_context });
  }
  await paid(3, "equal calls of other requests are other calls");
}

async function aborted() {
  const { fields, paid, hasPaid } = bank(1);
  const tools = await fleetTools(fleet, "kelly", { ...fields, runId: randomUUID() });
  const given = new AbortController();
  const first = generateText({ model: model(), messages: prompt, tools, stopWhen, abortSignal: given.signal });
  const outcome = first.then(() => "answered", () => "aborted");
  await hasPaid(1);
  given.abort();
  const again = await generateText({ model: model(), messages: prompt, tools, stopWhen });
  assert.equal(again.steps[0].toolResults[0].output, "paid 10 to bob");
  await outcome;
  await paid(1, "a request that was aborted while it paid is made again");
}

async function approved() {
  const { fields, paid } = bank();
  const { pay } = await fleetTools(fleet, "kelly", { ...fields, runId: randomUUID() });
  const tools = { pay: { ...pay, needsApproval: true } };
  const { response, content } = await generateText({ model: model(), messages: prompt, tools, stopWhen });
  const request = content.find((part) => part.type === "tool-approval-request");
  const answer = { type: "tool-approval-response", approvalId: request.approvalId, approved: true };
  const saved = JSON.stringify([...prompt, ...response.messages, { role: "tool", content: [answer] }]);
  for (const _ of [1, 2]) {
    const resumed = await generateText({ model: model(), messages: JSON.parse(saved), tools, stopWhen });
    assert.equal(resumed.text, "done");
  }
  await paid(1, "an approval is resumed twice");
}

async function intended() {
  const { fields, paid } = bank();
  const tools = await fleetTools(fleet, "kelly", { ...fields, runId: randomUUID() });
  for (const _ of [1, 2]) await generateText({ model: model(2), messages: prompt, tools, stopWhen });
  await paid(2, "an equal call in a later step is a second call, and a retry repeats neither");
}

async function waited() {
  const { fields, paid } = bank(2);
  const runId = randomUUID();
  const ask = async (timeoutMs) => {
    const tools = await fleetTools(fleet, "kelly", { ...fields, runId, timeoutMs });
    return generateText({ model: model(), messages: prompt, tools, stopWhen: [stopWhen, stillWaiting] });
  };
  const first = await ask(300);
  const failed = first.content.find((part) => part.type === "tool-error");
  assert(failed.error instanceof ReplyTimeout && first.steps.length === 1, `${failed?.error}`);
  const again = await ask();
  assert.equal(again.steps[0].toolResults[0].output, "paid 10 to bob");
  await paid(1, "a request that gave up waiting is made again");
}

async function perCall() {
  const { fields, paid } = bank();
  const of = ({ experimental_context: context }) => context;
  const tools = await fleetTools(fleet, "kelly", {
    runId: (options) => of(options).run,
    userContext: (options) => of(options).user,
    deadline: (options) => of(options).deadline,
  });
  const ask = (deadline) => {
    const experimental_context = { run: randomUUID(), user: fields.userContext, deadline };
    return generateText({ model: model(), messages: prompt, tools, stopWhen, experimental_context });
  };
  const paidOne = await ask(new Date(Date.now() + 60_000));
  assert.equal(paidOne.steps[0].toolResults[0].output, "paid 10 to bob");
  const late = await ask(new Date(Date.now() - 60_000));
  assert.equal(late.steps[0].content.find((part) => part.type === "tool-error").error.code, "expired");
  await paid(1, "user context and deadline come from a function of each call");
}

async function parallel() {
  const { fields, paid } = bank(1);
  const calls = ["ann", "bob"].map((to, at) => ({ type: "tool-call", toolCallId: `call_${at}`, toolName: "pay", input: JSON.stringify({ to, amount: 10 }) }));
  const both = new MockLanguageModelV3({
    doGenerate: async ({ prompt }) =>
      prompt.some((message) => message.role === "tool")
        ? { content: [{ type: "text", text: "done" }], finishReason: { unified: "stop" }, usage, warnings: [] }
        : { content: calls, finishReason: { unified: "tool-calls" }, usage, warnings: [] },
  });
  const tools = await fleetTools(fleet, "kelly", { ...fields, runId: randomUUID() });
  for (const _ of [1, 2]) {
    const { steps } = await generateText({ model: both, messages: prompt, tools, stopWhen });
    const outputs = steps[0].toolResults.map((result) => result.output);
    assert.deepEqual(outputs, ["paid 10 to ann", "paid 10 to bob"]);
  }
  await paid(2, "the calls of one step are calls of their own");
}

async function unnamed() {
  for (const given of [undefined, {}, { runId: "" }]) {
    await assert.rejects(fleetTools(fleet, "kelly", given), (error) => error instanceof InvalidMessage && /runId/.test(error.message));
  }
  await assert.rejects(fleetTools(fleet, "kelly", { runId: "a", turnId: "b" }), /turnId/);
  console.log("ai-sdk: without a run's name it says what to pass: ok");
}

for (const scenario of [retried, aborted, approved, intended, waited, perCall, parallel, unnamed]) await scenario();
await fleet.close();
