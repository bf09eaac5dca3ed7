//! The Redis server that is measured.

use std::ops::Sub;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;
use tickfleet_ops::redis_server::{PrivateRedis, ServerOptions};
use tickfleet_store::Connection;

use super::Aof;

pub(super) const NAMESPACE: &str = "tickfleet-bench";
pub(super) const PREFIX: &str = "{tickfleet-bench:0}:";

pub(super) struct Server {
    pub(super) url: String,
    redis: PrivateRedis,
    dir: PathBuf,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Cpu {
    pub(super) seconds: f64,
}

impl Sub for Cpu {
    type Output = Self;
    fn sub(self, before: Self) -> Self {
        Self { seconds: self.seconds - before.seconds }
    }
}

impl Server {
    pub(super) async fn start(aof: Aof) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("tickfleet-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let fsync = if aof == Aof::Always { "always" } else { "everysec" };
        let extra_args = vec!["--appendfsync".to_owned(), fsync.to_owned()];
        let options = ServerOptions { appendonly: aof != Aof::No, extra_args, ..ServerOptions::new(&dir) };
        let redis = PrivateRedis::start(options).await.context("starting a private Redis")?;
        Ok(Self { url: redis.url(), redis, dir })
    }

    /// The response timeout exceeds the longest blocking read of the benchmark.
    pub(super) async fn connection(&self) -> Result<MultiplexedConnection> {
        Ok(Connection::open(&self.url)?.dedicated(Duration::from_secs(25)).await?)
    }

    pub(super) async fn info(&self, section: &str) -> Result<String> {
        Ok(redis::cmd("INFO").arg(section).query_async(&mut self.connection().await?).await?)
    }

    pub(super) async fn cpu(&self) -> Result<Cpu> {
        let info = self.info("cpu").await?;
        Ok(Cpu { seconds: field(&info, "used_cpu_user") + field(&info, "used_cpu_sys") })
    }

    /// Makes the finished records expire at once, because the run is shorter than `retain`. Returns NaN if Redis does
    /// not expire them within 10 s.
    pub(super) async fn expiry_us_per_key(&self) -> Result<f64> {
        let mut connection = self.connection().await?;
        let pattern = format!("{PREFIX}done:*");
        let mut cursor = 0_u64;
        let mut keys = Vec::new();
        while keys.len() < 50_000 {
            let scan = redis::cmd("SCAN").arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(2_000).to_owned();
            let (next, found): (u64, Vec<String>) = scan.query_async(&mut connection).await?;
            keys.extend(found);
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        let before = self.info("stats").await?;
        for chunk in keys.chunks(500) {
            let mut pipe = redis::pipe();
            for key in chunk {
                pipe.cmd("PEXPIRE").arg(key).arg(1).ignore();
            }
            pipe.query_async::<()>(&mut connection).await?;
        }
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = self.info("stats").await?;
            let expired = field(&now, "expired_keys") - field(&before, "expired_keys");
            if expired >= keys.len() as f64 * 0.98 {
                let spent =
                    field(&now, "expire_cycle_cpu_milliseconds") - field(&before, "expire_cycle_cpu_milliseconds");
                return Ok(spent * 1_000.0 / expired.max(1.0));
            }
        }
        Ok(f64::NAN)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.redis.kill9());
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

fn field(info: &str, name: &str) -> f64 {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
}
