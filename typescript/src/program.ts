/** Finds the program `tickfleet`, which is in the package of this platform, such as @tickfleet/linux-x64. */
import { createRequire } from "node:module";

/** The package with the program for this platform. */
export const PACKAGE = `@tickfleet/${process.platform}-${process.arch}`;

/** Returns the path of the program. `undefined` if its package is not installed. */
export function packagedProgram(): string | undefined {
  try {
    return createRequire(import.meta.url).resolve(`${PACKAGE}/bin/tickfleet`);
  } catch {
    return undefined;
  }
}
