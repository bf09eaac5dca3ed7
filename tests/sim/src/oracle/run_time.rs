//! What was set at run time, as Redis has it: which caps count, which tools nobody may call, which tenants are known.

use std::collections::{BTreeMap, BTreeSet};

use tickfleet_model::ids::shard_of;
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::{CallResult, Outcome, TenantId};
use tickfleet_sim_redis::{Answer, Appended, Redis, Reply};

use super::{Oracle, field};
use crate::parts::operator::GUEST;
use crate::settings::TOOLS;

/// What the oracle has seen of it.
#[derive(Default)]
pub(super) struct RunTime {
    /// The caps of a tenant's day that were ever declared.
    caps: BTreeMap<String, Vec<Option<u32>>>,
    /// Tools that a shard has as switched off, since when, µs. An operator's command goes from shard to shard.
    off_since: BTreeMap<(u32, String), i64>,
    /// Tools that were off in a shard: from, to, µs.
    was_off: Vec<((u32, String), i64, i64)>,
    /// Whether the guest was declared, and then no more.
    guest_was: bool,
    guest_has_gone: bool,
}

/// A field of a hash, as text.
fn look(redis: &mut Redis, key: String, name: &str) -> Option<String> {
    match redis.execute(&[b"HGET".into(), key.into(), name.into()]) {
        Answer::Now(Reply::Bulk(text)) => Some(String::from_utf8_lossy(&text).into_owned()),
        _ => None,
    }
}

impl Oracle {
    fn declared(&self, redis: &mut Redis, tenant: &TenantId) -> Option<TenantPolicy> {
        let shard = shard_of(tenant, self.settings.store.shards);
        let text = look(redis, format!("{{sim:{shard}}}:tenants"), tenant.as_str())?;
        serde_json::from_str(&text).ok()
    }

    /// What Redis has of it just now.
    pub(crate) fn look_at_run_time(&mut self, redis: &mut Redis) {
        let now_us = self.world.facts().now_us;
        let mut off = BTreeSet::new();
        for shard in 0..self.settings.store.shards {
            let tools = look(redis, format!("{{sim:{shard}}}:meta"), "tools_off").unwrap_or_default();
            off.extend(tools.split_whitespace().map(|tool| (shard, tool.to_owned())));
        }
        let again: Vec<_> = self.run_time.off_since.keys().filter(|tool| !off.contains(*tool)).cloned().collect();
        for tool in again {
            if let Some(from_us) = self.run_time.off_since.remove(&tool) {
                self.run_time.was_off.push((tool, from_us, now_us));
            }
        }
        for tool in off {
            self.run_time.off_since.entry(tool).or_insert(now_us);
        }
        let guest = TenantId::new(GUEST).ok().and_then(|guest| self.declared(redis, &guest));
        self.run_time.guest_has_gone |= self.run_time.guest_was && guest.is_none();
        self.run_time.guest_was |= guest.is_some();
        for tenant in self.settings.tenants.clone() {
            self.tenant_cap(redis, &tenant);
        }
    }

    /// The cap of a tenant's day that counts at this moment. From the answer to `set_tenant` on, nothing is admitted by
    /// what was declared before; where Redis has lost writes, somebody may still know what it has forgotten.
    pub(super) fn tenant_cap(&mut self, redis: &mut Redis, tenant: &TenantId) -> Option<u32> {
        let declared = self.declared(redis, tenant);
        let cap = declared.map_or(self.settings.tenant_day, |policy| policy.max_actions_per_day);
        let known = self.run_time.caps.entry(tenant.to_string()).or_insert_with(|| vec![self.settings.tenant_day]);
        if !known.contains(&cap) {
            known.push(cap);
        }
        if self.world.facts().lost.is_empty() {
            return cap;
        }
        if known.contains(&None) { None } else { known.iter().flatten().max().copied() }
    }

    /// A message was refused for good. A tenant that is declared is known to everybody who decides.
    pub(super) fn refused(&self, entry: &Appended) {
        let is_unknown = field(entry, "reason").is_some_and(|reason| reason == "unknown_tenant");
        let tenant = field(entry, "tenant").unwrap_or_default();
        let is_configured = self.settings.tenants.iter().any(|name| name.as_str() == tenant);
        let is_guest = tenant == GUEST && !self.run_time.guest_has_gone && self.world.facts().lost.is_empty();
        if is_unknown && (is_configured || is_guest) {
            self.world.wrong(format!("a message of {tenant} is refused: the tenant is told to be unknown"));
        }
    }

    /// A call that is told as denied though its agent might call its tool all the time.
    pub(super) fn denied_without_reason(&self, tenant: &str, result: &CallResult) -> bool {
        let was_off = self.run_time.was_off.iter().map(|(off, ..)| off).chain(self.run_time.off_since.keys());
        result.outcome == Outcome::Denied
            && tenant != GUEST
            && result.tool != TOOLS[3]
            && !super::governed::is_reasoned(result)
            && !was_off.into_iter().any(|(_, tool)| *tool == result.tool)
    }

    /// Runs of tools that had been switched off for longer than a worker needs to hear of it, and were still.
    pub(super) fn runs_while_off(&self) -> Vec<String> {
        let facts = self.world.facts();
        let still = self.run_time.off_since.iter().map(|(tool, from)| (tool.clone(), *from, i64::MAX));
        let periods: Vec<_> = self.run_time.was_off.iter().cloned().chain(still).collect();
        let of = |run: &crate::world::Run| {
            let tenant = TenantId::new(run.turn.split_once(':')?.0).ok()?;
            let tool = facts.turns.get(&run.turn)?.tools.get(run.position)?;
            Some((shard_of(&tenant, self.settings.store.shards), (*tool).to_owned()))
        };
        let is_off = |tool: &(u32, String), at_us: i64| {
            periods.iter().any(|(off, from, to)| off == tool && (from + self.grace_us()..to - 200_000).contains(&at_us))
        };
        let wrong = facts.runs.iter().filter(|run| of(run).is_some_and(|tool| is_off(&tool, run.began_us)));
        wrong
            .map(|run| format!("{}/{} ran, though its tool was switched off long ago", run.turn, run.position))
            .collect()
    }
}
