/**
 * One reader of replies for a whole process. Waiting callers get their replies from this reader, and make no requests
 * to Redis.
 */
import { setTimeout as sleep } from "node:timers/promises";

import { FleetError } from "./errors.js";
import { type Entry, Inbox } from "./inbox.js";
import { BLOCK_MS, type Link, type Redis } from "./redis.js";
import { type Reply, UNKNOWN_TENANT, absent, isEnd, readRecord, readReply } from "./reply.js";

/** In ms, until the first read of a turn's record if no reply has arrived. */
const RECORD_AFTER_MS = 1_000;
/** In ms. Replaces the pause above if the record may already show the end. */
const RECORD_SOON_MS = 100;
/** In ms. */
const RECORD_EVERY_MAX_MS = 10_000;
const LOOKS_AT_ONCE = 50;
const PAUSE_MAX_MS = 2_000;

/** A caller that waits for one reply. */
export class Waiter {
  readonly reply: Promise<Reply>;
  /** `entry` is `undefined` if this process did not submit the message. */
  stream = "";
  entry: string | undefined;
  /** Records are ignored meanwhile: a record that exists before the message is sent belongs to another turn. */
  isSending = false;
  /** True if the entry has left the stream. If the message was rejected, the rejection is then already in the inbox. */
  isDecided = false;
  /** One for each approval that the turn waits for. */
  readonly pending: Reply[] = [];
  holders = 0;
  lookAt: number;
  pauseMs: number;
  #tell!: (reply: Reply) => void;
  #fail!: (error: Error) => void;

  constructor(
    /** `<tenant>:<id>` */
    readonly place: string,
    /** Distinguishes another turn with the same id. */
    readonly asked: string,
    mayHaveEnded: boolean,
  ) {
    this.reply = new Promise((resolve, reject) => {
      this.#tell = resolve;
      this.#fail = reject;
    });
    // Avoids an unhandled rejection if no caller awaits the reply.
    this.reply.catch(() => {});
    this.pauseMs = mayHaveEnded ? RECORD_SOON_MS : RECORD_AFTER_MS;
    this.lookAt = Date.now() + this.pauseMs;
  }

  sent(stream: string, entry: string): void {
    this.stream = stream;
    this.entry = entry;
    this.isDecided = false;
    this.isSending = false;
  }

  tell(reply: Reply): void {
    this.#tell(reply);
  }

  fail(error: Error): void {
    this.#fail(error);
  }
}

