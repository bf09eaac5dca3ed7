use std::sync::Arc;

use serde_json::Value;
use tickfleet_config::tools::ShellDef;
use tickfleet_model::Effect;
use tickfleet_tools::{DeclarationError, DeclaredHandler, ToolKind};

use crate::shell::Shell;
use crate::tool::ShellTool;

#[derive(Debug)]
pub struct ShellKind {
    shell: Arc<Shell>,
    unheld: UnsupportedSandbox,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnsupportedSandbox {
    Refused,
    /// The tool is made, but each of its calls fails.
    CallsRefused,
    /// The machine is not checked, because another process runs the tool.
    NotAsked,
}

impl ShellKind {
    /// For a process that runs the tools. Rejects declarations that this machine does not support.
    #[must_use]
    pub const fn new(shell: Arc<Shell>) -> Self {
        Self { shell, unheld: UnsupportedSandbox::Refused }
    }

    /// For a process that runs the tools. Calls of a tool that this machine does not support fail.
    #[must_use]
    pub const fn lenient(shell: Arc<Shell>) -> Self {
        Self { shell, unheld: UnsupportedSandbox::CallsRefused }
    }

    /// For a process that only checks declarations: each worker checks its own machine.
    #[must_use]
    pub const fn elsewhere(shell: Arc<Shell>) -> Self {
        Self { shell, unheld: UnsupportedSandbox::NotAsked }
    }
}

impl ToolKind<ShellDef> for ShellKind {
    fn make(&self, def: &ShellDef, input_schema: &Value, _: Effect) -> Result<DeclaredHandler, DeclarationError> {
        let tool = ShellTool::new(def, input_schema, &self.shell)?;
        let configured = match self.unheld {
            UnsupportedSandbox::NotAsked => true,
            UnsupportedSandbox::Refused => tool.fits_the_machine().map(|()| true)?,
            UnsupportedSandbox::CallsRefused => tool.fits_the_machine().is_ok(),
        };
        Ok(DeclaredHandler { handler: Arc::new(tool), configured })
    }
}
