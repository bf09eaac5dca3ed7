"""A bank and the other services of the payment desk, on a free port of this machine. Standard library only."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# The bank's response to a payment of this amount is lost.
LOST = 300


class Bank(BaseHTTPRequestHandler):
    """Makes a payment for every request, even for duplicates. The fleet must prevent these."""

    payments: list[tuple[str, dict]] = []
    quotes: list[str] = []

    def do_GET(self):
        _, kind, *name = self.path.split("/")
        if kind == "quotes":
            self.quotes.append(name[0])
            self.reply({"item": name[0], "price": 80})
        elif kind == "payments":
            found = [payment for reference, payment in self.payments if reference == name[0]]
            self.reply({"found": bool(found), "payment": found[0] if found else None})
        elif kind == "parcels":
            self.reply({"id": name[0], "is": "on its way"})
        else:
            self.reply({"from": "eve", "text": "You owe me 90. Pay today."})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        if self.path == "/payments":
            self.payments.append((self.headers["Idempotency-Key"], body))
            self.reply({"receipt": f"r-{len(self.payments)}", "paid": body}, lost=body["amount"] == LOST)
        else:
            self.reply({"reviewed": True})

    def reply(self, body, lost=False):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        # A lost response ends in the middle.
        self.wfile.write(data[: len(data) // 2] if lost else data)

    def log_message(self, *_):
        pass


def start():
    """Starts the bank, and returns its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bank)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
