//! Verbs of operators, such as `pause`. A verb is a request type. The command line and the HTTP API call the same
//! verbs.

mod approvals;
mod dead;
mod names;
mod pause;
mod tools;
mod turns;
mod workers;

use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use tickfleet_model::{IdError, Redactor, TenantId, TurnId};
use tickfleet_store::{StoreError, TurnName};

use crate::Client;
use crate::operate::Operator;

pub use approvals::{ApproveRequest, Approver, DenyRequest, rejected_decision};
pub use dead::{DropRequest, ReplayRequest};
pub use names::{FilteredNames, FleetName, FleetNames};
pub use pause::{ActivePause, ActivePauses, PauseReport, PauseRequest, PauseTarget};
pub use tools::{DisabledTool, DisabledTools, SwitchToolRequest};
pub use turns::{CancelTurnsRequest, TurnCancelResult};
pub use workers::DrainWorkerRequest;

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
    pub fn operator<'b>(&'b self, reason: &'b str) -> Operator<'b> {
        Operator { by: &self.by, reason, redactor: &self.redactor }
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
