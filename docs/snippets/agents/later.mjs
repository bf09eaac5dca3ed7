// ANCHOR: later
import { Fleet } from "tickfleet";

const quote = { name: "quote_refund", arguments: { order: "A-1001" } };
const fleet = new Fleet({ tenant: "acme" });
const turn = await fleet.submit({ agent: "support", calls: [quote], turnId: "case-7-quote" });
console.log((await turn.reply({ timeoutMs: 30_000 })).results[0].output);
console.log((await fleet.wait("case-7-quote")).results[0].output);
await fleet.close();
// ANCHOR_END: later
