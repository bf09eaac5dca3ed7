// The program `tickfleet` of the package, with a stand-in for the binary of this platform.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const PACKAGE = fileURLToPath(new URL("..", import.meta.url));
const STAND_IN = `#!/bin/sh
trap 'echo ended >> "$LOG"; exit 0' TERM
echo "started $*" >> "$LOG"
while :; do sleep 0.05; done
`;

function installed() {
  const folder = mkdtempSync(join(tmpdir(), "tickfleet-bin-"));
  const platform = join(folder, "node_modules/@tickfleet", `${process.platform}-${process.arch}`);
  mkdirSync(join(platform, "bin"), { recursive: true });
  writeFileSync(join(platform, "package.json"), "{}");
  writeFileSync(join(platform, "bin/tickfleet"), STAND_IN, { mode: 0o755 });
  for (const part of ["bin", "dist", "package.json"]) {
    cpSync(join(PACKAGE, part), join(folder, "node_modules/tickfleet", part), { recursive: true });
  }
  return { log: join(folder, "log"), program: join(folder, "node_modules/tickfleet/bin/tickfleet.mjs") };
}

async function until(log, line) {
  const end = Date.now() + 10_000;
  const read = () => {
    try {
      return readFileSync(log, "utf8");
    } catch {
      return "";
    }
  };
  while (!read().includes(line)) {
    assert(Date.now() < end, `no line "${line}": ${read()}`);
    // The log is a file, so this polls.
    await sleep(20);
  }
}

test("a signal to the shell that npx starts ends the program", async () => {
  const { log, program } = installed();
  const env = { ...process.env, LOG: log, npm_command: "exec" };
  // With a command after the program, the shell does not replace itself with the program.
  const shell = spawn("sh", ["-c", `"${process.execPath}" "${program}" dev --port 0; :`], { env, stdio: "ignore" });
  await until(log, "started dev --port 0");
  shell.kill("SIGTERM");
  await until(log, "ended");
});

test("without npm, the program outlives the shell that started it", async () => {
  const { log, program } = installed();
  const { npm_command, ...env } = process.env;
  const shell = spawn("sh", ["-c", `"${process.execPath}" "${program}" & echo $!; wait`], { env: { ...env, LOG: log } });
  const pid = Number(await new Promise((resolve) => shell.stdout.once("data", resolve)));
  await until(log, "started");
  shell.kill("SIGTERM");
  // Longer than the interval at which the program looks for its shell. No event reports that nothing ends.
  await sleep(700);
  assert.doesNotThrow(() => process.kill(pid, 0));
  process.kill(pid, "SIGTERM");
  await until(log, "ended");
});
