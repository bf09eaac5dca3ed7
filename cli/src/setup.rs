//! The setup that every command starts from: the configuration and the objects built from it.

mod references;
mod sandbox;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use tickfleet_client::Client;
use tickfleet_client::verbs::{FleetNames, VerbContext};
use tickfleet_config::mcp::McpServerDef;
use tickfleet_config::{
    Configuration, Environment, Part, RedisUrl, SchemaCheck, SealKey, Settings, Sources, default_id,
};
use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::delegation::TASK_TOOL;
use tickfleet_engine::report::ReportOptions;
use tickfleet_llm::{LlmKind, ModelSet};
use tickfleet_model::policy::{META_TOOLS, TEAM_TOOLS, TRIAL_TOOLS};
use tickfleet_model::tool::Reconcile;
use tickfleet_model::{AgentId, Redactor, TenantId};
use tickfleet_ops::gen_ai;
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::telemetry::{self, LogFormat, LogOptions};
use tickfleet_ops::traces::{TraceOptions, Traces};
use tickfleet_proof::seal::Signer;
use tickfleet_sandbox::{Launcher, Level};
use tickfleet_store::seam::memory::{FsyncPolicy, MemoryOptions, MemoryStore};
use tickfleet_store::seam::socket;
use tickfleet_store::{Pool, Store, StoreError, StoreOptions};
use tickfleet_tools::{Registry, ToolKinds, TypedTool};
use tickfleet_tools_http::HttpKind;
use tickfleet_tools_knowledge::Knowledge;
use tickfleet_tools_mcp::Servers;
use tickfleet_tools_python::Pools;
use tickfleet_tools_shell::{Shell, ShellKind, builtin};
use worker::agents::TaskHandlers;

use crate::commands::dev::here::{DevHere, GRANT_TRIAL_TOOLS};
use crate::failure::Failure;
use crate::fleet::extensions::Extensions;
use crate::fleet::modules::{fingerprint, modules_failed, pools, with_modules};
use crate::global::{Global, environment, tool_environment};
use crate::output::Output;
use crate::output::time_format::millis;

#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) configuration: Configuration,
    pub(crate) url: String,
    /// True if an option or an environment variable sets the URL.
    pub(crate) url_chosen: bool,
    memory: Option<Arc<[Store]>>,
    sources: Sources,
    /// The errors of a broken configuration, which operators' commands tolerate.
    trouble: Option<String>,
    pub(crate) fingerprint: String,
    pub(crate) mcp: Arc<Servers>,
    models: Arc<ModelSet>,
    pub(crate) knowledge: Arc<Knowledge>,
    /// `None` in a process that runs no calls.
    pub(crate) pools: Option<Arc<Pools>>,
    pub(crate) shell: Arc<Shell>,
    pub(crate) extensions: Extensions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    /// Tools are rejected if this machine cannot provide their sandbox.
    Here,
    Elsewhere,
}

/// The command line overrides the environment, and the environment overrides the folder.
pub(crate) fn sources(global: &Global) -> Result<Sources, Failure> {
    sources_in(environment(), global)
}

pub(crate) fn sources_in(mut environment: Environment, global: &Global) -> Result<Sources, Failure> {
    // `TICKFLEET_CONFIG` is an option of the command line and not a setting, so it is removed.
    environment.remove("TICKFLEET_CONFIG");
    if global.trial_tools {
        environment.entry(GRANT_TRIAL_TOOLS.to_owned()).or_insert_with(|| "true".to_owned());
    }
    read_url_file(&mut environment, global.redis_url.is_some())?;
    if let Some(url) = &global.redis_url {
        if RedisUrl::new(url).is_none() {
            return Err(Failure::usage(
                "--redis-url: expected redis://, rediss:// or unix:// and an address, redis+sentinel://host1,host2/name, or redis+cluster://host1,host2",
            ));
        }
        environment.remove("TICKFLEET_REDIS_URL");
        environment.insert("REDIS_URL".into(), url.clone());
    }
    let name = |tool: &TypedTool| tool.spec().name.clone();
    let standard: BTreeSet<String> = worker::standard_handlers().iter().map(name).collect();
    let builtin = tickfleet_tools::builtin::all();
    let tools = builtin.iter().map(name).filter(|name| !standard.contains(name)).chain([TASK_TOOL.to_owned()]);
    let tools = tools.chain(tickfleet_tools_atlas::NAMES.map(String::from));
    let tools =
        tools.chain(META_TOOLS.map(String::from)).chain(tickfleet_tools_knowledge::tools::NAMES.map(String::from));
    let tools = tools.chain(TEAM_TOOLS.map(String::from)).chain(builtin::NAMES.map(String::from));
    let tools = tools.chain(global.extensions.tools.iter().map(name));
    Ok(Sources {
        dir: global.config.clone(),
        environment,
        built_in_tools: tools.collect(),
        built_in_handlers: standard.iter().cloned().chain(global.extensions.task_handlers.iter().map(name)).collect(),
        allow_unknown_names: false,
        knows_modules: false,
        schema_check: SchemaCheck(tickfleet_tools::check_schema),
        part: Part::Whole,
        written: BTreeMap::new(),
    })
}

