//! The pages of the documentation, played as they stand there.

mod http_tools;
mod mcp;
mod python_sandbox;
mod python_tools;
mod security;
mod shell_tools;
pub mod site;
mod typed_tools;
