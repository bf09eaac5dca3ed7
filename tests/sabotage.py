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
}


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
        command = ["cargo", "nextest", "run", "--workspace", "--test", "all", "--no-fail-fast", "-E", tests]
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
