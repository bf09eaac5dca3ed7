/**
 * Encodes results for the worker. If a result cannot be encoded, the function has still done its work, and the response
 * states so.
 */
import { contentBlocks } from "../tools/image.js";
import { written } from "../tools/result.js";
import type { Tool } from "../tools/tool.js";
import { type Failure, stack } from "./failures.js";
import { BOUND, type FrameTooLarge } from "./frames.js";

/** The output of a call: JSON text. If `content_blocks` is true, it is a list of texts and images. */
export interface Output {
  output: string;
  content_blocks?: true;
}

/** A result that cannot be encoded. */
export class Withheld extends Error {
  /** `why` is for the model: the predicate of a sentence about the result. `log` is for the log. */
  constructor(
    readonly why: string,
    readonly log: string,
  ) {
    super(log);
  }

  static tooLarge(tool: Tool, output: string, error: FrameTooLarge): Withheld {
    const less = tool.effect === "read" ? ". Ask for less at a time" : "";
    const why = `needs more than ${BOUND} when it is encoded and is not shown${less}`;
    const size = `${Buffer.byteLength(output)} bytes of JSON, which makes ${error.message}`;
    return new Withheld(why, `the result of ${tool.name} cannot be encoded: it has ${size}`);
  }

  /** Fails only for a read: after a failure, the model would repeat the call, which is harmless only for a read. */
  answer(tool: Tool): { output: string } | { error: Failure } {
    if (tool.effect === "read") {
      return { error: { kind: "permanent", message: `The tool ran, but its result ${this.why}.` } };
    }
    const note = `The call succeeded. Its result ${this.why}. Do not call this tool again to repeat it.`;
    return { output: JSON.stringify({ executed: true, note }) };
  }
}

/**
 * Returns the message fields of a function's result.
 *
 * @throws {Withheld} The result cannot be encoded as JSON.
 */
export async function dump(tool: Tool, result: unknown): Promise<Output> {
  try {
    const output = written(await tool.shown(result));
    return contentBlocks(result) === undefined ? { output } : { output, content_blocks: true };
  } catch (error) {
    const why = "cannot be written as JSON and is not shown. The error has been logged for investigation";
    throw new Withheld(why, `the result of ${tool.name} cannot be written as JSON: ${stack(error)}`);
  }
}
