//! Secrets of tools written in Rust: read for each call, handed to the function, taken out of whatever it returns.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tickfleet_config::tools::{SecretRef, TENANT};

use super::Environment;
use super::secrets::Secrets;
use super::{CallContext, Handler, ToolError, ToolFailure, ToolOutput};

/// The secrets of one call. Nothing prints them.
#[derive(Debug, Clone, Default)]
pub struct ToolSecrets(Option<Arc<Secrets>>);

impl ToolSecrets {
    /// The value of the secret that the tool declares as `name`.
    ///
    /// # Errors
    /// [`ToolError::Internal`] where it declares none of this name.
    pub fn get(&self, name: &str) -> Result<&str, ToolError> {
        let value = self.0.as_ref().and_then(|set| set.get(name));
        value.ok_or_else(|| ToolError::Internal(format!("the tool declares no secret {name:?}")))
    }

    /// `text` without the secrets.
    pub(super) fn scrub(&self, text: &str) -> String {
        self.0.as_ref().map_or_else(|| text.to_owned(), |set| set.scrub(text))
    }

    /// Reads what can be read without a tenant, for hooks that run before any call.
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

/// Returns true if every secret that is the same for all tenants, and comes from a variable, is there. A file may still
/// appear.
pub(super) fn are_set(references: &BTreeMap<String, SecretRef>, environment: &Environment) -> bool {
    references.values().all(|reference| match reference {
        SecretRef::Env(variable) => variable.contains(TENANT) || environment.get(variable).is_some(),
        SecretRef::File(_) => true,
    })
}

/// Hands secrets to a handler.
pub(super) struct WithSecrets {
    pub(super) tool: String,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) references: BTreeMap<String, SecretRef>,
    pub(super) environment: Environment,
}

#[async_trait]
impl Handler for WithSecrets {
    // No secret is handed to it.
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

/// What a handler gave, without the secrets of `set`.
///
/// # Errors
/// The handler's failure, likewise.
pub fn without_secrets(ran: Result<ToolOutput, ToolFailure>, set: &Secrets) -> Result<ToolOutput, ToolFailure> {
    ran.map(|output| scrubbed_output(output, set)).map_err(|failure| scrubbed_failure(failure, set))
}

/// The output without the secrets. Where one of them stood outside a string, what is left is no JSON any more, and is
/// passed on as text: the tool has done its work, so there is a result.
fn scrubbed_output(output: ToolOutput, set: &Secrets) -> ToolOutput {
    let clean = set.scrub(output.json.get());
    if let Ok(json) = RawValue::from_string(clean.clone()) {
        return ToolOutput { json, ..output };
    }
    // A string is JSON, whatever stands in it.
    let json = to_raw_value(&clean).unwrap_or_else(|_| RawValue::NULL.to_owned());
    ToolOutput { json, content_type: "text/plain" }
}

fn scrubbed_failure(failure: ToolFailure, set: &Secrets) -> ToolFailure {
    let clean = |message: String| set.scrub(&message);
    match failure {
        ToolFailure::InvalidArguments { message } => ToolFailure::InvalidArguments { message: clean(message) },
        ToolFailure::Permanent { message, details } => {
            let details = details.map(|details| {
                // Where a secret was more than a string's text, nothing readable is left to pass on.
                serde_json::from_str(&set.scrub(&details.to_string())).unwrap_or(Value::Null)
            });
            ToolFailure::Permanent { message: clean(message), details }
        }
        ToolFailure::Transient { message, retry_after, not_executed } => {
            ToolFailure::Transient { message: clean(message), retry_after, not_executed }
        }
        ToolFailure::Internal { message } => ToolFailure::Internal { message: clean(message) },
        ToolFailure::NotConfigured { message } => ToolFailure::NotConfigured { message: clean(message) },
        waits @ ToolFailure::Waits { .. } => waits,
    }
}
