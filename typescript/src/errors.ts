/**
 * What can go wrong between a producer and its fleet, one class for each thing that a caller does differently.
 *
 * A call that failed is no error here: its result says so, and the model reads it.
 */
import type { Reply } from "./reply.js";

/** What all errors of this client have in common. `code` is a word that programs can read. */
export class FleetError extends Error {
  readonly code: string;

  constructor(code: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}

/** A turn or task breaks a rule of the protocol, whenever it is submitted. Nothing was sent. */
export class InvalidMessage extends FleetError {
  constructor(message: string, options?: ErrorOptions) {
    super("invalid", message, options);
  }
}

/** The fleet takes nothing new at the moment. Nothing was sent; try again later, under the same id. */
export class NotAccepted extends FleetError {
  /** Ms after which a gateway says that it is worth another try. */
  retryAfterMs: number | undefined;
}

/** Too many turns or tasks wait to be admitted. */
export class QueueFull extends NotAccepted {
  constructor(message = "the queue is full (queue_full); try again later") {
    super("queue_full", message);
  }
}

/** Redis' memory is nearly full. */
export class Pressure extends NotAccepted {
  constructor(options?: ErrorOptions) {
    super("pressure", "Redis is nearly full and takes no new work (pressure); try again later", options);
  }
}

/**
 * A gateway, or what stands before it, takes no more from this caller at the moment: `inbox_full`, `too_many_cancels`, a rate.
 */
export class Throttled extends NotAccepted {}

const PASSING = new Set(["tenant_queue_full", "inbox_full", "too_many_inboxes", "too_many_cancels", "refused"]);

/** The fleet has read the message and does not carry it out. `code` is a word of docs/protocol.md. */
export class Rejected extends FleetError {
  /** The whole reply. Its `messages` answer every call, so that the conversation stays consistent. */
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

/** The id was used before, for other content. What the other turn became is not told here. */
export class Conflict extends FleetError {
  readonly id: string;

  constructor(id: string, message: string) {
    super("conflict", `conflict: ${message}`);
    this.id = id;
  }
}

/**
 * No reply came in time, for one of two causes: the turn or task has not ended, and may be waited for by its id, or cancelled;
 * or the fleet knows no such tenant, or no such id (any more), and no reply comes. Over Redis nobody says which.
 */
export class ReplyTimeout extends FleetError {
  readonly id: string;

  constructor(id: string, ms: number) {
    super(
      "timeout",
      `no reply to ${id} within ${ms} ms: it may still be carried out. ` +
        "It has not ended, or the fleet knows no such tenant or id: then no reply comes",
    );
    this.id = id;
  }
}

/** Redis or the gateway cannot be reached, or does not do what it is asked. */
export class Unavailable extends FleetError {
  /**
   * The id of the turn or task that was being sent. It may have been taken in: submit it again under this id, which carries it
   * out once.
   */
  id: string | undefined;

  constructor(message: string, options?: ErrorOptions) {
    super("unavailable", message, options);
  }
}

/** No worker has told which tools the agent may call: is the agent known, and does a worker run? */
export class NoDefinitions extends FleetError {
  constructor(message: string) {
    super("no_definitions", message);
  }
}

/** The gateway does not know the key or token, or its time is over. */
export class Unauthorized extends FleetError {
  constructor(message: string) {
    super("unauthorized", message);
  }
}

/** The gateway's key is not for this: another tenant, agent or verb. */
export class Forbidden extends FleetError {
  constructor(message: string) {
    super("forbidden", message);
  }
}

/** The gateway knows nothing of this turn or task, or the key is not for its agent. */
export class NotFound extends FleetError {
  constructor(message: string) {
    super("not_found", message);
  }
}

/** It works through Redis alone, not through a gateway. Nothing was sent. */
export class Unsupported extends FleetError {
  constructor(message: string) {
    super("unsupported", message);
  }
}
