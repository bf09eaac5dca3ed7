//! Tools written in Rust: an async function over an argument struct. The struct and its doc comments define the schema.

pub mod inner;

use std::collections::BTreeMap;
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
use tickfleet_config::tools::SecretRef;
use tickfleet_model::tool::{CachePer, ReadCache, Reconcile};
use tickfleet_model::{ApprovalDemand, Durability, Effect, EffectKey, ToolSpec, TurnId};

use super::Environment;
use super::deserialize;
use super::kind::NotConfigured;
use super::lifecycle::{HookError, Hooks, Startup};
use super::tool_secrets::WithSecrets;
use super::{CallContext, Handler, ToolFailure, ToolOutput};

/// The error of a tool function. Converts to a [`ToolFailure`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ToolError {
    /// The arguments fit the schema, but the tool cannot accept them. The text is for the model.
    #[error("{0}")]
    InvalidArguments(String),
    /// The tool rejects the call permanently. The text is for the model.
    #[error("{0}")]
    Permanent(String),
    /// Like `Permanent`, with additional details for programs.
    #[error("{message}")]
    Refused {
        /// The text for the model.
        message: String,
        /// The details for programs.
        details: Value,
    },
    /// A retry may succeed. It is unknown whether anything took effect.
    #[error("{0}")]
    Transient(String),
    /// A retry may succeed. It is certain that nothing took effect.
    #[error("{message}")]
    NotExecuted {
        /// The text for the model, after the last attempt.
        message: String,
        /// The minimum wait before the next attempt.
        retry_after: Option<Duration>,
    },
    /// The call runs again after the turn or task, and holds no slot meanwhile. Only for the effects `read` and
    /// `idempotent`.
    #[error("it waits for work that it started")]
    Waits {
        /// The turn or task that the call waits for. `None` to wait only for the time in `at_most`.
        awaits: Option<TurnId>,
        /// After this time the call runs again, even if the turn or task has not ended.
        at_most: Duration,
    },
    /// A bug: logged, and hidden from the model.
    #[error("{0}")]
    Internal(String),
}

impl ToolError {
    /// Wraps an error that is a bug of the tool, not a mistake of the caller.
    pub fn internal(error: impl fmt::Display) -> Self {
        Self::Internal(error.to_string())
    }
}

impl From<ToolError> for ToolFailure {
    fn from(error: ToolError) -> Self {
        // Do not cut messages here: secrets must be removed first.
        match error {
            ToolError::InvalidArguments(message) => Self::InvalidArguments { message },
            ToolError::Permanent(message) => Self::permanent(message, None),
            ToolError::Refused { message, details } => Self::permanent(message, Some(details)),
            ToolError::Transient(message) => Self::Transient { message, retry_after: None, not_executed: false },
            ToolError::NotExecuted { message, retry_after } => {
                Self::Transient { message, retry_after, not_executed: true }
            }
            ToolError::Waits { awaits, at_most } => Self::Waits { awaits: awaits.into(), at_most },
            ToolError::Internal(message) => Self::Internal { message },
        }
    }
}

/// The timeout of a typed tool if neither the tool nor its worker sets one.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// A typed tool, ready to be registered.
///
/// ```
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
/// use tickfleet_model::Effect;
/// use tickfleet_tools::{ToolError, TypedTool};
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
    validate: Option<Arc<Validate>>,
    secrets: BTreeMap<String, SecretRef>,
    hooks: Hooks,
    answers_by_agent: bool,
    /// Each clone of the tool has both counters, each handler only `held`. The difference is the number of handlers.
    held: Arc<()>,
    clones: Arc<()>,
}

type Validate = dyn Fn(&RawValue) -> Result<(), String> + Send + Sync;

impl fmt::Debug for TypedTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedTool").field("name", &self.spec.name).finish_non_exhaustive()
    }
}

