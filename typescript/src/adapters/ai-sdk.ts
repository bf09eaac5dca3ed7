/**
 * Tools of a fleet for the AI SDK of Vercel:
 *
 * ```ts
 * const { text } = await generateText({ model, prompt, tools: await fleetTools(fleet, "kelly"), stopWhen: stepCountIs(5) });
 * ```
 *
 * The SDK hands out the calls of a step one by one, so each is a turn of its own.
 */
import { type ToolSet, dynamicTool, jsonSchema } from "ai";

import type { Fleet } from "../fleet.js";
import { write } from "../json.js";
import type { Turn } from "../message.js";

/** The fields of a turn that go with every call. */
export type TurnFields = Omit<Turn, "agent" | "toolCalls" | "content" | "calls" | "answer" | "format" | "turnId">;

interface Definition {
  function: { name: string; description?: string; parameters: object };
}

/** The tools that the fleet lets the agent call; they are carried out there. */
export async function fleetTools(fleet: Fleet, agent: string, fields: TurnFields = {}): Promise<ToolSet> {
  const definitions: Definition[] = await fleet.tools(agent, { tenant: fields.tenant });
  const tools = definitions.map(({ function: { name, description, parameters } }) => {
    const tool = dynamicTool({
      description,
      // The fleet checks arguments against it in any case.
      inputSchema: jsonSchema(parameters),
      execute: async (input, { toolCallId }) => {
        const call = { id: toolCallId, type: "function", function: { name, arguments: write(input) } };
        const reply = await fleet.run({ ...fields, agent, toolCalls: [call] });
        return reply.messages[0].content as string;
      },
    });
    return [name, tool] as const;
  });
  return Object.fromEntries(tools);
}
