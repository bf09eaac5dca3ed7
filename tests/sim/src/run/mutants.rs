//! What mends in Rust are for: their texts are replaced in a copy of the sources, the simulator is built from it, and
//! plays until a game fails. Scripts have switches instead (`sabotage`).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Play;

/// A mend that is taken out.
#[derive(Debug)]
pub struct Mutant {
    /// What goes wrong without it.
    pub what: &'static str,
    /// Where it stands, from the repository's root; what stands there, once; and what is put there.
    pub changes: &'static [(&'static str, &'static str, &'static str)],
}

/// All of them. Mends of scripts are here where no guard of `guards` stands for them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "workers do not say again what they have begun when Redis has come back",
        changes: &[("worker/src/lease.rs", "        self.claims.assert_after(&beat).await?;\n", "")],
    },
    Mutant {
        what: "suspects run in place of a worker's other slices",
        changes: &[
            (
                "worker/src/held.rs",
                "if suspects { &self.suspects } else { &self.lane }",
                "if suspects { &self.lane } else { &self.lane }",
            ),
            (
                "worker/src/calls/turn.rs",
                "look = self.suspects.look() => look,",
                "look = async { OneSuspect::default().look().await } => look,",
            ),
        ],
    },
    Mutant {
        what: "a scheduler does not look at what it holds: late bytes of a connection that it gave up are read for it",
        changes: &[(
            "scheduler/src/intake.rs",
            "reader.is_fresh() || compared.elapsed() >= lease",
            "reader.is_fresh() || compared.elapsed() >= lease * 1_000_000",
        )],
    },
    Mutant {
        what: "a worker does not look at what it holds",
        changes: &[(
            "worker/src/lease.rs",
            "                self.return_strays(consumer, lease).await;\n",
            "                let _: (&ConsumerId, Duration) = (consumer, lease);\n",
        )],
    },
    Mutant {
        what: "slices that nobody has, and no queue, are not looked for",
        changes: &[("scheduler/src/sweep.rs", "        store.wake(&swept.adrift).await?;\n", "")],
    },
    Mutant {
        what: "turns without a timer are not looked for",
        changes: &[("scheduler/src/sweep.rs", "        store.wake(&lost).await?;\n", "")],
    },
    Mutant {
        what: "a scheduler does not make anew what is gone",
        changes: &[("scheduler/src/lease.rs", "let made = self.store.ensure_groups().await?;", "let made = 0;")],
    },
    Mutant {
        what: "a worker that has just started reads before its first heartbeat",
        changes: &[(
            "worker/src/lease.rs",
            "        self.beat(&consumer).await?;\n        Ok(consumer)",
            "        Ok(consumer)",
        )],
    },
    Mutant {
        what: "of several shards, one's tenants of run time take the place of the others'",
        changes: &[(
            "shared/engine/src/active_policy.rs",
            "for shard in self.shards.values() {",
            "for shard in self.shards.values().rev().take(1) {",
        )],
    },
    Mutant {
        what: "whoever looks for dead workers as rarely as the configuration may say never takes anything back",
        changes: &[("scheduler/src/lib.rs", "self.reap_every.min(lease / REAPS_PER_LEASE)", "self.reap_every")],
    },
    Mutant {
        what: "a timer whose turn's queue is gone stops all timers of its shard",
        changes: &[
            (
                "shared/store/src/verbs/timers/promote.lua",
                "redis.pcall('XPENDING', queue, GROUP, rec.fence",
                "call('XPENDING', queue, GROUP, rec.fence",
            ),
            ("shared/store/src/verbs/timers/promote.lua", "alone(promote, tt, rec)", "true, promote(tt, rec)"),
        ],
    },
    Mutant {
        what: "a scheduler that waits for memory is taken for dead",
        changes: &[(
            "scheduler/src/reading.rs",
            "        self.handle.advanced();\n        self.stop.pause(time).await;\n        self.handle.advanced();\n",
            "        self.stop.pause(time).await;\n",
        )],
    },
    Mutant {
        what: "one inbound entry that cannot be read stops reap for its shard",
        changes: &[
            (
                "shared/store/src/verbs/recovery/reap.lua",
                "if k == INBOUND.crashes then crashes = whole(v) or 0",
                "if k == INBOUND.crashes then crashes = num(v)",
            ),
            (
                "shared/store/src/verbs/recovery/reap.lua",
                "local done, why = alone(is_inbound(queue) and inbound or slice, queue, entry, ...)",
                "local done, why = true, (is_inbound(queue) and inbound or slice)(queue, entry, ...)",
            ),
            (
                "shared/store/src/verbs/recovery/reap.lua",
                "local done, why = alone(look_at, ARGV[q])",
                "local done, why = true, look_at(ARGV[q])",
            ),
        ],
    },
    Mutant {
        what: "a scheduler looks into one suspect at a time in each of its shards",
        changes: &[(
            "scheduler/src/reading.rs",
            "std::pin::pin!(self.suspects.look())",
            "std::pin::pin!(async { OneSuspect::default().look().await })",
        )],
    },
    Mutant {
        what: "what a worker has told a Redis that had lost it is not told to the next one",
        changes: &[(
            "worker/src/claims.rs",
            "if *asserted == Asserted::Marked {\n                memory.push(ended);",
            "if false {\n                memory.push(ended);",
        )],
    },
    Mutant {
        what: "a rule stops nothing",
        changes: &[(
            "shared/rules/src/lib.rs",
            "                (Err(unmet), _) => return Err(unmet),",
            "                (Err(_), _) => {}",
        )],
    },
    Mutant {
        what: "a rule in shadow stops calls",
        changes: &[(
            "shared/rules/src/lib.rs",
            "for rule in rules.iter().filter(|rule| rule.mode.is_enforced()) {",
            "for rule in rules {",
        )],
    },
    Mutant {
        what: "a worker does not say its claims again when Redis has come back",
        changes: &[(
            "worker/src/claims.rs",
            "for _ in 0..self.effects.assert(&self.store, beat.now_ms).await? {",
            "for _ in 0..0_usize {",
        )],
    },
    Mutant {
        what: "a worker does not say what its calls did to facts when Redis has come back",
        changes: &[("worker/src/claims.rs", "        self.facts.assert(&self.store, beat.now_ms).await?;\n", "")],
    },
    Mutant {
        what: "that a call did not take effect is believed at once",
        changes: &[(
            "worker/src/calls/reconcile.rs",
            "ReconcileVerdict::NotSoFar if now.is_grace_over => {",
            "ReconcileVerdict::NotSoFar if now.is_grace_over || true => {",
        )],
    },
    Mutant {
        what: "heads of chains are not kept outside",
        changes: &[("scheduler/src/sealing/anchors.rs", "if !lines.is_empty() {", "if lines.is_empty() {")],
    },
];

