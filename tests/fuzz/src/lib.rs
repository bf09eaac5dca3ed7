//! Every parser of what others wrote, as a fuzz target: bytes in, and the properties that must hold whatever they are.
//!
//! A target never asks only for "no panic". What is accepted is within the bounds and comes back the same when it is
//! written and read again; what is refused has a known code and a short message; what is shown has no secret in it.
//!
//! START HERE: [`TARGETS`] lists them, their code is in `targets`, a module a subject. `tests/replay.rs` plays them in
//! every run of the tests, by [`play`]; `libfuzzer` plays them for hours.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a target fails by panicking")]

mod bounds;
pub mod corpus;
mod mutator;
pub mod play;
mod target;
mod targets;

pub use target::Target;
pub use targets::TARGETS;

/// The target of this name.
///
/// # Panics
/// There is none.
#[must_use]
pub fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no target is named {name}"))
}

/// Says that targets are played on the main thread of this process, whose stack is large.
pub fn on_main_thread() {
    tickfleet_config::fuzzing::parse_here();
}
