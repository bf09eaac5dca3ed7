//! The simulator: the product's own schedulers, workers and client, whole processes of them, under random trouble in
//! simulated time, with invariants that are checked by what is true in the simulated world. Everything follows from a
//! seed. START HERE: `game` is one game; `tests/sim/README.md` tells what is real and what is simulated.

mod game;
mod machine;
mod net;
mod oracle;
mod parts;
mod process;
mod rules;
mod run;
mod server;
mod settings;
mod tools;
mod trouble;
mod world;

pub use run::{MUTANTS, Mutant, Mutants, Play, Replay, Run, Sabotage};
