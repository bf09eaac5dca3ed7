//! The kind of each tool: a function of the worker or of a Python module, a request or a command declared in YAML, or
//! offered by an MCP server. [`python`] and [`shell`] are the tools that not every machine can run.

mod python;
mod shell;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::day::Planned;
use crate::setup::Setup;
use python::PythonTool;
use shell::ShellTool;

/// The kind of a tool: what runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// A function in Rust, in the worker.
    Typed,
    /// A function in Python, in an interpreter of the worker's.
    Python,
    /// A request that YAML describes.
    Http,
    /// An MCP server that offers it.
    Mcp,
    /// A command in a sandbox.
    Shell,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [Self::Typed, Self::Python, Self::Http, Self::Mcp, Self::Shell];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Typed => "typed",
            Self::Python => "python",
            Self::Http => "http",
            Self::Mcp => "mcp",
            Self::Shell => "shell",
        }
    }
}

/// Tool → its kind. A tool that nothing runs has none.
#[derive(Debug, Default)]
pub(super) struct Kinds(BTreeMap<String, Kind>);

impl Kinds {
    /// Those of every tool that is configured.
    pub(super) fn of(setup: &Setup) -> Self {
        let configuration = &setup.configuration;
        let typed = setup.sources().built_in_tools.iter().map(|name| (name.clone(), Kind::Typed));
        let granted = configuration.policy.permissions.matrix.keys();
        let offered = granted.filter(|name| setup.python.as_ref().is_some_and(|python| python.offers(name)));
        let python = offered.map(|name| (name.clone(), Kind::Python));
        let declared = configuration.tools.tools.iter().filter_map(|(name, def)| {
            let kind = def.http.as_ref().map(|_| Kind::Http).or(def.shell.as_ref().map(|_| Kind::Shell))?;
            Some((name.clone(), kind))
        });
        let servers = configuration.mcp.servers.values();
        let mcp = servers.flat_map(|def| def.tools.iter().map(|tool| (def.tool_name(&tool.name), Kind::Mcp)));
        Self(typed.chain(python).chain(declared).chain(mcp).collect())
    }

    pub(super) fn get(&self, tool: &str) -> Option<Kind> {
        self.0.get(tool).copied()
    }
}

/// A kind that the day goes without → why, in one line.
pub(super) type LeftOut = BTreeMap<Kind, String>;

/// The tools of the day that not every machine can run.
pub(super) struct Probed {
    shell: ShellTool,
    python: PythonTool,
}

impl Probed {
    /// Finds out what this machine can run. `workspaces` is a folder for the commands of the shell tool, `interpreter` the
    /// Python that may have the package `tickfleet`.
    pub(super) async fn on_this_machine(workspaces: PathBuf, interpreter: &str) -> Self {
        Self { shell: ShellTool::probe(workspaces), python: PythonTool::probe(interpreter).await }
    }

    /// The turns of a day that this machine can play.
    pub(super) fn playable(&self, day: Vec<Planned>) -> Vec<Planned> {
        self.python.playable(self.shell.playable(day))
    }

    /// The folder of the workspaces.
    pub(super) fn workspaces(&self) -> &Path {
        &self.shell.workspaces
    }

    /// What is added to `tools.yaml`, and what to `permissions.yaml`; other files that these name go into `dir`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn configuration(&self, dir: &Path) -> std::io::Result<(String, String)> {
        let (declared, for_command) = self.shell.configuration();
        // After what is declared under `tools`: it is a section of its own.
        let (section, for_function) = self.python.configuration(&dir.join("code"))?;
        Ok((format!("{declared}{section}"), format!("{for_command}{for_function}")))
    }

    /// What the day goes without.
    pub(super) fn left_out(&self) -> LeftOut {
        let shell = self.shell.left_out.as_deref().map(|why| (Kind::Shell, why.to_owned()));
        let python = self.python.left_out().map(|why| (Kind::Python, why.to_owned()));
        shell.into_iter().chain(python).collect()
    }
}