/// Names a file with the URL, so that the password is not in the environment.
const URL_FILE: &str = "REDIS_URL_FILE";

fn read_url_file(environment: &mut Environment, is_overridden: bool) -> Result<(), Failure> {
    let Some(path) = environment.remove(URL_FILE).filter(|path| !path.trim().is_empty()) else { return Ok(()) };
    if is_overridden {
        return Ok(());
    }
    let is_set = |name: &&str| environment.get(*name).is_some_and(|value| !value.trim().is_empty());
    if let Some(other) = ["REDIS_URL", "TICKFLEET_REDIS_URL"].iter().find(|name| is_set(name)) {
        return Err(Failure::usage(format!("{URL_FILE} and {other} are both set: set one of them")));
    }
    let url = std::fs::read_to_string(&path)
        .map_err(|error| Failure::usage(format!("{URL_FILE}: {path} cannot be read ({error})")))?;
    if url.trim().is_empty() {
        return Err(Failure::usage(format!("{URL_FILE}: {path} is empty: expected the URL of Redis")));
    }
    environment.insert("REDIS_URL".into(), url.trim().to_owned());
    Ok(())
}

impl Setup {
    pub(crate) fn load(global: &Global) -> Result<Self, Failure> {
        let sources = sources(global)?;
        let pools = pools(&sources);
        Self::of(&sources, &global.extensions, Some(&pools))
    }

    /// For a process that runs no calls, and therefore needs no interpreter.
    pub(crate) fn load_without_modules(global: &Global) -> Result<Self, Failure> {
        Self::of(&sources(global)?, &global.extensions, None)
    }

    /// For a command outside the fleet. The fleet's own program may add tools and task handlers, so unknown ones are
    /// accepted.
    pub(crate) fn load_beside(global: &Global) -> Result<Self, Failure> {
        Self::beside(global, Part::Whole)
    }

    fn beside(global: &Global, part: Part) -> Result<Self, Failure> {
        // Schemas are not checked here: the fleet itself rejects invalid schemas.
        let schema_check = SchemaCheck::default();
        let sources = Sources { allow_unknown_names: true, schema_check, part, ..sources(global)? };
        Self::of(&sources, &global.extensions, None)
    }

    /// The log needs the settings before the rest of the configuration is loaded.
    pub(crate) fn load_settings(global: &Global) -> Result<Self, Failure> {
        Self::beside(global, Part::Settings)
    }

    /// If the configuration is broken, loads only the settings, or only their section `redis`.
    pub(crate) fn load_for_operator(global: &Global, output: &Output) -> Result<Self, Failure> {
        let broken = match Self::load_beside(global) {
            Ok(setup) => return Ok(setup),
            Err(failure) => failure,
        };
        let parts = [Part::Settings, Part::Redis].into_iter();
        let Some(setup) = parts.filter_map(|part| Self::beside(global, part).ok()).next() else {
            return Err(broken);
        };
        let trouble = broken.message().unwrap_or_default();
        output.note(&format!(
            "The configuration is broken: names, limits and permissions in it are unknown to this command.\n{trouble}"
        ));
        Ok(Self { trouble: Some(trouble), ..setup })
    }

    pub(crate) fn has_full_policy(&self) -> bool {
        self.sources.part == Part::Whole
    }

    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    pub(crate) fn folder(&self) -> Option<&std::path::Path> {
        self.sources.dir.as_deref()
    }

    /// Only warns, because tenants can also be set at run time.
    pub(crate) fn warn_if_all_rejected(&self) {
        if let Some(why) = self.configuration.policy.all_rejected_reason() {
            tracing::warn!("{why}");
        }
    }

