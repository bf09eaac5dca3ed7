/**
 * The process in which tools run. A worker starts it, and communicates with it over a private socket:
 * `node main.js (--fd N | --listen PATH [--processes-max N]) [--path FOLDER]… MODULE…`. A module is a file below a
 * folder of `--path`, by default the working directory. In a separate container it listens instead, and the worker
 * connects.
 */
import { spawnSync } from "node:child_process";
import { readFileSync, statSync } from "node:fs";
import { Socket } from "node:net";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

import { belongsToUser, stack } from "./failures.js";
import { encode } from "./frames.js";
import { listen } from "./listen.js";
import { Host } from "./serve.js";

/** In ms, for the last messages to leave before the process ends. */
const DRAIN_MS = 1_000;
const LOCATE_MS = 10_000;

export interface Arguments {
  paths: string[];
  modules: string[];
  processesMax: number;
}

async function main(): Promise<void> {
  const options = { path: { type: "string", multiple: true }, fd: { type: "string" }, listen: { type: "string" } } as const;
  const { values, positionals } = parseArgs({
    options: { ...options, "processes-max": { type: "string", default: "8" } },
    allowPositionals: true,
  });
  const processesMax = Number(values["processes-max"]);
  const paths = (values.path ?? ["."]).map((path) => resolve(path));
  const isValid = (values.fd === undefined) !== (values.listen === undefined) && positionals.length > 0;
  if (!isValid || !Number.isInteger(processesMax) || processesMax < 1) {
    console.error("usage: node main.js (--fd N | --listen PATH [--processes-max N]) [--path FOLDER]… MODULE…");
    process.exit(2);
  }
  const given: Arguments = { paths, modules: positionals, processesMax };
  if (values.listen !== undefined) return listen(values.listen, given);
  await serve(Number(values.fd), given);
}

async function serve(fd: number, { paths, modules }: Arguments): Promise<void> {
  const end = keepProcess();
  const socket = new Socket({ fd, readable: true, writable: true });
  // Ignores the error, because reading also reports that the worker has closed the connection.
  socket.on("error", () => {});
  paths.forEach(belongsToUser);
  process.setSourceMapsEnabled(true);
  for (const module of modules) {
    try {
      await load(module, paths);
    } catch (error) {
      const frame = encode({ type: "failed", message: stack(error) });
      return void socket.write(frame, () => end(1));
    }
  }
  await new Host(socket).serve();
  setTimeout(() => end(0), DRAIN_MS).unref();
  socket.end(() => end(0));
}

async function load(module: string, paths: string[]): Promise<void> {
  const file = paths.map((path) => join(path, module)).find((path) => statSync(path, { throwIfNoEntry: false })?.isFile());
  if (file === undefined) throw new Error(`there is no file ${module} in ${paths.join(", ")}`);
  try {
    await import(pathToFileURL(file).href);
  } catch (error) {
    throw explained(error as NodeJS.ErrnoException, file);
  }
}

/** Adds the location of a syntax error, which Node.js only prints. Also explains why TypeScript cannot be imported. */
function explained(error: NodeJS.ErrnoException, file: string): unknown {
  const stripsTypes = Boolean((process.features as { typescript?: unknown }).typescript);
  if (error?.code === "ERR_UNKNOWN_FILE_EXTENSION" && !stripsTypes && /\.[mc]?ts\b/.test(error.message)) {
    const why = `Node.js ${process.version} cannot import TypeScript: use Node.js 22.18 or later, or compile it to JavaScript`;
    return new Error(`${error.message}. ${why}`);
  }
  if (!(error instanceof SyntaxError) || stack(error).includes("\n    at ")) return error;
  // A syntax error is found before evaluation, so nothing has run yet.
  const script = `await import(${JSON.stringify(pathToFileURL(file).href)})`;
  const again = spawnSync(process.execPath, ["--input-type=module", "--eval", script], { encoding: "utf8", timeout: LOCATE_MS });
  const place = /^file:\/\/[^\n]*\n[^\n]*\n[^\n]*\n/m.exec(again.stderr ?? "")?.[0];
  return place === undefined ? error : new SyntaxError(`${error.message}\n${place.trimEnd()}`);
}

/**
 * Prevents tools from ending the process, which would end other tools' calls. Returns the function that still ends it.
 */
function keepProcess(): (code: number) => void {
  const exit = process.exit.bind(process);
  process.exit = ((code?: number) => {
    throw new Error(`the tool called process.exit(${code ?? ""}), which would end the calls of others`);
  }) as typeof process.exit;
  process.on("unhandledRejection", (error) => console.error(`unhandled rejection: ${stack(error)}`));
  return (code) => {
    if (isGroupLeader()) {
      process.on("SIGTERM", () => {});
      // Also ends the processes that tools have started.
      process.kill(0, "SIGTERM");
    }
    exit(code);
  };
}

function isGroupLeader(): boolean {
  try {
    const fields = readFileSync("/proc/self/stat", "utf8").replace(/^.*\) /, "").split(" ");
    return Number(fields[2]) === process.pid;
  } catch {
    return false;
  }
}

await main();
