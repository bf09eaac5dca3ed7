//! `tickfleet cancel`: cancels a turn or task.

use clap::Args;
use serde::Serialize;
use tickfleet_client::end_many;
use tickfleet_client::verbs::FleetName;
use tickfleet_model::{TenantId, TurnId};
use tickfleet_store::CancelResult;

use crate::commands::limits::reason;
use crate::commands::operate::audit_note::By;
use crate::commands::operate::parse_turn_name;
use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

/// Cancel a turn or task.
///
/// A running call is stopped, and a `once` call then ends as `outcome_unknown`. The other calls end as `cancelled`. An
/// unknown id is an error, unless `--early` is set.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet cancel demo:t1700000000000-0
  tickfleet cancel demo t1700000000000-0 --reason 'the user left'")]
pub(crate) struct Cancel {
    /// The tenant, or tenant:id.
    #[arg(value_name = "TENANT")]
    tenant: String,
    /// Id of the turn or task.
    #[arg(value_name = "ID")]
    id: Option<TurnId>,
    /// Reason for the record.
    #[arg(long, default_value = "cancelled by an operator", value_parser = reason)]
    reason: String,
    /// Accept an unknown id. A turn or task that arrives under it within 24 h ends without running.
    #[arg(long)]
    early: bool,
    #[command(flatten)]
    by: By,
}

#[derive(Serialize)]
struct CancelOutput<'a> {
    tenant: &'a TenantId,
    id: &'a TurnId,
    result: &'static str,
}

pub(crate) async fn run(setup: &Setup, args: &Cancel, output: &Output) -> Result<(), Failure> {
    let name = parse_turn_name(&args.tenant, args.id.as_ref())?;
    // A cancellation in an emergency must not fail because `USER` is not set.
    let by = args.by.name().unwrap_or_else(|_| "somebody".into());
    let context = setup.operator(by, output).await?;
    context.check_name(FleetName::Tenant(&name.tenant)).await?;
    let client = &context.client;
    if !args.early && !end_many::turn_exists(client, &name).await? {
        return Err(Failure::failed(anyhow::anyhow!(
            "unknown turn or task {name}: it has not arrived, was rejected, or its record has expired. tickfleet \
             turns list and tickfleet tasks list show all. With --early, a turn or task that arrives later with this \
             id ends without running"
        )));
    }
    end_many::note(client, std::slice::from_ref(&name), "", context.operator(&args.reason)).await?;
    let cancelled = client.cancel(&name, &args.reason).await?;
    let (word, said) = match cancelled {
        CancelResult::Ok => ("ok", "it ends now: calls that have not run get the result `cancelled`"),
        CancelResult::Flagged => ("flagged", "it ends as soon as its worker receives the cancellation"),
        CancelResult::Ended => ("ended", "it had already ended"),
        CancelResult::Waiting => (
            "waiting",
            "no turn or task with this id has been admitted, or its record has expired; if it arrives within 24 h, it \
             ends without running",
        ),
        CancelResult::Full => {
            return Err(Failure::failed(anyhow::anyhow!(
                "{name} has not been admitted, and the tenant has too many early cancels: this one was not stored. \
                 Cancel it again after admission"
            )));
        }
        CancelResult::Unknown => {
            return Err(Failure::failed(anyhow::anyhow!("{name} was admitted, but its record is lost")));
        }
    };
    let shown = CancelOutput { tenant: &name.tenant, id: &name.turn, result: word };
    output.show(&shown, |_| format!("{name}: {said}"))
}
