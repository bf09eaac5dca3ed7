//! Commands for operators.

pub(crate) mod audit_note;
mod causes;
pub(crate) mod dead;
mod history;
mod pauses;
pub(crate) mod stats;
pub(crate) mod turns;
pub(crate) mod verb;
pub(crate) mod workers;

use clap::Subcommand;
use tickfleet_client::verbs::{CancelTurnsRequest, PauseRequest, ResumeRequest};
use tickfleet_model::{TenantId, TurnId};
use tickfleet_store::TurnName;

use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;
use verb::VerbArgs;

/// Commands at the top level. The texts of verbs come from their requests.
#[derive(Debug, Subcommand)]
pub(crate) enum OperatorCommand {
    #[command(after_help = "\
Examples:
  tickfleet cancel demo:t1700000000000-0
  tickfleet cancel demo:t1700000000000-0 --reason 'the user left'")]
    Cancel(VerbArgs<CancelTurnsRequest>),
    #[command(after_help = "\
Examples:
  tickfleet pause demo kelly --reason 'she writes to the wrong people'
  tickfleet pause demo --reason 'the contract has ended' --by anna
  tickfleet pause --tool post_to_x --reason 'the service is being moved'
  tickfleet pause demo --tool post_to_x --reason 'their account is locked'
  tickfleet resume demo kelly

Calls to a paused tool wait until their deadline; workers apply the pause within a quarter of worker.lease. `tickfleet tools
disable` denies calls instead. Tasks that are delegated to a paused agent start; the calls that it makes for them wait.")]
    Pause(VerbArgs<PauseRequest>),
    #[command(after_help = "\
Examples:
  tickfleet resume demo kelly
  tickfleet resume --tool post_to_x --reason 'the service has moved'")]
    Resume(VerbArgs<ResumeRequest>),
    /// List paused tenants, agents and tools.
    Pauses,
}

pub(crate) async fn run(setup: &Setup, command: &OperatorCommand, output: &Output) -> Result<(), Failure> {
    match command {
        OperatorCommand::Cancel(args) => verb::run(setup, args, output).await,
        OperatorCommand::Pause(args) => verb::run(setup, args, output).await,
        OperatorCommand::Resume(args) => verb::run(setup, args, output).await,
        OperatorCommand::Pauses => pauses::list(setup, output).await,
    }
}

/// Accepts `tenant id` or `tenant:id`.
pub(crate) fn parse_turn_name(tenant: &str, id: Option<&TurnId>) -> Result<TurnName, Failure> {
    match id {
        Some(turn) => Ok(TurnName { tenant: TenantId::new(tenant)?, turn: turn.clone() }),
        None => TurnName::parse(tenant)
            .ok_or_else(|| Failure::usage("expected tenant and id, or tenant:id, such as demo:t1700000000000-0")),
    }
}
