//! What must hold when everything has ended.

use tickfleet_sim_redis::Reply;

use super::Game;
use super::story::short;

impl Game {
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
                "turns" | "tasks" | "ready" | "external" => self.server.ask(&["XLEN", &whole]) == Reply::Int(0),
                "timers" | "delayed" => self.server.ask(&["ZCARD", &whole]) == Reply::Int(0),
                "tenant" => ["q", "out"].iter().all(|field| {
                    let count = self.server.ask(&["HGET", &whole, field]);
                    count == Reply::Nil || count == Reply::Bulk(b"0".to_vec())
                }),
                "id" | "done" | "ran" => matches!(self.server.ask(&["PTTL", &whole]), Reply::Int(ms) if ms > 0),
                "turn" | "lane" => false,
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
