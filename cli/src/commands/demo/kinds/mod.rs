//! The kind of each tool. Some machines cannot run [`python`] and [`shell`].

mod python;
mod shell;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tickfleet_config::tools::ToolRunner;

use super::day::Planned;
use crate::setup::Setup;
use python::PythonTool;
use shell::ShellTool;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Typed,
    Python,
    Http,
    Mcp,
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

/// Kinds by the name of the tool. An unknown tool has no kind.
#[derive(Debug, Default)]
pub(super) struct Kinds(BTreeMap<String, Kind>);

impl Kinds {
    pub(super) fn of(setup: &Setup) -> Self {
        let configuration = &setup.configuration;
        let typed = setup.sources().built_in_tools.iter().map(|name| (name.clone(), Kind::Typed));
        let granted = configuration.policy.permissions.matrix.keys();
        let offered = granted.filter(|name| setup.pools.as_ref().is_some_and(|pools| pools.offers(name)));
        let python = offered.map(|name| (name.clone(), Kind::Python));
        let declared = configuration.tools.tools.iter().filter_map(|(name, def)| {
            let kind = match def.runner.as_ref()? {
                ToolRunner::Http(_) => Kind::Http,
                ToolRunner::Shell(_) => Kind::Shell,
                ToolRunner::Local(_) => return None,
            };
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

/// For each skipped kind, the reason, on one line.
pub(super) type SkippedKinds = BTreeMap<Kind, String>;

pub(super) struct Probed {
    shell: ShellTool,
    python: PythonTool,
}

impl Probed {
    /// `workspaces` is a folder for the commands of the shell tool. `interpreter` may lack the package `tickfleet`.
    pub(super) async fn on_this_machine(workspaces: PathBuf, interpreter: &str) -> Self {
        Self { shell: ShellTool::probe(workspaces), python: PythonTool::probe(interpreter).await }
    }

    pub(super) fn playable(&self, day: Vec<Planned>) -> Vec<Planned> {
        self.python.playable(self.shell.playable(day))
    }

    pub(super) fn workspaces(&self) -> &Path {
        &self.shell.workspaces
    }

    /// Returns additions to `tools.yaml` and `permissions.yaml`. Writes the files that the additions need to `dir`.
    pub(super) fn configuration(&self, dir: &Path) -> std::io::Result<(String, String)> {
        let (declared, for_command) = self.shell.configuration();
        // The Python part is a separate section, so it comes after the declarations under `tools`.
        let (section, for_function) = self.python.configuration(&dir.join("code"))?;
        Ok((format!("{declared}{section}"), format!("{for_command}{for_function}")))
    }

    pub(super) fn left_out(&self) -> SkippedKinds {
        let shell = self.shell.left_out.as_deref().map(|why| (Kind::Shell, why.to_owned()));
        let python = self.python.left_out().map(|why| (Kind::Python, why.to_owned()));
        shell.into_iter().chain(python).collect()
    }
}
