//! Checks for `doctor` whether a Redis server is suitable for a fleet's state, from the server's own report.

use std::collections::HashMap;

use crate::connection::command::RedisCommand;
use crate::connection::pool::Pool;
use crate::connection::refusal::Refusal;
use crate::{Store, StoreError};

const STAND_INS: [(&str, &str); 3] =
    [("Valkey", "valkey_version"), ("Dragonfly", "dragonfly_version"), ("Kvrocks", "kvrocks_version")];

/// A field is `None` if the server does not report the value. Managed services hide some values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerFacts {
    pub product: String,
    /// For example `7.0.15`.
    pub version: String,
    /// `standalone`, `cluster` or `sentinel`.
    pub mode: String,
    /// `master` or `slave`.
    pub role: String,
    /// With any other value than `noeviction`, the server may remove data of the fleet.
    pub maxmemory_policy: String,
    pub used_memory: u64,
    /// In bytes; 0 means unlimited.
    pub maxmemory: u64,
    pub aof: Option<bool>,
    /// `always`, `everysec` or `no`.
    pub fsync: Option<String>,
    pub aof_write_ok: bool,
    /// For example `3600 1 300 100`; empty means never.
    pub save: Option<String>,
    pub replicas: Option<u64>,
    /// Since 1970.
    pub time_ms: i64,
    pub default_user: DefaultUser,
    pub refused: Vec<String>,
}

/// Whether the user `default` may run the commands in the append-only file. A server reads the file with the
/// permissions of this user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DefaultUser {
    /// The server cannot check the permissions.
    #[default]
    Unknown,
    /// The user of the connection may not check the permissions.
    NotAllowed,
    Loads,
    Refuses(String),
}

impl ServerFacts {
    /// The first two numbers of the version; zeros if they cannot be read.
    #[must_use]
    pub fn release(&self) -> (u32, u32) {
        let mut numbers = self.version.split('.').map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

impl Pool {
    pub async fn server(&self) -> Result<ServerFacts, StoreError> {
        let mut refused = Vec::new();
        let info = self.query::<String>("server", &redis::cmd("INFO")).await;
        let facts = facts(&if_allowed("INFO", info, &mut refused)?.unwrap_or_default());
        let time = self.time_ms().await;
        let fsync = self.setting("appendfsync").await;
        let save = self.setting("save").await;
        Ok(ServerFacts {
            time_ms: if_allowed("TIME", time, &mut refused)?.unwrap_or_default(),
            fsync: if_allowed("CONFIG GET", fsync, &mut refused)?.flatten(),
            save: if_allowed("CONFIG GET", save, &mut refused)?.flatten(),
            refused,
            ..facts
        })
    }

    async fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        let command = redis::cmd("CONFIG").arg("GET").arg(name).to_owned();
        Ok(self.query::<HashMap<String, String>>("setting", &command).await?.remove(name))
    }

    pub async fn default_user(&self) -> Result<DefaultUser, StoreError> {
        // No fleet uses this key. Redis only reports whether it would permit the command.
        const KEY: &str = "{tickfleet-doctor}:dry-run";
        const LOGGED: [&[&str]; 9] = [
            &["MULTI"],
            &["EXEC"],
            &["HSET", KEY, "a", "b"],
            &["ZADD", KEY, "1", "a"],
            &["XADD", KEY, "1-1", "a", "b"],
            &["XGROUP", "CREATE", KEY, "a", "0"],
            &["SET", KEY, "a"],
            &["DEL", KEY],
            &["PEXPIREAT", KEY, "1"],
        ];
        for command in LOGGED {
            let asked = redis::cmd("ACL").arg("DRYRUN").arg("default").arg(command).to_owned();
            match self.query::<String>("dry_run", &asked).await {
                Ok(reply) if reply == "OK" => {}
                Ok(reply) => return Ok(DefaultUser::Refuses(reply)),
                Err(error) if error.refusal() == Some(Refusal::Rights) => return Ok(DefaultUser::NotAllowed),
                Err(StoreError::Verb { source, .. }) if !source.is_io_error() && !source.is_timeout() => {
                    return Ok(DefaultUser::Unknown);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(DefaultUser::Loads)
    }

    /// Since 1970.
    pub async fn time_ms(&self) -> Result<i64, StoreError> {
        let (seconds, micros): (i64, i64) = self.query("time", &redis::cmd("TIME")).await?;
        Ok(seconds * 1_000 + micros / 1_000)
    }

    /// If the server does not support or permit functions, loads the function's text as a script.
    pub async fn load_function(&self) -> Result<(), StoreError> {
        let function = crate::seam::redis::function();
        let word = "commit";
        let load = redis::cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(&function.source).to_owned();
        if self.query::<String>(word, &load).await.is_ok() {
            return Ok(());
        }
        self.query::<String>(word, redis::cmd("SCRIPT").arg("LOAD").arg(&function.script.source)).await.map(drop)
    }
}

impl Store {
    /// Only shard time changes: the test write is a `SET` with `XX` of a key that never exists. Full memory does not
    /// count as a failure, because accepted work still runs. [`StoreError::refusal`] has the reason of a refusal.
    pub async fn probe(&self) -> Result<(), StoreError> {
        self.run_time_config().await?;
        if self.is_in_memory() {
            return Ok(());
        }
        let command = redis::cmd("SET").arg(self.keys.prefix()).arg("").arg("XX").to_owned();
        match self.connection.query::<Option<String>>(RedisCommand::Probe, &command).await {
            Err(error) if error.refusal() != Some(Refusal::Memory) => Err(error),
            _ => Ok(()),
        }
    }
}

/// `None` if the server refuses the command, because managed services forbid some commands and users may lack
/// permissions. Fails only if the connection is broken, or has no login.
fn if_allowed<T>(
    command: &str,
    answer: Result<T, StoreError>,
    refused: &mut Vec<String>,
) -> Result<Option<T>, StoreError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(StoreError::Verb { verb, source }) if source.is_io_error() || source.is_timeout() || is_login(&source) => {
            Err(StoreError::Verb { verb, source })
        }
        Err(StoreError::Verb { source, .. }) => {
            let line = format!("{command}: {source}");
            if !refused.contains(&line) {
                refused.push(line);
            }
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn is_login(error: &redis::RedisError) -> bool {
    matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

fn facts(info: &str) -> ServerFacts {
    let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let text = |name: &str| fields.get(name).copied().unwrap_or_default().to_owned();
    let number = |name: &str| fields.get(name).and_then(|value| value.parse().ok()).unwrap_or(0);
    // Other products report their own version in addition to the compatible Redis version.
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
        aof_write_ok: fields.get("aof_last_write_status").is_none_or(|status| *status == "ok"),
        replicas: fields.get("connected_slaves").and_then(|count| count.parse().ok()),
        ..ServerFacts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_product_is_identified_by_its_own_version_field() {
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
