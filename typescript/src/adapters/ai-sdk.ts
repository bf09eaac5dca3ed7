/**
 * Tools of a fleet for Vercel's AI SDK:
 *
 * ```ts
 * const tools = await fleetTools(fleet, "kelly", { runId: requestId });
 * const { text } = await generateText({ model, prompt, tools, stopWhen: stepCountIs(5) });
 * ```
 *
 * The SDK makes each call of a step separately, so each call is a turn of its own. The turn's id is derived from
 * `runId`, the call id, and the results that the messages already contain for that call id. A repeated request, or an
 * approval that is resumed twice, receives the first result. The same call with other arguments is a `Conflict`. A call
 * that is repeated in a later step is a new call, even if the provider numbers the calls of each response from 1.
 */
import { createHash } from "node:crypto";

import { type ModelMessage, type StepResult, type ToolExecutionOptions, type ToolSet, dynamicTool, jsonSchema } from "ai";

import { FleetError, InvalidMessage, ReplyTimeout } from "../errors.js";
import type { Fleet, Waiting } from "../fleet.js";
import { write } from "../json.js";
import type { Turn } from "../message.js";
import type { Result } from "../reply.js";

/** A value, or a function that returns it and is called for each call with the SDK's call options. */
export type PerCall<Value> = Value | ((options: ToolExecutionOptions) => Value);

/** Fields that apply to the whole run. */
export type TurnFields = Pick<Turn, "tenant" | "priority" | "taskId" | "strict">;

/** Fields of the turn of every call, and the id of the run. */
export interface RunFields extends TurnFields, Waiting {
  /**
   * Id of the run. A repeated or resumed request must have the same id, any other request a different one. The SDK has
   * no such id.
   */
  runId: PerCall<string>;
  /** Tools that the model sees and may call, among those of the agent. */
  allowedTools?: readonly string[];
  /** Whether the model also sees the built-in tools `check_task`, `fetch_result` and `list_tools`. Default: `false`. */
  builtinTools?: boolean;
  /** Expiry: a date, or RFC 3339. Calls that have not run end as `expired`. */
  deadline?: PerCall<Date | string | undefined>;
  /** User data as JSON. Every tool and rule can read it. */
  userContext?: PerCall<unknown>;
  /** Conversation data for tools and rules. */
  sessionData?: PerCall<unknown>;
  /** Session of the facts. */
  sessionId?: PerCall<string | undefined>;
  /** Your own id, which the reply repeats. */
  correlationId?: PerCall<string | undefined>;
  /** W3C trace context. */
  traceparent?: PerCall<string | undefined>;
  /** W3C trace state. */
  tracestate?: PerCall<string | undefined>;
}

/** A call that was denied, limited or failed. Its message is for the model, and `code` is the outcome. */
export class CallFailed extends FleetError {
  /** The result of the call. */
  readonly result: Result;

  constructor(result: Result, message: string) {
    super(result.outcome, message);
    this.result = result;
  }
}

type OutputPart = { type: "input_text"; text: string } | { type: "input_image"; image_url: string };

type ContentPart = { type: "text"; text: string } | { type: "image-data"; data: string; mediaType: string };

function contentPart(part: OutputPart): ContentPart {
  if (part.type === "input_text") return { type: "text", text: part.text };
  const [mediaType = "", data = ""] = part.image_url.replace(/^data:/, "").split(";base64,");
  return { type: "image-data", data, mediaType };
}

/** Tools that every agent may call without a permission. */
const BUILTIN: readonly string[] = ["check_task", "fetch_result", "list_tools"];

interface Definition {
  function: { name: string; description?: string; parameters: object };
}

/**
 * Returns the agent's tools, which run in the fleet. A call that was denied or failed throws {@link CallFailed}, which
 * the SDK makes a `tool-error`, and the model reads its message.
 *
 * @throws {InvalidMessage} `runId` is missing, or `turnId` is set, which all calls would share.
 */
