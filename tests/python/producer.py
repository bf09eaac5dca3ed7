#!/usr/bin/env python3
"""Submits one turn or one task and waits for its reply: what docs/protocol.md says, in Python's standard library alone.

    producer.py redis://127.0.0.1:6379 turn '{"tenant": "acme", "agent": "kelly", "reply_to": "box", "calls": [...]}'
    producer.py unix:///run/redis.sock task '{"tenant": "acme", "target_agent": "sam", "reply_to": "box", ...}'

With a client library (`pip install redis`) the whole of `Redis` below is one import.
"""
import json
import os
import socket
import sys
import urllib.parse
import zlib


class Redis:
    """As much of a Redis client as a producer needs."""

    def __init__(self, url):
        at = urllib.parse.urlsplit(url)
        if at.scheme in ("unix", "redis+unix"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(at.path)
        else:
            self.socket = socket.create_connection((at.hostname, at.port or 6379))
        self.file = self.socket.makefile("rb")

    def __call__(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        parts = [b"*%d\r\n" % len(words)] + [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self.socket.sendall(b"".join(parts))
        return self.answer()

    def answer(self):
        kind, rest = self.file.read(1), self.file.readline()[:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        size = int(rest)
        if size < 0:
            return None
        if kind == b"$":
            return self.file.read(size + 2)[:-2]
        return [self.answer() for _ in range(size)]


def send(url, kind, message, shards=1, wait_s=20):
    """Appends `message` to the stream of `kind` (`turn` or `task`) and answers its reply."""
    redis = Redis(url)
    shard = "{tickfleet:%d}:" % (zlib.crc32(message["tenant"].encode()) % shards)
    inbox = shard + "replies:%s:%s" % (message["tenant"], message["reply_to"])
    # An id of our own: should the connection break, the same message may be sent again.
    own_id = message.setdefault(kind + "_id", "py-" + os.urandom(8).hex())
    # Remember where the inbox ends *before* sending, so that a quick reply is not missed.
    newest = redis("XREVRANGE", inbox, "+", "-", "COUNT", 1)
    last = newest[0][0] if newest else b"0-0"
    redis("XADD", shard + kind + "s", "*", kind, json.dumps(message))
    while True:
        found = redis("XREAD", "COUNT", 100, "BLOCK", wait_s * 1000, "STREAMS", inbox, last)
        if not found:
            raise TimeoutError("no reply within %d s" % wait_s)
        for last, fields in found[0][1]:
            reply = json.loads(fields[fields.index(b"reply") + 1])
            if reply.get(kind + "_id") == own_id:
                return reply


if __name__ == "__main__":
    print(json.dumps(send(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])), indent=2))
