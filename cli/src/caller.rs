//! The tenant and agent whose tools are shown or called, from the configuration or set at run time.

use std::time::Duration;

use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::policy::{Policy, UnknownCaller};
use tickfleet_model::suggest::{closest, list};
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::Store;

use crate::failure::Failure;
use crate::setup::Setup;

/// How long to wait for Redis to return the run-time settings. Without them, tools are described all the same.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// Loads the run-time settings if Redis is reachable, so that a disabled tool is shown as disabled and not tried.
pub(crate) async fn with_run_time(active: &PolicyHandle, stores: &[Store]) {
    let looks = stores.iter().map(|store| active.refresh(store));
    // Without Redis, tools are shown as configured.
    drop(tokio::time::timeout(LOOK_TIMEOUT, futures::future::join_all(looks)).await);
}

/// Loads the run-time settings from the tenant's shard if the configuration does not have the tenant. A configured
/// tenant needs no Redis and is shown as configured.
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

/// Adds to a failure that the tenant is not configured: if Redis is unreachable, a misspelled tenant is the likelier
/// mistake.
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

/// Returns the failure for an unknown tenant or agent.
pub(crate) fn nobody(unknown: UnknownCaller, policy: &Policy, tenant: &TenantId, agent: &AgentId) -> Failure {
    Failure::failed(match unknown {
        UnknownCaller::Tenant => anyhow::anyhow!("unknown tenant {:?}; see tickfleet tenant list", tenant.as_str()),
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
