//! The producer of turns, and the reader of replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;

use super::BenchArgs;
use super::server::{PREFIX, Server};

const BATCH: usize = 100;
const PATIENCE: Duration = Duration::from_secs(20);

#[allow(clippy::disallowed_methods, reason = "the edge: a bench reads the clock")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// In ms.
pub(super) struct Steady {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) turns: usize,
}

pub(super) struct Saturation {
    pub(super) turns: u64,
    pub(super) seconds: f64,
    /// Includes turns outside the measured time, because Redis' CPU time includes them.
    pub(super) all_turns: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) not_ok: u64,
}

impl Saturation {
    pub(super) fn turns_per_s(&self) -> f64 {
        self.turns as f64 / self.seconds
    }
}

pub(super) struct Load {
    producer: MultiplexedConnection,
    reader: Mutex<Replies>,
    origin: Instant,
    agents: usize,
    calls: usize,
    /// In bytes.
    padding: usize,
    next: AtomicU64,
}

struct Replies {
    connection: MultiplexedConnection,
    trimmer: MultiplexedConnection,
    last: String,
}

struct Reply {
    sent_us: u64,
    ok: bool,
}

impl Load {
    pub(super) async fn connect(server: &Server, args: &BenchArgs) -> Result<Self> {
        let bare = message("a12345", 1_000_000, args.calls_per_turn, "").len();
        let replies =
            Replies { connection: server.connection().await?, trimmer: server.connection().await?, last: "0".into() };
        Ok(Self {
            producer: server.connection().await?,
            reader: Mutex::new(replies),
            origin: now(),
            agents: args.agents,
            calls: args.calls_per_turn,
            padding: args.payload_bytes.saturating_sub(bare) / args.calls_per_turn.max(1),
            next: AtomicU64::new(0),
        })
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    async fn submit(&self, count: usize) -> Result<()> {
        let mut pipe = redis::pipe();
        let stream = format!("{PREFIX}turns");
        let at = self.now_us();
        for _ in 0..count {
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            let agent = format!("a{}", turn % self.agents as u64);
            let text = message(&agent, at, self.calls, &words(turn, self.padding));
            pipe.cmd("XADD").arg(&stream).arg("*").arg("turn").arg(text).ignore();
        }
        let mut connection = self.producer.clone();
        Ok(pipe.query_async::<()>(&mut connection).await?)
    }

    pub(super) async fn warm_up(&self) -> Result<()> {
        self.submit(1_000).await?;
        self.read_all(1_000).await
    }

    async fn read_all(&self, count: usize) -> Result<()> {
        let mut reader = self.reader.lock().await;
        let mut got = 0;
        while got < count {
            got += reader.read().await?.len();
        }
        Ok(())
    }

    pub(super) async fn steady(&self, rate: u64, duration: Duration) -> Result<Steady> {
        let mut latencies = self.latencies(rate, duration).await?;
        Ok(Steady {
            turns: latencies.len(),
            p50: percentile(&mut latencies, 0.5),
            p99: percentile(&mut latencies, 0.99),
            p999: percentile(&mut latencies, 0.999),
        })
    }

    async fn latencies(&self, rate: u64, duration: Duration) -> Result<Vec<f64>> {
        let total = usize::try_from(rate * duration.as_secs()).unwrap_or(usize::MAX);
        let produce = async {
            let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate.max(1)).unwrap_or(1));
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
            for _ in 0..total {
                ticks.tick().await;
                self.submit(1).await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        let consume = async {
            let mut reader = self.reader.lock().await;
            let mut latencies = Vec::with_capacity(total);
            while latencies.len() < total {
                let replies = reader.read().await?;
                let now_us = self.now_us();
                latencies.extend(replies.iter().map(|r| now_us.saturating_sub(r.sent_us) as f64 / 1_000.0));
            }
            Ok::<_, anyhow::Error>(latencies)
        };
        let ((), latencies) = tokio::try_join!(produce, consume)?;
        Ok(latencies)
    }

    pub(super) async fn saturate(&self, duration: Duration, window: u64) -> Result<Saturation> {
        let sent = Arc::new(AtomicU64::new(0));
        let got = Arc::new(AtomicU64::new(0));
        let finished = std::sync::atomic::AtomicBool::new(false);
        let started = now();
        // The first second fills the pipelines and is not measured.
        let from = Duration::from_secs(1);
        let upto = Duration::from_secs(1) + duration;
        let produce = async {
            while started.elapsed() < upto {
                if sent.load(Ordering::Relaxed) - got.load(Ordering::Relaxed) >= window {
                    tokio::time::sleep(Duration::from_micros(500)).await;
                    continue;
                }
                self.submit(BATCH).await?;
                sent.fetch_add(BATCH as u64, Ordering::Relaxed);
            }
            finished.store(true, Ordering::Relaxed);
            Ok::<_, anyhow::Error>(())
        };
        let consume = async {
            let mut reader = self.reader.lock().await;
            let mut seen = Seen::default();
            while !finished.load(Ordering::Relaxed) || got.load(Ordering::Relaxed) < sent.load(Ordering::Relaxed) {
                let replies = reader.read().await?;
                got.fetch_add(replies.len() as u64, Ordering::Relaxed);
                let at = started.elapsed();
                seen.take(&replies, self.now_us(), (from..upto).contains(&at));
            }
            Ok::<_, anyhow::Error>(seen)
        };
        let ((), seen) = tokio::try_join!(produce, consume)?;
        Ok(seen.saturation(duration.as_secs_f64()))
    }
}

#[derive(Default)]
struct Seen {
    all: u64,
    counted: u64,
    not_ok: u64,
    latencies: Vec<f64>,
}

impl Seen {
    fn take(&mut self, replies: &[Reply], now_us: u64, counts: bool) {
        self.all += replies.len() as u64;
        self.not_ok += replies.iter().filter(|r| !r.ok).count() as u64;
        if counts {
            self.counted += replies.len() as u64;
            self.latencies.extend(replies.iter().map(|r| now_us.saturating_sub(r.sent_us) as f64 / 1_000.0));
        }
    }

