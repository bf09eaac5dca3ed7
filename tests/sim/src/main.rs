//! The simulator's command line.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A whole fleet under random trouble, from a seed.
#[derive(Debug, Parser)]
#[command(name = "tickfleet-sim")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Plays one game in this process and prints its verdict as JSON.
    Play(tickfleet_sim::Play),
    /// Plays one game again and tells what is wrong with it.
    Replay(tickfleet_sim::Replay),
    /// Plays game after game for a while.
    Run(tickfleet_sim::Run),
    /// Switches each guard of the scripts off, and plays until a game misses it.
    Sabotage(tickfleet_sim::Sabotage),
    /// Takes each mend in Rust out of a copy of the sources, and plays until a game misses it.
    Mutants(tickfleet_sim::Mutants),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Play(play) => play.run(),
        Command::Replay(replay) => replay.run(),
        Command::Run(run) => run.run(),
        Command::Sabotage(sabotage) => sabotage.run(),
        Command::Mutants(mutants) => mutants.run(),
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    // To the terminal, in one line, whatever is said of backtraces: what is wrong with the game stands above.
    drop(writeln!(std::io::stderr(), "{error:#}"));
    ExitCode::FAILURE
}
