//! Asking modules what they offer, before anything goes by the configuration that names them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tickfleet_config::PythonDef;
use tickfleet_tools::{Environment, Secrets};

use crate::definition::Definition;
use crate::interpreter;
use crate::machine::Machine;

/// The time that an interpreter has to close its socket once nothing more is asked of it.
const SAYS_BYE_IN: Duration = Duration::from_secs(5);

/// Why the modules of an entry cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("python.{name}: {why}")]
pub struct DescribeError {
    /// The entry.
    pub name: String,
    /// Why, in words for an operator. An import that fails comes with the user's own lines of the stack.
    pub why: String,
}

/// Starts an interpreter, asks it for its tools, and ends it. Blocks until that is done, also where the caller is in a
/// runtime: configurations are read at a start, or off the runtime. A missing secret is no error yet: a configuration is
/// checked where its secrets are not.
///
/// # Errors
/// [`DescribeError`].
pub(crate) fn describe(name: &str, def: &PythonDef, machine: &Machine) -> Result<Vec<Definition>, DescribeError> {
    let failed = |why: String| DescribeError { name: name.to_owned(), why };
    let ask = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start a runtime ({error})"))?;
        runtime.block_on(ask(name, def, machine))
    };
    // A thread of its own, since a runtime cannot be entered within another.
    let asked = std::thread::scope(|scope| scope.spawn(ask).join());
    asked.unwrap_or_else(|_| Err("listing its tools crashed because of a bug".to_owned())).map_err(failed)
}

async fn ask(name: &str, def: &PythonDef, machine: &Machine) -> Result<Vec<Definition>, String> {
    let secrets = Arc::new(known_secrets(def, &machine.environment).await);
    let (interpreter, process, tools) = interpreter::start(name, def, secrets, machine).await?;
    interpreter.bye();
    // One that does not end by itself is ended.
    let _ = tokio::time::timeout(SAYS_BYE_IN, interpreter.closed.cancelled()).await;
    process.end().await;
    Ok(tools)
}

/// The secrets that are there.
async fn known_secrets(def: &PythonDef, environment: &Environment) -> Secrets {
    let mut there = BTreeMap::new();
    for (name, reference) in &def.secrets {
        let one = BTreeMap::from([(name.clone(), reference.clone())]);
        if Secrets::resolve(&one, environment, None).await.is_ok() {
            there.extend(one);
        }
    }
    Secrets::resolve(&there, environment, None).await.unwrap_or_default()
}
