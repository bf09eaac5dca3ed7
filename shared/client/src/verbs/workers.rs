use serde::Deserialize;

use super::{VerbContext, VerbError, or_default};
use crate::workers::{WorkerDrainResult, drain, no_worker, resume};

/// Worker to drain or resume.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DrainWorkerRequest {
    /// Name from the list.
    #[cfg_attr(feature = "openapi", schema(example = "w-host-7-1a4"))]
    pub worker: String,
    /// Reason for the audit log and the list. Optional for a resume.
    #[serde(default, deserialize_with = "or_default")]
    #[cfg_attr(feature = "openapi", schema(example = "the machine gets a new kernel"))]
    pub reason: String,
}

impl DrainWorkerRequest {
    /// Drains the worker, or resumes it if `drains` is false. Returns false if nothing changed.
    ///
    /// # Errors
    /// [`VerbError::Unknown`]; [`VerbError::Conflict`]: too many workers are drained; [`VerbError::Store`].
    pub async fn run(&self, context: &VerbContext<'_>, drains: bool) -> Result<bool, VerbError> {
        let stores = context.client.stores();
        let operator = context.operator(&self.reason);
        let set = if drains {
            drain(stores, &self.worker, operator).await?
        } else {
            resume(stores, &self.worker, operator).await?
        };
        match set {
            WorkerDrainResult::Ok => Ok(true),
            WorkerDrainResult::None => Ok(false),
            WorkerDrainResult::Unknown => Err(VerbError::Unknown(no_worker(stores, &self.worker).await?)),
            WorkerDrainResult::Full => {
                Err(VerbError::Conflict("too many workers are drained: resume some first".into()))
            }
        }
    }
}
