//! What caps and limits of a game allow, counted by what really goes out.

use tickfleet_model::ids::shard_of;
use tickfleet_model::limit::LimitKey;
use tickfleet_model::{AgentId, TenantId};
use tickfleet_sim_redis::{Answer, Redis, Reply};
use tickfleet_store::fields::turn;

use super::Oracle;
use crate::settings::counts;
use crate::world::Made;

/// The calls of a turn that are out or wait for their next try, from and to.
fn out(name: &str, shards: u32, redis: &mut Redis) -> Option<(usize, usize)> {
    let tenant = TenantId::new(name.split(':').next()?).ok()?;
    let key = format!("{{sim:{}}}:turn:{name}", shard_of(&tenant, shards));
    let words = ["HMGET", &key, turn::FENCE, turn::ADMITTED, turn::DONE];
    let Answer::Now(Reply::Array(found)) = redis.execute(&words.map(|word| word.as_bytes().to_vec())) else {
        return None;
    };
    let text = |at: usize| match found.get(at) {
        Some(Reply::Bulk(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    };
    let number = |at: usize| text(at).and_then(|number| number.parse::<usize>().ok());
    let (admitted, done) = (number(1)?, number(2).unwrap_or(0));
    (done < admitted && !text(0).is_some_and(|fence| fence.starts_with("s:"))).then_some((done, admitted))
}

impl Oracle {
    /// A call of a tool went out at this time of its shard; `epoch_ms` says when Redis restarted last.
    pub(super) fn limited(&mut self, tenant: &TenantId, agent: &AgentId, tool: &str, now_ms: i64, epoch_ms: i64) {
        for counted in self.settings.counted(tenant, agent, tool, now_ms) {
            if counted.window_ms < epoch_ms {
                let name = &counted.name;
                self.world.wrong(format!("{name}: a call was admitted in a window that began before Redis restarted"));
            }
            self.count(&counted.name, "limit", counted.window_ms, 1, counted.max);
        }
    }

    /// A slice of this turn went out: how many hold a place that it may have taken one of, by their records.
    pub(super) fn crowded(&self, name: &str, redis: &mut Redis) {
        let facts = self.world.facts();
        let Some(made) = facts.turns.get(name) else { return };
        let mut wrong = Vec::new();
        let tenant = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
        for (limit, most) in self.settings.placed() {
            let is_same = |other: &str, of: &Made| match limit.per.iter().next() {
                Some(LimitKey::Tenant) => tenant(other) == tenant(name),
                Some(_) => tenant(other) == tenant(name) && of.agent == made.agent,
                None => true,
            };
            let same = facts.turns.iter().filter(|(other, of)| !of.is_task && is_same(other, of));
            let holding = same.filter(|(other, of)| {
                out(other, self.settings.store.shards, redis)
                    .is_some_and(|(done, upto)| of.tools[done..upto].iter().any(|tool| counts(limit, tool)))
            });
            let holding: Vec<&str> = holding.map(|(other, _)| other.as_str()).collect();
            if holding.len() > most {
                let limit = &limit.name;
                wrong.push(format!("{holding:?} hold places of {limit}, which has {most}"));
            }
        }
        drop(facts);
        wrong.into_iter().for_each(|what| self.world.wrong(what));
    }

    /// So many calls more in a window of a cap.
    pub(super) fn count(&mut self, who: &str, kind: &'static str, window: i64, fresh: u32, cap: u32) {
        let facts = self.world.facts();
        let is_short = matches!(kind, "tick" | "limit");
        let losses = if is_short { facts.lost.len() } else { 0 };
        let known = self.used.entry((who.to_owned(), kind, window, losses)).or_default();
        known.push((facts.now_us, fresh));
        // Of a day, what Redis has lost is forgotten: `docs/understand/durability.md` says so. A tick that began before
        // is not used.
        let is_lost = |at: i64| !is_short && facts.lost.iter().any(|(from, to)| (*from..=*to).contains(&at));
        let used: u32 = known.iter().filter(|(at, _)| !is_lost(*at)).map(|(_, calls)| calls).sum();
        drop(facts);
        if used > cap && fresh > 0 {
            self.world.wrong(format!("{who}: {used} calls were admitted in {kind} {window} under a cap of {cap}"));
        }
    }
}
