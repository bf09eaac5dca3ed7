//! Trouble is over: everything must end.

use std::collections::BTreeMap;

use tickfleet_model::DayCapAction;
use tickfleet_sim_redis::Reply;

use super::Game;
use crate::trouble::At;

const DAY_MS: i64 = 86_400_000;
/// Where nothing has happened for so long beyond leases, what is left waits for the next day, µs: longer than any call,
/// tick or wait between tries.
const STILL_US: i64 = 15_000_000;
/// Where nothing has happened for so long beyond leases, nothing will, µs: longer than producers and operators wait
/// before they ask again.
const STUCK_US: i64 = 90_000_000;
/// Days that may begin although nothing happens in them.
const IDLE_DAYS_MAX: u32 = 3;
/// What a day that has begun may take, µs.
const DAY_TAKES_US: i64 = 120_000_000;

impl Game {
    /// Trouble is over: everything must end within the time that its caps and leases need.
    pub(super) fn calm(&mut self) -> anyhow::Result<()> {
        self.site.world.tell(|| "trouble is over".into());
        self.site.net.calm();
        self.frozen_us = 0;
        self.server.redis.set_maxmemory(0);
        self.ambushes.retain(|ambush| ambush.at == At::Poisoned);
        self.tidy_up();
        let now_us = self.now_us;
        for place in &mut self.places {
            place.process.stopped_us = place.process.stopped_us.min(now_us);
            place.back_us = place.back_us.map(|back| back.min(now_us + 1_000_000));
        }
        let mut until = self.now_us + self.longest_us();
        let (mut quiet_us, mut seen, mut moved_us, mut idle_days) = (0, (0, 0), self.now_us, 0);
        while !self.is_decided() {
            let before = self.now_us;
            self.step()?;
            quiet_us = if self.is_quiet() { quiet_us + self.now_us - before } else { 0 };
            if quiet_us > 2_000 * self.site.settings.store.lease_ms {
                break;
            }
            let done = self.done();
            if done != seen {
                (seen, moved_us, idle_days) = (done, self.now_us, 0);
            } else if quiet_us == 0 && idle_days < IDLE_DAYS_MAX && self.waits_for_a_day(moved_us) {
                self.next_day();
                (moved_us, until, idle_days) = (self.now_us, until + DAY_TAKES_US, idle_days + 1);
            }
            let is_stuck =
                quiet_us == 0 && self.now_us - moved_us > STUCK_US + 20_000 * self.site.settings.store.lease_ms;
            if self.now_us > until || is_stuck {
                let left = self.left();
                self.site.world.wrong(format!("trouble is over, and this is not: {left}"));
            }
        }
        Ok(())
    }

    /// How much has happened: runs and replies.
    fn done(&self) -> (usize, usize) {
        let facts = self.site.world.facts();
        (facts.runs.len(), facts.replies.len())
    }

    /// Whether nothing has happened for so long that calls beyond a day's cap alone can be left.
    fn waits_for_a_day(&self, moved_us: i64) -> bool {
        let settings = &self.site.settings;
        settings.calendar.on_day_cap == DayCapAction::Defer
            && self.now_us - moved_us > STILL_US + 3_000 * settings.store.lease_ms
    }

    /// The clock of Redis steps to the beginning of the next day: nobody plays the hours until then.
    fn next_day(&mut self) {
        let shards = 0..self.site.settings.store.shards;
        let left_ms = shards.filter_map(|shard| Some(DAY_MS - self.shard_ms(shard)?.rem_euclid(DAY_MS))).min();
        let Some(left_ms) = left_ms else { return };
        self.site.world.tell(|| format!("the next day begins: Redis' clock steps by {left_ms} ms"));
        self.step_redis_clock((left_ms + 1) * 1_000);
        let now_us = self.now_us;
        self.site.world.facts().upsets.push((now_us, now_us));
    }

    /// The time of a shard, as its last script had it, ms.
    fn shard_ms(&mut self, shard: u32) -> Option<i64> {
        match self.server.ask(&["HGET", &format!("{{sim:{shard}}}:meta"), "last_ms"]) {
            Reply::Bulk(ms) => String::from_utf8_lossy(&ms).parse().ok(),
            _ => None,
        }
    }

    /// How long the work that there is may take, µs.
    fn longest_us(&self) -> i64 {
        let settings = &self.site.settings;
        let mut calls: BTreeMap<(String, String), i64> = BTreeMap::new();
        for (name, made) in &self.site.world.facts().turns {
            let tenant = name.split(':').next().unwrap_or_default().to_owned();
            *calls.entry((tenant, made.agent.clone())).or_default() += made.tools.len() as i64;
        }
        let most = calls.values().max().copied().unwrap_or(0);
        let slowest = settings.caps.iter().map(|caps| i64::from(caps.calls_per_tick)).min().unwrap_or(1);
        let ticks_ms = most / slowest * settings.caps[0].tick_ms;
        let all: i64 = calls.values().sum();
        let slots = (settings.slots * settings.workers) as i64;
        let hanging_ms = all * 4 * 8_000 / 20 / slots;
        (ticks_ms * 2 + hanging_ms + 20 * settings.store.lease_ms + 180_000) * 1_000
    }
}
