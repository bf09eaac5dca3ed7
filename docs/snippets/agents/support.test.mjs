// Tests of what the agent `support` is allowed to do: node --test agents/support.test.mjs

// ANCHOR: tests
import assert from "node:assert/strict";
import { after, test } from "node:test";

import { fleet, scriptedModel, toolCall } from "tickfleet/testing";

const shop = await fleet("shop");
after(() => shop.close());

const refund = toolCall("refund_order", { order: "A-1003", amount: 15 });

test("support refunds an order once", async () => {
  const first = await shop.client.run({ agent: "support", calls: [refund] });
  const second = await shop.client.run({ agent: "support", calls: [refund] });
  assert(first.ok);
  assert.deepEqual(second.results[0].output, first.results[0].output);
  assert.equal(await shop.effects("refund_order"), 1);
});

test("reports cannot refund", async () => {
  const reply = await shop.client.run({ agent: "reports", calls: [refund] });
  assert.equal(reply.results[0].outcome, "denied");
});

test("a large refund waits for approval", async () => {
  const large = toolCall("refund_order", { order: "A-1002", amount: 890 });
  const turn = await shop.client.submit({ agent: "support", calls: [large] });
  await shop.approve("ann");
  assert((await turn.reply()).ok);
});

test("the loop ends with the model's answer", async () => {
  const model = scriptedModel([[toolCall("look_up_order", { order: "A-1001" })], "It was delivered."]);
  const messages = [{ role: "user", content: "Where is A-1001?" }];
  for (;;) {
    const { message } = (await model.chat.completions.create({ messages })).choices[0];
    messages.push(message);
    if (!message.tool_calls) break;
    messages.push(...(await shop.client.run({ agent: "support", toolCalls: message.tool_calls })).messages);
  }
  assert.equal(messages.at(-1).content, "It was delivered.");
  assert.match(messages.at(-2).content, /delivered/);
});
// ANCHOR_END: tests
