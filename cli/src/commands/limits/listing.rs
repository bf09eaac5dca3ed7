//! Builds the list of limits.

use serde::Serialize;
use tickfleet_client::Client;
use tickfleet_client::verbs::in_unit;
use tickfleet_engine::active_policy::short_digest;
use tickfleet_model::limit::LimitWindow;
use tickfleet_model::limit::counters::may_debit;
use tickfleet_model::policy::{AgentPolicy, Policy, TenantPolicy};
use tickfleet_model::suggest::{closest, list};
use tickfleet_model::{AgentId, Limit, TenantId};

use super::LimitsFilter;
use super::caps::{self, CounterOwner};
use super::counters::{self, CounterKey, LimitCounters, Shard, Tally};
use super::views::{CounterView, LimitView};
use crate::caller::{self, unknown_caller, with_run_time, with_tenant};
use crate::failure::Failure;
use crate::setup::Setup;

/// Waiting turns are counted only for this many of the fullest counters per limit.
const ASKED_MAX: usize = 100;

#[derive(Debug, Serialize)]
pub(super) struct Listing {
    pub(super) now_ms: i64,
    pub(super) policy: PolicyComparison,
    pub(super) caps: Vec<LimitView>,
    pub(super) limits: Vec<LimitView>,
}

/// The list shows bounds of the local policy, but the fleet may use another one.
#[derive(Debug, Default, Serialize)]
pub(super) struct PolicyComparison {
    pub(super) here: String,
    /// One per shard; `None` until a scheduler has announced a policy there.
    pub(super) in_force: Vec<Option<String>>,
}

impl PolicyComparison {
    async fn of(setup: &Setup, shards: &[Shard<'_>]) -> Result<Self, Failure> {
        let mut in_force = Vec::with_capacity(shards.len());
        for shard in shards {
            let digest = shard.store.policy_in_force().await?;
            in_force.push(digest.map(|digest| short_digest(&digest).to_owned()));
        }
        Ok(Self { here: short_digest(&setup.configuration.digest).to_owned(), in_force })
    }

    pub(super) fn mismatch_warnings(&self) -> Vec<String> {
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

struct Caller<'a> {
    tenant: &'a TenantId,
    owner: &'a TenantPolicy,
    agent: Option<(&'a AgentId, &'a AgentPolicy)>,
}

impl<'a> Caller<'a> {
    fn of(filter: &'a LimitsFilter, policy: &'a Policy) -> Result<Option<Self>, Failure> {
        let Some(tenant) = &filter.tenant else { return Ok(None) };
        if let Some(agent) = &filter.agent {
            let found =
                policy.look_up(tenant, agent).map_err(|unknown| unknown_caller(unknown, policy, tenant, agent))?;
            return Ok(Some(Self { tenant, owner: found.0, agent: Some((agent, found.1)) }));
        }
        let Some(owner) = policy.tenants.get(tenant) else { return Err(no_tenant(tenant, policy)) };
        Ok(Some(Self { tenant, owner, agent: None }))
    }

    fn is_limited_by(&self, limit: &Limit) -> bool {
        let fits = self.agent.is_none_or(|(agent, policy)| limit.matches.fits_agent(agent, policy));
        fits && limit.matches.fits_tenant(self.owner)
    }

    /// If the limit is unknown, the counter's name must begin with the tenant.
    fn may_debit(&self, limit: Option<&Limit>, counter: &str) -> bool {
        match limit {
            Some(limit) => may_debit(limit, counter, self.tenant, self.agent.map(|(agent, _)| agent)),
            None => counter.split(':').next() == Some(self.tenant.as_str()),
        }
    }
}

fn no_tenant(tenant: &TenantId, policy: &Policy) -> Failure {
    if policy.withheld.contains(tenant) {
        return Failure::failed(anyhow::anyhow!(tickfleet_engine::delegation::unreadable(tenant)));
    }
    caller::no_tenant(tenant, policy.tenants.keys())
}

pub(super) async fn of(setup: &Setup, client: &Client, filter: &LimitsFilter) -> Result<Listing, Failure> {
    let active = setup.active();
    with_run_time(&active, client.stores()).await;
    if let Some(tenant) = &filter.tenant {
        with_tenant(setup, &active, tenant).await?;
    }
    let policy = &active.load().policy;
    let caller = Caller::of(filter, policy)?;
    let shards = counters::shards(client).await?;
    let mut names = counters::names(&policy.limits);
    let owner = CounterOwner { tenant: filter.tenant.as_ref(), agent: filter.agent.as_ref() };
    let mut caps = caps::of(&shards, policy, owner, usize::from(filter.top)).await?;
    if let Some(wanted) = &filter.limit {
        caps.retain(|cap| cap.name == *wanted);
        if !names.contains(wanted) && caps.is_empty() {
            return Err(no_limit(wanted, names.iter().map(String::as_str)));
        }
        names.retain(|name| name == wanted);
    }
    let mut limits = Vec::new();
    for name in names {
        let limit = find_limit(&policy.limits, &name);
        let is_included = caller.as_ref().zip(limit).is_none_or(|(caller, limit)| caller.is_limited_by(limit));
        if is_included {
            let found = LimitCounters::of(&shards, (&name, limit), policy).await?;
            limits.push(view(&shards, (name, limit, found), caller.as_ref(), usize::from(filter.top)).await?);
        }
    }
    let now_ms = shards.iter().map(|shard| shard.now_ms).max().unwrap_or(0);
    Ok(Listing { now_ms, policy: PolicyComparison::of(setup, &shards).await?, caps, limits })
}

fn find_limit<'a>(limits: &'a [Limit], name: &str) -> Option<&'a Limit> {
    limits.iter().find(|limit| limit.name == name)
}

