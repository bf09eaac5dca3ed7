/** A producer's end of a fleet. */
import { Direct, type DirectOptions } from "./direct.js";
import { ReplyTimeout, Unsupported } from "./errors.js";
import type { TaskEvent } from "./events.js";
import { Gateway } from "./gateway/gateway.js";
import { type Task, type Turn, idOf, nameOf, taskMessage, turnMessage } from "./message.js";
import type { Replies } from "./replies.js";
import { type Dialect, type Reply, accepted } from "./reply.js";
import type { Awaited, Transport } from "./transport.js";

/** Ms that a reply is waited for, where nobody says otherwise. */
const TIMEOUT_MS = 300_000;

/** How a fleet is reached. Those of {@link DirectOptions} are for Redis alone. */
export interface FleetOptions extends DirectOptions {
  /**
   * Of the fleet's Redis (`redis://`, `rediss://`, `unix://`, `redis+sentinel://`, `redis+cluster://`), or of a gateway
   * (`https://`, `http://`); default the variable `REDIS_URL`.
   */
  url?: string;
  /**
   * A gateway's key, or a token of the identity provider that it trusts; or a function that gives one, called for each request,
   * where tokens end.
   */
  apiKey?: string | (() => string | Promise<string>);
  /** Whose turns these are, where a call names no other. A gateway's key is for one tenant, and may stand alone. */
  tenant?: string;
  /** Ms for which a lost connection, and over HTTP a full queue, is tried again before the error is thrown; default 10,000. */
  patienceMs?: number;
  /** Where trouble goes that nobody asked about; default `console.warn`. */
  warn?: (message: string) => void;
}

/** How long something is waited for. */
export interface Waiting {
  /** Ms; `Infinity` for as long as it takes. Default 300,000: a turn may wait for its agent's next tick. */
  timeoutMs?: number;
}

/** What is meant by an id. */
export interface Whose {
  tenant?: string;
}

function ended(reply: Reply | undefined, id: string, timeoutMs: number): Reply {
  if (reply === undefined) throw new ReplyTimeout(id, timeoutMs);
  return accepted(reply);
}

function transportOf({ url, apiKey, patienceMs = 10_000, warn = console.warn, tenant: _, ...direct }: FleetOptions): Transport {
  const place = url ?? process.env["REDIS_URL"] ?? "redis://127.0.0.1:6379";
  if (!/^https?:/i.test(place)) {
    if (apiKey === undefined) return new Direct(place, patienceMs, warn, direct);
    throw new TypeError("apiKey is for gateways (http://, https://); Redis has user and password in its URL");
  }
  const said = Object.entries(direct).filter(([, value]) => value !== undefined);
  if (said.length > 0) {
    throw new Unsupported(`${said.map(([key]) => key).join(", ")}: a gateway knows this itself; leave it out`);
  }
  if (apiKey === undefined) throw new TypeError("a gateway wants a key: apiKey");
  return new Gateway(place, apiKey, patienceMs);
}

/** A turn or task that was taken in. */
export class Submitted {
  /** @internal */
  constructor(
    protected readonly fleet: Fleet,
    /** Whose it is; empty where a gateway knows it by the key, and nobody said it. */
    readonly tenant: string,
    readonly id: string,
    private readonly awaited: Awaited,
    private readonly isTask: boolean,
  ) {}

  /**
   * Of a turn with `pendingApproval`: a reply for each call that waits, or has waited, for people's consent. Through a gateway
   * {@link Unsupported} is thrown.
   */
  get pending(): readonly Reply[] {
    return this.awaited.pending;
  }

  /** The reply, waited for. Throws what {@link Fleet.run} throws. */
  async reply({ timeoutMs = TIMEOUT_MS }: Waiting = {}): Promise<Reply> {
    return ended(await this.awaited.reply(timeoutMs), this.id, timeoutMs);
  }

  /** Its reply is not looked out for any more, unless somebody else waits for it. The turn or task goes on. */
  release(): void {
    this.awaited.release();
  }

  /** Asks for its end. What has begun is never told as not run; the reply comes as usual. */
  cancel(reason = ""): Promise<void> {
    return this.fleet.cancel(this.id, { tenant: this.tenant || undefined, task: this.isTask, reason });
  }
}

/** A task that was taken in. */
export class SubmittedTask extends Submitted {
  /** What happens to the task, from its beginning to its end. */
  events(): AsyncGenerator<TaskEvent> {
    return this.fleet.follow(this.id, { tenant: this.tenant || undefined });
  }
}

/**
 * A producer's end of a fleet: submits turns and tasks, and hands their replies to who waits for them. One of them serves a whole
 * process.
 */
export class Fleet {
  readonly #transport: Transport;
  readonly #tenant: string | undefined;

  /** @throws {Unsupported} An option is for Redis alone, and the URL is a gateway's. */
  constructor(options: FleetOptions = {}) {
    this.#transport = transportOf(options);
    this.#tenant = options.tenant === undefined ? undefined : nameOf(options.tenant, "tenant");
  }

