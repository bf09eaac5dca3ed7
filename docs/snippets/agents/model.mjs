// Replaces the default provider of the AI SDK with the stand-in model of model.py: node --import ./agents/model.mjs …
const call = async (body) => {
  const { OPENAI_BASE_URL: url, OPENAI_API_KEY: key } = process.env;
  const headers = { "content-type": "application/json", authorization: `Bearer ${key}` };
  const response = await fetch(`${url}/chat/completions`, { method: "POST", headers, body: JSON.stringify(body) });
  return response.json();
};

/** The SDK's prompt as messages of Chat Completions. */
const messagesOf = (prompt) =>
  prompt.flatMap(({ role, content }) => {
    if (role === "system") return [{ role, content }];
    if (role === "tool") {
      return content.map(({ toolCallId, output }) => ({ role, tool_call_id: toolCallId, content: output.value }));
    }
    return [{ role, content: content.map((part) => part.text ?? "").join("") }];
  });

const languageModel = (modelId) => ({
  specificationVersion: "v3",
  provider: "stand-in",
  modelId,
  supportedUrls: {},
  async doGenerate({ prompt }) {
    const { choices } = await call({ model: modelId, messages: messagesOf(prompt) });
    const { tool_calls: calls = [], content: text } = choices[0].message;
    const content = calls.map(({ id, function: { name, arguments: input } }) => ({
      type: "tool-call",
      toolCallId: id,
      toolName: name,
      input,
    }));
    if (text) content.push({ type: "text", text });
    const finishReason = { unified: calls.length > 0 ? "tool-calls" : "stop" };
    return { content, finishReason, usage: { inputTokens: { total: 1 }, outputTokens: { total: 1 } }, warnings: [] };
  },
});

globalThis.AI_SDK_DEFAULT_PROVIDER = { specificationVersion: "v3", languageModel };
