"""A stand-in for a model of OpenAI, for those without an API key and for tests: it plans by simple rules.

    python3 model.py [PORT]     default 8098, 0 for a free one

Standard library only. It answers Chat Completions and Responses, without streaming. If the last user message names an order
such as A-1001, it calls look_up_order. If that message also says "refund", it then calls refund_order. It reports errors of
tools as text.
"""

import json
import re
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def plan(question, results):
    """The next call as (tool, arguments), or the final text. `results` are the texts of the calls so far."""
    order = re.search(r"[A-Z]-\d+", question)
    if order is None:
        return "Which order is it?"
    read, note = [], ""
    for text in results:
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except ValueError:
            return f"I could not do that. {text.splitlines()[0]}"
        read.append(value)
        note = text[end:].strip()
    if not read:
        return "look_up_order", {"order": order[0]}
    if "refund" not in question.lower():
        return f"Order {order[0]} of {read[0]['customer']} is {read[0]['status']}."
    if len(read) == 1:
        return "refund_order", {"order": order[0], "amount": read[0]["amount"]}
    if note:
        return f"Order {order[0]} had its refund of {read[1]['amount']} before. I paid nothing."
    return f"I refunded {read[1]['amount']} for order {order[0]}."


def text_of(content):
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])


def since_question(items, is_result, result):
    """The last user message, and the results after it."""
    at = max(n for n, item in enumerate(items) if item.get("role") == "user")
    return text_of(items[at]["content"]), [text_of(result(item)) for item in items[at:] if is_result(item)]


def chat(body):
    messages = body["messages"]
    step = plan(*since_question(messages, lambda m: m["role"] == "tool", lambda m: m["content"]))
    message = {"role": "assistant", "content": None, "refusal": None}
    if isinstance(step, str):
        message["content"] = step
    else:
        function = {"name": step[0], "arguments": json.dumps(step[1])}
        message["tool_calls"] = [{"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}]
    reason = "stop" if isinstance(step, str) else "tool_calls"
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def responses(body):
    items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
    step = plan(*since_question(items, lambda i: i.get("type") == "function_call_output", lambda i: i["output"]))
    if isinstance(step, str):
        text = {"type": "output_text", "text": step, "annotations": [], "logprobs": []}
        output = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "content": [text]}
    else:
        output = {"id": f"fc_{uuid.uuid4().hex}", "type": "function_call", "call_id": f"call_{uuid.uuid4().hex}"}
        output |= {"name": step[0], "arguments": json.dumps(step[1])}
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": body["model"],
        "output": [output | {"status": "completed"}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "usage": {
            "input_tokens": 1,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 2,
        },
    }


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        answers = {"/v1/chat/completions": chat, "/v1/responses": responses}
        answer = answers.get(self.path)
        data = json.dumps(answer(body) if answer else {"error": {"message": f"no {self.path} here"}}).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8098), Model)
    print(f"The stand-in model listens on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
