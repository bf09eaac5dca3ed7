/** The connection to Redis: a single server, a primary behind Sentinels, or a cluster. */
import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { FleetError, MemoryPressure, QueueFull, Unavailable } from "./errors.js";
import { COUNT, type Entry, type Inbox, entryOf } from "./inbox.js";

/** Maximum duration of a blocking read, ms. */
export const BLOCK_MS = 5_000;
/** In ms. A blocking read may take this long in addition to its blocking time. */
const ANSWER_MS = 10_000;
/** In ms; the last value is repeated. */
const PAUSES_MS = [50, 100, 200, 500, 1_000];

/**
 * One step, so that concurrent producers do not exceed the bounds. All keys are declared: a cluster that moves the slot
 * then responds for all keys or for none.
 */
const ENQUEUE = `#!lua
-- enqueue: puts a message on an inbound stream, unless too much waits there.
-- KEYS  1 stream · 2 meta
-- ARGV  1 field · 2 message · 3 most entries · 4 most bytes, 0 for any
-- reply the entry, or QUEUE_FULL, PRESSURE
if redis.call('HGET', KEYS[2], 'pressure') == '1' then return 'PRESSURE' end
local length, bytes_max = redis.call('XLEN', KEYS[1]), tonumber(ARGV[4])
if length >= tonumber(ARGV[3]) then return 'QUEUE_FULL' end
if bytes_max > 0 and length >= 64 and redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 5) >= bytes_max then
  return 'QUEUE_FULL'
end
return redis.call('XADD', KEYS[1], '*', ARGV[1], ARGV[2])
`;
const ENQUEUE_SHA = createHash("sha1").update(ENQUEUE).digest("hex");

class Refused extends Error {
  constructor(
    readonly word: string,
    message: string,
  ) {
    super(message);
  }
}

/** A new connection. The connection is closed on the first error. */
export interface Link {
  send(key: string, args: string[], isRead: boolean): Promise<unknown>;
  drop(): void;
}

interface Target {
  open(): Promise<Link>;
}

/** Imported on demand, because clients of a gateway do not need node-redis. */
function library() {
  return import("@redis/client").catch((cause: unknown) => {
    throw new FleetError("no_redis_client", "Redis needs the package @redis/client: npm install @redis/client", { cause });
  });
}

interface Driver {
  connect(): Promise<unknown>;
  destroy(): unknown;
  on(event: "error", listener: (error: unknown) => void): unknown;
}

/** Ignores later errors of the driver, because the commands that use the driver report them. */
async function opened(driver: Driver, send: Link["send"]): Promise<Link> {
  driver.on("error", () => {});
  const drop = () => {
    try {
      driver.destroy();
    } catch {
      // The connection is already closed.
    }
  };
  try {
    await driver.connect();
  } catch (error) {
    drop();
    throw error;
  }
  return { send, drop };
}

const SOCKET = { connectTimeout: 5_000, reconnectStrategy: false } as const;

/** The query of a socket's URL: `user=…&pass=…&db=…`. */
function secretOf(query = "") {
  const said = new URLSearchParams(query);
  const [user, password, db] = ["user", "pass", "db"].map((key) => said.get(key));
  return { ...(user && { username: user }), ...(password && { password }), ...(db && { database: Number(db) }) };
}

function single(url: string): Target {
  const unix = /^(?:redis\+)?unix:\/\/([^?]*)(?:\?(.*))?$/.exec(url);
  return {
    open: async () => {
      const { createClient } = await library();
      const where = unix
        ? { socket: { path: decodeURIComponent(unix[1]!), tls: false as const, ...SOCKET }, ...secretOf(unix[2]) }
        : { url, socket: { ...SOCKET } };
      const client = createClient({ ...where, RESP: 2, disableOfflineQueue: true });
      return opened(client, (_key, args) => client.sendCommand(args));
    },
  };
}

/** `scheme://[user:password@]host[:port],…/path`. */
function several(url: string, port: number) {
  const parts = /^(rediss?)\+(?:sentinel|cluster):\/\/(?:([^@/]*)@)?([^/?]+)(?:\/([^?]*))?/.exec(url);
  if (parts === null) throw new TypeError("the URL cannot be read: expected redis+sentinel:// or redis+cluster://");
  const [user = "", password = ""] = (parts[2] ?? "").split(":", 2).map(decodeURIComponent);
  const hosts = parts[3]!.split(",").map((place) => {
    const at = place.lastIndexOf(":");
    return at < 0 ? { host: place, port } : { host: place.slice(0, at), port: Number(place.slice(at + 1)) };
  });
  const secret = { ...(user && { username: user }), ...(password && { password }) };
  const tls = parts[1] === "rediss" ? ({ tls: true } as const) : {};
  return { hosts, path: parts[4] ?? "", secret, socket: { ...SOCKET, ...tls } };
}