fn no_limit<'a>(wanted: &str, names: impl Iterator<Item = &'a str> + Clone) -> Failure {
    let meant = closest(wanted, names.clone()).map(|name| format!(" Did you mean {name:?}?")).unwrap_or_default();
    Failure::failed(anyhow::anyhow!("unknown limit {wanted:?}.{meant} Limits: {}", list(names)))
}

async fn view(
    shards: &[Shard<'_>],
    (name, limit, found): (String, Option<&Limit>, LimitCounters),
    caller: Option<&Caller<'_>>,
    top: usize,
) -> Result<LimitView, Failure> {
    let total = found.total;
    let counters_read = found.counters_read;
    let complete = found.complete;
    let wanted = |key: &CounterKey| caller.is_none_or(|caller| caller.may_debit(limit, &key.counter));
    let mut fullest: Vec<(CounterKey, Tally)> = found.counters.into_iter().filter(|(key, _)| wanted(key)).collect();
    fullest.sort_by_key(|(_, tally)| fullness(tally));
    fullest.truncate(ASKED_MAX.max(top));
    let waiting = counters::waiting(shards, &name, &fullest).await?;
    let mut fullest: Vec<_> = fullest.into_iter().zip(waiting).collect();
    // Among equally full counters, those with the most waiting turns come first.
    fullest.sort_by_key(|((_, tally), waiting)| (fullness(tally), std::cmp::Reverse(waiting.unwrap_or(0))));
    fullest.truncate(top);
    let counters = fullest.into_iter().map(|((key, tally), waiting)| counter_view(key, tally, waiting, limit, shards));
    Ok(LimitView {
        allows: limit.map(ToString::to_string),
        on_reach: limit.map(|limit| limit.on_reach),
        mode: limit.map(|limit| limit.mode),
        is_held: limit.is_some_and(|limit| limit.every == LimitWindow::Concurrency),
        total,
        counters_read,
        complete,
        counters: counters.collect(),
        name,
    })
}

/// Tenants can have different bounds, so the key has parts per million.
fn fullness(tally: &Tally) -> std::cmp::Reverse<(u64, u64)> {
    let part = tally.allowed.map_or(0, |allowed| tally.used.saturating_mul(1_000_000) / allowed.max(1));
    std::cmp::Reverse((part, tally.used))
}

fn counter_view(
    key: CounterKey,
    tally: Tally,
    waiting: Option<u64>,
    limit: Option<&Limit>,
    shards: &[Shard<'_>],
) -> CounterView {
    let is_divided = limit.is_some_and(|limit| !limit.is_of_tenants());
    CounterView {
        counter: key.counter,
        shard: key.shard,
        used: in_unit(tally.used, limit),
        allowed: tally.allowed.map(|allowed| in_unit(allowed, limit)),
        window_ends_ms: tally.ends_ms,
        waiting,
        full_in: tally.full_in,
        shares: if is_divided { u32::try_from(shards.len()).unwrap_or(u32::MAX) } else { 1 },
    }
}
