/**
 * Tools in TypeScript: functions that a fleet runs for agents.
 *
 * ```ts
 * import { tool } from "tickfleet/tools";
 * import { z } from "zod";
 *
 * export const stock = tool(
 *   { name: "stock", description: "Returns the pieces in stock.", input: z.object({ sku: z.string() }), effect: "read" },
 *   async ({ sku }) => ({ sku, pieces: await piecesOf(sku) }),
 * );
 * ```
 */
export { InnerResult, type ToolContext, type ToolLogger } from "./context.js";
export { ToolError, type ToolErrorKind, type ToolErrorOptions } from "./error.js";
export { type ContentBlock, Image } from "./image.js";
export type { Approval, Cache, Durability, Reconcile } from "./options.js";
export type { JsonSchema, Received, Returned, Schema, SchemaIssue, StandardSchema } from "./schema.js";
export { DuplicateTool, type Effect, Tool, type ToolOptions, tool } from "./tool.js";
