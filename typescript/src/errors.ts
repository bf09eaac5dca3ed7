/**
 * Errors of the client, one class for each reaction of a caller.
 *
 * A failed call is not an error here: its result reports the failure, and the model reads it.
 */
import type { Reply } from "./reply.js";

/** Base of all errors of this client. `code` is for programs. */
export class FleetError extends Error {
  readonly code: string;

  constructor(code: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}

/** The turn or task is invalid. Nothing was sent. */
export class InvalidMessage extends FleetError {
  constructor(message: string, options?: ErrorOptions) {
    super("invalid", message, options);
  }
}

/** The fleet accepts no new work at the moment. Nothing was sent; retry later with the same id. */
export class NotAccepted extends FleetError {
  /** Milliseconds to wait before a retry, if a gateway names them. */
  retryAfterMs: number | undefined;
}

/** Too many turns or tasks wait for admission. */
export class QueueFull extends NotAccepted {
  constructor(message = "the queue is full (queue_full); retry later") {
    super("queue_full", message);
  }
}

/** The memory of Redis is nearly full. */
export class MemoryPressure extends NotAccepted {
  constructor(options?: ErrorOptions) {
    super("pressure", "Redis memory is nearly full; new work is rejected (pressure); retry later", options);
  }
}

/**
 * The gateway, or a proxy in front of it, throttles this caller: `inbox_full`, `too_many_cancels`, or a rate.
 */
export class Throttled extends NotAccepted {}

const PASSING = new Set(["tenant_queue_full", "inbox_full", "too_many_inboxes", "too_many_cancels", "refused"]);

/** The fleet rejected the message. `code` is the reason, such as `unknown_agent`. */
export class Rejected extends FleetError {
  /** The whole reply. Its `messages` contain a result for every call, so that the conversation stays consistent. */
  readonly reply: Reply;

  constructor(code: string, message: string, reply: Reply) {
    super(code, `${code}: ${message}`);
    this.reply = reply;
  }

  /** Whether the same message may be accepted later, under the same id. */
  get passing(): boolean {
    return PASSING.has(this.code);
  }
}

/** The id belongs to an earlier turn or task with different content. */
export class Conflict extends FleetError {
  readonly id: string;

  constructor(id: string, message: string) {
    super("conflict", `conflict: ${id}: ${message}`);
    this.id = id;
  }
}

/**
 * No reply arrived in time. Either the turn or task is unfinished: wait again by its id, or cancel it. Or the fleet
 * does not know the tenant or the id. Over Redis the two cases look the same.
 */
export class ReplyTimeout extends FleetError {
  readonly id: string;

  constructor(id: string, ms: number, tenant = "") {
    // If no tenant is given, the gateway derives it from the key.
    super(
      "timeout",
      `no reply to ${id} within ${ms} ms. It can still run or wait for approval, or the fleet does not know ` +
        `the tenant or the id: tickfleet explain ${tenant || "TENANT"}:${id}`,
    );
    this.id = id;
  }
}

/** Redis or the gateway is unreachable or returns an error. */
export class Unavailable extends FleetError {
  /**
   * The id of the turn or task that was being sent. It may have been accepted: submit it again with this id; it
   * runs once.
   */
  id: string | undefined;

  constructor(message: string, options?: ErrorOptions) {
    super("unavailable", message, options);
  }
}

/** No worker has published a tool list for the agent. Check the agent's name and that a worker runs. */
export class NoDefinitions extends FleetError {
  constructor(message: string) {
    super("no_definitions", message);
  }
}

/** The API key or token is unknown or expired. */
export class Unauthorized extends FleetError {
  constructor(message: string) {
    super("unauthorized", message);
  }
}

/** The API key does not cover the tenant, the agent or the permission. */
export class Forbidden extends FleetError {
  constructor(message: string) {
    super("forbidden", message);
  }
}

/** The gateway does not know the turn or task, or the key does not cover its agent. */
export class NotFound extends FleetError {
  constructor(message: string) {
    super("not_found", message);
  }
}

/** The operation works only with Redis, not through a gateway. Nothing was sent. */
export class Unsupported extends FleetError {
  constructor(message: string) {
    super("unsupported", message);
  }
}
