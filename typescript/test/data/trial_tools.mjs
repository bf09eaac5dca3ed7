// Tools for the tests of the host: every way to end a call.
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { execFileSync } from "node:child_process";

import { z } from "zod";

import { Image, ToolError, tool } from "../../dist/tools/index.js";

const nothing = z.object({});
const put = { what: z.string() };

tool({ name: "add", description: "Adds.", input: z.object({ a: z.int(), b: z.int().default(2) }), effect: "read" }, ({ a, b }) => a + b);

tool({ name: "who", description: "Shows its context.", input: nothing }, (_args, context) => {
  const { signal, log, call, progress, ...facts } = context;
  log.info("seen", new Error("a cause"));
  console.log("a line that is no frame");
  process.stdout.write("another line\n");
  execFileSync("echo", ["a line of a child"], { stdio: "inherit" });
  return { ...facts, left: facts.deadline - Date.now() };
});

tool({ name: "chart", description: "Draws.", input: nothing, effect: "read" }, () => ["a chart", new Image(Buffer.from("GIF89a"))]);

tool({ name: "wait", description: "Waits until it is canceled.", input: nothing, effect: "read" }, async (_args, { signal }) => {
  await sleep(600_000, undefined, { signal });
});

tool({ name: "block", description: "Blocks the event loop.", input: nothing }, () => {
  for (;;);
});

tool({ name: "fail", description: "Fails.", input: z.object(put) }, async ({ what }) => {
  if (what === "permanent") throw new ToolError("permanent", "no such order", { details: { order: 1n } });
  if (what === "details") throw new ToolError("permanent", "no such order", { details: { order: "A-1" } });
  if (what === "transient") throw new ToolError("transient", "busy", { retryAfterMs: 1_500, notExecuted: true });
  if (what === "arguments") throw new ToolError("invalid_arguments", "no such day");
  if (what === "exit") process.exit(3);
  if (what === "text") throw "a text";
  if (what === "later") {
    void Promise.reject(new Error("nobody waits"));
    await sleep(20);
    return "fine";
  }
  throw new Error("a bug", { cause: new Error("its cause") });
});

tool({ name: "result", description: "Returns odd values.", input: z.object(put), effect: "once" }, ({ what }) => {
  if (what === "nothing") return undefined;
  if (what === "large") return "x".repeat(5 << 20);
  if (what === "number") return { amount: Number.NaN };
  if (what === "half") return { half: "\ud800 \\ud800" };
  return { big: 12345678901234567890n, when: new Date(0) };
});

tool({ name: "read_large", description: "Reads much.", input: nothing, effect: "read" }, () => "x".repeat(5 << 20));

tool({ name: "steps", description: "Takes steps.", input: nothing, effect: "read" }, async (_args, { progress }) => {
  progress(undefined, "begins");
  for (let step = 1; step <= 100; step += 1) progress(step / 100, `step ${step}`);
  await sleep(700);
  assert.throws(() => progress(2), TypeError);
  return "done";
});

const Stock = z.object({ sku: z.string(), pieces: z.int() });
tool({ name: "stock", description: "Counts.", input: nothing, output: Stock, effect: "read" }, () => ({ sku: "A", pieces: 1, secret: 2 }));

tool({ name: "compose", description: "Calls another tool.", input: nothing, effect: "read" }, async (_args, context) => {
  const quote = (await context.call("quote", { order: "A-1" })).unwrap();
  const refund = await context.call("refund", { amount: quote.amount });
  return refund.ok ? "refunded" : refund.error;
});

tool({ name: "raw", description: "Takes plain JSON Schema.", input: { type: "object", properties: { n: { type: "integer" } } } }, ({ n }) => ({ n, type: typeof n }));
