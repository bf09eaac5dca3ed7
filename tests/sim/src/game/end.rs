//! What must hold when everything has ended.

use tickfleet_sim_redis::Reply;

use super::Game;
use super::story::short;
use crate::trouble::STRANGERS;

impl Game {
    /// Whether everything has been answered.
    pub(super) fn is_quiet(&mut self) -> bool {
        let is_over = |made: &crate::world::Made| made.is_odd || made.accepted_us.is_some() && made.is_answered;
        if !self.site.world.facts().turns.values().all(is_over) || self.server.redis.keys().any(is_waiting) {
            return false;
        }
        // What strangers wrote is decided about, too.
        let shards = 0..self.site.settings.store.shards;
        shards.into_iter().all(|shard| {
            let left = self.server.ask(&["XLEN", &format!("{{sim:{shard}}}:turns")]);
            !matches!(left, Reply::Int(1..))
        })
    }

    /// What has not.
    pub(super) fn left(&self) -> String {
        let facts = self.site.world.facts();
        let open: Vec<_> = facts.turns.iter().filter(|(_, made)| !made.is_answered).collect();
        let name = |(name, made): &(&String, &crate::world::Made)| {
            let word = if made.accepted_us.is_some() { "accepted" } else { "not accepted" };
            let told = if facts.replies.contains_key(*name) { ", answered and not read" } else { "" };
            format!("{name} ({word}{told})")
        };
        let live = self.server.redis.keys().filter(|key| is_waiting(key)).map(String::from_utf8_lossy);
        let (open, names) = (open.len(), open.iter().take(5).map(name).collect::<Vec<_>>().join(", "));
        format!("{open} turns: {names}; live records: {}", live.take(5).collect::<Vec<_>>().join(", "))
    }

    /// What must hold at the end.
    pub(super) fn end(&mut self) {
        if self.is_decided() {
            return;
        }
        self.oracle.look_at_end();
        for shard in 0..self.site.settings.store.shards {
            self.nothing_is_left(shard);
        }
    }

    /// Whether no timer is armed but those of lanes that have emptied since: they go when their window begins.
    fn waits_for_a_window(&mut self, timers: &str, prefix: &str) -> bool {
        let Reply::Array(armed) = self.server.ask(&["ZRANGE", timers, "0", "-1"]) else { return true };
        armed.iter().all(|timer| {
            let Reply::Bulk(name) = timer else { return false };
            let name = String::from_utf8_lossy(name);
            let lane = name.strip_prefix("l:").map(|lane| format!("{prefix}lane:{lane}"));
            lane.is_some_and(|lane| self.server.ask(&["EXISTS", &lane]) == Reply::Int(0))
        })
    }

    /// No entry waits, no record lives, no timer is armed, no counter counts what has ended, and what is remembered is
    /// remembered for a while.
    fn nothing_is_left(&mut self, shard: u32) {
        self.server.set_now(self.now_us);
        // What has expired goes with the next command.
        self.server.ask(&["PING"]);
        let prefix = format!("{{sim:{shard}}}:");
        let keys: Vec<String> = self.server.redis.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
        for key in keys.iter().filter_map(|key| key.strip_prefix(&prefix)) {
            let whole = format!("{prefix}{key}");
            let family = key.split(':').next().unwrap_or_default();
            let is_well = match family {
                // A tenant's list of its newest tasks, beside the stream of that name.
                "tasks" if key != "tasks" => matches!(self.server.ask(&["PTTL", &whole]), Reply::Int(ms) if ms > 0),
                "turns" | "tasks" | "ready" | "external" => self.server.ask(&["XLEN", &whole]) == Reply::Int(0),
                "delayed" => self.server.ask(&["ZCARD", &whole]) == Reply::Int(0),
                "timers" => self.waits_for_a_window(&whole, &prefix),
                "tenant" => ["q", "out"].iter().all(|field| {
                    let count = self.server.ask(&["HGET", &whole, field]);
                    count == Reply::Nil || count == Reply::Bulk(b"0".to_vec())
                }),
                // Of a stream that a hand has deleted; strangers never submit again.
                "id" if self.rules.is_robbed && STRANGERS.iter().any(|name| key[3..].starts_with(name)) => true,
                "id" | "done" | "ran" => matches!(self.server.ask(&["PTTL", &whole]), Reply::Int(ms) if ms > 0),
                "turn" | "lane" => false,
                "approval" | "approvals" | "asked" | "facts" | "entered" | "effect" | "cached" | "cached_order"
                | "row" => {
                    matches!(self.server.ask(&["PTTL", &whole]), Reply::Int(ms) if ms > 0)
                }
                _ => true,
            };
            if !is_well {
                let value = self.left_in(&whole);
                self.site.world.wrong(format!("everything has ended, and {whole} is left: {value}"));
            }
        }
    }

    /// What a key holds, for people.
    fn left_in(&mut self, key: &str) -> String {
        let looks: [&[&str]; 4] =
            [&["XRANGE", key, "-", "+"], &["HGETALL", key], &["ZRANGE", key, "0", "-1"], &["GET", key]];
        let found = looks.iter().map(|look| self.server.ask(look)).find(|reply| !matches!(reply, Reply::Error(_)));
        short(&format!("{found:?}"), 300)
    }
}

/// Whether a key says that a turn has not ended: one of strangers, or one that was answered before Redis lost that it
/// was.
fn is_waiting(key: &[u8]) -> bool {
    key.split(|byte| *byte == b'}').nth(1).is_some_and(|rest| rest.starts_with(b":turn:"))
}