/** The inboxes of one shard, read on one connection. */
export class Hub {
  readonly #inboxes = new Map<string, Inbox>();
  readonly #waiters = new Map<string, Waiter>();
  readonly #tenants = new Set<string>();
  #link: Link | undefined;
  #isClosed = false;
  #isListening = false;
  #timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly redis: Redis,
    private readonly prefix: string,
    private readonly warn: (message: string) => void,
  ) {}

  waiter(place: string): Waiter | undefined {
    return this.#waiters.get(place);
  }

  /** True if the tenant has not replied to this process yet. Such a tenant may not exist. */
  isNew(tenant: string): boolean {
    return !this.#tenants.has(tenant);
  }

  /** The inbox is `<tenant>:<name>`. */
  add(waiter: Waiter, inbox: string | undefined): void {
    this.#waiters.set(waiter.place, waiter);
    this.#lookLater();
    if (inbox === undefined) return;
    const key = `${this.prefix}replies:${inbox}`;
    if (!this.#inboxes.has(key)) {
      this.#inboxes.set(key, new Inbox(key));
      // Reading removes nothing, so dropping the connection loses no reply.
      this.#link?.drop();
      this.#link = undefined;
    }
    if (!this.#isListening) void this.#listen();
  }

  drop(waiter: Waiter): void {
    if (this.#waiters.get(waiter.place) === waiter) this.#waiters.delete(waiter.place);
  }

  close(): void {
    this.#isClosed = true;
    this.#link?.drop();
    clearTimeout(this.#timer);
    for (const waiter of this.#waiters.values()) waiter.fail(new FleetError("closed", "the fleet's client was closed"));
    this.#waiters.clear();
  }

  /** Errors of Redis do not end the reading: connections are restored, and missed replies are in the records. */
  async #listen(): Promise<void> {
    this.#isListening = true;
    let pauseMs = 50;
    while (!this.#isClosed) {
      const count = this.#inboxes.size;
      try {
        await this.#round();
        pauseMs = 50;
      } catch (error) {
        this.#link?.drop();
        this.#link = undefined;
        // This error is expected if another inbox was added or the client was closed.
        if (this.#isClosed || this.#inboxes.size !== count) continue;
        this.warn(`failed to read replies; retrying in ${pauseMs} ms: ${(error as Error).message}`);
        this.#lookNow();
        await sleep(pauseMs);
        pauseMs = Math.min(pauseMs * 2, PAUSE_MAX_MS);
      }
    }
    this.#link?.drop();
  }

  async #round(): Promise<void> {
    const count = this.#inboxes.size;
    const link = (this.#link ??= await this.redis.dedicated());
    // The next round reads the added inbox from its start.
    if (this.#isClosed || this.#inboxes.size !== count) return;
    const found = await this.redis.read(link, [...this.#inboxes.values()], BLOCK_MS);
    for (const [key, entries] of found) {
      const inbox = this.#inboxes.get(key);
      if (inbox !== undefined) await this.#take(inbox, inbox.fresh(entries));
    }
  }

  async #take(inbox: Inbox, entries: Entry[]): Promise<void> {
    for (const entry of entries) {
      if (entry.missed > 0) {
        this.warn(`${entry.missed} replies are missing in ${inbox.key}; reading their records`);
        this.#lookNow();
      }
      try {
        const reply = readReply(entry.reply, entry.seq || undefined, entry.missed);
        const waiter = this.#waiters.get(`${reply.tenant}:${reply.id}`);
        if (waiter !== undefined && isEnd(reply)) this.#tell(waiter, reply);
        else waiter?.pending.push(reply);
      } catch (error) {
        this.warn(`${inbox.key} ${entry.id}: ${(error as Error).message}`);
      }
    }
    // Includes entries that an earlier read could not remove.
    if (inbox.kept.size > 0) await this.redis.remove(inbox, [...inbox.kept]);
  }

  #tell(waiter: Waiter, reply: Reply): void {
    this.drop(waiter);
    if (reply.error?.code !== UNKNOWN_TENANT) this.#tenants.add(reply.tenant);
    waiter.tell(reply);
  }

  #lookNow(): void {
    for (const waiter of this.#waiters.values()) waiter.lookAt = 0;
    this.#lookLater();
  }

  #lookLater(): void {
    clearTimeout(this.#timer);
    if (this.#isClosed || this.#waiters.size === 0) return;
    const first = Math.min(...[...this.#waiters.values()].map((waiter) => waiter.lookAt));
    this.#timer = setTimeout(() => void this.#look(), Math.max(0, first - Date.now()));
  }

  async #look(): Promise<void> {
    const now = Date.now();
    const due = [...this.#waiters.values()].filter((waiter) => waiter.lookAt <= now).slice(0, LOOKS_AT_ONCE);
    for (const waiter of due) {
      waiter.pauseMs = Math.min(waiter.pauseMs * 2, RECORD_EVERY_MAX_MS);
      waiter.lookAt = now + waiter.pauseMs;
    }
    await Promise.all(
      due.map((waiter) =>
        this.#lookAt(waiter).catch((error: unknown) => {
          if (!this.#isClosed) this.warn(`the record of ${waiter.place} cannot be read: ${(error as Error).message}`);
        }),
      ),
    );
    this.#lookLater();
  }

  /**
   * The record counts only after the fleet has accepted or rejected this process' own message. If the message was
   * rejected, the record belongs to another turn.
   */
  async #lookAt(waiter: Waiter): Promise<void> {
    if (waiter.isSending) return;
    const wasDecided = waiter.isDecided;
    if (waiter.entry !== undefined && !wasDecided) {
      waiter.isDecided = !(await this.redis.waits(waiter.stream, waiter.entry));
    }
    if (waiter.entry === undefined || wasDecided) {
      const record = await this.redis.record(`${this.prefix}done:${waiter.place}`);
      let reply = record === null ? undefined : readRecord(record);
      if (record === null && (await this.redis.isAbsent(this.prefix, waiter.place))) {
        reply = absent(waiter.place, waiter.stream.endsWith("tasks") ? "task" : "turn");
      }
      if (reply !== undefined) this.#tell(waiter, reply);
    } else if (waiter.isDecided) {
      // A rejection is in the inbox by now, and is read before the next check.
      waiter.lookAt = Date.now() + RECORD_SOON_MS;
    }
  }
}
