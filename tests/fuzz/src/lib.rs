//! Every parser of untrusted input is a fuzz target. [`TARGETS`] lists the targets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a target fails by panicking")]

mod bounds;
pub mod corpus;
mod mutator;
pub mod play;
mod target;
mod targets;

pub use target::Target;
pub use targets::TARGETS;

#[must_use]
pub fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no target is named {name}"))
}

/// Must be called on the main thread, because only the main thread's stack is large enough for deeply nested input.
pub fn on_main_thread() {
    tickfleet_config::fuzzing::parse_here();
}