/// Takes each mend in Rust out of a copy of the sources, and plays until a game misses it.
#[derive(Debug, Clone, clap::Args)]
pub struct Mutants {
    /// Only this one, by its place in the table.
    #[arg(long)]
    only: Option<usize>,
    /// How long each may be played, s.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The first game's seed: calls are governed from 2000000 on.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Cargo's profile: `release` takes longer to build, and plays twice as much.
    #[arg(long, default_value = "dev")]
    profile: String,
}

impl Mutants {
    /// Plays without each mend.
    ///
    /// # Errors
    /// A mend that no game missed; the sources cannot be copied or built.
    pub fn run(&self) -> anyhow::Result<()> {
        let root = root();
        let copy = root.join("target/mutants/src");
        let mut out = std::io::stdout().lock();
        let mut missed = Vec::new();
        for (number, mutant) in MUTANTS.iter().enumerate() {
            if self.only.is_some_and(|only| only != number) {
                continue;
            }
            copy_to(&root, &copy)?;
            for (file, from, to) in mutant.changes {
                let path = copy.join(file);
                let text = std::fs::read_to_string(&path)?;
                anyhow::ensure!(text.matches(from).count() == 1, "{file}: {from:?}");
                std::fs::write(&path, text.replacen(from, to, 1))?;
            }
            if let Some(found) = self.play(&copy)? {
                writeln!(out, "{number} | {} | {found}", mutant.what)?;
            } else {
                writeln!(out, "{number} | {} | NOT FOUND", mutant.what)?;
                missed.push(number);
            }
        }
        anyhow::ensure!(missed.is_empty(), "not found: {missed:?}");
        Ok(())
    }

    /// Builds the simulator of the copy, and plays until a game fails that does not fail as it is. Gives what it says.
    fn play(&self, copy: &Path) -> anyhow::Result<Option<String>> {
        let target = copy.with_file_name("target");
        let mut cargo = Command::new("cargo");
        cargo.args([
            "build",
            "--quiet",
            "--workspace",
            "--bin",
            "tickfleet-sim",
            "--locked",
            "--profile",
            &self.profile,
        ]);
        let built = cargo.current_dir(copy).env("CARGO_TARGET_DIR", &target).status()?;
        anyhow::ensure!(built.success(), "the copy cannot be built");
        let folder = if self.profile == "dev" { "debug" } else { &self.profile };
        let mutant = target.join(folder).join("tickfleet-sim");
        let mut from = self.seed;
        while from < self.seed + SEEDS_MAX {
            let mut play = Command::new(&mutant);
            play.args(["run", "--as-it-is", "--seconds", &self.seconds.to_string(), "--seed", &from.to_string()]);
            let said = String::from_utf8_lossy(&play.stdin(Stdio::null()).output()?.stdout).into_owned();
            let Some(found) = said.lines().find(|line| line.starts_with("seed ")) else { return Ok(None) };
            let seed: u64 = found.trim_start_matches("seed ").split(':').next().unwrap_or_default().parse()?;
            let (whole, _) = Play::of(seed).apart()?;
            if whole.violations.is_empty() {
                return Ok(Some(format!("{} games | {found}", seed + 1 - self.seed)));
            }
            from = seed + 1;
        }
        Ok(None)
    }
}

/// Seeds after which a mend is given up.
const SEEDS_MAX: u64 = 10_000;

/// The repository that this was built from.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Copies what is tracked, and writes only what differs: what was built of the rest stays.
fn copy_to(root: &Path, copy: &Path) -> anyhow::Result<()> {
    let tracked = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output()?;
    anyhow::ensure!(tracked.status.success(), "what is tracked cannot be listed");
    for file in String::from_utf8(tracked.stdout)?.split('\0').filter(|file| !file.is_empty()) {
        let (from, to) = (root.join(file), copy.join(file));
        let Ok(bytes) = std::fs::read(&from) else { continue };
        if std::fs::read(&to).is_ok_and(|there| there == bytes) {
            continue;
        }
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&to, bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn each_mend_stands_where_the_table_says_once() {
        for mutant in MUTANTS {
            for (file, from, to) in mutant.changes {
                let text = std::fs::read_to_string(root().join(file)).unwrap();
                assert_eq!(text.matches(from).count(), 1, "{file}: {from:?}");
                assert_ne!(from, to);
            }
        }
    }
}
