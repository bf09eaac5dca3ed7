/** Messages of a producer: turns, tasks and cancels as JSON, with the checks that a producer can make. */
import { randomUUID } from "node:crypto";

import { InvalidMessage } from "./errors.js";
import { write } from "./json.js";
import type { Dialect } from "./definitions.js";

/** Fields of turns and tasks. */
export interface CommonFields {
  /** Tenant. Default: the client's tenant. */
  tenant?: string;
  /** Priority. Default: `normal`. */
  priority?: "urgent" | "high" | "normal" | "low";
  /** Expiry: a date, or RFC 3339. Calls that have not run end as `expired`. */
  deadline?: Date | string;
  /** User data as JSON. Every tool and rule can read it. */
  userContext?: unknown;
  /** Conversation data for tools and rules. */
  sessionData?: unknown;
  /** Session of the facts. */
  sessionId?: string;
  /** Your own id, which the reply repeats. */
  correlationId?: string;
  /** W3C trace context. */
  traceparent?: string;
  /** W3C trace state. */
  tracestate?: string;
  /** Tools that the calls can use, among those of the agent. */
  allowedTools?: readonly string[];
}

/** A turn. Set exactly one of `toolCalls`, `content`, `calls` and `answer`. */
export interface Turn extends CommonFields {
  /** Agent that makes the calls. */
  agent: string;
  /** Calls of an OpenAI Chat message, unmodified. */
  toolCalls?: readonly unknown[];
  /** Content blocks of Anthropic Messages; with a `format`, Gemini's content. */
  content?: unknown;
  /** `[{id?, name, arguments?}]`, or in the dialect that `format` names. */
  calls?: unknown;
  /** Text output of a model without function calling. */
  answer?: string;
  /** Dialect of `calls` or `content`. */
  format?: Dialect;
  /** Makes the turn idempotent: the same id with the same calls runs once. */
  turnId?: string;
  /** Task that the turn belongs to. */
  taskId?: string;
  /** Whether the reply contains the audit entries of the calls. */
  audits?: boolean;
  /** Whether the model had strict definitions. */
  strict?: boolean;
  /** Stop reason of the provider (`finish_reason`, `stop_reason`). A truncated call does not run. */
  stopReason?: string | null;
  /** Whether consecutive calls of read-only tools can run in parallel. */
  parallelReads?: boolean;
  /** Whether `Submitted.pending` lists the calls that wait for approval. */
  pendingApproval?: boolean;
}

/** A task for an agent. */
export interface Task extends CommonFields {
  /** Agent that receives the task. */
  agent: string;
  /** Task, in words. */
  description: string;
  /** Structured input, as JSON. */
  input?: unknown;
  /** Makes the delegation idempotent. */
  taskId?: string;
  /** Agent that delegates the task. */
  delegator?: string;
  /** Running parent task, whose budget is debited. */
  parentTaskId?: string;
  /** Calls that turns under the task can make. */
  budget?: number;
  /** Capabilities that turns under the task keep. */
  capabilities?: readonly string[];
}

/** A message to send. */
export type Message = Record<string, unknown>;

const MESSAGE_BYTES_MAX = 1_048_576;
const CALLS = ["toolCalls", "content", "calls", "answer"] as const;

/** Protocol names that are not the field's name in snake case. */
const RENAMED: Record<string, string> = { audits: "tool_call_audits" };

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? 0xedb88320 ^ (crc >>> 1) : crc >>> 1;
  return crc;
});

/**
 * Computes the CRC-32 as in zip, which gives the shard of a tenant. (`zlib.crc32` needs a newer Node.js than the oldest
 * supported version.)
 */
export function crc32(text: string): number {
  let crc = 0xffffffff;
  for (const byte of Buffer.from(text, "utf8")) crc = (CRC_TABLE[(crc ^ byte) & 0xff] ?? 0) ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

/** Returns the shard of a tenant. */
export function shardOf(tenant: string, shards: number): number {
  return crc32(tenant) % shards;
}

/**
 * Returns the value if it is a valid name of a tenant, an agent or an inbox, or a valid id. Otherwise throws {@link
 * InvalidMessage}.
 */
export function nameOf(value: unknown, what: string, bytesMax = 64): string {
  if (typeof value !== "string" || !/^[A-Za-z0-9_.-]+$/.test(value) || value.length > bytesMax) {
    throw new InvalidMessage(
      `${what} is ${JSON.stringify(value)}; expected 1 to ${bytesMax} characters of A-Z a-z 0-9 _ . -`,
    );
  }
  return value;
}

/** Returns the value if it is a valid id. */
export function idOf(value: unknown, what: string): string {
  return nameOf(value, what, 96);
}

function snake(key: string): string {
  return RENAMED[key] ?? key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

function filled(fields: object): Message {
  const said: Message = {};
  for (const [key, value] of Object.entries(fields)) {
    if (value === undefined || value === null || value === false) continue;
    said[snake(key)] = value instanceof Date ? value.toISOString() : value;
  }
  return said;
}

/** A gateway derives a missing tenant from the key. */
function ownerOf(tenant: string | undefined): Message {
  return tenant === undefined ? {} : { tenant: nameOf(tenant, "tenant") };
}

/** Builds a turn. Generates an id if none is given, so that the turn can be sent again after a lost connection. */
export function turnMessage(tenant: string | undefined, turn: Turn, replyTo: string | undefined): Message {
  const { tenant: _, agent, ...fields } = turn;
  const given = CALLS.filter((key) => fields[key] !== undefined && fields[key] !== null);
  if (given.length !== 1) {
    throw new InvalidMessage(`a turn has exactly one of ${CALLS.join(", ")}; found ${given.join(", ") || "none"}`);
  }
  return {
    ...ownerOf(tenant),
    agent: nameOf(agent, "agent"),
    ...(replyTo === undefined ? {} : { reply_to: nameOf(replyTo, "replyTo") }),
    ...filled(fields),
    turn_id: idOf(turn.turnId ?? randomUUID(), "turnId"),
  };
}

/** Builds a task, with an id as in {@link turnMessage}. */
export function taskMessage(tenant: string | undefined, task: Task, replyTo: string | undefined): Message {
  const { tenant: _, agent, description, ...fields } = task;
  return {
    op: "delegate",
    ...ownerOf(tenant),
    target_agent: nameOf(agent, "agent"),
    task_description: description,
    ...(replyTo === undefined ? {} : { reply_to: nameOf(replyTo, "replyTo") }),
    ...filled(fields),
    task_id: idOf(task.taskId ?? randomUUID(), "taskId"),
  };
}

/** Encodes a message for its stream. */
export function written(message: Message): string {
  const text = write(message);
  const length = Buffer.byteLength(text, "utf8");
  if (length > MESSAGE_BYTES_MAX) {
    throw new InvalidMessage(`it has ${length} bytes; at most ${MESSAGE_BYTES_MAX} are allowed`);
  }
  return text;
}

/** Fields that may differ between two submissions of the same turn. */
const ASIDE = new Set([
  "deadline",
  "priority",
  "reply_to",
  "user_context",
  "session_data",
  "session_id",
  "correlation_id",
  "traceparent",
  "tracestate",
  "strict",
  "parallel_reads",
  "local_calls",
  "pending_approval",
  "tool_call_audits",
]);

/** Returns the content by which this process recognizes an equal turn or task. */
export function asked(message: Message): string {
  return write(Object.entries(message).filter(([key]) => !ASIDE.has(key)).sort(([a], [b]) => (a < b ? -1 : 1)));
}
