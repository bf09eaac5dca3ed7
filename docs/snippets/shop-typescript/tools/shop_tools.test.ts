// ANCHOR: test
import assert from "node:assert/strict";
import test from "node:test";

import { callTool, toolContext } from "tickfleet/testing";

import { checkStock, reserveStock } from "./shop_tools.ts";

test("stock is returned", async () => {
  assert.deepEqual(await callTool(checkStock, { sku: "MUG-1" }), { sku: "MUG-1", pieces: 12 });
});

test("more than the stock cannot be reserved", async () => {
  const reserve = callTool(reserveStock, { sku: "MUG-1", pieces: 99 }, toolContext({ agent: "support" }));
  await assert.rejects(reserve, { message: /Only 12 pieces/ });
});
// ANCHOR_END: test
