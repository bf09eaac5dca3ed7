/**
 * Governed local tools: the function stays in this process, and the fleet decides whether it may run.
 *
 * A call is a turn. The fleet checks permission, arguments, rules, limits and approvals, and then offers the call to
 * this process. The process claims it, runs the function, and reports the end. Heartbeats extend the claim meanwhile.
 * If the process dies, the fleet reports an unknown outcome for a `once` tool, and offers any other call again.
 */
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";

import { FleetError, InvalidMessage, ReplyTimeout } from "./errors.js";
import type { Fleet } from "./fleet.js";
import { read, write } from "./json.js";
import { type CommonFields, type Message, written } from "./message.js";
import { type Reply, type Result, accepted } from "./reply.js";
import type { Awaited as Waited, Claim, Transport } from "./transport.js";

/** First and longest pause between two looks for the offered call, ms. Only over Redis. */
const PAUSES_MS = [5, 1_000] as const;
/** Longest wait of one claim through a gateway, seconds. */
const WAIT_S = 20;
/**
 * Shortest wait for the result after the function has run here, ms. A caller without the result would repeat the
 * effect.
 */
const RESULT_MS = 10_000;
/** Maximum characters of an error's text in a report. The fleet allows 1,000 bytes. */
const MESSAGE_CHARS_MAX = 300;

const NEVER_RAN = new Set([
  "unknown_tool",
  "denied",
  "invalid_arguments",
  "expired",
  "cancelled",
  "daily_cap_reached",
  "rejected",
  "approval_refused",
]);

/** The call of a governed function did not succeed. `code` is the outcome. */
export class CallFailed extends FleetError {
  /** The result of the call. Its `error.message` is written for the model. */
  readonly result: Result;

  constructor(result: Result) {
    super(result.outcome, `${result.outcome}: ${result.error?.message ?? ""}`);
    this.result = result;
  }
}

/** The function did not run: the call was denied, over a limit, not approved or canceled, or no process claimed it. */
export class CallRefused extends CallFailed {}

/**
 * The function may have taken effect: the process that ran it died or lost its claim, or it failed unexpectedly. Check
 * the effect before you call it again.
 */
export class OutcomeUnknown extends CallFailed {}

/**
 * An error of a governed function that reports what happened. After any other error, the fleet counts the effect of a
 * `once` tool as unknown.
 */
export class ToolError extends Error {
  /** Whether a retry can succeed. */
  readonly retryable: boolean;
  /** Whether it is certain that nothing took effect, so that a `once` call can be retried. */
  readonly notExecuted: boolean;

  constructor(message: string, { retryable = false, notExecuted = false, ...options }: ErrorOptions & { retryable?: boolean; notExecuted?: boolean } = {}) {
    super(message, options);
    this.name = "ToolError";
    this.retryable = retryable;
    this.notExecuted = notExecuted;
  }
}

/** Options of a governed function: the agent and tool, and further fields of each turn. */
export interface GovernedOptions extends Omit<CommonFields, "allowedTools"> {
  /** Agent that makes the calls. */
  agent: string;
  /** Name of the tool, which `tools.yaml` declares as `local`. Default: the function's name. */
  tool?: string;
  /** Milliseconds to wait for the permission to run, for example for an approval, and for the result. Default: 300,000. */
  timeoutMs?: number;
}

/** Options of one call. */
export interface CallOptions extends Omit<CommonFields, "tenant" | "allowedTools"> {
  /** Makes the call idempotent: the same id with the same arguments runs once, in any process. */
  turnId?: string;
}

/** What the fleet needs to run a turn of a local call. */
export interface LocalTurn {
  transport: Transport;
  tenant: string | undefined;
  id: string;
  awaited: Waited;
}

/**
 * Wraps a function that stays in this process. It runs only if the fleet allows the call.
 *
 * The wrapped function throws {@link CallRefused}, {@link OutcomeUnknown}, {@link CallFailed}, the error of the function
 * itself, or an error of {@link Fleet.run}.
 */
export function governed<A extends Record<string, unknown>, R>(
  fleet: Fleet,
  options: GovernedOptions,
  run: (args: A) => R | Promise<R>,
): (args: A, call?: CallOptions) => Promise<R> {
  const { tool = run.name, timeoutMs = 300_000, ...fields } = options;
  if (tool === "") throw new InvalidMessage("the function has no name: set `tool`");
  return async (args, call = {}) => {
    const turn = await fleet.startLocal({ ...fields, ...call, calls: [{ name: tool, arguments: args }] });
    try {
      return (await new LocalCall<A>(turn, timeoutMs).end(args, run)) as R;
    } finally {
      turn.awaited.release();
    }
  };
}

