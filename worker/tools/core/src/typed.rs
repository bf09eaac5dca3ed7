//! Tools written in Rust: an async function over an argument struct. The schema and the descriptions of the arguments
//! come from the struct and its doc comments. [`inner`]: calls of other tools from within one.

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
use super::kind::NotConfigured;
use super::lifecycle::{HookError, Hooks, Startup};
use super::tool_secrets::{self, WithSecrets};
use super::unfit;
use super::{CallContext, Handler, ToolFailure, ToolOutput};

/// The error of a tool function; turns into a [`ToolFailure`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ToolError {
    /// The arguments pass the schema, and still are not what the tool can take; the text is for the model, which may
    /// correct them. What can be told without doing anything belongs into [`TypedTool::validate`].
    #[error("{0}")]
    InvalidArguments(String),
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
    /// The call has begun a turn or a task of the same tenant, and is made again when that has ended; until then it holds
    /// no slot. For a tool whose effect is `read` or `idempotent`.
    #[error("it waits for work that it started")]
    Waits {
        /// What it waits for; none to be made again after a time.
        awaits: Option<TurnId>,
        /// The time after which it is made again in any case.
        at_most: Duration,
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
        // Whole: secrets are taken out first, and what is left is cut where it is told.
        match error {
            ToolError::InvalidArguments(message) => Self::InvalidArguments { message },
            ToolError::Permanent(message) => Self::Permanent { message, details: None },
            ToolError::Refused { message, details } => Self::Permanent { message, details: Some(details) },
            ToolError::Transient(message) => Self::Transient { message, retry_after: None, not_executed: false },
            ToolError::NotExecuted { message, retry_after } => {
                Self::Transient { message, retry_after, not_executed: true }
            }
            ToolError::Waits { awaits, at_most } => Self::Waits { awaits: awaits.into(), at_most },
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
    /// Every clone of this value has both, and every handler that is made of one the first: their difference is how many
    /// handlers there are.
    held: Arc<()>,
    clones: Arc<()>,
}

/// The check of what a schema cannot say of arguments.
type Validate = dyn Fn(&RawValue) -> Result<(), String> + Send + Sync;

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
            approval: None,
            effect_key: None,
            cache: None,
            reconcile: None,
            durable: None,
            configured: true,
        };
        Self::of_handler(spec, None, Arc::new(TypedHandler { run, arguments: PhantomData::<fn(Args)> }))
    }

    /// Makes a tool of its declaration and what runs it, for tools that say themselves what they are and are written in
    /// another language. `timeout` is the limit of one try; the worker's default where there is none.
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

    /// Looks at arguments for what their schema cannot say, before anything is recorded or done: two fields that
    /// exclude each other, a checksum. What it answers is for the model, which may correct its call. It must not wait
    /// for anything. `Args` is the tool's own argument struct.
    #[must_use]
    pub fn validate<Args>(mut self, look: impl Fn(&Args) -> Result<(), String> + Send + Sync + 'static) -> Self
    where
        Args: DeserializeOwned,
    {
        self.validate = Some(Arc::new(move |text| look(&unfit::read::<Args>(text)?)));
        self
    }

    /// Has the variable `variable` of the worker's environment handed to the function as the secret `name`, read for
    /// each call: see [`CallContext::secret`]. `{tenant}` in it stands for the calling tenant. While it is not set, the
    /// tool answers that it is not configured. Wherever its value turns up in a result, it is taken out.
    #[must_use]
    pub fn secret_from_env(mut self, name: &str, variable: &str) -> Self {
        self.secrets.insert(name.to_owned(), SecretRef::Env(variable.to_owned()));
        self
    }

    /// As [`Self::secret_from_env`], from a file: a mounted Kubernetes secret may change while the worker runs.
    #[must_use]
    pub fn secret_from_file(mut self, name: &str, path: &str) -> Self {
        self.secrets.insert(name.to_owned(), SecretRef::File(path.to_owned()));
        self
    }

    /// Runs once in each process that carries out calls, before the first of them, 30 s at most: to connect, to load,
    /// to warm up. A process whose hook fails does not start; a tool that is registered at run time is not registered.
    #[must_use]
    pub fn on_start<Hook, Running>(mut self, hook: Hook) -> Self
    where
        Hook: Fn(Startup) -> Running + Send + Sync + 'static,
        Running: Future<Output = Result<(), HookError>> + Send + 'static,
    {
        self.hooks.on_start(hook);
        self
    }

    /// Runs once after the last call, when the process drains, 5 s at most.
    #[must_use]
    pub fn on_stop<Hook, Running>(mut self, hook: Hook) -> Self
    where
        Hook: Fn() -> Running + Send + Sync + 'static,
        Running: Future<Output = ()> + Send + 'static,
    {
        self.hooks.on_stop(hook);
        self
    }

    /// Makes calls whose arguments at these JSON pointers (`/to`, `/amount`) say the same one effect: within `window`
    /// after its end, the end of one answers every equal call of the same tenant, whatever turn or agent it is of, and
    /// while one runs, equal ones wait for it. Only a tool whose effect is `once` can have one, and a call has to say
    /// each of these arguments.
    #[must_use]
    pub fn effect_key(mut self, arguments: &[&str], window: Duration) -> Self {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let window_ms = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
        self.spec.effect_key = Some(EffectKey { arguments, window_ms });
        self
    }

    /// Keeps its answers for `ttl` for those who ask the same: all agents of a tenant, or each its own. Equal are questions
    /// whose arguments, `user_context` and `session_data` are. Only a tool whose effect is `read` can have one.
    #[must_use]
    pub fn cache(mut self, ttl: Duration, per: CachePer) -> Self {
        self.spec.cache = Some(ReadCache { ttl_ms: i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX), per });
        self
    }

    /// Says that what it answers is of the agent, or the task, that asks: what it noted down, its files. Then its answers are
    /// kept, if at all, for each agent alone ([`CachePer::Agent`]), and for each task.
    #[must_use]
    pub const fn answers_by_agent(mut self) -> Self {
        self.answers_by_agent = true;
        self
    }

    /// Has the fleet find out by another tool whether a call took effect of which nobody knows. For a tool whose effect is
    /// `once`; the other one's has to be `read`.
    #[must_use]
    pub fn reconcile(mut self, by: Reconcile) -> Self {
        self.spec.reconcile = Some(by);
        self
    }

    /// Runs a call only when what has to know that it has begun does: see [`Durability`]. As the fleet's setting says
    /// otherwise. For a tool whose effect is `once`; of any other, nothing is recorded before it runs.
    #[must_use]
    pub const fn durable(mut self, durable: Durability) -> Self {
        self.spec.durable = Some(durable);
        self
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

    /// Has people agree to each call, and says whose consent that is.
    #[must_use]
    pub fn approval(mut self, demand: ApprovalDemand) -> Self {
        self.spec.requires_approval = true;
        self.spec.approval = Some(demand);
        self
    }

    /// Says that this process lacks what the tool needs: models are not offered it, and each call is refused with
    /// `message`.
    #[must_use]
    pub fn not_configured_here(mut self, message: String) -> Self {
        self.spec.configured = false;
        self.handler = Arc::new(NotConfigured { message });
        self
    }

    /// Returns what the tool declares.
    #[must_use]
    pub fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// The arguments that say nothing of themselves, as paths (`owner.email`): a model fills them in by guessing.
    #[must_use]
    pub fn undescribed(&self) -> Vec<String> {
        let mut found = Vec::new();
        undescribed(&self.spec.input_schema, "", &mut found);
        found
    }

    /// Returns true if any set of tools has this one still: those in force, and those that running calls have kept.
    #[must_use]
    pub fn is_held(&self) -> bool {
        Arc::strong_count(&self.held) > Arc::strong_count(&self.clones)
    }

    pub(super) const fn does_answer_by_agent(&self) -> bool {
        self.answers_by_agent
    }

    pub(super) const fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    pub(super) const fn secret_references(&self) -> &BTreeMap<String, SecretRef> {
        &self.secrets
    }

    /// The declaration with `timeout_default` where the tool sets no timeout, and what runs it: the function behind
    /// what it asked for. Secrets are looked up in `environment`.
    pub fn into_parts(mut self, timeout_default: Duration, environment: &Environment) -> (ToolSpec, Arc<dyn Handler>) {
        self.spec.timeout = self.timeout.unwrap_or(timeout_default);
        let mut handler: Arc<dyn Handler> =
            Arc::new(Validated { handler: self.handler, validate: self.validate, _held: self.held });
        if !self.secrets.is_empty() {
            self.spec.configured = tool_secrets::are_set(&self.secrets, environment);
            let (tool, environment) = (self.spec.name.clone(), environment.clone());
            handler = Arc::new(WithSecrets { tool, handler, references: self.secrets, environment });
        }
        (self.spec, handler)
    }
}

