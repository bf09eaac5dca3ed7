//! Tools written in Rust: an async function over an argument struct. The schema and the descriptions of the arguments
//! come from the struct and its doc comments.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use shared::model::{Effect, ToolSpec, limits};

use super::{CallContext, Handler, ToolFailure, ToolOutput, wording};

/// How a tool function fails; turns into a [`ToolFailure`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ToolError {
    /// The tool refuses for good; the text is for the model.
    #[error("{0}")]
    Permanent(String),
    /// The same with something for a program.
    #[error("{message}")]
    Refused {
        /// For the model.
        message: String,
        /// For a program.
        details: Value,
    },
    /// It may pass; whether anything took effect is not known.
    #[error("{0}")]
    Transient(String),
    /// It may pass, and it is certain that nothing took effect.
    #[error("{message}")]
    NotExecuted {
        /// For the model, after the last try.
        message: String,
        /// The least wait before the next try.
        retry_after: Option<Duration>,
    },
    /// A bug or a broken assumption: logged, told to the model in general words only.
    #[error("{0}")]
    Internal(String),
}

impl ToolError {
    /// Wraps an error that is nobody's fault but ours.
    pub fn internal(error: impl fmt::Display) -> Self {
        Self::Internal(error.to_string())
    }
}

impl From<ToolError> for ToolFailure {
    fn from(error: ToolError) -> Self {
        let bounded = |message: String| wording::cut(&message, limits::ERROR_BYTES_MAX);
        match error {
            ToolError::Permanent(message) => Self::Permanent { message: bounded(message), details: None },
            ToolError::Refused { message, details } => {
                Self::Permanent { message: bounded(message), details: Some(details) }
            }
            ToolError::Transient(message) => {
                Self::Transient { message: bounded(message), retry_after: None, not_executed: false }
            }
            ToolError::NotExecuted { message, retry_after } => {
                Self::Transient { message: bounded(message), retry_after, not_executed: true }
            }
            ToolError::Internal(message) => Self::Internal { message },
        }
    }
}

/// Timeout of a typed tool that sets none and whose worker sets none either.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// A typed tool, ready to be registered.
///
/// ```
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
/// use shared::model::Effect;
/// use worker::tools::{ToolError, TypedTool};
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Area {
///     /// Width in metres.
///     width: f64,
///     /// Height in metres.
///     height: f64,
/// }
///
/// #[derive(Serialize, JsonSchema)]
/// struct SquareMetres {
///     area: f64,
/// }
///
/// let tool = TypedTool::new("area", "Multiplies width by height.", Effect::Read, |_, args: Area| async move {
///     if args.width < 0.0 {
///         return Err(ToolError::Permanent("A width cannot be negative.".into()));
///     }
///     Ok(SquareMetres { area: args.width * args.height })
/// })
/// .category("geometry");
/// assert_eq!(tool.spec().input_schema["properties"]["width"]["description"], "Width in metres.");
/// ```
#[derive(Clone)]
pub struct TypedTool {
    spec: ToolSpec,
    timeout: Option<Duration>,
    handler: Arc<dyn Handler>,
}

impl fmt::Debug for TypedTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedTool").field("name", &self.spec.name).finish_non_exhaustive()
    }
}

impl TypedTool {
    /// Makes a tool of `run`, an async function of the call's context and its arguments.
    ///
    /// The input schema is `Args`'; the output schema is `Out`'s where that describes an object.
    pub fn new<Args, Out, Run, Running>(name: &str, description: &str, effect: Effect, run: Run) -> Self
    where
        Args: JsonSchema + DeserializeOwned + Send + 'static,
        Out: JsonSchema + Serialize + Send + 'static,
        Run: Fn(CallContext, Args) -> Running + Send + Sync + 'static,
        Running: Future<Output = Result<Out, ToolError>> + Send + 'static,
    {
        let output_schema = schema_of::<Out>(SchemaSettings::draft2020_12().for_serialize());
        let describes_object = output_schema.get("type").and_then(Value::as_str) == Some("object");
        let spec = ToolSpec {
            id: format!("tool_{name}"),
            name: name.to_owned(),
            display_name: name.to_owned(),
            description: description.to_owned(),
            input_schema: schema_of::<Args>(SchemaSettings::draft2020_12().for_deserialize()),
            output_schema: describes_object.then_some(output_schema),
            category: "general".to_owned(),
            version: "1.0.0".to_owned(),
            effect,
            timeout: TIMEOUT_DEFAULT,
            required_capabilities: Vec::new(),
            required_features: Vec::new(),
            requires_approval: false,
            configured: true,
        };
        Self { spec, timeout: None, handler: Arc::new(TypedHandler { run, arguments: PhantomData::<fn(Args)> }) }
    }

    /// Sets the stable id; `tool_<name>` otherwise.
    #[must_use]
    pub fn id(mut self, id: &str) -> Self {
        id.clone_into(&mut self.spec.id);
        self
    }

