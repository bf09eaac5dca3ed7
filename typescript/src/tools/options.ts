/** Options of a tool that have several parts, and the checks of all options. */
import type { JsonSchema, Schema } from "./schema.js";
import type { Effect, ToolOptions } from "./tool.js";

/** Whose approval each call needs. */
export interface Approval {
  /** Roles that can approve. Default: every approver can. */
  by?: readonly string[];
  /** Approvals that a call needs, at most 16. Default: 1. */
  quorum?: number;
  /** Time to decide in milliseconds, from 1 second to 30 days. Default: until the deadline of the turn. */
  expiresMs?: number;
  /** Arguments that an approver can change, as JSON pointers such as `/amount`. */
  narrow?: readonly string[];
}

/** How long the result of a `read` tool is reused for equal arguments. */
export interface Cache {
  /** Time in milliseconds, from 1 second to 1 day. */
  ttlMs: number;
  /** Who shares the results: all agents of a `tenant`, or one `agent`. Default: `tenant`. */
  per?: "tenant" | "agent";
}

/** A lookup that resolves the unknown outcome of a `once` call. */
export interface Reconcile {
  /** A tool with the effect `read` that looks the effect up. */
  tool: string;
  /** JSON pointer to true or false in the output of the lookup. */
  happened: string;
  /** Arguments of the lookup: `$call`, `$idempotency_key`, JSON pointers to arguments of the call, or values. */
  arguments?: Readonly<Record<string, unknown>>;
  /** JSON pointer to the value that becomes the output of the call. Default: the whole output of the lookup. */
  output?: string;
  /** Lookups before the outcome stays unknown, at most 20. Default: 5. */
  tries?: number;
  /** Time in milliseconds that a request can still be in flight, from 1 second to 1 hour. Default: a minute. */
  graceMs?: number;
}

/** Durability that Redis confirms before a `once` call runs. */
export type Durability = "none" | "local" | "replica";

const SECOND = 1_000;
const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const POINTERS_MAX = 16;
const QUORUM_MAX = 16;
const TRIES_MAX = 20;
const ROLE = /^[A-Za-z0-9_.@-]{1,64}$/;
const VERSION = /^\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?$/;
const REFERENCES = ["$call", "$idempotency_key"];

/** Checks the options of one tool. Every error names the tool and the option. */
export class Checks {
  readonly #tool: string;
  readonly #effect: Effect;
  readonly #arguments: readonly string[];
  readonly #required: readonly string[];

  constructor(tool: string, effect: Effect, input: JsonSchema) {
    this.#tool = tool;
    this.#effect = effect;
    this.#arguments = Object.keys((input.properties as object | undefined) ?? {});
    this.#required = Array.isArray(input.required) ? input.required : [];
  }

  guards({ approval, effectKey, effectWindowMs, cache, reconcile, durable }: ToolOptions<Schema, Schema | undefined>): object {
    return {
      approval: approval === undefined ? null : this.#approval(approval),
      effect_key: this.#effectKey(effectKey, effectWindowMs),
      cache: cache === undefined ? null : this.#cache(cache),
      reconcile: reconcile === undefined ? null : this.#reconcile(reconcile),
      durable: durable === undefined ? null : this.#durable(durable),
    };
  }

  version(value: string | undefined): void {
    if (value !== undefined && !VERSION.test(value)) this.#refuse("version", value, "a semantic version such as 1.0.0");
  }

