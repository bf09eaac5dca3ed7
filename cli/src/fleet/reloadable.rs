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
    /// The MCP servers. A reload keeps the connections to servers with unchanged settings.
    pub(crate) mcp: Arc<Servers>,
    /// Data that tools have read for searches. A reload keeps the data, and therefore does not read it again.
    pub(crate) knowledge: Arc<Knowledge>,
    /// The interpreters of modules with tools. A reload keeps interpreters with unchanged code and settings.
    pub(crate) pools: Option<Arc<Pools>>,
    /// The tools and task handlers that the program adds. They live as long as the process.
    pub(crate) extensions: Extensions,
}
