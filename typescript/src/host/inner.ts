/** Inner calls: a tool calls another tool. The worker makes the call, and sends the result. */
import { read } from "../json.js";
import { InnerResult } from "../tools/context.js";
import { ToolError } from "../tools/error.js";
import { written } from "../tools/result.js";
import { FrameTooLarge } from "./frames.js";

/** The worker has the same bound. */
const CALLS_MAX = 32;

interface Waiting {
  resolve: (result: InnerResult) => void;
  reject: (error: unknown) => void;
}

/** The inner calls of one running call. */
export class InnerCalls {
  readonly #waiting = new Map<number, Waiting>();
  #made = 0;

  constructor(
    private readonly id: number,
    private readonly send: (message: object) => void,
  ) {}

  readonly call = async (tool: string, args: object = {}): Promise<InnerResult> => {
    // Encode the arguments first, so that an encoding error is thrown in the tool.
    const text = written(args);
    if (this.#made >= CALLS_MAX) throw new ToolError("permanent", `a call makes at most ${CALLS_MAX} calls of other tools`);
    this.#made += 1;
    const number = this.#made;
    return new Promise<InnerResult>((resolve, reject) => {
      this.#waiting.set(number, { resolve, reject });
      try {
        this.send({ type: "inner", id: this.id, number, tool, arguments: text });
      } catch (error) {
        this.#waiting.delete(number);
        reject(error instanceof FrameTooLarge ? new ToolError("permanent", `${tool} was not called: ${error.message}`) : error);
      }
    });
  };

  ended(message: { number: number; outcome: string; output?: string | null; error?: string | null }): void {
    const waiting = this.#waiting.get(message.number);
    this.#waiting.delete(message.number);
    const output = message.output == null ? undefined : read(message.output);
    waiting?.resolve(new InnerResult(message.outcome, output, message.error ?? undefined));
  }

  giveUp(reason: unknown): void {
    for (const { reject } of this.#waiting.values()) reject(reason);
    this.#waiting.clear();
  }
}
