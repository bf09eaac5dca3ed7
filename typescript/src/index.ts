/**
 * The client for producers in TypeScript: submit the calls of a model, delegate tasks, get the replies.
 *
 * ```ts
 * import { Fleet } from "tickfleet";
 *
 * const fleet = new Fleet({ url: "redis://127.0.0.1:6379", tenant: "demo" });
 * const reply = await fleet.run({ agent: "kelly", toolCalls: message.tool_calls });
 * messages.push(...reply.messages);
 * ```
 *
 * `new Fleet({ url: "https://gateway.example.com", apiKey })` is the same through a gateway.
 */
export * from "./errors.js";
export type { TaskEvent } from "./events.js";
export type { DirectOptions } from "./direct.js";
export { Fleet, type FleetOptions, Submitted, SubmittedTask, type Waiting, type TenantOption } from "./fleet.js";
export { CallFailed, CallRefused, type CallOptions, type GovernedOptions, OutcomeUnknown, ToolError, governed } from "./governed.js";
export { Replies } from "./replies.js";
export { type CommonFields, type Task, type Turn, shardOf } from "./message.js";
export type { Dialect } from "./definitions.js";
export type { CallError, Reply, Result } from "./reply.js";