    /// Sets the name that people read; the name otherwise.
    #[must_use]
    pub fn display_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.spec.display_name);
        self
    }

    /// Sets the category; `general` otherwise.
    #[must_use]
    pub fn category(mut self, category: &str) -> Self {
        category.clone_into(&mut self.spec.category);
        self
    }

    /// Sets the version (SemVer); `1.0.0` otherwise.
    #[must_use]
    pub fn version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.spec.version);
        self
    }

    /// Sets the wall-clock limit of one try; the worker's default otherwise.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self.spec.timeout = timeout;
        self
    }

    /// Adds a capability that the agent needs.
    #[must_use]
    pub fn requires(mut self, capability: &str) -> Self {
        self.spec.required_capabilities.push(capability.to_owned());
        self
    }

    /// Adds a plan feature that the tenant needs.
    #[must_use]
    pub fn requires_feature(mut self, feature: &str) -> Self {
        self.spec.required_features.push(feature.to_owned());
        self
    }

    /// Has a person agree to each call.
    #[must_use]
    pub fn requires_approval(mut self) -> Self {
        self.spec.requires_approval = true;
        self
    }

    /// What the tool declares.
    #[must_use]
    pub fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// What runs it.
    #[must_use]
    pub fn handler(&self) -> Arc<dyn Handler> {
        Arc::clone(&self.handler)
    }

    /// The declaration with `timeout_default` where the tool sets no timeout, and what runs it.
    pub(super) fn into_parts(mut self, timeout_default: Duration) -> (ToolSpec, Arc<dyn Handler>) {
        self.spec.timeout = self.timeout.unwrap_or(timeout_default);
        (self.spec, self.handler)
    }
}

/// The schema of a type for models: everything in place, without what tells them nothing.
fn schema_of<T: JsonSchema>(settings: SchemaSettings) -> Value {
    let settings = settings.with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(root) = schema.as_object_mut() {
        // The struct's name and its own doc comment; the tool has a name and a description.
        root.remove("title");
        root.remove("description");
        // A struct without fields is still an object with no arguments.
        if root.get("type").and_then(Value::as_str) == Some("object") {
            root.entry("properties").or_insert_with(|| Value::Object(serde_json::Map::new()));
        }
    }
    schema
}

struct TypedHandler<Args, Run> {
    run: Run,
    arguments: PhantomData<fn(Args)>,
}

#[async_trait]
impl<Args, Out, Run, Running> Handler for TypedHandler<Args, Run>
where
    Args: DeserializeOwned + Send + 'static,
    Out: Serialize + Send + 'static,
    Run: Fn(CallContext, Args) -> Running + Send + Sync + 'static,
    Running: Future<Output = Result<Out, ToolError>> + Send + 'static,
{
    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        // A declared schema may be wider than the struct, and a struct may check more than a schema can say.
        let arguments: Args = serde_json::from_str(arguments.get())
            .map_err(|e| ToolError::Permanent(format!("The arguments do not fit this tool: {e}.")))?;
        let output = (self.run)(context.clone(), arguments).await?;
        let json = to_raw_value(&output).map_err(ToolError::internal)?;
        Ok(ToolOutput { json, content_type: "application/json" })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::tools::tests::{arguments, context};

    /// Notes for programmers only.
    #[derive(Deserialize, JsonSchema)]
    struct Mail {
        /// Who gets it.
        to: Address,
        /// How many copies.
        copies: Option<u8>,
    }

    #[derive(Deserialize, JsonSchema)]
    struct Address {
        /// The mailbox.
        mailbox: String,
    }

    #[derive(Serialize, JsonSchema)]
    struct Sent {
        mailbox: String,
        copies: u8,
    }

    fn tool() -> TypedTool {
        TypedTool::new("mail", "Sends mail.", Effect::Once, |_, args: Mail| async move {
            if args.to.mailbox == "nobody" {
                return Err(ToolError::NotExecuted { message: "Busy.".into(), retry_after: None });
            }
            Ok(Sent { mailbox: args.to.mailbox, copies: args.copies.unwrap_or(1) })
        })
        .requires("mail")
    }

    #[test]
    fn the_schema_comes_from_the_types_and_their_doc_comments_alone() {
        let expected = json!({
            "type": "object",
            "properties": {
                "to": {
                    "description": "Who gets it.",
                    "type": "object",
                    "properties": {"mailbox": {"description": "The mailbox.", "type": "string"}},
                    "required": ["mailbox"]
                },
                "copies": {
                    "description": "How many copies.",
                    "type": ["integer", "null"], "format": "uint8", "minimum": 0, "maximum": 255
                }
            },
            "required": ["to"]
        });
        let spec = tool().spec().clone();
        assert_eq!(spec.input_schema, expected);
        assert_eq!(spec.output_schema.unwrap()["required"], json!(["mailbox", "copies"]));
        assert_eq!(spec.required_capabilities, ["mail"]);
    }

    #[tokio::test]
    async fn output_and_failures_come_back_as_data() {
        let handler = tool().handler();
        let sent = handler.call(&context(1), &arguments(json!({"to": {"mailbox": "kim"}}))).await.unwrap();
        assert_eq!(sent.json.get(), r#"{"mailbox":"kim","copies":1}"#);
        let busy = handler.call(&context(1), &arguments(json!({"to": {"mailbox": "nobody"}}))).await;
        assert!(matches!(busy, Err(ToolFailure::Transient { not_executed: true, .. })));
        let unfit = handler.call(&context(1), &arguments(json!({"to": 7}))).await;
        assert!(matches!(unfit, Err(ToolFailure::Permanent { .. })));
    }
}
