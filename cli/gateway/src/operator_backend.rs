//! Operator requests that need the configuration in addition to Redis. The process that starts a gateway has the
//! configuration.

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
    /// Selects only limits that apply to calls of this tenant.
    pub tenant: Option<TenantId>,
    /// Selects only limits that apply to calls of this agent of the tenant.
    pub agent: Option<AgentId>,
    /// Counters per limit, the fullest first: 1 to 100.
    pub top: u8,
}

/// Provides the views of `tickfleet top`, `explain`, `limits` and `config print`.
pub trait OperatorBackend: Send + Sync {
    /// Returns backlog, rates, processes, and tools by outcome.
    fn overview(&self) -> BackendFuture<'_>;

    /// Returns the history of a turn or call as `{"story": …, "lines": […]}`: as data, and as lines of text. `id` is
    /// `<turn>` or `<turn>/<position>`. Without a tenant, all tenants are searched. Numbers keep all their digits.
    fn explain<'a>(&'a self, tenant: Option<&'a TenantId>, id: &'a str) -> BackendFuture<'a, Box<RawValue>>;

    /// Returns limits and caps, each with its fullest counters.
    fn limits<'a>(&'a self, filter: &'a LimitFilter) -> BackendFuture<'a>;

    /// Returns settings with their sources, and the policy files with secrets masked.
    fn configuration(&self) -> BackendFuture<'_>;

    fn rules(&self) -> BackendFuture<'_, Vec<ConfiguredRule>>;

    /// Returns the configured tenants, agents and tools.
    fn names(&self) -> BackendFuture<'_, FleetNames>;

    /// Returns the time zone of each tenant's days.
    fn zones(&self) -> BackendFuture<'_, BTreeMap<TenantId, Tz>>;

    /// Returns the roles of an approver in the current configuration; `None` if there is no such approver.
    fn approver<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Option<BTreeSet<String>>>;

    /// Checks the changed arguments against the schema of the call's tool.
    fn check_narrowed<'a>(
        &'a self,
        approval: &'a Approval,
        changes: &'a NarrowedValues,
    ) -> BoxFuture<'a, Result<(), ApprovalError>>;

    /// Returns the redactor, which masks secrets in stored text.
    fn redactor(&self) -> Arc<Redactor>;
}
