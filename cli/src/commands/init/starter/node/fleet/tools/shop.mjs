// The tools of the shop. Save this file, and the running fleet uses the new code.
import { ToolError, tool } from "tickfleet/tools";

const ORDERS = {
  "A-1001": { order: "A-1001", customer: "kim", amount: 42.5 },
  "A-1002": { order: "A-1002", customer: "lee", amount: 890.5 },
  "A-1003": { order: "A-1003", customer: "kim", amount: 99.5 },
};

const order = { type: "string", description: "The order number, such as A-1001." };
const amount = { type: "number", description: "The amount to pay back, in euros." };

export const lookUpOrder = tool(
  {
    name: "look_up_order",
    description: "Returns an order with its customer and amount.",
    // A JSON Schema, or a schema of a library such as zod, which also types the arguments.
    input: { type: "object", properties: { order }, required: ["order"], additionalProperties: false },
    // `read` has no effect, so the fleet repeats the call if it fails.
    effect: "read",
  },
  ({ order }) => {
    if (!Object.hasOwn(ORDERS, order)) {
      throw new ToolError("permanent", `There is no order ${order}. Orders: ${Object.keys(ORDERS).join(", ")}.`);
    }
    return ORDERS[order];
  },
);

export const refundOrder = tool(
  {
    name: "refund_order",
    description: "Pays an amount back to the customer of an order.",
    input: { type: "object", properties: { order, amount }, required: ["order", "amount"], additionalProperties: false },
    // `once` is not repeated if it may have paid already. Two refunds of one order are one effect: the second call
    // returns the first result.
    effect: "once",
    effectKey: ["/order"],
  },
  // Call your payment service here.
  ({ order, amount }) => ({ refund: `R-${order}`, order, amount }),
);
