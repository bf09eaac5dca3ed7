use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tickfleet_model::TenantId;
use tickfleet_store::TurnName;

use super::{FleetName, VerbContext, VerbError};
use crate::end_many::end_many;
use crate::tasks::CancelStatus;

const IDS_MAX: usize = 500;

/// Turns and tasks to cancel.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CancelTurnsRequest {
    /// Names, as `tenant:id`, at most 500.
    #[cfg_attr(feature = "openapi", schema(example = json!(["demo:order-17"])))]
    pub ids: Vec<String>,
    /// Reason for the audit log and the agents.
    #[cfg_attr(feature = "openapi", schema(example = "sold out"))]
    pub reason: String,
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
    pub result: CancelStatus,
}

impl CancelTurnsRequest {
    /// Cancels the turns and tasks, with results in the same order.
    ///
    /// # Errors
    /// [`VerbError::Invalid`]; [`VerbError::Forbidden`]; [`VerbError::Unknown`]: none of the ids exists.
    /// [`VerbError::Store`]: the first ids may have been canceled.
    pub async fn run(&self, context: &VerbContext<'_>) -> Result<Vec<TurnCancelResult>, VerbError> {
        if self.ids.is_empty() || self.ids.len() > IDS_MAX {
            return Err(VerbError::Invalid(format!("ids: expected 1 to {IDS_MAX}")));
        }
        let names = self.ids.iter().map(|id| context.parse_turn_name(id)).collect::<Result<Vec<_>, _>>()?;
        let answers = context.cancel_turns(&names, "", &self.reason).await?;
        Ok(names.iter().zip(answers).map(|(name, result)| TurnCancelResult { id: name.to_string(), result }).collect())
    }
}

impl VerbContext<'_> {
    /// Cancels the turns and tasks that `filter` selected. The audit log records `filter`, unless it is empty.
    ///
    /// # Errors
    /// [`VerbError::Unknown`]: none of the turns and tasks exists. [`VerbError::Store`]: the first turns may have been
    /// canceled.
    pub async fn cancel_turns(
        &self,
        names: &[TurnName],
        filter: &str,
        reason: &str,
    ) -> Result<Vec<CancelStatus>, VerbError> {
        let answers = end_many(&self.client, names, filter, self.operator(reason)).await?;
        let Some(first) = names.first() else { return Ok(answers) };
        // Turns from a filter existed at the selection, so it is not an error if all have ended since then.
        if !filter.is_empty() || answers.iter().any(|answer| *answer != CancelStatus::Unknown) {
            return Ok(answers);
        }
        let tenants: BTreeSet<&TenantId> = names.iter().map(|name| &name.tenant).collect();
        for tenant in tenants {
            self.check_name(FleetName::Tenant(tenant)).await?;
        }
        let more = names.len() - 1;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Err(VerbError::Unknown(format!(
            "unknown turn or task {first}{more}: not arrived, rejected, or its record has expired. tickfleet turns list \
             and tickfleet tasks list show all"
        )))
    }
}