    pub(crate) fn of(sources: &Sources, extensions: &Extensions, pools: Option<&Arc<Pools>>) -> Result<Self, Failure> {
        let setup = Self::with_text(sources, extensions, pools)?;
        Ok(Self { configuration: setup.configuration.without_text(), ..setup })
    }

    pub(crate) fn with_text(
        sources: &Sources,
        extensions: &Extensions,
        pools: Option<&Arc<Pools>>,
    ) -> Result<Self, Failure> {
        let fingerprint = fingerprint(sources, &tickfleet_config::load_modules(sources));
        let (_, configuration) = tickfleet_config::load_settled(&with_modules(sources, pools)?);
        let configuration = configuration.map_err(Failure::failed)?;
        let given = |name: &str| sources.environment.get(name).is_some_and(|value| !value.trim().is_empty());
        Ok(Self {
            url: configuration.settings.redis.url.expose().to_owned(),
            url_chosen: given("REDIS_URL") || given("TICKFLEET_REDIS_URL"),
            memory: None,
            shell: shell_of(&configuration.settings),
            models: Arc::new(ModelSet::new(&configuration.models, &sources.environment)),
            configuration,
            sources: sources.clone(),
            trouble: None,
            fingerprint,
            mcp: Arc::new(Servers::new(tool_environment(&sources.environment))),
            knowledge: Arc::new(Knowledge::new(&tool_environment(&sources.environment))),
            pools: pools.cloned(),
            extensions: extensions.clone(),
        })
    }

    /// Connections to unchanged servers stay open.
    pub(crate) fn sharing(mut self, mcp: &Arc<Servers>, knowledge: &Arc<Knowledge>) -> Self {
        (self.mcp, self.knowledge) = (Arc::clone(mcp), Arc::clone(knowledge));
        self
    }

    pub(crate) fn with_store_of(self, known: &Self) -> Self {
        Self { url: known.url.clone(), memory: known.memory.clone(), ..self }
    }

    pub(crate) const fn sources(&self) -> &Sources {
        &self.sources
    }

    pub(crate) const fn settings(&self) -> &Settings {
        &self.configuration.settings
    }

    pub(crate) fn shown_url(&self) -> String {
        if self.memory.is_some() {
            return "none, in memory".into();
        }
        RedisUrl::new(&self.url).map_or_else(|| "an unreadable URL".into(), |url| url.to_string())
    }

    pub(crate) fn at(&self, url: String) -> Self {
        Self { url, ..self.clone() }
    }

    pub(crate) fn in_memory(&self, dir: Option<&Path>) -> Result<Self, Failure> {
        let options = Arc::new(self.store_options());
        let shard = |number: u32| {
            let memory = MemoryOptions { lease_ms: options.lease_ms, ..MemoryOptions::default() };
            let memory = match dir {
                Some(dir) => {
                    MemoryStore::open_dir(&dir.join(format!("shard-{number}")), FsyncPolicy::EverySecond, memory)?
                }
                None => MemoryStore::new(memory),
            };
            Ok(Store::in_memory(memory, number, Arc::clone(&options)))
        };
        let stores: Result<Vec<Store>, StoreError> = (0..options.shards).map(shard).collect();
        Ok(Self { memory: Some(stores?.into()), ..self.clone() })
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.memory.is_some() || self.is_dev_socket()
    }

