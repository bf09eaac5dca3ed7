//! The tools that each agent may call, written to Redis for readers in any language. The lists only inform.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tickfleet_model::hex;
use tickfleet_model::{AgentId, TenantId, ToolSpec, limits};
use tickfleet_ops::metrics::Metrics;
use tickfleet_protocol::shared_list;
use tickfleet_store::{Store, StoreError, ToolList, ToolLists};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use crate::config::{WorkerConfig, WorkerConfigs};
use crate::tools::Toolbox;

const CHECK_EVERY: Duration = Duration::from_secs(5);
const FRESH_MS: u64 = 300_000;
/// The lifetime of a list: long enough for a deployment during which no worker runs.
const LIST_TTL_MS: u64 = 1_800_000;

const _: () = assert!(LIST_TTL_MS > 2 * FRESH_MS);

pub(crate) struct ToolListWriter {
    store: Store,
    configs: Arc<WorkerConfigs>,
    metrics: Arc<Metrics>,
}

impl ToolListWriter {
    pub(crate) const fn new(store: Store, configs: Arc<WorkerConfigs>, metrics: Arc<Metrics>) -> Self {
        Self { store, configs, metrics }
    }

    pub(crate) async fn keep(self, stop: CancellationToken) {
        let mut last_check: Option<(Arc<WorkerConfig>, String)> = None;
        loop {
            let config = self.configs.load();
            let (fingerprint, is_new) = match last_check.take() {
                Some((before, fingerprint)) if Arc::ptr_eq(&before, &config) => (fingerprint, false),
                before => {
                    let fingerprint = fingerprint(&config);
                    let is_new = before.is_none_or(|(_, before)| before != fingerprint);
                    (fingerprint, is_new)
                }
            };
            match self.write_if_due(&config, &fingerprint, is_new).await {
                Ok(()) => last_check = Some((config, fingerprint)),
                Err(error) => tracing::warn!(%error, "failed to write tool lists; retrying"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(CHECK_EVERY) => {}
            }
        }
    }

    /// Overwrites fresh lists only once for a policy. Otherwise, workers with different tools would overwrite each
    /// other's lists forever.
    async fn write_if_due(
        &self,
        config: &Arc<WorkerConfig>,
        fingerprint: &str,
        is_new: bool,
    ) -> Result<(), StoreError> {
        if let Some(fresh) = self.store.tool_lists_mark().await? {
            self.metrics.tool_lists_omitted(fresh.left_out);
            if fresh.fingerprint == fingerprint || !is_new {
                return Ok(());
            }
        }
        let store = self.store.clone();
        let config = Arc::clone(config);
        let made = off_thread(move || lists(&store, &config)).await;
        let Ok(lists) = made else {
            tracing::error!("tool lists are not written: their task panicked");
            return Ok(());
        };
        if lists.left_out > 0 {
            let written = lists.agents.len();
            let left_out = lists.left_out;
            let bytes_max = limits::TOOL_LISTS_BYTES_MAX;
            tracing::warn!(
                written,
                left_out,
                bytes_max,
                "tool lists of some agents exceed the limit and are not written"
            );
        }
        self.metrics.tool_lists_omitted(lists.left_out);
        self.store.write_tool_lists(fingerprint, &lists, LIST_TTL_MS, FRESH_MS).await
    }
}

/// Simulations have a single-threaded runtime and must be repeatable, so `make` runs on that thread.
async fn off_thread<T: Send + 'static>(make: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => Ok(make()),
        _ => tokio::task::spawn_blocking(make).await,
    }
}

fn lists(store: &Store, config: &WorkerConfig) -> ToolLists {
    let policy = &config.active.policy;
    let tools = Toolbox::new(Arc::clone(&config.active), Arc::clone(&config.registry), None, None);
    let home = policy.tenants.iter().filter(|(tenant, _)| store.is_home_of(tenant));
    let mut shared = SharedLists::new(limits::TOOL_LISTS_BYTES_MAX);
    for (tenant, agent) in home.flat_map(|(tenant, _)| policy.agents.keys().map(move |agent| (tenant, agent))) {
        if policy.look_up(tenant, agent).is_ok() {
            let may = tools.may_call(tenant, agent);
            shared.add(tenant, agent, &may.iter().map(|tool| &tool.spec).collect::<Vec<_>>());
        }
    }
    shared.made.names = config.registry.names_by_id();
    shared.made
}

