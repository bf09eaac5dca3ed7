//! Time and restarts: the time of a shard, and what waits after Redis was away.

use tickfleet_sim_redis::{Redis, Reply};

use super::look::{Look, list};
use super::{Call, Rules, number, words};

/// What is known of a shard's time.
#[derive(Debug, Default)]
pub(super) struct ShardTimes {
    /// The last that a script has told, ms.
    told_ms: i64,
    /// Redis restarted at this time or later, ms; zero: never.
    epoch_ms: i64,
    /// When somebody looked for dead consumers last, ms.
    reap_seen_ms: Option<i64>,
    /// Until when nobody is taken for dead, ms.
    hold_ms: i64,
}

impl Rules {
    /// Redis has come back, with what it knows now.
    pub(crate) fn restarted(&mut self, redis: &mut Redis) {
        // Of a slice that Redis has lost with its last writes, nobody knows any more.
        let mut slices = std::mem::take(&mut self.crashes);
        for shard in 0..self.options.shards {
            let prefix = format!("{{{}:{shard}}}:", self.options.namespace);
            let mut look = Look { redis, prefix: &prefix };
            let mut meta = look.fields("meta", &["last_ms", "run_id", "reap_seen", "reap_hold"]).into_iter();
            let mut next = || meta.next().flatten();
            let (last, known, seen, hold) = (next(), next(), next(), next());
            let ms = |text: Option<String>| text.and_then(|text| text.parse::<i64>().ok());
            let last_ms = ms(last).unwrap_or(0);
            let epoch_ms = if known.is_some() { last_ms } else { 0 };
            let times = ShardTimes {
                told_ms: last_ms,
                epoch_ms,
                reap_seen_ms: ms(seen),
                hold_ms: ms(hold).unwrap_or(0).max(epoch_ms + self.options.lease_ms),
            };
            slices.retain(|name, (crashes, fence)| {
                let is_there = look.record(name).fence.as_ref() == Some(fence);
                if is_there {
                    self.crashes.insert(name.clone(), (*crashes, fence.clone()));
                }
                !is_there
            });
            self.times.insert(prefix, times);
        }
    }

    /// When Redis restarted last, by the time of a shard, ms; zero: never.
    pub(crate) fn epoch_ms(&self, shard: u32) -> i64 {
        self.times.get(&format!("{{{}:{shard}}}:", self.options.namespace)).map_or(0, |times| times.epoch_ms)
    }

    /// Whether Redis restarted less than a lease ago.
    pub(super) fn is_early(&self, prefix: &str, now_ms: i64) -> bool {
        let epoch_ms = self.times.get(prefix).map_or(0, |times| times.epoch_ms);
        epoch_ms > 0 && now_ms < epoch_ms + self.options.lease_ms
    }

    /// A script has told the time.
    pub(super) fn told_time(&mut self, call: &Call, reply: &Reply) {
        let at = match call.verb {
            "admit" | "release" | "promote" | "reap" => 1,
            "beat" => 0,
            _ => return,
        };
        let Some(now_ms) = number(list(reply).get(at)) else { return };
        let times = self.times.entry(call.prefix.clone()).or_default();
        let back_ms = times.told_ms - now_ms;
        times.told_ms = now_ms;
        if back_ms > 0 {
            self.wrong(2, &format!("{} was told a time {back_ms} ms before the last", call.verb));
        }
    }

    /// Consumers were taken for dead.
    pub(super) fn reaped(&mut self, call: &Call, reply: &Reply) {
        let lease_ms = self.options.lease_ms;
        // Another scheduler has looked a moment ago.
        if words(reply).first().is_some_and(|word| word == "RECENT") {
            return;
        }
        let Some(now_ms) = number(list(reply).get(1)) else { return };
        let is_early = self.is_early(&call.prefix, now_ms);
        let times = self.times.entry(call.prefix.clone()).or_default();
        if times.reap_seen_ms.is_none_or(|seen| now_ms - seen > lease_ms / 2) {
            times.hold_ms = now_ms + lease_ms;
        }
        times.reap_seen_ms = Some(now_ms);
        let holds = now_ms < times.hold_ms;
        let some = |at: usize| number(list(reply).get(at)).is_some_and(|count| count > 0);
        let endings = list(reply).get(3).is_some_and(|endings| !list(endings).is_empty());
        let took = words(reply).first().is_some_and(|word| word == "OK") && (some(2) || some(5) || endings);
        if took && is_early {
            self.wrong(8, "consumers were taken for dead less than a lease after Redis restarted");
        } else if took && holds {
            self.wrong(12, "consumers were taken for dead less than a lease after all were away");
        }
    }
}
