"""The shop's own API, as small as it can be: orders, refund quotes, refunds and messages.

    python3 service.py [PORT]     default 8099, 0 for a free one

Standard library only. The data is in memory. A second refund with the same Idempotency-Key is not paid again.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ORDERS = {
    "A-1001": {"order": "A-1001", "customer": "kim", "amount": 42.50, "status": "delivered"},
    "A-1002": {"order": "A-1002", "customer": "lee", "amount": 890.00, "status": "delivered"},
    "A-1003": {"order": "A-1003", "customer": "kim", "amount": 15.00, "status": "shipped"},
}
REFUNDS = {}


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