struct SharedLists {
    made: ToolLists,
    /// Maps the names and versions of tools to the digest of their list, or to `None` if the list does not fit.
    known: HashMap<Vec<(String, String)>, Option<String>>,
    bytes_left: usize,
}

impl SharedLists {
    fn new(bytes_max: usize) -> Self {
        Self { made: ToolLists::default(), known: HashMap::new(), bytes_left: bytes_max }
    }

    fn add(&mut self, tenant: &TenantId, agent: &AgentId, specs: &[&ToolSpec]) {
        let made = &mut self.made;
        let bytes_left = &mut self.bytes_left;
        let names = specs.iter().map(|spec| (spec.name.clone(), spec.version.clone())).collect();
        let digest = self.known.entry(names).or_insert_with(|| {
            let list = list(specs);
            *bytes_left = bytes_left.checked_sub(list.json.len())?;
            let digest = list.digest.clone();
            made.lists.push(list);
            Some(digest)
        });
        match digest {
            Some(digest) => made.agents.push((tenant.clone(), agent.clone(), digest.clone())),
            None => made.left_out += 1,
        }
    }
}

fn list(specs: &[&ToolSpec]) -> ToolList {
    let mut hash = Sha256::new();
    specs.iter().for_each(|spec| hash.update(serde_json::to_string(spec).unwrap_or_default()));
    ToolList { digest: hex(&hash.finalize()[..16]), json: shared_list(specs).into() }
}

fn fingerprint(config: &WorkerConfig) -> String {
    let mut hash = Sha256::new();
    hash.update(config.active.digest.as_bytes());
    // Added separately, because the policy's digest does not include tenants and disabled tools, which can be set at
    // run time.
    hash.update(serde_json::to_string(&config.active.policy.tenants).unwrap_or_default());
    hash.update(serde_json::to_string(&config.active.policy.permissions.switched_off).unwrap_or_default());
    for tool in config.registry.iter() {
        hash.update(serde_json::to_string(&tool.spec).unwrap_or_default());
    }
    hex(&hash.finalize()[..16])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn agents_with_equal_tool_sets_share_a_list() {
        let tools: Vec<ToolSpec> = tickfleet_tools::builtin::all().iter().map(|tool| tool.spec().clone()).collect();
        let all: Vec<&ToolSpec> = tools.iter().collect();
        let mut shared = SharedLists::new(limits::TOOL_LISTS_BYTES_MAX);
        for tenant in 0..200 {
            let tenant = TenantId::new(format!("t{tenant}")).unwrap();
            for agent in 0..300 {
                let some = if agent % 2 == 0 { &all[..] } else { &all[..1] };
                shared.add(&tenant, &AgentId::new(format!("a{agent}")).unwrap(), some);
            }
        }
        let made = shared.made;
        assert_eq!((made.agents.len(), made.lists.len(), made.left_out), (60_000, 2, 0));
        let tools: usize = all.iter().map(|spec| serde_json::to_string(spec).unwrap().len()).sum();
        assert!(made.lists.iter().all(|list| list.json.len() < tools * 2), "a list is its tools, once");
    }

    #[test]
    fn each_tool_version_gets_its_own_list_and_overflow_is_counted() {
        let tool = tickfleet_tools::builtin::all()[0].spec().clone();
        let next = ToolSpec { version: "99.0.0".into(), ..tool.clone() };
        let tenant = TenantId::new("t").unwrap();
        let agent = AgentId::new("a").unwrap();
        let mut shared = SharedLists::new(usize::MAX);
        shared.add(&tenant, &agent, &[&tool]);
        shared.add(&tenant, &agent, &[&next]);
        assert_eq!(shared.made.lists.len(), 2);

        let bytes = shared.made.lists[0].json.len();
        let mut short = SharedLists::new(bytes);
        [&tool, &next, &next, &tool].iter().for_each(|spec| short.add(&tenant, &agent, &[*spec]));
        assert_eq!((short.made.agents.len(), short.made.lists.len(), short.made.left_out), (2, 1, 2));
    }
}
