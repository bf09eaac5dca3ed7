/** A fleet for tests, in a process of its own. */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { constants, accessSync, mkdtempSync } from "node:fs";
import { readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { delimiter, join, resolve } from "node:path";
import { createInterface } from "node:readline";
import type { Readable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

import { Fleet } from "./fleet.js";
import { read } from "./json.js";
import { packagedProgram } from "./program.js";

const FOREIGN = ["REDIS_URL", "FLEET_URL", "FLEET_KEY", "TICKFLEET_CONFIG"];
const LOOK_AGAIN_MS = 50;
const OUTPUT_BYTES_MAX = 64 * 1024 * 1024;

/** Options of {@link fleet}. */
export interface TestFleetOptions {
  /** Tenant of the client. Default: the first of the configuration. */
  tenant?: string;
  /** Variables of the fleet's process, such as the address of a stand-in for a service. */
  env?: Record<string, string>;
}

interface Started {
  process: ChildProcess;
  folder: string;
  program: string;
  env: NodeJS.ProcessEnv;
}

/** A running fleet, whose data ends with it. */
export class TestFleet {
  /** Client for all agents of the tenant. */
  readonly client: Fleet;
  /** Link to the console, with its key. */
  readonly console: string;
  readonly #process: ChildProcess;
  readonly #folder: string;
  readonly #program: string;
  readonly #env: NodeJS.ProcessEnv;

  /** @internal */
  constructor(client: Fleet, console: string, started: Started) {
    this.client = client;
    this.console = console;
    this.#process = started.process;
    this.#folder = started.folder;
    this.#program = started.program;
    this.#env = started.env;
  }

  /** Returns the entries of the audit log, the oldest first, of one tool or of all. */
  async audit(tool?: string): Promise<Record<string, any>[]> {
    const chosen = tool === undefined ? [] : ["--tool", tool];
    const found = read(await this.command("audit", "search", "--limit", "1000", "--json", ...chosen)) as any;
    return found.entries.map((entry: any) => entry.audit).reverse();
  }

  /** Returns how often the tool has run with success. A call that got the result of an equal call did not run. */
  async effects(tool: string): Promise<number> {
    const calls = (await this.audit(tool)).filter((entry) => entry["action"] === "TOOL_CALL");
    return calls.filter(({ meta }) => meta.outcome === "ok" && !("repeats" in meta)).length;
  }

  /**
   * Approves the calls that wait, as the approver `by`. Waits for the first one.
   *
   * @throws {Error} No call waits for approval after `timeoutMs`. Default: 10,000.
   */
  approve(by: string, { timeoutMs = 10_000 }: { timeoutMs?: number } = {}): Promise<void> {
    return this.#decide(timeoutMs, "approve", "--by", by);
  }

  /** Denies the calls that wait. The model reads the reason. The same as {@link approve} otherwise. */
  deny(by: string, { reason = "denied", timeoutMs = 10_000 }: { reason?: string; timeoutMs?: number } = {}): Promise<void> {
    return this.#decide(timeoutMs, "deny", "--by", by, "--reason", reason);
  }

  async #decide(timeoutMs: number, verb: string, ...options: string[]): Promise<void> {
    const end = performance.now() + timeoutMs;
    for (;;) {
      const { items: waiting }: { items: { tenant: string; id: string }[] } = JSON.parse(await this.command("approvals", "list", "--json"));
      for (const { tenant, id } of waiting) await this.command("approvals", verb, `${tenant}:${id}`, ...options);
      if (waiting.length > 0) return;
      if (performance.now() > end) throw new Error(`no call waits for approval after ${timeoutMs} ms`);
      await sleep(LOOK_AGAIN_MS);
    }
  }

  /**
   * Runs a command of the program on this fleet, and returns its output.
   *
   * @throws {Error} The command failed; `stderr` has its message.
   */
  async command(...args: string[]): Promise<string> {
    const options = { env: this.#env, maxBuffer: OUTPUT_BYTES_MAX };
    return (await promisify(execFile)(this.#program, args, options)).stdout;
  }

  /** Ends the fleet and its client. `await using` calls it at the end of its block. */
  async close(): Promise<void> {
    await this.client.close();
    await stopped(this.#process, this.#folder);
  }

  /** @internal */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/**
 * Starts a fleet without Redis, for tests. End it with `close`, or declare it with `await using`. At the latest, it
 * ends with this process.
 *
 * @param config Configuration folder.
 * @throws {Error} The program is missing, or the fleet did not start; its message is on stderr.
 */
export async function fleet(config: string, { tenant, env = {} }: TestFleetOptions = {}): Promise<TestFleet> {
  const program = programOf();
  const inherited = Object.entries(process.env).filter(([name]) => !FOREIGN.includes(name));
  const variables = { ...Object.fromEntries(inherited), TICKFLEET_HTTP_ADDRESS: "127.0.0.1:0", ...env };
  const folder = mkdtempSync(join(tmpdir(), "tickfleet-"));
  const args = ["dev", "--config", resolve(config), "--dir", folder, "--console", "0"];
  const child = spawn(program, args, { env: variables, stdio: ["ignore", "pipe", "inherit"] });
  try {
    const console = await started(child);
    const here = JSON.parse(await readFile(join(folder, "dev.json"), "utf8"));
    const client = new Fleet({ url: here.fleet_url, apiKey: here.fleet_key, ...(tenant !== undefined && { tenant }) });
    const own = { ...variables, REDIS_URL: here.redis_url, TICKFLEET_CONFIG: resolve(config) };
    return new TestFleet(client, console, { process: child, folder, program, env: own });
  } catch (error) {
    await stopped(child, folder);
    throw error;
  }
}

function programOf(): string {
  const places = (process.env["PATH"] ?? "").split(delimiter).map((folder) => join(folder, "tickfleet"));
  const found = packagedProgram() ?? places.find(isProgram);
  if (found !== undefined) return found;
  throw new Error("the program tickfleet is missing: install the package of this platform, or put it into the PATH");
}

function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** Returns the link to the console. The fleet then no longer keeps this process running. */
async function started(child: ChildProcess): Promise<string> {
  let cause: Error | undefined;
  child.on("error", (error) => (cause = error));
  const end = () => child.kill();
  process.once("exit", end);
  child.once("exit", () => process.off("exit", end));
  const output = child.stdout as Readable & { unref?: () => void };
  let console = "";
  for await (const line of createInterface({ input: output })) {
    if (line.startsWith("Console: ")) console = line.slice("Console: ".length).trim();
    if (!line.startsWith("Ctrl-C")) continue;
    child.unref();
    output.unref?.();
    output.resume();
    return console;
  }
  throw new Error("tickfleet dev did not start: see its message on stderr", cause && { cause });
}

async function stopped(child: ChildProcess, folder: string): Promise<void> {
  if (child.pid !== undefined && child.exitCode === null && child.signalCode === null) {
    const ended = once(child, "exit");
    child.ref();
    child.kill();
    await ended;
  }
  await rm(folder, { recursive: true, force: true });
}

/** A tool call, for `calls` of a turn, or for the response of a {@link ScriptedModel}. */
export interface ScriptedCall {
  name: string;
  arguments: Record<string, unknown>;
}

/** Returns a tool call. */
export function toolCall(name: string, args: Record<string, unknown> = {}): ScriptedCall {
  return { name, arguments: args };
}

/** A model for tests, made by {@link scriptedModel}. */
export interface ScriptedModel {
  /** The arguments of each request so far. */
  readonly requests: Record<string, any>[];
  /** Plays OpenAI's client. */
  readonly chat: { completions: { create(request: Record<string, any>): Promise<any> } };
}

/**
 * Returns a model that plays OpenAI's client: `await model.chat.completions.create({ messages, tools })`.
 *
 * @param responses The responses, in order: a text, or the calls of a response, made by {@link toolCall}.
 */
export function scriptedModel(responses: readonly (string | readonly ScriptedCall[])[]): ScriptedModel {
  const requests: Record<string, any>[] = [];
  const create = async (request: Record<string, any>) => {
    const number = requests.length;
    const response = responses[number];
    if (response === undefined) throw new Error(`the model was asked once more than its ${number} responses`);
    // The caller may extend the list of messages later.
    requests.push({ ...request, messages: [...(request["messages"] ?? [])] });
    return { id: `response-${number}`, choices: [{ message: messageOf(response, number) }] };
  };
  return { requests, chat: { completions: { create } } };
}

function messageOf(response: string | readonly ScriptedCall[], number: number) {
  if (typeof response === "string") return { role: "assistant", content: response };
  const calls = response.map(({ name, arguments: args }, at) => ({
    id: `call_${number}_${at}`,
    type: "function",
    function: { name, arguments: JSON.stringify(args) },
  }));
  return { role: "assistant", content: null, tool_calls: calls };
}
