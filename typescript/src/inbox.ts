/**
 * The read position in an inbox.
 *
 * A position can be ahead of the inbox: if Redis has lost its last writes, and its clock is now behind the time of
 * those writes, new entries get lower numbers than entries that were already read. A reader therefore starts again if
 * it receives nothing or if replies are missing. It removes replies by their entries instead of by age.
 */

/** Maximum number of entries in one read. */
export const COUNT = 128;

const BEGINNING = "0-0";

/** A reply in the inbox. */
export interface Entry {
  id: string;
  /** From 1 without gaps; 0 if the entry has no number. */
  seq: number;
  reply: string;
  missed: number;
}

/** The read position in one inbox. */
export class Inbox {
  last = BEGINNING;
  readonly kept = new Set<string>();
  #seq = 0;
  #looksBack = false;

  constructor(readonly key: string) {}

  fresh(found: Entry[]): Entry[] {
    const newest = found.at(-1);
    if (newest === undefined) return [];
    this.last = newest.id;
    let follows = true;
    const fresh: Entry[] = [];
    for (const entry of found) {
      if (this.kept.has(entry.id)) continue;
      this.kept.add(entry.id);
      // No gap is reported for the first reply, or for a recreated inbox that counts from 1 again.
      const missed = this.#seq === 0 ? 0 : Math.max(0, entry.seq - this.#seq - 1);
      follows &&= this.#seq === 0 || entry.seq === this.#seq + 1;
      fresh.push({ ...entry, missed });
      this.#seq = entry.seq;
    }
    if (this.#looksBack) this.#looksBack = found.length >= COUNT;
    // The missing replies may be before the entries that were read, so the next read starts at the beginning.
    else if (!follows) this.lookBack();
    return fresh;
  }

  lookBack(): void {
    this.last = BEGINNING;
    this.#looksBack = true;
  }

  /** `newest` is the newest entry after a read that returned nothing. */
  isBehind(newest: string | undefined): boolean {
    return newest !== undefined && !this.kept.has(newest);
  }
}

/** Parses an entry from the flat list of fields in Redis' response. */
export function entryOf(id: string, flat: string[]): Entry {
  const fields = new Map<string, string>();
  for (let at = 0; at + 1 < flat.length; at += 2) fields.set(flat[at]!, flat[at + 1]!);
  const seq = fields.get("seq") ?? "";
  return { id, seq: /^\d+$/.test(seq) ? Number(seq) : 0, reply: fields.get("reply") ?? "", missed: 0 };
}
