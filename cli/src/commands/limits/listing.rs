//! Builds the list of limits, each with what it allows and its fullest counters.

use serde::Serialize;
use serde_json::Number;
use tickfleet_client::Client;
use tickfleet_engine::active_policy::short_digest;
use tickfleet_model::limit::counters::may_debit;
use tickfleet_model::limit::{Every, amount};
use tickfleet_model::policy::{AgentPolicy, Policy, TenantPolicy};
use tickfleet_model::suggest::{closest, list};
use tickfleet_model::{AgentId, Limit, TenantId};

use super::Which;
use super::caps::{self, Whose};
use super::seen::{self, Key, Seen, Shard, Tally};
use super::views::{CounterView, LimitView};
use crate::caller::{nobody, with_run_time, with_tenant};
use crate::failure::Failure;
use crate::setup::Setup;

/// Per limit, waiting turns are counted for this many of the fullest counters.
const ASKED_MAX: usize = 100;

/// The whole list.
#[derive(Debug, Serialize)]
pub(super) struct Listing {
    pub(super) now_ms: i64,
    pub(super) policy: PolicyHere,
    /// The caps of agents, tenants and tasks.
    pub(super) caps: Vec<LimitView>,
    pub(super) limits: Vec<LimitView>,
}

/// The local policy, which says what limits allow, and the policy by which the fleet decides.
#[derive(Debug, Default, Serialize)]
pub(super) struct PolicyHere {
    pub(super) here: String,
    /// Per shard; `None` until a scheduler has announced a policy there.
    pub(super) in_force: Vec<Option<String>>,
}

impl PolicyHere {
    async fn of(setup: &Setup, shards: &[Shard<'_>]) -> Result<Self, Failure> {
        let mut in_force = Vec::with_capacity(shards.len());
        for shard in shards {
            let digest = shard.store.policy_in_force().await?;
            in_force.push(digest.map(|digest| short_digest(&digest).to_owned()));
        }
        Ok(Self { here: short_digest(&setup.configuration.digest).to_owned(), in_force })
    }

    /// Warnings for the reader if they differ.
    pub(super) fn doubts(&self) -> Vec<String> {
        let others = self.in_force.iter().enumerate().filter_map(|(shard, digest)| Some((shard, digest.as_ref()?)));
        let differ = others.filter(|(_, digest)| **digest != self.here).map(|(shard, digest)| {
            format!(
                "shard {shard} uses policy {digest}, but this configuration is {}: its limits may differ from those \
                 shown",
                self.here
            )
        });
        differ.collect()
    }
}

/// The caller whose limits are shown.
struct Caller<'a> {
    tenant: &'a TenantId,
    owner: &'a TenantPolicy,
    agent: Option<(&'a AgentId, &'a AgentPolicy)>,
}

impl<'a> Caller<'a> {
    /// Returns `None` if the command names no tenant.
    fn of(which: &'a Which, policy: &'a Policy) -> Result<Option<Self>, Failure> {
        let Some(tenant) = &which.tenant else { return Ok(None) };
        if let Some(agent) = &which.agent {
            let found = policy.look_up(tenant, agent).map_err(|unknown| nobody(unknown, policy, tenant, agent))?;
            return Ok(Some(Self { tenant, owner: found.0, agent: Some((agent, found.1)) }));
        }
        let Some(owner) = policy.tenants.get(tenant) else { return Err(no_tenant(tenant, policy)) };
        Ok(Some(Self { tenant, owner, agent: None }))
    }

    /// Whether the limit counts calls of this caller.
    fn meets(&self, limit: &Limit) -> bool {
        let fits = self.agent.is_none_or(|(agent, policy)| limit.matches.fits_agent(agent, policy));
        fits && limit.matches.fits_tenant(self.owner)
    }

    /// Whether the counter counts calls of this caller. If the limit is unknown, a counter whose name begins with the
    /// tenant does.
    fn may_debit(&self, limit: Option<&Limit>, counter: &str) -> bool {
        match limit {
            Some(limit) => may_debit(limit, counter, self.tenant, self.agent.map(|(agent, _)| agent)),
            None => counter.split(':').next() == Some(self.tenant.as_str()),
        }
    }
}

fn no_tenant(tenant: &TenantId, policy: &Policy) -> Failure {
    Failure::failed(if policy.withheld.contains(tenant) {
        anyhow::anyhow!(tickfleet_engine::delegation::unreadable(tenant))
    } else {
        anyhow::anyhow!("unknown tenant {:?}; see tickfleet tenant list", tenant.as_str())
    })
}

