"""The shop's API on a bad day: it pays the refund of order A-1003, but its response is lost.

    python3 service.py [PORT]     default 8099, 0 for a free one

The API also finds refunds by their Idempotency-Key. Standard library only.
"""

import os
import runpy
import sys
from http.server import ThreadingHTTPServer

SHOP = runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../shop/service.py"))


class UnreliableShop(SHOP["Shop"]):
    def do_GET(self):
        if not self.path.startswith("/refunds/"):
            return super().do_GET()
        refund = SHOP["REFUNDS"].get(self.path.removeprefix("/refunds/"))
        return self.reply(200, {"found": refund is not None, "refund": refund})

    def reply(self, status, body):
        if self.path == "/refunds" and body["order"] == "A-1003":
            self.close_connection = True
        else:
            super().reply(status, body)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8099), UnreliableShop)
    print(f"The shop listens on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
