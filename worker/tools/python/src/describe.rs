//! Lists the tools of modules before their configuration takes effect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tickfleet_config::ModulesDef;
use tickfleet_tools::{Environment, Secrets};

use crate::definition::Definition;
use crate::interpreter;
use crate::machine::Machine;

const BYE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, thiserror::Error)]
#[error("{name}: {why}")]
pub struct DescribeError {
    /// `<section>.<name>`.
    pub name: String,
    /// Worded for an operator. After a failed import, it has the traceback lines of the user's own code.
    pub why: String,
}

/// Blocks, even inside a runtime. A missing secret is not an error: a machine without secrets may check a
/// configuration.
pub(crate) fn describe(name: &str, def: &ModulesDef, machine: &Machine) -> Result<Vec<Definition>, DescribeError> {
    let failed = |why: String| DescribeError { name: name.to_owned(), why };
    let ask = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start a runtime ({error})"))?;
        runtime.block_on(ask(name, def, machine))
    };
    // A runtime cannot be entered inside another runtime, so the work runs on a separate thread.
    let asked = std::thread::scope(|scope| scope.spawn(ask).join());
    asked.unwrap_or_else(|_| Err("listing its tools crashed because of a bug".to_owned())).map_err(failed)
}

async fn ask(name: &str, def: &ModulesDef, machine: &Machine) -> Result<Vec<Definition>, String> {
    let secrets = Arc::new(known_secrets(def, &machine.environment).await);
    let (interpreter, process, tools) = interpreter::start(name, def, secrets, machine).await?;
    interpreter.send_bye();
    // `end` kills an interpreter that does not close its socket in time.
    let _ = tokio::time::timeout(BYE_TIMEOUT, interpreter.closed.cancelled()).await;
    process.end().await;
    tools.iter().try_for_each(Definition::check)?;
    Ok(tools)
}

async fn known_secrets(def: &ModulesDef, environment: &Environment) -> Secrets {
    let mut there = BTreeMap::new();
    for (name, reference) in &def.secrets {
        let one = BTreeMap::from([(name.clone(), reference.clone())]);
        if Secrets::resolve(&one, environment, None).await.is_ok() {
            there.extend(one);
        }
    }
    Secrets::resolve(&there, environment, None).await.unwrap_or_default()
}
