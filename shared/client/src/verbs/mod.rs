//! Verbs of operators, such as `pause`. START HERE: [`OperatorVerb`].

mod approvals;
mod dead;
mod limits;
mod names;
mod pause;
mod reason;
mod tools;
mod turns;
mod workers;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use tickfleet_model::{IdError, Redactor, TenantId, TurnId};
use tickfleet_store::{StoreError, TurnName};

use crate::Client;
use crate::operate::Operator;

pub use crate::end_many::CancelSelection;
pub use approvals::{ApproveRequest, Approver, DenyRequest, rejected_decision};
pub use dead::{DeadReport, DropRequest, ReplayRequest};
pub use limits::{ResetLimitRequest, ResetReport, in_unit};
pub use names::{FilteredNames, FleetName, FleetNames};
pub use pause::{
    ActivePause, ActivePauses, PauseRequest, PauseTarget, ResumeRequest, ToolPaused, pause_tool, resume_tool,
};
pub use reason::Reason;
pub use tools::{DisableToolRequest, DisabledTool, DisabledTools, EnableToolRequest, switch_tool};
pub use turns::{CancelReport, CancelTurnsRequest, TurnCancelResult};
pub use workers::{DrainWorkerRequest, ResumeWorkerRequest};

/// A verb of operators. Its type is the body of the HTTP request and the arguments of the command. The documentation of
/// the type and of its fields is the help of the command and the text in the OpenAPI document and in the console.
/// A verb requires the permission `operate`.
pub trait OperatorVerb: DeserializeOwned + Send + Sync + 'static {
    /// The name, and the path below `/v1/operate/`.
    const NAME: &'static str;
    /// True if only an operator of all tenants may run the verb.
    const IS_OF_FLEET: bool = false;
    /// False if the command must also run without the operator's name, because it is needed in an emergency.
    const NEEDS_NAME: bool = true;
    /// Statuses of HTTP with their meaning, besides the common ones.
    const ERRORS: &'static [(u16, &'static str)];
    /// The result, with the same form in `--json` and over HTTP. [`Display`](fmt::Display) writes it for people.
    type Report: Serialize + fmt::Display + Send;

    /// Runs the verb.
    fn run(&self, context: &VerbContext<'_>) -> impl Future<Output = Result<Self::Report, VerbError>> + Send;
}

const UNKNOWN_NAME: (u16, &str) = (404, "Unknown name. The message suggests similar names");
const PARTIAL_CHANGE: (u16, &str) =
    (503, "Redis is unavailable. A part of the change may have been applied; repeat the request");

/// The result of a change.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeReport {
    /// False if nothing changed.
    pub changed: bool,
    /// The result in words.
    pub message: String,
}

impl fmt::Display for ChangeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The fleet, and the operator who runs the verb.
#[derive(Clone)]
pub struct VerbContext<'a> {
    /// The fleet.
    pub client: Client,
    /// The names of the local configuration.
    pub names: FleetNames,
    /// The operator's name in the audit log.
    pub by: String,
    /// The only tenant of the operator. `None` if the operator may act on all tenants.
    pub tenant: Option<TenantId>,
    /// Removes secrets from stored text.
    pub redactor: Arc<Redactor>,
    /// Receives remarks.
    pub remarks: &'a dyn Remarks,
}

/// Receives remarks for the operator. `()` drops them.
pub trait Remarks: Send + Sync {
    /// Shows one remark.
    fn remark(&self, text: &str);
}

impl Remarks for () {
    fn remark(&self, _: &str) {}
}

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum VerbError {
    /// A field of the request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The operator is not allowed to run this verb.
    #[error("{0}")]
    Forbidden(String),
    /// The fleet does not have the name. The message suggests similar names.
    #[error("{0}")]
    Unknown(String),
    /// The fleet's state does not allow the change.
    #[error("{0}")]
    Conflict(String),
    /// The configuration cannot be read, or Redis is unavailable. The text is for the log.
    #[error("{0}")]
    Unavailable(String),
    /// The request to Redis failed. The call can be repeated.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl VerbContext<'_> {
    /// The operator, as functions that write to the audit log need it.
    #[must_use]
    pub fn operator<'b>(&'b self, reason: impl Into<Option<&'b Reason>>) -> Operator<'b> {
        Operator { by: &self.by, reason: reason.into().map_or("", Reason::as_str), redactor: &self.redactor }
    }

    /// Checks that the fleet has this name. If only the local configuration lacks the name, and this configuration is
    /// not in force, the operator receives a remark.
    pub async fn check_name(&self, name: FleetName<'_>) -> Result<(), VerbError> {
        match self.names.find_unknown(&self.client, name).await? {
            None => Ok(()),
            Some(unknown) if unknown.is_in_force_here => Err(VerbError::Unknown(unknown.message)),
            Some(unknown) => {
                let text = format!("{} This configuration is not the policy in force.", unknown.message);
                self.remarks.remark(&text);
                Ok(())
            }
        }
    }

    /// The tenant can be missing if the operator is restricted to one tenant.
    fn parse_turn_name(&self, text: &str) -> Result<TurnName, VerbError> {
        let (tenant, id) = split_tenant(self.tenant.as_ref(), text)?;
        let turn = TurnId::new(id).map_err(|error| VerbError::Invalid(format!("{text:?}: {error}")))?;
        let tenant = tenant.ok_or_else(|| VerbError::Invalid(format!("{text:?}: expected tenant:id")))?;
        Ok(TurnName { tenant, turn })
    }
}

/// Parses an optional field. An empty text counts as absent.
pub fn optional<T: FromStr<Err = IdError>>(name: &str, text: Option<&str>) -> Result<Option<T>, VerbError> {
    let read = text.filter(|text| !text.is_empty()).map(str::parse).transpose();
    read.map_err(|error| VerbError::Invalid(format!("{name}: {error}")))
}

/// Restricts a requested tenant to the operator's tenant `own`. `None` means all tenants.
///
/// # Errors [`VerbError::Invalid`]: invalid tenant. [`VerbError::Forbidden`]: a tenant other than `own`.
pub fn restrict_tenant(own: Option<&TenantId>, requested: Option<&str>) -> Result<Option<TenantId>, VerbError> {
    match (own, optional("tenant", requested)?) {
        (Some(own), Some(requested)) if *own != requested => {
            Err(VerbError::Forbidden(format!("the key is for tenant {own} only")))
        }
        (own, requested) => Ok(requested.or_else(|| own.cloned())),
    }
}

/// Splits `tenant:id`. The tenant of a plain `id` is `own`.
pub fn split_tenant<'a>(own: Option<&TenantId>, text: &'a str) -> Result<(Option<TenantId>, &'a str), VerbError> {
    match text.split_once(':') {
        Some((tenant, id)) => Ok((restrict_tenant(own, Some(tenant))?, id)),
        None => Ok((restrict_tenant(own, None)?, text)),
    }
}

/// Deserializes a member. Null counts as absent.
pub fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(from).map(Option::unwrap_or_default)
}
