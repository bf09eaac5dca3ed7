//! The tool registry. A typed and a declared tool of the same name become one tool.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_config::tools::{ToolDef, ToolRunner, ToolsFile};
use tickfleet_model::tool::{CACHE_TTL_MS_MAX, CachePer, EFFECT_WINDOW_MS_MAX, ReadCache};
use tickfleet_model::version::{self, Selector};
use tickfleet_model::{Durability, Effect, EffectKey, ToolSpec, limits};
use tickfleet_protocol::NameMap;

use super::kind::NotConfigured;
use super::{
    ArgumentCheck, ArgumentError, DeclarationError, DeclaredHandler, Environment, Handler, OutputCheck, ToolKinds,
    ToolOutput, TypedTool, wording,
};

const NAMES_OFFERED_MAX: usize = 3;

/// A tool with its compiled schemas and its handler.
#[derive(Clone)]
pub struct RegisteredTool {
    /// The tool's specification.
    pub spec: ToolSpec,
    /// The compiled input schema.
    pub arguments: ArgumentCheck,
    /// The compiled output schema, if the tool declares one.
    pub output: Option<OutputCheck>,
    /// Runs the tool.
    pub handler: Arc<dyn Handler>,
    /// How the declaration runs the tool, such as its request or command. Approvals are bound to this text.
    pub runs: String,
    /// True if the result depends on the calling agent or task.
    pub answers_by_agent: bool,
    /// For a tool in the caller's process: after this time without a heartbeat, a call is lost. `None` for all other
    /// tools.
    pub local_lease: Option<Duration>,
}

impl fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredTool").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl RegisteredTool {
    /// Compiles the schemas of `spec`, and checks its effect key, its cache, and the fields for `once` tools.
    pub fn new(spec: ToolSpec, handler: Arc<dyn Handler>) -> Result<Self, RegistryError> {
        if let Some(why) = spec.effect_key.as_ref().and_then(|key| wrong_key(key, spec.effect)) {
            return Err(RegistryError::new(spec.name, why));
        }
        if spec.effect != Effect::Once && spec.reconcile.is_some() {
            let reason = "reconcile requires the effect once: tools with other effects may run again";
            return Err(RegistryError::new(spec.name, reason));
        }
        if let Some(why) = spec.cache.as_ref().and_then(|cache| wrong_cache(cache, &spec)) {
            return Err(RegistryError::new(spec.name, why));
        }
        let arguments = ArgumentCheck::compile(&spec.input_schema)
            .map_err(|error| RegistryError::new(&spec.name, format!("the input schema {error}")))?;
        let output = spec.output_schema.as_ref().map(OutputCheck::compile).transpose().map_err(|error| {
            let error = RegistryError::new(&spec.name, format!("the output schema {error}"));
            RegistryError { is_output_schema: true, ..error }
        })?;
        Ok(Self { spec, arguments, output, handler, runs: String::new(), answers_by_agent: false, local_lease: None })
    }

    /// Marks the result as dependent on the calling agent or task. Fails if the cache is shared by a tenant's agents.
    pub fn answering_by_agent(self) -> Result<Self, RegistryError> {
        if self.spec.cache.is_some_and(|cache| cache.per == CachePer::Tenant) {
            let why =
                "its result depends on the agent that asks: set `per: agent`, or agents receive each other's results";
            return Err(RegistryError::new(self.spec.name, why));
        }
        Ok(Self { answers_by_agent: true, ..self })
    }

    /// Checks a result against the tool's output schema.
    pub async fn check_output(&self, output: &ToolOutput) -> Result<(), ArgumentError> {
        match &self.output {
            Some(check) => check.check_in_time(output.json.get()).await,
            None => Ok(()),
        }
    }
}

/// Why a tool cannot be registered.
#[derive(Debug, thiserror::Error)]
#[error("tool '{tool}': {reason}")]
pub struct RegistryError {
    /// The tool's name.
    pub tool: String,
    /// The reason.
    pub reason: String,
    /// True if only the output schema cannot be used.
    pub is_output_schema: bool,
}

impl RegistryError {
    fn new(tool: impl Into<String>, reason: impl ToString) -> Self {
        Self { tool: tool.into(), reason: reason.to_string(), is_output_schema: false }
    }

    fn id_twice(tool: String, id: &str, other: &str) -> Self {
        Self::new(tool, format!("the id '{id}' already belongs to the tool '{other}'"))
    }
}

