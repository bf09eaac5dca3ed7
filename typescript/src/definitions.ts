/** The dialects, and tool definitions for a dialect, made from the shared form. */

/** The dialects of turns and replies. */
export type Dialect =
  | "raw"
  | "openai_chat"
  | "openai_responses"
  | "anthropic"
  | "mcp"
  | "gemini"
  | "mcp_2026_07_28"
  | "text";

export interface SharedTool {
  name: string;
  display_name: string;
  description: string;
  input_schema: unknown;
  output_schema?: unknown;
  effect: string;
  wire_names?: { openai?: string; gemini?: string; mcp?: string };
}

/** A tool list in Redis. */
export interface SharedList {
  tools: SharedTool[];
  text: string;
}

/** Returns the tools for a model request: an array; for `text` a string. */
export function defined(dialect: Dialect, list: SharedList): unknown {
  if (dialect === "text") return list.text;
  const tools = list.tools.map<unknown>(DEFINE[dialect]);
  return dialect === "gemini" && tools.length > 0 ? [{ functionDeclarations: tools }] : tools;
}

const DEFINE: Record<Exclude<Dialect, "text">, (tool: SharedTool) => unknown> = {
  raw: ({ wire_names: _, ...tool }) => tool,
  openai_chat: (tool) => ({ type: "function", function: openai(tool) }),
  openai_responses: (tool) => ({ ...openai(tool), strict: false, type: "function" }),
  anthropic: (tool) => ({ name: tool.wire_names?.openai ?? tool.name, description: tool.description, input_schema: tool.input_schema }),
  gemini: (tool) => ({
    name: tool.wire_names?.gemini ?? tool.name,
    description: tool.description,
    parametersJsonSchema: tool.input_schema,
  }),
  // Older revisions accept only objects as results.
  mcp: (tool) => mcp(tool, (output) => output.type === "object"),
  mcp_2026_07_28: (tool) => mcp(tool, () => true),
};

/** The dialects of tool definitions. */
export const DIALECTS: readonly string[] = [...Object.keys(DEFINE), "text"];

export function isDialect(name: string): name is Dialect {
  return DIALECTS.includes(name);
}

function openai(tool: SharedTool) {
  return { name: tool.wire_names?.openai ?? tool.name, description: tool.description, parameters: tool.input_schema };
}

function mcp(tool: SharedTool, takes: (output: { type?: unknown }) => boolean) {
  const output = tool.output_schema;
  const isTaken = typeof output === "object" && output !== null && takes(output);
  return {
    name: tool.wire_names?.mcp ?? tool.name,
    title: tool.display_name,
    description: tool.description,
    inputSchema: tool.input_schema,
    annotations: { readOnlyHint: tool.effect === "read", idempotentHint: tool.effect !== "once" },
    ...(isTaken && { outputSchema: output }),
  };
}
