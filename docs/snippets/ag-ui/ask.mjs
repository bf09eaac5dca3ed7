import { HttpAgent } from "@ag-ui/client";

// https://fleet.example.com/v1/agents/support/ag-ui
const url = process.env.AGENT_URL;
const headers = { Authorization: `Bearer ${process.env.FLEET_KEY}` };

const agent = new HttpAgent({ url, headers, threadId: "case-7" });
agent.addMessage({ id: "1", role: "user", content: "Where is order A-1003?" });
const { newMessages } = await agent.runAgent();
console.log(newMessages.at(-1).content);
