#!/usr/bin/env node

import { spawn } from "node:child_process";
import { constants } from "node:os";

import { PACKAGE, packagedProgram } from "../dist/program.js";

// Read before the program starts: the shell can end at any time after that.
const shell = process.ppid;
const program = packagedProgram();
if (program === undefined) {
  console.error(
    `The package ${PACKAGE} is not installed. Install without --omit=optional. If there is no such package, use the ` +
      "container image, or build the program from source.",
  );
  process.exit(1);
}

// With this `argv0`, the program's messages show commands as the user types them.
const argv0 = process.env.npm_command === "exec" ? "npx tickfleet" : "tickfleet";
const child = spawn(program, process.argv.slice(2), { argv0, stdio: "inherit" });
// A terminal sends Ctrl-C to both processes, so this process only waits.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => signal !== "SIGINT" && child.kill(signal));
}
// npx and scripts of npm use a shell, which ends on a signal without passing it on.
if (process.env.npm_command !== undefined) {
  const watch = setInterval(() => {
    if (process.ppid === shell) return;
    clearInterval(watch);
    child.kill("SIGTERM");
  }, 250);
}
child.on("error", (error) => {
  console.error(`tickfleet cannot start: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
