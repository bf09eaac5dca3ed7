/** Typed replies, as docs/reference/protocol.md specifies them. */
import type { Dialect } from "./definitions.js";
import { Conflict, FleetError, Rejected } from "./errors.js";
import { read } from "./json.js";

/** The error of a call. The message is written for the model. */
export interface CallError {
  /** Error code for programs. */
  code: string;
  /** Message for the model. */
  message: string;
  /** Details that depend on the code. */
  details?: unknown;
}

/** The result of one call. */
export interface Result {
  /** Call id of the fleet, `<turn id>/<position>`. */
  call: string;
  /** Tool, as the model named it. */
  tool: string;
  /** Whether `outcome` is `ok`. */
  success: boolean;
  /** `ok`, `denied`, `invalid_arguments`, `outcome_unknown`, … Later versions can add outcomes. */
  outcome: string;
  /**
   * Output as JSON; `undefined` if the call failed. Integers beyond `Number.MAX_SAFE_INTEGER` are `bigint`; numbers
   * beyond `Number.MAX_VALUE` are text.
   */
  output: unknown;
  /** Error of a failed call. */
  error: CallError | undefined;
  /** Call id of the provider, unchanged. */
  toolCallId: string | null;
  /** Content type of the output. */
  contentType: string;
  /** Duration of the last attempt in milliseconds. */
  durationMs: number;
  /** Number of attempts. 0 if the call never ran. */
  attempts: number;
  /** The earlier equal call whose outcome this is. */
  repeats: string | undefined;
  /** The approval of the call: `id`, `by`, and `arguments` if an approver changed them. */
  approval: Record<string, unknown> | undefined;
  /** Set if the output comes from the read cache: `age_ms` and the original `call`. */
  cached: Record<string, unknown> | undefined;
  /** A note to the agent, which the message to the model contains too. */
  note: string | undefined;
}

/** The reply to a turn or task, with one result per call, in order. */
export interface Reply {
  /** Id of the turn or task. */
  id: string;
  /** `turn` or `task`. */
  kind: "turn" | "task";
  /** Tenant. */
  tenant: string;
  /** Agent that made the calls. */
  agent: string;
  /** `pending_approval` is not final: a call waits for approval. */
  status: "done" | "rejected" | "conflict" | "pending_approval";
  /** Dialect of `messages`. */
  dialect: string;
  /** One result per call, in order. */
  results: Result[];
  /** Results in the dialect of the turn, ready to append to the conversation. Empty for `raw`. */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  messages: any[];
  /** Reason of a rejection. */
  error: CallError | undefined;
  /** The producer's own id. */
  correlationId: string | undefined;
  /** W3C trace context. */
  traceparent: string | undefined;
  /** One audit entry per call, if the turn has `audits`. */
  audits: unknown[] | undefined;
  /** The approval, if the status is `pending_approval`: `id`, `call`, `tool`, `requested_ms`, `until_ms`. */
  approval: Record<string, unknown> | undefined;
  /** Number within the inbox. Absent if the reply comes from the record. */
  seq: number | undefined;
  /** Missing replies before this one: expired, or taken by another reader. */
  missed: number;
  /** Whether the message was accepted and every call succeeded. */
  ok: boolean;
  /** The reply as JSON, with fields that this type lacks. */
  raw: Record<string, unknown>;
}

// eslint-disable-next-line @typescript-eslint/no-explicit-any
function resultOf(value: any): Result {
  return {
    call: value.call,
    tool: value.tool,
    success: Boolean(value.success),
    outcome: value.outcome,
    output: value.output,
    error: value.error ?? undefined,
    toolCallId: value.tool_call_id ?? null,
    contentType: value.content_type ?? "application/json",
    durationMs: value.duration_ms ?? 0,
    attempts: value.attempts ?? 0,
    repeats: value.repeats,
    approval: value.approval,
    cached: value.cached,
    note: value.note,
  };
}

/** Reads a reply. Throws a {@link FleetError} if the text is not a reply. */
export function readReply(text: string, seq?: number, missed = 0): Reply {
  try {
    // eslint-disable-next-line @typescript-eslint/no-explicit-any
    const value = read(text) as any;
    const results: Result[] = value.results.map(resultOf);
    const isTask = value.turn_id === undefined && value.task_id !== undefined;
    return {
      id: (isTask ? value.task_id : value.turn_id) ?? "",
      kind: isTask ? "task" : "turn",
      tenant: value.tenant,
      agent: value.agent ?? "",
      status: value.status,
      dialect: value.dialect,
      results,
      messages: value.messages ?? [],
      error: value.error ?? undefined,
      correlationId: value.correlation_id,
      traceparent: value.traceparent,
      audits: value.tool_call_audits,
      approval: value.approval,
      seq,
      missed,
      ok: value.status === "done" && results.every((result) => result.success),
      raw: value,
    };
  } catch (error) {
    throw new FleetError("unreadable", `cannot read a reply: ${(error as Error).message}`, { cause: error });
  }
}

export const UNKNOWN_TENANT = "unknown_tenant";

/**
 * Returns the rejection of a turn or task (`<tenant>:<id>`) whose tenant is not configured. Such a tenant has no inbox,
 * so the fleet writes no reply.
 */
export function absent(place: string, kind: "turn" | "task"): Reply {
  const [tenant = "", id = ""] = place.split(":");
  const message = `tenant "${tenant}" is not configured: is it misspelled? Nothing was carried out`;
  const head = { [`${kind}_id`]: id, tenant, status: "rejected", dialect: "raw", results: [] };
  return readReply(JSON.stringify({ ...head, error: { code: UNKNOWN_TENANT, message } }));
}

/**
 * Reads the value of `done:<tenant>:<id>`: a line for the fleet, then the reply. Returns `undefined` if memory was
 * short, so that the record has no reply.
 */
export function readRecord(record: string): Reply | undefined {
  const end = record.indexOf("\n");
  const reply = end < 0 ? "" : record.slice(end + 1);
  return reply === "" ? undefined : readReply(reply);
}

/** Returns whether this is the last reply about the turn or task. */
export function isEnd({ status }: Reply): boolean {
  return status === "done" || status === "rejected" || status === "conflict";
}

/** Returns the reply if the message was accepted. Otherwise throws {@link Rejected} or {@link Conflict}. */
export function accepted(reply: Reply): Reply {
  if (reply.status === "done") return reply;
  const { code, message } = reply.error ?? { code: "internal", message: "no reason was given" };
  if (reply.status === "conflict") throw new Conflict(reply.id, message);
  throw new Rejected(code, message, reply);
}