function sentinels(url: string): Target {
  const { hosts, path, secret, socket } = several(url, 26379);
  const [name = "", database = "0"] = path.split("/");
  if (name === "") throw new TypeError("the URL lacks the name of the primary: expected redis+sentinel://host:26379/primary");
  return {
    open: async () => {
      const { createSentinel } = await library();
      const sentinel = createSentinel({
        name,
        sentinelRootNodes: hosts,
        nodeClientOptions: { ...secret, database: Number(database), socket },
        RESP: 2,
      });
      return opened(sentinel, (_key, args) => sentinel.sendCommand(false, args));
    },
  };
}

function cluster(url: string): Target {
  const { hosts, secret, socket } = several(url, 6379);
  return {
    open: async () => {
      const { createCluster } = await library();
      const nodes = createCluster({
        rootNodes: hosts.map((host) => ({ socket: { ...host, ...socket } as never })),
        defaults: { ...secret, socket: socket as never },
        RESP: 2,
      });
      return opened(nodes, (key, args) => nodes.sendCommand(key, false, args));
    },
  };
}

function targetOf(url: string): Target {
  if (/^rediss?\+sentinel:/.test(url)) return sentinels(url);
  if (/^rediss?\+cluster:/.test(url)) return cluster(url);
  if (/^(rediss?|(redis\+)?unix):/.test(url)) return single(url);
  if (/^tickfleet\+unix:/.test(url)) {
    throw new TypeError(
      "the URL leads to a tickfleet dev without Redis: pass the FLEET_URL and FLEET_KEY that it prints, or start it with --redis",
    );
  }
  throw new TypeError(
    `the URL begins with ${JSON.stringify(url.split(":", 1)[0])}; expected redis, rediss, unix, redis+sentinel or redis+cluster`,
  );
}

function wordOf(error: unknown): string | undefined {
  const text = error instanceof Error ? error.message : "";
  return /^([A-Z][A-Z0-9]+) /.exec(text)?.[1];
}

