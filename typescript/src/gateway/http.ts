/** Requests to a gateway, sent again where that can help. */
import { setMaxListeners } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";

import {
  FleetError,
  Forbidden,
  NotAccepted,
  Pressure,
  QueueFull,
  Throttled,
  Unauthorized,
  Unavailable,
  Unsupported,
} from "../errors.js";
import { read } from "../json.js";

/** An answer comes within this time, ms, on top of what was asked to be waited. */
const ANSWER_MS = 10_000;
/** Pauses before each try again, ms; the last one is repeated. */
const PAUSES_MS = [50, 100, 200, 500, 1_000, 2_000];
/** The longest pause, ms, whatever is asked for: somebody waits. */
const PAUSE_MAX_MS = 60_000;
/** What the same request may do better after. */
const PASSING = new Set([429, 500, 502, 503, 504]);

export type ApiKey = string | (() => string | Promise<string>);

/** What a gateway answered. */
export class Answer {
  /** Seconds that the request was allowed to wait. */
  waited = 0;

  constructor(
    readonly status: number,
    readonly text: string,
    readonly retryAfterMs: number | undefined,
  ) {}

  /** An object; an empty one where what stands before the gateway has answered in its own way. */
  get json(): Record<string, unknown> {
    try {
      const value = read(this.text);
      return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
    } catch {
      return {};
    }
  }

  /** The JSON that it is, for programs: its numbers are those of JavaScript. */
  parsed(): unknown {
    try {
      return JSON.parse(this.text);
    } catch (cause) {
      const message = "the server is not a gateway: a proxy or another service answered without JSON";
      throw new FleetError("unreadable", message, { cause });
    }
  }

  /** The word for what is wrong. */
  get code(): string {
    return String((this.json["error"] as { code?: unknown } | undefined)?.code ?? "");
  }

  /** What is wrong, in words. */
  get message(): string {
    return String((this.json["error"] as { message?: unknown } | undefined)?.message ?? `status ${this.status}`);
  }
}

/** How long it is tried again: so many ms from the first failure. */
export class Tries {
  #end: number | undefined;
  #tries = 0;

  constructor(private readonly patienceMs: number) {}

