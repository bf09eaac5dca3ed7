/**
 * How far an inbox was read. It knows no Redis, so that what it decides can be seen at once.
 *
 * What was read can be less than was thought: a Redis that has lost its last writes, and whose clock is behind the one before,
 * numbers its next entries below those that were read already. So a reader looks back where it hears nothing or where replies
 * are missing, and removes by name what it has read, not all that is older.
 */

/** Entries taken at once. */
export const COUNT = 128;

/** Before every entry. */
const BEGINNING = "0-0";

/** A reply as it stands in the inbox. */
export interface Entry {
  id: string;
  /** From 1 without gaps; 0 where the entry has none. */
  seq: number;
  reply: string;
  /** Replies that are missing before it. */
  missed: number;
}

/** Where a reader of one inbox stands. */
export class Inbox {
  last = BEGINNING;
  /** Entries that were read and are not removed yet. */
  readonly kept = new Set<string>();
  #seq = 0;
  #looksBack = false;

  constructor(readonly key: string) {}

  /** Those of the entries that were not read yet, each with what is missing before it. From here on they are read. */
  fresh(found: Entry[]): Entry[] {
    const newest = found.at(-1);
    if (newest === undefined) return [];
    this.last = newest.id;
    let follows = true;
    const told: Entry[] = [];
    for (const entry of found) {
      if (this.kept.has(entry.id)) continue;
      this.kept.add(entry.id);
      // The first that is read shows no gap, and neither does an inbox that was made anew and counts from 1 again.
      const missed = this.#seq === 0 ? 0 : Math.max(0, entry.seq - this.#seq - 1);
      follows &&= this.#seq === 0 || entry.seq === this.#seq + 1;
      told.push({ ...entry, missed });
      this.#seq = entry.seq;
    }
    if (this.#looksBack) this.#looksBack = found.length >= COUNT;
    // What is missing may stand before the entries that were read.
    else if (!follows) this.lookBack();
    return told;
  }

  /** Reads from the beginning next. */
  lookBack(): void {
    this.last = BEGINNING;
    this.#looksBack = true;
  }

  /** Whether the newest entry, where nothing new was heard, was not read. */
  isBehind(newest: string | undefined): boolean {
    return newest !== undefined && !this.kept.has(newest);
  }
}

/** An entry by the flat list of fields that Redis gives. */
export function entryOf(id: string, flat: string[]): Entry {
  const fields = new Map<string, string>();
  for (let at = 0; at + 1 < flat.length; at += 2) fields.set(flat[at]!, flat[at + 1]!);
  const seq = fields.get("seq") ?? "";
  return { id, seq: /^\d+$/.test(seq) ? Number(seq) : 0, reply: fields.get("reply") ?? "", missed: 0 };
}
