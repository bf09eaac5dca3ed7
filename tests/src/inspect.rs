//! Inspects a running fleet (counters, dead letters, the audit log), and waits for conditions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use redis::FromRedisValue;
use serde_json::{Value, json};
use tickfleet_core::keys::limits;
use tickfleet_core::turn::Turn;
use tickfleet_core::{CounterKey, Query};
use tickfleet_store::TurnName;
use tokio::time::Instant;

use crate::fleet::{Fleet, PATIENCE};

pub type StreamEntry = (String, BTreeMap<String, String>);

/// Compares only the part up to the key's first colon.
fn is_in_layout(key: &str) -> bool {
    const LAYOUT: &str = include_str!("../../docs/contribute/store-layout.md");
    let name = key.split(':').next().unwrap_or_default();
    [format!("`{name}`"), format!("`{name}:")].iter().any(|known| LAYOUT.contains(known))
}

impl Fleet {
    /// Rejects a misspelled key, which would look like an absent key.
    pub async fn ask<T: FromRedisValue>(&self, verb: &str, suffix: &str, args: &[&str]) -> T {
        assert!(is_in_layout(suffix), "docs/contribute/store-layout.md has no key {suffix}");
        let command = redis::cmd(verb).arg(self.store.keys().key(suffix)).arg(args).to_owned();
        // Opens a new connection, because the test may have restarted Redis.
        command.query_async(&mut self.server.connection().await).await.unwrap()
    }

    pub async fn until_redis_answers(&self) {
        self.until("Redis answers", async |fleet| fleet.store.now_ms().await.is_ok()).await;
    }

    pub async fn debited(&self, agent: &str) -> u64 {
        self.used(limits::DAY, &format!("acme:{agent}")).await.unwrap_or(0)
    }

    pub async fn used(&self, limit: &str, counter: &str) -> Option<u64> {
        let counter = CounterKey::new(limit, counter);
        match self.store.query(Query::Counter(counter)).await.unwrap() {
            tickfleet_core::Value::Counter(state) => state.map(|state| state.used),
            other => panic!("{other:?}"),
        }
    }

    pub async fn unfinished(&self, turn: &str) -> Option<Turn> {
        let name = TurnName::parse(&format!("acme:{turn}")).unwrap();
        self.store.record_of(&name.record()).await.unwrap().map(|stored| stored.value)
    }

    pub async fn until_begun(&self, turn: &str) {
        let has_begun = async |fleet: &Self| fleet.unfinished(turn).await.is_some_and(|turn| turn.begun.is_some());
        self.until("the call has begun", has_begun).await;
    }

    pub async fn dead(&self) -> Vec<BTreeMap<String, String>> {
        let entries: Vec<(String, BTreeMap<String, Vec<u8>>)> = self.ask("XRANGE", "dead", &["-", "+"]).await;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        entries.into_iter().map(|(_, fields)| fields.into_iter().map(|(k, v)| (k, text(v))).collect()).collect()
    }

    /// Oldest first.
    pub async fn audits(&self) -> Vec<Value> {
        let entries: Vec<StreamEntry> = self.ask("XRANGE", "audit", &["-", "+"]).await;
        entries.iter().map(|(_, fields)| serde_json::from_str(&fields["audit"]).unwrap()).collect()
    }

    /// Counts the pending entries of the `ready` streams.
    pub async fn held(&self) -> u64 {
        self.store.backlog(&[], &[]).await.unwrap().running
    }

    /// Returns the shard's time plus `ms`, as RFC 3339.
    pub async fn in_ms(&self, ms: i64) -> String {
        let time = chrono::DateTime::from_timestamp_millis(self.store.now_ms().await.unwrap() + ms).unwrap();
        time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
    }

    /// Panics after [`PATIENCE`].
    pub async fn until(&self, what: &str, holds: impl AsyncFn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self).await {
            assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
            // Redis does not announce the condition, so this polls.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Adds the tenant if it is missing. Returns the entry's ID.
    pub async fn say(&self, mut message: Value) -> String {
        message.as_object_mut().unwrap().entry("tenant").or_insert_with(|| "acme".into());
        self.xadd("tasks", "task", message.to_string().as_bytes()).await
    }

    pub async fn delegate(&self, agent: &str, mut task: Value) -> String {
        let object = task.as_object_mut().unwrap();
        object.entry("target_agent").or_insert_with(|| agent.into());
        object.entry("task_description").or_insert_with(|| "Look into it.".into());
        object.entry("reply_to").or_insert_with(|| "box".into());
        self.say(task).await
    }

    pub async fn cancel_turn(&self, turn: &str) {
        self.say(json!({"op": "cancel", "turn_id": turn})).await;
    }

    pub async fn everything(&self) -> String {
        let mut connection = self.server.connection().await;
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
        let mut text = String::new();
        for key in keys {
            let kind: String = redis::cmd("TYPE").arg(&key).query_async(&mut connection).await.unwrap();
            let command = match kind.as_str() {
                "stream" => redis::cmd("XRANGE").arg(&key).arg("-").arg("+").to_owned(),
                "hash" => redis::cmd("HGETALL").arg(&key).to_owned(),
                "zset" => redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).to_owned(),
                "list" => redis::cmd("LRANGE").arg(&key).arg(0).arg(-1).to_owned(),
                "set" => redis::cmd("SMEMBERS").arg(&key).to_owned(),
                _ => redis::cmd("GET").arg(&key).to_owned(),
            };
            let value: redis::Value = command.query_async(&mut connection).await.unwrap();
            text += &format!("{key} {}\n", format!("{value:?}").replace("bulk-string", ""));
        }
        text
    }

    pub async fn replies(&mut self, count: usize) -> BTreeMap<String, Value> {
        let mut found = BTreeMap::new();
        for _ in 0..count {
            let reply = self.reply().await;
            let id = [&reply["turn_id"], &reply["task_id"]].into_iter().find_map(Value::as_str).unwrap().to_owned();
            assert!(found.insert(id.clone(), reply).is_none(), "{id} was answered twice");
        }
        found
    }

    /// Panics unless the next reply belongs to a turn that this function submits.
    pub async fn no_more_replies(&mut self) {
        let turn = self.submit(&[("echo", json!({}))]).await;
        assert_eq!(self.reply().await["turn_id"], turn, "an unexpected reply");
    }
}

#[must_use]
pub fn outcomes(reply: &Value) -> Vec<&str> {
    reply["results"].as_array().unwrap().iter().map(|r| r["outcome"].as_str().unwrap()).collect()
}
