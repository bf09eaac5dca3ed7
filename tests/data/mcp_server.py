"""An MCP server for tests, in plain Python: it logs its effects, dies on request, and changes its definitions.

It speaks the protocol on standard input and output. Its only argument is a folder for its files: `effects` (a line per
effect: tool and key), `starts` (a line per start), `cancelled` (a line per cancellation) and `lists` (a line per
request for the list of tools). If the file `definition` exists, its text is the description of the tool `look`. Calls
run concurrently.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

FOLDER = Path(sys.argv[1])
WRITING = threading.Lock()
KEYED = {"type": "object", "properties": {"key": {"type": "string"}, "ms": {"type": "integer"}}, "required": ["key"]}
READ = {"readOnlyHint": True}


def note(file: str, line: str) -> None:
    """Appends one line in one write, so that the line is complete even if the server dies next."""
    with WRITING, open(FOLDER / file, "a", encoding="utf-8") as out:
        out.write(f"{line}\n")


def count(file: str) -> int:
    path = FOLDER / file
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


def tools() -> list[dict]:
    drifted = FOLDER / "definition"
    look = drifted.read_text(encoding="utf-8") if drifted.exists() else "Looks at something."
    return [
        {"name": "look", "description": look, "inputSchema": KEYED, "annotations": READ},
        {"name": "send", "description": "Sends something.", "inputSchema": KEYED},
        {"name": "refuse", "description": "Refuses.", "inputSchema": {"type": "object"}, "annotations": READ},
        {"name": "plod", "description": "Takes its time and says so.", "inputSchema": KEYED, "annotations": READ},
        {"name": "environment", "description": "Its environment.", "inputSchema": {"type": "object"}, "annotations": READ},
        {"name": "announce", "description": "Says that its tools changed.", "inputSchema": {"type": "object"}},
        {"name": "nag", "description": "From now on, says so after each list.", "inputSchema": {"type": "object"}},
        # `die_reading` ends only the second process, because the first start only pins the definitions.
        {"name": "die_reading", "description": "Dies once.", "inputSchema": KEYED, "annotations": READ},
        {"name": "die_sending", "description": "Dies with every call.", "inputSchema": KEYED},
    ]


def say(message: dict) -> None:
    line = json.dumps({"jsonrpc": "2.0", **message})
    with WRITING:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def text(said: str, failed: bool = False) -> dict:
    return {"content": [{"type": "text", "text": said}], "isError": failed}


def plod(ms: int, token) -> None:
    """Performs ten steps, each with a progress notification."""
    for step in range(10):
        time.sleep(ms / 10_000)
        if token is not None:
            params = {"progressToken": token, "progress": step + 1, "total": 10}
            say({"method": "notifications/progress", "params": params})


def call(name: str, arguments: dict, meta: dict) -> dict:
    key, ms = arguments.get("key", ""), arguments.get("ms", 0)
    if name == "refuse":
        return text("no, with s3cret-value in it", failed=True)
    if name == "environment":
        return {**text("see the structured content"), "structuredContent": {**os.environ, "_meta": meta, "_arguments": arguments}}
    if name == "nag":
        (FOLDER / "nagging").touch()
    if name in ("announce", "nag"):
        say({"method": "notifications/tools/list_changed"})
        return text("said")
    note("effects", f"{name} {key}")
    if name == "die_sending" or (name == "die_reading" and count("starts") == 2):
        os._exit(9)
    if name == "plod":
        plod(ms, meta.get("progressToken"))
    else:
        time.sleep(ms / 1000)
    return text(f"{name} {key}")


def answer(request: dict) -> None:
    params = request.get("params") or {}
    match request["method"]:
        case "initialize":
            result = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "for-tests", "version": "1.2.3"},
            }
        case "tools/list":
            note("lists", "")
            say({"id": request["id"], "result": {"tools": tools()}})
            if (FOLDER / "nagging").exists():
                say({"method": "notifications/tools/list_changed"})
            return
        case "tools/call":
            result = call(params["name"], params.get("arguments") or {}, params.get("_meta") or {})
        case "ping":
            result = {}
        case _:
            return say({"id": request["id"], "error": {"code": -32601, "message": "no such method"}})
    say({"id": request["id"], "result": result})


def main() -> None:
    note("starts", str(os.getpid()))
    print("ready; the token is s3cret-value", file=sys.stderr, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "notifications/cancelled":
            note("cancelled", json.dumps(message["params"].get("reason")))
        elif "id" in message and "method" in message:
            threading.Thread(target=answer, args=(message,), daemon=True).start()


main()
