//! The program `tickfleet` as a library. It runs a fleet, submits work to the fleet and shows the fleet's state. A
//! program of your own can call [`Program`] to add tools written in Rust.
//!
//! START HERE: [`Program`] is the entry point of a binary. `run` maps commands to the files that implement them.
//! `fleet` starts schedulers and workers. `dev` runs a whole fleet in one process.

mod args;
mod caller;
mod checks;
mod commands;
mod failure;
mod fleet;
#[doc(hidden)]
pub mod fuzzing;
mod global;
mod output;
mod program;
#[cfg(test)]
mod reference;
mod rule_names;
mod setup;
mod words;

use clap::CommandFactory;

pub use fleet::registrar::{RegisterError, Registrar};
pub use program::Program;
pub use tickfleet_model::Effect;
pub use tickfleet_tools::{CallContext, HookError, Startup, ToolError, TypedTool};

use args::{Cli, Command};
use commands::dev::here::DevHere;
use commands::doctor::acl;
use commands::operate::{dead, pause, stats, turns, workers};
use commands::{
    approvals, audit, cancel, chat, config, delegate, demo, deploy, dev, doctor, explain, gateway, import, init, kb,
    limits, mcp, memory, prove, reply, rules, submit, tasks, tenant, tools, top, try_tool, usage, whatif,
};
use failure::Failure;
use global::Global;
use output::Output;
use setup::Setup;

async fn run(cli: Cli, output: &Output) -> Result<(), Failure> {
    let cli = if uses_dev_here(&cli.command) { Cli { global: DevHere::adopt(cli.global), ..cli } } else { cli };
    let command = match run_alone(cli.command, &cli.global, output).await {
        Ok(command) => command,
        Err(ended) => return ended,
    };
    // A fleet rejects unknown tool names, because a change may have been copied only in part. Commands that show tools
    // do the same.
    let knows_tools = match &command {
        // In an emergency, these commands must work even if the configuration has errors elsewhere.
        Command::Tools(tools::Tools {
            command: Some(tools::ToolsCommand::Disable(_) | tools::ToolsCommand::Enable(_)),
            ..
        }) => false,
        Command::Tools(_) => true,
        _ => false,
    };
    let setup = match &command {
        Command::Dev(_) => dev::setup(&cli.global)?,
        _ if knows_tools => Setup::load(&cli.global)?,
        _ if operates(&command) => Setup::load_for_operator(&cli.global, output)?,
        _ => Setup::load_beside(&cli.global)?,
    };
    run_with(command, &setup, output).await
}

const fn uses_dev_here(command: &Command) -> bool {
    !matches!(
        command,
        Command::Scheduler
            | Command::Worker
            | Command::Gateway(_)
            | Command::Dev(_)
            | Command::Demo(_)
            | Command::Init(_)
            | Command::Acl(_)
            | Command::Config(_)
            | Command::Completions { .. }
            | Command::Mcp(mcp::Mcp { command: mcp::McpCommand::Wrap(_) })
    )
}

/// Returns true for commands that write a log until a signal ends them.
const fn writes_log(command: &Command) -> bool {
    match command {
        Command::Scheduler | Command::Worker | Command::Dev(_) => true,
        Command::Gateway(args) => !gateway::needs_no_fleet(args),
        Command::Audit(args) => args.follows(),
        Command::Approvals(args) => args.notifies(),
        Command::Mcp(args) => matches!(args.command, mcp::McpCommand::Serve(_)),
        _ => false,
    }
}

/// Returns true for commands that must work even if the configuration is broken.
const fn operates(command: &Command) -> bool {
    match command {
        Command::Cancel(_)
        | Command::Turns(_)
        | Command::Tasks(_)
        | Command::Workers(_)
        | Command::Stats(_)
        | Command::Dead(_)
        | Command::Pause(_)
        | Command::Resume(_)
        | Command::Explain(_)
        | Command::Audit(_)
        | Command::Limits(_)
        | Command::Doctor(_)
        | Command::Top(_)
        | Command::Approvals(_)
        | Command::Tenant(_)
        | Command::Reply(_)
        | Command::Rules(_) => true,
        Command::Tools(tools::Tools { command, .. }) => {
            matches!(command, Some(tools::ToolsCommand::Disable(_) | tools::ToolsCommand::Enable(_)))
        }
        Command::Scheduler
        | Command::Worker
        | Command::Gateway(_)
        | Command::Dev(_)
        | Command::Demo(_)
        | Command::Init(_)
        | Command::Submit(_)
        | Command::Delegate(_)
        | Command::Chat(_)
        | Command::Usage(_)
        | Command::Prove(_)
        | Command::WhatIf(_)
        | Command::Kb(_)
        | Command::Memory(_)
        | Command::Mcp(_)
        | Command::Acl(_)
        | Command::Config(_)
        | Command::Completions { .. } => false,
    }
}