  /**
   * Waits before the next try, at least as long as the gateway asks for, unless the signal ends it; throws the error where there
   * is none.
   */
  async pause(error: Error, atLeastMs = 0, signal?: AbortSignal): Promise<void> {
    const pause = PAUSES_MS[Math.min(this.#tries++, PAUSES_MS.length - 1)]!;
    // Not all at once: those who were refused together come back apart.
    const ms = Math.max(pause, atLeastMs) * (1 + Math.random() / 4);
    this.#end ??= performance.now() + this.patienceMs;
    if (performance.now() + ms >= this.#end) throw error;
    await sleep(Math.min(ms, PAUSE_MAX_MS), undefined, { ...(signal && { signal }) });
  }
}

/** One request. */
export interface Asked {
  body?: string;
  headers?: Record<string, string>;
  /** Seconds that the gateway was asked to wait. */
  wait?: number;
  /** Where it goes from the second time on, and does not wait; default the same place. */
  again?: string;
  /** How long it is tried again; default the client's patience. */
  tries?: Tries;
  /** Ends it before its time, also when the client is closed; default when it is closed. */
  signal?: AbortSignal;
}

/** A gateway's address and key. */
export class Http {
  readonly #url: string;
  readonly #key: ApiKey;
  readonly #closing = new AbortController();

  constructor(
    url: string,
    key: ApiKey,
    readonly patienceMs: number,
  ) {
    const parts = new URL(url);
    if (parts.search !== "" || parts.hash !== "" || parts.username !== "" || parts.password !== "") {
      throw new TypeError("the URL cannot be read: expected http://host[:port][/path] or https://…, and the key as apiKey");
    }
    this.#url = url.replace(/\/+$/, "");
    this.#key = typeof key === "function" ? key : checkedKey(key);
    // However many wait for it: that is no leak.
    setMaxListeners(0, this.closed);
  }

  /** Ends what is open. Whoever waits is told. */
  close(): void {
    this.#closing.abort();
  }

  /** Ends what goes on when the client is closed. */
  get closed(): AbortSignal {
    return this.#closing.signal;
  }

  /** Throws where the client was closed: whatever went wrong then, that is why. */
  checkOpen(cause?: unknown): void {
    if (this.closed.aborted) throw new FleetError("closed", "the fleet's client was closed", { cause });
  }

  /** An answer to a request that may be sent twice, waited for. Statuses that are about the request are the caller's. */
  async ask(method: string, path: string, tenant: string | undefined, asked: Asked = {}): Promise<Answer> {
    this.checkOpen();
    try {
      return await this.#tried(method, path, tenant, asked);
    } catch (error) {
      this.checkOpen(error);
      throw error;
    }
  }

  async #tried(method: string, path: string, tenant: string | undefined, asked: Asked): Promise<Answer> {
    const { tries = new Tries(this.patienceMs), signal = this.closed, again } = asked;
    let [place, wait] = [path, asked.wait ?? 0];
    for (;;) {
      let answer: Answer;
      try {
        answer = await within(wait * 1_000 + ANSWER_MS, signal, async (signal) =>
          answerOf(await this.fetch(method, place, tenant, { ...asked, signal })),
        );
      } catch (error) {
        if (error instanceof FleetError || signal.aborted) throw error;
        await tries.pause(unreachable(error), 0, signal);
        if (again !== undefined) [place, wait] = [again, 0];
        continue;
      }
      answer.waited = wait;
      if (!PASSING.has(answer.status)) return checked(answer);
      if (answer.code === "too_many_waiting" && again !== undefined && wait > 0) {
        // What was sent is taken in, and only the waiting was not: to be told so needs no patience.
        [place, wait] = [again, 0];
        continue;
      }
      await tries.pause(passing(answer), answer.retryAfterMs, signal);
      if (again !== undefined && answer.status >= 500) [place, wait] = [again, 0];
    }
  }

  /** One try; trouble with it is the caller's. */
  async fetch(method: string, path: string, tenant: string | undefined, { body, headers, signal }: Asked): Promise<Response> {
    const key = typeof this.#key === "function" ? checkedKey(await this.#key()) : this.#key;
    return fetch(this.#url + path, {
      method,
      headers: {
        accept: "application/json",
        authorization: `Bearer ${key}`,
        ...(body !== undefined && { "content-type": "application/json" }),
        ...(tenant !== undefined && { "tickfleet-tenant": tenant }),
        ...headers,
      },
      // A key goes where it was meant to go.
      redirect: "manual",
      ...(body !== undefined && { body }),
      ...(signal !== undefined && { signal }),
    });
  }
}

/** Does something that is ended when its time is over, or when the outer signal says so. */
export async function within<T>(
  ms: number,
  outer: AbortSignal | undefined,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const own = new AbortController();
  const stop = () => own.abort(outer?.reason);
  // What a timer cannot count is as good as for ever.
  const timer = ms < 2 ** 31 ? setTimeout(() => own.abort(new Error(`no response within ${ms} ms`)), ms) : undefined;
  outer?.addEventListener("abort", stop);
  try {
    outer?.throwIfAborted();
    // Not all that is waited for knows of signals: what gives a key may hang.
    const ended = new Promise<never>((_, fail) => own.signal.addEventListener("abort", () => fail(own.signal.reason)));
    return await Promise.race([work(own.signal), ended]);
  } finally {
    clearTimeout(timer);
    outer?.removeEventListener("abort", stop);
  }
}

function checkedKey(key: string): string {
  if (/^[\x21-\x7e]+$/.test(key)) return key;
  // Not what it is: errors are logged.
  throw new FleetError("invalid_key", "the gateway's API key contains whitespace or non-ASCII characters");
}

/** An id as a part of a path. Its characters need no escaping; one that means another place in a URL is {@link Unsupported}. */
export function segment(id: string): string {
  if (id !== "." && id !== "..") return id;
  throw new Unsupported(`the id ${id} is not valid in a URL and cannot be used through a gateway`);
}

/** An answer with what its headers say. */
export async function answerOf(response: Response): Promise<Answer> {
  const after = response.headers.get("retry-after") ?? "";
  // A date is for caches; no gateway says one.
  return new Answer(response.status, await response.text(), /^\d+$/.test(after) ? Number(after) * 1_000 : undefined);
}

/** No answer came. */
export function unreachable(error: unknown): Unavailable {
  const { message, cause } = error as Error;
  const why = cause instanceof Error ? cause.message || cause.name : message;
  return new Unavailable(`the gateway cannot be reached: ${why}`, { cause: error });
}

/** The answer, where the key was good for it, and it is the gateway's own. */
export function checked(answer: Answer): Answer {
  if (answer.status === 401) throw new Unauthorized(answer.message);
  if (answer.status === 403) throw new Forbidden(answer.message);
  if (answer.status >= 300 && answer.status < 400) {
    throw new FleetError("redirected", `the URL redirects (status ${answer.status}): use the gateway's own URL`);
  }
  return answer;
}

/** What is wrong now, and may be right later. */
export function passing(answer: Answer): FleetError {
  const { code, message, status } = answer;
  let error: NotAccepted;
  if (code === "queue_full") error = new QueueFull(`queue_full: ${message}`);
  else if (code === "pressure") error = new Pressure();
  // The turn was taken in, and only the waiting was not.
  else if (status === 429 && code !== "too_many_waiting") {
    error = new Throttled(code || "too_many_requests", `${code || "too_many_requests"}: ${message}`);
  } else return new Unavailable(`the gateway failed: ${message}`);
  error.retryAfterMs = answer.retryAfterMs;
  return error;
}
