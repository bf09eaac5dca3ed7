// Declarations of tools, and the test kit.
import assert from "node:assert/strict";
import test from "node:test";

import { z } from "zod";

import { callTool, toolContext } from "../dist/testing.js";
import { DuplicateTool, Image, InnerResult, ToolError, tool } from "../dist/tools/index.js";

let made = 0;
const declared = (options, run = () => null) => tool({ name: `t${(made += 1)}`, description: "Does.", input: z.object({}), ...options }, run);

test("arguments and results are JSON", async () => {
  const later = declared({ input: z.object({ day: z.iso.date(), n: z.int().default(1) }) }, ({ day, n }) => ({ day: new Date(day), n }));
  assert.deepEqual(await callTool(later, { day: "2026-02-28" }), { day: "2026-02-28T00:00:00.000Z", n: 1 });
  assert.equal(await callTool(declared({})), null);
});

test("a result with images is a list of content blocks", async () => {
  const png = new Image(Buffer.from("\x89PNG\r\n\x1a\n", "latin1"));
  const block = { type: "image", data: "iVBORw0KGgo=", mimeType: "image/png" };
  const results = { alone: png, mixed: ["text", png], nested: { image: png }, strings: ["text"] };
  const draw = (kind) => callTool(declared({}, () => results[kind]));
  assert.deepEqual(await draw("alone"), [block]);
  assert.deepEqual(await draw("mixed"), [{ type: "text", text: "text" }, block]);
  assert.deepEqual(await draw("nested"), { image: block });
  assert.deepEqual(await draw("strings"), ["text"]);
});

test("an image has a format that models can read", () => {
  const types = ["\xff\xd8\xff\xe0", "GIF87a", "RIFF1234WEBPVP8 "].map((text) => new Image(Buffer.from(text, "latin1")).mediaType);
  assert.deepEqual(types, ["image/jpeg", "image/gif", "image/webp"]);
  for (const text of ["", "<svg/>", "RIFF1234WAVE"]) {
    assert.throws(() => new Image(Buffer.from(text, "latin1")), /expected PNG, JPEG, GIF or WebP/);
  }
});

test("wrong arguments are reported in words", async () => {
  const area = declared({ input: z.object({ width: z.int(), deep: z.object({ height: z.int() }) }) });
  const wrong = callTool(area, { width: "wide", deep: {} });
  await assert.rejects(wrong, (error) => error instanceof ToolError && /^width: .*; deep\.height: /.test(error.message));
});

test("a test chooses the context, and other tools", async () => {
  const call = async (name) => (name === "quote" ? new InnerResult("ok", { amount: 2 }) : new InnerResult("denied", undefined, "no"));
  const refund = declared({}, async (_args, context) => {
    const { amount } = (await context.call("quote")).unwrap();
    const refunded = await context.call("refund", { amount });
    return `${context.tenant} ${context.agent} ${amount} ${refunded.ok} ${refunded.error}`;
  });
  assert.equal(await callTool(refund, {}, toolContext({ tenant: "demo", call })), "demo kelly 2 false no");
  await assert.rejects(callTool(refund), /No other tool can be called from here/);
});

test("a failed inner call that is unwrapped is a permanent failure", () => {
  assert.throws(() => new InnerResult("denied", undefined, "not allowed").unwrap(), { kind: "permanent", message: "not allowed" });
});

for (const [options, expected] of [
  [{ name: "" }, /name is ""; expected 1 to 64 characters/],
  [{ name: "a b" }, /name is "a b"/],
  [{ description: " " }, /description is " "; expected a text: models need it/],
  [{ effect: "reads" }, /effect is "reads"; expected read, idempotent or once/],
  [{ timeoutMs: 0 }, /timeoutMs is 0; expected more than 0/],
  [{ timeout: 5 }, /an option is "timeout"; expected one of name, description/],
  [{ requiresApproval: "yes" }, /requiresApproval is "yes"/],
  [{ requiredCapabilities: "refunds" }, /requiredCapabilities is "refunds"; expected a list of texts/],
  [{ version: 2 }, /version is 2; expected a text/],
  [{ version: "one" }, /version is "one"; expected a semantic version/],
  [{ effectKey: ["/to"] }, /effectKey is "\/to"; expected a required argument: none/],
  [{ effectKey: [] }, /effectKey is \[\]; expected 1 to 16 arguments/],
  [{ effectWindowMs: 5_000 }, /effectWindowMs is 5000; expected an effectKey beside it/],
  [{ cache: { ttlMs: 5_000 } }, /cache requires the effect read, and the effect is once/],
  [{ effect: "read", cache: { ttlMs: 1 } }, /cache\.ttlMs is 1; expected 1000 to 86400000 milliseconds/],
  [{ durable: "disk" }, /durable is "disk"; expected none, local or replica/],
  [{ approval: { quorum: 0 } }, /approval\.quorum is 0; expected 1 to 16/],
  [{ approval: { by: "finance" } }, /approval\.by is "finance"; expected a list of texts/],
  [{ reconcile: { tool: "find", happened: "found" } }, /reconcile\.happened is "found"; expected a JSON pointer/],
  [{ input: undefined }, /input is undefined; expected a schema/],
  [{ input: z.string() }, /input has the type "string"; arguments are an object/],
  [{ input: z.object({ day: z.date() }) }, /input has no JSON Schema: Date cannot be represented/],
  [{ input: { "~standard": { vendor: "valibot", version: 1 } } }, /toStandardJsonSchema/],
]) {
  test(`a declaration is refused: ${expected.source}`, () => {
    assert.throws(() => declared(options), (error) => error instanceof TypeError && expected.test(error.message));
  });
}

