#!/usr/bin/env node
// Starts the program `tickfleet`, which is in the package of this platform: @tickfleet/linux-x64 and its like.

import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { constants } from "node:os";

const platform = `${process.platform}-${process.arch}`;

function program() {
  try {
    return createRequire(import.meta.url).resolve(`@tickfleet/${platform}/bin/tickfleet`);
  } catch {
    console.error(
      `The package @tickfleet/${platform} is not installed. Install without --omit=optional. If there is no such ` +
        "package, use the container image, or build the program from source.",
    );
    process.exit(1);
  }
}

const child = spawn(program(), process.argv.slice(2), { stdio: "inherit" });
// A terminal sends Ctrl-C to both processes. The program then drains, and this process waits for its end.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => signal !== "SIGINT" && child.kill(signal));
}
child.on("error", (error) => {
  console.error(`tickfleet cannot start: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
