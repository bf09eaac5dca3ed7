//! `tickfleet reply`: prints the reply to a turn or task, read from its record.

use clap::Args;
use tickfleet_client::RecordedReply;
use tickfleet_model::TurnId;

use crate::commands::operate::parse_turn_name;
use crate::failure::Failure;
use crate::output::Output;
use crate::output::results;
use crate::setup::Setup;

/// Print the reply to a turn or task.
///
/// The record keeps the reply for retention.records after the end, even if an inbox also received it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet reply demo:t1700000000000-0
  tickfleet reply demo t1700000000000-0 --json      as the inbox received it

Exit code 1 unless every call ended as ok.")]
pub(crate) struct ReplyArgs {
    /// The tenant, or tenant:id.
    #[arg(value_name = "TENANT")]
    tenant: String,
    /// Id of the turn or task.
    #[arg(value_name = "ID")]
    id: Option<TurnId>,
}

/// Returns [`Failure::Reported`] if a call did not succeed.
pub(crate) async fn run(setup: &Setup, args: &ReplyArgs, output: &Output) -> Result<(), Failure> {
    let name = parse_turn_name(&args.tenant, args.id.as_ref())?;
    match setup.client().await?.reply(&name).await? {
        RecordedReply::Ended(reply) => results::print(&reply, output),
        RecordedReply::InInbox => Err(Failure::failed(anyhow::anyhow!(
            "{name} has ended, but Redis memory was full, so its reply went only to its inbox. tickfleet explain \
             {name} shows how its calls ended"
        ))),
        RecordedReply::UnderWay => {
            Err(Failure::failed(anyhow::anyhow!("{name} has not ended and has no reply yet: tickfleet explain {name}")))
        }
        RecordedReply::Unknown => Err(Failure::failed(anyhow::anyhow!(
            "{name} has no record: it was not admitted yet, was rejected, or ended longer ago than retention.records. \
             tickfleet explain {name} may find it in the audit log"
        ))),
    }
}