const PASSING = new Set(["READONLY", "LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "MOVED", "ASK"]);

/** Redis, if no URL is passed and the variable `REDIS_URL` is unset. */
export const DEFAULT_URL = "redis://127.0.0.1:6379";

/** The commands of this client. Each method can be repeated without a further effect. */
export class Redis {
  readonly name: string;
  readonly #target: Target;
  readonly #retryTimeoutMs: number;
  #link: Promise<Link> | undefined;
  #mayRunScripts = true;
  #mayLookAtStreams = true;
  #mayReadRecords = true;
  #mayLookForTenants = true;

  constructor(url: string, retryTimeoutMs: number) {
    this.#target = targetOf(url);
    const isDefault = url === DEFAULT_URL && process.env["REDIS_URL"] === undefined;
    this.name = isDefault ? `no URL, and no tickfleet dev in this folder: Redis at the default ${url}` : "Redis";
    this.#retryTimeoutMs = retryTimeoutMs;
  }

  close(): void {
    this.#link?.then((link) => link.drop()).catch(() => {});
    this.#link = undefined;
  }

  dedicated(): Promise<Link> {
    return this.#target.open();
  }

  /** After an error, the next command uses a new connection. */
  async #ask(key: string, ...args: string[]): Promise<unknown> {
    const opening = (this.#link ??= this.#target.open());
    try {
      const link = await opening;
      return await within(link.send(key, args, false), ANSWER_MS, args[0]!);
    } catch (error) {
      const word = wordOf(error);
      if (word !== undefined && !PASSING.has(word)) throw new Refused(word, (error as Error).message);
      if (this.#link === opening) this.#link = undefined;
      opening.then((link) => link.drop()).catch(() => {});
      throw error;
    }
  }

  /** Retries after connection errors, within the retry_timeout. */
  async #patiently<T>(ask: () => Promise<T>): Promise<T> {
    const end = Date.now() + this.#retryTimeoutMs;
    for (let tries = 0; ; tries++) {
      try {
        return await ask();
      } catch (error) {
        if (error instanceof FleetError) throw error;
        if (error instanceof Refused) {
          if (error.word === "OOM") throw new MemoryPressure({ cause: error });
          throw new Unavailable(`Redis rejected the command: ${error.message}`, { cause: error });
        }
        const pause = PAUSES_MS[Math.min(tries, PAUSES_MS.length - 1)]!;
        if (Date.now() + pause >= end) {
          throw new Unavailable(`${this.name} cannot be reached: ${(error as Error).message}`, { cause: error });
        }
        await sleep(pause);
      }
    }
  }

  enqueue(stream: string, meta: string, field: string, message: string, bounds: [number, number]): Promise<string> {
    return this.#patiently(async () => {
      const answer = await this.#enqueue(stream, meta, field, message, bounds);
      if (answer === "QUEUE_FULL") throw new QueueFull();
      if (answer === "PRESSURE") throw new MemoryPressure();
      return answer;
    });
  }

  async #enqueue(stream: string, meta: string, field: string, message: string, bounds: [number, number]) {
    if (this.#mayRunScripts) {
      const rest = ["2", stream, meta, field, message, ...bounds.map(String)];
      const run = () => this.#ask(stream, "EVALSHA", ENQUEUE_SHA, ...rest);
      try {
        return String(
          await run().catch(async (error: unknown) => {
            if (!(error instanceof Refused && error.word === "NOSCRIPT")) throw error;
            await this.#ask(stream, "SCRIPT", "LOAD", ENQUEUE);
            return run();
          }),
        );
      } catch (error) {
        if (!(error instanceof Refused && error.word === "NOPERM")) throw error;
        // This Redis user may not run scripts, so the bounds are checked just before the message is added.
        this.#mayRunScripts = false;
      }
    }
    if ((await this.#ask(meta, "HGET", meta, "pressure")) === "1") return "PRESSURE";
    if (Number(await this.#ask(stream, "XLEN", stream)) >= bounds[0]) return "QUEUE_FULL";
    return String(await this.#ask(stream, "XADD", stream, "*", field, message));
  }

  /** Adds the message without checking bounds, because messages that end work are never rejected. */
  async add(stream: string, field: string, message: string): Promise<void> {
    await this.#patiently(() => this.#ask(stream, "XADD", stream, "*", field, message));
  }

  /** Reads the inboxes. If no entry arrives, checks whether to read an inbox from its start again. */
  async read(link: Link, inboxes: Inbox[], blockMs: number): Promise<Map<string, Entry[]>> {
    const keys = inboxes.map((inbox) => inbox.key);
    const head = ["XREAD", "COUNT", String(COUNT), "BLOCK", String(Math.max(1, Math.floor(blockMs))), "STREAMS"];
    const args = [...head, ...keys, ...inboxes.map((inbox) => inbox.last)];
    const found = (await within(link.send(keys[0]!, args, false), blockMs + ANSWER_MS, "XREAD")) as
      | [string, [string, string[]][]][]
      | null;
    if (found === null) {
      for (const inbox of inboxes) if (inbox.isBehind(await this.#newest(inbox.key))) inbox.lookBack();
    }
    return new Map((found ?? []).map(([key, entries]) => [key, entries.map(([id, flat]) => entryOf(id, flat ?? []))]));
  }

  async #newest(key: string): Promise<string | undefined> {
    try {
      const newest = (await this.#ask(key, "XREVRANGE", key, "+", "-", "COUNT", "1")) as [string, string[]][];
      return newest[0]?.[0];
    } catch (error) {
      if (error instanceof Refused && error.word === "NOPERM") return undefined;
      throw error;
    }
  }

  async remove(inbox: Inbox, ids: string[]): Promise<void> {
    for (let at = 0; at < ids.length; at += 1_000) {
      const some = ids.slice(at, at + 1_000);
      await this.#ask(inbox.key, "XDEL", inbox.key, ...some);
      for (const id of some) inbox.kept.delete(id);
    }
  }

  async forget(tenant: string, inbox: string, prefix: string): Promise<void> {
    for (const kind of ["replies", "read"]) {
      const key = `${prefix}${kind}:${tenant}:${inbox}`;
      await this.#ask(key, "DEL", key);
    }
    await this.#ask(`${prefix}seqs:${tenant}`, "HDEL", `${prefix}seqs:${tenant}`, inbox);
    await this.#ask(`${prefix}inboxes:${tenant}`, "ZREM", `${prefix}inboxes:${tenant}`, inbox);
  }

  /** Takes the next entry for the consumer. `undefined` if there is no entry, or if the queue does not exist. */
  take(stream: string, consumer: string): Promise<{ entry: string; fields: Record<string, string> } | undefined> {
    let starts = [">"];
    return this.#patiently(async () => {
      const some = starts;
      // If the response to an attempt was lost, its entry is pending. So retries read pending entries first.
      starts = ["0", ">"];
      for (const start of some) {
        const args = ["XREADGROUP", "GROUP", "workers", consumer, "COUNT", "1", "STREAMS", stream, start];
        const found = (await this.#ask(stream, ...args).catch((error: unknown) => {
          if (error instanceof Refused && error.word === "NOGROUP") return null;
          throw error;
        })) as [string, [string, string[] | null][]][] | null;
        const [entry, flat] = found?.[0]?.[1][0] ?? [];
        if (entry !== undefined && flat) {
          const pairs = flat.flatMap((name, at) => (at % 2 === 0 ? [[name, flat[at + 1]!] as const] : []));
          return { entry, fields: Object.fromEntries(pairs) };
        }
      }
      return undefined;
    });
  }

  get(key: string): Promise<string | null> {
    return this.#patiently(() => this.#ask(key, "GET", key) as Promise<string | null>);
  }

  exists(key: string): Promise<boolean> {
    return this.#patiently(async () => Number(await this.#ask(key, "EXISTS", key)) > 0);
  }

  /** `null` if the Redis user may read only its own inbox. */
  async record(key: string): Promise<string | null> {
    if (!this.#mayReadRecords) return null;
    try {
      return (await this.#ask(key, "GET", key)) as string | null;
    } catch (error) {
      if (!(error instanceof Refused && error.word === "NOPERM")) throw error;
      this.#mayReadRecords = false;
      return null;
    }
  }

  /** `place` is `<tenant>:<id>`. True if the tenant is not configured and there is no record of the turn or task. */
  async isAbsent(prefix: string, place: string): Promise<boolean> {
    if (!this.#mayLookForTenants) return false;
    const key = `${prefix}absent:${place.slice(0, place.indexOf(":"))}`;
    try {
      if (Number(await this.#ask(key, "EXISTS", key)) === 0) return false;
      // An accepted message has one of these records, in this order.
      for (const record of [`${prefix}turn:${place}`, `${prefix}done:${place}`]) {
        if (Number(await this.#ask(record, "EXISTS", record)) > 0) return false;
      }
      return true;
    } catch (error) {
      if (!(error instanceof Refused && error.word === "NOPERM")) throw error;
      this.#mayLookForTenants = false;
      return false;
    }
  }

  /** The JSON follows the record's version, entry, counters and schema number. */
  async content(key: string): Promise<string | null> {
    const record = await this.get(key);
    return record === null ? null : record.replace(/^\S+ \S+ \S+ \d+/, "");
  }

  /** Each step is one part of the task's history. */
  async history(key: string, start: number): Promise<string[]> {
    const names = Array.from({ length: 32 }, (_, at) => `s${String(start + at).padStart(6, "0")}`);
    const found = await this.#patiently(() => this.#ask(key, "HMGET", key, ...names) as Promise<(string | null)[]>);
    return found.filter((step) => step !== null);
  }

  /**
   * Returns whether the entry is still in the stream. The fleet removes the entry when it accepts or rejects the
   * message. `false` if the Redis user may not read streams.
   */
  async waits(stream: string, entry: string): Promise<boolean> {
    if (!this.#mayLookAtStreams) return false;
    try {
      const found = (await this.#ask(stream, "XRANGE", stream, entry, entry, "COUNT", "1")) as unknown[];
      return found.length > 0;
    } catch (error) {
      if (!(error instanceof Refused && error.word === "NOPERM")) throw error;
      this.#mayLookAtStreams = false;
      return false;
    }
  }
}

async function within<T>(answer: Promise<T>, ms: number, what: string): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no response to ${what} within ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([answer, late]);
  } finally {
    clearTimeout(timer);
    // Avoids an unhandled rejection after the timeout.
    answer.catch(() => {});
  }
}
