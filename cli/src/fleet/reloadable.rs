//! The parts of a running process that a reload replaces.

use std::sync::Arc;

use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_ops::metrics::Metrics;
use tickfleet_tools_knowledge::Knowledge;
use tickfleet_tools_mcp::Servers;
use tickfleet_tools_python::Pools;
use worker::Worker;

use crate::fleet::extensions::Extensions;

#[derive(Clone)]
pub(crate) struct ReloadableParts {
    pub(crate) active: Arc<PolicyHandle>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) workers: Vec<Arc<Worker>>,
    /// A reload keeps the connections to servers with unchanged settings.
    pub(crate) mcp: Arc<Servers>,
    /// A reload keeps the data that tools have read.
    pub(crate) knowledge: Arc<Knowledge>,
    /// A reload keeps interpreters with unchanged code and settings.
    pub(crate) pools: Option<Arc<Pools>>,
    pub(crate) extensions: Extensions,
}
