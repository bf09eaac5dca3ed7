/** A reader of one inbox, on a connection to Redis. */
import { Unavailable } from "./errors.js";
import type { Entry, Inbox } from "./inbox.js";
import { BLOCK_MS, type Link, type Redis } from "./redis.js";
import { type Reply, readReply } from "./reply.js";

/** A reader of one inbox. An inbox has one reader, which removes each returned reply with its next read. */
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
   * Returns the next reply, or nothing if the time runs out.
   *
   * The call removes the previous reply, so that a reader that crashes receives it again. `reply.missed` counts the
   * missing replies before this one, which are still in the records.
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

  /** Removes the returned replies, leaves the rest for another reader, and stops reading. */
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
      throw new Unavailable(`${this.redis.name} cannot be reached: ${(error as Error).message}`, { cause: error });
    }
  }

  async #trim(): Promise<void> {
    if (this.#handedOut.length === 0) return;
    await this.redis.remove(this.inbox, this.#handedOut);
    this.#handedOut = [];
  }
}
