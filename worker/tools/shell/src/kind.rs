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
    unheld: Unheld,
}

/// What becomes of a declaration that this machine cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unheld {
    /// It is refused.
    Refused,
    /// It is made, and each call of it is refused.
    CallsRefused,
    /// Nobody asks: the tool runs elsewhere.
    NotAsked,
}

impl ShellKind {
    /// For a process that runs the tools: one that this machine cannot hold is refused.
    #[must_use]
    pub const fn new(shell: Arc<Shell>) -> Self {
        Self { shell, unheld: Unheld::Refused }
    }

    /// Likewise; of a tool that this machine cannot hold, only its calls are refused, as not configured.
    #[must_use]
    pub const fn lenient(shell: Arc<Shell>) -> Self {
        Self { shell, unheld: Unheld::CallsRefused }
    }

    /// For a process that only checks declarations: what workers can hold is theirs to say.
    #[must_use]
    pub const fn elsewhere(shell: Arc<Shell>) -> Self {
        Self { shell, unheld: Unheld::NotAsked }
    }
}

impl ToolKind<ShellDef> for ShellKind {
    fn make(&self, def: &ShellDef, input_schema: &Value, _: Effect) -> Result<Made, DeclarationError> {
        let tool = ShellTool::new(def, input_schema, &self.shell)?;
        let configured = match self.unheld {
            Unheld::NotAsked => true,
            Unheld::Refused => tool.fits_the_machine().map(|()| true)?,
            // Its handler asks the machine before each call, and refuses it.
            Unheld::CallsRefused => tool.fits_the_machine().is_ok(),
        };
        Ok(Made { handler: Arc::new(tool), configured })
    }
}
