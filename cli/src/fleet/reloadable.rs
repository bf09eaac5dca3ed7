//! The parts of a running process that a reload replaces.

use std::sync::Arc;

use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_ops::metrics::Metrics;
use tickfleet_tools_knowledge::Knowledge;
use tickfleet_tools_mcp::Servers;
use tickfleet_tools_python::Pools;
use worker::Worker;

use crate::fleet::extensions::Extensions;

/// The parts that a reload replaces.
#[derive(Clone)]
pub(crate) struct ReloadableParts {
    pub(crate) active: Arc<PolicyHandle>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) workers: Vec<Arc<Worker>>,
    /// The MCP servers: a reload keeps the connections whose settings did not change.
    pub(crate) mcp: Arc<Servers>,
    /// Data that tools have read for searches: a reload must not read it again.
    pub(crate) knowledge: Arc<Knowledge>,
    /// The interpreters for Python tools: a reload keeps those whose code and settings did not change.
    pub(crate) python: Option<Arc<Pools>>,
    /// The program's own tools: they live as long as the process.
    pub(crate) extensions: Extensions,
}