export async function fleetTools(fleet: Fleet, agent: string, given: RunFields): Promise<ToolSet> {
  // JavaScript callers can omit the third argument.
  const { runId, allowedTools, builtinTools = false, timeoutMs, ...fields } = (given ?? {}) as RunFields;
  if (typeof runId !== "function") runNamed(runId);
  if ("turnId" in fields) {
    throw new InvalidMessage("turnId: omit it; the adapter derives an id for the turn of each call");
  }
  if (allowedTools !== undefined && !Array.isArray(allowedTools)) {
    throw new InvalidMessage(`allowedTools is ${JSON.stringify(allowedTools)}; expected a list of names`);
  }
  // The fleet compares this field of a repeated turn, so the order must not change.
  const allowed = allowedTools && [...new Set([...allowedTools, ...(builtinTools ? BUILTIN : [])])].sort();
  const tools = (await chosen(fleet, agent, fields.tenant, allowed, builtinTools)).map(({ name, description, parameters }) => {
    const tool = dynamicTool({
      description,
      // The fleet checks arguments against the schema in any case.
      inputSchema: jsonSchema(parameters),
      execute: async (input, options) => {
        const { toolCallId, messages } = options;
        const run = runNamed(typeof runId === "function" ? runId(options) : runId);
        const own = Object.entries(fields).map(([key, value]) => [key, typeof value === "function" ? value(options) : value]);
        const args = write(sorted(input));
        const call = { type: "function_call", call_id: toolCallId, name, arguments: args };
        const turnId = turnIdOf([agent, run, toolCallId, resultsOf(messages, toolCallId)]);
        const turn: Turn = { ...Object.fromEntries(own), agent, calls: [call], format: "openai_responses", turnId };
        const reply = await fleet.run(allowed ? { ...turn, allowedTools: allowed } : turn, { timeoutMs });
        const [result, output] = [reply.results[0], reply.messages[0].output as string | OutputPart[]];
        if (typeof output === "string") {
          if (result !== undefined && !result.success) throw new CallFailed(result, output);
          return output;
        }
        return output.map(contentPart);
      },
      toModelOutput: ({ output }) =>
        Array.isArray(output) ? { type: "content", value: output as ContentPart[] } : { type: "text", value: String(output) },
    });
    return [name, tool] as const;
  });
  return Object.fromEntries(tools);
}

/**
 * A condition for `stopWhen`: a call has no reply yet, for example because it waits for an approval. Without it, the
 * model reads that the wait has ended. Make the request again later, with the same `runId` and the same messages.
 */
export function stillWaiting({ steps }: { steps: readonly Pick<StepResult<any>, "content">[] }): boolean {
  const content = steps.at(-1)?.content ?? [];
  return content.some((part) => part.type === "tool-error" && part.error instanceof ReplyTimeout);
}

/** In the SDK's dialect, a tool can have another name. */
async function chosen(
  fleet: Fleet,
  agent: string,
  tenant: string | undefined,
  allowed: readonly string[] | undefined,
  builtin: boolean,
): Promise<Definition["function"][]> {
  const shown: Definition[] = await fleet.tools(agent, { tenant });
  const definitions = shown.map((definition) => definition.function);
  const areNamed = (allowed ?? []).every((name) => definitions.some((definition) => definition.name === name));
  const raw: { name: string }[] = areNamed ? definitions : await fleet.tools(agent, { tenant, format: "raw" });
  return definitions.filter(({ name }, at) => {
    const names = [name, raw[at]?.name ?? name];
    if (allowed !== undefined) return names.some((one) => allowed.includes(one));
    return builtin || !names.some((one) => BUILTIN.includes(one));
  });
}

function runNamed(runId: unknown): string {
  if (typeof runId === "string" && runId !== "") return runId;
  throw new InvalidMessage(
    `runId is ${JSON.stringify(runId)}: a call cannot be distinguished from an equal call of another run. Pass fleetTools(fleet, agent, ` +
      "{ runId }): a text, or a function of the call's options. It must be the same if the request is repeated or resumed",
  );
}

function turnIdOf(parts: readonly (string | number)[]): string {
  return `ai-sdk-${createHash("sha256").update(JSON.stringify(parts)).digest("hex")}`;
}

/** Counts the results with this call id, because a provider may reuse ids in each response. */
function resultsOf(messages: readonly ModelMessage[], toolCallId: string): number {
  const parts = messages.flatMap((message) => (message.role === "tool" ? message.content : []));
  return parts.filter((part) => part.type === "tool-result" && part.toolCallId === toolCallId).length;
}

/**
 * A history that was stored and loaded may order members differently, and the fleet compares the text of a repeated
 * turn.
 */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null || Object.getPrototypeOf(value) !== Object.prototype) return value;
  const members = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(members.map(([key, member]) => [key, sorted(member)]));
}
