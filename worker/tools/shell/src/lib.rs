//! Tools that run commands in a sandbox, and tools for the files that the commands work on.
//!
//! Read in this order:
//!
//! - `tool`: a call of a declared tool from end to end.
//! - `command`: inserts arguments into a command.
//! - [`workspace`]: the folder where the command runs.
//! - [`shell`]: the state that all tools share.
//! - [`builtin`]: the tools that coding agents expect.

mod beneath;
pub mod builtin;
mod command;
mod files;
mod kind;
mod result;
pub mod shell;
mod temporary;
mod tool;
pub mod workspace;

pub use kind::ShellKind;
pub use result::CommandResult;
pub use shell::Shell;
pub use workspace::{Workspace, Workspaces};
