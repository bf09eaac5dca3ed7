//! Secrets of tools written in Rust. They are read for each call, and removed from the function's result.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tickfleet_config::tools::SecretRef;

use super::Environment;
use super::secrets::Secrets;
use super::{CallContext, Handler, ToolError, ToolFailure, ToolOutput};

/// The secrets of one call. `Debug` does not print their values.
#[derive(Debug, Clone, Default)]
pub struct ToolSecrets(Option<Arc<Secrets>>);

impl ToolSecrets {
    /// Returns the secret that the tool declares as `name`.
    pub fn get(&self, name: &str) -> Result<&str, ToolError> {
        let value = self.0.as_ref().and_then(|set| set.get(name));
        value.ok_or_else(|| ToolError::Internal(format!("the tool declares no secret {name:?}")))
    }

    pub(super) fn scrub(&self, text: &str) -> String {
        self.0.as_ref().map_or_else(|| text.to_owned(), |set| set.scrub(text))
    }

    /// Reads only secrets that do not depend on a tenant: hooks run before any call.
    pub(super) async fn at_startup(references: &BTreeMap<String, SecretRef>, environment: &Environment) -> Self {
        let mut there = BTreeMap::new();
        for (name, reference) in references {
            let one = BTreeMap::from([(name.clone(), reference.clone())]);
            if Secrets::resolve(&one, environment, None).await.is_ok() {
                there.extend(one);
            }
        }
        Self(Secrets::resolve(&there, environment, None).await.ok().map(Arc::new))
    }
}

pub(super) struct WithSecrets {
    pub(super) tool: String,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) references: BTreeMap<String, SecretRef>,
    pub(super) environment: Environment,
}

#[async_trait]
impl Handler for WithSecrets {
    fn validate(&self, arguments: &RawValue) -> Result<(), String> {
        self.handler.validate(arguments)
    }

    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        let read = Secrets::resolve(&self.references, &self.environment, Some(&context.tenant)).await;
        let set = read.map_err(|name| ToolFailure::NotConfigured {
            message: format!("The tool '{}' cannot run: its secret {name} is missing.", self.tool),
        })?;
        let set = Arc::new(set);
        let context = CallContext { secrets: ToolSecrets(Some(Arc::clone(&set))), ..context.clone() };
        without_secrets(self.handler.call(&context, arguments).await, &set)
    }
}

/// Removes the secrets of `set` from an output or a failure.
pub fn without_secrets(ran: Result<ToolOutput, ToolFailure>, set: &Secrets) -> Result<ToolOutput, ToolFailure> {
    ran.map(|output| scrubbed_output(output, set)).map_err(|failure| scrubbed_failure(failure, set))
}

/// An output that is no longer JSON becomes text. It is not an error: the tool has run, so the call needs a result.
fn scrubbed_output(output: ToolOutput, set: &Secrets) -> ToolOutput {
    let clean = set.scrub(output.json.get());
    if let Ok(json) = RawValue::from_string(clean.clone()) {
        return ToolOutput { json, ..output };
    }
    // As a JSON string, any text is valid JSON.
    let json = to_raw_value(&clean).unwrap_or_else(|_| RawValue::NULL.to_owned());
    ToolOutput { json, content_type: "text/plain" }
}

fn scrubbed_failure(failure: ToolFailure, set: &Secrets) -> ToolFailure {
    let clean = |message: String| set.scrub(&message);
    match failure {
        ToolFailure::InvalidArguments { message } => ToolFailure::InvalidArguments { message: clean(message) },
        ToolFailure::Ended { outcome, message, details } => {
            let details =
                details.map(|details| serde_json::from_str(&set.scrub(&details.to_string())).unwrap_or(Value::Null));
            ToolFailure::Ended { outcome, message: clean(message), details }
        }
        ToolFailure::Transient { message, retry_after, not_executed } => {
            ToolFailure::Transient { message: clean(message), retry_after, not_executed }
        }
        ToolFailure::Internal { message } => ToolFailure::Internal { message: clean(message) },
        ToolFailure::NotConfigured { message } => ToolFailure::NotConfigured { message: clean(message) },
        waits @ ToolFailure::Waits { .. } => waits,
    }
}
