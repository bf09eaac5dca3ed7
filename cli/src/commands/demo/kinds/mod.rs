//! The kind of each tool: a function of the worker, a request or a command declared in YAML, or offered by an
//! MCP server.

pub(super) mod shell;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::setup::Setup;

/// The kind of a tool: what runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// A function in Rust, in the worker.
    Typed,
    /// A request that YAML describes.
    Http,
    /// An MCP server that offers it.
    Mcp,
    /// A command in a sandbox.
    Shell,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Typed, Self::Http, Self::Mcp, Self::Shell];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Typed => "typed",
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
        let declared = configuration.tools.tools.iter().filter_map(|(name, def)| {
            let kind = def.http.as_ref().map(|_| Kind::Http).or(def.shell.as_ref().map(|_| Kind::Shell))?;
            Some((name.clone(), kind))
        });
        let servers = configuration.mcp.servers.values();
        let mcp = servers.flat_map(|def| def.tools.iter().map(|tool| (def.tool_name(&tool.name), Kind::Mcp)));
        Self(typed.chain(declared).chain(mcp).collect())
    }

    pub(super) fn get(&self, tool: &str) -> Option<Kind> {
        self.0.get(tool).copied()
    }
}
