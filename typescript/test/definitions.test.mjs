// The tool lists of a fleet that has just started. The test needs `tickfleet` and `redis-server` in the PATH.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, test } from "node:test";

import { Fleet, InvalidMessage, NoDefinitions } from "../dist/index.js";

const home = mkdtempSync(join(tmpdir(), "definitions-"));
const socket = join(home, "redis.sock");
const started = [];

function start(program, args) {
  const { REDIS_URL: _, TICKFLEET_CONFIG: __, ...env } = process.env;
  const child = spawn(program, args, { env: { ...env, TICKFLEET_HTTP_ADDRESS: "127.0.0.1:0" }, stdio: ["ignore", "pipe", "inherit"] });
  started.push(child);
  return child;
}

async function printed(child, text) {
  for await (const line of createInterface({ input: child.stdout })) {
    if (!line.includes(text)) continue;
    child.stdout.resume();
    return;
  }
  throw new Error(`it ended before it printed ${text}`);
}

const fleet = new Fleet({ url: `unix://${socket}`, tenant: "demo" });
after(async () => {
  await fleet.close();
  for (const child of started.reverse()) {
    const ended = once(child, "exit");
    child.kill();
    await ended;
  }
  rmSync(home, { recursive: true });
});

test("tools waits for the first worker, and not for an agent that does not exist", async () => {
  await printed(start("redis-server", ["--port", "0", "--unixsocket", socket, "--save", "", "--dir", home]), "ready to accept connections");
  await assert.rejects(fleet.tools("atlas", { format: "none" }), InvalidMessage);
  await assert.rejects(fleet.tools("atlas"), NoDefinitions);
  const tools = fleet.tools("atlas");
  await printed(start("tickfleet", ["dev", "--redis-url", `unix://${socket}`, "--console", "0", "--dir", home]), "Ctrl-C");
  assert((await tools).length > 0);
  await assert.rejects(fleet.tools("nobody"), NoDefinitions);
});
