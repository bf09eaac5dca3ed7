//! Finds a tenant or agent in the configuration or the run-time settings.

use std::time::Duration;

use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::policy::{Policy, UnknownCaller};
use tickfleet_model::suggest::{closest, list, nearest};
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::Store;

use crate::failure::Failure;
use crate::setup::Setup;

/// If Redis does not respond within this time, tools are shown as configured.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the run-time settings. A tool that was disabled at run time is then shown as disabled and is not called.
pub(crate) async fn with_run_time(active: &PolicyHandle, stores: &[Store]) {
    let looks = stores.iter().map(|store| active.refresh(store));
    drop(tokio::time::timeout(LOOKUP_TIMEOUT, futures::future::join_all(looks)).await);
}

/// Reads the run-time settings only if the tenant is not configured, so a configured tenant needs no Redis.
pub(crate) async fn with_tenant(setup: &Setup, active: &PolicyHandle, tenant: &TenantId) -> Result<(), Failure> {
    if !active.load().policy.tenants.contains_key(tenant) {
        let read = match setup.client().await {
            Ok(client) => active.refresh(client.store(tenant)).await.map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        read.map_err(|failure| not_configured(tenant, failure))?;
    }
    Ok(())
}

/// A misspelled tenant is more likely than a run-time tenant, so the message names the missing tenant first.
fn not_configured(tenant: &TenantId, failure: Failure) -> Failure {
    match failure {
        Failure::Redis(message) => Failure::Redis(format!(
            "the configuration has no tenant {:?}, and Redis, which may have it as a run-time tenant, is unreachable: \
             {message}",
            tenant.as_str()
        )),
        other => other,
    }
}

pub(crate) fn no_tenant<'a>(tenant: &TenantId, known: impl Iterator<Item = &'a TenantId>) -> Failure {
    let known: Vec<&str> = known.map(TenantId::as_str).collect();
    let near = nearest(tenant.as_str(), known.iter().copied());
    let near =
        if near.is_empty() { format!("Known: {}", list(known)) } else { format!("Nearest: {}", near.join(", ")) };
    Failure::failed(anyhow::anyhow!("unknown tenant {:?}. {near}.", tenant.as_str()))
}

pub(crate) fn unknown_caller(unknown: UnknownCaller, policy: &Policy, tenant: &TenantId, agent: &AgentId) -> Failure {
    Failure::failed(match unknown {
        UnknownCaller::Tenant => return no_tenant(tenant, policy.tenants.keys()),
        UnknownCaller::Withheld => anyhow::anyhow!(tickfleet_engine::delegation::unreadable(tenant)),
        UnknownCaller::Agent => {
            let of_tenant = |agent: &&AgentId| policy.look_up(tenant, agent).is_ok();
            let agents: Vec<&str> = policy.agents.keys().filter(of_tenant).map(AgentId::as_str).collect();
            let meant = closest(agent.as_str(), agents.iter().copied());
            let meant = meant.map(|name| format!(" Did you mean {name:?}?")).unwrap_or_default();
            anyhow::anyhow!(
                "tenant {:?} has no agent {:?} in this configuration.{meant} It has: {}.\nAgents are declared in agents.yaml of the configuration folder that --config (or TICKFLEET_CONFIG) names.",
                tenant.as_str(),
                agent.as_str(),
                list(agents)
            )
        }
    })
}
