use serde::Deserialize;
use serde_json::value::RawValue;

use super::{VerbContext, VerbError, or_default};
use crate::dead::{DeadAction, DeadId, ReplayReport, handle};

const IDS_MAX: usize = 500;

/// Entries to replay.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplayRequest {
    /// Ids, at most 500.
    #[cfg_attr(feature = "openapi", schema(example = json!(["call-0-1764130000000-0"])))]
    pub ids: Vec<String>,
    /// Reason for the audit log.
    #[cfg_attr(feature = "openapi", schema(example = "the service is back"))]
    pub reason: String,
    /// Message to send instead, of a turn or task. Requires exactly one id.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub message: Option<Box<RawValue>>,
    /// Include entries that may already have taken effect.
    #[serde(default, deserialize_with = "or_default")]
    pub allow_duplicate_effects: bool,
}

/// Entries to drop.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DropRequest {
    /// Ids, at most 500.
    #[cfg_attr(feature = "openapi", schema(example = json!(["letter-0-1764130000000-0"])))]
    pub ids: Vec<String>,
    /// Reason for the audit log.
    #[cfg_attr(feature = "openapi", schema(example = "of no use"))]
    pub reason: String,
}

impl ReplayRequest {
    /// Replays the entries, with results in the same order.
    ///
    /// # Errors
    /// [`VerbError::Invalid`]; [`VerbError::Store`]: the first entries may have been replayed.
    pub async fn run(&self, context: &VerbContext<'_>) -> Result<Vec<ReplayReport>, VerbError> {
        let ids = parse_ids(&self.ids)?;
        if self.message.is_some() && ids.len() != 1 {
            return Err(VerbError::Invalid("message: requires exactly one id".into()));
        }
        let message = self.message.as_deref().map(|message| message.get().as_bytes());
        let allow_duplicate_effects = self.allow_duplicate_effects;
        handle_all(context, &ids, DeadAction::Replay { message, allow_duplicate_effects }, &self.reason).await
    }
}

impl DropRequest {
    /// Drops the entries, with results in the same order.
    ///
    /// # Errors
    /// [`VerbError::Invalid`]; [`VerbError::Store`]: the first entries may have been dropped.
    pub async fn run(&self, context: &VerbContext<'_>) -> Result<Vec<ReplayReport>, VerbError> {
        handle_all(context, &parse_ids(&self.ids)?, DeadAction::Drop, &self.reason).await
    }
}

async fn handle_all(
    context: &VerbContext<'_>,
    ids: &[DeadId],
    action: DeadAction<'_>,
    reason: &str,
) -> Result<Vec<ReplayReport>, VerbError> {
    let mut reports = Vec::with_capacity(ids.len());
    for id in ids {
        reports.push(context.handle_dead(id, action, reason).await?);
    }
    Ok(reports)
}

impl VerbContext<'_> {
    /// Replays or drops one entry.
    pub async fn handle_dead(
        &self,
        id: &DeadId,
        action: DeadAction<'_>,
        reason: &str,
    ) -> Result<ReplayReport, VerbError> {
        Ok(handle(self.client.stores(), id, action, self.tenant.as_ref(), self.operator(reason)).await?)
    }
}

fn parse_ids(ids: &[String]) -> Result<Vec<DeadId>, VerbError> {
    if ids.is_empty() || ids.len() > IDS_MAX {
        return Err(VerbError::Invalid(format!("ids: expected 1 to {IDS_MAX}")));
    }
    ids.iter().map(|id| DeadId::parse(id)).collect()
}

impl DeadId {
    /// Parses an id.
    pub fn parse(text: &str) -> Result<Self, VerbError> {
        text.parse().map_err(|error: String| VerbError::Invalid(format!("{text:?}: {error}")))
    }
}
