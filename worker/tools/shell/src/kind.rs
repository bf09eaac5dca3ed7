//! The kind `shell`, as the registry of tools asks for it.

use std::sync::Arc;

use serde_json::Value;
use tickfleet_config::tools::ShellDef;
use tickfleet_model::Effect;
use tickfleet_tools::{DeclarationError, Made, ToolKind};

use crate::shell::Shell;
use crate::tool::ShellTool;

/// Makes shell tools.
#[derive(Debug)]
pub struct ShellKind {
    shell: Arc<Shell>,
    runs_here: bool,
}

impl ShellKind {
    /// For a process that runs the tools: one that this machine cannot hold is refused.
    #[must_use]
    pub const fn new(shell: Arc<Shell>) -> Self {
        Self { shell, runs_here: true }
    }

    /// For a process that only checks declarations: what workers can hold is theirs to say.
    #[must_use]
    pub const fn elsewhere(shell: Arc<Shell>) -> Self {
        Self { shell, runs_here: false }
    }
}

impl ToolKind<ShellDef> for ShellKind {
    fn make(&self, def: &ShellDef, input_schema: &Value, _: Effect) -> Result<Made, DeclarationError> {
        let tool = ShellTool::new(def, input_schema, &self.shell)?;
        if self.runs_here {
            tool.fits_the_machine()?;
        }
        Ok(Made { handler: Arc::new(tool), configured: true })
    }
}
