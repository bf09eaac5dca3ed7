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
pub(crate) struct Live {
    pub(crate) active: Arc<PolicyHandle>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) workers: Vec<Arc<Worker>>,
    /// The MCP servers: a reload keeps the connections that stay as they are.
    pub(crate) mcp: Arc<Servers>,
    /// What tools have read to look things up: a reload must not read it again.
    pub(crate) knowledge: Arc<Knowledge>,
    /// The interpreters that run tools in Python: a reload keeps those whose code and settings stay as they are.
    pub(crate) python: Option<Arc<Pools>>,
    /// The program's own tools: they live as long as the process.
    pub(crate) extensions: Extensions,
}
