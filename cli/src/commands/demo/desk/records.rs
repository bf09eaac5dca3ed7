//! Reads the records at the end of the act with the program's own commands: an export, what the export proves, and what
//! another policy would have decided.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::Serialize;
use serde_json::Value;
use tickfleet_config::Environment;
use tickfleet_proof::lines::Line;
use tickfleet_protocol::AuditEntry;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use super::story::{OTHERWISE, SHADOWED};
use crate::failure::Failure;

/// Time limit for sealing the whole log.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A text in the policy, and its replacement in the stricter policy.
const STRICTER: (&str, &str) = ("args.amount <= 500\n", "args.amount <= 250\n");
/// The name of the rule in shadow mode.
const IN_SHADOW: &str = "permissions.pay.rules.small";

#[derive(Debug, Serialize)]
pub(super) struct Records {
    pub(super) entries: u64,
    pub(super) sealed: u64,
    /// True if no sealed entry was changed.
    pub(super) intact: bool,
    /// True if no cap was exceeded, no call has two results and no effect ran twice.
    pub(super) holds: bool,
    /// Number of calls that a rule in shadow mode would have stopped.
    pub(super) shadowed: usize,
    /// Number of calls that the unchanged policy would now decide differently.
    pub(super) by_the_same: u64,
    /// Number of calls that the stricter policy would decide differently.
    pub(super) by_a_stricter: u64,
    /// The rules of the stricter policy that cause these differences.
    pub(super) by: Vec<String>,
}

pub(super) struct Commands<'a> {
    pub(super) environment: &'a Environment,
    pub(super) conf: &'a Path,
}

impl Records {
    /// # Errors
    /// A command cannot be started, or its output cannot be parsed.
    pub(super) async fn read(desk: &Commands<'_>) -> Result<Self, Failure> {
        let export = desk.conf.join("desk.jsonl");
        let stricter = desk.conf.join("stricter");
        let [export, policy, other] = [&export, desk.conf, &stricter].map(|path| path.to_string_lossy().into_owned());
        let proved = desk.proved(&export).await?;
        let same = desk.asked(&["whatif", "--policy", &policy, "--audit", &export]).await?;
        stricter_policy(&stricter).context("the stricter policy").map_err(Failure::failed)?;
        let otherwise = desk.asked(&["whatif", "--policy", &other, "--audit", &export]).await?;
        let verdict = &proved["verdict"];
        let number = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
        let rules = otherwise["summary"]["by_rule"].as_object();
        Ok(Self {
            entries: number(&verdict["entries"]),
            sealed: number(&verdict["sealed"]),
            intact: verdict["intact"] == true,
            holds: proved["proof"]["holds"] == true,
            shadowed: shadowed(&std::fs::read_to_string(&export).context(export).map_err(Failure::failed)?),
            by_the_same: number(&same["summary"]["differences"]),
            by_a_stricter: number(&otherwise["summary"]["differences"]),
            by: rules.map(|rules| rules.keys().cloned().collect()).unwrap_or_default(),
        })
    }

    pub(super) fn broken(&self) -> Vec<String> {
        let all = self.entries > 0 && self.sealed == self.entries;
        let expected = [
            (all && self.intact, "the desk's audit log is not sealed, or not as it was written"),
            (self.holds, "the desk's audit log does not prove what it should"),
            (self.shadowed == SHADOWED, "a shadow rule did not report the calls that it would have stopped"),
            (self.by_the_same == 0, "whatif reports changed decisions for the desk's own policy"),
            (self.by_a_stricter == OTHERWISE, "whatif does not report the expected changes for a stricter policy"),
        ];
        expected.into_iter().filter(|(is, _)| !is).map(|(_, what)| what.to_owned()).collect()
    }
}

impl Commands<'_> {
    fn command(&self, args: &[&str]) -> anyhow::Result<Command> {
        let program = std::env::current_exe().context("cannot find the program's own file")?;
        let mut command = Command::new(program);
        command.env_clear().envs(self.environment.iter()).env("TICKFLEET_LOG_LEVEL", "error");
        command.args(args).arg("--json").arg("--config").arg(self.conf);
        command.stdin(Stdio::null()).kill_on_drop(true);
        Ok(command)
    }

    /// Runs a command and returns its JSON output.
    async fn asked(&self, args: &[&str]) -> Result<Value, Failure> {
        let said =
            self.command(args)?.output().await.context("a command cannot be started").map_err(Failure::failed)?;
        let found = serde_json::from_slice(&said.stdout);
        found.map_err(|_| {
            let why = String::from_utf8_lossy(&said.stderr).trim().to_owned();
            Failure::failed(anyhow!("tickfleet {}: {why}", args.join(" ")))
        })
    }

    /// Waits until the whole log is sealed and exported to `export`. Returns what the export proves.
    async fn proved(&self, export: &str) -> Result<Value, Failure> {
        let began = Instant::now();
        loop {
            // Remove the file of the last attempt. Otherwise the command would continue it.
            drop(std::fs::remove_file(export));
            let said = self.command(&["audit", "export", "--to", export])?.output().await.map_err(Failure::failed)?;
            if !said.status.success() {
                return Err(Failure::failed(anyhow!("{}", String::from_utf8_lossy(&said.stderr).trim())));
            }
            let proved = self.asked(&["prove", export]).await?;
            if proved["verdict"]["unsealed"] == 0 || began.elapsed() > PATIENCE {
                return Ok(proved);
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Writes a copy of the policy that allows only half the amount without approval.
fn stricter_policy(to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for (name, text) in super::FILES {
        std::fs::write(to.join(name), text.replace(STRICTER.0, STRICTER.1))?;
    }
    Ok(())
}

/// Counts the calls in an export that the rule in shadow mode would have stopped.
fn shadowed(export: &str) -> usize {
    let would_stop = |line: &&str| {
        let Some(Line::Entry(entry)) = Line::read(line) else { return false };
        let shadow = AuditEntry::read(&entry.text).unwrap_or_default().meta.shadow;
        shadow.iter().any(|denial| denial.rule == IN_SHADOW)
    };
    export.lines().filter(would_stop).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stricter_policy_is_another_one() {
        let permissions = super::super::FILES.iter().find(|(name, _)| *name == "permissions.yaml");
        assert_eq!(permissions.map(|(_, text)| text.matches(STRICTER.0).count()), Some(1));
    }
}
