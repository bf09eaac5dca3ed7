// An agent written with Vercel's AI SDK runs its tools through a fleet with caps. Run `ai-sdk.mjs PACKAGE` with
// `REDIS_URL`, or with `GATEWAY_URL` and `GATEWAY_KEY`. PACKAGE is the folder of the built client. The model is a stub:
// one of its two calls is granted, and the daily cap of agent `frugal` rejects the other.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const home = resolve(process.argv[2]);
const { resolve: find } = createRequire(resolve(home, "package.json"));
const { generateText, stepCountIs } = await import(find("ai"));
const { MockLanguageModelV3 } = await import(find("ai/test"));
const { Fleet } = await import(resolve(home, "dist/index.js"));
const { CallFailed, fleetTools } = await import(resolve(home, "dist/adapters/ai-sdk.js"));

const reported = [];
const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
const model = new MockLanguageModelV3({
  doGenerate: async ({ prompt, tools }) => {
    assert(tools.some((tool) => tool.name === "echo"));
    const results = prompt.flatMap((message) => (message.role === "tool" ? message.content : []));
    if (results.length < 2) {
      const call = { type: "tool-call", toolCallId: `call_${results.length}`, toolName: "echo", input: '{"text":"hi"}' };
      return { content: [call], finishReason: { unified: "tool-calls" }, usage, warnings: [] };
    }
    reported.push(...results.map((result) => result.output.value));
    return { content: [{ type: "text", text: "done" }], finishReason: { unified: "stop" }, usage, warnings: [] };
  },
});

const { GATEWAY_URL: url, GATEWAY_KEY: apiKey } = process.env;
const fleet = new Fleet(url === undefined ? { tenant: "ai-sdk" } : { url, apiKey });
const tools = await fleetTools(fleet, "frugal", { runId: "run-1" });
const { text, steps } = await generateText({ model, prompt: "Go.", tools, stopWhen: stepCountIs(5) });
assert.equal(text, "done");
const failed = steps.flatMap((step) => step.content).find((part) => part.type === "tool-error");
assert(failed.error instanceof CallFailed && failed.error.code === failed.error.result.outcome, `${failed.error}`);

const names = async (given) => Object.keys(await fleetTools(fleet, "frugal", { runId: "run-2", ...given })).sort();
assert(!(await names({})).includes("list_tools"));
assert.deepEqual((await names({ builtinTools: true })).filter((name) => name === "list_tools"), ["list_tools"]);
assert.deepEqual(await names({ allowedTools: ["echo", "nowhere"] }), ["echo"]);
const narrowed = await fleetTools(fleet, "frugal", { runId: "run-3", allowedTools: ["echo"], builtinTools: true });
assert.deepEqual(Object.keys(narrowed).sort(), ["check_task", "echo", "fetch_result", "list_tools"]);
await fleet.close();
assert.equal(reported[0], '{"text":"hi"}');
assert.match(reported[1], /resets_at/);
console.log("ai-sdk: ok");
