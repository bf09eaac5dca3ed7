#!/usr/bin/env python3
"""A producer in plain Python: submits one turn or one task, waits for its reply and prints it as JSON.

    producer.py --tenant acme --agent kelly --calls '[{"name": "add", "arguments": {"a": 1, "b": 2}}]'
    producer.py --tenant acme --agent kelly --delegate sunday 'Draft a summary of this week'

It needs no package: the part of the Redis protocol that a producer speaks fits into one small class. The messages are
specified in docs/protocol.md. Exits with 0 when the reply came, with 1 and a message otherwise.
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

# How much longer than the server may block we wait for it, seconds.
GRACE = 5.0


class RedisError(Exception):
    """The server answered with an error."""


class Redis:
    """One connection. `call` sends a command and returns its answer: None, int, bytes or a list of such."""

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
        """Sends a command that may block the server for `block` seconds."""
        encoded = [str(word).encode("utf-8") for word in words]
        self.socket.settimeout(block + GRACE)
        message = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)
        self.socket.sendall(b"*%d\r\n%b" % (len(encoded), message))
        return self.answer()

    def answer(self):
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
            return [self.answer() for _ in range(length)]
        content = self.reader.read(length + 2)
        if len(content) != length + 2:
            raise ConnectionError("Redis closed the connection")
        return content[:-2]


def fields_of(entry):
    """`[id, [name, value, …]]`, as Redis gives a stream's entry, as (id, {name: value}), all texts."""
    entry_id, flat = entry
    texts = [item.decode("utf-8") for item in flat]
    return entry_id.decode("ascii"), dict(zip(texts[::2], texts[1::2]))


def submit(redis, options):
    """Writes the message. Returns the inbox, how far it had been read, and what the reply will be known by."""
    shard = zlib.crc32(options.tenant.encode("utf-8")) % options.shards
    prefix = f"{{{options.namespace}:{shard}}}:"
    inbox = f"{prefix}replies:{options.tenant}:{options.reply_to}"
    message = {"tenant": options.tenant, "reply_to": options.reply_to}
    # An id of our own makes it safe to send the same message again after a lost connection: it runs once.
    own_id = options.id or uuid.uuid4().hex
    if options.delegate:
        target, description = options.delegate
        message.update(task_id=own_id, target_agent=target, task_description=description, delegator=options.agent)
        stream, field, key = "tasks", "task", "task_id"
    else:
        message.update(turn_id=own_id, agent=options.agent, calls=options.calls)
        stream, field, key = "turns", "turn", "turn_id"
    # Where the inbox ends is looked up before the message is sent, so that no reply can slip in between unseen.
    newest = redis.call("XREVRANGE", inbox, "+", "-", "COUNT", 1)
    seen = fields_of(newest[0])[0] if newest else "0-0"
    redis.call("XADD", prefix + stream, "*", field, json.dumps(message))
    return inbox, seen, (key, own_id)


def wait_for_reply(redis, inbox, seen, known_by, timeout):
    """The reply, or None after `timeout` seconds. Others may share the inbox: their replies are passed over."""
    key, own_id = known_by
    end = time.monotonic() + timeout
    while (left := end - time.monotonic()) > 0:
        # BLOCK 0 would wait for ever.
        block = min(max(left, 0.001), 5.0)
        found = redis.call("XREAD", "COUNT", 100, "BLOCK", int(block * 1000) or 1, "STREAMS", inbox, seen, block=block)
        if not found:
            # A Redis that lost its last writes may number what comes below what was read: look at all that is there.
            seen = "0-0"
        for entry in found[0][1] if found else []:
            seen, fields = fields_of(entry)
            # The field `seq` counts an inbox's replies: a reader of them all sees by a gap that some were trimmed.
            reply = json.loads(fields["reply"])
            if reply.get(key) == own_id:
                # Reading removes nothing: what nobody removes counts as unread. Of a shared inbox, only what is ours.
                redis.call("XDEL", inbox, seen)
                return reply
    return None


def parse_options():
    parser = argparse.ArgumentParser(description="Submits one turn or one task and prints its reply.")
    url_help = "redis://[user:password@]host:port/db or unix:///path"
    parser.add_argument("--url", default="redis://127.0.0.1:6379", help=url_help)
    parser.add_argument("--namespace", default="tickfleet", help="the fleet's prefix of keys")
    parser.add_argument("--shards", type=int, default=1, help="how many shards the fleet has")
    parser.add_argument("--tenant", required=True)
    parser.add_argument("--agent", required=True, help="who makes the calls, or delegates")
    parser.add_argument("--reply-to", default="producer-py", help="the inbox that the reply goes to")
    parser.add_argument("--id", help="turn or task id; the same id never runs twice")
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
