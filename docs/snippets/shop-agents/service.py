"""The shop's own API, as small as it can be: orders, refund quotes and refunds. It also answers like a model.

    python3 service.py [PORT]     default 8099, 0 for a free one

Standard library only. The data is in memory. A second refund with the same Idempotency-Key is not paid again.
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ORDERS = {
    "A-1001": {"order": "A-1001", "customer": "kim", "amount": 42.50, "status": "delivered"},
    "A-1002": {"order": "A-1002", "customer": "lee", "amount": 890.00, "status": "delivered"},
    "A-1003": {"order": "A-1003", "customer": "kim", "amount": 15.00, "status": "shipped"},
}
REFUNDS = {}


def model(request):
    """A scripted model: its next tool call, or its answer."""
    messages = request["messages"]
    order = re.search(r"A-\d+", messages[1]["content"])[0]
    results = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
    refunds = messages[0]["content"].startswith("You refund orders")
    steps = ["quote_refund", "refund_order"] if refunds else ["look_up_order"]
    if len(results) < len(steps):
        name = steps[len(results)]
        arguments = {"order": order}
        if name == "refund_order":
            arguments["amount"] = results[0]["amount"]
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{len(results)}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    last = results[-1]
    if refunds:
        text = f"I refunded {last['amount']} euros for order {order}."
    else:
        text = f"Order {order} was {last['status']}. It cost {last['amount']} euros."
    return {"role": "assistant", "content": text}


class Shop(BaseHTTPRequestHandler):
    def do_GET(self):
        order = ORDERS.get(self.path.removeprefix("/orders/"))
        if order is None:
            return self.reply(404, {"error": "There is no such order."})
        return self.reply(200, order)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if self.path == "/quotes":
            order = ORDERS.get(body["order"])
            if order is None:
                return self.reply(404, {"error": "There is no such order."})
            return self.reply(200, {"order": body["order"], "amount": order["amount"]})
        if self.path == "/refunds":
            key = self.headers.get("Idempotency-Key") or f"refund-{len(REFUNDS)}"
            refund = REFUNDS.setdefault(key, {"refund": f"R-{len(REFUNDS) + 1}", **body})
            return self.reply(200, refund)
        if self.path == "/messages":
            return self.reply(200, {"sent": True, "to": body["customer"]})
        if self.path == "/v1/chat/completions":
            message = model(body)
            reason = "tool_calls" if "tool_calls" in message else "stop"
            usage = {"prompt_tokens": 100, "completion_tokens": 10}
            return self.reply(200, {"choices": [{"message": message, "finish_reason": reason}], "usage": usage})
        return self.reply(404, {"error": "There is no such path."})

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8099), Shop)
    print(f"The shop listens on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