test("a schema of any library with the interface Standard JSON Schema works", async () => {
  const validate = async (value) => (value.n > 0 ? { value: { half: value.n / 2 } } : { issues: [{ message: "too small", path: [{ key: "n" }] }] });
  const jsonSchema = { input: ({ target }) => ({ $schema: target, type: "object" }), output: () => ({ type: "object" }) };
  const halved = declared({ input: { "~standard": { version: 1, vendor: "own", validate, jsonSchema } } }, ({ half }) => half);
  assert.equal(await callTool(halved, { n: 3 }), 1.5);
  await assert.rejects(callTool(halved, { n: 0 }), { kind: "invalid_arguments", message: "n: too small" });
  assert.deepEqual(halved.definition().input_schema, { type: "object" });
});

test("a name is registered once", () => {
  declared({ name: "twice" });
  assert.throws(() => declared({ name: "twice" }), DuplicateTool);
});

test("the declaration has every option, and the schemas of both sides", () => {
  const options = { id: "tool_7", effect: "read", cache: { ttlMs: 60_000 }, durable: "local", timeoutMs: 1_500, category: "shop", displayName: "Stock", version: "2.0.0", requiresApproval: true, requiredCapabilities: ["a"], requiredFeatures: ["b"] };
  const both = z.object({ n: z.int().default(1).describe("How many") });
  const { name, input_schema, output_schema, ...rest } = declared({ ...options, input: both, output: both }).definition();
  assert.deepEqual(rest, {
    description: "Does.",
    effect: "read",
    timeout_ms: 1_500,
    id: "tool_7",
    approval: null,
    effect_key: null,
    cache: { ttl_ms: 60_000, per: "tenant" },
    reconcile: null,
    durable: "local",
    category: "shop",
    display_name: "Stock",
    version: "2.0.0",
    requires_approval: true,
    required_capabilities: ["a"],
    required_features: ["b"],
  });
  assert.equal(input_schema.properties.n.description, "How many");
  assert.deepEqual([input_schema.required, output_schema.required], [undefined, ["n"]]);
});

test("the guards of a once tool are declared as the worker reads them", () => {
  const input = z.object({ to: z.string(), amount: z.number() });
  const { approval, effect_key, reconcile, durable } = declared({
    input,
    approval: { by: ["finance", "board"], quorum: 2, expiresMs: 3_600_000, narrow: ["/amount"] },
    effectKey: ["/to"],
    effectWindowMs: 5_000,
    reconcile: { tool: "find_payment", happened: "/found", arguments: { key: "$idempotency_key", to: "/to" } },
    durable: "replica",
  }).definition();
  assert.deepEqual(approval, { by: ["board", "finance"], quorum: 2, expires_ms: 3_600_000, narrow: ["/amount"] });
  assert.deepEqual(effect_key, { arguments: ["/to"], window_ms: 5_000 });
  const lookup = { tool: "find_payment", happened: "/found", arguments: { key: "$idempotency_key", to: "/to" } };
  assert.deepEqual(reconcile, { ...lookup, output: null, tries: 5, grace_ms: 60_000 });
  assert.equal(durable, "replica");
});

test("an error has only what belongs to its kind", () => {
  assert.throws(() => new ToolError("maybe", "no"), /permanent, transient or invalid_arguments/);
  assert.throws(() => new ToolError("permanent", "no", { retryAfterMs: 1 }), /for transient failures/);
  assert.throws(() => new ToolError("transient", "no", { details: {} }), /for permanent failures/);
  assert.throws(() => new ToolError("transient", "no", { retryAfterMs: Number.NaN }), /number of milliseconds/);
});
