/**
 * Tools of a fleet for Vercel's AI SDK:
 *
 * ```ts
 * const tools = await fleetTools(fleet, "kelly", { runId: requestId });
 * const { text } = await generateText({ model, prompt, tools, stopWhen: stepCountIs(5) });
 * ```
 *
 * The SDK makes each call of a step separately, so each call is a turn of its own. The turn's id is derived from
 * `runId`, the call id, the arguments, and the results that the messages already contain for that call id. A repeated
 * request, or an approval that is resumed twice, receives the first result. A call that is repeated in a later step is
 * a new call, even if the provider numbers the calls of each response from 1.
 */
import { createHash } from "node:crypto";

import { type ModelMessage, type ToolExecutionOptions, type ToolSet, dynamicTool, jsonSchema } from "ai";

import { InvalidMessage } from "../errors.js";
import type { Fleet } from "../fleet.js";
import { write } from "../json.js";
import type { Turn } from "../message.js";

/** Fields of the turn of every call. */
export type TurnFields = Omit<Turn, "agent" | "toolCalls" | "content" | "calls" | "answer" | "format" | "turnId">;

/** Fields of the turn of every call, and the id of the run. */
export interface RunFields extends TurnFields {
  /**
   * Id of the run, or a function of the SDK's call options that returns one. A repeated or resumed request must have
   * the same id, any other request a different one. The SDK has no such id.
   */
  runId: string | ((options: ToolExecutionOptions) => string);
}

interface Definition {
  function: { name: string; description?: string; parameters: object };
}

/**
 * Returns the agent's tools, which run in the fleet.
 *
 * @throws {InvalidMessage} `runId` is missing, or `turnId` is set, which all calls would share.
 */
export async function fleetTools(fleet: Fleet, agent: string, given: RunFields): Promise<ToolSet> {
  // JavaScript callers can omit the third argument.
  const { runId, ...fields } = (given ?? {}) as RunFields;
  if (typeof runId !== "function") runNamed(runId);
  if ("turnId" in fields) {
    throw new InvalidMessage("turnId: omit it; the adapter derives an id for the turn of each call");
  }
  const definitions: Definition[] = await fleet.tools(agent, { tenant: fields.tenant });
  const tools = definitions.map(({ function: { name, description, parameters } }) => {
    const tool = dynamicTool({
      description,
      // The fleet checks arguments against the schema in any case.
      inputSchema: jsonSchema(parameters),
      execute: async (input, options) => {
        const { toolCallId, messages } = options;
        const run = runNamed(typeof runId === "function" ? runId(options) : runId);
        const args = write(sorted(input));
        const call = { id: toolCallId, type: "function", function: { name, arguments: args } };
        const turnId = turnIdOf([agent, run, toolCallId, resultsOf(messages, toolCallId), name, args]);
        const reply = await fleet.run({ ...fields, agent, toolCalls: [call], turnId });
        return reply.messages[0].content as string;
      },
    });
    return [name, tool] as const;
  });
  return Object.fromEntries(tools);
}

function runNamed(runId: unknown): string {
  if (typeof runId === "string" && runId !== "") return runId;
  throw new InvalidMessage(
    `runId is ${JSON.stringify(runId)}: a call cannot be distinguished from an equal call of another run. Pass fleetTools(fleet, agent, ` +
      "{ runId }): a text, or a function of the call's options. It must be the same if the request is repeated or resumed",
  );
}

/** Returns an id that is the same for equal parts, and differs for different ones. */
function turnIdOf(parts: readonly (string | number)[]): string {
  return `ai-sdk-${createHash("sha256").update(JSON.stringify(parts)).digest("hex")}`;
}

/** Returns the number of calls with this id that already have results. A provider may reuse ids in each response. */
function resultsOf(messages: readonly ModelMessage[], toolCallId: string): number {
  const parts = messages.flatMap((message) => (message.role === "tool" ? message.content : []));
  return parts.filter((part) => part.type === "tool-result" && part.toolCallId === toolCallId).length;
}

/**
 * Returns the arguments with sorted members, because a history that was stored and loaded may order them differently,
 * and the fleet compares the text of a repeated turn.
 */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null || Object.getPrototypeOf(value) !== Object.prototype) return value;
  const members = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(members.map(([key, member]) => [key, sorted(member)]));
}
