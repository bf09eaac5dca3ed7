//! The command line. The arguments of each command are in the file that implements it.

use clap::{Parser, Subcommand};

use crate::commands::approvals;
use crate::commands::audit;
use crate::commands::chat;
use crate::commands::config;
use crate::commands::delegate;
use crate::commands::demo;
use crate::commands::dev;
use crate::commands::doctor;
use crate::commands::doctor::acl;
use crate::commands::explain;
use crate::commands::gateway;
use crate::commands::init;
use crate::commands::kb;
use crate::commands::limits;
use crate::commands::mcp;
use crate::commands::memory;
use crate::commands::operate::OperatorCommand;
use crate::commands::operate::dead;
use crate::commands::operate::stats;
use crate::commands::operate::turns;
use crate::commands::operate::workers;
use crate::commands::prove;
use crate::commands::reply;
use crate::commands::rules;
use crate::commands::submit;
use crate::commands::tasks;
use crate::commands::tenant;
use crate::commands::tools;
use crate::commands::top;
use crate::commands::usage;
use crate::commands::whatif;
use crate::global::Global;

const EXAMPLES: &str = "\
Examples:
  tickfleet init                             a folder to start from
  tickfleet demo                             a scripted day of the agents, in seconds
  tickfleet dev                              a whole fleet without setup
  tickfleet submit --tenant demo --agent kelly --call 'echo {\"text\":\"hi\"}' --wait
  tickfleet explain demo:t1700000000000-0    why a turn waits, and until when
  tickfleet doctor                           check Redis and the queues
  tickfleet top                              the state of the fleet

Exit codes: 0 success; 1 failure; 2 invalid command line; 3 Redis cannot be reached.";

/// Runs the tool calls of AI agents under limits, permissions, approvals and an audit log, on Redis Streams.
#[derive(Debug, Parser)]
#[command(name = "tickfleet", version, after_help = EXAMPLES, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a scheduler, which admits turns under their caps, until SIGTERM.
    #[command(after_help = RUN_HELP)]
    Scheduler,
    /// Run a worker, which executes calls, until SIGTERM.
    #[command(after_help = RUN_HELP)]
    Worker,
    /// Serve the HTTP API until SIGTERM, or create an API key.
    Gateway(Box<gateway::GatewayArgs>),
    Init(init::Init),
    /// Run a whole fleet in one process, without Redis.
    Dev(dev::Dev),
    /// Play a scripted day of the sample agents on a private fleet and print the results.
    Demo(demo::Demo),
    /// Submit a turn: the tool calls of one agent.
    Submit(submit::Submit),
    /// Delegate a task to an agent.
    Delegate(delegate::Delegate),
    #[command(flatten)]
    Operator(OperatorCommand),
    /// List unfinished turns, or cancel many of them.
    Turns(turns::Turns),
    /// List workers, drain a worker, or resume it.
    Workers(workers::Workers),
    /// List dead letters, failed calls and failed tasks; replay or drop them.
    Dead(dead::DeadArgs),
    Reply(reply::ReplyArgs),
    Tasks(tasks::Tasks),
    /// Chat with an agent and follow its plans, calls and answers live.
    Chat(chat::Chat),
    /// Explain a turn, call or task: decisions, waits, attempts and outcome.
    Explain(explain::Explain),
    /// List calls that wait for approval; show, approve or deny one.
    Approvals(approvals::Approvals),
    /// Show tenants, or change one while the fleet runs.
    Tenant(tenant::Tenant),
    /// Show limits with their fullest counters, or reset a counter.
    Limits(limits::Limits),
    /// Show the model usage of a tenant, in tokens and money, by day and agent.
    Usage(usage::Usage),
    Rules(rules::Rules),
    Stats(stats::Stats),
    /// Search the audit log, export it, or verify an export.
    Audit(audit::Audit),
    /// Prove from audit exports that no cap was exceeded, no call has two results and no effect ran twice.
    Prove(prove::Prove),
    /// Evaluate recorded calls against another policy and list the differences.
    #[command(name = "whatif")]
    WhatIf(whatif::WhatIf),
    /// List tools, or print the tool definitions of one agent for a model.
    Tools(tools::Tools),
    /// Import, list, search or remove documents of a tenant's knowledge base.
    Kb(kb::Kb),
    /// Add, import, list or delete memories of an agent.
    Memory(memory::Memory),
    /// Pin or check the tools of MCP servers, or serve tools over MCP.
    Mcp(mcp::Mcp),
    /// Print the Redis access rules of a role.
    Acl(acl::Acl),
    /// Check Redis and the health of the queues, with advice for each finding.
    Doctor(doctor::Doctor),
    /// Show the state of the fleet: findings, backlog, rates, slots, capped agents, tools by outcome.
    Top(top::Top),
    /// Check the configuration, or print the settings in force.
    Config(config::Config),
    /// Print a completion script for a shell.
    #[command(after_help = "Example: tickfleet completions bash > /etc/bash_completion.d/tickfleet")]
    Completions {
        /// Shell of the script.
        shell: clap_complete::Shell,
    },
}

const RUN_HELP: &str = "\
Any number of them can run. /livez, /readyz and /metrics are served on http.address.
The first SIGTERM or SIGINT drains the process, a second one stops it at once.";
