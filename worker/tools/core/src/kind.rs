//! Kinds of declared tools. Each kind has its own crate, so that this crate does not depend on the kind's libraries.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_config::tools::{HttpDef, ShellDef};
use tickfleet_model::Effect;

use super::{CallContext, Handler, ToolFailure, ToolOutput, UnsetVariable};

/// Makes handlers for declarations of one kind.
pub trait ToolKind<Def>: Send + Sync {
    /// Makes the handler for the tool that `def` declares. Opens no connection.
    fn make(&self, def: &Def, input_schema: &Value, effect: Effect) -> Result<DeclaredHandler, DeclarationError>;
}

/// A handler made from a declaration.
pub struct DeclaredHandler {
    /// Runs the tool.
    pub handler: Arc<dyn Handler>,
    /// False if a secret that every call needs is not set in this process.
    pub configured: bool,
}

/// The kinds of tools that a process can run.
pub struct ToolKinds {
    /// Tools that call a web service.
    pub http: Box<dyn ToolKind<HttpDef>>,
    /// Tools that run a command in a sandbox.
    pub shell: Box<dyn ToolKind<ShellDef>>,
}

/// The kind `shell` in a program that runs no commands: rejects every declaration.
#[derive(Debug, Clone, Copy)]
pub struct NoShell;

impl ToolKind<ShellDef> for NoShell {
    fn make(&self, _: &ShellDef, _: &Value, _: Effect) -> Result<DeclaredHandler, DeclarationError> {
        Err(DeclarationError::Machine("this program runs no shell tools".into()))
    }
}

pub(crate) struct NotConfigured {
    pub(crate) message: String,
}

#[async_trait]
impl Handler for NotConfigured {
    async fn call(&self, _: &CallContext, _: &RawValue) -> Result<ToolOutput, ToolFailure> {
        Err(ToolFailure::NotConfigured { message: self.message.clone() })
    }
}

/// Why a declaration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeclarationError {
    /// A field has an invalid value.
    #[error("{field}: {why}")]
    Field {
        /// The field's path, starting with the kind's name (`http.path`).
        field: String,
        /// Why the value is invalid.
        why: String,
    },
    /// The tool is declared, but not configured in this process: a variable without a default is not set.
    #[error("the environment variable {name} is not set")]
    UnsetVariable {
        /// The variable.
        name: String,
    },
    /// This machine lacks something that the kind needs.
    #[error("{0}")]
    Machine(String),
}

impl From<UnsetVariable> for DeclarationError {
    fn from(UnsetVariable(name): UnsetVariable) -> Self {
        Self::UnsetVariable { name }
    }
}
