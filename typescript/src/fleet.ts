/** A producer's end of a fleet. */
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

import { Conflict, InvalidMessage, NoDefinitions, ReplyTimeout, Unavailable } from "./errors.js";
import { type TaskEvent, follow } from "./events.js";
import { Hub, Waiter } from "./hub.js";
import { type Entry, Inbox } from "./inbox.js";
import { type Message, type Task, type Turn, asked, idOf, nameOf, shardOf, taskMessage, turnMessage, written } from "./message.js";
import { BLOCK_MS, type Link, Redis } from "./redis.js";
import { type Dialect, type Reply, accepted, readRecord, readReply } from "./reply.js";

/** Ms that a reply is waited for, where nobody says otherwise. */
const TIMEOUT_MS = 300_000;

/** How a fleet is reached. */
export interface FleetOptions {
  /** `redis://`, `rediss://`, `unix://`, `redis+sentinel://` or `redis+cluster://`; default the variable `REDIS_URL`. */
  url?: string;
  /** Whose turns these are, where a call names no other. */
  tenant?: string;
  /** The fleet's `redis.namespace`; default `tickfleet`. */
  namespace?: string;
  /** The fleet's `redis.shards`; default 1. */
  shards?: number;
  /**
   * A name for the inbox of this process, where its user of Redis may only read one. No two processes use the same at a time.
   * Default: one of its own, removed on close.
   */
  inbox?: string;
  /** Ms for which a lost connection is tried again before {@link Unavailable} is thrown; default 10,000. */
  patienceMs?: number;
  /** The fleet's `queues.turns_max`; default 100,000. */
  turnsMax?: number;
  /** The fleet's `queues.turns_bytes_max`; default 256 MiB. */
  turnsBytesMax?: number;
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

function privateInbox(): string {
  const host = hostname().replace(/[^A-Za-z0-9]/g, "").slice(0, 20) || "host";
  return `js-${host}-${process.pid}-${randomUUID().slice(24)}`;
}

async function awaited(waiter: Waiter, id: string, timeoutMs: number): Promise<Reply> {
  if (timeoutMs === Infinity) return accepted(await waiter.reply);
  const given = new AbortController();
  const late = sleep(timeoutMs, undefined, { signal: given.signal }).catch(() => undefined);
  const reply = await Promise.race([waiter.reply, late]);
  given.abort();
  if (reply === undefined) throw new ReplyTimeout(id, timeoutMs);
  return accepted(reply);
}

/** A turn or task that was taken in. */
export class Submitted {
  readonly id: string;

  /** @internal */
  constructor(
    protected readonly fleet: Fleet,
    readonly tenant: string,
    protected readonly waiter: Waiter,
    private readonly isTask: boolean,
  ) {
    this.id = waiter.place.slice(tenant.length + 1);
  }

  /** Of a turn with `pendingApproval`: a reply for each call that waits, or has waited, for people's consent. */
  get pending(): readonly Reply[] {
    return this.waiter.pending;
  }

  /** The reply, waited for. Throws what {@link Fleet.run} throws. */
  reply({ timeoutMs = TIMEOUT_MS }: Waiting = {}): Promise<Reply> {
    return awaited(this.waiter, this.id, timeoutMs);
  }

  /** Its reply is not looked out for any more, unless somebody else waits for it. The turn or task goes on. */
  release(): void {
    this.fleet.release(this.tenant, this.waiter);
  }