  #approval({ by = [], quorum = 1, expiresMs, narrow = [] }: Approval): object {
    for (const role of this.#words("approval.by", by)) {
      if (!ROLE.test(role)) this.#refuse("approval.by", role, "names of 1 to 64 characters of A-Z a-z 0-9 _ . @ -");
    }
    const pointers = this.#words("approval.narrow", narrow);
    pointers.forEach((pointer) => this.#argument("approval.narrow", pointer, this.#arguments));
    const expires = expiresMs === undefined ? {} : { expires_ms: this.#ms("approval.expiresMs", expiresMs, SECOND, 30 * DAY) };
    const sorted = { by: [...new Set(by)].sort(), narrow: [...new Set(pointers)].sort() };
    return { ...sorted, quorum: this.#count("approval.quorum", quorum, QUORUM_MAX), ...expires };
  }

  #effectKey(pointers: readonly string[] | undefined, windowMs: number | undefined): object | null {
    if (pointers === undefined) {
      if (windowMs !== undefined) this.#refuse("effectWindowMs", windowMs, "an effectKey beside it");
      return null;
    }
    this.#requires("effectKey", "once");
    const listed = this.#words("effectKey", pointers);
    if (listed.length < 1 || listed.length > POINTERS_MAX || new Set(listed).size < listed.length) {
      this.#refuse("effectKey", listed, `1 to ${POINTERS_MAX} arguments, each once`);
    }
    listed.forEach((pointer) => this.#argument("effectKey", pointer, this.#required));
    return { arguments: listed, window_ms: this.#ms("effectWindowMs", windowMs ?? DAY, SECOND, 31 * DAY) };
  }

  #cache({ ttlMs, per = "tenant" }: Cache): object {
    this.#requires("cache", "read");
    if (!["tenant", "agent"].includes(per)) this.#refuse("cache.per", per, "tenant or agent");
    return { ttl_ms: this.#ms("cache.ttlMs", ttlMs, SECOND, DAY), per };
  }

  #reconcile({ tool, happened, arguments: args = {}, output, tries = 5, graceMs = 60 * SECOND }: Reconcile): object {
    this.#requires("reconcile", "once");
    if (typeof tool !== "string" || tool === "") this.#refuse("reconcile.tool", tool, "the name of a tool");
    for (const [option, pointer] of [["happened", happened], ["output", output ?? "/"]] as const) {
      const isPointer = typeof pointer === "string" && pointer.startsWith("/");
      if (!isPointer) this.#refuse(`reconcile.${option}`, pointer, "a JSON pointer into the output of the lookup, such as /found");
    }
    for (const [name, value] of Object.entries(args)) {
      const option = `reconcile.arguments.${name}`;
      if (typeof value === "string" && value.startsWith("/")) this.#argument(option, value, this.#arguments);
      if (typeof value === "string" && value.startsWith("$") && !REFERENCES.includes(value)) {
        this.#refuse(option, value, "$call, $idempotency_key, a JSON pointer or a value");
      }
    }
    const count = this.#count("reconcile.tries", tries, TRIES_MAX);
    const grace_ms = this.#ms("reconcile.graceMs", graceMs, SECOND, HOUR);
    return { tool, arguments: args, happened, output: output ?? null, tries: count, grace_ms };
  }

  #durable(value: Durability): Durability {
    if (!["none", "local", "replica"].includes(value)) this.#refuse("durable", value, "none, local or replica");
    return value;
  }

  #requires(option: string, effect: Effect): void {
    if (this.#effect !== effect) {
      throw new TypeError(`${this.#tool}: ${option} requires the effect ${effect}, and the effect is ${this.#effect}`);
    }
  }

  #argument(option: string, pointer: string, names: readonly string[]): void {
    const name = pointer.split("/")[1]?.replaceAll("~1", "/").replaceAll("~0", "~");
    const there = names.map((one) => `/${one}`).join(", ") || "none";
    if (!pointer.startsWith("/") || !names.includes(name ?? "")) {
      this.#refuse(option, pointer, names === this.#required ? `a required argument: ${there}` : `an argument: ${there}`);
    }
  }

  #words(option: string, words: readonly string[]): string[] {
    const isList = Array.isArray(words) && words.every((word) => typeof word === "string");
    if (!isList) this.#refuse(option, words, "a list of texts");
    return [...words];
  }

  #count(option: string, value: number, most: number): number {
    if (!Number.isInteger(value) || value < 1 || value > most) this.#refuse(option, value, `1 to ${most}`);
    return value;
  }

  #ms(option: string, value: number, least: number, most: number): number {
    const isValid = typeof value === "number" && value >= least && value <= most;
    if (!isValid) this.#refuse(option, value, `${least} to ${most} milliseconds`);
    return Math.round(value);
  }

  #refuse(option: string, found: unknown, expected: string): never {
    throw new TypeError(`${this.#tool}: ${option} is ${JSON.stringify(found) ?? String(found)}; expected ${expected}`);
  }
}
