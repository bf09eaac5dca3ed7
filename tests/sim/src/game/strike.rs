//! Trouble strikes.

use tickfleet_model::TenantId;
use tickfleet_model::ids::shard_of;
use tickfleet_sim_redis::Reply;

use super::{Game, Role};
use crate::parts::tasks::OUTSIDER;
use crate::trouble::{Kind, MALFORMED, REMOVED, Removed};

/// For how long leases may end although their holders live, µs; none where none does.
const fn upset(kind: &Kind) -> Option<i64> {
    match kind {
        Kind::Freeze { for_us } | Kind::Slow { for_us, .. } => Some(*for_us),
        Kind::RedisClock { .. }
        | Kind::Remove { .. }
        | Kind::RemoveOutside { .. }
        | Kind::Memory { .. }
        | Kind::Famine { .. } => Some(0),
        _ => None,
    }
}

impl Game {
    /// One trouble.
    pub(super) fn strike(&mut self, kind: &Kind) -> anyhow::Result<()> {
        *self.verdict.troubles.entry(kind.word().into()).or_default() += 1;
        self.site.world.tell(|| format!("TROUBLE {kind:?}"));
        let now_us = self.now_us;
        if let Some(for_us) = upset(kind) {
            self.site.world.facts().upsets.push((now_us, now_us + for_us));
        }
        match *kind {
            Kind::Ambush(ref ambush) => self.ambushes.push(ambush.clone()),
            Kind::Odd(odd) => self.odd(odd),
            Kind::Forge { which } => self.forge(which),
            Kind::Spoil { tenant, agent } => self.spoil(tenant, agent),
            Kind::Stray => self.stray()?,
            Kind::Kill { process, polls, back_us } => {
                let place = &mut self.places[process];
                if place.process.is_alive() {
                    place.process.die_after(polls);
                    place.back_us = Some(now_us + back_us);
                    self.note_death(process);
                }
            }
            Kind::Stop { process, for_us } => {
                self.places[process].process.stopped_us = now_us + for_us;
                self.note_death(process);
            }
            Kind::Drain { process } => self.places[process].process.shutdown.drain(),
            Kind::Cut { process } => self.site.net.cut(process),
            Kind::Hold { process, for_us } => {
                self.site.net.hold(process, now_us + for_us);
                self.note_death(process);
            }
            Kind::Slow { for_us, most_us } => self.site.net.slow_down(now_us + for_us, most_us),
            Kind::Late { late_us } => self.site.net.set_late(late_us),
            Kind::Freeze { for_us } => self.frozen_us = self.frozen_us.max(now_us + for_us),
            Kind::Restart { down_us, lost_us } => self.restart(down_us, lost_us),
            Kind::RedisClock { by_us } => self.step_redis_clock(by_us),
            Kind::Clock { process, by_us } => {
                self.places[process].ahead_us += by_us;
                self.places[process].process.step_clock(by_us);
            }
            Kind::Reload { process, version } => self.reload(process, version),
            Kind::Malformed { what } => self.malformed(what),
            Kind::Remove { what, shard } => self.remove(REMOVED[what], shard),
            Kind::RemoveOutside { part, tenant } => self.remove_outside(part, tenant),
            Kind::Memory { room } => self.bound_memory(|used| room.map_or(0, |room| used + room)),
            Kind::Famine { percent } => self.bound_memory(|used| used * percent / 100),
        }
        Ok(())
    }

    fn bound_memory(&mut self, most: impl FnOnce(u64) -> u64) {
        let used = self.server.redis.used_memory();
        self.server.redis.set_maxmemory(most(used));
    }

    fn restart(&mut self, down_us: i64, lost_us: i64) {
        if self.down.is_some() {
            return;
        }
        self.site.net.set_open(false);
        self.site.world.facts().has_restarted = true;
        self.down = Some((self.now_us + down_us, lost_us));
        let from_us = self.server.restart(&self.site.net, self.now_us, lost_us);
        self.rules.restarted(&mut self.server.redis);
        if lost_us > 0 {
            self.forget(from_us, self.now_us + down_us);
        }
    }

