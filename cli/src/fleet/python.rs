//! Python tools: the interpreters of a process, and the names and code that loading a configuration needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use tickfleet_config::{PythonDef, Sources};
use tickfleet_tools_python::{DescribeError, Pools, code_fingerprint};

use crate::failure::Failure;
use crate::global::tool_environment;

/// The interpreters of a process that runs calls. None is started yet.
pub(crate) fn python(sources: &Sources) -> Arc<Pools> {
    Arc::new(Pools::new(tool_environment(&sources.environment)))
}

/// The same for a process that only inspects tools, possibly where no tool host is available.
pub(crate) fn python_to_look(sources: &Sources) -> Arc<Pools> {
    Arc::new(Pools::new(tool_environment(&sources.environment)).that_may_lack_hosts())
}

/// The sources with the names of the Python tools; unchanged for a process without Python.
///
/// # Errors
/// Modules that cannot be imported.
pub(crate) fn with_python(sources: &Sources, python: Option<&Arc<Pools>>) -> Result<Sources, Failure> {
    let mut sources = sources.clone();
    if let Some(python) = python {
        let names =
            python.describe(&tickfleet_config::load_python(&sources)).map_err(|errors| python_failed(&errors))?;
        sources.built_in_tools.extend(names);
        // Rows may name tools of a missing tool host, so unknown names are not errors then.
        sources.knows_python = python.left_out().is_empty();
    }
    Ok(sources)
}

pub(crate) fn python_failed(errors: &[DescribeError]) -> Failure {
    let lines: Vec<String> =
        errors.iter().map(|error| format!("\n  {}", error.to_string().replace('\n', "\n  "))).collect();
    Failure::failed(anyhow::anyhow!("the Python tools cannot be used:{}", lines.concat()))
}

/// Fingerprint of a configuration's inputs: its folder, and the code of the Python modules that it names.
pub(crate) fn fingerprint(sources: &Sources, modules: &BTreeMap<String, PythonDef>) -> String {
    let folder = sources.dir.as_deref().map(tickfleet_config::fingerprint).unwrap_or_default();
    format!("{folder} {}", code_fingerprint(modules.values()))
}
