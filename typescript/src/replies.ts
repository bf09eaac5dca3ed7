/** A reader of one inbox, on a connection to Redis. */
import { Unavailable } from "./errors.js";
import type { Entry, Inbox } from "./inbox.js";
import { BLOCK_MS, type Link, type Redis } from "./redis.js";
import { type Reply, readReply } from "./reply.js";

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
