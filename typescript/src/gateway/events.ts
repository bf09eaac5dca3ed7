/** Events of a task from a gateway, as server-sent events. */
import { FleetError, NotFound, Unavailable } from "../errors.js";
import type { TaskEvent } from "../events.js";
import { type Reply, readReply } from "../reply.js";
import { type Http, RetryBudget, answerOf, checked, passing, segment, unreachable } from "./http.js";
import { EventReader, type ServerSentEvent } from "./sse.js";

/**
 * The steps of a task's history. Other events of a gateway (accepted, execute, waiting, capped) are not steps, and have
 * no positions of their own.
 */
const STEPS = new Set(["plan", "result", "note", "agent_message"]);
const ENDS = new Set(["answer", "failed"]);
/** Ms after which a stream counts as healthy, so that the retry_timeout starts again. */
const GOOD_MS = 5_000;
/** Ms without data after which a stream counts as lost. A gateway sends something every 15 s. */
const SILENCE_MS = 45_000;

class Later extends Error {
  constructor(
    readonly error: FleetError,
    readonly ms?: number,
  ) {
    super(error.message);
  }
}

/** Yields the events of a task from a position on. If the stream is lost, continues after the last reported step. */
export async function* follow(
  http: Http,
  tenant: string | undefined,
  taskId: string,
  start: number,
): AsyncGenerator<TaskEvent> {
  let position = start;
  let retries = new RetryBudget(http.retryTimeoutMs);
  for (;;) {
    const began = performance.now();
    const cameFrom = position;
    let trouble = new Later(new Unavailable("the gateway ended the event stream before the task ended"));
    try {
      for await (const { kind, value } of events(http, tenant, taskId, position)) {
        if (ENDS.has(kind)) {
          const reply = await replyOf(http, tenant, taskId);
          yield { kind: "ended", position: value.position, text: "", calls: [], ...(reply && { reply }) };
          return;
        }
        if (!STEPS.has(kind)) continue;
        position = value.position;
        yield stepOf(kind as TaskEvent["kind"], value);
      }
    } catch (error) {
      http.checkOpen(error);
      if (!(error instanceof Later)) throw error;
      trouble = error;
      const reply = error.error instanceof NotFound ? await replyOf(http, tenant, taskId) : undefined;
      if (reply?.status === "rejected") {
        yield { kind: "ended", position, text: "", calls: [], reply };
        return;
      }
    }
    if (position > cameFrom || performance.now() - began > GOOD_MS) retries = new RetryBudget(http.retryTimeoutMs);
    await retries.pause(trouble.error, trouble.ms, http.closed).catch((error) => {
      http.checkOpen(error);
      throw error;
    });
  }
}

function stepOf(kind: TaskEvent["kind"], value: ServerSentEvent["value"]): TaskEvent {
  return {
    kind,
    position: value.position,
    text: String(value.text ?? value.content ?? ""),
    tool: value.tool,
    success: value.ok,
    calls: value.calls ?? [],
  };
}

async function replyOf(http: Http, tenant: string | undefined, taskId: string): Promise<Reply | undefined> {
  const answer = await http.ask("GET", `/v1/turns/${taskId}`, tenant);
  return answer.status === 200 || answer.status === 422 ? readReply(answer.text) : undefined;
}

async function* events(http: Http, tenant: string | undefined, taskId: string, position: number) {
  http.checkOpen();
  const silent = new AbortController();
  const end = () => silent.abort();
  const timer = setTimeout(end, SILENCE_MS);
  http.closed.addEventListener("abort", end);
  try {
    const headers = { accept: "text/event-stream", ...(position > 0 && { "last-event-id": String(position) }) };
    const path = `/v1/tasks/${segment(taskId)}/events`;
    const response = await http.fetch("GET", path, tenant, { headers, signal: silent.signal }).catch(broken);
    if (response.status !== 200 || response.body === null) {
      const answer = checked(await answerOf(response).catch(broken));
      // A task that is not found may not be admitted yet.
      throw new Later(answer.status === 404 ? new NotFound(answer.message) : passing(answer), answer.retryAfterMs);
    }
    const events = new EventReader();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read().catch(broken);
      if (done) return;
      timer.refresh();
      yield* events.take(value);
    }
  } finally {
    clearTimeout(timer);
    http.closed.removeEventListener("abort", end);
    end();
  }
}

function broken(error: unknown): never {
  throw error instanceof FleetError ? error : new Later(unreachable(error));
}
