/** Failures of calls. */

/**
 * Kind of a failure. `permanent`: the call failed permanently. `transient`: a retry can succeed; the worker retries if
 * the tool's effect allows it. `invalid_arguments`: the arguments have valid types but unusable values, and nothing was
 * done.
 */
export type ToolErrorKind = "permanent" | "transient" | "invalid_arguments";

/** Details of a failure. */
export interface ToolErrorOptions extends ErrorOptions {
  /** Details for programs, as JSON. Only for permanent failures. */
  details?: unknown;
  /** Shortest wait before the next attempt, in milliseconds. Only for transient failures. */
  retryAfterMs?: number;
  /** Whether it is certain that nothing took effect, so that a `once` tool can be retried. Only for transient failures. */
  notExecuted?: boolean;
}

const KINDS: readonly string[] = ["permanent", "transient", "invalid_arguments"];
/** Replaces `instanceof`, because modules can have another copy of this package than the host. */
const BRAND = Symbol.for("tickfleet.ToolError");

/**
 * The failure of a call. The message is for the model: state what the model can do next, and include no secrets. Any
 * other error is a bug: the worker logs the stack trace, and the model receives a general message.
 */
export class ToolError extends Error {
  /** Kind of the failure. */
  readonly kind: ToolErrorKind;
  /** Details for programs. */
  readonly details: unknown;
  /** Shortest wait before the next attempt, in milliseconds. */
  readonly retryAfterMs: number | undefined;
  /** Whether it is certain that nothing took effect. */
  readonly notExecuted: boolean;
  /** @internal */
  readonly [BRAND] = true;

  constructor(kind: ToolErrorKind, message: string, options: ToolErrorOptions = {}) {
    super(String(message), options);
    this.name = "ToolError";
    const { details, retryAfterMs, notExecuted = false } = options;
    if (!KINDS.includes(kind)) {
      throw new TypeError(`a ToolError is permanent, transient or invalid_arguments, not ${JSON.stringify(kind)}`);
    }
    if (retryAfterMs !== undefined && !(typeof retryAfterMs === "number" && retryAfterMs >= 0 && retryAfterMs < Infinity)) {
      throw new TypeError(`retryAfterMs is a number of milliseconds, not ${String(retryAfterMs)}`);
    }
    if (typeof notExecuted !== "boolean") throw new TypeError(`notExecuted is true or false, not ${String(notExecuted)}`);
    if (kind !== "transient" && (retryAfterMs !== undefined || notExecuted)) {
      throw new TypeError(`retryAfterMs and notExecuted are for transient failures, not for ${kind} ones`);
    }
    if (kind !== "permanent" && details !== undefined) {
      throw new TypeError(`details are for permanent failures, not for ${kind} ones`);
    }
    this.kind = kind;
    this.details = details;
    this.retryAfterMs = retryAfterMs;
    this.notExecuted = notExecuted;
  }

  /** @internal */
  static is(error: unknown): error is ToolError {
    return typeof error === "object" && error !== null && BRAND in error;
  }
}
