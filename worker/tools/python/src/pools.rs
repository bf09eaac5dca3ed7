//! The pools of a worker: registries that are built from the same configuration and the same code share their processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_config::PythonDef;
use tickfleet_config::tools::SecretRef;
use tickfleet_sandbox::Launcher;
use tickfleet_tools::{Environment, TypedTool};

use crate::code::code_fingerprint;
use crate::definition::{self, Definition};
use crate::describe::{DescribeError, describe};
use crate::machine::Machine;
use crate::pool::Pool;
use crate::process::is_absent;
use crate::tool::PythonTool;

/// Limit of waiting for all processes to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// An entry, and the state of its code as far as that can be seen in files.
type Key = (String, PythonDef, String);

/// The pools of a process.
pub struct Pools {
    machine: Arc<Machine>,
    /// True if entries whose tool host is not there are left out.
    may_lack_hosts: bool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// True if processes are started without being called.
    eager: bool,
    /// By entry and digest of its tools.
    pools: BTreeMap<(Key, String), Weak<Pool>>,
    /// What modules offer, as far as they were asked. Only what the last configuration names is kept.
    described: BTreeMap<Key, Arc<Vec<Definition>>>,
    /// Entries that were left out when modules were asked last.
    left_out: BTreeSet<String>,
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pools(..)")
    }
}

impl Pools {
    /// No pool yet. Secrets, and the few variables that an interpreter inherits, are looked up in `environment`.
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self::launched_by(Launcher::this_program(), environment)
    }

    /// The same where another program is the launcher of sandboxes.
    #[must_use]
    pub fn launched_by(launcher: Launcher, environment: Environment) -> Self {
        let machine = Arc::new(Machine::new(environment, launcher));
        Self { machine, may_lack_hosts: false, known: Mutex::default() }
    }

    /// The same for a process that only looks, and may do so where no tool host is: an entry whose host is not there has
    /// no tools, rather than being waited for and refused.
    #[must_use]
    pub fn that_may_lack_hosts(self) -> Self {
        Self { may_lack_hosts: true, ..self }
    }

    /// Entries that were left out when modules were asked last, since their tool host is not there.
    #[must_use]
    pub fn left_out(&self) -> BTreeSet<String> {
        self.known.lock().left_out.clone()
    }

    /// Asks the modules of all entries which tools they have, and gives their names. Each is imported in an interpreter
    /// of its own, which ends again; what has not changed since it was asked is not asked again, but for tool hosts, whose
    /// code is out of sight. Blocks until that is done.
    ///
    /// # Errors
    /// Every entry whose modules cannot be imported.
    pub fn describe(&self, defs: &BTreeMap<String, PythonDef>) -> Result<BTreeSet<String>, Vec<DescribeError>> {
        let (mut described, mut left_out, mut errors) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        for (name, def) in defs {
            let key = key(name, def);
            let asked = match &def.host {
                Some(host) if self.may_lack_hosts && is_absent(host) => {
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

    /// Returns true if one of the modules that were asked last has a tool of this name.
    #[must_use]
    pub fn offers(&self, name: &str) -> bool {
        self.known.lock().described.values().flat_map(|tools| tools.iter()).any(|tool| tool.name == name)
    }

    fn definitions(&self, key: &Key) -> Result<Arc<Vec<Definition>>, DescribeError> {
        if let Some(tools) = self.known.lock().described.get(key) {
            return Ok(Arc::clone(tools));
        }
        let tools = Arc::new(describe(&key.0, &key.1, &self.machine)?);
        self.known.lock().described.insert(key.clone(), Arc::clone(&tools));
        Ok(tools)
    }

    /// The tools of all entries. No process is started for that, unless the modules were not asked yet.
    /// `timeout_default` is the limit of one try of a tool that sets none.
    ///
    /// # Errors
    /// Every entry whose modules cannot be imported.
    pub fn tools(
        &self,
        defs: &BTreeMap<String, PythonDef>,
        timeout_default: Duration,
    ) -> Result<Vec<TypedTool>, Vec<DescribeError>> {
        let (mut tools, mut errors) = (Vec::new(), Vec::new());
        for (name, def) in defs {
            let key = key(name, def);
            match self.definitions(&key) {
                Ok(definitions) => {
                    let pool = self.pool(key, &definitions);
                    let configured = !def.secrets.values().any(|secret| self.is_missing(secret));
                    tools.extend(definitions.iter().map(|definition| {
                        let timeout = definition.timeout().unwrap_or(timeout_default);
                        let handler = PythonTool::new(Arc::clone(&pool), definition.name.clone(), timeout);
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

    /// A secret in a file may still appear.
    fn is_missing(&self, secret: &SecretRef) -> bool {
        match secret {
            SecretRef::Env(variable) => self.machine.environment.get(variable).is_none(),
            SecretRef::File(_) => false,
        }
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

    /// Starts all processes now, and those of later pools as soon as their tools are asked for. Call it in a runtime.
    pub fn start(&self) {
        let mut known = self.known.lock();
        known.eager = true;
        known.pools.values().filter_map(Weak::upgrade).for_each(|pool| pool.start());
    }

    /// Ends all processes and waits, for 5 s at most, until they have ended. None is started afterwards.
    pub async fn stop(&self) {
        let pools: Vec<Arc<Pool>> = {
            let known = self.known.lock();
            known.pools.values().filter_map(Weak::upgrade).collect()
        };
        let ended = futures::future::join_all(pools.iter().map(|pool| pool.stop()));
        if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
            tracing::warn!("Python process did not exit in time; it is killed with this process");
        }
    }
}

fn key(name: &str, def: &PythonDef) -> Key {
    (name.to_owned(), def.clone(), code_fingerprint([def]))
}