  /** Ends what is open, and removes the inboxes that were made for this process. */
  close(): Promise<void> {
    return this.#transport.close();
  }

  /**
   * Has the calls of one model response carried out, and waits for their results.
   *
   * `reply.messages` are ready to be appended to the conversation. A call that failed, was denied or capped is a result like any
   * other: the model reads why.
   *
   * @throws {InvalidMessage} {@link QueueFull} {@link Pressure} {@link Throttled} Nothing was sent.
   * @throws {Unauthorized} {@link Forbidden} The gateway's key is not good, or not for this.
   * @throws {Rejected} {@link Conflict} It was not carried out.
   * @throws {ReplyTimeout} It may still be carried out, and be waited for by its id.
   * @throws {Unavailable} The fleet could not be reached.
   */
  async run(turn: Turn, waiting: Waiting = {}): Promise<Reply> {
    const submitted = await this.#submit(turn, true);
    try {
      return await submitted.reply(waiting);
    } catch (error) {
      // Nobody holds it any more.
      if (error instanceof ReplyTimeout) submitted.release();
      throw error;
    }
  }

  /** Submits a turn; the answer waits for the reply when it is asked to. Throws what {@link run} throws, and {@link Unsupported}. */
  submit(turn: Turn): Promise<Submitted> {
    return this.#submit(turn, false);
  }

  async #submit(turn: Turn, waits: boolean): Promise<Submitted> {
    const tenant = this.#whose(turn);
    const message = turnMessage(tenant, turn, this.#transport.inbox);
    const awaited = await this.#transport.submit("turn", tenant, message, turn.turnId !== undefined, waits);
    return new Submitted(this, tenant ?? "", message["turn_id"] as string, awaited, false);
  }

  /** Submits a turn whose reply this process does not wait for: it goes to another inbox, or to none. Answers its id. */
  async send(turn: Turn, replyTo?: string): Promise<string> {
    const tenant = this.#whose(turn);
    const message = turnMessage(tenant, turn, replyTo);
    await this.#transport.send("turn", tenant, message);
    return message["turn_id"] as string;
  }

  /** Delegates a task to an agent, in words. */
  async delegate(task: Task): Promise<SubmittedTask> {
    const tenant = this.#whose(task);
    const message = taskMessage(tenant, task, this.#transport.inbox);
    const awaited = await this.#transport.submit("task", tenant, message, task.taskId !== undefined, false);
    return new SubmittedTask(this, tenant ?? "", message["task_id"] as string, awaited, true);
  }

  /** The reply to a turn or task by its id, whoever submitted it, waited for. */
  async wait(id: string, { tenant, timeoutMs = TIMEOUT_MS }: Whose & Waiting = {}): Promise<Reply> {
    return ended(await this.#transport.wait(this.#whose({ tenant }), idOf(id, "id"), timeoutMs), id, timeoutMs);
  }

  /**
   * The reply as the record of the turn or task keeps it; none where it has not ended, was rejected, or ended longer ago than
   * records are kept.
   */
  async reply(id: string, whose: Whose = {}): Promise<Reply | undefined> {
    return this.#transport.reply(this.#whose(whose), idOf(id, "id"));
  }

  /**
   * Reads an inbox of your own, from the oldest reply that is there: for turns that were sent with its name. Through a gateway
   * {@link Unsupported} is thrown.
   */
  replies(inbox: string, whose: Whose = {}): Replies {
    return this.#transport.replies(this.#whose(whose), inbox);
  }

  /** What a model is told of the tools that the agent may call: a list for its request; for `text` a string. */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  async tools(agent: string, { tenant, format = "openai" }: Whose & { format?: Dialect | "openai" } = {}): Promise<any> {
    const dialect = format === "openai" ? "openai_chat" : format;
    return this.#transport.tools(this.#whose({ tenant }), nameOf(agent, "agent"), dialect);
  }

  /**
   * Asks for the end of a turn, or with `task` of a task. It may come before what it cancels. A gateway that knows nothing of it,
   * or whose key is not for its agent, answers with {@link NotFound}.
   */
  async cancel(id: string, { tenant, task = false, reason = "" }: Whose & { task?: boolean; reason?: string } = {}): Promise<void> {
    const kind = task ? "task" : "turn";
    await this.#transport.cancel(kind, this.#whose({ tenant }), idOf(id, `${kind}_id`), reason);
  }

  /** What happens to a task, from a position on to its end. The last event is an `ended`. */
  follow(taskId: string, { tenant, position = 0 }: Whose & { position?: number } = {}): AsyncGenerator<TaskEvent> {
    return this.#transport.follow(this.#whose({ tenant }), idOf(taskId, "taskId"), position);
  }

  #whose({ tenant = this.#tenant }: Whose): string | undefined {
    return this.#transport.whose(tenant);
  }
}
