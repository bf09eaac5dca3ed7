//! Redis' statistics about commits and slow commands. A commit is a call of a Redis function, or of a script if the
//! server has no functions.

use std::ops::Sub;

use anyhow::Result;
use redis::Value;

use super::server::Server;

const COMMITS: [&str; 3] = ["fcall", "evalsha", "eval"];
const NOTED_US: u64 = 1_000;
/// Entries in Redis' slow log. One phase logs fewer.
const NOTED_MAX: u64 = 100_000;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Slow {
    /// `commit`, or Redis' name of the command.
    pub(super) command: String,
    pub(super) ms: f64,
}

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
    pub(super) fn mean_ms(self) -> f64 {
        self.us / self.calls.max(1.0) / 1_000.0
    }

    fn of(info: &str) -> Self {
        let mut all = Self::default();
        for line in info.lines() {
            let Some((name, figures)) = line.split_once(':') else { continue };
            if !name.strip_prefix("cmdstat_").is_some_and(|command| COMMITS.contains(&command)) {
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
    pub(super) async fn scripts(&self) -> Result<Scripts> {
        Ok(Scripts::of(&self.info("commandstats").await?))
    }

    pub(super) async fn note_slow_commands(&self) -> Result<()> {
        let mut connection = self.connection().await?;
        let mut pipe = redis::pipe();
        pipe.cmd("CONFIG").arg("SET").arg("slowlog-log-slower-than").arg(NOTED_US).ignore();
        pipe.cmd("CONFIG").arg("SET").arg("slowlog-max-len").arg(NOTED_MAX).ignore();
        pipe.cmd("SLOWLOG").arg("RESET").ignore();
        Ok(pipe.query_async(&mut connection).await?)
    }

    /// `None` if no command took `NOTED_US`.
    pub(super) async fn slowest_command(&self) -> Result<Option<Slow>> {
        let noted = redis::cmd("SLOWLOG").arg("GET").arg(NOTED_MAX).to_owned();
        let noted: Vec<Vec<Value>> = noted.query_async(&mut self.connection().await?).await?;
        Ok(slowest(&noted))
    }
}

fn slowest(noted: &[Vec<Value>]) -> Option<Slow> {
    noted.iter().filter_map(|entry| slow_one(entry)).max_by(|one, other| one.ms.total_cmp(&other.ms))
}

fn slow_one(entry: &[Value]) -> Option<Slow> {
    let [_, _, Value::Int(us), Value::Array(arguments), ..] = entry else { return None };
    let Value::BulkString(word) = arguments.first()? else { return None };
    let word = String::from_utf8_lossy(word).to_lowercase();
    let command = if COMMITS.contains(&&*word) { "commit".to_owned() } else { word };
    Some(Slow { command, ms: us.unsigned_abs() as f64 / 1_000.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_count_function_and_script_calls() {
        let info = "# Commandstats\r\ncmdstat_fcall:calls=10,usec=25000,usec_per_call=2500.00\r\n\
                    cmdstat_evalsha:calls=2,usec=5000,usec_per_call=2500.00\r\ncmdstat_xadd:calls=7,usec=70\r\n";
        let since = Scripts::of(info) - Scripts { calls: 2.0, us: 10_000.0 };
        assert_eq!((since.calls, since.us, since.mean_ms()), (10.0, 20_000.0, 2.0));
        assert_eq!(Scripts::of("").mean_ms(), 0.0);
    }

    #[test]
    fn the_slowest_command_is_reported_by_name() {
        let entry = |us: i64, words: &[&str]| {
            let words = words.iter().map(|word| Value::BulkString(word.as_bytes().to_vec()));
            vec![Value::Int(1), Value::Int(2), Value::Int(us), Value::Array(words.collect())]
        };
        let noted = [
            entry(1_500, &["XREAD", "COUNT"]),
            entry(2_000, &["EVALSHA", "0a", "1"]),
            entry(7_000, &["FCALL", "commit_0a", "1"]),
        ];
        assert_eq!(slowest(&noted), Some(Slow { command: "commit".into(), ms: 7.0 }));
        assert_eq!(slowest(&[]), None);
    }
}
