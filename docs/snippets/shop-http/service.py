"""A customer service with an API key, OAuth 2.0, and errors in a response with status 200.

    python3 service.py [PORT]     default 8099, 0 for a free one

Standard library only.
"""

import base64
import json
import sys
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CUSTOMERS = {"kim@example.com": {"id": "c7", "name": "Kim"}}
CLIENT = "Basic " + base64.b64encode(b"shop:secret-of-acme").decode()


class Crm(BaseHTTPRequestHandler):
    def do_GET(self):
        email = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("email", [""])[0]
        if self.headers["X-Api-Key"] != "crm-key":
            return self.reply(401, {"message": "invalid key"})
        return self.reply(200, {"data": CUSTOMERS.get(email)})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/oauth/token":
            if self.headers["Authorization"] != CLIENT:
                return self.reply(401, {"error": "invalid_client"})
            return self.reply(200, {"access_token": "t-1", "token_type": "Bearer", "expires_in": 3600})
        if self.headers["Authorization"] != "Bearer t-1":
            return self.reply(401, {"message": "sign in first"})
        if self.path != "/customers/c7/notes":
            return self.reply(200, {"ok": False, "error": "no such customer"})
        return self.reply(200, {"ok": True, "note": json.loads(body)["text"]})

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
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8099), Crm)
    print(f"The customer service listens on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
