#!/usr/bin/env python3
"""Measures Redis' CPU time per turn at fixed rates, with three schedulers and ten workers.

    python3 docs/operate/scaling/redis_cost.py target/release/tickfleet 0,10,50,200,800

Requires redis-server in the PATH. Prints used_cpu_user + used_cpu_sys per second and per turn, and the most expensive
commands.
"""

import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

INBOX = "{tickfleet:0}:replies:demo:box"
SCHEDULERS, WORKERS, AGENTS, SECONDS, SHOWN = 3, 10, 50, 10, 12


class Redis:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.replies = self.socket.makefile("rb")

    def ask(self, *words):
        return self.all([words])[0]

    def all(self, commands):
        self.socket.sendall(b"".join(map(self.encoded, commands)))
        return [self.reply() for _ in commands]

    @staticmethod
    def encoded(words):
        words = [str(word).encode() for word in words]
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)

    def reply(self):
        line = self.replies.readline()[:-2].decode()
        kind, rest = line[0], line[1:]
        if kind == "-":
            raise RuntimeError(rest)
        if kind == "$":
            return None if rest == "-1" else self.replies.read(int(rest) + 2)[:-2].decode("latin1")
        return [self.reply() for _ in range(int(rest))] if kind == "*" else rest


def cpu_us(redis):
    fields = dict(line.split(":") for line in redis.ask("INFO", "cpu").splitlines() if ":" in line)
    return (float(fields["used_cpu_user"]) + float(fields["used_cpu_sys"])) * 1e6


def send(redis, rate, seconds, sent_before):
    began, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < seconds:
        turns = []
        for number in range(sent_before + sent, sent_before + int(elapsed * rate)):
            turn = {"turn_id": f"t{number}", "tenant": "demo", "agent": f"a{number % AGENTS}", "reply_to": "box",
                    "calls": [{"name": "echo", "arguments": {"text": "hi"}}]}
            turns.append(("XADD", "{tickfleet:0}:turns", "*", "turn", json.dumps(turn)))
        redis.all(turns)
        sent += len(turns)
        time.sleep(0.004)
    return sent


def main():
    binary, rates = sys.argv[1], [int(rate) for rate in sys.argv[2].split(",")]
    folder = pathlib.Path(tempfile.mkdtemp())
    agents = ", ".join(f"a{number}: {{}}" for number in range(AGENTS))
    (folder / "agents.yaml").write_text(f"agents: {{{agents}}}\n")
    (folder / "tenants.yaml").write_text("tenants: {demo: {}}\n")
    (folder / "permissions.yaml").write_text("permissions: {echo: {everyone: true}}\n")
    (folder / "tickfleet.yaml").write_text(
        "http: {address: '127.0.0.1:0'}\ncaps: {max_calls_per_tick: 1000, max_actions_per_day: 1000000}\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = ["redis-server", "--port", str(port), "--save", "", "--dir", str(folder)]
    processes = [subprocess.Popen(server, **quiet)]
    try:
        time.sleep(1)
        for role in ["scheduler"] * SCHEDULERS + ["worker"] * WORKERS:
            command = [binary, role, "--config", str(folder), "--redis-url", f"redis://127.0.0.1:{port}"]
            processes.append(subprocess.Popen(command, **quiet))
        redis = Redis(port)
        while int(redis.ask("ZCARD", "{tickfleet:0}:consumers")) < SCHEDULERS + WORKERS:
            time.sleep(0.5)
        time.sleep(10)
        total = 0
        for rate in rates:
            total += send(redis, rate, 3, total)
            redis.ask("CONFIG", "RESETSTAT")
            answered_before = int(redis.ask("XLEN", INBOX))
            before, began = cpu_us(redis), time.monotonic()
            total += send(redis, rate, SECONDS, total)
            used, took = cpu_us(redis) - before, time.monotonic() - began
            # The cost is computed per reply, because a slow fleet replies to fewer turns than were sent.
            answered = int(redis.ask("XLEN", INBOX)) - answered_before
            of_turn = f"{used / answered:.0f} us a turn, {answered / took:.0f} answered a second" if answered else "no turns"
            print(f"{rate} turns a second: {used / took / 1000:.1f} ms a second, {of_turn}", flush=True)
            lines = [line[8:].split(":") for line in redis.ask("INFO", "commandstats").splitlines() if ":" in line]
            stats = [(name, dict(pair.split("=") for pair in rest.split(","))) for name, rest in lines]
            stats.sort(key=lambda stat: -int(stat[1]["usec"]))
            for name, of in stats[:SHOWN]:
                print(f"  {name:16} {int(of['calls']) / took:8.0f} a second {int(of['usec']) / took / 1000:8.1f} ms a second")
            redis.ask("XTRIM", INBOX, "MAXLEN", 0)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(60)


main()
