/** The client for producers. */
import { Direct, type DirectOptions } from "./direct.js";
import { ReplyTimeout, Unsupported } from "./errors.js";
import type { TaskEvent } from "./events.js";
import { Gateway } from "./gateway/gateway.js";
import type { LocalTurn } from "./governed.js";
import { type Message, type Task, type Turn, idOf, nameOf, taskMessage, turnMessage } from "./message.js";
import { placeOf } from "./place.js";
import type { Replies } from "./replies.js";
import type { Dialect } from "./definitions.js";
import { type Reply, accepted } from "./reply.js";
import type { Awaited, Transport } from "./transport.js";

/** Default timeout of a reply, ms. */
const TIMEOUT_MS = 300_000;

/** Options of a client. The options of {@link DirectOptions} work only with Redis. */
export interface FleetOptions extends DirectOptions {
  /**
   * URL of Redis (`redis://`, `rediss://`, `unix://`, `redis+sentinel://`, `redis+cluster://`) or of a gateway
   * (`https://`, `http://`). Default: the variable `REDIS_URL`, or `FLEET_URL` with `FLEET_KEY`, or the `tickfleet dev`
   * that runs in the working folder.
   */
  url?: string;
  /**
   * API key of a gateway, or token of its identity provider, or a function that returns one and is called for each
   * request.
   */
  apiKey?: string | (() => string | Promise<string>);
  /** Default tenant of turns and tasks. Optional with a gateway, whose key has a tenant. */
  tenant?: string;
  /**
   * Milliseconds of retries after a lost connection, or over HTTP a full queue, before the error is thrown. Default:
   * 10,000.
   */
  retryTimeoutMs?: number;
  /** Receives warnings. Default: `console.warn`. */
  warn?: (message: string) => void;
}

/** Options of waiting. */
export interface Waiting {
  /**
   * Milliseconds; `Infinity` waits without limit. Default: 300,000, because a turn can wait for its agent's next
   * tick.
   */
  timeoutMs?: number;
}

/** Tenant of an id. */
export interface TenantOption {
  tenant?: string;
}

function ended(reply: Reply | undefined, tenant: string | undefined, id: string, timeoutMs: number): Reply {
  if (reply === undefined) throw new ReplyTimeout(id, timeoutMs, tenant);
  return accepted(reply);
}

function transportOf(options: FleetOptions): Transport {
  const { retryTimeoutMs = 10_000, warn = console.warn, tenant: _, url, apiKey: givenKey, ...direct } = options;
  const { url: place, apiKey } = placeOf(url, givenKey);
  if (!/^https?:/i.test(place)) {
    if (apiKey === undefined) return new Direct(place, retryTimeoutMs, warn, direct);
    throw new TypeError("apiKey is for gateways (http://, https://); Redis has user and password in its URL");
  }
  const said = Object.entries(direct).filter(([, value]) => value !== undefined);
  if (said.length > 0) {
    throw new Unsupported(`${said.map(([key]) => key).join(", ")}: only for Redis; omit it with a gateway`);
  }
  if (apiKey === undefined) throw new TypeError("a gateway requires an API key: set apiKey");
  return new Gateway(place, apiKey, retryTimeoutMs);
}

/** A submitted turn or task. */
export class Submitted {
  /** @internal */
  constructor(
    protected readonly fleet: Fleet,
    /** Tenant. Empty if a gateway derives it from the key. */
    readonly tenant: string,
    readonly id: string,
    private readonly awaited: Awaited,
    private readonly isTask: boolean,
  ) {}

  /**
   * One reply for each call that waits or waited for approval, if the turn has `pendingApproval`. Throws {@link
   * Unsupported} through a gateway.
   */
  get pending(): readonly Reply[] {
    return this.awaited.pending;
  }

  /** Waits for the reply. Throws the errors of {@link Fleet.run}. */
  async reply({ timeoutMs = TIMEOUT_MS }: Waiting = {}): Promise<Reply> {
    return ended(await this.awaited.reply(timeoutMs), this.tenant, this.id, timeoutMs);
  }

  /** Stops waiting for the reply. The turn or task continues. */
  release(): void {
    this.awaited.release();
  }

  /** Cancels the turn or task. A running call is stopped, and a `once` call then ends as `outcome_unknown`. The reply arrives as usual. */
  cancel(reason = ""): Promise<void> {
    return this.fleet.cancel(this.id, { tenant: this.tenant || undefined, task: this.isTask, reason });
  }
}

/** A submitted task. */
export class SubmittedTask extends Submitted {
  /** Yields the events of the task from its start to its end. */
  events(): AsyncGenerator<TaskEvent> {
    return this.fleet.follow(this.id, { tenant: this.tenant || undefined });
  }
}

/**
 * A client that submits turns and tasks to a fleet and receives their replies. One client serves a whole process.
 */
export class Fleet {
  readonly #transport: Transport;
  readonly #tenant: string | undefined;

  /** @throws {Unsupported} An option works only with Redis, and the URL is a gateway's. */
  constructor(options: FleetOptions = {}) {
    this.#transport = transportOf(options);
    this.#tenant = options.tenant === undefined ? undefined : nameOf(options.tenant, "tenant");
  }

  /** Closes the connections and removes the inboxes of this process. */
  close(): Promise<void> {
    return this.#transport.close();
  }

