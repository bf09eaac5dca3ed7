use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use tickfleet_model::TenantId;
use tickfleet_store::{CancelResult, TurnName};

use super::{FleetName, OperatorVerb, PARTIAL_CHANGE, Reason, VerbContext, VerbError, or_default};
use crate::end_many::{CancelSelection, end_many};

const IDS_MAX: usize = 500;

/// Cancel turns, and tasks with their subtasks.
///
/// Running calls are stopped; a `once` call then ends as `outcome_unknown`. The other calls end as `cancelled`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CancelTurnsRequest {
    /// Names, as `tenant:id`, at most 500.
    #[cfg_attr(feature = "cli", arg(value_name = "TENANT:ID", required = true))]
    #[cfg_attr(feature = "openapi", schema(example = json!(["demo:order-17"])))]
    pub ids: Vec<String>,
    /// Reason for the audit log and the agents.
    #[cfg_attr(feature = "cli", arg(long, default_value = "canceled by an operator"))]
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "sold out"))]
    pub reason: Reason,
    /// Accept unknown ids. A turn or task that arrives under one within 24 h ends without running.
    #[serde(default, deserialize_with = "or_default")]
    #[cfg_attr(feature = "cli", arg(long))]
    pub early: bool,
}

/// Result for one turn or task.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TurnCancelResult {
    /// Its name.
    pub id: String,
    /// `ok`: canceled. `flagged`: ends when its worker sees the cancel. `ended`: had already ended. `waiting`: ends
    /// once it is admitted. `full`: too many cancels wait; this one was not stored. `unknown`: no such turn or task;
    /// nothing was stored. If all ids are unknown, the response is 404.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "ok"))]
    pub result: CancelResult,
}

/// The results for turns and tasks, in the order of the request.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CancelReport(pub Vec<TurnCancelResult>);

impl fmt::Display for CancelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, TurnCancelResult { id, result }) in self.0.iter().enumerate() {
            let text = match result {
                CancelResult::Ok => "it ends now: calls that have not run get the result `cancelled`",
                CancelResult::Flagged => "it ends as soon as its worker receives the cancellation",
                CancelResult::Ended => "it had already ended",
                CancelResult::Waiting => {
                    "no turn or task with this id has been admitted, or its record has expired; if it arrives within \
                     24 h, it ends without running"
                }
                CancelResult::Full => "not canceled: the tenant has too many early cancels. Cancel it after admission",
                CancelResult::Unknown => "unknown, or its record is lost",
            };
            write!(f, "{}{id}: {text}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl OperatorVerb for CancelTurnsRequest {
    const NAME: &'static str = "cancel";
    const NEEDS_NAME: bool = false;
    const ERRORS: &'static [(u16, &'static str)] = &[
        (404, "None of the turns and tasks exists"),
        (409, "None was canceled: the tenant has too many early cancels"),
        PARTIAL_CHANGE,
    ];
    type Report = CancelReport;

    async fn run(&self, context: &VerbContext<'_>) -> Result<CancelReport, VerbError> {
        if self.ids.is_empty() || self.ids.len() > IDS_MAX {
            return Err(VerbError::Invalid(format!("ids: expected 1 to {IDS_MAX}")));
        }
        let names = self.ids.iter().map(|id| context.parse_turn_name(id)).collect::<Result<Vec<_>, _>>()?;
        if self.early {
            context.check_tenants(&names).await?;
        }
        let selection = if self.early { CancelSelection::Early } else { CancelSelection::Named };
        let results = context.cancel_turns(&names, selection, &self.reason).await?;
        let results = names.iter().zip(results).map(|(name, result)| TurnCancelResult { id: name.to_string(), result });
        let report = CancelReport(results.collect());
        let is_full = report.0.iter().all(|one| one.result == CancelResult::Full);
        if is_full { Err(VerbError::Conflict(report.to_string())) } else { Ok(report) }
    }
}

impl VerbContext<'_> {
    /// Cancels turns and tasks.
    ///
    /// # Errors
    /// [`VerbError::Unknown`]: none of the turns and tasks exists. [`VerbError::Store`]: the first turns may have been
    /// canceled.
    pub async fn cancel_turns(
        &self,
        names: &[TurnName],
        selection: CancelSelection<'_>,
        reason: &Reason,
    ) -> Result<Vec<CancelResult>, VerbError> {
        let answers = end_many(&self.client, names, selection, self.operator(reason)).await?;
        let Some(first) = names.first() else { return Ok(answers) };
        // Turns from a filter existed at the selection, so it is not an error if all have ended since then.
        let is_filtered = matches!(selection, CancelSelection::Filter(_));
        if is_filtered || answers.iter().any(|answer| *answer != CancelResult::Unknown) {
            return Ok(answers);
        }
        self.check_tenants(names).await?;
        let more = names.len() - 1;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Err(VerbError::Unknown(format!(
            "unknown turn or task {first}{more}: not arrived, rejected, or its record has expired. tickfleet turns list \
             and tickfleet tasks list show all. An early cancel also ends a turn or task that arrives later"
        )))
    }

    async fn check_tenants(&self, names: &[TurnName]) -> Result<(), VerbError> {
        let tenants: BTreeSet<&TenantId> = names.iter().map(|name| &name.tenant).collect();
        for tenant in tenants {
            self.check_name(FleetName::Tenant(tenant)).await?;
        }
        Ok(())
    }
}