    /// Redis has lost what was written since then, and until it is back nobody can tell it. Tasks of calls are lost with
    /// it, and made again where the calls are.
    fn forget(&self, from_us: i64, back_us: i64) {
        let mut facts = self.site.world.facts();
        facts.lost.push((from_us, back_us));
        let is_lost = |made: &crate::world::Made| made.is_child && made.accepted_us.is_some_and(|at| at >= from_us);
        facts.turns.retain(|_, made| made.is_answered || !is_lost(made));
    }

    /// What is remembered for an hour is forgotten where the hour is over at once.
    pub(super) fn step_redis_clock(&mut self, by_us: i64) {
        self.server.ahead_us += by_us;
        self.leapt_us += by_us.max(0);
        if by_us > 0 {
            let now_us = self.now_us;
            self.site.world.facts().leaps.push(now_us);
        }
        self.oracle.has_forgotten |= self.leapt_us >= 1_000 * self.site.settings.store.dedupe_ms * 4 / 5;
    }

    /// What a process knew is gone, or nobody could ask it for a while.
    pub(super) fn note_death(&self, process: usize) {
        let mut facts = self.site.world.facts();
        let now_us = facts.now_us;
        facts.deaths.push((self.places[process].name.clone(), now_us));
    }

    fn reload(&mut self, process: usize, version: usize) {
        let place = &mut self.places[process];
        if let Some(live) = place.live.as_ref().filter(|_| place.process.is_alive()) {
            place.version = version;
            place.process.enter(|| self.site.reload(live, version));
        }
    }

    fn malformed(&mut self, what: usize) {
        let (stream, entry) = MALFORMED[what];
        let shard = TenantId::new("tenant0").map_or(0, |tenant| shard_of(&tenant, self.site.settings.store.shards));
        let key = format!("{{sim:{shard}}}:{stream}");
        let words = [&["XADD", &key, "*"], entry].concat();
        self.server.set_now(self.now_us);
        self.server.ask(&words);
    }

    fn remove(&mut self, (key, part): (&str, Removed), shard: u32) {
        self.rules.is_robbed = true;
        let key = format!("{{sim:{shard}}}:{key}");
        self.server.set_now(self.now_us);
        match part {
            Removed::Key => drop(self.server.ask(&["DEL", &key])),
            Removed::Group => drop(self.server.ask(&["XGROUP", "DESTROY", &key, "workers"])),
            Removed::Consumers => self.delete_consumers(&key, ""),
        }
    }

    /// The queue of the runtimes outside, who would make it anew at once.
    fn remove_outside(&mut self, part: Removed, tenant: usize) {
        let tenant = &self.site.settings.tenants[tenant];
        let (key, shard) = (format!("external:{tenant}:{OUTSIDER}"), shard_of(tenant, self.site.settings.store.shards));
        self.remove((&key, part), shard);
        if let Some(runtimes) = self.places.iter().position(|place| place.role == Role::Tasks) {
            let for_us = 2 * self.site.settings.outside_lease.as_micros() as i64;
            self.site.net.hold(runtimes, self.now_us + for_us);
        }
    }

    /// Deletes the consumers of a stream's group whose names have this in them.
    pub(super) fn delete_consumers(&mut self, key: &str, part: &str) {
        let Reply::Array(consumers) = self.server.ask(&["XINFO", "CONSUMERS", key, "workers"]) else { return };
        for consumer in consumers {
            let Reply::Array(fields) = consumer else { continue };
            if let Some(Reply::Bulk(name)) = fields.get(1) {
                let name = String::from_utf8_lossy(name).into_owned();
                if name.contains(part) {
                    self.server.ask(&["XGROUP", "DELCONSUMER", key, "workers", &name]);
                }
            }
        }
    }
}