/// All tools of a worker. Immutable once shared: a reload builds a new registry.
#[derive(Debug, Default, Clone)]
pub struct Registry {
    /// The newest version of each tool.
    by_name: BTreeMap<String, Arc<RegisteredTool>>,
    /// The versions of each tool that has several, newest first.
    versions: BTreeMap<String, Vec<Arc<RegisteredTool>>>,
    name_of_id: BTreeMap<String, String>,
    /// The names that dialects show. Only this map resolves shortened names. Built on first use.
    shown: OnceLock<NameMap>,
}

impl Registry {
    /// Builds the registry. For a tool that is both typed and declared, the declaration's fields win, the stricter
    /// effect applies, and the typed function runs.
    pub fn build(
        typed: Vec<TypedTool>,
        file: &ToolsFile,
        kinds: &ToolKinds,
        environment: &Environment,
        timeout_default: Duration,
    ) -> Result<Self, Vec<RegistryError>> {
        let mut registry = Self::default();
        let mut errors = Vec::new();
        for tool in typed {
            let made = typed_tool(tool, file, environment, timeout_default);
            errors.extend(made.and_then(|tool| registry.register(tool)).err());
        }
        let only_declared: Vec<_> =
            file.tools.iter().filter(|(name, _)| !registry.by_name.contains_key(*name)).collect();
        let failed: BTreeSet<String> = errors.iter().map(|e| e.tool.clone()).collect();
        for (key, def) in only_declared.into_iter().filter(|(name, _)| !failed.contains(*name)) {
            let (name, label) = version::split(key);
            let made = declared(name, label, def, kinds, timeout_default);
            let registered = made.and_then(|tool| match label {
                Some(_) => registry.register_version(tool),
                None => registry.register(tool),
            });
            errors.extend(registered.err());
        }
        if errors.is_empty() { Ok(registry) } else { Err(errors) }
    }

    /// Returns a copy with one more tool. The other tools keep their connections and access tokens.
    pub fn with(
        &self,
        tool: TypedTool,
        file: &ToolsFile,
        environment: &Environment,
        timeout_default: Duration,
    ) -> Result<Self, RegistryError> {
        let made = typed_tool(tool, file, environment, timeout_default)?;
        let name = made.spec.name.clone();
        let only_declared = file.tools.contains_key(&name) && self.get(&name).is_some_and(|tool| !tool.spec.configured);
        let mut next = if only_declared { self.without(&name) } else { self.clone() };
        next.register(made)?;
        Ok(next)
    }

    /// Returns a copy of the registry without the tool `name`.
    #[must_use]
    pub fn without(&self, name: &str) -> Self {
        let mut next = Self { shown: OnceLock::new(), ..self.clone() };
        if let Some(tool) = next.by_name.remove(name) {
            next.name_of_id.remove(&tool.spec.id);
        }
        next
    }

    /// Adds one version of a tool. Fails if the tool has this version already.
    pub fn register_version(&mut self, tool: RegisteredTool) -> Result<(), RegistryError> {
        let name = tool.spec.name.clone();
        let Some(first) = self.by_name.get(&name).cloned() else { return self.register(tool) };
        let number = |tool: &RegisteredTool| version::parse(&tool.spec.version);
        let all = self.versions.entry(name.clone()).or_insert_with(|| vec![first]);
        if all.iter().any(|other| number(other) == number(&tool)) {
            return Err(RegistryError::new(name, "the name is registered twice"));
        }
        if let Some(other) = self.name_of_id.insert(tool.spec.id.clone(), name.clone()) {
            return Err(RegistryError::id_twice(name, &tool.spec.id, &other));
        }
        all.push(Arc::new(tool));
        all.sort_by_key(|tool| std::cmp::Reverse(number(tool)));
        self.by_name.extend(all.first().map(|newest| (name, Arc::clone(newest))));
        Ok(())
    }

