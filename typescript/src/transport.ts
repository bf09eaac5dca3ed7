/** The operations of a fleet, over any transport: the interface of `Direct` (Redis) and `Gateway` (HTTP). */
import type { TaskEvent } from "./events.js";
import type { Message } from "./message.js";
import type { Replies } from "./replies.js";
import type { Reply } from "./reply.js";

export type Kind = "turn" | "task";

/** A turn or task whose reply can be awaited. */
export interface Awaited {
  /** Replies before the end. */
  readonly pending: readonly Reply[];
  /** Returns the reply, even if it is a rejection. `undefined` if no reply arrived in time. */
  reply(timeoutMs: number): Promise<Reply | undefined>;
  /** Drops one reference to the awaited reply. */
  release(): void;
}

/** A call of a local tool that this process has claimed. */
export interface Claim {
  /** Identifies the claim. */
  lease: string;
  /** The arguments, as approvers may have changed them. */
  arguments: Record<string, unknown>;
  /** The claim ends after this time without a heartbeat, ms. */
  leaseMs: number;
}

/** Reads the fleet's message about a claimed call. */
export function claimOf(lease: string, call: unknown): Claim {
  const { arguments: args, lease_ms } = call as { arguments: Record<string, unknown>; lease_ms: number };
  return { lease, arguments: args, leaseMs: lease_ms };
}

/** A transport to a fleet. */
export interface Transport {
  /** The inbox for replies to this process. `undefined` if the transport needs none. */
  readonly inbox: string | undefined;
  /** Returns the checked tenant. `undefined` if a gateway derives the tenant from the key. */
  whose(tenant: string | undefined): string | undefined;
  /**
   * Submits a message. `isGiven` states whether the caller gave the id. With `waits`, the reply is awaited next, so
   * that a single request can do both.
   */
  submit(kind: Kind, tenant: string | undefined, message: Message, isGiven: boolean, waits: boolean): Promise<Awaited>;
  /** Submits a message without waiting for its reply. */
  send(kind: Kind, tenant: string | undefined, message: Message): Promise<void>;
  /** Waits for the reply to a turn or task of any client. `undefined` if no reply arrived in time. */
  wait(tenant: string | undefined, id: string, timeoutMs: number): Promise<Reply | undefined>;
  /** Returns the reply in the record. `undefined` if there is no reply. */
  reply(tenant: string | undefined, id: string): Promise<Reply | undefined>;
  /** Returns an agent's tool definitions for a model. */
  tools(tenant: string | undefined, agent: string, dialect: string): Promise<unknown>;
  /** Cancels a turn or task. */
  cancel(kind: Kind, tenant: string | undefined, id: string, reason: string): Promise<void>;
  /**
   * Claims the local call that a turn offers. A gateway waits for it, and may return the reply instead. `undefined` if
   * the turn offers no call.
   */
  claim(tenant: string | undefined, id: string, claimant: string, wait: number): Promise<Claim | Reply | undefined>;
  /** Sends a heartbeat or the end of a claimed call. */
  report(tenant: string | undefined, id: string, report: Message): Promise<void>;
  /** Yields the events of a task from a position on. */
  follow(tenant: string | undefined, taskId: string, position: number): AsyncGenerator<TaskEvent>;
  /** Returns a reader of an inbox. */
  replies(tenant: string | undefined, inbox: string): Replies;
  close(): Promise<void>;
}
