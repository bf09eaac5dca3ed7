//! The facts that a Redis server says of itself: whether it is fit to hold a fleet's state. Read by `doctor`.

use std::collections::HashMap;

use crate::connection::pool::Pool;
use crate::{Scripts, StoreError};

/// Products that speak Redis' protocol, and the field that tells them.
const STAND_INS: [(&str, &str); 3] =
    [("Valkey", "valkey_version"), ("Dragonfly", "dragonfly_version"), ("Kvrocks", "kvrocks_version")];

/// A server's own account of itself. What it does not tell (managed services hide some) is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerFacts {
    /// `Redis` or `Valkey`, or what else says that it stands in for them.
    pub product: String,
    /// Its version, `7.0.15`.
    pub version: String,
    /// `standalone`, `cluster` or `sentinel`.
    pub mode: String,
    /// `master` or `slave`.
    pub role: String,
    /// The policy that it follows when memory is full; only `noeviction` loses nothing.
    pub maxmemory_policy: String,
    /// Bytes in use.
    pub used_memory: u64,
    /// Bytes allowed; 0 means no bound.
    pub maxmemory: u64,
    /// True if it keeps an append-only file; none where it does not tell.
    pub aof: Option<bool>,
    /// When that file reaches the disk: `always`, `everysec` or `no`.
    pub fsync: Option<String>,
    /// True if its last write of that file succeeded.
    pub aof_write_ok: bool,
    /// When it saves snapshots (`3600 1 300 100`); empty for never.
    pub save: Option<String>,
    /// Replicas that follow it; none where it does not tell.
    pub replicas: Option<u64>,
    /// Its clock, ms since the epoch.
    pub time_ms: i64,
}

impl ServerFacts {
    /// The version's first two numbers; zeros where they cannot be read.
    #[must_use]
    pub fn release(&self) -> (u32, u32) {
        let mut numbers = self.version.split('.').map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

impl Pool {
    /// Asks the server about itself.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn server(&self) -> Result<ServerFacts, StoreError> {
        let facts = facts(&self.query::<String>("server", &redis::cmd("INFO")).await?);
        Ok(ServerFacts {
            time_ms: self.time_ms().await?,
            fsync: self.setting("appendfsync").await?,
            save: self.setting("save").await?,
            ..facts
        })
    }

    /// One of the server's settings; none where it does not tell.
    async fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        let command = redis::cmd("CONFIG").arg("GET").arg(name).to_owned();
        match self.query::<HashMap<String, String>>("setting", &command).await {
            Ok(mut found) => Ok(found.remove(name)),
            // Managed services rename or forbid CONFIG; that is no failure of the server.
            Err(StoreError::Verb { source, .. }) if !source.is_io_error() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The time of the server's clock, ms since the epoch.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn time_ms(&self) -> Result<i64, StoreError> {
        let (seconds, micros): (i64, i64) = self.query("time", &redis::cmd("TIME")).await?;
        Ok(seconds * 1_000 + micros / 1_000)
    }

    /// Loads every script; answers how many there are, or which one the server refuses, and why.
    ///
    /// # Errors
    /// [`StoreError::Verb`] with the verb whose script does not compile there.
    pub async fn load_scripts(&self) -> Result<usize, StoreError> {
        let scripts = Scripts::embedded();
        let mut loaded = 0;
        for (verb, source) in scripts.iter() {
            self.query::<String>(verb, redis::cmd("SCRIPT").arg("LOAD").arg(source)).await?;
            loaded += 1;
        }
        Ok(loaded)
    }
}

fn facts(info: &str) -> ServerFacts {
    let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let text = |name: &str| fields.get(name).copied().unwrap_or_default().to_owned();
    let number = |name: &str| fields.get(name).and_then(|value| value.parse().ok()).unwrap_or(0);
    // Others tell their own version beside the Redis version that they stand in for.
    let own = |(product, field): &(&str, &str)| Some(((*product).to_owned(), (*fields.get(field)?).to_owned()));
    let other = STAND_INS.iter().find_map(own);
    let (product, version) = other.unwrap_or_else(|| ("Redis".to_owned(), text("redis_version")));
    ServerFacts {
        product,
        version,
        mode: fields.get("redis_mode").or(fields.get("server_mode")).copied().unwrap_or("standalone").to_owned(),
        role: text("role"),
        maxmemory_policy: text("maxmemory_policy"),
        used_memory: number("used_memory"),
        maxmemory: number("maxmemory"),
        aof: fields.get("aof_enabled").map(|enabled| *enabled == "1"),
        fsync: None,
        aof_write_ok: fields.get("aof_last_write_status").is_none_or(|status| *status == "ok"),
        save: None,
        replicas: fields.get("connected_slaves").and_then(|count| count.parse().ok()),
        time_ms: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_products_are_told_apart_by_their_own_version() {
        let redis = facts("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\naof_enabled:1\r\n");
        assert_eq!((redis.product.as_str(), redis.release(), redis.aof), ("Redis", (7, 0), Some(true)));
        let valkey = facts("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.0\r\n");
        assert_eq!((valkey.product.as_str(), valkey.release()), ("Valkey", (9, 1)));
        let other = facts("redis_version:7.4.0\r\ndragonfly_version:df-v1.30.0\r\n");
        assert_eq!(other.product, "Dragonfly");
        let hidden = facts("");
        assert_eq!((hidden.release(), hidden.aof, hidden.replicas), ((0, 0), None, None));
    }
}
