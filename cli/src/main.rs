//! `tickfleet`: the one binary. It runs a fleet, submits to it, and tells what happens in it.
//!
//! START HERE: [`run`] maps commands to the files that carry them out; [`fleet`] is the boot of a scheduler and a
//! worker; [`dev`] is a whole fleet in one process.

mod args;
mod bench;
mod cancel;
mod config;
mod delegate;
mod demo;
mod deploy;
mod dev;
mod doctor;
mod explain;
mod failure;
mod fleet;
mod import;
mod mcp;
mod moment;
mod output;
mod reload;
mod results;
mod setup;
mod submit;
mod tenant;
mod tools;
mod top;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command};
use failure::Failure;
use output::Output;
use setup::Setup;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_parsed(&error),
    };
    // TLS, for HTTP tools and `rediss://`. It fails only where one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let output = Output::new(cli.global.json);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return output.fail(&Failure::failed(anyhow::anyhow!("no runtime could be started: {error}"))),
    };
    match runtime.block_on(run(cli, &output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output.fail(&failure),
    }
}

/// Carries one command out.
async fn run(cli: Cli, output: &Output) -> Result<(), Failure> {
    // What needs no configuration works with a broken one too.
    let command = match cli.command {
        Command::Completions { shell } => return output.completions(shell, &mut Cli::command()),
        Command::Config(args) => return config::run(&args, &cli.global, output),
        Command::Bench(args) => return bench::command(&args, output).await,
        Command::Mcp(args) => return mcp::run(&args, &cli.global, output).await,
        Command::Demo(_) => return demo::run(output).await,
        Command::Tools(tools::Tools { what: Some(tools::What::Import(args)), .. }) => {
            return import::run(&args, &cli.global, output);
        }
        command => command,
    };
    let setup = Setup::load(&cli.global)?;
    match command {
        Command::Scheduler => deploy::run(&setup, fleet::Roles::SCHEDULER).await,
        Command::Worker => deploy::run(&setup, fleet::Roles::WORKER).await,
        Command::Dev(args) => dev::run(&setup, &args, output).await,
        Command::Submit(args) => submit::run(&setup, &args, output).await,
        Command::Delegate(args) => delegate::run(&setup, &args, output).await,
        Command::Cancel(args) => cancel::run(&setup, &args, output).await,
        Command::Explain(args) => explain::run(&setup, &args, output).await,
        Command::Tenant(args) => tenant::run(&setup, &args, output).await,
        Command::Tools(args) => tools::run(&setup, &args, output).await,
        Command::Doctor(args) => doctor::run(&setup, &args, output).await,
        Command::Top(args) => top::run(&setup, &args, output).await,
        Command::Bench(_) | Command::Config(_) | Command::Demo(_) | Command::Mcp(_) | Command::Completions { .. } => {
            Ok(())
        }
    }
}

/// Help and version are answers; anything else is a mistake in the command line.
fn not_parsed(error: &clap::Error) -> ExitCode {
    // Nothing is left to tell where even this cannot be written.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(failure::USAGE) } else { ExitCode::SUCCESS }
}
