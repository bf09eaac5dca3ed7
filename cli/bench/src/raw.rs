//! The raw stream cycle: the throughput of plain Redis Streams with the same payloads, in batches of 100. The cycle is
//! XADD → XREADGROUP → variadic XACK + XADD of the result. Both streams are trimmed after each batch, as the fleet
//! trims its streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;

use super::load::{now, percentile, words};
use super::server::{PREFIX, Server};

const BATCH: usize = 100;
const WINDOW: u64 = 10_000;

pub(super) struct Raw {
    pub(super) per_s: f64,
    pub(super) p99_ms: f64,
    /// CPU time of Redis per entry.
    pub(super) redis_us: f64,
}

pub(super) async fn measure(server: &Server, payload_bytes: usize, duration: Duration) -> Result<Raw> {
    let stream = format!("{PREFIX}raw");
    let results = format!("{PREFIX}raw-results");
    let mut setup = server.connection().await?;
    redis::cmd("DEL").arg(&stream).arg(&results).query_async::<()>(&mut setup).await?;
    redis::cmd("XGROUP")
        .arg("CREATE")
        .arg(&stream)
        .arg("g")
        .arg("$")
        .arg("MKSTREAM")
        .query_async::<()>(&mut setup)
        .await?;
    let done = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let origin = now();
    let producer =
        produce(server.connection().await?, stream.clone(), payload_bytes, origin, done.clone(), stop.clone());
    let consumer =
        consume(server.connection().await?, stream.clone(), results.clone(), origin, done.clone(), stop.clone());
    let producer = tokio::spawn(producer);
    let consumer = tokio::spawn(consumer);

    // The first half second is a warm-up and is not measured.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let from = done.load(Ordering::Relaxed);
    let started = now();
    let before = server.cpu().await?;
    tokio::time::sleep(duration).await;
    let upto = done.load(Ordering::Relaxed);
    let took = started.elapsed();
    let cpu = server.cpu().await? - before;
    stop.store(true, Ordering::Relaxed);
    producer.await.context("the producer")??;
    let mut latencies = consumer.await.context("the consumer")??;
    redis::cmd("DEL").arg(&stream).arg(&results).query_async::<()>(&mut setup).await?;
    let cycles = (upto - from) as f64;
    Ok(Raw {
        per_s: cycles / took.as_secs_f64(),
        p99_ms: percentile(&mut latencies, 0.99),
        redis_us: cpu.seconds * 1e6 / cycles.max(1.0),
    })
}

async fn produce(
    mut connection: MultiplexedConnection,
    stream: String,
    payload_bytes: usize,
    origin: Instant,
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Result<()> {
    let mut sent: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        if sent - done.load(Ordering::Relaxed) > WINDOW {
            tokio::task::yield_now().await;
            continue;
        }
        let mut pipe = redis::pipe();
        let at = origin.elapsed().as_micros().to_string();
        for entry in 0..BATCH as u64 {
            let payload = words(sent + entry, payload_bytes);
            pipe.cmd("XADD").arg(&stream).arg("*").arg("at").arg(&at).arg("turn").arg(payload).ignore();
        }
        pipe.query_async::<()>(&mut connection).await?;
        sent += BATCH as u64;
    }
    Ok(())
}

type Read = Option<Vec<(String, Vec<(String, Vec<String>)>)>>;

async fn consume(
    mut connection: MultiplexedConnection,
    stream: String,
    results: String,
    origin: Instant,
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Result<Vec<f64>> {
    let mut latencies = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP")
            .arg("g")
            .arg("c")
            .arg("COUNT")
            .arg(BATCH)
            .arg("BLOCK")
            .arg(100)
            .arg("STREAMS")
            .arg(&stream)
            .arg(">");
        let Some(found) = read.query_async::<Read>(&mut connection).await? else { continue };
        let entries: Vec<_> = found.into_iter().flat_map(|(_, entries)| entries).collect();
        let Some((last, _)) = entries.last() else { continue };
        let mut pipe = redis::pipe();
        let ids: Vec<&str> = entries.iter().map(|(id, _)| id.as_str()).collect();
        pipe.cmd("XACK").arg(&stream).arg("g").arg(&ids).ignore();
        for (_, fields) in &entries {
            pipe.cmd("XADD").arg(&results).arg("*").arg("result").arg(fields.last()).ignore();
        }
        pipe.cmd("XTRIM").arg(&stream).arg("MINID").arg(last).ignore();
        pipe.cmd("XTRIM").arg(&results).arg("MAXLEN").arg("~").arg(1_000).ignore();
        pipe.query_async::<()>(&mut connection).await?;
        done.fetch_add(entries.len() as u64, Ordering::Relaxed);
        let now_us = origin.elapsed().as_micros();
        latencies.extend(entries.iter().filter_map(|(_, fields)| {
            let sent: u128 = fields.get(1)?.parse().ok()?;
            Some((now_us.saturating_sub(sent)) as f64 / 1_000.0)
        }));
    }
    Ok(latencies)
}
