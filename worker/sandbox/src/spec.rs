use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The path of the workspace inside the sandbox, at the levels [`Level::Strict`] and [`Level::Docker`].
pub const WORKSPACE: &str = "/app/workspace";
/// The search path for commands without a `/`.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Landlock, seccomp and resource limits, which need neither privileges nor namespaces.
    Basic,
    /// Like `Basic`, but with its own root, user and namespaces.
    Strict,
    Docker,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Basic => "basic",
            Self::Strict => "strict",
            Self::Docker => "docker",
        })
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    #[default]
    None,
    /// Permits TCP connections to these ports of any host. Requires Landlock ABI 4.
    Tcp(Vec<u16>),
}

/// Permits the use of a path outside the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Absolute and without symbolic links.
    pub path: PathBuf,
    pub write: bool,
}

/// If a limit is exceeded, all processes are killed or an operation fails, see `docs/reference/sandbox-limits.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// For all processes together.
    pub cpu_ms: u64,
    /// For all processes together.
    pub memory_bytes: u64,
    pub processes: u64,
    /// For each process.
    pub open_files: u64,
    /// For each file.
    pub file_bytes: u64,
    /// Disk usage of all files.
    pub workspace_bytes: u64,
    /// Includes folders.
    pub workspace_files: u64,
    /// Applies to standard output and standard error separately. Further output is read and dropped.
    pub output_bytes: usize,
    pub wall_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpu_ms: 20_000,
            memory_bytes: 512 << 20,
            processes: 64,
            open_files: 256,
            file_bytes: 64 << 20,
            workspace_bytes: 256 << 20,
            workspace_files: 10_000,
            output_bytes: 256 << 10,
            wall_ms: 30_000,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// The program and its arguments. No shell interprets them.
    pub argv: Vec<String>,
    #[serde(skip)]
    pub stdin: Vec<u8>,
    /// The working folder, which must exist. The command may write to it.
    pub workspace: PathBuf,
    /// Replaces the defaults of `PATH`, `HOME`, `LANG` and `TMPDIR`, and adds other variables.
    pub environment: BTreeMap<String, String>,
    pub grants: Vec<Grant>,
    pub network: Network,
    pub limits: Limits,
}

impl Spec {
    #[must_use]
    pub fn new<Argument: Into<String>>(
        argv: impl IntoIterator<Item = Argument>,
        workspace: impl Into<PathBuf>,
    ) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            stdin: Vec::new(),
            workspace: workspace.into(),
            environment: BTreeMap::new(),
            grants: Vec::new(),
            network: Network::None,
            limits: Limits::default(),
        }
    }

    /// A grant must not be inside or around a path that a command may write to: the command could redirect the grant.
    pub fn check(&self) -> Result<(), String> {
        if self.argv.first().is_none_or(String::is_empty) {
            return Err("the command is empty".into());
        }
        let texts = self.argv.iter().chain(self.environment.keys()).chain(self.environment.values());
        if texts.clone().any(|text| text.contains('\0')) || self.environment.keys().any(|key| key.contains('=')) {
            return Err("an argument contains a NUL byte, or the name of a variable contains =".into());
        }
        if !self.workspace.is_absolute() || self.grants.iter().any(|grant| !grant.path.is_absolute()) {
            return Err("the workspace and every granted path must be absolute".into());
        }
        let writable = self.grants.iter().filter(|grant| grant.write).map(|grant| &grant.path);
        for area in writable.chain([&self.workspace]) {
            let near = |path: &PathBuf| path != area && (path.starts_with(area) || area.starts_with(path));
            if let Some(grant) = self.grants.iter().find(|grant| near(&grant.path)) {
                let path = grant.path.display();
                let area = area.display();
                return Err(format!("the granted path {path} overlaps {area}, which a command may write to"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granting(path: &str, write: bool) -> Spec {
        Spec { grants: vec![Grant { path: path.into(), write }], ..Spec::new(["true"], "/srv/w/one") }
    }

    #[test]
    fn a_grant_path_that_a_command_could_redirect_is_rejected() {
        assert!(granting("/srv/data", false).check().is_ok());
        for path in ["/srv/w/one/link", "/srv/w", "/", "relative"] {
            assert!(granting(path, false).check().is_err(), "{path}");
        }
        let mut below = granting("/srv/data", true);
        below.grants.push(Grant { path: "/srv/data/below".into(), write: false });
        assert!(below.check().is_err());
    }

    #[test]
    fn an_empty_command_or_nul_byte_is_rejected() {
        assert!(Spec::new([""], "/w").check().is_err());
        assert!(Spec::new(["a", "b\0c"], "/w").check().is_err());
    }
}
