//! The command line. Each command's own arguments stand beside what carries it out.

use clap::{Parser, Subcommand};

use crate::commands::approvals;
use crate::commands::audit;
use crate::commands::bench;
use crate::commands::cancel;
use crate::commands::chat;
use crate::commands::config;
use crate::commands::delegate;
use crate::commands::demo;
use crate::commands::dev;
use crate::commands::doctor;
use crate::commands::doctor::acl;
use crate::commands::explain;
use crate::commands::gateway;
use crate::commands::kb;
use crate::commands::limits;
use crate::commands::mcp;
use crate::commands::memory;
use crate::commands::operate::dead;
use crate::commands::operate::pause;
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
  tickfleet demo                             a day of the agents, played in seconds
  tickfleet dev                              a whole fleet, nothing to set up
  tickfleet submit --tenant demo --agent kelly --call 'echo {\"text\":\"hi\"}' --wait
  tickfleet explain demo:t1700000000000-0    why a turn waits, and until when
  tickfleet doctor                           is this Redis fit, is the queue healthy
  tickfleet top                              the fleet, live

Exit codes: 0 done; 1 what was asked for failed; 2 wrong usage; 3 Redis cannot be reached.";

/// A governed worker fleet for AI agents' tool calls, on Redis Streams.
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
    /// Run a scheduler: admits turns under their caps, until SIGTERM.
    #[command(after_help = RUN_HELP)]
    Scheduler,
    /// Run a worker: carries calls out, until SIGTERM.
    #[command(after_help = RUN_HELP)]
    Worker,
    /// Serve the HTTP API of the fleet until SIGTERM, or make a key for it.
    Gateway(Box<gateway::GatewayArgs>),
    /// Run a whole fleet in one process: a private Redis, a scheduler and a worker.
    Dev(dev::Dev),
    /// Play a day of the agents on a fleet of its own, and show what came of it.
    Demo(demo::Demo),
    /// Submit a turn: tool calls of one agent.
    Submit(submit::Submit),
    /// Give an agent a task.
    Delegate(delegate::Delegate),
    /// End a turn or task before its time.
    Cancel(cancel::Cancel),
    /// List the turns under way, or end many of them.
    Turns(turns::Turns),
    /// List the workers, have one take no new work, or let it take work again.
    Workers(workers::Workers),
    /// List what was put aside (dead letters, failed calls), replay or drop it.
    Dead(dead::DeadArgs),
    /// Let no call of a tenant or agent go out any more, or show who is paused.
    Pause(pause::PauseArgs),
    /// Let calls of a paused tenant or agent go out again.
    Resume(pause::ResumeArgs),
    /// Print the reply to a turn or task once more.
    Reply(reply::ReplyArgs),
    /// List tasks, tell the story of one, or end one with all that it has begun.
    Tasks(tasks::Tasks),
    /// Talk with an agent: what it plans, calls, waits for and answers, as it happens.
    Chat(chat::Chat),
    /// Tell the whole story of a turn, call or task: what decided, where it waits, how it ended.
    Explain(explain::Explain),
    /// List the calls that wait for a person's consent, show one, approve or deny it.
    Approvals(approvals::Approvals),
    /// Show tenants, or set one while the fleet runs.
    Tenant(tenant::Tenant),
    /// Show the limits with their fullest counters, or set a counter to zero.
    Limits(limits::Limits),
    /// Show what models have used: tokens and money of a tenant, by day and agent.
    Usage(usage::Usage),
    Rules(rules::Rules),
    /// Show how many calls ended how, and how long they took: by day, tenant, agent, tool.
    Stats(stats::Stats),
    /// Search the audit log, export it with its seals, or verify an export.
    Audit(audit::Audit),
    /// Prove from exports of the audit log that no cap was exceeded, no call has two results and no effect ran twice.
    Prove(prove::Prove),
    /// Decide recorded calls anew by another policy: who would have been denied, refused, asked or delayed, and by what.
    #[command(name = "whatif")]
    WhatIf(whatif::WhatIf),
    /// List tools, or define those of one agent for a model.
    Tools(tools::Tools),
    /// Fill, list, search or empty a tenant's knowledge base.
    Kb(kb::Kb),
    /// Add, import, list or forget an agent's memories.
    Memory(memory::Memory),
    /// Pin or check the tools of MCP servers, or serve an agent's tools as one.
    Mcp(mcp::Mcp),
    /// Print the rules of a user of Redis for one role of the fleet.
    Acl(acl::Acl),
    /// Check Redis and the health of the queues; each finding says what to do.
    Doctor(doctor::Doctor),
    /// Show the fleet live: backlog, rates, slots, capped agents, tools by outcome.
    Top(top::Top),
    /// Check the configuration, or print the one in force.
    Config(config::Config),
    /// Measure throughput and latency of a whole fleet, beside the raw stream cycle.
    #[command(after_help = bench::HELP)]
    Bench(bench::BenchArgs),
    /// Print a completion script for a shell.
    #[command(after_help = "Example: tickfleet completions bash > /etc/bash_completion.d/tickfleet")]
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

const RUN_HELP: &str = "\
Any number of them run side by side. /livez, /readyz and /metrics answer on http.address.
The first SIGTERM or SIGINT drains, a second one stops at once.";
