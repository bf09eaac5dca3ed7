#!/usr/bin/env python3
"""A producer in plain Python: submits a turn or a task, waits for the reply and prints it as JSON.

    producer.py --tenant acme --agent support --calls '[{"name": "look_up_order", "arguments": {"order": "A-1001"}}]'
    producer.py --tenant acme --agent support --delegate reports 'Summarize the refunds of this week'

Standard library only: one small class implements the necessary part of the Redis protocol. docs/reference/protocol.md
specifies the messages. Exits with 0 after a reply, otherwise with 1 and an error message.
"""

import argparse
import json
import socket
import ssl
import sys
import time
import urllib.parse
import uuid
import zlib

# Seconds to wait beyond the time that the server can block.
GRACE = 5.0


class RedisError(Exception):
    """Error reply of Redis."""


class Redis:
    """A connection to Redis. `call` sends a command and returns its reply: None, int, bytes, or a list of these."""

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme in ("unix", "redis+unix"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(GRACE)
            self.socket.connect(parts.path)
        elif parts.scheme in ("redis", "rediss"):
            host = parts.hostname or "127.0.0.1"
            self.socket = socket.create_connection((host, parts.port or 6379), GRACE)
            if parts.scheme == "rediss":
                self.socket = ssl.create_default_context().wrap_socket(self.socket, server_hostname=host)
        else:
            raise ValueError(f"the URL must start with redis://, rediss:// or unix://, not {parts.scheme!r}")
        self.reader = self.socket.makefile("rb")
        if parts.password:
            names = [parts.username] if parts.username else []
            self.call("AUTH", *map(urllib.parse.unquote, [*names, parts.password]))
        if parts.scheme in ("redis", "rediss") and parts.path.strip("/"):
            self.call("SELECT", parts.path.strip("/"))

    def call(self, *words, block=0.0):
        """Sends a command that can block for `block` seconds."""
        encoded = [str(word).encode("utf-8") for word in words]
        self.socket.settimeout(block + GRACE)
        message = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)
        self.socket.sendall(b"*%d\r\n%b" % (len(encoded), message))
        return self.reply()

    def reply(self):
        line = self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("Redis closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RedisError(rest.decode("utf-8", "replace"))
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        length = int(rest)
        if length < 0:
            return None
        if kind == b"*":
            return [self.reply() for _ in range(length)]
        content = self.reader.read(length + 2)
        if len(content) != length + 2:
            raise ConnectionError("Redis closed the connection")
        return content[:-2]


def fields_of(entry):
    """Converts a stream entry, `[id, [name, value, …]]`, to (id, {name: value})."""
    entry_id, flat = entry
    texts = [item.decode("utf-8") for item in flat]
    return entry_id.decode("ascii"), dict(zip(texts[::2], texts[1::2]))


# ANCHOR: submit
def submit(redis, options):
    """Appends the message. Returns the inbox, its last entry before the message, and the id field with its value."""
    shard = zlib.crc32(options.tenant.encode("utf-8")) % options.shards
    prefix = f"{{{options.namespace}:{shard}}}:"
    inbox = f"{prefix}replies:{options.tenant}:{options.reply_to}"
    message = {"tenant": options.tenant, "reply_to": options.reply_to}
    # With an id, the message can be sent again after a lost connection, but is carried out only once.
    own_id = options.id or uuid.uuid4().hex
    if options.delegate:
        target, description = options.delegate
        message.update(task_id=own_id, target_agent=target, task_description=description, delegator=options.agent)
        stream, field, key = "tasks", "task", "task_id"
    else:
        message.update(turn_id=own_id, agent=options.agent, calls=options.calls)
        stream, field, key = "turns", "turn", "turn_id"
    # Read the end of the inbox first, so that the loop receives every later reply.
    newest = redis.call("XREVRANGE", inbox, "+", "-", "COUNT", 1)
    seen = fields_of(newest[0])[0] if newest else "0-0"
    redis.call("XADD", prefix + stream, "*", field, json.dumps(message))
    return inbox, seen, (key, own_id)
    # ANCHOR_END: submit


# ANCHOR: wait
def wait_for_reply(redis, inbox, seen, known_by, timeout):
    """Returns the reply, or None after `timeout` seconds. Skips replies to others that share the inbox."""
    key, own_id = known_by
    end = time.monotonic() + timeout
    while (left := end - time.monotonic()) > 0:
        # BLOCK 0 waits without a timeout.
        block = min(max(left, 0.001), 5.0)
        found = redis.call("XREAD", "COUNT", 100, "BLOCK", int(block * 1000) or 1, "STREAMS", inbox, seen, block=block)
        if not found:
            # If Redis has lost its last writes, new entries can have lower ids than the last one read.
            seen = "0-0"
        for entry in found[0][1] if found else []:
            seen, fields = fields_of(entry)
            reply = json.loads(fields["reply"])
            if reply.get(key) == own_id:
                # A reply counts as unread until it is removed.
                redis.call("XDEL", inbox, seen)
                return reply
    return None
    # ANCHOR_END: wait


def parse_options():
    parser = argparse.ArgumentParser(description="Submits one turn or one task and prints its reply.")
    url_help = "redis://[user:password@]host:port/db or unix:///path"
    parser.add_argument("--url", default="redis://127.0.0.1:6379", help=url_help)
    parser.add_argument("--namespace", default="tickfleet", help="namespace of the fleet")
    parser.add_argument("--shards", type=int, default=1, help="number of shards of the fleet")
    parser.add_argument("--tenant", required=True)
    parser.add_argument("--agent", required=True, help="agent that makes the calls, or delegates")
    parser.add_argument("--reply-to", default="producer-py", help="inbox for the reply")
    parser.add_argument("--id", help="id of the turn or task, to send it again safely")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds to wait for the reply")
    work = parser.add_mutually_exclusive_group(required=True)
    work.add_argument("--calls", type=json.loads, metavar="JSON", help='[{"id"?, "name", "arguments": {…}}, …]')
    work.add_argument("--delegate", nargs=2, metavar=("TARGET", "DESCRIPTION"))
    return parser.parse_args()


def main():
    options = parse_options()
    try:
        redis = Redis(options.url)
        reply = wait_for_reply(redis, *submit(redis, options), options.timeout)
    except (OSError, RedisError, ValueError) as error:
        sys.exit(f"producer.py: {error}")
    if reply is None:
        sys.exit(f"producer.py: no reply within {options.timeout:g} s")
    print(json.dumps(reply, ensure_ascii=False))


if __name__ == "__main__":
    main()
