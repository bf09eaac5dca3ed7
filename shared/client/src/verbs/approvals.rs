use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::value::RawValue;
use tickfleet_model::TenantId;
use tickfleet_model::approval::{NarrowedValues, is_same};

use super::{FilteredNames, Reason, VerbContext, VerbError, or_default, split_tenant};
use crate::approvals::{RequiredApprovers, nearest_approvals};
use crate::{Approval, ApprovalError, ApprovalVerdict, VerdictResult};

/// An approval with its reason and changed arguments.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApproveRequest {
    /// Reason for the audit log.
    #[serde(default, deserialize_with = "Reason::optional")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "agreed with Ben"))]
    pub reason: Option<Reason>,
    /// New values of arguments that can be changed, by JSON pointer.
    #[serde(default, deserialize_with = "or_default")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>, example = json!({})))]
    pub set: NarrowedValues,
    /// Changes by another approver: the approval's `narrowed` as it was shown. If it has changed since, the response
    /// is 409.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub narrowed: Option<Box<RawValue>>,
}

/// The reason for a denial.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DenyRequest {
    /// Reason for the agent and the audit log.
    #[cfg_attr(feature = "cli", arg(long))]
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "not this month"))]
    pub reason: Reason,
}

/// The approver in whose name a person decides. The caller authenticates the person.
#[derive(Debug, Clone, Copy)]
pub struct Approver<'a> {
    /// The name in `permissions.yaml`.
    pub name: &'a str,
    /// The roles in the active configuration.
    pub roles: &'a BTreeSet<String>,
}

impl VerbContext<'_> {
    /// Finds an approval by `tenant:id`. If `name` has no tenant, searches all tenants of the operator.
    pub async fn find_approval(&self, name: &str) -> Result<Approval, VerbError> {
        let (tenant, id) = split_tenant(self.tenant.as_ref(), name)?;
        let tenants: Vec<TenantId> = match &tenant {
            Some(tenant) => vec![tenant.clone()],
            None => self.names.tenants(&self.client).await?.into_iter().collect(),
        };
        if let Some(found) = self.client.approval_of_any(&tenants, id).await? {
            return Ok(found);
        }
        let filter = FilteredNames { tenant: tenant.as_ref(), ..FilteredNames::default() };
        self.names.check_filter(&self.client, filter).await?;
        let near = nearest_approvals(&self.client, &tenants, id).await?;
        let near = if near.is_empty() { String::new() } else { format!(". Nearest waiting: {}", near.join(", ")) };
        Err(VerbError::Unknown(format!("{name}: {}{near}", ApprovalError::Unknown)))
    }
}

impl ApproveRequest {
    /// Approves the call. The caller must first check changed arguments against the tool's schema.
    pub async fn run(
        &self,
        context: &VerbContext<'_>,
        approval: &Approval,
        approver: Approver<'_>,
    ) -> Result<VerdictResult, VerbError> {
        let seen = match &self.narrowed {
            None => None,
            Some(shown) => changes_seen(approval, shown)?,
        };
        let changes = Changes { narrow: self.set.clone(), seen };
        decide(context, approval, approver, (true, self.reason.as_ref().map_or("", Reason::as_str)), changes).await
    }
}

impl DenyRequest {
    /// Denies the call.
    pub async fn run(
        &self,
        context: &VerbContext<'_>,
        approval: &Approval,
        approver: Approver<'_>,
    ) -> Result<VerdictResult, VerbError> {
        decide(context, approval, approver, (false, self.reason.as_str()), Changes::default()).await
    }
}

#[derive(Default)]
struct Changes<'a> {
    narrow: NarrowedValues,
    seen: Option<&'a RawValue>,
}

async fn decide(
    context: &VerbContext<'_>,
    approval: &Approval,
    approver: Approver<'_>,
    (agrees, reason): (bool, &str),
    changes: Changes<'_>,
) -> Result<VerdictResult, VerbError> {
    let Changes { narrow, seen } = changes;
    let verdict = ApprovalVerdict {
        by: approver.name,
        roles: approver.roles,
        agrees,
        reason,
        narrow,
        seen,
        redactor: &context.redactor,
    };
    let counted = context.client.decide_approval(&approval.tenant, &approval.id, &verdict).await;
    counted.map_err(|error| rejected_decision(approval, error))
}

/// Compares by value, with all digits, because JSON clients format values differently. Returns the recorded text,
/// because the store compares the text again.
fn changes_seen<'a>(approval: &'a Approval, shown: &RawValue) -> Result<Option<&'a RawValue>, VerbError> {
    match approval.narrowed.as_deref() {
        Some(now) if is_same(now, shown) => Ok(Some(now)),
        _ => Err(rejected_decision(approval, ApprovalError::Changed)),
    }
}

/// Returns [`VerbError::Forbidden`] if the approver may not decide, and [`VerbError::Conflict`] if the approval was
/// decided or has changed. Invalid changes are [`VerbError::Invalid`].
#[must_use]
pub fn rejected_decision(approval: &Approval, error: ApprovalError) -> VerbError {
    let message = format!("{}:{}: {error}", approval.tenant, approval.id);
    match error {
        ApprovalError::Store(error) => error.into(),
        ApprovalError::Unknown => VerbError::Unknown(message),
        ApprovalError::Role(_) => {
            let needs: Vec<String> = approval.needs.iter().map(RequiredApprovers::in_words).collect();
            VerbError::Forbidden(format!("{message}; it needs {}", needs.join(" and ")))
        }
        ApprovalError::Own => VerbError::Forbidden(message),
        ApprovalError::Changed => {
            let now = approval.narrowed.as_ref().map_or("none", |narrowed| narrowed.get());
            VerbError::Conflict(format!("{message}: {now}. Accept them (narrowed), or change more (set)"))
        }
        ApprovalError::Ended(_) | ApprovalError::Gone | ApprovalError::Again(_) => VerbError::Conflict(message),
        ApprovalError::Narrow(_) | ApprovalError::Schema(_) | ApprovalError::TooLong(_) => VerbError::Invalid(message),
    }
}