class LocalCall<A extends Record<string, unknown>> {
  readonly #claimant = `js-${randomUUID()}`;
  #until: number;

  constructor(
    private readonly turn: LocalTurn,
    private readonly timeoutMs: number,
  ) {
    this.#until = performance.now() + timeoutMs;
  }

  async end(args: A, run: (args: A) => unknown): Promise<unknown> {
    let returned: { value: unknown } | undefined;
    let thrown: { error: unknown } | undefined;
    // A call that may have taken effect never runs again. If the fleet has lost the report, the report is sent again.
    let final: Message | undefined;
    for (;;) {
      const found = await this.#next();
      if (!("lease" in found)) {
        const result = accepted(found).results[0]!;
        if (result.success) return returned === undefined ? result.output : returned.value;
        if (thrown !== undefined) throw thrown.error;
        throw failed(result);
      }
      let report = final;
      if (report === undefined) {
        const beats = new AbortController();
        const beating = this.#beat(found, beats.signal);
        try {
          returned = { value: await run(asCalled(args, found)) };
          thrown = undefined;
          report = final = { op: "finish", output: recorded(returned.value) };
        } catch (error) {
          thrown = { error };
          report = failure(error);
          if (!(error instanceof ToolError && error.retryable)) final = report;
        } finally {
          beats.abort();
          await beating;
          this.#until = Math.max(this.#until, performance.now() + RESULT_MS);
        }
      }
      await this.#report(found, report);
    }
  }

  async #next(): Promise<Claim | Reply> {
    const { transport, tenant, id, awaited } = this.turn;
    let pause: number = PAUSES_MS[0];
    for (;;) {
      const left = Math.max(0, this.#until - performance.now());
      const wait = Math.floor(Math.min(WAIT_S, left / 1_000));
      const found =
        (await transport.claim(tenant, id, this.#claimant, wait)) ?? (await awaited.reply(Math.min(pause, left)));
      if (found !== undefined) return found;
      if (left <= 0) throw new ReplyTimeout(id, this.timeoutMs, tenant);
      pause = Math.min(pause * 1.6, PAUSES_MS[1]);
    }
  }

  /** Heartbeats extend the claim. */
  async #beat(claim: Claim, signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await sleep(claim.leaseMs / 3, undefined, { signal, ref: false }).catch(() => undefined);
      // Ignores errors, because the function cannot be stopped. If the claim is lost, the fleet reports an unknown
      // outcome.
      if (!signal.aborted) await this.#report(claim, { op: "heartbeat" }).catch(() => undefined);
    }
  }

  #report(claim: Claim, report: Message): Promise<void> {
    const { transport, tenant, id } = this.turn;
    return transport.report(tenant, id, { ...report, lease: claim.lease });
  }
}

function failed(result: Result): CallFailed {
  if (result.outcome === "outcome_unknown") return new OutcomeUnknown(result);
  return NEVER_RAN.has(result.outcome) && result.attempts === 0 ? new CallRefused(result) : new CallFailed(result);
}

/** Returns the report about an error. */
function failure(error: unknown): Message {
  const text = (error instanceof Error ? `${error.name}: ${error.message}` : String(error)).slice(0, MESSAGE_CHARS_MAX);
  if (!(error instanceof ToolError)) return { op: "fail", error: { code: "error", message: text.toWellFormed() }, unknown: true };
  const { message, retryable, notExecuted } = error;
  const said = { code: "failed", message: message.slice(0, MESSAGE_CHARS_MAX).toWellFormed() || "failed" };
  return { op: "fail", error: said, ...(retryable && { retryable }), ...(retryable && notExecuted && { not_executed: true }) };
}

/** Returns the value as the fleet records it. The function has run, so a value that cannot be sent is replaced. */
function recorded(value: unknown): unknown {
  const output = value === undefined ? null : value;
  try {
    written({ output });
    return output;
  } catch (error) {
    return `The function ran. Its output was not recorded: ${(error as Error).message}`;
  }
}

/** Returns the arguments to run with: the caller's own values, where the fleet has not changed their JSON. */
function asCalled<A extends Record<string, unknown>>(args: A, claim: Claim): A {
  const sent = read(write(args)) as Record<string, unknown>;
  const entries = Object.entries(claim.arguments);
  return Object.fromEntries(
    entries.map(([key, value]) => [key, isDeepStrictEqual(sent[key], value) ? args[key] : value]),
  ) as A;
}
