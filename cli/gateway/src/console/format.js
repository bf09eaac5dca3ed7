import { Digits } from "./json.js";

const two = (number) => String(number).padStart(2, "0");

export function span(ms) {
  if (ms === undefined || ms === null) return "";
  const all = Math.max(0, ms);
  if (all < 1000) return `${Math.round(all)} ms`;
  if (all < 60_000) return `${(all / 1000).toFixed(1)} s`;
  if (all < 3_600_000) return `${Math.floor(all / 60_000)} min ${Math.floor((all % 60_000) / 1000)} s`;
  if (all < 172_800_000) return `${Math.floor(all / 3_600_000)} h ${Math.floor((all % 3_600_000) / 60_000)} min`;
  return `${Math.floor(all / 86_400_000)} days`;
}

/** Formats a time relative to now, such as `in 5 s`. */
export function fromNow(atMs, nowMs) {
  if (!atMs) return "";
  return atMs >= nowMs ? `in ${span(atMs - nowMs)}` : `${span(nowMs - atMs)} ago`;
}

/** Formats a date and time in UTC, as the commands of `tickfleet` print it. */
export const utc = (ms) => (ms ? `${new Date(ms).toISOString().replace("T", " ").slice(0, 19)} UTC` : "");

/** Formats a time of day in the browser's time zone. */
export function timeOfDay(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** Formats a date and time in the browser's time zone. Leaves out the date if it is today. */
export function local(ms) {
  const at = new Date(ms);
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? timeOfDay(ms) : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${timeOfDay(ms)}`;
}

/** Formats a number with commas between groups of thousands. */
export const count = (number) => (number === undefined || number === null ? "" : number instanceof Digits ? number.text : number.toLocaleString("en-US"));
export const percent = (part, all) => (all ? `${Math.round((100 * part) / all)} %` : "");
export const megabytes = (bytes) => `${Math.round(bytes / 1_048_576)} MiB`;
export const money = (number) => (number ? Number(number).toFixed(number < 0.1 ? 4 : 2) : "0");

const FAILED = ["permanent", "transient", "internal"];

/** Returns the sort of an outcome: ok, failed, unknown, or refused (for example by policy). */
export const sortOf = (outcome) => (outcome === "ok" ? "ok" : outcome === "outcome_unknown" ? "unknown" : FAILED.includes(outcome) ? "failed" : "refused");

/** Returns the mood of an outcome, which selects its color. Only ok is good. */
export const moodOf = (outcome) => ({ ok: "good", failed: "bad", unknown: "bad", refused: "doubt" })[sortOf(outcome)];

/** Counts outcomes by sort. Returns `{ok, failed, refused, unknown, all}`. */
export function tally(outcomes) {
  const all = { ok: 0, failed: 0, refused: 0, unknown: 0, all: 0 };
  for (const [name, number] of Object.entries(outcomes)) {
    all[sortOf(name)] += number;
    all.all += number;
  }
  return all;
}

/** Returns the name of a worker, from the name of its consumer in one shard. */
export const workerOf = (holder) => holder?.replace(/-[0-9a-f]+-\d+$/, "") ?? "";

const UNITS = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Parses a point in time: `90s`, `15m` or `1d` before now; `today`; `yesterday`; or a date with or without a time. */
export function pointInTime(text, nowMs) {
  const word = (text ?? "").trim();
  if (!word) return undefined;
  const ago = /^(\d+)\s*([smhd])$/.exec(word);
  if (ago) return nowMs - Number(ago[1]) * UNITS[ago[2]];
  const midnight = new Date(nowMs);
  midnight.setHours(0, 0, 0, 0);
  if (word === "today") return midnight.getTime();
  if (word === "yesterday") return new Date(midnight).setDate(midnight.getDate() - 1);
  const at = new Date(/^\d{4}-\d\d-\d\d$/.test(word) ? `${word}T00:00` : word.replace(" ", "T")).getTime();
  if (Number.isNaN(at)) throw new Error(`${word}: expected 15m, 1d, today, yesterday, or a date such as 2026-11-29 10:00`);
  return at;
}

/**
 * Returns the range of a filter, `{from, until}` in milliseconds. Either end may be undefined. `yesterday` alone ends
 * at midnight.
 */
export function range(query, nowMs) {
  const from = pointInTime(query.get("from"), nowMs);
  const isYesterday = query.get("from")?.trim() === "yesterday" && !query.get("until");
  return { from, until: isYesterday ? pointInTime("today", nowMs) : pointInTime(query.get("until"), nowMs) };
}
