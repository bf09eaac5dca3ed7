//! Runs the commands on the pages of the documentation.

mod examples;
mod http_tools;
mod mcp;
mod python_sandbox;
mod python_tools;
mod quickstart;
mod security;
mod shell_tools;
pub mod site;
mod typed_tools;
mod typescript_tools;