/// Reads the limits of all shards.
///
/// # Errors
/// An unknown limit, tenant or agent; Redis.
pub(super) async fn of(setup: &Setup, client: &Client, which: &Which) -> Result<Listing, Failure> {
    let active = setup.active();
    with_run_time(&active, client.stores()).await;
    if let Some(tenant) = &which.tenant {
        with_tenant(setup, &active, tenant).await?;
    }
    let policy = &active.load().policy;
    let caller = Caller::of(which, policy)?;
    let shards = seen::shards(client).await?;
    let mut names = seen::names(&policy.limits);
    let whose = Whose { tenant: which.tenant.as_ref(), agent: which.agent.as_ref() };
    let mut caps = caps::of(&shards, policy, whose, usize::from(which.top)).await?;
    if let Some(wanted) = &which.limit {
        caps.retain(|cap| cap.name == *wanted);
        if !names.contains(wanted) && caps.is_empty() {
            return Err(no_limit(wanted, names.iter().map(String::as_str)));
        }
        names.retain(|name| name == wanted);
    }
    let mut limits = Vec::new();
    for name in names {
        let limit = known(&policy.limits, &name);
        let met = caller.as_ref().zip(limit).is_none_or(|(caller, limit)| caller.meets(limit));
        if met {
            let seen = Seen::of(&shards, (&name, limit), policy).await?;
            limits.push(view(&shards, (name, limit, seen), caller.as_ref(), usize::from(which.top)).await?);
        }
    }
    let now_ms = shards.iter().map(|shard| shard.now_ms).max().unwrap_or(0);
    Ok(Listing { now_ms, policy: PolicyHere::of(setup, &shards).await?, caps, limits })
}

/// The configured limit with this name.
pub(super) fn known<'a>(limits: &'a [Limit], name: &str) -> Option<&'a Limit> {
    limits.iter().find(|limit| limit.name == name)
}

/// The failure for an unknown limit.
pub(super) fn no_limit<'a>(wanted: &str, names: impl Iterator<Item = &'a str> + Clone) -> Failure {
    let meant = closest(wanted, names.clone()).map(|name| format!(" Did you mean {name:?}?")).unwrap_or_default();
    Failure::failed(anyhow::anyhow!("unknown limit {wanted:?}.{meant} Limits: {}", list(names)))
}

async fn view(
    shards: &[Shard<'_>],
    (name, limit, seen): (String, Option<&Limit>, Seen),
    caller: Option<&Caller<'_>>,
    top: usize,
) -> Result<LimitView, Failure> {
    let (total, looked_at, complete) = (seen.total, seen.looked_at, seen.complete);
    let wanted = |key: &Key| caller.is_none_or(|caller| caller.may_debit(limit, &key.counter));
    let mut fullest: Vec<(Key, Tally)> = seen.counters.into_iter().filter(|(key, _)| wanted(key)).collect();
    fullest.sort_by_key(|(_, tally)| fullness(tally));
    fullest.truncate(ASKED_MAX.max(top));
    let waiting = seen::waiting(shards, &name, &fullest).await?;
    let mut fullest: Vec<_> = fullest.into_iter().zip(waiting).collect();
    // Among equally full counters, show those with the most waiting turns.
    fullest.sort_by_key(|((_, tally), waiting)| (fullness(tally), std::cmp::Reverse(waiting.unwrap_or(0))));
    fullest.truncate(top);
    let counters = fullest.into_iter().map(|((key, tally), waiting)| counter_view(key, tally, waiting, limit, shards));
    Ok(LimitView {
        allows: limit.map(ToString::to_string),
        on_reach: limit.map(|limit| limit.on_reach),
        mode: limit.map(|limit| limit.mode),
        is_held: limit.is_some_and(|limit| limit.every == Every::Held),
        total,
        looked_at,
        complete,
        counters: counters.collect(),
        name,
    })
}

/// Sort key, fullest first. It uses parts per million, because tenants may have bounds of their own.
fn fullness(tally: &Tally) -> std::cmp::Reverse<(u64, u64)> {
    let part = tally.allowed.map_or(0, |allowed| tally.used.saturating_mul(1_000_000) / allowed.max(1));
    std::cmp::Reverse((part, tally.used))
}

fn counter_view(
    key: Key,
    tally: Tally,
    waiting: Option<u64>,
    limit: Option<&Limit>,
    shards: &[Shard<'_>],
) -> CounterView {
    let is_divided = limit.is_some_and(|limit| !limit.is_of_tenants());
    CounterView {
        counter: key.counter,
        shard: key.shard,
        used: number(tally.used, limit),
        allowed: tally.allowed.map(|allowed| number(allowed, limit)),
        window_ends_ms: tally.ends_ms,
        waiting,
        full_in: tally.full_in,
        shares: if is_divided { u32::try_from(shards.len()).unwrap_or(u32::MAX) } else { 1 },
    }
}

/// An amount used or allowed, in the unit of the limit.
pub(super) fn number(value: u64, limit: Option<&Limit>) -> Number {
    match limit.map(|limit| &limit.bound) {
        // The text of an amount is a valid number.
        Some(bound) if bound.is_of_amounts() => amount::show(value).parse().unwrap_or_else(|_| value.into()),
        _ => value.into(),
    }
}
