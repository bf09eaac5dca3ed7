//! The tools that each agent may call, written to Redis for readers in any language.
//!
//! Workers know the tools, so workers write. One of them does: each looks now and then whether lists made of the same
//! policy and tools are there, and writes if they are not. The lists inform; what decides is the permission check of
//! each call.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tickfleet_model::{Dialect, ToolSpec, limits};
use tickfleet_protocol::define;
use tickfleet_store::{Store, StoreError, ToolList};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use crate::config::{WorkerConfig, WorkerConfigs};
use crate::tools::Toolbox;

/// The time between two checks that the lists are those of the worker's policy and tools.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The time for which lists are taken for fresh, ms.
const FRESH_MS: u64 = 60_000;
/// The time for which a list lasts when nobody writes it again, ms: workers may be away for a deployment.
const LIST_TTL_MS: u64 = 600_000;

const _: () = assert!(LIST_TTL_MS > 2 * FRESH_MS);

/// Keeps the lists of a shard.
pub(crate) struct ToolLists {
    store: Store,
    configs: Arc<WorkerConfigs>,
}

impl ToolLists {
    /// The lists of the shard of `store`, made of the configuration in force.
    pub(crate) const fn new(store: Store, configs: Arc<WorkerConfigs>) -> Self {
        Self { store, configs }
    }

    /// Keeps the lists of tools fresh until `stop`.
    pub(crate) async fn keep(self, stop: CancellationToken) {
        let mut looked_at: Option<(Arc<WorkerConfig>, String)> = None;
        loop {
            let config = self.configs.load();
            let (fingerprint, is_new) = match looked_at.take() {
                Some((before, fingerprint)) if Arc::ptr_eq(&before, &config) => (fingerprint, false),
                before => {
                    let fingerprint = fingerprint(&config);
                    let is_new = before.is_none_or(|(_, before)| before != fingerprint);
                    (fingerprint, is_new)
                }
            };
            match self.write_where_due(&config, &fingerprint, is_new).await {
                Ok(()) => looked_at = Some((config, fingerprint)),
                Err(error) => tracing::warn!(%error, "the lists of tools are not written; trying again"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Writes the lists if none are fresh. Fresh ones of another policy are written over only once, when ours is new:
    /// workers with different tools would else write over each other without end.
    async fn write_where_due(
        &self,
        config: &Arc<WorkerConfig>,
        fingerprint: &str,
        is_new: bool,
    ) -> Result<(), StoreError> {
        let fresh = self.store.tool_lists_of().await?;
        if fresh.is_some_and(|other| other == fingerprint || !is_new) {
            return Ok(());
        }
        let (store, config) = (self.store.clone(), Arc::clone(config));
        let made = beside(move || lists(&store, &config)).await;
        let Ok((lists, left_out)) = made else {
            tracing::error!("the lists of tools are not written: a bug ended what makes them");
            return Ok(());
        };
        if left_out > 0 {
            let (written, bytes_max) = (lists.len(), limits::TOOL_LISTS_BYTES_MAX);
            tracing::warn!(written, left_out, bytes_max, "some agents' lists of tools do not fit and are not written");
        }
        self.store.write_tool_lists(fingerprint, &lists, LIST_TTL_MS, FRESH_MS).await
    }
}

/// Makes something that takes a while, for there may be thousands of agents, beside the calls that run. A runtime of one
/// thread makes it in that thread: a simulation has no other, or it would not repeat.
async fn beside<T: Send + 'static>(make: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => Ok(make()),
        _ => tokio::task::spawn_blocking(make).await,
    }
}

/// The lists of all agents of the tenants of this shard, as many as fit, and for how many agents none do.
fn lists(store: &Store, config: &WorkerConfig) -> (Vec<ToolList>, usize) {
    let policy = &config.active.policy;
    let tools = Toolbox::new(Arc::clone(&config.active), Arc::clone(&config.registry), None, None);
    let home = policy.tenants.iter().filter(|(tenant, _)| store.is_home_of(tenant));
    let mut written: HashMap<(Dialect, Vec<String>), Arc<str>> = HashMap::new();
    let (mut lists, mut left_out, mut bytes) = (Vec::new(), 0, 0);
    for (tenant, agent) in home.flat_map(|(tenant, _)| policy.agents.keys().map(move |agent| (tenant, agent))) {
        if policy.look_up(tenant, agent).is_err() {
            continue;
        }
        if bytes >= limits::TOOL_LISTS_BYTES_MAX {
            left_out += 1;
            continue;
        }
        let may = tools.may_call(tenant, agent);
        let specs: Vec<&ToolSpec> = may.iter().map(|tool| &tool.spec).collect();
        for dialect in Dialect::ALL {
            let names = specs.iter().map(|spec| spec.name.clone()).collect();
            let json = written.entry((dialect, names)).or_insert_with(|| define(dialect, &specs).to_string().into());
            bytes += json.len();
            let (tenant, agent, json) = (tenant.clone(), agent.clone(), Arc::clone(json));
            lists.push(ToolList { tenant, agent, dialect, json });
        }
    }
    (lists, left_out)
}

/// The fingerprint of all that lists are made of: dialects, policy, tenants and tools.
fn fingerprint(config: &WorkerConfig) -> String {
    let mut hash = Sha256::new();
    Dialect::ALL.iter().for_each(|dialect| hash.update(dialect.as_str()));
    hash.update(config.active.digest.as_bytes());
    // Tenants may be set and tools switched off at run time, which the digest does not tell.
    hash.update(serde_json::to_string(&config.active.policy.tenants).unwrap_or_default());
    hash.update(serde_json::to_string(&config.active.policy.permissions.switched_off).unwrap_or_default());
    for tool in config.registry.iter() {
        hash.update(serde_json::to_string(&tool.spec).unwrap_or_default());
    }
    hash.finalize()[..16].iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
