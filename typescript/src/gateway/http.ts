/** Requests to a gateway, with retries. */
import { setMaxListeners } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";

import {
  FleetError,
  Forbidden,
  NotAccepted,
  MemoryPressure,
  QueueFull,
  Throttled,
  Unauthorized,
  Unavailable,
  Unsupported,
} from "../errors.js";
import { read } from "../json.js";

/** In ms, in addition to the requested wait. */
const ANSWER_MS = 10_000;
/** In ms; the last value is repeated. */
const PAUSES_MS = [50, 100, 200, 500, 1_000, 2_000];
/** In ms. A gateway may request a longer pause, but a caller is waiting. */
const PAUSE_MAX_MS = 60_000;
const PASSING = new Set([429, 500, 502, 503, 504]);

export type ApiKey = string | (() => string | Promise<string>);

/** The response of a gateway. */
export class Answer {
  waited = 0;

  constructor(
    readonly status: number,
    readonly text: string,
    readonly retryAfterMs: number | undefined,
  ) {}

  /** Empty if a proxy has responded in another format. */
  get json(): Record<string, unknown> {
    try {
      const value = read(this.text);
      return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
    } catch {
      return {};
    }
  }

  parsed(): unknown {
    try {
      return JSON.parse(this.text);
    } catch (cause) {
      const message = "the server is not a gateway: a proxy or another service answered without JSON";
      throw new FleetError("unreadable", message, { cause });
    }
  }

  get code(): string {
    return String((this.json["error"] as { code?: unknown } | undefined)?.code ?? "");
  }

  get message(): string {
    return String((this.json["error"] as { message?: unknown } | undefined)?.message ?? `status ${this.status}`);
  }
}

/** Retries until `retryTimeoutMs` after the first failure. */
export class RetryBudget {
  #end: number | undefined;
  #tries = 0;

  constructor(private readonly retryTimeoutMs: number) {}

  /**
   * Waits at least as long as the gateway requests, unless the signal ends the wait. Throws the error if the wait would
   * exceed the retry_timeout.
   */
  async pause(error: Error, atLeastMs = 0, signal?: AbortSignal): Promise<void> {
    const pause = PAUSES_MS[Math.min(this.#tries++, PAUSES_MS.length - 1)]!;
    // Jitter: requests that were rejected together must not return together.
    const ms = Math.max(pause, atLeastMs) * (1 + Math.random() / 4);
    this.#end ??= performance.now() + this.retryTimeoutMs;
    if (performance.now() + ms >= this.#end) throw error;
    await sleep(Math.min(ms, PAUSE_MAX_MS), undefined, { ...(signal && { signal }) });
  }
}

/** The options of a request. */
export interface RequestOptions {
  body?: string;
  headers?: Record<string, string>;
  /** Seconds that the gateway is asked to wait. */
  wait?: number;
  /** For later attempts, which do not wait. Default: the same path. */
  again?: string;
  /** Default: the client's retry_timeout. */
  retries?: RetryBudget;
  /**
   * The signal must also fire when the client is closed. Default: a signal that fires only when the client is closed.
   */
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
    readonly retryTimeoutMs: number,
  ) {
    const parts = new URL(url);
    if (parts.search !== "" || parts.hash !== "" || parts.username !== "" || parts.password !== "") {
      throw new TypeError("the URL cannot be read: expected http://host[:port][/path] or https://…, and the key as apiKey");
    }
    this.#url = url.replace(/\/+$/, "");
    this.#key = typeof key === "function" ? key : checkedKey(key);
    // Any number of requests may listen, so this disables the warning about leaks.
    setMaxListeners(0, this.closed);
  }

  close(): void {
    this.#closing.abort();
  }

  get closed(): AbortSignal {
    return this.#closing.signal;
  }

  /** Throws if the client was closed, because the close is then the cause of any other error. */
  checkOpen(cause?: unknown): void {
    if (this.closed.aborted) throw new FleetError("closed", "the fleet's client was closed", { cause });
  }

  /** The request must be safe to send twice. The caller handles statuses about the request. */
  async ask(method: string, path: string, tenant: string | undefined, options: RequestOptions = {}): Promise<Answer> {
    this.checkOpen();
    try {
      return await this.#attempt(method, path, tenant, options);
    } catch (error) {
      this.checkOpen(error);
      throw error;
    }
  }

  async #attempt(method: string, path: string, tenant: string | undefined, options: RequestOptions): Promise<Answer> {
    const { retries = new RetryBudget(this.retryTimeoutMs), signal = this.closed, again } = options;
    let [place, wait] = [path, options.wait ?? 0];
    for (;;) {
      let answer: Answer;
      try {
        answer = await within(wait * 1_000 + ANSWER_MS, signal, async (signal) =>
          answerOf(await this.fetch(method, place, tenant, { ...options, signal })),
        );
      } catch (error) {
        if (error instanceof FleetError || signal.aborted) throw error;
        await retries.pause(unreachable(error), 0, signal);
        if (again !== undefined) [place, wait] = [again, 0];
        continue;
      }
      answer.waited = wait;
      if (!PASSING.has(answer.status)) return checked(answer);
      if (answer.code === "too_many_waiting" && again !== undefined && wait > 0) {
        // Only the wait was rejected, so this asks at once, without using up retry_timeout.
        [place, wait] = [again, 0];
        continue;
      }
      await retries.pause(passing(answer), answer.retryAfterMs, signal);
      if (again !== undefined && answer.status >= 500) [place, wait] = [again, 0];
    }
  }

  async fetch(method: string, path: string, tenant: string | undefined, { body, headers, signal }: RequestOptions): Promise<Response> {
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
      // The key must not reach another server.
      redirect: "manual",
      ...(body !== undefined && { body }),
      ...(signal !== undefined && { signal }),
    });
  }
}

