/** Events of a task, from its history and its record. */
import { setTimeout as sleep } from "node:timers/promises";

import { read } from "./json.js";
import type { Redis } from "./redis.js";
import { type Reply, absent, readRecord } from "./reply.js";

const LOOK_EVERY_MS = 250;
/** Without a step for this time, the client checks whether the tenant exists. */
const ABSENT_AFTER_MS = 1_000;

/** An event of a task. */
export interface TaskEvent {
  /**
   * `plan`: the model requests calls. `result`: a call has its result. `note`: the model received a note. `agent_message`: the
   * model received another agent's message. `summary`: old steps were summarized. `ended`: the task has ended.
   */
  kind: "plan" | "result" | "note" | "agent_message" | "summary" | "ended" | "other";
  /** Number of steps so far, from which `follow` can continue. */
  position: number;
  /** Text of the event. */
  text: string;
  /** Tool of a result. */
  tool?: string;
  /** Whether the call succeeded. */
  success?: boolean;
  /** Calls of a plan, with the model's unmodified arguments. */
  calls: { tool: string; arguments: string }[];
  /** The task's reply, for `ended`, if its record has one. */
  reply?: Reply;
}

const KINDS = new Set(["plan", "result", "note", "agent_message", "summary"]);

/** An unreadable step, or one of a newer version, is `other`. */
function stepOf(entry: string, position: number): TaskEvent {
  try {
    // eslint-disable-next-line @typescript-eslint/no-explicit-any
    const value = read(entry) as any;
    return {
      kind: KINDS.has(value.k) ? value.k : "other",
      position,
      text: String(value.text ?? value.content ?? ""),
      tool: value.tool,
      success: value.ok,
      calls: value.calls ?? [],
    };
  } catch {
    return { kind: "other", position, text: "", calls: [] };
  }
}

/** Yields the events of a task from a position on. */
export async function* follow(redis: Redis, prefix: string, place: string, position: number): AsyncGenerator<TaskEvent> {
  const [first, started] = [position, performance.now()];
  for (;;) {
    // Read the record before the steps. Otherwise, the last steps could be lost.
    const record = await redis.get(`${prefix}done:${place}`);
    const steps = await redis.history(`${prefix}parts:steps:${place}`, position);
    for (const entry of steps) yield stepOf(entry, ++position);
    if (steps.length > 0) continue;
    if (record !== null) {
      const reply = readRecord(record);
      yield { kind: "ended", position, text: "", calls: [], ...(reply && { reply }) };
      return;
    }
    // By this time, the scheduler has rejected a message of an unknown tenant.
    const isLate = position === first && performance.now() - started > ABSENT_AFTER_MS;
    if (isLate && (await redis.isAbsent(prefix, place))) {
      yield { kind: "ended", position, text: "", calls: [], reply: absent(place, "task") };
      return;
    }
    await sleep(LOOK_EVERY_MS);
  }
}
