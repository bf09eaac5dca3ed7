use serde::Deserialize;

use super::{ChangeReport, OperatorVerb, Reason, VerbContext, VerbError};
use crate::workers::{WorkerDrainResult, drain, no_worker, resume};

const UNKNOWN_WORKER: (u16, &str) = (404, "Unknown worker");

/// Drain a worker: it takes no new work, finishes its current work, and stays alive.
///
/// Other workers take the rest. The drain reaches the worker with its next heartbeat, within a quarter of
/// `worker.lease`, and lasts until a resume or the end of the process.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DrainWorkerRequest {
    /// Worker id from the list, or a name from `tickfleet top`.
    #[cfg_attr(feature = "cli", arg(value_name = "NAME"))]
    #[cfg_attr(feature = "openapi", schema(example = "w-host-7-1a4"))]
    pub worker: String,
    /// Reason for the audit log and the list.
    #[cfg_attr(feature = "cli", arg(long))]
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "the machine gets a new kernel"))]
    pub reason: Reason,
}

/// Resume a drained worker. It takes new work again.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResumeWorkerRequest {
    /// Worker id from the list, or a name from `tickfleet top`.
    #[cfg_attr(feature = "cli", arg(value_name = "NAME"))]
    #[cfg_attr(feature = "openapi", schema(example = "w-host-7-1a4"))]
    pub worker: String,
    /// Reason for the audit log.
    #[serde(default, deserialize_with = "Reason::optional")]
    #[cfg_attr(feature = "cli", arg(long))]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub reason: Option<Reason>,
}

impl OperatorVerb for DrainWorkerRequest {
    const NAME: &'static str = "workers/drain";
    const IS_OF_FLEET: bool = true;
    const ERRORS: &'static [(u16, &'static str)] = &[UNKNOWN_WORKER, (409, "Too many drained workers")];
    type Report = ChangeReport;

    async fn run(&self, context: &VerbContext<'_>) -> Result<ChangeReport, VerbError> {
        let result = drain(context.client.stores(), &self.worker, context.operator(&self.reason)).await?;
        report(
            context,
            &self.worker,
            result,
            [
                "takes no new work as soon as it receives the drain, and finishes its current work",
                "was drained already",
            ],
        )
        .await
    }
}

impl OperatorVerb for ResumeWorkerRequest {
    const NAME: &'static str = "workers/resume";
    const IS_OF_FLEET: bool = true;
    const ERRORS: &'static [(u16, &'static str)] = &[UNKNOWN_WORKER];
    type Report = ChangeReport;

    async fn run(&self, context: &VerbContext<'_>) -> Result<ChangeReport, VerbError> {
        let result = resume(context.client.stores(), &self.worker, context.operator(&self.reason)).await?;
        report(
            context,
            &self.worker,
            result,
            ["takes new work again as soon as it receives the change", "was not drained"],
        )
        .await
    }
}

async fn report(
    context: &VerbContext<'_>,
    worker: &str,
    result: WorkerDrainResult,
    [done, unchanged]: [&str; 2],
) -> Result<ChangeReport, VerbError> {
    let changed = match result {
        WorkerDrainResult::Ok => true,
        WorkerDrainResult::None => false,
        WorkerDrainResult::Unknown => {
            return Err(VerbError::Unknown(no_worker(context.client.stores(), worker).await?));
        }
        WorkerDrainResult::Full => {
            return Err(VerbError::Conflict("too many workers are drained: resume some first".into()));
        }
    };
    Ok(ChangeReport { changed, message: format!("{worker} {}", if changed { done } else { unchanged }) })
}
