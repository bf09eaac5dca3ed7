//! Writes many messages to a shard at once, and reads many replies from an inbox at once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use serde_json::Value;
use tickfleet_store::Keys;
use tickfleet_testkit::RedisServer;

use crate::fleet::PATIENCE;

const REPLIES_MAX: usize = 500;
const MESSAGES_MAX: usize = 500;

pub struct Inbox {
    connection: MultiplexedConnection,
    key: String,
    last: String,
}

impl Inbox {
    /// Reads the inbox of tenant `acme` from the beginning.
    pub async fn open(server: &RedisServer, keys: &Keys, name: &str) -> Self {
        let key = keys.key(format_args!("replies:acme:{name}"));
        Self { connection: server.connection().await, key, last: "0".into() }
    }

    /// Empty if no reply arrives within `wait`.
    pub async fn next(&mut self, wait: Duration) -> Vec<Value> {
        type Entries = Vec<(String, BTreeMap<String, String>)>;
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(REPLIES_MAX).arg("BLOCK").arg(u64::try_from(wait.as_millis()).unwrap().max(1));
        command.arg("STREAMS").arg(&self.key).arg(&self.last);
        let found: Option<Vec<(String, Entries)>> = command.query_async(&mut self.connection).await.unwrap();
        let entries = found.into_iter().flatten().flat_map(|(_, entries)| entries);
        let mut replies = Vec::new();
        for (id, fields) in entries {
            self.last = id;
            replies.push(serde_json::from_str(&fields["reply"]).unwrap());
        }
        replies
    }

    /// Returns the entry ID and the content. Panics unless exactly one reply is unread.
    pub async fn next_entry(&mut self) -> (String, Value) {
        let found = self.next(PATIENCE).await;
        assert_eq!(found.len(), 1, "one reply within {PATIENCE:?}: {found:?}");
        (self.last.clone(), found.into_iter().next().unwrap())
    }

    /// Counts all replies that were ever written, because tests never trim an inbox.
    pub async fn total(&mut self) -> usize {
        redis::cmd("XLEN").arg(&self.key).query_async(&mut self.connection).await.unwrap()
    }
}

pub async fn submit_all(server: &RedisServer, keys: &Keys, turns: &[Value]) {
    let mut connection = server.connection().await;
    for chunk in turns.chunks(MESSAGES_MAX) {
        let mut pipe = redis::pipe();
        for turn in chunk {
            pipe.cmd("XADD").arg(keys.key("turns")).arg("*").arg("turn").arg(turn.to_string()).ignore();
        }
        let () = pipe.query_async(&mut connection).await.unwrap();
    }
}