impl TypedTool {
    /// Makes a tool from an async function. `Args` defines the input schema, and an object `Out` the output schema.
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
            approval: None,
            effect_key: None,
            cache: None,
            reconcile: None,
            durable: None,
            configured: true,
        };
        Self::of_handler(spec, None, Arc::new(TypedHandler { run, arguments: PhantomData::<fn(Args)> }))
    }

    /// Makes a tool from its parts. `timeout` limits one attempt, and `None` means the worker's default.
    #[must_use]
    pub fn of_handler(spec: ToolSpec, timeout: Option<Duration>, handler: Arc<dyn Handler>) -> Self {
        Self {
            spec,
            timeout,
            handler,
            validate: None,
            secrets: BTreeMap::new(),
            hooks: Hooks::default(),
            answers_by_agent: false,
            held: Arc::default(),
            clones: Arc::default(),
        }
    }

    /// Adds a check that a schema cannot express, such as a checksum. The check runs before anything is recorded, and
    /// must not block. `Args` is the tool's own argument struct.
    #[must_use]
    pub fn validate<Args>(mut self, look: impl Fn(&Args) -> Result<(), String> + Send + Sync + 'static) -> Self
    where
        Args: DeserializeOwned,
    {
        self.validate = Some(Arc::new(move |text| look(&deserialize::read::<Args>(text)?)));
        self
    }

    /// Passes an environment variable of the worker to the function as the secret `name`, see [`CallContext::secret`].
    /// `{tenant}` in `variable` becomes the calling tenant.
    #[must_use]
    pub fn secret_from_env(mut self, name: &str, variable: &str) -> Self {
        self.secrets.insert(name.to_owned(), SecretRef::Env(variable.to_owned()));
        self
    }

    /// Like [`Self::secret_from_env`], but reads a file. The file can change while the worker runs.
    #[must_use]
    pub fn secret_from_file(mut self, name: &str, path: &str) -> Self {
        self.secrets.insert(name.to_owned(), SecretRef::File(path.to_owned()));
        self
    }

    /// Adds a hook that runs once in each process, before the first call and for at most 30 s. If the hook fails, the
    /// process does not start.
    #[must_use]
    pub fn on_start<Hook, Running>(mut self, hook: Hook) -> Self
    where
        Hook: Fn(Startup) -> Running + Send + Sync + 'static,
        Running: Future<Output = Result<(), HookError>> + Send + 'static,
    {
        self.hooks.on_start(hook);
        self
    }

    /// Adds a hook that runs once in each process, after the last call and for at most 5 s.
    #[must_use]
    pub fn on_stop<Hook, Running>(mut self, hook: Hook) -> Self
    where
        Hook: Fn() -> Running + Send + Sync + 'static,
        Running: Future<Output = ()> + Send + 'static,
    {
        self.hooks.on_stop(hook);
        self
    }

    /// Sets the arguments that identify an effect, as JSON pointers (`/to`, `/amount`). Within `window`, equal calls of
    /// a tenant share one outcome. Requires the effect `once`.
    #[must_use]
    pub fn effect_key(mut self, arguments: &[&str], window: Duration) -> Self {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let window_ms = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
        self.spec.effect_key = Some(EffectKey { arguments, window_ms });
        self
    }

    /// Caches results for equal arguments, `user_context` and `session_data`. Requires the effect `read`.
    #[must_use]
    pub fn cache(mut self, ttl: Duration, per: CachePer) -> Self {
        self.spec.cache = Some(ReadCache { ttl_ms: i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX), per });
        self
    }

    /// The result depends on the calling agent or task, and can be cached only per agent ([`CachePer::Agent`]).
    #[must_use]
    pub const fn answers_by_agent(mut self) -> Self {
        self.answers_by_agent = true;
        self
    }

    /// Sets a `read` tool that looks up calls with an unknown outcome. Requires the effect `once`.
    #[must_use]
    pub fn reconcile(mut self, by: Reconcile) -> Self {
        self.spec.reconcile = Some(by);
        self
    }

    /// Sets how durable the begin of a call must be before the call runs. Default: the fleet's setting for the effect
    /// `once`, and [`Durability::None`] for any other effect.
    #[must_use]
    pub const fn durable(mut self, durable: Durability) -> Self {
        self.spec.durable = Some(durable);
        self
    }

    /// Sets the stable id. Default: `tool_<name>`.
    #[must_use]
    pub fn id(mut self, id: &str) -> Self {
        id.clone_into(&mut self.spec.id);
        self
    }

    /// Sets the name shown to people. Default: the tool's name.
    #[must_use]
    pub fn display_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.spec.display_name);
        self
    }

    /// Sets the category. Default: `general`.
    #[must_use]
    pub fn category(mut self, category: &str) -> Self {
        category.clone_into(&mut self.spec.category);
        self
    }

    /// Sets the version (SemVer). Default: `1.0.0`.
    #[must_use]
    pub fn version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.spec.version);
        self
    }

    /// Sets the wall-clock limit of one attempt. Default: the worker's setting.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self.spec.timeout = timeout;
        self
    }

    /// Adds a capability that the agent must have.
    #[must_use]
    pub fn requires(mut self, capability: &str) -> Self {
        self.spec.required_capabilities.push(capability.to_owned());
        self
    }

    /// Adds a plan feature that the tenant must have.
    #[must_use]
    pub fn requires_feature(mut self, feature: &str) -> Self {
        self.spec.required_features.push(feature.to_owned());
        self
    }

    /// Requires a person's approval of each call.
    #[must_use]
    pub fn requires_approval(mut self) -> Self {
        self.spec.requires_approval = true;
        self
    }

    /// Requires approval of each call by these people.
    #[must_use]
    pub fn approval(mut self, demand: ApprovalDemand) -> Self {
        self.spec.requires_approval = true;
        self.spec.approval = Some(demand);
        self
    }

    /// Marks the tool as not configured: it is not offered to models, and each call fails with `message`.
    #[must_use]
    pub fn not_configured_here(mut self, message: String) -> Self {
        self.spec.configured = false;
        self.handler = Arc::new(NotConfigured { message });
        self
    }

    /// Returns the tool's specification.
    #[must_use]
    pub fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// Returns the paths (`owner.email`) of the arguments without a description.
    #[must_use]
    pub fn undescribed(&self) -> Vec<String> {
        let mut found = Vec::new();
        undescribed(&self.spec.input_schema, "", &mut found);
        found
    }

    /// True if a tool registry still uses this tool, even an older registry of a running call.
    #[must_use]
    pub fn is_held(&self) -> bool {
        Arc::strong_count(&self.held) > Arc::strong_count(&self.clones)
    }

    pub(super) const fn depends_on_agent(&self) -> bool {
        self.answers_by_agent
    }

    pub(super) const fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    pub(super) const fn secret_references(&self) -> &BTreeMap<String, SecretRef> {
        &self.secrets
    }

    /// `timeout_default` applies if the tool sets no timeout. The handler looks up its secrets in `environment`.
    pub fn into_parts(mut self, timeout_default: Duration, environment: &Environment) -> (ToolSpec, Arc<dyn Handler>) {
        self.spec.timeout = self.timeout.unwrap_or(timeout_default);
        let mut handler: Arc<dyn Handler> =
            Arc::new(Validated { handler: self.handler, validate: self.validate, _held: self.held });
        if !self.secrets.is_empty() {
            self.spec.configured = !self.secrets.values().any(|secret| environment.lacks(secret));
            let tool = self.spec.name.clone();
            let environment = environment.clone();
            handler = Arc::new(WithSecrets { tool, handler, references: self.secrets, environment });
        }
        (self.spec, handler)
    }
}

