/** Transport over Redis, as docs/reference/protocol.md specifies it. */
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

import { DIALECTS, defined, isDialect } from "./definitions.js";
import { Conflict, InvalidMessage, NoDefinitions, Unavailable } from "./errors.js";
import { type TaskEvent, follow } from "./events.js";
import { Hub, Waiter } from "./hub.js";
import { Inbox } from "./inbox.js";
import { read } from "./json.js";
import { type Message, asked, nameOf, shardOf, written } from "./message.js";
import { Redis } from "./redis.js";
import { Replies } from "./replies.js";
import { type Reply, readRecord } from "./reply.js";
import { type Awaited, type Claim, type Kind, type Transport, claimOf } from "./transport.js";

/** Options for a fleet that is reached through Redis. */
export interface DirectOptions {
  /** `redis.namespace` of the fleet. Default: `tickfleet`. */
  namespace?: string;
  /** `redis.shards` of the fleet. Default: 1. */
  shards?: number;
  /**
   * Name of the inbox of this process, if its Redis user can read only one. Two processes must not share a name.
   * Default: a private inbox that is removed on close.
   */
  inbox?: string;
  /** `queues.turns_max` of the fleet. Default: 100,000. */
  turnsMax?: number;
  /** `queues.turns_bytes_max` of the fleet. Default: 256 MiB. */
  turnsBytesMax?: number;
}

/** The longest wait for the first tool list. If the fleet has just started, no worker has published one yet. */
const FIRST_WORKER_MS = 5_000;
const LOOK_AGAIN_MS = 250;

function privateInbox(): string {
  const host = hostname().replace(/[^A-Za-z0-9]/g, "").slice(0, 20) || "host";
  return `js-${host}-${process.pid}-${randomUUID().slice(24)}`;
}

async function awaited(waiter: Waiter, timeoutMs: number): Promise<Reply | undefined> {
  if (timeoutMs === Infinity) return waiter.reply;
  const given = new AbortController();
  const late = sleep(timeoutMs, undefined, { signal: given.signal }).catch(() => undefined);
  try {
    return await Promise.race([waiter.reply, late]);
  } finally {
    given.abort();
  }
}

/** Reads replies on one connection for each shard in use, however many callers wait. */
export class Direct implements Transport {
  readonly inbox: string;
  readonly #redis: Redis;
  readonly #options: Required<Omit<DirectOptions, "inbox">>;
  readonly #isPrivate: boolean;
  readonly #hubs = new Map<number, Hub>();
  readonly #tenants = new Set<string>();

  constructor(
    url: string,
    retryTimeoutMs: number,
    private readonly warn: (message: string) => void,
    { namespace = "tickfleet", shards = 1, inbox, turnsMax = 100_000, turnsBytesMax = 256 * 1024 * 1024 }: DirectOptions,
  ) {
    if (!(shards >= 1)) throw new RangeError(`shards is ${shards}; expected at least 1`);
    this.#redis = new Redis(url, retryTimeoutMs);
    this.#isPrivate = inbox === undefined;
    this.inbox = inbox === undefined ? privateInbox() : nameOf(inbox, "inbox");
    this.#options = { namespace, shards, turnsMax, turnsBytesMax };
  }

  tenantOf(tenant: string | undefined): string {
    if (tenant === undefined) throw new InvalidMessage("no tenant: pass one, or set it when you create the Fleet");
    return nameOf(tenant, "tenant");
  }

