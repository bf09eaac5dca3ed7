//! The leaderboard's tools on a fleet. Each tool returns its arguments.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use tickfleet_tools::RegisteredTool;

use crate::bfcl::Tool;
use crate::tools::{echo, spec};

pub fn registered(tool: &Tool) -> RegisteredTool {
    echo(spec(&tool.name, &tool.original, &tool.description, &tool.schema, "leaderboard")).unwrap()
}
