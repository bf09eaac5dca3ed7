//! Tools that run commands in a sandbox, and tools for the files that the commands work on. Read `tool` first.

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
