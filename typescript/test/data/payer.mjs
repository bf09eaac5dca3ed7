// Pays in a separate process: `payer.mjs JSON`. Prints the result, or the code of the error.
import { generateText, stepCountIs } from "ai";
import { MockLanguageModelV3 } from "ai/test";

import { fleetTools } from "../../dist/adapters/ai-sdk.js";
import { Fleet, governed } from "../../dist/index.js";

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };

/**
 * Returns a model that asks for `payments` payments, each in its own step, all under the same call ID, and then ends.
 */
export function model({ order, payments = 1, amount = 10 }) {
  return new MockLanguageModelV3({
    doGenerate: async ({ prompt }) => {
      const parts = prompt.flatMap((message) => (message.role === "tool" ? message.content : []));
      const done = parts.filter((part) => part.type === "tool-result").length >= payments;
      const call = { type: "tool-call", toolCallId: "call_1", toolName: "pay", input: JSON.stringify({ order, amount }) };
      return done
        ? { content: [{ type: "text", text: "done" }], finishReason: { unified: "stop" }, usage, warnings: [] }
        : { content: [call], finishReason: { unified: "tool-calls" }, usage, warnings: [] };
    },
  });
}

/** Makes the request of an agent. Returns the outputs of its calls, and the codes of those that failed. */
export async function ask(fleet, { order, runId, messages = prompt, timeoutMs, ...asked }) {
  const tools = await fleetTools(fleet, "kelly", { runId, timeoutMs });
  const result = await generateText({ model: model({ order, ...asked }), messages, tools, stopWhen: stepCountIs(4) });
  const parts = result.steps.flatMap((step) => step.content);
  return {
    outputs: result.steps.flatMap((step) => step.toolResults.map((part) => JSON.parse(part.output))),
    errors: parts.filter((part) => part.type === "tool-error").map((part) => part.error.code),
    messages: result.response.messages,
  };
}

export const prompt = [{ role: "user", content: "Pay." }];

/** Posts a payment to the bank. */
export async function post(bank, { order, amount }) {
  const response = await fetch(`${bank}/pay`, { method: "POST", body: JSON.stringify({ order, amount }) });
  return response.json();
}

async function refunds(fleet, { bank, order, turnId, how }) {
  const refund = governed(fleet, { agent: "kelly", tool: "refund" }, async (args) => {
    if (how === "dies before it pays") process.kill(process.pid, "SIGKILL");
    const paid = await post(bank, args);
    if (how === "dies after it has paid") process.kill(process.pid, "SIGKILL");
    // The lease ends while the process is stopped.
    if (how === "pauses after it has paid") process.kill(process.pid, "SIGSTOP");
    return paid;
  });
  return refund({ order, amount: 5 }, { turnId });
}

if (process.argv[2] !== undefined && process.argv[1].endsWith("payer.mjs")) {
  const asked = JSON.parse(process.argv[2]);
  const fleet = new Fleet(asked.connection);
  const work = asked.runId === undefined ? refunds(fleet, asked) : ask(fleet, asked);
  console.log(JSON.stringify(await work.then((value) => ({ value }), (error) => ({ error: error.code ?? String(error) }))));
  await fleet.close();
}