    /// Returns the version that `selector` selects. Without a selector, returns the newest version.
    #[must_use]
    pub fn select<'a>(
        &'a self,
        tool: &'a Arc<RegisteredTool>,
        selector: Option<&str>,
    ) -> Option<&'a Arc<RegisteredTool>> {
        let Some(selector) = selector else { return Some(tool) };
        let selector = Selector::parse(selector)?;
        self.versions_of(tool)
            .iter()
            .find(|tool| version::parse(&tool.spec.version).is_some_and(|version| selector.takes(&version)))
    }

    /// Returns the strictest effect of all versions of the tool that a model calls by `name`.
    #[must_use]
    pub fn effect(&self, name: &str) -> Option<Effect> {
        let tool = self.resolve(name)?;
        let all = self.versions_of(tool).iter();
        Some(all.fold(tool.spec.effect, |effect, other| stricter(effect, other.spec.effect)))
    }

    /// True if all versions of the tool are reads, and none waits until its begin is durable.
    #[must_use]
    pub fn is_parallel(&self, name: &str) -> bool {
        let is_plain = |tool: &Arc<RegisteredTool>| {
            tool.spec.effect == Effect::Read && matches!(tool.spec.durable, None | Some(Durability::None))
        };
        self.resolve(name).is_some_and(|tool| self.versions_of(tool).iter().all(is_plain))
    }

    fn versions_of<'a>(&'a self, tool: &'a Arc<RegisteredTool>) -> &'a [Arc<RegisteredTool>] {
        self.versions.get(&tool.spec.name).map_or(std::slice::from_ref(tool), Vec::as_slice)
    }

    /// Returns the input schemas of all versions. Empty if the tool does not exist.
    #[must_use]
    pub fn input_schemas(&self, name: &str) -> Vec<&Value> {
        let Some(tool) = self.get(name) else { return Vec::new() };
        self.versions_of(tool).iter().map(|tool| &tool.spec.input_schema).collect()
    }

    /// Adds one tool. Fails if its name or id is taken, or if a model could not call it.
    pub fn register(&mut self, tool: RegisteredTool) -> Result<(), RegistryError> {
        let name = tool.spec.name.clone();
        let id = tool.spec.id.clone();
        let odd = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
        if name.is_empty() || name.len() > limits::NAME_BYTES_MAX || name.contains(odd) {
            let max = limits::NAME_BYTES_MAX;
            return Err(RegistryError::new(name, format!("a name has 1 to {max} characters of A-Z a-z 0-9 _ . -")));
        }
        if self.by_name.contains_key(&name) {
            return Err(RegistryError::new(name, "the name is registered twice"));
        }
        if let Some(other) = self.name_of_id.get(&id) {
            return Err(RegistryError::id_twice(name, &id, other));
        }
        self.shown = OnceLock::new();
        self.name_of_id.insert(id, name.clone());
        self.by_name.insert(name, Arc::new(tool));
        Ok(())
    }

    /// Maps tool ids to names. If a tool has several versions, its names are `<name>@<version>`.
    #[must_use]
    pub fn names_by_id(&self) -> BTreeMap<String, String> {
        let versions = self.versions.values().flatten();
        let of_version = |tool: &Arc<RegisteredTool>| format!("{}@{}", tool.spec.name, tool.spec.version);
        let mut names: BTreeMap<String, String> =
            self.by_name.values().map(|tool| (tool.spec.id.clone(), tool.spec.name.clone())).collect();
        names.extend(versions.map(|tool| (tool.spec.id.clone(), of_version(tool))));
        names
    }

    /// Returns the tool with this exact name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<RegisteredTool>> {
        self.by_name.get(name)
    }

    /// Returns the tool with this name, or with the name that a dialect shows. Limits recognize the same names.
    #[must_use]
    pub fn resolve(&self, name: &str) -> Option<&Arc<RegisteredTool>> {
        let shown = || self.shown.get_or_init(|| NameMap::new(self.by_name.keys()));
        self.get(name).or_else(|| self.get(shown().shown_as(name)?))
    }

    /// Iterates over all tools, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<RegisteredTool>> {
        self.by_name.values()
    }

    /// Returns the number of tools.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// True if the registry contains no tools.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns the most similar names. The caller must remove names that the agent may not call.
    #[must_use]
    pub fn similar_names(&self, wrong: &str) -> Vec<&str> {
        wording::closest(wrong, self.by_name.keys().map(String::as_str), NAMES_OFFERED_MAX)
    }
}

/// Returns the problem with a key. Keys of declarations are also checked when the configuration is read: there, the
/// window must be at least 1 s.
fn wrong_key(key: &EffectKey, effect: Effect) -> Option<&'static str> {
    if effect != Effect::Once {
        return Some("an effect key requires the effect once: tools with other effects may run again");
    }
    if key.arguments.is_empty() || key.arguments.iter().any(|pointer| !pointer.starts_with('/')) {
        return Some("an effect key has JSON pointers to arguments, such as /to");
    }
    (key.window_ms < 1 || key.window_ms > EFFECT_WINDOW_MS_MAX).then_some("an effect key's window is 1 ms to 31 days")
}