/// Returns a command that needs the loaded configuration. Runs any other command.
async fn run_alone(command: Command, global: &Global, output: &Output) -> Result<Command, Result<(), Failure>> {
    Err(match command {
        Command::Completions { shell } => output.completions(shell, &mut Cli::command()),
        Command::Config(args) => config::run(&args, global, output),
        Command::Prove(args) => prove::run(&args, output).await,
        Command::WhatIf(args) => whatif::run(&args, global, output).await,
        Command::Audit(audit::Audit { command: audit::AuditCommand::Verify(args) }) => {
            audit::verify::run(&args, output).await
        }
        Command::Audit(audit::Audit { command: audit::AuditCommand::Key(audit::key::Key { new: Some(path) }) }) => {
            audit::key::make(&path, output)
        }
        Command::Mcp(args) if !matches!(args.command, mcp::McpCommand::Serve(_)) => {
            mcp::run(&args, global, output).await
        }
        Command::Demo(args) => demo::run(&args, output).await,
        Command::Init(args) => init::run(&args, output),
        Command::Scheduler => deploy::run(global, fleet::Roles::SCHEDULER).await,
        Command::Worker => deploy::run(global, fleet::Roles::WORKER).await,
        Command::Gateway(args) if gateway::needs_no_fleet(&args) => gateway::aside(&args, output),
        Command::Tools(tools::Tools { command: Some(tools::ToolsCommand::Import(args)), .. }) => {
            import::run(&args, global, output)
        }
        command => return Ok(command),
    })
}

async fn run_with(command: Command, setup: &Setup, output: &Output) -> Result<(), Failure> {
    match command {
        Command::Dev(args) => dev::run(setup, &args, output).await,
        Command::Gateway(args) => gateway::run(setup, &args).await,
        Command::Mcp(mcp::Mcp { command: mcp::McpCommand::Serve(args) }) => mcp::serve::run(setup, &args).await,
        Command::Submit(args) => submit::run(setup, &args, output).await,
        Command::Delegate(args) => delegate::run(setup, &args, output).await,
        Command::Cancel(args) => cancel::run(setup, &args, output).await,
        Command::Turns(args) => turns::run(setup, &args, output).await,
        Command::Workers(args) => workers::run(setup, &args, output).await,
        Command::Stats(args) => stats::run(setup, &args, output).await,
        Command::Dead(args) => dead::run(setup, &args, output).await,
        Command::Pause(args) => pause::run(setup, &args, output).await,
        Command::Resume(args) => pause::resume(setup, &args, output).await,
        Command::Reply(args) => reply::run(setup, &args, output).await,
        Command::Tasks(args) => tasks::run(setup, &args, output).await,
        Command::Chat(args) => chat::run(setup, &args, output).await,
        Command::Explain(args) => explain::run(setup, &args, output).await,
        Command::Approvals(args) => approvals::run(setup, &args, output).await,
        Command::Tenant(args) => tenant::run(setup, &args, output).await,
        Command::Audit(args) => audit::run(setup, &args, output).await,
        Command::Usage(args) => usage::run(setup, &args, output).await,
        Command::Rules(args) => rules::run(setup, &args, output).await,
        Command::Limits(args) => limits::run(setup, &args, output).await,
        Command::Acl(args) => acl::run(setup, &args, output),
        Command::Kb(args) => kb::run(setup, &args, output).await,
        Command::Memory(args) => memory::run(setup, &args, output).await,
        Command::Tools(tools::Tools { command: Some(tools::ToolsCommand::Try(args)), .. }) => {
            try_tool::run(setup, &args, output).await
        }
        Command::Tools(args) => tools::run(setup, &args, output).await,
        Command::Doctor(args) => doctor::run(setup, &args, output).await,
        Command::Top(_) => top::run(setup, output).await,
        Command::Prove(_)
        | Command::WhatIf(_)
        | Command::Config(_)
        | Command::Demo(_)
        | Command::Init(_)
        | Command::Mcp(_)
        | Command::Scheduler
        | Command::Worker
        | Command::Completions { .. } => Ok(()),
    }
}
