//! Operator requests that need the fleet's configuration. Only the process that starts a gateway has the configuration,
//! so it implements these requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_client::rules::ConfiguredRule;
use tickfleet_client::verbs::{FleetNames, VerbError};
use tickfleet_client::{Approval, ApprovalError};
use tickfleet_model::approval::NarrowedValues;
use tickfleet_model::day::Tz;
use tickfleet_model::{AgentId, Redactor, TenantId};

pub type BackendFuture<'a, T = Value> = BoxFuture<'a, Result<T, VerbError>>;

#[derive(Debug, Clone, Default)]
pub struct LimitFilter {
    /// `None` selects all limits and caps.
    pub limit: Option<String>,
    pub tenant: Option<TenantId>,
    pub agent: Option<AgentId>,
    /// Counters per limit, the fullest first: 1 to 100.
    pub top: u8,
}

pub trait OperatorBackend: Send + Sync {
    fn overview(&self) -> BackendFuture<'_>;

    /// Returns `{"story": …, "lines": […]}`. `id` is `<turn>` or `<turn>/<position>`. Without a tenant, all tenants are
    /// searched.
    fn explain<'a>(&'a self, tenant: Option<&'a TenantId>, id: &'a str) -> BackendFuture<'a, Box<RawValue>>;

    fn limits<'a>(&'a self, filter: &'a LimitFilter) -> BackendFuture<'a>;

    /// Secrets are masked.
    fn configuration(&self) -> BackendFuture<'_>;

    fn rules(&self) -> BackendFuture<'_, Vec<ConfiguredRule>>;

    fn names(&self) -> BackendFuture<'_, FleetNames>;

    fn zones(&self) -> BackendFuture<'_, BTreeMap<TenantId, Tz>>;

    /// Returns the roles; `None` if there is no such approver.
    fn approver<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Option<BTreeSet<String>>>;

    fn check_narrowed<'a>(
        &'a self,
        approval: &'a Approval,
        changes: &'a NarrowedValues,
    ) -> BoxFuture<'a, Result<(), ApprovalError>>;

    fn redactor(&self) -> Arc<Redactor>;
}
