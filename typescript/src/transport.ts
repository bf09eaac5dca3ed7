/** The operations of a fleet, over any transport: the interface of `Direct` (Redis) and `Gateway` (HTTP). */
import type { TaskEvent } from "./events.js";
import type { Message } from "./message.js";
import type { Replies } from "./replies.js";
import type { Reply } from "./reply.js";

export type Kind = "turn" | "task";

/** A turn or task whose reply can be awaited. */
export interface Awaited {
  readonly pending: readonly Reply[];
  /** `undefined` if no reply arrived in time. */
  reply(timeoutMs: number): Promise<Reply | undefined>;
  release(): void;
}

/** A call of a local tool that this process has claimed. */
export interface Claim {
  lease: string;
  /** Approvers may have changed the arguments. */
  arguments: Record<string, unknown>;
  /** In ms; the claim ends after this time without a heartbeat. */
  leaseMs: number;
}

/** Reads the fleet's message about a claimed call. */
export function claimOf(lease: string, call: unknown): Claim {
  const { arguments: args, lease_ms } = call as { arguments: Record<string, unknown>; lease_ms: number };
  return { lease, arguments: args, leaseMs: lease_ms };
}

/** A transport to a fleet. */
export interface Transport {
  /** `undefined` if the transport needs no inbox for replies. */
  readonly inbox: string | undefined;
  /** Checks the tenant. `undefined` if a gateway derives the tenant from the key. */
  tenantOf(tenant: string | undefined): string | undefined;
  /**
   * `isGiven` states whether the caller gave the id. With `waits`, the reply is awaited next, so that a single request
   * can do both.
   */
  submit(kind: Kind, tenant: string | undefined, message: Message, isGiven: boolean, waits: boolean): Promise<Awaited>;
  send(kind: Kind, tenant: string | undefined, message: Message): Promise<void>;
  /** Any client can have submitted the turn or task. `undefined` if no reply arrived in time. */
  wait(tenant: string | undefined, id: string, timeoutMs: number): Promise<Reply | undefined>;
  /** Reads the record. `undefined` if there is no reply. */
  reply(tenant: string | undefined, id: string): Promise<Reply | undefined>;
  tools(tenant: string | undefined, agent: string, dialect: string): Promise<unknown>;
  cancel(kind: Kind, tenant: string | undefined, id: string, reason: string): Promise<void>;
  /** A gateway waits for the call, and may return the reply instead. `undefined` if the turn offers no call. */
  claim(tenant: string | undefined, id: string, claimant: string, wait: number): Promise<Claim | Reply | undefined>;
  report(tenant: string | undefined, id: string, report: Message): Promise<void>;
  follow(tenant: string | undefined, taskId: string, position: number): AsyncGenerator<TaskEvent>;
  replies(tenant: string | undefined, inbox: string): Replies;
  close(): Promise<void>;
}