    /// True if the shards are in the memory of a `tickfleet dev` process.
    pub(crate) fn is_dev_socket(&self) -> bool {
        self.url.starts_with(socket::SCHEME)
    }

    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        if let Some(stores) = &self.memory {
            return Ok(Client::over(stores.to_vec()));
        }
        let connected = Client::connect(&self.url, self.store_options()).await.map_err(Failure::from);
        connected.map_err(|failure| match failure {
            Failure::Redis(message) if !self.url_chosen => {
                Failure::RedisReported(format!("{message}\n{}", self.which_redis()))
            }
            other => other,
        })
    }

    fn which_redis(&self) -> String {
        let here =
            DevHere::find().map(|here| format!("A tickfleet dev runs here:\n  export REDIS_URL='{}'", here.redis_url));
        let else_ = || "tickfleet dev starts one, and prints what to set; or set it to your fleet's Redis.".to_owned();
        format!("REDIS_URL is not set, so this is the address of the configuration. {}", here.unwrap_or_else(else_))
    }

    /// Returns advice if no scheduler has ever run on this Redis, because submitted work would wait there.
    pub(crate) async fn unserved(&self, client: &Client, tenant: &TenantId) -> Result<Option<String>, Failure> {
        if client.store(tenant).policy_in_force().await?.is_some() {
            return Ok(None);
        }
        let which = if self.url_chosen { String::new() } else { format!("\n{}", self.which_redis()) };
        Ok(Some(format!(
            "No scheduler has ever run on {}: submitted work waits until one does.{which}",
            self.shown_url()
        )))
    }

    /// Prefers `demo` and `kelly`, as in the documentation.
    pub(crate) fn example_caller(&self) -> Option<(&TenantId, &AgentId)> {
        let policy = &self.configuration.policy;
        let tenants = policy.tenants.keys().filter(|t| t.as_str() == "demo").chain(policy.tenants.keys());
        let pairs = tenants.flat_map(|tenant| {
            let agents = policy.agents.keys().filter(|a| a.as_str() == "kelly").chain(policy.agents.keys());
            agents.map(move |agent| (tenant, agent))
        });
        pairs.into_iter().find(|(tenant, agent)| policy.look_up(tenant, agent).is_ok())
    }

    pub(crate) const fn built_in_hint(&self) -> Option<&'static str> {
        match self.sources.dir {
            Some(_) => None,
            None => {
                Some("This is the built-in configuration; --config (or TICKFLEET_CONFIG) names the folder of another.")
            }
        }
    }

    pub(crate) fn pool(&self) -> Result<Pool, Failure> {
        Ok(Pool::open(&self.url, self.settings().redis.pool_size)?)
    }

    /// The stores are not connected yet.
    pub(crate) fn stores(&self) -> Result<Vec<Store>, Failure> {
        if let Some(stores) = &self.memory {
            return Ok(stores.to_vec());
        }
        Ok(Store::open_all(&self.url, &Arc::new(self.store_options()))?)
    }

    pub(crate) fn store_options(&self) -> StoreOptions {
        let s = self.settings();
        // Every field is explicit, so that a new field does not compile until it is set here.
        let fixed = StoreOptions::default();
        StoreOptions {
            namespace: s.redis.namespace.clone(),
            shards: s.redis.shards,
            lease_ms: millis(s.worker.lease),
            retain_ms: millis(s.retention.records),
            dedupe_ms: millis(s.retention.dedupe_for),
            reply_retain_ms: millis(s.retention.replies),
            audit_retain_ms: millis(s.retention.audit),
            turns_max: s.queues.turns_max,
            turns_bytes_max: s.queues.turns_bytes_max,
            tenant_turns_max: s.queues.tenant_turns_max,
            tenant_bytes_max: s.queues.tenant_bytes_max,
            tenant_ready_max: s.queues.tenant_ready_max,
            inbox_unread_max: s.queues.inbox_unread_max,
            inboxes_max: s.queues.inboxes_max,
            audit_entries_max: fixed.audit_entries_max,
            audit_admissions: s.audit.admissions,
            dead_entries_max: fixed.dead_entries_max,
            crashes_max: fixed.crashes_max,
        }
    }

    pub(crate) fn active(&self) -> Arc<PolicyHandle> {
        Arc::new(PolicyHandle::new(self.configured()))
    }

    /// Lacks the tenants that were set at run time.
    pub(crate) fn configured(&self) -> ActivePolicy {
        ActivePolicy {
            policy: self.configuration.policy.clone(),
            task_handlers: self.configuration.task_handlers.clone(),
            digest: self.configuration.digest.clone(),
            ..ActivePolicy::default()
        }
    }

    /// Does not check the rules on the tools.
    pub(crate) fn tools(&self, store: &Store, active: &Arc<PolicyHandle>, runs: Runs) -> Result<Registry, Failure> {
        let mut typed = worker::standard_tools(store, active);
        // A trial tool is included only if a permission row or the `reconcile` of another tool names it.
        typed.retain(|tool| !TRIAL_TOOLS.contains(&tool.spec().name.as_str()) || self.is_named(&tool.spec().name));
        typed.extend(self.atlas_tools(store, active)?);
        typed.extend(self.workspace_tools(runs)?);
        self.knowledge.embedder().map_err(|why| Failure::failed(anyhow::anyhow!(why)))?;
        typed.extend(tickfleet_tools_knowledge::tools::all(store, &self.knowledge));
        typed.extend(self.extensions.tools_now());
        typed.extend(self.module_tools()?);
        let timeout = self.settings().worker.tool_timeout;
        let built =
            Registry::build(typed, &self.configuration.tools, &self.kinds(runs), &self.tool_environment(), timeout);
        let built = built.and_then(|mut registry| {
            let imported = self.mcp.tools(&self.configuration.mcp, timeout)?;
            imported.into_iter().try_for_each(|tool| registry.register(tool)).map_err(|error| vec![error])?;
            Ok(registry)
        });
        let unusable = |errors: Vec<String>| {
            let lines: Vec<String> = errors.iter().map(|error| format!("\n  {error}")).collect();
            Failure::failed(anyhow::anyhow!("the tools cannot be used:{}", lines.concat()))
        };
        let registry = built.map_err(|errors| unusable(errors.iter().map(ToString::to_string).collect()))?;
        let errors = references::errors(&self.configuration, &registry);
        if errors.is_empty() { Ok(registry) } else { Err(unusable(errors)) }
    }

    pub(crate) async fn stop_modules(&self) {
        if let Some(pools) = &self.pools {
            pools.stop().await;
        }
    }

    fn module_tools(&self) -> Result<Vec<TypedTool>, Failure> {
        let timeout = self.settings().worker.tool_timeout;
        let tools = self.pools.as_ref().map(|pools| pools.tools(&self.configuration.tools.modules, timeout));
        tools.unwrap_or_else(|| Ok(Vec::new())).map_err(|errors| modules_failed(&errors))
    }

    /// Skips a sample tool if another tool has the same name.
    fn atlas_tools(&self, store: &Store, active: &Arc<PolicyHandle>) -> Result<Vec<TypedTool>, Failure> {
        let is_wanted = |name: &str| self.is_wanted(name);
        if !tickfleet_tools_atlas::NAMES.into_iter().any(is_wanted) {
            return Ok(Vec::new());
        }
        // Atlas grants belong to the fleet, not to a tenant, so shard 0 stores all of them.
        let home = match store.shard() {
            0 => store.clone(),
            _ => self.stores()?.swap_remove(0),
        };
        let mut tools = tickfleet_tools_atlas::all(store, &home, active, &self.tool_environment())
            .map_err(|why| Failure::failed(anyhow::anyhow!("the tools cannot be used:\n  {why}")))?;
        tools.retain(|tool| is_wanted(&tool.spec().name));
        Ok(tools)
    }

    /// Tools that run commands use the strictest sandbox level that this machine can provide.
    fn workspace_tools(&self, runs: Runs) -> Result<Vec<TypedTool>, Failure> {
        let mut tools = builtin::files(&self.shell);
        if builtin::RUNNING.into_iter().any(|name| self.is_wanted(name)) {
            let level = match runs {
                Runs::Elsewhere => Some(Level::Basic),
                Runs::Here => self.shell.strictest(),
            };
            tools.extend(match level {
                Some(level) => builtin::running(&self.shell, level),
                None if self.starts_without_sandbox() => builtin::refused(&self.shell),
                None => {
                    let why = format!("run_command and run_python need a sandbox. {}", self.shell.support());
                    return Err(Failure::failed(anyhow::anyhow!("the tools cannot be used:\n  {why}")));
                }
            });
        }
        tools.retain(|tool| self.is_wanted(&tool.spec().name));
        Ok(tools)
    }

    /// Reconciling calls need no permission row, so a `reconcile` counts too. A tool of an MCP server is not built in.
    fn is_named(&self, name: &str) -> bool {
        let imports = |def: &McpServerDef| def.tools.iter().any(|tool| def.tool_name(&tool.name) == name);
        if self.configuration.mcp.servers.values().any(imports) {
            return false;
        }
        let asks = |by: &Option<Reconcile>| by.as_ref().is_some_and(|by| by.tool == name);
        self.configuration.policy.permissions.matrix.contains_key(name)
            || self.configuration.tools.tools.values().any(|def| asks(&def.reconcile))
            || self.extensions.tools_now().iter().any(|tool| asks(&tool.spec().reconcile))
            || self.pools.as_ref().is_some_and(|pools| pools.reconciles_by(name))
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.is_named(name)
            && self.configuration.tools.tools.get(name).is_none_or(|def| def.runner.is_none())
            && !self.extensions.tools_now().iter().any(|tool| tool.spec().name == name)
            && !self.pools.as_ref().is_some_and(|pools| pools.offers(name))
    }

    /// Every role makes this check, so that all roles reject the same configurations.
    pub(crate) fn check_tools(&self) -> Result<(), Failure> {
        let store = Store::open(&self.url, 0, Arc::new(self.store_options()))?;
        let active = self.active();
        self.task_handlers(&store, &active, &Arc::new(Metrics::new().map_err(Failure::failed)?))?;
        self.registry(&store, &active, Runs::Elsewhere).map(drop)
    }

    pub(crate) fn task_handlers(
        &self,
        store: &Store,
        active: &Arc<PolicyHandle>,
        metrics: &Arc<Metrics>,
    ) -> Result<TaskHandlers, Failure> {
        let defs = &self.configuration.task_handlers;
        let timeout = self.settings().worker.tool_timeout;
        let mut typed = worker::standard_handlers();
        typed.extend(self.extensions.task_handlers.iter().cloned());
        let llm = LlmKind::new(store.clone(), Arc::clone(&self.models), Arc::clone(active), Arc::clone(metrics));
        worker::agents::bind(defs, typed, &self.kinds(Runs::Elsewhere), &llm, &self.tool_environment(), timeout)
            .map_err(|errors| {
                Failure::failed(anyhow::anyhow!("the task handlers cannot be used:\n  {}", errors.join("\n  ")))
            })
    }

    pub(crate) fn report(&self) -> ReportOptions {
        let audit = &self.settings().audit;
        ReportOptions {
            log_tool_calls: audit.log_tool_calls,
            redactor: Arc::new(Redactor::new(&audit.redact_keys)),
            result_chars: audit.result_chars,
            policy_inputs: audit.policy_inputs,
            ..ReportOptions::default()
        }
    }

    /// Operators' commands check their arguments against these names.
    pub(crate) fn names(&self) -> FleetNames {
        let Configuration { policy, tools, digest, .. } = &self.configuration;
        let of_program = self.extensions.tools.iter().map(|tool| (tool.spec().id.clone(), tool.spec().name.clone()));
        let of_files = tools.tools.iter().map(|(name, tool)| {
            let id = tool.id.clone().unwrap_or_else(|| default_id(name));
            (id, name.clone())
        });
        FleetNames::new(policy, of_program.chain(of_files), Some(digest.clone()))
    }

    pub(crate) async fn operator<'a>(&self, by: String, output: &'a Output) -> Result<VerbContext<'a>, Failure> {
        let client = self.client().await?;
        let redactor = self.report().redactor;
        Ok(VerbContext { client, names: self.names(), by, tenant: None, redactor, remarks: output })
    }

    pub(crate) fn signer(&self) -> Result<Option<Signer>, Failure> {
        let seal = &self.settings().seal;
        let Some(key) = &seal.key else { return Ok(None) };
        let secret = self.secret("seal.key", key)?;
        let failed = |error| Failure::failed(anyhow::anyhow!("seal.key: {error}"));
        Signer::new(&seal.key_id, &secret).map(Some).map_err(failed)
    }

    /// `what` is the name of the setting, for error messages.
    pub(crate) fn secret(&self, what: &str, place: &SealKey) -> Result<String, Failure> {
        let failed = |why: String| Failure::failed(anyhow::anyhow!("{what}: {why}"));
        match place {
            SealKey::Env(name) => {
                let missing = || failed(format!("the variable {name} is not set"));
                self.sources.environment.get(name).cloned().ok_or_else(missing)
            }
            SealKey::File(path) => {
                std::fs::read_to_string(path).map_err(|e| failed(format!("{path} cannot be read: {e}")))
            }
        }
    }

    /// The names of incarnations begin with this name. In Kubernetes, `HOSTNAME` is the pod's name.
    pub(crate) fn name(&self) -> String {
        self.sources
            .environment
            .get("HOSTNAME")
            .filter(|name| !name.is_empty())
            .cloned()
            .unwrap_or_else(|| "local".into())
    }

    /// The caller must flush the returned exporter before the process ends.
    pub(crate) fn start_log(&self) -> Result<Option<Traces>, Failure> {
        let Settings { log, tracing, .. } = self.settings();
        let format = match log.format {
            tickfleet_config::LogFormat::Pretty => LogFormat::Pretty,
            tickfleet_config::LogFormat::Json => LogFormat::Json,
        };
        let options = TraceOptions {
            endpoint: tracing.otlp_endpoint.clone(),
            sample_ratio: f64::from(tracing.sample_ppm) / 1e6,
            service_name: tracing.service_name.clone(),
        };
        gen_ai::record(tracing.gen_ai, tracing.gen_ai_content);
        let wanted = !options.endpoint.is_empty();
        let traces = wanted.then(|| Traces::new(&options)).transpose().map_err(Failure::failed)?;
        telemetry::init(&LogOptions { format, level: log.level.clone() }, traces.as_ref()).map_err(Failure::failed)?;
        Ok(traces)
    }

    fn kinds(&self, runs: Runs) -> ToolKinds {
        let shell = Arc::clone(&self.shell);
        ToolKinds {
            http: Box::new(HttpKind::new(self.tool_environment())),
            shell: Box::new(match runs {
                Runs::Here if self.starts_without_sandbox() => ShellKind::lenient(shell),
                Runs::Here => ShellKind::new(shell),
                Runs::Elsewhere => ShellKind::elsewhere(shell),
            }),
        }
    }

    pub(crate) fn tool_environment(&self) -> tickfleet_tools::Environment {
        tool_environment(&self.sources.environment)
    }
}