/** Runs work with a timeout, which the outer signal can end early. */
export async function within<T>(
  ms: number,
  outer: AbortSignal | undefined,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const own = new AbortController();
  const stop = () => own.abort(outer?.reason);
  // `setTimeout` cannot count longer times.
  const timer = ms < 2 ** 31 ? setTimeout(() => own.abort(new Error(`no response within ${ms} ms`)), ms) : undefined;
  outer?.addEventListener("abort", stop);
  try {
    outer?.throwIfAborted();
    // Work may ignore the signal: a function that returns a key may hang.
    const ended = new Promise<never>((_, fail) => own.signal.addEventListener("abort", () => fail(own.signal.reason)));
    return await Promise.race([work(own.signal), ended]);
  } finally {
    clearTimeout(timer);
    outer?.removeEventListener("abort", stop);
  }
}

function checkedKey(key: string): string {
  if (/^[\x21-\x7e]+$/.test(key)) return key;
  // The message omits the key, because errors are logged.
  throw new FleetError("invalid_key", "the gateway's API key contains whitespace or non-ASCII characters");
}

/**
 * Returns an id as a URL path segment. Its characters need no escaping. Throws {@link Unsupported} if the id has
 * another meaning in a URL.
 */
export function segment(id: string): string {
  if (id !== "." && id !== "..") return id;
  throw new Unsupported(`the id ${id} is not valid in a URL and cannot be used through a gateway`);
}

/** Returns the response with the header that the client reads. */
export async function answerOf(response: Response): Promise<Answer> {
  const after = response.headers.get("retry-after") ?? "";
  // Gateways send seconds, never a date.
  return new Answer(response.status, await response.text(), /^\d+$/.test(after) ? Number(after) * 1_000 : undefined);
}

/** Returns the error for a request without a response. */
export function unreachable(error: unknown): Unavailable {
  const { message, cause } = error as Error;
  const why = cause instanceof Error ? cause.message || cause.name : message;
  return new Unavailable(`the gateway cannot be reached: ${why}`, { cause: error });
}

/** Returns the response, unless it rejects the key or redirects. */
export function checked(answer: Answer): Answer {
  if (answer.status === 401) throw new Unauthorized(answer.message);
  if (answer.status === 403) throw new Forbidden(answer.message);
  if (answer.status >= 300 && answer.status < 400) {
    throw new FleetError("redirected", `the URL redirects (status ${answer.status}): use the gateway's own URL`);
  }
  return answer;
}

/** Returns the error for a failure that may be temporary. */
export function passing(answer: Answer): FleetError {
  const { code, message, status } = answer;
  let error: NotAccepted;
  if (code === "queue_full") error = new QueueFull(`queue_full: ${message}`);
  else if (code === "pressure") error = new MemoryPressure();
  // With `too_many_waiting`, the turn was accepted, and only the wait was rejected.
  else if (status === 429 && code !== "too_many_waiting") {
    error = new Throttled(code || "too_many_requests", `${code || "too_many_requests"}: ${message}`);
  } else return new Unavailable(`the gateway failed: ${message}`);
  error.retryAfterMs = answer.retryAfterMs;
  return error;
}
