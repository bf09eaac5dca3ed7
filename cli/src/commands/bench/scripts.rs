//! What Redis says of its scripts: how long one takes, and the slowest.

use std::ops::Sub;

use anyhow::Result;

use super::server::Server;

/// Slow commands are noted from here on, µs.
const NOTED_US: u64 = 1_000;
/// Slow commands that are kept: more than a phase of a minute has.
const NOTED_MAX: u64 = 100_000;

/// Scripts that ran, and the time that they took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Scripts {
    calls: f64,
    us: f64,
}

impl Sub for Scripts {
    type Output = Self;
    fn sub(self, before: Self) -> Self {
        Self { calls: self.calls - before.calls, us: self.us - before.us }
    }
}

impl Scripts {
    /// How many.
    pub(super) const fn calls(self) -> f64 {
        self.calls
    }

    /// What one took, ms.
    pub(super) fn mean_ms(self) -> f64 {
        self.us / self.calls.max(1.0) / 1_000.0
    }

    /// From `INFO commandstats`.
    fn of(info: &str) -> Self {
        let mut all = Self::default();
        for line in info.lines() {
            let Some((name, figures)) = line.split_once(':') else { continue };
            if !["cmdstat_evalsha", "cmdstat_eval"].contains(&name) {
                continue;
            }
            let figure = |name: &str| {
                let value = figures.split(',').find_map(|figure| figure.strip_prefix(name)?.strip_prefix('='));
                value.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
            };
            all = Self { calls: all.calls + figure("calls"), us: all.us + figure("usec") };
        }
        all
    }
}

impl Server {
    /// The scripts that ran since Redis started.
    pub(super) async fn scripts(&self) -> Result<Scripts> {
        Ok(Scripts::of(&self.info("commandstats").await?))
    }

    /// Begins to note slow commands; not on somebody's server, whose settings stay as they are.
    pub(super) async fn note_slow_commands(&self) -> Result<()> {
        if !self.is_private() {
            return Ok(());
        }
        let mut connection = self.connection().await?;
        let mut pipe = redis::pipe();
        pipe.cmd("CONFIG").arg("SET").arg("slowlog-log-slower-than").arg(NOTED_US).ignore();
        pipe.cmd("CONFIG").arg("SET").arg("slowlog-max-len").arg(NOTED_MAX).ignore();
        pipe.cmd("SLOWLOG").arg("RESET").ignore();
        Ok(pipe.query_async(&mut connection).await?)
    }

    /// The slowest command since then, ms. None where none took a millisecond, and on somebody's server.
    pub(super) async fn slowest_ms(&self) -> Result<Option<f64>> {
        if !self.is_private() {
            return Ok(None);
        }
        let noted = redis::cmd("SLOWLOG").arg("GET").arg(NOTED_MAX).to_owned();
        let noted: Vec<Vec<redis::Value>> = noted.query_async(&mut self.connection().await?).await?;
        let took = |entry: &Vec<redis::Value>| match entry.get(2) {
            Some(redis::Value::Int(us)) => us.unsigned_abs(),
            _ => 0,
        };
        Ok(noted.iter().map(took).max().map(|us| us as f64 / 1_000.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_those_by_text_and_by_digest() {
        let info = "# Commandstats\r\ncmdstat_evalsha:calls=10,usec=25000,usec_per_call=2500.00\r\n\
                    cmdstat_eval:calls=2,usec=5000,usec_per_call=2500.00\r\ncmdstat_xadd:calls=7,usec=70\r\n";
        let since = Scripts::of(info) - Scripts { calls: 2.0, us: 10_000.0 };
        assert_eq!((since.calls, since.us, since.mean_ms()), (10.0, 20_000.0, 2.0));
        assert_eq!(Scripts::of("").mean_ms(), 0.0);
    }
}