  async close(): Promise<void> {
    for (const hub of this.#hubs.values()) hub.close();
    this.#hubs.clear();
    if (this.#isPrivate) {
      // An inbox that cannot be removed now expires later.
      for (const tenant of this.#tenants) {
        await this.#redis.forget(tenant, this.inbox, this.#prefix(tenant)).catch(() => {});
      }
    }
    this.#tenants.clear();
    this.#redis.close();
  }

  async submit(kind: Kind, given: string | undefined, message: Message, isGiven: boolean): Promise<Awaited> {
    const tenant = this.tenantOf(given);
    const id = message[`${kind}_id`] as string;
    const hub = this.#hub(tenant);
    const what = asked(message);
    const there = hub.waiter(`${tenant}:${id}`);
    if (there !== undefined && there.asked !== "" && there.asked !== what) {
      throw new Conflict(id, "the id is in use for other content");
    }
    const waiter = there ?? new Waiter(`${tenant}:${id}`, what, isGiven || hub.isNew(tenant));
    if (there === undefined) {
      this.#tenants.add(tenant);
      // Add the waiter before sending. Otherwise, a reply could arrive unnoticed.
      hub.add(waiter, `${tenant}:${this.inbox}`);
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
    return {
      pending: waiter.pending,
      reply: (timeoutMs) => awaited(waiter, timeoutMs),
      release: () => {
        waiter.holders -= 1;
        if (waiter.holders <= 0) hub.drop(waiter);
      },
    };
  }

  async send(kind: Kind, tenant: string | undefined, message: Message): Promise<void> {
    await this.#enqueue(this.tenantOf(tenant), message, kind);
  }

  async wait(given: string | undefined, id: string, timeoutMs: number): Promise<Reply | undefined> {
    const tenant = this.tenantOf(given);
    const found = await this.reply(tenant, id);
    if (found !== undefined) return found;
    const hub = this.#hub(tenant);
    const place = `${tenant}:${id}`;
    let waiter = hub.waiter(place);
    if (waiter !== undefined) return awaited(waiter, timeoutMs);
    waiter = new Waiter(place, "", true);
    hub.add(waiter, undefined);
    try {
      return await awaited(waiter, timeoutMs);
    } finally {
      hub.drop(waiter);
    }
  }

  async reply(given: string | undefined, id: string): Promise<Reply | undefined> {
    const tenant = this.tenantOf(given);
    const record = await this.#redis.get(`${this.#prefix(tenant)}done:${tenant}:${id}`);
    return record === null ? undefined : readRecord(record);
  }

  async tools(given: string | undefined, agent: string, dialect: string): Promise<unknown> {
    const tenant = this.tenantOf(given);
    if (!isDialect(dialect)) throw new InvalidMessage(`format is ${JSON.stringify(dialect)}; expected one of ${DIALECTS.join(", ")}`);
    const prefix = `${this.#prefix(tenant)}tools:`;
    const list = () => this.#redis.content(`${prefix}${tenant}:${agent}`);
    const end = performance.now() + FIRST_WORKER_MS;
    let found = await list();
    // Workers publish the names of tools after the lists of agents. After the names, no list will come.
    while (found === null && !(await this.#redis.exists(`${prefix}names`)) && performance.now() < end) {
      await sleep(LOOK_AGAIN_MS);
      found = await list();
    }
    // The list may have been written between the last two reads.
    found ??= await list();
    const text = found === null ? null : await this.#redis.content(`${prefix}=:${JSON.parse(found).d}`);
    if (text !== null) return defined(dialect, JSON.parse(text));
    throw new NoDefinitions(
      `no tool list for agent ${agent} of tenant ${tenant}: check the names of tenant and agent, ` +
        "and that a worker runs. Workers publish tool lists when they start and every five minutes",
    );
  }

  async cancel(kind: Kind, given: string | undefined, id: string, reason: string): Promise<void> {
    const tenant = this.tenantOf(given);
    const message = { op: "cancel", tenant, [`${kind}_id`]: id, ...(reason && { reason }) };
    await this.#redis.add(`${this.#prefix(tenant)}tasks`, "task", written(message));
  }

  async claim(given: string | undefined, id: string, claimant: string): Promise<Claim | undefined> {
    const tenant = this.tenantOf(given);
    const taken = await this.#redis.take(`${this.#prefix(tenant)}local:${tenant}:${id}`, claimant);
    return taken === undefined ? undefined : claimOf(taken.entry, read(taken.fields["call"]!));
  }

  async report(given: string | undefined, id: string, report: Message): Promise<void> {
    const tenant = this.tenantOf(given);
    await this.#redis.add(`${this.#prefix(tenant)}tasks`, "task", written({ ...report, tenant, turn_id: id }));
  }

  follow(given: string | undefined, taskId: string, position: number): AsyncGenerator<TaskEvent> {
    const tenant = this.tenantOf(given);
    return follow(this.#redis, this.#prefix(tenant), `${tenant}:${taskId}`, position);
  }

  replies(given: string | undefined, inbox: string): Replies {
    const tenant = this.tenantOf(given);
    return new Replies(this.#redis, new Inbox(`${this.#prefix(tenant)}replies:${tenant}:${nameOf(inbox, "inbox")}`));
  }

  async #enqueue(tenant: string, message: Message, kind: Kind): Promise<string> {
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

  #prefix(tenant: string): string {
    return `{${this.#options.namespace}:${shardOf(tenant, this.#options.shards)}}:`;
  }

  #hub(tenant: string): Hub {
    const shard = shardOf(tenant, this.#options.shards);
    let hub = this.#hubs.get(shard);
    if (hub === undefined) {
      hub = new Hub(this.#redis, this.#prefix(tenant), this.warn);
      this.#hubs.set(shard, hub);
    }
    return hub;
  }
}
