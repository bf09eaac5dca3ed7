// ANCHOR: gateway
import { Fleet } from "tickfleet";

const fleet = new Fleet({ url: process.env.FLEET_URL, apiKey: process.env.FLEET_KEY });
const reply = await fleet.run({ agent: "support", calls: [{ name: "quote_refund", arguments: { order: "A-1001" } }] });
console.log(reply.tenant, reply.results[0].output);
await fleet.close();
// ANCHOR_END: gateway