/// Includes nested arguments. Schemas generated from types contain no references, so the recursion ends.
fn undescribed(schema: &Value, path: &str, found: &mut Vec<String>) {
    for (name, member) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        if member.get("description").is_none() {
            found.push(path.clone());
        }
        undescribed(member, &path, found);
        if let Some(items) = member.get("items") {
            undescribed(items, &path, found);
        }
    }
}

struct Validated {
    handler: Arc<dyn Handler>,
    validate: Option<Arc<Validate>>,
    _held: Arc<()>,
}

#[async_trait]
impl Handler for Validated {
    fn validate(&self, arguments: &RawValue) -> Result<(), String> {
        self.validate.as_ref().map_or(Ok(()), |validate| validate(arguments))
    }

    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        self.handler.call(context, arguments).await
    }
}

/// Subschemas are inlined, and members that do not help a model are removed.
fn schema_of<T: JsonSchema>(settings: SchemaSettings) -> Value {
    let settings = settings.with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(root) = schema.as_object_mut() {
        // The tool has its own name and description, so those of the struct are removed.
        root.shift_remove("title");
        root.shift_remove("description");
        // A struct without fields is still an object, with no arguments.
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
        // Arguments that fit the schema can still fail here, because the struct may check more than the schema.
        let arguments: Args = deserialize::read(arguments).map_err(ToolError::InvalidArguments)?;
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
    use crate::tests::{arguments, context, handler};

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

    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}

    #[derive(Serialize, JsonSchema)]
    struct Revealed {
        revealed: String,
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
    fn the_schema_is_derived_from_types_and_doc_comments() {
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
    async fn a_handler_returns_json_output_and_structured_failures() {
        let handler = handler(tool());
        let sent = handler.call(&context(1), &arguments(json!({"to": {"mailbox": "kim"}}))).await.unwrap();
        assert_eq!(sent.json.get(), r#"{"mailbox":"kim","copies":1}"#);
        let busy = handler.call(&context(1), &arguments(json!({"to": {"mailbox": "nobody"}}))).await;
        assert!(matches!(busy, Err(ToolFailure::Transient { not_executed: true, .. })));
        let unfit = handler.call(&context(1), &arguments(json!({"to": 7}))).await;
        let Err(ToolFailure::InvalidArguments { message }) = unfit else { panic!("{unfit:?}") };
        assert_eq!(
            message,
            "Argument 'to' cannot be read: invalid type: integer `7`, expected struct Address; found 7."
        );
    }

    #[tokio::test]
    async fn tenant_secrets_are_passed_to_tools_and_redacted_from_results() {
        let leaky = TypedTool::new("leaky", "Tells all.", Effect::Read, |context, _: Nothing| async move {
            let revealed = format!("the key is {}", context.secret("KEY")?);
            if context.agent.as_str() == "kelly" {
                Ok(Revealed { revealed })
            } else {
                Err(ToolError::Permanent(revealed))
            }
        })
        .secret_from_env("KEY", "LEAKY_{tenant}");
        let environment = Environment::of([("LEAKY_acme", "s3cret-of-acme")]);
        let (spec, handler) = leaky.into_parts(Duration::from_secs(1), &environment);
        assert!(spec.configured, "a tenant's own secret may come with the tenant");
        let revealed = handler.call(&context(1), &arguments(json!({}))).await.unwrap();
        assert_eq!(revealed.json.get(), r#"{"revealed":"the key is [REDACTED]"}"#);
        let tina = CallContext { agent: tickfleet_model::AgentId::new("tina").unwrap(), ..context(1) };
        let Err(ToolFailure::Ended { message, .. }) = handler.call(&tina, &arguments(json!({}))).await else {
            panic!("refused")
        };
        assert_eq!(message, "the key is [REDACTED]");
        let other = CallContext { tenant: tickfleet_model::TenantId::new("other").unwrap(), ..context(1) };
        let Err(ToolFailure::NotConfigured { message }) = handler.call(&other, &arguments(json!({}))).await else {
            panic!("not configured")
        };
        assert_eq!(message, "The tool 'leaky' cannot run: its secret KEY is missing.");
    }

    #[test]
    fn a_custom_validator_rejects_arguments_before_the_call() {
        let tool =
            tool().validate(
                |mail: &Mail| {
                    if mail.copies == Some(0) { Err("Ask for one copy at least.".into()) } else { Ok(()) }
                },
            );
        let handler = handler(tool);
        let look = |copies: u8| handler.validate(&arguments(json!({"to": {"mailbox": "kim"}, "copies": copies})));
        assert_eq!((look(0), look(1)), (Err("Ask for one copy at least.".into()), Ok(())));
        assert!(handler.validate(&arguments(json!({"to": 7}))).unwrap_err().contains("Argument 'to' cannot be read"));
    }

    #[tokio::test]
    async fn a_failed_start_hook_stops_the_other_tools() {
        use std::sync::Mutex;

        use crate::{start_all, stop_all};

        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let hooked = |name: &'static str, fails: bool| {
            let started = Arc::clone(&log);
            let stopped = Arc::clone(&log);
            TypedTool::new(name, "", Effect::Read, |_, _: Nothing| async { Ok(Revealed { revealed: String::new() }) })
                .secret_from_env("KEY", "KEY")
                .on_start(move |startup| {
                    let started = Arc::clone(&started);
                    async move {
                        let key = startup.secret("KEY")?.to_owned();
                        if fails {
                            return Err("no connection".into());
                        }
                        started.lock().unwrap().push(format!("{name} starts with {key}"));
                        Ok(())
                    }
                })
                .on_stop(move || {
                    let stopped = Arc::clone(&stopped);
                    async move { stopped.lock().unwrap().push(format!("{name} stops")) }
                })
        };
        let environment = Environment::of([("KEY", "k-1")]);
        let one = [hooked("one", false)];
        start_all(&one, &environment).await.unwrap();
        stop_all(&one).await;
        assert_eq!(log.lock().unwrap().drain(..).collect::<Vec<_>>(), ["one starts with k-1", "one stops"]);
        let errors = start_all(&[hooked("one", false), hooked("two", true)], &environment).await.unwrap_err();
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors, ["tool 'two': its start hook failed: no connection"]);
        assert_eq!(log.lock().unwrap().drain(..).collect::<Vec<_>>(), ["one starts with k-1", "one stops"]);
        let errors = start_all(&[hooked("one", false)], &Environment::of([])).await.unwrap_err();
        assert_eq!(errors[0].to_string(), "tool 'one': its start hook failed: the secret KEY is missing");
    }
}
