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
#[cfg(feature = "fuzzing")]
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
use commands::operate::{dead, stats, turns, workers};
use commands::{
    approvals, audit, chat, config, delegate, demo, deploy, dev, doctor, explain, gateway, import, init, kb, limits,
    mcp, memory, operate, prove, reply, rules, submit, tasks, tenant, tools, top, try_tool, usage, whatif,
};
use failure::Failure;
use output::Output;
use setup::Setup;

/// Each command states which configuration it loads. While the configuration is broken, only commands that load it with
/// `operator` work, and commands that load none.
async fn run(cli: Cli, output: &Output) -> Result<(), Failure> {
    let Cli { global, command } = cli;
    let here = || DevHere::adopt(global.clone());
    let beside = || Setup::load_beside(&here());
    let operator = || Setup::load_for_operator(&here(), output);
    match command {
        Command::Scheduler => deploy::run(&global, fleet::Roles::SCHEDULER).await,
        Command::Worker => deploy::run(&global, fleet::Roles::WORKER).await,
        Command::Gateway(args) if gateway::needs_no_fleet(&args) => gateway::aside(&args, output),
        Command::Gateway(args) => gateway::run(&Setup::load_beside(&global)?, &args).await,
        Command::Init(args) => init::run(&args, output),
        Command::Dev(args) => dev::run(&dev::setup(&global)?, &args, output).await,
        Command::Demo(args) => demo::run(&args, output).await,
        Command::Submit(args) => submit::run(&beside()?, &args, output).await,
        Command::Delegate(args) => delegate::run(&beside()?, &args, output).await,
        Command::Operator(command) => operate::run(&operator()?, &command, output).await,
        Command::Turns(args) => turns::run(&operator()?, &args, output).await,
        Command::Workers(args) => workers::run(&operator()?, &args, output).await,
        Command::Dead(args) => dead::run(&operator()?, &args, output).await,
        Command::Reply(args) => reply::run(&operator()?, &args, output).await,
        Command::Tasks(args) => tasks::run(&operator()?, &args, output).await,
        Command::Chat(args) => chat::run(&beside()?, &args, output).await,
        Command::Explain(args) => explain::run(&operator()?, &args, output).await,
        Command::Approvals(args) => approvals::run(&operator()?, &args, output).await,
        Command::Tenant(args) => tenant::run(&operator()?, &args, output).await,
        Command::Limits(args) => limits::run(&operator()?, &args, output).await,
        Command::Usage(args) => usage::run(&beside()?, &args, output).await,
        Command::Rules(args) => rules::run(&operator()?, &args, output).await,
        Command::Stats(args) => stats::run(&operator()?, &args, output).await,
        Command::Audit(audit::Audit { command: audit::AuditCommand::Verify(args) }) => {
            audit::verify::run(&args, output).await
        }
        Command::Audit(audit::Audit { command: audit::AuditCommand::Key(audit::key::Key { new: Some(path) }) }) => {
            audit::key::make(&path, output)
        }
        Command::Audit(args) => audit::run(&operator()?, &args, output).await,
        Command::Prove(args) => prove::run(&args, output).await,
        Command::WhatIf(args) => whatif::run(&args, &here(), output).await,
        Command::Tools(args) => match &args.command {
            Some(tools::ToolsCommand::Import(args)) => import::run(args, &here(), output),
            // In an emergency, these commands must work even if the configuration has errors elsewhere.
            Some(tools::ToolsCommand::Disable(_) | tools::ToolsCommand::Enable(_)) => {
                tools::run(&operator()?, &args, output).await
            }
            // A fleet rejects unknown tool names, because a change may have been copied only in part. Commands that
            // show tools do the same.
            Some(tools::ToolsCommand::Try(args)) => try_tool::run(&Setup::load(&here())?, args, output).await,
            None => tools::run(&Setup::load(&here())?, &args, output).await,
        },
        Command::Kb(args) => kb::run(&beside()?, &args, output).await,
        Command::Memory(args) => memory::run(&beside()?, &args, output).await,
        Command::Mcp(mcp::Mcp { command: mcp::McpCommand::Serve(args) }) => mcp::serve::run(&beside()?, &args).await,
        Command::Mcp(args) if matches!(args.command, mcp::McpCommand::Wrap(_)) => {
            mcp::run(&args, &global, output).await
        }
        Command::Mcp(args) => mcp::run(&args, &here(), output).await,
        Command::Acl(args) => acl::run(&Setup::load_beside(&global)?, &args, output),
        Command::Doctor(args) => doctor::run(&operator()?, &args, output).await,
        Command::Top(_) => top::run(&operator()?, output).await,
        Command::Config(args) => config::run(&args, &global, output),
        Command::Completions { shell } => output.completions(shell, &mut Cli::command()),
    }
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