  /**
   * Submits the calls of one model response and waits for their results.
   *
   * `reply.messages` are ready to append to the conversation. A call that failed, was denied or capped has a result
   * too, and the model reads the reason.
   *
   * @throws {InvalidMessage} {@link QueueFull} {@link MemoryPressure} {@link Throttled} Nothing was sent.
   * @throws {Unauthorized} {@link Forbidden} The API key is invalid or lacks the permission.
   * @throws {Rejected} {@link Conflict} The turn or task was not executed.
   * @throws {ReplyTimeout} The turn or task can still run; wait for it by its id.
   * @throws {Unavailable} The fleet could not be reached.
   */
  async run(turn: Turn, waiting: Waiting = {}): Promise<Reply> {
    const submitted = await this.#submit(turn, true);
    try {
      return await submitted.reply(waiting);
    } catch (error) {
      // The caller has no reference to `submitted`, and cannot release it.
      if (error instanceof ReplyTimeout) submitted.release();
      throw error;
    }
  }

  /**
   * Submits a turn. The returned object waits for the reply on request. Throws the errors of {@link run}, and
   * {@link Unsupported}.
   */
  submit(turn: Turn): Promise<Submitted> {
    return this.#submit(turn, false);
  }

  async #submit(turn: Turn, waits: boolean): Promise<Submitted> {
    const tenant = this.#tenantOf(turn);
    const message = turnMessage(tenant, turn, this.#transport.inbox);
    const awaited = await this.#transport.submit("turn", tenant, message, turn.turnId !== undefined, waits);
    return new Submitted(this, tenant ?? "", message["turn_id"] as string, awaited, false);
  }

  /** @internal Submits a turn whose local calls this process runs. */
  async startLocal(turn: Turn): Promise<LocalTurn> {
    const tenant = this.#tenantOf(turn);
    const message = { ...turnMessage(tenant, turn, this.#transport.inbox), local_calls: true };
    const awaited = await this.#transport.submit("turn", tenant, message, turn.turnId !== undefined, false);
    return { transport: this.#transport, tenant, id: (message as Message)["turn_id"] as string, awaited };
  }

  /** Submits a turn whose reply goes to another inbox, or to none. Returns the turn's id. */
  async send(turn: Turn, replyTo?: string): Promise<string> {
    const tenant = this.#tenantOf(turn);
    const message = turnMessage(tenant, turn, replyTo);
    await this.#transport.send("turn", tenant, message);
    return message["turn_id"] as string;
  }

  /** Delegates a task to an agent. */
  async delegate(task: Task): Promise<SubmittedTask> {
    const tenant = this.#tenantOf(task);
    const message = taskMessage(tenant, task, this.#transport.inbox);
    const awaited = await this.#transport.submit("task", tenant, message, task.taskId !== undefined, false);
    return new SubmittedTask(this, tenant ?? "", message["task_id"] as string, awaited, true);
  }

  /** Waits for the reply to a turn or task by its id. Any client can have submitted it. */
  async wait(id: string, { tenant, timeoutMs = TIMEOUT_MS }: TenantOption & Waiting = {}): Promise<Reply> {
    const owner = this.#tenantOf({ tenant });
    return ended(await this.#transport.wait(owner, idOf(id, "id"), timeoutMs), owner, id, timeoutMs);
  }

  /**
   * Returns the stored reply, or nothing if the turn or task is unfinished, was rejected, or ended longer ago than
   * `retention.records`.
   */
  async reply(id: string, options: TenantOption = {}): Promise<Reply | undefined> {
    return this.#transport.reply(this.#tenantOf(options), idOf(id, "id"));
  }

  /**
   * Reads an inbox from its oldest reply, for turns that were sent with its name. Throws {@link Unsupported} through
   * a gateway.
   */
  replies(inbox: string, options: TenantOption = {}): Replies {
    return this.#transport.replies(this.#tenantOf(options), inbox);
  }

  /**
   * Returns the tool definitions of the agent for a model request: a list, or for `text` a string. While no worker has
   * published tool lists, the call waits for the first worker, at most 5 s.
   *
   * @throws {NoDefinitions} No worker has published a list for the agent.
   */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  async tools(agent: string, { tenant, format = "openai" }: TenantOption & { format?: Dialect | "openai" } = {}): Promise<any> {
    const dialect = format === "openai" ? "openai_chat" : format;
    return this.#transport.tools(this.#tenantOf({ tenant }), nameOf(agent, "agent"), dialect);
  }

  /**
   * Cancels a turn, or with `task` a task. The cancel can arrive before the turn or task. Through a gateway, an
   * unknown id or an agent outside the key throws {@link NotFound}.
   */
  async cancel(id: string, { tenant, task = false, reason = "" }: TenantOption & { task?: boolean; reason?: string } = {}): Promise<void> {
    const kind = task ? "task" : "turn";
    await this.#transport.cancel(kind, this.#tenantOf({ tenant }), idOf(id, `${kind}_id`), reason);
  }

  /** Yields the events of a task from a position to its end. The last event is `ended`. */
  follow(taskId: string, { tenant, position = 0 }: TenantOption & { position?: number } = {}): AsyncGenerator<TaskEvent> {
    return this.#transport.follow(this.#tenantOf({ tenant }), idOf(taskId, "taskId"), position);
  }

  #tenantOf({ tenant = this.#tenant }: TenantOption): string | undefined {
    return this.#transport.tenantOf(tenant);
  }
}
