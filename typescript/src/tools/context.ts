/** The context of a call. */
import { ToolError } from "./error.js";

/** Writes to the worker's log with the call id. Secrets are redacted. `error` adds a stack trace. */
export interface ToolLogger {
  readonly debug: (message: string, error?: unknown) => void;
  readonly info: (message: string, error?: unknown) => void;
  readonly warn: (message: string, error?: unknown) => void;
  readonly error: (message: string, error?: unknown) => void;
}

/** The result of an inner call, as a model would receive it. */
export class InnerResult {
  /** Outcome: `ok`, `denied`, `invalid_arguments`, and so on. */
  readonly outcome: string;
  /** Output as JSON values; `undefined` after a failure. */
  readonly output: any;
  /** Error message for the model; `undefined` after a success. */
  readonly error: string | undefined;

  constructor(outcome: string, output?: any, error?: string) {
    this.outcome = outcome;
    this.output = output;
    this.error = error;
  }

  /** Whether the call succeeded. */
  get ok(): boolean {
    return this.outcome === "ok";
  }

  /**
   * Returns the output.
   *
   * @throws {ToolError} The call failed. The error is permanent and has the message of the call.
   */
  unwrap(): any {
    if (!this.ok) throw new ToolError("permanent", this.error ?? this.outcome);
    return this.output;
  }
}

/** The context of one call, the second argument of a tool's function. */
export interface ToolContext {
  /** Tenant of the call. */
  readonly tenant: string;
  /** Agent that makes the call. */
  readonly agent: string;
  /** Call id of the fleet. */
  readonly callId: string;
  /** Idempotency key, the same for every attempt. Pass it to services that support such keys. */
  readonly idempotencyKey: string;
  /** Number of this attempt, from 1. */
  readonly attempt: number;
  /** User data of the producer, as JSON, or `null`. */
  readonly userContext: any;
  /** Conversation data, as JSON, or `null`. */
  readonly sessionData: any;
  /** The producer's own id, if any. */
  readonly correlationId: string | undefined;
  /** W3C trace context for requests to other services, if any. */
  readonly traceparent: string | undefined;
  /** Task that the call belongs to, if any. */
  readonly task: string | undefined;
  /** Deadline of the call. */
  readonly deadline: Date;
  /** Aborted when the call is canceled, at its timeout or with its turn. Pass it to `fetch` and similar functions. */
  readonly signal: AbortSignal;
  /** Logger of the worker. */
  readonly log: ToolLogger;
  /**
   * Reports the progress of the call to followers of its turn: a fraction from 0 to 1, or `undefined` if it is
   * unknown, and a text for people, of which the first 500 bytes are shown. The fleet shows the latest report, at most one
   * per second.
   */
  readonly progress: (fraction: number | undefined, message?: string) => void;
  /**
   * Calls another tool as the same agent, with its permissions, limits and caps, and waits for the result.
   *
   * Only for tools with the effect `read` or `idempotent`. The first run of the function stops here: the returned
   * promise is rejected. When the inner call has ended, the function runs again from its start and receives the result.
   * Code before an inner call must therefore have no effect, and inner calls must come in the same order in each run.
   * Each inner call runs once. Make them one after the other, and do not catch the rejection.
   */
  readonly call: (tool: string, args?: object) => Promise<InnerResult>;
}