/// If a declaration makes a typed tool's effect stricter than `read`, the tool's own cache becomes an error.
fn wrong_cache(cache: &ReadCache, spec: &ToolSpec) -> Option<&'static str> {
    if spec.effect != Effect::Read {
        return Some("a cache requires the effect read: a cached output would skip the effect of any other tool");
    }
    (cache.ttl_ms < 1 || cache.ttl_ms > CACHE_TTL_MS_MAX).then_some("a cache's ttl is 1 ms to a day")
}

fn timeout_of(name: &str, def: &ToolDef) -> Result<Option<Duration>, RegistryError> {
    match def.timeout_ms {
        Some(0) => Err(RegistryError::new(name, "timeout_ms must be at least 1")),
        set => Ok(set.map(Duration::from_millis)),
    }
}

fn typed_tool(
    tool: TypedTool,
    file: &ToolsFile,
    environment: &Environment,
    timeout_default: Duration,
) -> Result<RegisteredTool, RegistryError> {
    let by_agent = tool.depends_on_agent();
    let (spec, handler) = tool.into_parts(timeout_default, environment);
    let made = match file.tools.get(&spec.name) {
        Some(def) if def.runner.is_some() => {
            return Err(RegistryError::new(spec.name, "fully declared, but a typed tool of this name exists"));
        }
        Some(def) => merged(spec, def).and_then(|spec| RegisteredTool::new(spec, handler)),
        None => RegisteredTool::new(spec, handler),
    }?;
    if by_agent { made.answering_by_agent() } else { Ok(made) }
}

fn merged(typed: ToolSpec, def: &ToolDef) -> Result<ToolSpec, RegistryError> {
    let union = |typed: Vec<String>, declared: &BTreeSet<String>| -> Vec<String> {
        typed.into_iter().chain(declared.iter().cloned()).collect::<BTreeSet<_>>().into_iter().collect()
    };
    // The key is checked here only if the declaration has no schema. Otherwise, it was checked when the configuration
    // was read.
    let keys = def.effect_key.as_ref().filter(|_| def.input_schema.is_none());
    let pointers = keys.into_iter().flat_map(|key| &key.arguments);
    if let Some(pointer) = pointers.into_iter().find(|pointer| !is_required(pointer, &typed.input_schema)) {
        let reason = format!("effect_key has {pointer}, which is not a required argument of the tool");
        return Err(RegistryError::new(typed.name, reason));
    }
    Ok(ToolSpec {
        id: def.id.clone().unwrap_or(typed.id),
        display_name: def.display_name.clone().unwrap_or(typed.display_name),
        description: def.description.clone().unwrap_or(typed.description),
        input_schema: def.input_schema.clone().unwrap_or(typed.input_schema),
        output_schema: def.output_schema.clone().or(typed.output_schema),
        category: def.category.clone().unwrap_or(typed.category),
        version: def.version.clone().unwrap_or(typed.version),
        effect: def.effect.map_or(typed.effect, |effect| stricter(typed.effect, effect)),
        effect_key: def.effect_key.clone().or(typed.effect_key),
        cache: def.cache.or(typed.cache),
        reconcile: def.reconcile.clone().or(typed.reconcile),
        durable: def.durable.max(typed.durable),
        timeout: timeout_of(&typed.name, def)?.unwrap_or(typed.timeout),
        required_capabilities: union(typed.required_capabilities, &def.required_capabilities),
        required_features: union(typed.required_features, &def.required_features),
        requires_approval: typed.requires_approval || def.requires_approval || def.approval.is_some(),
        approval: def.approval.clone().or(typed.approval),
        configured: typed.configured,
        name: typed.name,
    })
}

fn is_required(pointer: &str, schema: &Value) -> bool {
    let name = pointer.split('/').nth(1).unwrap_or_default().replace("~1", "/").replace("~0", "~");
    schema.get("required").and_then(Value::as_array).is_some_and(|required| required.iter().any(|other| *other == name))
}

