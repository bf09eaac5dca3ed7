/** JSON text of values. */
import { stringify } from "lossless-json";

/** `stringify` escapes half of a surrogate pair, which no other program could read. */
const HALF_PAIR = /(?<!\\)((?:\\\\)*)\\ud[89a-f][0-9a-f]{2}/gi;

/**
 * Returns the JSON text of a value. A `bigint` keeps its digits, and `undefined` becomes `null`.
 *
 * @throws {Error} The value cannot be written as JSON.
 */
export function written(value: unknown): string {
  const text = stringify(value, (_key, member) => {
    if (typeof member === "number" && !Number.isFinite(member)) throw new Error(`${member} is not a JSON number`);
    return member;
  });
  return text === undefined ? "null" : text.replace(HALF_PAIR, "$1\ufffd");
}
