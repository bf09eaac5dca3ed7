/** One reader of replies for a whole process: whoever waits for a reply is told by it, and asks Redis nothing itself. */
import { setTimeout as sleep } from "node:timers/promises";

import { FleetError } from "./errors.js";
import { type Entry, Inbox } from "./inbox.js";
import { BLOCK_MS, type Link, type Redis } from "./redis.js";
import { type Reply, absent, isEnd, readRecord, readReply } from "./reply.js";

/** Ms without a reply, after which the record of a turn is looked at for the first time … */
const RECORD_AFTER_MS = 1_000;
/** … the same, where its id was given by somebody, for it may have ended before … */
const RECORD_SOON_MS = 100;
/** … and the longest time between two looks. */
const RECORD_EVERY_MAX_MS = 10_000;
const LOOKS_AT_ONCE = 50;
const PAUSE_MAX_MS = 2_000;

/** Somebody who waits for one reply. */
export class Waiter {
  readonly reply: Promise<Reply>;
  /** Where its message was put, and as what; none where this process did not submit it. */
  stream = "";
  entry: string | undefined;
  /** Whether its message is on its way: nothing is known of it yet, and a record would be that of another turn. */
  isSending = false;
  /** Whether its entry was seen to be gone: a refusal is in the inbox by then. */
  isDecided = false;
  /** What it was told meanwhile: one reply for each approval that is waited for. */
  readonly pending: Reply[] = [];
  /** How many wait for it by a handle. */
  holders = 0;
  lookAt: number;
  pauseMs: number;
  #tell!: (reply: Reply) => void;
  #fail!: (error: Error) => void;

  constructor(
    /** `<tenant>:<id>` */
    readonly place: string,
    /** What was asked for, to tell another turn of the same id. */
    readonly asked: string,
    isGiven: boolean,
  ) {
    this.reply = new Promise((resolve, reject) => {
      this.#tell = resolve;
      this.#fail = reject;
    });
    // Nobody need be there to hear that the client was closed.
    this.reply.catch(() => {});
    this.pauseMs = isGiven ? RECORD_SOON_MS : RECORD_AFTER_MS;
    this.lookAt = Date.now() + this.pauseMs;
  }

  /** Its message is on its stream. */
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
  #link: Link | undefined;
  #isClosed = false;
  #isListening = false;
  #timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly redis: Redis,
    private readonly prefix: string,
    private readonly warn: (message: string) => void,
  ) {}

  /** Who waits for the reply about this turn or task. */
  waiter(place: string): Waiter | undefined {
    return this.#waiters.get(place);
  }

  /** From now on the reply is looked out for, in this inbox (`<tenant>:<name>`) and in its record. */
  add(waiter: Waiter, inbox: string | undefined): void {
    this.#waiters.set(waiter.place, waiter);
    this.#lookLater();
    if (inbox === undefined) return;
    const key = `${this.prefix}replies:${inbox}`;
    if (!this.#inboxes.has(key)) {
      this.#inboxes.set(key, new Inbox(key));
      // A read that is given up takes its connection with it: reading removes nothing, so nothing is lost.
      this.#link?.drop();
      this.#link = undefined;
    }
    if (!this.#isListening) void this.#listen();
  }

  /** It is not looked out for any more. */
  drop(waiter: Waiter): void {
    if (this.#waiters.get(waiter.place) === waiter) this.#waiters.delete(waiter.place);
  }

  /** Stops reading. Whoever still waits is told. */
  close(): void {
    this.#isClosed = true;
    this.#link?.drop();
    clearTimeout(this.#timer);
    for (const waiter of this.#waiters.values()) waiter.fail(new FleetError("closed", "the fleet's client was closed"));
    this.#waiters.clear();
  }

  /** Reads as long as the client is open, whatever Redis says: a connection comes back, and what was missed is in records. */
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
        // Another inbox was added, or the client was closed.
        if (this.#isClosed || this.#inboxes.size !== count) continue;
        this.warn(`replies cannot be read, trying again in ${pauseMs} ms: ${(error as Error).message}`);
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
    // An inbox was added while it connected: it is read from the start.
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
    // Those of a read before whose removal failed go with these.
    if (inbox.kept.size > 0) await this.redis.remove(inbox, [...inbox.kept]);
  }

  /** Hands over the reply, once. */
  #tell(waiter: Waiter, reply: Reply): void {
    this.drop(waiter);
    waiter.tell(reply);
  }

  #lookNow(): void {
    for (const waiter of this.#waiters.values()) waiter.lookAt = 0;
    this.#lookLater();
  }

  /** Looks when the first of those who wait is due. */
  #lookLater(): void {
    clearTimeout(this.#timer);
    if (this.#isClosed || this.#waiters.size === 0) return;
    const first = Math.min(...[...this.#waiters.values()].map((waiter) => waiter.lookAt));
    this.#timer = setTimeout(() => void this.#look(), Math.max(0, first - Date.now()));
  }

  /** Looks at the records of those who have waited for some time. */
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
   * Takes the reply from the record; but not before this process' own message was decided about, for it may have been refused:
   * then the record is that of another turn.
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
      // A refusal would be in the inbox by now, and is read before this comes round again.
      waiter.lookAt = Date.now() + RECORD_SOON_MS;
    }
  }
}
