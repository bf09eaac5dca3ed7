/** What a fleet is asked, whichever way it is reached: the interface of `Direct` (Redis) and `Gateway` (HTTP). */
import type { TaskEvent } from "./events.js";
import type { Message } from "./message.js";
import type { Replies } from "./replies.js";
import type { Reply } from "./reply.js";

export type Kind = "turn" | "task";

/** A turn or task whose reply somebody may wait for. */
export interface Awaited {
  /** What was told before its end. */
  readonly pending: readonly Reply[];
  /** The reply, also one that refuses; none where none came in time. */
  reply(timeoutMs: number): Promise<Reply | undefined>;
  /** Nobody holds it any more. */
  release(): void;
}

/** One way to a fleet. */
export interface Transport {
  /** Where replies to this process go; none where that is not the client's business. */
  readonly inbox: string | undefined;
  /** The tenant, checked; none where the key says it. */
  whose(tenant: string | undefined): string | undefined;
  /**
   * Submits a message whose id somebody gave or not. With `waits` its reply is waited for next, so that both may be one request.
   */
  submit(kind: Kind, tenant: string | undefined, message: Message, isGiven: boolean, waits: boolean): Promise<Awaited>;
  /** Submits a message whose reply nobody here waits for. */
  send(kind: Kind, tenant: string | undefined, message: Message): Promise<void>;
  /** The reply to what somebody submitted; none where none came in time. */
  wait(tenant: string | undefined, id: string, timeoutMs: number): Promise<Reply | undefined>;
  /** The reply as it is recorded; none where there is none. */
  reply(tenant: string | undefined, id: string): Promise<Reply | undefined>;
  /** What a model is told of an agent's tools. */
  tools(tenant: string | undefined, agent: string, dialect: string): Promise<unknown>;
  /** Asks for the end of a turn or task. */
  cancel(kind: Kind, tenant: string | undefined, id: string, reason: string): Promise<void>;
  /** What happens to a task, from a position on. */
  follow(tenant: string | undefined, taskId: string, position: number): AsyncGenerator<TaskEvent>;
  /** A reader of an inbox. */
  replies(tenant: string | undefined, inbox: string): Replies;
  close(): Promise<void>;
}
