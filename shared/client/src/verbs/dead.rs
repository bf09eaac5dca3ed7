use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{OperatorVerb, PARTIAL_CHANGE, Reason, VerbContext, VerbError, or_default};
use crate::dead::{DeadAction, DeadId, ReplayReport, handle};

const IDS_MAX: usize = 500;

/// Replay dead letters, calls and tasks.
///
/// A call becomes a new turn of its agent, with a new idempotency key, under caps and permissions. Repeating the request
/// sends nothing twice.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplayRequest {
    /// Ids, at most 500.
    #[cfg_attr(feature = "openapi", schema(example = json!(["call-0-1764130000000-0"])))]
    pub ids: Vec<String>,
    /// Reason for the audit log.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "the service is back"))]
    pub reason: Reason,
    /// Message to send instead, of a turn or task. Requires exactly one id.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub message: Option<Box<RawValue>>,
    /// Include entries that may already have taken effect.
    #[serde(default, deserialize_with = "or_default")]
    pub allow_duplicate_effects: bool,
}

/// Drop dead letters, calls and tasks.
///
/// Dead letters are deleted. Calls and tasks are no longer listed but stay in the audit log.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DropRequest {
    /// Ids, at most 500.
    #[cfg_attr(feature = "openapi", schema(example = json!(["letter-0-1764130000000-0"])))]
    pub ids: Vec<String>,
    /// Reason for the audit log.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "of no use"))]
    pub reason: Reason,
}

/// One result per entry, in the order of the request.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = Vec<Object>))]
pub struct DeadReport(pub Vec<ReplayReport>);

impl fmt::Display for DeadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|one| writeln!(f, "{one}"))
    }
}

impl OperatorVerb for ReplayRequest {
    const NAME: &'static str = "dead/replay";
    const ERRORS: &'static [(u16, &'static str)] = &[PARTIAL_CHANGE];
    type Report = DeadReport;

    async fn run(&self, context: &VerbContext<'_>) -> Result<DeadReport, VerbError> {
        if self.message.is_some() && self.ids.len() != 1 {
            return Err(VerbError::Invalid("message: requires exactly one id".into()));
        }
        let message = self.message.as_deref().map(|message| message.get().as_bytes());
        let allow_duplicate_effects = self.allow_duplicate_effects;
        handle_all(context, &self.ids, DeadAction::Replay { message, allow_duplicate_effects }, &self.reason).await
    }
}

impl OperatorVerb for DropRequest {
    const NAME: &'static str = "dead/drop";
    const ERRORS: &'static [(u16, &'static str)] = &[PARTIAL_CHANGE];
    type Report = DeadReport;

    async fn run(&self, context: &VerbContext<'_>) -> Result<DeadReport, VerbError> {
        handle_all(context, &self.ids, DeadAction::Drop, &self.reason).await
    }
}

async fn handle_all(
    context: &VerbContext<'_>,
    ids: &[String],
    action: DeadAction<'_>,
    reason: &Reason,
) -> Result<DeadReport, VerbError> {
    if ids.is_empty() || ids.len() > IDS_MAX {
        return Err(VerbError::Invalid(format!("ids: expected 1 to {IDS_MAX}")));
    }
    let ids = ids.iter().map(|id| DeadId::parse(id)).collect::<Result<Vec<_>, _>>()?;
    let mut results = Vec::with_capacity(ids.len());
    for id in &ids {
        results.push(context.handle_dead(id, action, reason).await?);
    }
    Ok(DeadReport(results))
}

impl VerbContext<'_> {
    /// Replays or drops one entry.
    pub async fn handle_dead(
        &self,
        id: &DeadId,
        action: DeadAction<'_>,
        reason: &Reason,
    ) -> Result<ReplayReport, VerbError> {
        Ok(handle(self.client.stores(), id, action, self.tenant.as_ref(), self.operator(reason)).await?)
    }
}

impl DeadId {
    /// Parses an id.
    pub fn parse(text: &str) -> Result<Self, VerbError> {
        text.parse().map_err(|error: String| VerbError::Invalid(format!("{text:?}: {error}")))
    }
}