/// Neither the author nor the operator can relax the effect that the other has set.
fn stricter(one: Effect, other: Effect) -> Effect {
    match (one, other) {
        (Effect::Once, _) | (_, Effect::Once) => Effect::Once,
        (Effect::Idempotent, _) | (_, Effect::Idempotent) => Effect::Idempotent,
        (Effect::Read, Effect::Read) => Effect::Read,
    }
}

fn declared(
    name: &str,
    label: Option<&str>,
    def: &ToolDef,
    kinds: &ToolKinds,
    timeout_default: Duration,
) -> Result<RegisteredTool, RegistryError> {
    let effect = def.effect.unwrap_or_default();
    let mut spec = ToolSpec {
        id: def.id.clone().unwrap_or_else(|| match label {
            Some(label) => format!("tool_{name}@{label}"),
            None => format!("tool_{name}"),
        }),
        name: name.to_owned(),
        display_name: def.display_name.clone().unwrap_or_else(|| name.to_owned()),
        description: def.description.clone().unwrap_or_default(),
        // Only a tool of another process can be declared without a schema. No worker runs such a tool.
        input_schema: def.input_schema.clone().unwrap_or_else(|| json!({"type": "object"})),
        output_schema: def.output_schema.clone(),
        category: def.category.clone().unwrap_or_else(|| "general".to_owned()),
        version: match (&def.version, label.and_then(version::parse)) {
            (Some(version), _) => version.clone(),
            (None, Some(version)) => version.to_string(),
            (None, None) => "1.0.0".to_owned(),
        },
        effect,
        effect_key: def.effect_key.clone(),
        cache: def.cache,
        reconcile: def.reconcile.clone(),
        durable: def.durable,
        timeout: timeout_of(name, def)?.unwrap_or(timeout_default),
        required_capabilities: def.required_capabilities.iter().cloned().collect(),
        required_features: def.required_features.iter().cloned().collect(),
        requires_approval: def.requires_approval || def.approval.is_some(),
        approval: def.approval.clone(),
        configured: true,
    };
    let made = match &def.runner {
        Some(ToolRunner::Http(http)) => kinds.http.make(http, &spec.input_schema, effect),
        Some(ToolRunner::Shell(shell)) => kinds.shell.make(shell, &spec.input_schema, effect),
        Some(ToolRunner::Local(_)) => {
            let message = "This tool runs in the process that makes the call, and nowhere else.".into();
            Ok(DeclaredHandler { handler: Arc::new(NotConfigured { message }), configured: true })
        }
        None => Ok(not_configured(name, "it has no configured handler")),
    };
    let made = match made {
        Err(unset @ DeclarationError::UnsetVariable { .. }) => not_configured(name, unset),
        made => made.map_err(|error| RegistryError::new(name, error))?,
    };
    spec.configured = made.configured;
    let tool = RegisteredTool {
        // References to secrets, never their values.
        runs: format!("{:?}", def.runner),
        ..RegisteredTool::new(spec, made.handler)?
    };
    match &def.runner {
        // A shell command can read the calling agent's files, so its result depends on the agent.
        Some(ToolRunner::Shell(_)) => tool.answering_by_agent(),
        Some(ToolRunner::Local(local)) => {
            Ok(RegisteredTool { local_lease: Some(Duration::from_millis(local.lease_ms)), ..tool })
        }
        Some(ToolRunner::Http(_)) | None => Ok(tool),
    }
}