  /** Asks for its end. What has begun is never told as not run; the reply comes as usual. */
  cancel(reason = ""): Promise<void> {
    return this.fleet.cancel(this.id, { tenant: this.tenant, task: this.isTask, reason });
  }
}

/** A task that was taken in. */
export class SubmittedTask extends Submitted {
  /** What happens to the task, from its beginning to its end. */
  events(): AsyncGenerator<TaskEvent> {
    return this.fleet.follow(this.id, { tenant: this.tenant });
  }
}

/**
 * A producer's end of a fleet: submits turns and tasks, and hands their replies to who waits for them.
 *
 * One of them serves a whole process. It has one connection that reads replies for each shard in use, however many wait.
 */
export class Fleet {
  readonly #redis: Redis;
  readonly #options: Required<Omit<FleetOptions, "url" | "tenant" | "inbox" | "patienceMs">>;
  readonly #tenant: string | undefined;
  readonly #inbox: string;
  readonly #isPrivate: boolean;
  readonly #hubs = new Map<number, Hub>();
  readonly #tenants = new Set<string>();

  constructor(options: FleetOptions = {}) {
    const { url, tenant, inbox, patienceMs = 10_000, ...rest } = options;
    this.#redis = new Redis(url ?? process.env["REDIS_URL"] ?? "redis://127.0.0.1:6379", patienceMs);
    this.#tenant = tenant === undefined ? undefined : nameOf(tenant, "tenant");
    this.#isPrivate = inbox === undefined;
    this.#inbox = inbox === undefined ? privateInbox() : nameOf(inbox, "inbox");
    const bounds = { turnsMax: 100_000, turnsBytesMax: 256 * 1024 * 1024 };
    this.#options = { namespace: "tickfleet", shards: 1, ...bounds, warn: console.warn, ...rest };
    if (!(this.#options.shards >= 1)) throw new RangeError(`shards is ${this.#options.shards}; expected at least 1`);
  }

  /** Stops reading, and removes the inboxes that were made for this process. */
  async close(): Promise<void> {
    for (const hub of this.#hubs.values()) hub.close();
    this.#hubs.clear();
    if (this.#isPrivate) {
      // What cannot be removed now ages away.
      for (const tenant of this.#tenants) {
        await this.#redis.forget(tenant, this.#inbox, this.#prefix(tenant)).catch(() => {});
      }
    }
    this.#tenants.clear();
    this.#redis.close();
  }

  /**
   * Has the calls of one model response carried out, and waits for their results.
   *
   * `reply.messages` are ready to be appended to the conversation. A call that failed, was denied or capped is a result like any
   * other: the model reads why.
   *
   * @throws {InvalidMessage} {@link QueueFull} {@link Pressure} Nothing was sent.
   * @throws {Rejected} {@link Conflict} It was not carried out.
   * @throws {ReplyTimeout} It goes on, and may be waited for by its id.
   * @throws {Unavailable} Redis could not be reached.
   */
  async run(turn: Turn, waiting: Waiting = {}): Promise<Reply> {
    const submitted = await this.submit(turn);
    try {
      return await submitted.reply(waiting);
    } catch (error) {
      // Nobody holds it any more.
      if (error instanceof ReplyTimeout) submitted.release();
      throw error;
    }
  }

  /** Submits a turn; the answer waits for the reply when it is asked to. */
  async submit(turn: Turn): Promise<Submitted> {
    const tenant = this.#whose(turn);
    const message = turnMessage(tenant, turn, this.#inbox);
    const waiter = await this.#send(tenant, message, "turn", turn.turnId !== undefined);
    return new Submitted(this, tenant, waiter, false);
  }

  /** Submits a turn whose reply this process does not wait for: it goes to another inbox, or to none. Answers its id. */
  async send(turn: Turn, replyTo?: string): Promise<string> {
    const tenant = this.#whose(turn);
    const message = turnMessage(tenant, turn, replyTo);
    await this.#enqueue(tenant, message, "turn");
    return message["turn_id"] as string;
  }

  /** Delegates a task to an agent, in words. */
  async delegate(task: Task): Promise<SubmittedTask> {
    const tenant = this.#whose(task);
    const message = taskMessage(tenant, task, this.#inbox);
    const waiter = await this.#send(tenant, message, "task", task.taskId !== undefined);
    return new SubmittedTask(this, tenant, waiter, true);
  }

  /** The reply to a turn or task by its id, whoever submitted it, waited for. */
  async wait(id: string, { tenant, timeoutMs = TIMEOUT_MS }: Whose & Waiting = {}): Promise<Reply> {
    const whose = this.#whose({ tenant });
    const found = await this.reply(id, { tenant: whose });
    if (found !== undefined) return accepted(found);
    const hub = this.#hub(whose);
    const place = `${whose}:${id}`;
    let waiter = hub.waiter(place);
    if (waiter !== undefined) return awaited(waiter, id, timeoutMs);
    waiter = new Waiter(place, "", true);
    hub.add(waiter, undefined);
    try {
      return await awaited(waiter, id, timeoutMs);
    } finally {
      hub.drop(waiter);
    }
  }

  /**
   * The reply as the record of the turn or task keeps it; none where it has not ended, was rejected, or ended longer ago than
   * records are kept.
   */
  async reply(id: string, whose: Whose = {}): Promise<Reply | undefined> {
    const tenant = this.#whose(whose);
    const record = await this.#redis.get(`${this.#prefix(tenant)}done:${tenant}:${idOf(id, "id")}`);
    return record === null ? undefined : readRecord(record);
  }

  /** Reads an inbox of your own, from the oldest reply that is there: for turns that were sent with its name. */
  replies(inbox: string, whose: Whose = {}): Replies {
    const tenant = this.#whose(whose);
    const key = `${this.#prefix(tenant)}replies:${tenant}:${nameOf(inbox, "inbox")}`;
    return new Replies(this.#redis, new Inbox(key));
  }

  /** What a model is told of the tools that the agent may call: a list for its request; for `text` a string. */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  async tools(agent: string, { tenant, format = "openai" }: Whose & { format?: Dialect | "openai" } = {}): Promise<any> {
    const whose = this.#whose({ tenant });
    const dialect = format === "openai" ? "openai_chat" : format;
    const text = await this.#redis.get(`${this.#prefix(whose)}tools:${whose}:${nameOf(agent, "agent")}:${dialect}`);
    if (text !== null) return JSON.parse(text);
    throw new NoDefinitions(
      `no definitions of tools for agent ${agent} of tenant ${whose} in ${dialect}: is the agent configured, and does a worker ` +
        "run? Workers write them when they start and every minute",
    );
  }

  /** Asks for the end of a turn, or with `task` of a task. It may come before what it cancels. */
  async cancel(id: string, { tenant, task = false, reason = "" }: Whose & { task?: boolean; reason?: string } = {}): Promise<void> {
    const whose = this.#whose({ tenant });
    const kind = task ? "task_id" : "turn_id";
    const message = { op: "cancel", tenant: whose, [kind]: idOf(id, kind), ...(reason && { reason }) };
    await this.#redis.add(`${this.#prefix(whose)}tasks`, "task", written(message));
  }

  /** What happens to a task, from a position on to its end. The last event is an `ended`. */
  follow(taskId: string, { tenant, position = 0 }: Whose & { position?: number } = {}): AsyncGenerator<TaskEvent> {
    const whose = this.#whose({ tenant });
    return follow(this.#redis, this.#prefix(whose), `${whose}:${idOf(taskId, "taskId")}`, position);
  }

  /** @internal */
  release(tenant: string, waiter: Waiter): void {
    waiter.holders -= 1;
    if (waiter.holders <= 0) this.#hub(tenant).drop(waiter);
  }

  async #send(tenant: string, message: Message, kind: "turn" | "task", isGiven: boolean): Promise<Waiter> {
    const id = message[`${kind}_id`] as string;
    const hub = this.#hub(tenant);
    const what = asked(message);
    const there = hub.waiter(`${tenant}:${id}`);
    if (there !== undefined && there.asked !== "" && there.asked !== what) {
      throw new Conflict(id, `the id ${id} is in use for other content`);
    }
    const waiter = there ?? new Waiter(`${tenant}:${id}`, what, isGiven);
    if (there === undefined) {
      this.#tenants.add(tenant);
      // Before the message: no reply can slip in between.
      hub.add(waiter, `${tenant}:${this.#inbox}`);
    }
    waiter.holders += 1;
    waiter.isSending = true;
    try {
      const entry = await this.#enqueue(tenant, message, kind);
      waiter.sent(`${this.#prefix(tenant)}${kind}s`, entry);
    } catch (error) {
      waiter.holders -= 1;
      if (there === undefined) hub.drop(waiter);
      throw error;
    }
    return waiter;
  }

  async #enqueue(tenant: string, message: Message, kind: "turn" | "task"): Promise<string> {
    const text = written(message);
    const prefix = this.#prefix(tenant);
    const { turnsMax, turnsBytesMax } = this.#options;
    try {
      const bounds: [number, number] = [turnsMax, kind === "turn" ? turnsBytesMax : 0];
      return await this.#redis.enqueue(`${prefix}${kind}s`, `${prefix}meta`, kind, text, bounds);
    } catch (error) {
      if (error instanceof Unavailable) error.id = message[`${kind}_id`] as string;
      throw error;
    }
  }

  #whose({ tenant = this.#tenant }: Whose): string {
    if (tenant === undefined) throw new InvalidMessage("name a tenant, here or when the fleet is made");
    return nameOf(tenant, "tenant");
  }

  #prefix(tenant: string): string {
    return `{${this.#options.namespace}:${shardOf(tenant, this.#options.shards)}}:`;
  }

  #hub(tenant: string): Hub {
    const shard = shardOf(tenant, this.#options.shards);
    let hub = this.#hubs.get(shard);
    if (hub === undefined) {
      hub = new Hub(this.#redis, this.#prefix(tenant), this.#options.warn);
      this.#hubs.set(shard, hub);
    }
    return hub;
  }
}

/** A reader of one inbox. An inbox has one reader: what it has handed out, it removes with its next read. */
export class Replies implements AsyncIterable<Reply> {
  #link: Link | undefined;
  #unread: Entry[] = [];
  #handedOut: string[] = [];

  /** @internal */
  constructor(
    private readonly redis: Redis,
    private readonly inbox: Inbox,
  ) {}

  /**
   * The next reply; none where none came in time.
   *
   * The reply that was handed out before is removed now: whoever crashes while it works on a reply finds it again.
   * `reply.missed` counts what is missing before it; what it said is in the records.
   */
  async next(timeoutMs = Infinity): Promise<Reply | undefined> {
    const end = Date.now() + timeoutMs;
    while (this.#unread.length === 0) {
      await this.#trim();
      const found = await this.#read(Math.min(BLOCK_MS, Math.max(1, end - Date.now())));
      this.#unread = this.inbox.fresh(found);
      if (this.#unread.length === 0 && Date.now() >= end) return undefined;
    }
    const entry = this.#unread.shift()!;
    this.#handedOut.push(entry.id);
    return readReply(entry.reply, entry.seq || undefined, entry.missed);
  }

  /** Removes what was handed out, leaves the rest for another reader, and ends the reading. */
  async finish(): Promise<void> {
    await this.#trim();
    this.#link?.drop();
    this.#link = undefined;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Reply> {
    for (;;) {
      const reply = await this.next();
      if (reply !== undefined) yield reply;
    }
  }

  async #read(blockMs: number): Promise<Entry[]> {
    try {
      this.#link ??= await this.redis.dedicated();
      const found = await this.redis.read(this.#link, [this.inbox], blockMs);
      return found.get(this.inbox.key) ?? [];
    } catch (error) {
      this.#link?.drop();
      this.#link = undefined;
      throw new Unavailable(`Redis cannot be reached: ${(error as Error).message}`, { cause: error });
    }
  }

  async #trim(): Promise<void> {
    if (this.#handedOut.length === 0) return;
    await this.redis.remove(this.inbox, this.#handedOut);
    this.#handedOut = [];
  }
}
