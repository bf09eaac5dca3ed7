/** Serves calls. All calls of a process share its event loop. */
import type { Socket } from "node:net";

import type { ToolContext, ToolLogger } from "../tools/context.js";
import { type Tool, registered } from "../tools/tool.js";
import { type Failure, bare, failureOf, stack } from "./failures.js";
import { FrameReader, FrameTooLarge, encode } from "./frames.js";
import { InnerCalls } from "./inner.js";
import { Progress } from "./progress.js";
import { type Output, Withheld, dump } from "./results.js";

const LINE_CHARS_MAX = 4_000;
const PROTOCOL = 1;

interface Running {
  controller: AbortController;
  inner: InnerCalls;
  progress: Progress;
}

interface Ended extends Partial<Output> {
  error?: Failure;
}

/** The tool process' side of the socket. */
export class Host {
  readonly #tools = new Map(registered().map((tool) => [tool.name, tool]));
  readonly #running = new Map<number, Running>();

  constructor(private readonly socket: Socket) {}

  async serve(): Promise<void> {
    const frames = new FrameReader();
    this.send({ type: "ready", protocol: PROTOCOL });
    try {
      for await (const bytes of this.socket as AsyncIterable<Buffer>) {
        for (const message of frames.push(bytes)) {
          if (message.type === "bye") return;
          this.#handle(message);
        }
      }
    } catch (error) {
      if (error instanceof FrameTooLarge || error instanceof SyntaxError) throw error;
      // The worker has closed the connection.
    } finally {
      // The results of running calls have no receiver.
      for (const { controller } of this.#running.values()) controller.abort(canceled());
    }
  }

  /** A message above the bound is a bug of the caller. */
  send(message: object): void {
    const frame = encode(message);
    if (this.socket.writable) this.socket.write(frame);
  }

  #handle(message: any): void {
    switch (message.type) {
      case "call":
        return this.#begin(message);
      case "inner":
        return this.#running.get(message.id)?.inner.ended(message);
      case "cancel":
        return this.#cancel(message.id);
      case "describe":
        return this.send({ type: "tools", tools: [...this.#tools.values()].map((tool) => tool.definition()) });
    }
  }

  #begin({ id, tool: name, arguments: args, context: facts }: any): void {
    const tool = this.#tools.get(name);
    if (tool === undefined) {
      const error = { kind: "internal", message: `no tool ${JSON.stringify(name)} is registered here` };
      return this.send({ type: "result", id, error });
    }
    const send = (message: object) => this.send(message);
    const running = { controller: new AbortController(), inner: new InnerCalls(id, send), progress: new Progress(id, send) };
    this.#running.set(id, running);
    void this.#call(id, tool, args, facts, running);
  }

  #cancel(id: number): void {
    const running = this.#running.get(id);
    if (running === undefined) return;
    const reason = canceled();
    // A function cannot be interrupted. It must react to its signal.
    running.controller.abort(reason);
    running.inner.giveUp(reason);
  }

  async #call(id: number, tool: Tool, args: string, facts: any, running: Running): Promise<void> {
    let ended: Ended;
    try {
      const result = await tool.callWith(args, this.#context(facts, running));
      ended = await dump(tool, result);
    } catch (error) {
      if (error instanceof Withheld) ended = this.#withheld(tool, facts.call_id, error);
      else if (running.controller.signal.aborted) ended = { error: { kind: "cancelled", message: "It was canceled." } };
      else ended = { error: failureOf(error) };
    }
    this.#running.delete(id);
    running.inner.giveUp(canceled());
    running.progress.end();
    try {
      this.send({ type: "result", id, ...ended });
    } catch (error) {
      if (error instanceof FrameTooLarge && ended.output !== undefined) {
        ended = this.#withheld(tool, facts.call_id, Withheld.tooLarge(tool, ended.output, error));
      } else {
        const why = (error as Error).message;
        this.#log(facts.call_id, "error", `the failure of ${tool.name} is reported without its details: ${why}`);
        ended = ended.error === undefined ? ended : { error: bare(ended.error) };
      }
      this.send({ type: "result", id, ...ended });
    }
  }

  #context(facts: any, running: Running): ToolContext {
    const deadline = Math.min(Date.now() + facts.timeout_ms, facts.deadline_ms ?? Infinity);
    return {
      tenant: facts.tenant,
      agent: facts.agent,
      callId: facts.call_id,
      idempotencyKey: facts.idempotency_key,
      attempt: facts.attempt,
      userContext: facts.user_context ?? null,
      sessionData: facts.session_data ?? null,
      correlationId: facts.correlation_id ?? undefined,
      traceparent: facts.traceparent ?? undefined,
      task: facts.task ?? undefined,
      deadline: new Date(deadline),
      signal: running.controller.signal,
      log: this.#logger(facts.call_id),
      progress: running.progress.report,
      call: running.inner.call,
    };
  }

  #logger(call: string): ToolLogger {
    const at = (level: string) => (message: string, error?: unknown) => {
      this.#log(call, level, error === undefined ? String(message) : `${message}\n${stack(error)}`);
    };
    return { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") };
  }

  #withheld(tool: Tool, call: string, withheld: Withheld): Ended {
    this.#log(call, "error", withheld.log);
    return withheld.answer(tool);
  }

  #log(call: string, level: string, message: string): void {
    this.send({ type: "log", call, level, message: message.slice(0, LINE_CHARS_MAX) });
  }
}

function canceled(): Error {
  return new DOMException("The call was canceled.", "AbortError");
}
