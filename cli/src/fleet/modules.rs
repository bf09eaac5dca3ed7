//! Modules with tools, in Python and for Node.js.

use std::collections::BTreeMap;
use std::sync::Arc;

use tickfleet_config::{ModulesDef, Sources};
use tickfleet_tools_python::{DescribeError, Pools, code_fingerprint};

use crate::failure::Failure;
use crate::global::tool_environment;

/// Starts no interpreter yet.
pub(crate) fn pools(sources: &Sources) -> Arc<Pools> {
    Arc::new(Pools::new(tool_environment(&sources.environment)))
}

/// For a process that only inspects tools: missing tool hosts are not errors.
pub(crate) fn inspection_pools(sources: &Sources) -> Arc<Pools> {
    Arc::new(Pools::new(tool_environment(&sources.environment)).allow_missing_hosts())
}

pub(crate) fn with_modules(sources: &Sources, pools: Option<&Arc<Pools>>) -> Result<Sources, Failure> {
    let mut sources = sources.clone();
    if let Some(pools) = pools {
        let names =
            pools.describe(&tickfleet_config::load_modules(&sources)).map_err(|errors| modules_failed(&errors))?;
        sources.built_in_tools.extend(names);
        // If a tool host is missing, unknown names are accepted, because permission rows can name its tools.
        sources.knows_modules = pools.left_out().is_empty();
    }
    Ok(sources)
}

pub(crate) fn modules_failed(errors: &[DescribeError]) -> Failure {
    let lines: Vec<String> =
        errors.iter().map(|error| format!("\n  {}", error.to_string().replace('\n', "\n  "))).collect();
    Failure::failed(anyhow::anyhow!("the tools of these modules cannot be used:{}", lines.concat()))
}

pub(crate) fn fingerprint(sources: &Sources, modules: &BTreeMap<String, ModulesDef>) -> String {
    let folder = sources.dir.as_deref().map(tickfleet_config::fingerprint).unwrap_or_default();
    format!("{folder} {}", code_fingerprint(modules.values()))
}
