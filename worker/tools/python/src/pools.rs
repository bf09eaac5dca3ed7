//! The pools of a worker. Registries built from the same configuration and the same code share their processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_config::ModulesDef;
use tickfleet_sandbox::Launcher;
use tickfleet_tools::{Environment, TypedTool};

use crate::code::code_fingerprint;
use crate::definition::{self, Definition};
use crate::describe::{DescribeError, describe};
use crate::machine::Machine;
use crate::pool::Pool;
use crate::process::is_absent;
use crate::tool::ModuleTool;

const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The entry's `<section>.<name>`, its configuration, and the fingerprint of its code files.
type Key = (String, ModulesDef, String);

pub struct Pools {
    machine: Arc<Machine>,
    /// True if an absent tool host is not an error: its configuration entry is skipped.
    allows_missing_hosts: bool,
    known: Mutex<KnownPools>,
}

#[derive(Default)]
struct KnownPools {
    eager: bool,
    /// By entry and digest of the entry's tools.
    pools: BTreeMap<(Key, String), Weak<Pool>>,
    /// Only entries of the latest configuration are kept.
    described: BTreeMap<Key, Arc<Vec<Definition>>>,
    /// Entries without tools, because their tool host was absent.
    left_out: BTreeSet<String>,
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pools(..)")
    }
}

impl Pools {
    /// Secrets and inherited variables come from `environment`.
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self::launched_by(Launcher::this_program(), environment)
    }

    #[must_use]
    pub fn launched_by(launcher: Launcher, environment: Environment) -> Self {
        let machine = Arc::new(Machine::new(environment, launcher));
        Self { machine, allows_missing_hosts: false, known: Mutex::default() }
    }

    /// For a process that only inspects the configuration: an absent tool host is not an error. Other processes wait
    /// for the tool host.
    #[must_use]
    pub fn allow_missing_hosts(self) -> Self {
        Self { allows_missing_hosts: true, ..self }
    }

    #[must_use]
    pub fn left_out(&self) -> BTreeSet<String> {
        self.known.lock().left_out.clone()
    }

    /// Blocks. Entries of tool hosts are always imported again, because the worker cannot see their code.
    pub fn describe(&self, defs: &BTreeMap<String, ModulesDef>) -> Result<BTreeSet<String>, Vec<DescribeError>> {
        let mut described = BTreeMap::new();
        let mut left_out = BTreeSet::new();
        let mut errors = Vec::new();
        for (name, def) in defs {
            let key = key(name, def);
            let asked = match &def.host {
                Some(host) if self.allows_missing_hosts && is_absent(host) => {
                    left_out.insert(name.clone());
                    Ok(Arc::default())
                }
                Some(_) => describe(name, def, &self.machine).map(Arc::new),
                None => self.definitions(&key),
            };
            match asked {
                Ok(tools) => drop(described.insert(key, tools)),
                Err(error) => errors.push(error),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let names = described.values().flat_map(|tools| tools.iter()).map(|tool| tool.name.clone()).collect();
        let mut known = self.known.lock();
        (known.described, known.left_out) = (described, left_out);
        Ok(names)
    }

    #[must_use]
    pub fn offers(&self, name: &str) -> bool {
        self.known.lock().described.values().flat_map(|tools| tools.iter()).any(|tool| tool.name == name)
    }

    #[must_use]
    pub fn reconciles_by(&self, name: &str) -> bool {
        let known = self.known.lock();
        known.described.values().flat_map(|tools| tools.iter()).any(|tool| tool.reconciled_by() == Some(name))
    }

    fn definitions(&self, key: &Key) -> Result<Arc<Vec<Definition>>, DescribeError> {
        if let Some(tools) = self.known.lock().described.get(key) {
            return Ok(Arc::clone(tools));
        }
        let tools = Arc::new(describe(&key.0, &key.1, &self.machine)?);
        self.known.lock().described.insert(key.clone(), Arc::clone(&tools));
        Ok(tools)
    }

    /// `timeout_default` limits one attempt of a tool without a timeout.
    pub fn tools(
        &self,
        defs: &BTreeMap<String, ModulesDef>,
        timeout_default: Duration,
    ) -> Result<Vec<TypedTool>, Vec<DescribeError>> {
        let mut tools = Vec::new();
        let mut errors = Vec::new();
        for (name, def) in defs {
            let key = key(name, def);
            match self.definitions(&key) {
                Ok(definitions) => {
                    let pool = self.pool(key, &definitions);
                    let configured = !def.secrets.values().any(|secret| self.machine.environment.lacks(secret));
                    tools.extend(definitions.iter().map(|definition| {
                        let timeout = definition.timeout().unwrap_or(timeout_default);
                        let handler = ModuleTool::new(Arc::clone(&pool), definition.name.clone(), timeout);
                        TypedTool::of_handler(
                            definition.spec(timeout, configured),
                            definition.timeout(),
                            Arc::new(handler),
                        )
                    }));
                }
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(tools) } else { Err(errors) }
    }

    fn pool(&self, key: Key, definitions: &[Definition]) -> Arc<Pool> {
        let digest = definition::digest(definitions);
        let key = (key, digest.clone());
        let mut known = self.known.lock();
        if let Some(pool) = known.pools.get(&key).and_then(Weak::upgrade) {
            return pool;
        }
        known.pools.retain(|_, pool| pool.strong_count() > 0);
        let pool = Arc::new(Pool::new(&key.0.0, &key.0.1, digest, Arc::clone(&self.machine)));
        known.pools.insert(key, Arc::downgrade(&pool));
        if known.eager {
            pool.start();
        }
        pool
    }

    /// The processes of pools that are built later start when their tools are built. Requires a running runtime.
    pub fn start(&self) {
        let mut known = self.known.lock();
        known.eager = true;
        known.pools.values().filter_map(Weak::upgrade).for_each(|pool| pool.start());
    }

    /// Waits at most 5 s for the processes. Afterwards, no process is started again.
    pub async fn stop(&self) {
        let pools: Vec<Arc<Pool>> = {
            let known = self.known.lock();
            known.pools.values().filter_map(Weak::upgrade).collect()
        };
        let ended = futures::future::join_all(pools.iter().map(|pool| pool.stop()));
        if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
            tracing::warn!("tool process did not exit in time; it is killed with this process");
        }
    }
}

fn key(name: &str, def: &ModulesDef) -> Key {
    (name.to_owned(), def.clone(), code_fingerprint([def]))
}
