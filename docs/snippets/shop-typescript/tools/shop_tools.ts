// ANCHOR: tools
import { ToolError, tool } from "tickfleet/tools";
import { z } from "zod";

const STOCK: Record<string, number> = { "MUG-1": 12, "MUG-2": 0 };

const sku = z.string().describe("The article number, such as MUG-1.");

export const checkStock = tool(
  {
    name: "check_stock",
    description: "Returns the number of pieces in stock. Use it before you promise an article.",
    input: z.object({ sku }),
    output: z.object({ sku: z.string(), pieces: z.int() }),
    effect: "read",
    timeoutMs: 5_000,
  },
  ({ sku }) => {
    const pieces = STOCK[sku];
    if (pieces === undefined) {
      throw new ToolError("permanent", `There is no article ${sku}. Articles: ${Object.keys(STOCK).join(", ")}.`);
    }
    return { sku, pieces };
  },
);

export const reserveStock = tool(
  {
    name: "reserve_stock",
    description: "Reserves pieces of an article for the customer.",
    input: z.object({ sku, pieces: z.int().min(1).describe("The number of pieces.") }),
    effect: "once",
  },
  async ({ sku, pieces }, context) => {
    const stock = STOCK[sku] ?? 0;
    if (pieces > stock) throw new ToolError("permanent", `Only ${stock} pieces of ${sku} are in stock.`);
    context.log.info(`reserve ${pieces} of ${sku} for ${context.agent}`);
    return `${pieces} of ${sku} reserved`;
  },
);
// ANCHOR_END: tools
