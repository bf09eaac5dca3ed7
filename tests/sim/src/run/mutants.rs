//! What mends in Rust are for: their texts are replaced in a copy of the sources, the simulator is built from it, and
//! plays until a game fails. Scripts have switches instead (`sabotage`).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A mend that is taken out.
#[derive(Debug)]
pub struct Mutant {
    /// What goes wrong without it.
    pub what: &'static str,
    /// The file, from the repository's root.
    pub file: &'static str,
    /// What stands there, once.
    pub from: &'static str,
    /// What is put there.
    pub to: &'static str,
}

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "workers do not say again what they have begun when Redis has come back",
        file: "worker/src/lease.rs",
        from: "        self.claims.assert_after(&beat).await?;\n",
        to: "",
    },
    Mutant {
        what: "suspects run in place of a worker's other slices",
        file: "worker/src/held.rs",
        from: "if suspects { &self.suspects } else { &self.lane }",
        to: "if suspects { &self.lane } else { &self.lane }",
    },
    Mutant {
        what: "a scheduler does not look at what it holds: late bytes of a connection that it gave up are read for it",
        file: "scheduler/src/intake.rs",
        from: "reader.is_fresh() || compared.elapsed() >= lease",
        to: "reader.is_fresh() || compared.elapsed() >= lease * 1_000_000",
    },
    Mutant {
        what: "a worker does not look at what it holds",
        file: "worker/src/lease.rs",
        from: "                self.return_strays(consumer, lease).await;\n",
        to: "",
    },
    Mutant {
        what: "slices that nobody has, and no queue, are not looked for",
        file: "scheduler/src/sweep.rs",
        from: "        store.wake(&swept.adrift).await?;\n",
        to: "",
    },
    Mutant {
        what: "turns without a timer are not looked for",
        file: "scheduler/src/sweep.rs",
        from: "        store.wake(&lost).await?;\n",
        to: "",
    },
    Mutant {
        what: "a scheduler does not make anew what is gone",
        file: "scheduler/src/lease.rs",
        from: "let made = self.store.ensure_groups().await?;",
        to: "let made = 0;",
    },
    Mutant {
        what: "a worker that has just started reads before its first heartbeat",
        file: "worker/src/lease.rs",
        from: "        self.beat(&consumer).await?;\n        Ok(consumer)",
        to: "        Ok(consumer)",
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
            let path = copy.join(mutant.file);
            let text = std::fs::read_to_string(&path)?;
            anyhow::ensure!(text.matches(mutant.from).count() == 1, "{}: {:?}", mutant.file, mutant.from);
            std::fs::write(&path, text.replacen(mutant.from, mutant.to, 1))?;
            let said = self.play(&copy)?;
            let last = said.lines().find(|line| line.starts_with("seed ")).unwrap_or("NOT FOUND");
            let games = said.lines().find(|line| line.contains(" games, ")).unwrap_or_default();
            writeln!(out, "{number} | {} | {games} | {last}", mutant.what)?;
            if last == "NOT FOUND" {
                missed.push(number);
            }
        }
        anyhow::ensure!(missed.is_empty(), "not found: {missed:?}");
        Ok(())
    }

    /// Builds the simulator of the copy, and plays. Gives what it says.
    fn play(&self, copy: &Path) -> anyhow::Result<String> {
        let target = copy.with_file_name("target");
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--workspace", "--bin", "tickfleet-sim", "--locked"]).current_dir(copy);
        let built = cargo.env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "-Awarnings").status()?;
        anyhow::ensure!(built.success(), "the copy cannot be built");
        let mut play = Command::new(target.join("debug/tickfleet-sim"));
        let output =
            play.args(["run", "--as-it-is", "--seconds", &self.seconds.to_string()]).stdin(Stdio::null()).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

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
            let text = std::fs::read_to_string(root().join(mutant.file)).unwrap();
            assert_eq!(text.matches(mutant.from).count(), 1, "{}: {:?}", mutant.file, mutant.from);
            assert_ne!(mutant.from, mutant.to);
        }
    }
}