    fn saturation(mut self, seconds: f64) -> Saturation {
        Saturation {
            turns: self.counted,
            seconds,
            all_turns: self.all,
            p50_ms: percentile(&mut self.latencies, 0.5),
            p99_ms: percentile(&mut self.latencies, 0.99),
            not_ok: self.not_ok,
        }
    }
}

type Read = Option<Vec<(String, Vec<(String, Vec<String>)>)>>;

impl Replies {
    async fn read(&mut self) -> Result<Vec<Reply>> {
        let inbox = format!("{PREFIX}replies:bench:bench");
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(500).arg("BLOCK").arg(u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX));
        command.arg("STREAMS").arg(&inbox).arg(&self.last);
        let Some(found) = command.query_async::<Read>(&mut self.connection).await.context("reading replies")? else {
            bail!("no reply came for {} s", PATIENCE.as_secs());
        };
        let entries: Vec<_> = found.into_iter().flat_map(|(_, entries)| entries).collect();
        if let Some((id, _)) = entries.last() {
            self.last.clone_from(id);
        }
        let trim = redis::cmd("XTRIM").arg(&inbox).arg("MINID").arg("~").arg(&self.last).to_owned();
        trim.query_async::<()>(&mut self.trimmer).await?;
        Ok(entries.iter().map(|(_, fields)| reply(fields)).collect())
    }
}

fn reply(fields: &[String]) -> Reply {
    let text = fields.get(1).map_or("", String::as_str);
    let sent = text.split_once("\"correlation_id\":\"").and_then(|(_, rest)| rest.split_once('"')).map(|(us, _)| us);
    Reply { sent_us: sent.and_then(|us| us.parse().ok()).unwrap_or(0), ok: ok_of(fields) }
}

pub(super) fn ok_of(fields: &[String]) -> bool {
    let text = fields.get(1).map_or("", String::as_str);
    text.contains("\"success\":true") && !text.contains("\"success\":false")
}

pub(super) fn words(turn: u64, bytes: usize) -> String {
    let mut state = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut letter = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b"etaoin shrdlu cmfwyp vbgkqj xz et"[(state >> 59) as usize] as char
    };
    (0..bytes).map(|_| letter()).collect()
}

fn message(agent: &str, at_us: u64, calls: usize, padding: &str) -> String {
    let call = |i: usize| format!(r#"{{"id":"call_{i}","name":"echo","arguments":{{"text":"{padding}"}}}}"#);
    let calls: Vec<String> = (0..calls).map(call).collect();
    format!(
        r#"{{"tenant":"bench","agent":"{agent}","reply_to":"bench","correlation_id":"{at_us}","calls":[{}]}}"#,
        calls.join(",")
    )
}

/// `share` is from 0 to 1. Sorts the values, and uses the nearest-rank method.
pub(super) fn percentile(values: &mut [f64], share: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * share).ceil() as usize;
    values[index.clamp(1, values.len()) - 1]
}
