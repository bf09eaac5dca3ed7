//! Every parser of untrusted input is a fuzz target. A target takes bytes, and checks properties that must hold for any
//! bytes.
//!
//! Targets check more than the absence of panics. Accepted input must be within the bounds, and must stay the same when
//! it is written and read again. A rejection must have a known code and a short message. Output must not contain a
//! secret.
//!
//! Start at [`TARGETS`], the list of targets. The code of the targets is in `targets`, with one module per subject.
//! `tests/replay.rs` plays the targets with [`play`] in every run of the tests. `libfuzzer` plays them for hours.

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

/// Must be called on the main thread: only its stack is large enough for deeply nested input.
pub fn on_main_thread() {
    tickfleet_config::fuzzing::parse_here();
}
