//! Kinds of declared tools. A kind makes what runs a declaration; it lives in a crate of its own, so that this one knows
//! neither its libraries nor its dependencies.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_config::tools::{HttpDef, ShellDef};
use tickfleet_model::Effect;

use super::{CallContext, Handler, ToolFailure, ToolOutput, Unset};

/// Makes handlers of declarations of one kind.
pub trait ToolKind<Def>: Send + Sync {
    /// Makes the handler that runs the tool that `def` declares, with arguments that fit `input_schema`. Makes no
    /// connection.
    ///
    /// # Errors
    /// [`DeclarationError`] if the declaration cannot be used.
    fn make(&self, def: &Def, input_schema: &Value, effect: Effect) -> Result<Made, DeclarationError>;
}

/// A handler that was made of a declaration.
pub struct Made {
    /// The handler that runs the tool.
    pub handler: Arc<dyn Handler>,
    /// False if a secret that every call needs is not set here.
    pub configured: bool,
}

/// The kinds of tools that a process can run, one field each: whoever adds one is led by the compiler to every place
/// that has to make it.
pub struct ToolKinds {
    /// Tools that call a web service.
    pub http: Box<dyn ToolKind<HttpDef>>,
    /// Tools that run a command in a sandbox.
    pub shell: Box<dyn ToolKind<ShellDef>>,
}

/// The kind `shell` of a program that runs no commands: it refuses every declaration.
#[derive(Debug, Clone, Copy)]
pub struct NoShell;

impl ToolKind<ShellDef> for NoShell {
    fn make(&self, _: &ShellDef, _: &Value, _: Effect) -> Result<Made, DeclarationError> {
        Err(DeclarationError::Machine("this program runs no shell tools".into()))
    }
}

/// Runs what nothing else runs: it says so.
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
    /// A field has a value that cannot work.
    #[error("{field}: {why}")]
    Field {
        /// The field, from the kind's own name on (`http.path`).
        field: String,
        /// The reason why it is wrong.
        why: String,
    },
    /// It names an environment variable without a default that is not set: declared, but not configured here.
    #[error("the environment variable {name} is not set")]
    Unset {
        /// The variable.
        name: String,
    },
    /// This machine lacks what the kind needs.
    #[error("{0}")]
    Machine(String),
}

impl From<Unset> for DeclarationError {
    fn from(Unset(name): Unset) -> Self {
        Self::Unset { name }
    }
}