/// `env:NAME` is a variable, and `file:/PATH` a file.
pub(crate) fn parse_secret_place(text: &str) -> Result<SealKey, String> {
    match text.split_once(':') {
        Some(("env", name)) if !name.is_empty() => Ok(SealKey::Env(name.to_owned())),
        Some(("file", path)) if path.starts_with('/') => Ok(SealKey::File(path.to_owned())),
        // The text may be the secret itself, so the error does not repeat it.
        _ => Err("expected env:NAME of a variable, or file:/PATH".to_owned()),
    }
}

/// Does not check the machine's sandbox support yet.
fn shell_of(settings: &Settings) -> Arc<Shell> {
    let root = match settings.worker.workspaces.as_str() {
        "" => std::env::temp_dir().join("tickfleet-workspaces"),
        path => path.into(),
    };
    Shell::new(Launcher::this_program(), root, settings.worker.workspace_ttl)
}

/// This machine's clock. Shard times come from a store instead.
#[allow(clippy::disallowed_methods, reason = "the edge: this machine's own clock")]
pub(crate) fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    millis(since)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn the_store_defaults_match_the_built_in_configuration() {
        let global = Global {
            config: None,
            redis_url: None,
            json: false,
            trial_tools: false,
            extensions: Extensions::default(),
        };
        let setup = Setup::of(&sources_in(Environment::new(), &global).unwrap(), &global.extensions, None).unwrap();
        assert_eq!(setup.store_options(), StoreOptions::default());
    }

    #[test]
    fn the_redis_url_is_read_from_a_file_named_in_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("url");
        std::fs::write(&path, "redis://:hunter2@redis.example.com:6379\n").unwrap();
        let named = |more: &[(&str, &str)]| {
            let named = [(URL_FILE, path.to_str().unwrap())];
            named.iter().chain(more).map(|(name, value)| ((*name).into(), (*value).into())).collect::<Environment>()
        };
        let read = |mut environment: Environment, is_overridden| {
            read_url_file(&mut environment, is_overridden).map(|()| environment)
        };
        let environment = read(named(&[]), false).unwrap();
        assert_eq!(environment, [("REDIS_URL".into(), "redis://:hunter2@redis.example.com:6379".into())].into());
        assert_eq!(read(named(&[]), true).unwrap(), Environment::new(), "the command line comes first");
        let both = read(named(&[("TICKFLEET_REDIS_URL", "redis://other")]), false).unwrap_err();
        assert!(format!("{both:?}").contains("TICKFLEET_REDIS_URL are both set"), "{both:?}");
        std::fs::write(&path, " \n").unwrap();
        assert!(format!("{:?}", read(named(&[]), false).unwrap_err()).contains("is empty"));
        std::fs::remove_file(&path).unwrap();
        assert!(format!("{:?}", read(named(&[]), false).unwrap_err()).contains("cannot be read"));
    }
}
