"""An MCP server on standard input and output: the stock of a warehouse, in memory. Standard library only."""

import json
import sys

STOCK = {"MUG-1": 12, "MUG-2": 0}
SKU = {"type": "string", "description": "The article number, such as MUG-1."}
TOOLS = [
    {
        "name": "find_stock",
        "description": "Returns the number of pieces in stock.",
        "inputSchema": {"type": "object", "properties": {"sku": SKU}, "required": ["sku"]},
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "reserve",
        "description": "Reserves one piece of an article.",
        "inputSchema": {"type": "object", "properties": {"sku": SKU}, "required": ["sku"]},
    },
]


def call(name, arguments):
    sku = arguments["sku"]
    if name == "reserve" and STOCK.get(sku, 0) > 0:
        STOCK[sku] -= 1
        return {"content": [{"type": "text", "text": f"One {sku} is reserved."}]}
    if name == "reserve":
        return {"content": [{"type": "text", "text": f"{sku} is out of stock."}], "isError": True}
    return {"content": [], "structuredContent": {"sku": sku, "pieces": STOCK.get(sku, 0)}}


def respond(method, params):
    if method == "initialize":
        server = {"name": "warehouse", "version": "1.0.0"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        return call(params["name"], params.get("arguments", {}))
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = respond(request["method"], request.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
