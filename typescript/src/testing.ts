/**
 * For tests: calls a tool as a worker does, and starts a fleet for tests of a policy or an agent.
 *
 * ```ts
 * const shop = await fleet("conf");
 * const reply = await shop.client.run({ agent: "support", calls: [toolCall("refund_order", { order: "A-1001", amount: 15 })] });
 * assert(reply.ok && (await shop.effects("refund_order")) === 1);
 * await shop.close();
 * ```
 *
 * {@link scriptedModel} plays a model in a test of the whole loop.
 */
import { read } from "./json.js";
import { written } from "./tools/result.js";
import type { ToolContext, ToolLogger } from "./tools/context.js";
import { ToolError } from "./tools/error.js";
import type { Tool } from "./tools/tool.js";

export { type ScriptedCall, type ScriptedModel, TestFleet, type TestFleetOptions, fleet, scriptedModel, toolCall } from "./test-fleet.js";

const TIMEOUT_MS = 30_000;
const silent: ToolLogger = { debug() {}, info() {}, warn() {}, error() {} };

/** Returns the context of a call with 30 seconds left. `facts` replace fields. */
export function toolContext(facts: Partial<ToolContext> = {}): ToolContext {
  return {
    tenant: "acme",
    agent: "kelly",
    callId: "t1/0",
    idempotencyKey: "key-1",
    attempt: 1,
    userContext: null,
    sessionData: null,
    correlationId: undefined,
    traceparent: undefined,
    task: undefined,
    deadline: new Date(Date.now() + TIMEOUT_MS),
    signal: new AbortController().signal,
    log: silent,
    progress: () => {},
    call: async () => {
      throw new ToolError("permanent", "No other tool can be called from here.");
    },
    ...facts,
  };
}

/**
 * Calls a tool with JSON arguments, as a model would, and returns the JSON result. Arguments are validated by a schema
 * library, but not by a plain JSON Schema.
 *
 * @throws {ToolError} The arguments are invalid, or the tool failed.
 */
export async function callTool(tool: Tool, args: object = {}, context: ToolContext = toolContext()): Promise<any> {
  const result = await tool.callWith(written(args), context);
  return read(written(await tool.shown(result)));
}
