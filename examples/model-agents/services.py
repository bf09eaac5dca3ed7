"""A service that publishes posts, and a scripted model with OpenAI's API, on a free port of this machine.

Standard library only.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

posts = []
# (agent, next step) for each response of the scripted model.
responses = []
# If this function is set, the response to the next post is lost.
on_post = None

# Precedes the text of the post in kelly's task.
PUBLISH = "Publish this post, word for word: "


def script(agent, task, results):
    """Returns the model's next step: a tool with its arguments, or an answer."""
    if agent == "atlas":
        post = task.split(": ", 1)[1]
        delegated = [
            {"target_agent": "archy", "task_description": "What do we tell people about shared research boards?"},
            {"target_agent": "kelly", "task_description": PUBLISH + post},
        ]
        if len(results) < len(delegated):
            return "delegate_task", {**delegated[len(results)], "wait": True}
        return "Archy has looked it up, and Kelly has published it."
    if agent == "archy":
        if not results:
            return "search_atlasux_knowledge", {"query": "what we tell people about boards"}
        found = "one place to argue in" in results[-1]
        return "A board is one place to argue in (boards.txt)." if found else "The knowledge base does not say."
    if not results:
        return "publish_post", {"text": task.splitlines()[0].removeprefix(PUBLISH)}
    published = "post-" in results[-1]
    return "It is published." if published else "It may have been published, so I do not publish it again."


def complete(request):
    """Returns a response of OpenAI's Chat Completions."""
    texts = {"system": [], "user": [], "assistant": [], "tool": []}
    for message in request["messages"]:
        texts[message["role"]].append(message["content"])
    agent = next(name for name in ("atlas", "archy", "kelly") if f"You are {name.title()}" in texts["system"][0])
    step = script(agent, texts["user"][0], texts["tool"])
    message, reason = {"role": "assistant", "content": step}, "stop"
    if isinstance(step, tuple):
        function = {"name": step[0], "arguments": json.dumps(step[1])}
        call = {"id": "call", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        reason = "tool_calls"
        step = f"{step[0]} {next(iter(step[1].values()))}"
    responses.append((agent, step))
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return {"choices": [{"message": message, "finish_reason": reason}], "usage": usage}


class Services(BaseHTTPRequestHandler):
    def do_POST(self):
        global on_post
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/posts":
            posts.append(body["text"])
            if on_post:
                crash, on_post = on_post, None
                return crash()
            answer = {"id": f"post-{len(posts)}"}
        else:
            answer = complete(body)
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def start():
    """Starts the services, and returns their URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Services)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