/// Finds the members of an object schema without a description, and those of the objects and lists in them. The schemas
/// of types have everything in place, and end.
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

/// A handler with a look at its arguments, where the tool has one.
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

/// The schema of a type for models: everything in place, without what tells them nothing.
fn schema_of<T: JsonSchema>(settings: SchemaSettings) -> Value {
    let settings = settings.with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(root) = schema.as_object_mut() {
        // The struct's name and its own doc comment; the tool has a name and a description.
        root.shift_remove("title");
        root.shift_remove("description");
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
        let arguments: Args = unfit::read(arguments).map_err(ToolError::InvalidArguments)?;
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
    struct Told {
        told: String,
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
    async fn secrets_are_handed_over_for_each_tenant_and_taken_out_of_what_comes_back() {
        let leaky = TypedTool::new("leaky", "Tells all.", Effect::Read, |context, _: Nothing| async move {
            let told = format!("the key is {}", context.secret("KEY")?);
            if context.agent.as_str() == "kelly" { Ok(Told { told }) } else { Err(ToolError::Permanent(told)) }
        })
        .secret_from_env("KEY", "LEAKY_{tenant}");
        let environment = Environment::of([("LEAKY_acme", "s3cret-of-acme")]);
        let (spec, handler) = leaky.into_parts(Duration::from_secs(1), &environment);
        assert!(spec.configured, "a tenant's own secret may come with the tenant");
        let told = handler.call(&context(1), &arguments(json!({}))).await.unwrap();
        assert_eq!(told.json.get(), r#"{"told":"the key is [REDACTED]"}"#);
        let tina = CallContext { agent: tickfleet_model::AgentId::new("tina").unwrap(), ..context(1) };
        let Err(ToolFailure::Permanent { message, .. }) = handler.call(&tina, &arguments(json!({}))).await else {
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
    fn what_the_schema_cannot_say_is_validated_before_anything_happens() {
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
    async fn tools_start_and_stop_together_and_one_that_fails_stops_the_others() {
        use std::sync::Mutex;

        use crate::{start_all, stop_all};

        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let hooked = |name: &'static str, fails: bool| {
            let (started, stopped) = (Arc::clone(&log), Arc::clone(&log));
            TypedTool::new(name, "", Effect::Read, |_, _: Nothing| async { Ok(Told { told: String::new() }) })
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
