// An agent that refunds orders. Its tool calls run in the fleet.
//
//     node agent.mjs 'Refund order A-1001.'
//
// If OPENAI_API_KEY is set, it asks OpenAI (npm install openai). Otherwise it asks the script in `scriptedModel`.
import { Fleet } from "tickfleet";

async function openaiModel(messages, tools) {
  const { default: OpenAI } = await import("openai");
  const model = process.env.OPENAI_MODEL ?? "gpt-5";
  const response = await new OpenAI().chat.completions.create({ model, messages, tools });
  return response.choices[0].message;
}

/** Looks up the order, refunds it, and repeats the last result. */
function scriptedModel(messages) {
  const results = messages.filter((message) => message.role === "tool").map((message) => message.content);
  const order = /A-\d+/.exec(messages[0].content)?.[0];
  if (order === undefined) return { role: "assistant", content: "Which order? For example A-1001." };
  let call;
  if (results.length === 0) {
    call = { name: "look_up_order", arguments: JSON.stringify({ order }) };
  } else if (results.length === 1 && results[0].startsWith("{")) {
    const { amount } = JSON.parse(results[0]);
    call = { name: "refund_order", arguments: JSON.stringify({ order, amount }) };
  } else {
    return { role: "assistant", content: results.at(-1) };
  }
  return { role: "assistant", tool_calls: [{ id: `call_${messages.length}`, type: "function", function: call }] };
}

async function main(task) {
  const model = process.env.OPENAI_API_KEY ? openaiModel : scriptedModel;
  const messages = [{ role: "user", content: task }];
  // Without options, finds the `tickfleet dev` of this folder.
  const fleet = new Fleet();
  try {
    const tools = await fleet.tools("support");
    for (;;) {
      const message = await model(messages, tools);
      messages.push(message);
      if (!message.tool_calls?.length) return message.content;
      for (const call of message.tool_calls) console.log("call", call.function.name, call.function.arguments);
      // Waits for limits and approvals, and returns one message for each call.
      const reply = await fleet.run({ agent: "support", toolCalls: message.tool_calls });
      messages.push(...reply.messages);
    }
  } finally {
    await fleet.close();
  }
}

console.log(await main(process.argv.slice(2).join(" ") || "Refund order A-1001."));
