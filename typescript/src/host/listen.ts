/**
 * A tool host: listens on a Unix socket, and starts a separate process for each connection.
 *
 * It runs in a separate container next to the worker. The tool host passes bytes between the connection and its process,
 * so that it notices the end of a connection even while a function blocks its process. When a connection ends, the tool
 * host ends the process, with every process that it has started.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { lstatSync, readFileSync, readdirSync, statSync, unlinkSync } from "node:fs";
import { type Socket, createServer } from "node:net";
import { fileURLToPath } from "node:url";

import { encode } from "./frames.js";
import type { Arguments } from "./main.js";

/** Marks a process and all processes that it starts, even if they leave its process group. */
const MARK = "TICKFLEET_INTERPRETER";
/** In ms. A process that has not ended this long after its connection is killed. */
const GRACE_MS = 1_000;
/**
 * A terminating tool host waits this long for connections, because a worker that replaces its only process has none for
 * a moment.
 */
const LINGER_MS = 2_000;
/** Maximum number of scans for processes to kill. A process that forks during one scan is found in the next. */
const LOOKS_MAX = 10;

/**
 * Listens until SIGTERM, and then until all connections have been closed for a while. A second SIGTERM, or SIGINT, ends
 * the tool host at once.
 */
export async function listen(path: string, given: Arguments): Promise<void> {
  const running = new Map<ChildProcess, string>();
  let isEnding = false;
  let linger: NodeJS.Timeout | undefined;
  const endLater = () => {
    clearTimeout(linger);
    if (isEnding && running.size === 0) linger = setTimeout(end, LINGER_MS);
  };
  const server = createServer({ pauseOnConnect: true }, (connection) => {
    clearTimeout(linger);
    if (running.size >= given.processesMax) {
      const why = `it already runs ${given.processesMax} interpreters, the maximum that --processes-max allows`;
      return refuse(connection, why);
    }
    serve(connection, given, running, endLater);
  });
  remove(path);
  // The worker may be another user of the same group, so only this group may connect.
  const before = process.umask(0o117);
  await new Promise<void>((resolve, reject) => server.once("error", reject).listen(path, resolve));
  process.umask(before);
  const ours = statSync(path).ino;
  const end = () => {
    remove(path, ours);
    for (const [child, mark] of running) kill(child, mark);
    process.exit(0);
  };
  process.on("SIGINT", end);
  process.on("SIGTERM", () => {
    if (isEnding) return end();
    isEnding = true;
    endLater();
  });
  console.error(`a tool host listens at ${path}`);
}

function serve(connection: Socket, given: Arguments, running: Map<ChildProcess, string>, ended: () => void): void {
  const mark = randomBytes(16).toString("hex");
  const main = fileURLToPath(new URL("main.js", import.meta.url));
  const paths = given.paths.flatMap((path) => ["--path", path]);
  const child = spawn(process.execPath, [...process.execArgv, main, "--fd", "3", ...paths, ...given.modules], {
    detached: true,
    env: { ...process.env, [MARK]: mark },
    stdio: ["ignore", process.stderr, process.stderr, "pipe"],
  });
  running.set(child, mark);
  const pipe = child.stdio[3] as Socket;
  let killer: NodeJS.Timeout | undefined;
  for (const end of [connection, pipe]) end.on("error", () => {});
  child.once("error", (error) => {
    running.delete(child);
    refuse(connection, `an interpreter could not be started (${error.message})`);
    ended();
  });
  connection.pipe(pipe).pipe(connection);
  connection.once("close", () => {
    pipe.end();
    // The process also sees the end of its socket, and may end by itself.
    if (running.has(child)) killer = setTimeout(() => kill(child, mark), GRACE_MS);
  });
  child.once("exit", (code, signal) => {
    clearTimeout(killer);
    running.delete(child);
    if (!connection.destroyed && code !== 0) console.error(`an interpreter has ended with ${signal ?? code}`);
    kill(child, mark);
    ended();
  });
  // The connection ends only after the last messages of an ended process have arrived.
  pipe.once("close", () => connection.end(() => connection.destroy()));
}

/**
 * Removes a socket. With `ours`, removes only the socket with this inode, because a successor may already listen there.
 */
function remove(path: string, ours?: number): void {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found?.isSocket() && (ours === undefined || found.ino === ours)) unlinkSync(path);
}

function refuse(connection: Socket, why: string): void {
  console.error(`a connection was refused: ${why}`);
  connection.on("error", () => {});
  connection.end(encode({ type: "refused", message: why }), () => connection.destroy());
}

/** On Linux, also kills every process with the mark. */
function kill(child: ChildProcess, mark: string): void {
  if (child.exitCode === null && child.signalCode === null && child.pid !== undefined) signal(-child.pid);
  const variable = `${MARK}=${mark}`;
  for (let look = 0; look < LOOKS_MAX; look += 1) {
    const found = processes().filter((id) => environment(id).includes(variable));
    if (found.length === 0) return;
    found.forEach(signal);
  }
}

function signal(id: number): void {
  try {
    process.kill(id, "SIGKILL");
  } catch {
    // The process has already ended.
  }
}

function processes(): number[] {
  try {
    return readdirSync("/proc").map(Number).filter(Number.isInteger);
  } catch {
    return [];
  }
}

function environment(id: number): string[] {
  try {
    return readFileSync(`/proc/${id}/environ`, "utf8").split("\0");
  } catch {
    // The process has ended, or belongs to another user.
    return [];
  }
}
