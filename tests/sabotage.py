#!/usr/bin/env python3
"""Switches off guards of the Rust code, one at a time, and sees that tests notice.

Guards of scripts are switched off by tests themselves (shared/testkit/src/guards.rs). Those of the program are compiled in:
this changes the source, runs the tests that must fail, and puts the source back. Each takes a build and some seconds.

    python3 tests/sabotage.py              all of them
    python3 tests/sabotage.py follow-ask   one
    python3 tests/sabotage.py --check      only that each guard is still there; tests do that
"""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Name: what is switched off, the file, the guard, what is there instead, the tests that must fail, and the word by which
# they say why.
GUARDS = {
    "follow-ask": (
        "a script is run where ASK sends it (rule 24)",
        "shared/store/src/connection/mod.rs",
        "        self.judge(script.verb, live, answer).await\n    }\n\n    /// Names the verb",
        """\
        if let Err(error) = &answer
            && error.code() == Some("ASK")
            && let Some((place, _)) = error.redirect_node()
        {
            let url = format!("redis://{place}");
            let next = redis::Client::open(url).expect("a url").get_multiplexed_async_connection().await;
            let mut next = next.expect("the next holder");
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(&script.source).to_owned();
            let () = load.query_async(&mut next).await.expect("it takes scripts");
            let mut pipe = redis::pipe();
            pipe.cmd("ASKING").ignore().add_command(command);
            answer = pipe.query_async::<(Value,)>(&mut next).await.map(|(value,)| value);
        }
        self.judge(script.verb, live, answer).await
    }

    /// Names the verb""",
        "test(cluster::moving)",
        "FAIL",
    ),
    "run-unconfirmed": (
        "a call runs although nobody has confirmed its begin (durable)",
        "worker/src/calls/begin.rs",
        "        let message = match confirmed {\n            Confirmed::Yes => return Ok(()),",
        "        let message = match confirmed {\n            Confirmed::Yes | Confirmed::NotInTime => return Ok(()),\n"
        "            #[allow(unreachable_patterns)]",
        "test(faults::durable)",
        "FAIL",
    ),
    "first-sentinel": (
        "the sentinel that stands first is believed, however old its configuration is",
        "shared/store/src/connection/sentinel.rs",
        "    found.sort_by_key(|(epoch, count, _)| std::cmp::Reverse((*epoch, *count)));\n",
        "",
        "test(sentinel::parted)",
        "FAIL",
    ),
    "never-rest": (
        "a tool that fails is called on and on (circuit breaker)",
        "shared/model/src/retry/breaker.rs",
        "self.is_worn |= leave.is_trial || self.failures >= endurance.failures_max;",
        "self.is_worn |= leave.is_trial;\n            let _ = endurance.failures_max;",
        "test(calls::breakers)",
        "FAIL",
    ),
    "all-try": (
        "after a rest every call tries the tool, not one",
        "shared/model/src/retry/breaker.rs",
        "        if self.trying {\n            return Err(Rests::UntilTried);\n        }\n",
        "",
        "test(breaker)",
        "FAIL",
    ),
    "one-for-all": (
        "a tool that one tenant's calls fail at rests for all",
        "worker/src/calls/waiting/breakers.rs",
        "if all.is_trial || of_own.is_none_or(|(_, failures)| failures <= endurance.failures_max / 2) {",
        "if all.is_trial || of_own.is_none_or(|_| true) {",
        "test(breaker)",
        "FAIL",
    ),
    "rest-what-is-known": (
        "a call whose answer is kept waits while its tool rests",
        "worker/src/calls/waiting/leave.rs",
        "let has_answer = self.has_kept_answer(trying, tool, arguments).await;",
        "let has_answer = self.has_kept_answer(trying, tool, arguments).await && false;",
        "test(calls::breakers)",
        "FAIL",
    ),
}

# Where other tests than those across crates have to notice: what is built of them.
OF_ONE_CRATE = {"all-try": ["-p", "tickfleet-model", "--lib"], "one-for-all": ["-p", "tickfleet-worker", "--lib"]}


def there(name: str) -> bool:
    _, path, guard, *_ = GUARDS[name]
    return (ROOT / path).read_text().count(guard) == 1


def notices(name: str) -> bool:
    what, path, guard, instead, tests, word = GUARDS[name]
    source = ROOT / path
    before = source.read_text()
    print(f"=== {name}: {what}", flush=True)
    try:
        source.write_text(before.replace(guard, instead))
        built = OF_ONE_CRATE.get(name, ["--workspace", "--test", "all"])
        command = ["cargo", "nextest", "run", *built, "--no-fail-fast", "-E", tests]
        ran = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    finally:
        source.write_text(before)
    failed = sorted({line.split()[-1] for line in ran.stdout.splitlines() if line.split()[:1] == [word]})
    # 100 is how nextest says that tests have failed; anything else is no answer.
    if ran.returncode != 100 or not failed:
        print(ran.stdout[-4000:])
        print(f"{name} was not noticed (exit {ran.returncode})")
        return False
    print("\n".join(f"noticed by {test}" for test in failed))
    # What they say: the line after the place of each panic.
    lines = [line.strip() for line in ran.stdout.splitlines()]
    said = {after[:200] for line, after in zip(lines, lines[1:], strict=False) if " panicked at " in line}
    print("\n".join(f"    {line}" for line in sorted(said)))
    return True


def main() -> int:
    names = [argument for argument in sys.argv[1:] if not argument.startswith("-")] or list(GUARDS)
    missing = [name for name in names if name not in GUARDS or not there(name)]
    if missing:
        print(f"not there, or not once: {', '.join(missing)}; tests/sabotage.py has to be mended")
        return 1
    if "--check" in sys.argv:
        return 0
    return 0 if all([notices(name) for name in names]) else 1


if __name__ == "__main__":
    sys.exit(main())
