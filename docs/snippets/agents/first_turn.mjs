// ANCHOR: turn
import { Fleet } from "tickfleet";

// A model returns this as message.tool_calls.
const toolCalls = [
  { id: "call_1", type: "function", function: { name: "look_up_order", arguments: '{"order": "A-1001"}' } },
];

const fleet = new Fleet({ tenant: "acme" });
const reply = await fleet.run({ agent: "support", toolCalls });
console.log(reply.messages[0].content);
await fleet.close();
// ANCHOR_END: turn
