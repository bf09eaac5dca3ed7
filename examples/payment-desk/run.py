"""An agent pays, under policies: session facts, rules, an approval, a duplicate check, a lookup and a loop breaker.

    python3 run.py [TICKFLEET]     the program; by default, tickfleet in PATH

Starts a bank and `tickfleet dev` on this machine. Exits with 0 only if every check holds. Standard library only.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import bank

TICKFLEET = shutil.which(sys.argv[1] if len(sys.argv) > 1 else "tickfleet")
if not TICKFLEET:
    sys.exit("Put tickfleet into PATH, or name the program as an argument.")
CONF = Path(__file__).parent / "conf"


class Step(NamedTuple):
    """One turn of an agent, with the expected outcomes of its results, and a text that they must contain."""

    agent: str
    story: str
    calls: list
    expected: list
    text: str = ""
    approved: int | None = None


QUOTE = ("get_quote", {"item": "paper"})
PARCEL = ("find_parcel", {"id": "p-1"})


def pay(to, amount):
    return ("pay", {"to": to, "amount": amount})


STEPS = [
    Step("tina", "reads a stranger's mail, and tries to pay what it asks for",
         [("read_mail", {}), pay("eve", 90)], ["ok", "denied"], "it is not allowed with the fact"),
    Step("atlas", "reviews the mail", [("review", {})], ["ok"]),
    Step("tina", "requests a price", [QUOTE], ["ok"]),
    Step("tina", "pays the price", [pay("kim", 80)], ["ok"]),
    Step("tina", "makes the same payment again: no second payment", [pay("kim", 80)], ["ok"], '"repeats": "desk-4/0"'),
    Step("tina", "pays 700, and ann approves 600", [pay("ben", 700)], ["ok"], '"by": ["ann"]', 600),
    Step("tina", "tries to pay 9000", [pay("ben", 9000)], ["denied"], "amount 9000 exceeds 5000"),
    Step("tina", "pays 300: the response is lost, and a lookup finds the payment",
         [pay("zoe", bank.LOST)], ["ok"], '"reconciled": true'),
    Step("tina", "looks for a parcel five times", [PARCEL] * 5, ["ok"] * 4 + ["denied"], "repeatedly"),
    Step("tina", "requests the price again: a cached result", [QUOTE], ["ok"], '"call": "desk-3/0"'),
]
failed = []


def check(holds, what):
    print(f"  {'ok' if holds else 'FAILED'}: {what}", flush=True)
    if not holds:
        failed.append(what)


def tickfleet(*arguments, stdin=None):
    """Runs a command, and returns its JSON output."""
    command = [TICKFLEET, *arguments, "--json", "--config", CONF]
    output = subprocess.run(command, input=stdin, capture_output=True, text=True)
    if output.returncode and not output.stdout:
        sys.exit(f"tickfleet {' '.join(arguments)}: {output.stderr}")
    return json.loads(output.stdout or "null")


def approve(amount):
    """Waits for a call that needs an approval, and approves it with another amount."""
    while not (waiting := tickfleet("approvals", "list")["items"]):
        time.sleep(0.1)
    tickfleet("approvals", "approve", "acme", waiting[0]["id"], "--by", "ann", "--set", f"/amount={amount}")


def play(number, step):
    calls = [{"name": name, "arguments": arguments} for name, arguments in step.calls]
    turn = {"tenant": "acme", "agent": step.agent, "session_id": "desk", "turn_id": f"desk-{number}", "calls": calls}
    if step.approved:
        threading.Thread(target=approve, args=[step.approved], daemon=True).start()
    results = tickfleet("submit", "-", "--wait", stdin=json.dumps(turn))["results"]
    outcomes = [result["outcome"] for result in results]
    holds = outcomes == step.expected and step.text in json.dumps(results)
    check(holds, f"{step.agent} {step.story} ({', '.join(outcomes)})")


def check_records(folder):
    """Exports the sealed audit log, proves the guarantees from it, and evaluates it against a stricter policy."""
    export, stricter = folder / "desk.jsonl", folder / "stricter"
    deadline = time.monotonic() + 60
    proved = None
    while not proved or proved["verdict"]["unsealed"] and time.monotonic() < deadline:
        # Otherwise, the export would continue the file of the previous attempt.
        export.unlink(missing_ok=True)
        tickfleet("audit", "export", "--to", export)
        proved = tickfleet("prove", export)
    verdict = proved["verdict"]
    # Each call has one entry, and so does the approval.
    sealed = verdict["intact"] and verdict["entries"] == verdict["sealed"] == 16
    check(sealed, f"audit export: {verdict['entries']} entries, sealed and unchanged")
    check(proved["proof"]["holds"], "prove: no cap was exceeded, no call has two results, no effect ran twice")
    shadowed = export.read_text().count("permissions.pay.rules.small")
    check(shadowed == 2, f"calls that a rule in shadow mode would have stopped: {shadowed}")

    shutil.copytree(CONF, stricter)
    permissions = stricter / "permissions.yaml"
    permissions.write_text(permissions.read_text().replace("args.amount <= 500\n", "args.amount <= 250\n"))
    same, other = (tickfleet("whatif", "--policy", policy, "--audit", export)["summary"] for policy in (CONF, stricter))
    check(same["differences"] == 0, "whatif: the same policy changes no decision")
    expected = other["differences"] == 1 and list(other["by_rule"]) == ["permissions.pay.rules.large"]
    check(expected, "whatif: approvals above 250 change one decision, by the rule large")


def start(folder):
    """Starts the fleet and its bank on this machine. Sets REDIS_URL, so that other commands find the fleet."""
    key = folder / "seal.key"
    subprocess.run([TICKFLEET, "audit", "key", "--new", key], check=True, capture_output=True)
    os.environ.update(DESK_URL=bank.start(), DESK_SEAL_KEY=key.read_text().strip(), TICKFLEET_LOG_LEVEL="error")
    os.environ.pop("REDIS_URL", None)
    command = [TICKFLEET, "dev", "--dir", folder, "--console", "0", "--config", CONF]
    fleet = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in fleet.stdout:
        if "export REDIS_URL=" in line:
            os.environ["REDIS_URL"] = line.split("=", 1)[1].strip().strip("'")
        # `dev` prints this line last when it starts.
        if line.startswith("Ctrl-C"):
            return fleet
    sys.exit("tickfleet dev ended instead of running")


with tempfile.TemporaryDirectory(prefix="desk-") as name:
    folder = Path(name)
    fleet = start(folder)
    try:
        for number, step in enumerate(STEPS, 1):
            play(number, step)
        paid = [(payment["to"], payment["amount"]) for _, payment in bank.Bank.payments]
        check(paid == [("kim", 80), ("ben", 600), ("zoe", 300)], f"payments in the bank's ledger: {paid}")
        check(len(bank.Bank.quotes) == 1, f"price requests that reached the bank: {len(bank.Bank.quotes)}")
        check_records(folder)
    finally:
        fleet.terminate()
        fleet.wait()
sys.exit(f"Failed checks: {len(failed)}" if failed else None)
