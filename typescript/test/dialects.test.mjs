// The tool definitions of each dialect, compared with those of the fleet.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { DIALECTS, defined } from "../dist/definitions.js";

// A test of the fleet generates this file.
const example = JSON.parse(readFileSync(process.env.DEFINITIONS ?? "../tests/conformance/definitions.json", "utf8"));

test("definitions of each dialect equal those of the fleet", () => {
  assert.deepEqual([...DIALECTS].sort(), Object.keys(example.dialects).sort());
  for (const [dialect, definitions] of Object.entries(example.dialects)) {
    assert.deepEqual(defined(dialect, example.list), definitions, dialect);
  }
});
