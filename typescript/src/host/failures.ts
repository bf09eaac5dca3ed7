/** Reports of errors. Logs get the stack, with only the lines of the user's code. */
import { fileURLToPath } from "node:url";

import { ToolError } from "../tools/error.js";

/** Maximum characters of a text, because it is sent in a frame and logged. */
export const CHARS_MAX = 8_000;
const CAUSES_MAX = 3;
const PACKAGE = fileURLToPath(new URL("..", import.meta.url));
/** Folders of the user's code, wherever its modules are installed. */
const own: string[] = [];

/** Counts the code below a folder as the user's, except packages that are installed there. */
export function belongsToUser(folder: string): void {
  own.push(folder.endsWith("/") ? folder : `${folder}/`);
}

/** Formats an error with the stack lines of the user's files, the innermost first. */
export function stack(error: unknown): string {
  const text = withCauses(error, 0);
  return text.length <= CHARS_MAX ? text : `${text.slice(0, CHARS_MAX / 2)}\n…\n${text.slice(-CHARS_MAX / 2)}`;
}

function withCauses(error: unknown, depth: number): string {
  if (!(error instanceof Error)) return `a value that is no error was thrown: ${describe(error)}`;
  const head = `${error.name}: ${error.message}`;
  const lines = (error.stack ?? "").split("\n").filter((line) => /^ {4}at /.test(line) && isOwn(line));
  const text = [head, ...lines].join("\n");
  const caused = error.cause !== undefined && depth < CAUSES_MAX;
  return caused ? `${text}\nCaused by: ${withCauses(error.cause, depth + 1)}` : text;
}

function describe(value: unknown): string {
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return typeof value;
  }
}

function isOwn(line: string): boolean {
  const path = /[ (](?:file:\/\/)?(\/.*?):\d+:\d+\)?$/.exec(line)?.[1];
  if (path === undefined || path.startsWith(PACKAGE)) return false;
  const folder = own.find((one) => path.startsWith(one));
  return !(folder === undefined ? path : path.slice(folder.length - 1)).includes("/node_modules/");
}

/** Returns the failure of a call in the worker's format. */
export function failureOf(error: unknown): Failure {
  if (!ToolError.is(error)) return { kind: "internal", message: stack(error) };
  return {
    kind: error.kind,
    message: error.message,
    details: error.details ?? null,
    retry_after: error.retryAfterMs === undefined ? null : error.retryAfterMs / 1_000,
    not_executed: error.notExecuted,
  };
}

/** The failure of a call in the worker's format. */
export interface Failure {
  kind: string;
  message: string;
  details?: unknown;
  retry_after?: number | null;
  not_executed?: boolean;
}

/**
 * Returns a failure without the parts that may not be JSON, or may be too long. Keeps the failure's kind, because the
 * worker acts on the kind.
 */
export function bare(failure: Failure): Failure {
  return { ...failure, message: failure.message.slice(0, CHARS_MAX), details: null };
}
