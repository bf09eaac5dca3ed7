// An agent of the AI SDK: node agents/ai_sdk.mjs case-7 'Refund order A-1001.'
// ANCHOR: agent
import { generateText, stepCountIs } from "ai";
import { Fleet } from "tickfleet";
import { fleetTools } from "tickfleet/ai-sdk";

const [runId, prompt] = process.argv.slice(2);
const fleet = new Fleet({ tenant: "acme" });
const tools = await fleetTools(fleet, "support", { runId });
const { text } = await generateText({ model: "openai/gpt-5", prompt, tools, stopWhen: stepCountIs(10) });
console.log(text);
await fleet.close();
// ANCHOR_END: agent
