"""A loop on a chat model of LangChain: python3 agents/langchain_loop.py 'Refund order A-1001.'"""

# ANCHOR: loop
import sys

from langchain_core.messages import convert_to_openai_messages
from langchain_openai import ChatOpenAI
from tickfleet import Fleet

messages = [{"role": "user", "content": sys.argv[1]}]
with Fleet(tenant="acme") as fleet:
    model = ChatOpenAI(model="gpt-5").bind_tools(fleet.tools("support"))
    while True:
        message = model.invoke(messages)
        messages.append(message)
        if not message.tool_calls:
            break
        calls = convert_to_openai_messages(message)["tool_calls"]
        messages += fleet.run("support", tool_calls=calls, turn_id=message.id).messages
print(message.content)
# ANCHOR_END: loop
