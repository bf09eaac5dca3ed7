// Talks with an agent of a fleet through the AG-UI protocol's own client, which checks the schema and the order of all
// events:
// node tests/conformance/agui.mjs URL KEY PACKAGES
// URL is an agent's `/v1/agents/{agent}/ag-ui`; PACKAGES is the folder where npm installed @ag-ui/client (tests/node).
// The agent calls the tool `echo` for a message that begins with `echo`. To any other message, it answers with the
// message and the number of earlier messages.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [url, key, packages] = process.argv.slice(2);
const { HttpAgent } = createRequire(join(resolve(packages), "package.json"))("@ag-ui/client");
const agentOf = (threadId, headers = { Authorization: `Bearer ${key}` }) => new HttpAgent({ url, headers, threadId });

async function say(agent, content) {
  const events = [];
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
  const { result, newMessages } = await agent.runAgent({}, { onEvent: ({ event }) => void events.push(event) });
  return { events, result, newMessages, types: events.map((event) => event.type).filter((type) => type !== "CUSTOM") };
}

const thread = crypto.randomUUID();
const agent = agentOf(thread);

const called = await say(agent, "echo this");
assert.deepEqual(called.types, [
  "RUN_STARTED",
  ...["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"],
  ...["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"],
  "RUN_FINISHED",
]);
const [asking, tool, answer] = called.newMessages;
assert.equal(asking.toolCalls[0].function.name, "echo");
assert.deepEqual(JSON.parse(asking.toolCalls[0].function.arguments), { text: "echo this" });
assert.equal(tool.toolCallId, asking.toolCalls[0].id);
assert.match(tool.content, /echo this/);
assert.equal(answer.content, "All done.");
const task = called.events.find((event) => event.name === "tickfleet.task").value.task_id;
assert.equal(asking.toolCalls[0].id, `${task}.step-1/0`, "a call has the name that the fleet knows it by");
assert.equal(called.result.answer, "All done.");

// The thread continues, even if the page was reloaded and has none of the thread's messages.
const next = await say(agent, [{ type: "text", text: "hello" }]);
assert.equal(next.newMessages[0].content, 'You said "hello" after 1 others.');
const reloaded = await say(agentOf(thread), "again");
assert.equal(reloaded.newMessages[0].content, 'You said "again" after 2 others.');
const other = await say(agentOf(crypto.randomUUID()), "anew");
assert.equal(other.newMessages[0].content, 'You said "anew" after 0 others.');

await assert.rejects(say(agentOf(thread, { Authorization: "Bearer tfk_wrong" }), "hello"), /401/);
await assert.rejects(say(agentOf("no such thread!"), "hello"), /400/);
await assert.rejects(agentOf(thread).runAgent({}), /400/);
console.log(`all runs ended as they should: ${thread}`);
