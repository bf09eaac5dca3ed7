/**
 * JSON with exact numbers: integers beyond `Number.MAX_SAFE_INTEGER` are `bigint` in both directions; numbers beyond
 * `Number.MAX_VALUE` are read as text.
 */
import { parse, stringify } from "lossless-json";

import { InvalidMessage } from "./errors.js";

function numberOf(text: string): number | bigint | string {
  const value = Number(text);
  if (/^-?\d+$/.test(text) && !Number.isSafeInteger(value)) return BigInt(text);
  return Number.isFinite(value) ? value : text;
}

/** Reads JSON. */
export function read(text: string): unknown {
  return parse(text, undefined, numberOf);
}

/** Half of a surrogate pair cannot be encoded in UTF-8, so no message may contain it. */
function isWritable(text: string): boolean {
  return text.isWellFormed();
}

/** Writes JSON in UTF-8. */
export function write(value: unknown): string {
  let text: string | undefined;
  try {
    text = stringify(value, (_key, member) => {
      if (typeof member === "string" && !isWritable(member)) throw new Error("a string contains a lone surrogate");
      if (typeof member === "number" && !Number.isFinite(member)) throw new Error(`${member} is not a JSON number`);
      return member;
    });
  } catch (error) {
    throw new InvalidMessage(`it cannot be written as JSON: ${(error as Error).message}`, { cause: error });
  }
  if (text === undefined) throw new InvalidMessage("it cannot be written as JSON");
  return text;
}