fn not_configured(tool: &str, missing: impl fmt::Display) -> DeclaredHandler {
    let message = format!("The tool '{tool}' cannot run: {missing}.");
    DeclaredHandler { handler: Arc::new(NotConfigured { message }), configured: false }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use tickfleet_config::tools::HttpDef;

    use super::*;
    use crate::ToolFailure;
    use crate::tests::{arguments, context};
    use crate::{ToolKind, builtin};

    const DEFAULT: Duration = Duration::from_secs(7);

    struct Stub;

    impl ToolKind<HttpDef> for Stub {
        fn make(&self, def: &HttpDef, _: &Value, _: Effect) -> Result<DeclaredHandler, DeclarationError> {
            Environment::of([]).expand(&def.base_url)?;
            if def.method != "GET" {
                return Err(DeclarationError::Field { field: "http.method".into(), why: "not GET".into() });
            }
            let handler = Arc::new(NotConfigured { message: "a stub".into() });
            Ok(DeclaredHandler { handler, configured: true })
        }
    }

    fn build(file: Value) -> Result<Registry, Vec<RegistryError>> {
        let file: ToolsFile = serde_json::from_value(file).unwrap();
        Registry::build(
            builtin::all(),
            &file,
            &ToolKinds { http: Box::new(Stub), shell: Box::new(crate::NoShell) },
            &Environment::of([("SET", "yes")]),
            DEFAULT,
        )
    }

    fn errors(file: Value) -> Vec<String> {
        build(file).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_tool_resolves_by_its_encoded_or_shortened_name() {
        let short = "crm.find".to_owned();
        let long = format!("crm.Find.by_{}", "n".repeat(45));
        let tool = json!({"description": "Reads.", "input_schema": {"type": "object"}});
        let registry = build(json!({"tools": {&short: tool, &long: tool}})).unwrap();
        for name in [&short, &long] {
            let shown = NameMap::new([name]).wire(name).into_owned();
            assert!(shown != *name && registry.resolve(&shown).is_some_and(|tool| tool.spec.name == *name), "{shown}");
        }
        assert!(registry.resolve("crm_x2E_lose").is_none());
        // These spellings decode to the tool's name, but no dialect shows them to a model.
        for spelling in ["_x63_rm_x2E_find", "crm_x2E__x66_ind", "_x63_rm.find"] {
            assert!(registry.resolve(spelling).is_none(), "{spelling}");
        }
    }

    #[test]
    fn an_agent_specific_tool_rejects_a_tenant_cache() {
        let tool = |per| {
            let tool = builtin::all().into_iter().find(|tool| tool.spec().name == "echo").unwrap();
            tool.cache(Duration::from_secs(60), per)
        };
        let made = |tool: TypedTool| {
            typed_tool(tool, &ToolsFile::default(), &Environment::of([]), DEFAULT).map(|tool| tool.answers_by_agent)
        };
        assert!(!made(tool(CachePer::Tenant)).unwrap());
        assert!(made(tool(CachePer::Agent).answers_by_agent()).unwrap());
        let refused = made(tool(CachePer::Tenant).answers_by_agent()).unwrap_err();
        assert!(refused.to_string().starts_with("tool 'echo': its result depends on the agent"), "{refused}");
    }

    #[tokio::test]
    async fn a_declared_tool_without_configuration_reports_not_configured() {
        let schema = json!({"type": "object"});
        let http = json!({"method": "GET", "base_url": "${CRM_URL}", "path": "/"});
        let registry = build(json!({"tools": {
            "post_tweet": {"description": "Posts.", "input_schema": schema},
            "crm": {"description": "Reads.", "input_schema": schema, "http": http}
        }}))
        .unwrap();
        for (name, reason) in [("post_tweet", "no configured handler"), ("crm", "CRM_URL is not set")] {
            let tool = registry.get(name).unwrap();
            assert!(!tool.spec.configured);
            match tool.handler.call(&context(1), &arguments(json!({}))).await {
                Err(ToolFailure::NotConfigured { message }) => assert!(message.contains(reason), "{message}"),
                other => panic!("{other:?}"),
            }
        }
        let tweet = registry.get("post_tweet").unwrap();
        assert_eq!(
            (tweet.spec.id.as_str(), tweet.spec.effect, tweet.spec.timeout),
            ("tool_post_tweet", Effect::Once, DEFAULT)
        );
    }

    #[tokio::test]
    async fn a_declaration_merges_with_the_typed_tool_of_its_name() {
        let registry = build(json!({"tools": {"echo": {
            "description": "Says it back.", "effect": "idempotent", "timeout_ms": 50, "required_capabilities": ["talk"],
            "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        }}}))
        .unwrap();
        let echo = registry.get("echo").unwrap();
        assert_eq!((echo.spec.description.as_str(), echo.spec.effect), ("Says it back.", Effect::Idempotent));
        assert_eq!(
            (echo.spec.timeout, &echo.spec.required_capabilities),
            (Duration::from_millis(50), &vec!["talk".into()])
        );
        assert!(echo.arguments.check("{}").is_err(), "the declared schema holds");
        let said = echo.handler.call(&context(1), &arguments(json!({"text": "hi"}))).await.unwrap();
        assert_eq!(said.json.get(), r#"{"text":"hi"}"#);
        assert_eq!(registry.get("fail_once").unwrap().spec.timeout, DEFAULT);
    }

    #[test]
    fn a_declaration_overrides_only_the_fields_that_it_has() {
        let own = builtin::all().into_iter().find(|tool| tool.spec().name == "echo").unwrap().spec().clone();
        let registry =
            build(json!({"tools": {"echo": {"display_name": "Echo", "required_features": ["talk"]}}})).unwrap();
        let echo = &registry.get("echo").unwrap().spec;
        assert_eq!(
            (&echo.description, &echo.input_schema, echo.effect),
            (&own.description, &own.input_schema, own.effect)
        );
        assert_eq!((echo.display_name.as_str(), &echo.required_features), ("Echo", &vec!["talk".to_owned()]));
        let once = build(json!({"tools": {"echo": {"effect": "once"}}})).unwrap();
        assert_eq!(once.get("echo").unwrap().spec.effect, Effect::Once, "the stricter one");
        let durable = build(json!({"tools": {"echo": {"durable": "local"}}})).unwrap();
        assert_eq!(durable.get("echo").unwrap().spec.durable, Some(Durability::Disk));
        assert!(registry.is_parallel("echo") && !durable.is_parallel("echo"));
    }

    #[test]
    fn a_selector_picks_one_of_several_tool_versions() {
        let version =
            |effect: &str| json!({"description": effect, "effect": effect, "input_schema": {"type": "object"}});
        let file = json!({"find": version("read"), "find@2": version("once"), "find@10.1": version("read")});
        let registry = build(json!({"tools": file})).unwrap();
        let find = registry.resolve("find").unwrap();
        let taken =
            |selector| registry.select(find, selector).map(|tool| (tool.spec.version.clone(), tool.spec.id.clone()));
        let expected = |version: &str, id: &str| Some((version.to_owned(), id.to_owned()));
        assert_eq!(taken(None), expected("10.1.0", "tool_find@10.1"));
        assert_eq!(taken(Some("latest")), taken(None));
        assert_eq!(taken(Some("1")), expected("1.0.0", "tool_find"));
        assert_eq!(taken(Some("<10")), expected("2.0.0", "tool_find@2"));
        assert_eq!(taken(Some("3")), None);
        assert_eq!(registry.effect("find"), Some(Effect::Once), "the strictest of them");
        assert!(!registry.is_parallel("find"), "one version is not a read");
        assert_eq!(registry.iter().filter(|tool| tool.spec.name == "find").count(), 1, "one name is shown once");
        let published = registry.names_by_id();
        assert_eq!(published["tool_find"], "find@1.0.0", "an id of a version is known with its version");
        assert_eq!(published["tool_find@10.1"], "find@10.1.0");
        let twice = json!({"find@2": version("read"), "find@2.0": version("read")});
        assert!(errors(json!({"tools": twice}))[0].contains("the name is registered twice"));
    }

    #[test]
    fn all_declaration_errors_are_reported_together() {
        let schema = json!({"type": "object"});
        let http = json!({"method": "BREW", "base_url": "http://example.com", "path": "/"});
        let errors = errors(json!({"tools": {
            "a": {"description": "", "input_schema": schema, "id": "same"},
            "b": {"description": "", "input_schema": schema, "id": "same"},
            "c d": {"description": "", "input_schema": schema},
            "e": {"description": "", "input_schema": {"type": "string"}},
            "f": {"description": "", "input_schema": schema, "timeout_ms": 0},
            "g": {"description": "", "input_schema": schema, "http": http},
            "echo": {"description": "", "input_schema": schema, "http": http}
        }}));
        let starts = [
            "tool 'echo': fully declared",
            "tool 'b': the id 'same'",
            "tool 'c d': a name",
            "tool 'e': the input schema",
            "tool 'f': timeout_ms",
            "tool 'g': http.method",
        ];
        assert_eq!(errors.len(), starts.len(), "{errors:?}");
        for (error, start) in errors.iter().zip(starts) {
            assert!(error.starts_with(start), "{error}");
        }
    }

    #[test]
    fn a_duplicate_name_is_rejected_and_a_wrong_name_gets_suggestions() {
        let mut registry = build(json!({})).unwrap();
        let again = RegisteredTool::clone(registry.get("echo").unwrap());
        assert!(registry.register(again).unwrap_err().to_string().ends_with("the name is registered twice"));
        assert_eq!(registry.similar_names("ecoh"), ["echo"]);
        assert_eq!(registry.similar_names("failonce"), ["fail_once"]);
        assert!(registry.similar_names("transfer_money").is_empty());
        assert_eq!(registry.iter().count(), registry.len());
    }
}
