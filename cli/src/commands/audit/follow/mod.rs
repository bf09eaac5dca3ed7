//! `tickfleet audit export --follow`. A file stores the position itself, so it contains each entry exactly once. Other
//! destinations get each entry at least once, and repeated entries have the same IDs.

mod batch_text;
mod destination;
mod file;
mod otlp;
mod stdout;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tickfleet_client::audit::{LogBatch, LogPosition, begin, next};
use tickfleet_config::SealKey;
use tickfleet_config::units::parse_size;
use tickfleet_model::ConsumerId;
use tickfleet_model::retry::DoublingDelay;
use tickfleet_ops::metrics::{Metrics, ProcessRole};
use tickfleet_ops::progress::{LoopHandle, Progress};
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_proof::lines::Header;
use tickfleet_store::{Checkpoint, Follower, Store, StoreError, incarnation};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::fleet::serve_probes;
use crate::setup::Setup;
use batch_text::SendError;
pub(super) use destination::Destination;
use destination::Sink;

const EVERY: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(30);
/// After this time (ms) without a renewal, another exporter with the same name takes over.
const LEASE_MS: u64 = 15_000;
/// A batch that takes longer has stalled. Each request to a destination has a shorter time limit.
const GAP_MAX: Duration = Duration::from_secs(120);

/// Options of a continuous export.
#[derive(Debug, Args)]
pub(crate) struct Follow {
    /// Continue with new entries until SIGTERM, to a file, to stdout, or to otlp:URL of a collector.
    #[arg(long, conflicts_with_all = ["tenant", "since", "until"], requires = "to")]
    pub(super) follow: bool,
    /// Name under which Redis stores the position of stdout and otlp. Only one process per name exports.
    #[arg(long, value_name = "NAME", requires = "follow", value_parser = name)]
    name: Option<String>,
    /// Size at which a file is closed and numbered.
    #[arg(long, value_name = "SIZE", requires = "follow", default_value = "100MiB", value_parser = size)]
    max_size: u64,
    /// Files to keep, including the current one. The oldest is deleted.
    #[arg(long, value_name = "COUNT", requires = "follow", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(2..=100_000))]
    max_files: u32,
}

pub(crate) fn name(text: &str) -> Result<String, String> {
    let fits = (1..=64).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if fits { Ok(text.to_owned()) } else { Err("expected up to 64 letters, digits, -, _ or .".to_owned()) }
}

fn size(text: &str) -> Result<u64, String> {
    let size = parse_size(text).filter(|size| *size >= 1 << 10);
    size.ok_or_else(|| "expected a size of at least 1KiB, such as 100MiB".to_owned())
}

struct Shard {
    store: Store,
    position: LogPosition,
    /// Redis stores this position; empty if the destination stores positions.
    stored_position: String,
    /// The age of the oldest entry that is not exported yet.
    age: Duration,
}

struct Exporter {
    shards: Vec<Shard>,
    sink: Sink,
    name: String,
    process: ConsumerId,
    metrics: Arc<Metrics>,
    header: Header,
    has_logged_standby: bool,
}

enum StepResult {
    MoreEntries,
    /// No entries are left, or another process exports them.
    Idle,
}

pub(super) async fn run(setup: &Setup, args: &Follow, to: &Destination, header: Header) -> Result<(), Failure> {
    let traces = setup.start_log()?;
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    let metrics = Arc::new(Metrics::of(ProcessRole::Exporter).map_err(Failure::failed)?);
    let stores: Vec<Store> = setup.stores()?.into_iter().map(|store| store.observed_by(metrics.clone())).collect();
    // This variable is optional.
    let headers = setup.secret("--to", &SealKey::Env("OTEL_EXPORTER_OTLP_HEADERS".into())).unwrap_or_default();
    let (sink, positions) = to.open(&header.fleet, args.max_size, args.max_files, &headers)?;
    let progress = Progress::default();
    let stopped = CancellationToken::new();
    let address = serve_probes(setup, &metrics, &progress, &stores, &stopped).await?;
    let shard = |store: Store| {
        let position = positions.get(&store.shard()).copied().unwrap_or_default();
        Shard { store, position, stored_position: String::new(), age: Duration::ZERO }
    };
    let exporter = Exporter {
        shards: stores.into_iter().map(shard).collect(),
        name: args.name.clone().unwrap_or_else(|| sink.kind().to_owned()),
        sink,
        process: incarnation("exporter", &setup.name()),
        metrics,
        header,
        has_logged_standby: false,
    };
    tracing::info!(to = %to, health = %address, redis = %setup.shown_url(), "started");
    let ended = exporter.run(&progress, &shutdown.draining).await;
    stopped.cancel();
    if let Some(traces) = traces {
        traces.flush().await;
    }
    ended
}

impl Exporter {
    async fn run(mut self, progress: &Progress, stop: &CancellationToken) -> Result<(), Failure> {
        let handle = progress.register("export", GAP_MAX);
        let mut retries = DoublingDelay::new(2 * EVERY, WAIT_MAX);
        while !stop.is_cancelled() {
            let wait = match self.round(stop, &handle).await {
                Ok(()) => {
                    retries.reset();
                    EVERY
                }
                Err(SendError::Over(why)) => return Err(Failure::failed(anyhow::anyhow!("{why}"))),
                Err(SendError::Again { why, wait }) => {
                    self.metrics.export_failed();
                    tracing::warn!(why, "audit export failed; retrying");
                    let own = retries.next_wait();
                    wait.map_or(own, |wait| wait.clamp(EVERY, WAIT_MAX * 2))
                }
            };
            handle.advanced();
            let _ = stop.run_until_cancelled(tokio::time::sleep(wait)).await;
        }
        handle.finished();
        tracing::info!("stopped");
        Ok(())
    }

    /// Catching up can take hours, so progress is reported after each batch.
    async fn round(&mut self, stop: &CancellationToken, handle: &LoopHandle) -> Result<(), SendError> {
        let mut failed = None;
        for at in 0..self.shards.len() {
            while !stop.is_cancelled() {
                let result = self.step(at).await;
                handle.advanced();
                let age = self.shards.iter().map(|shard| shard.age).max().unwrap_or_default();
                self.metrics.unexported_age(age);
                match result {
                    Ok(StepResult::MoreEntries) => {}
                    Ok(StepResult::Idle) => break,
                    Err(over @ SendError::Over(_)) => return Err(over),
                    Err(again) => {
                        failed = Some(again);
                        break;
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn step(&mut self, at: usize) -> Result<StepResult, SendError> {
        self.begin().await?;
        let Some(now_ms) = self.may_export(at).await? else { return Ok(StepResult::Idle) };
        let shard = &mut self.shards[at];
        let Some(batch) = next(&shard.store, &shard.position).await? else {
            shard.age = Duration::ZERO;
            return Ok(StepResult::Idle);
        };
        let age_ms = batch.first_ms().map_or(0, |first_ms| (now_ms - first_ms).max(0));
        shard.age = Duration::from_millis(age_ms.unsigned_abs());
        let refused = self.send(&batch).await?;
        self.record_batch(&batch, refused);
        let shard = &mut self.shards[at];
        shard.position = batch.after;
        if !batch.more {
            shard.age = Duration::ZERO;
        }
        if !self.sink.keeps_positions() {
            let before = self.shards[at].stored_position.clone();
            let after = batch.after.to_string();
            match self.checkpoint(at, &before, &after).await? {
                Checkpoint::Done { .. } => self.shards[at].stored_position = after,
                Checkpoint::Stale { position, .. } => self.adopt(at, position),
                Checkpoint::Held => return Ok(StepResult::Idle),
            }
        }
        Ok(if batch.more { StepResult::MoreEntries } else { StepResult::Idle })
    }

    /// The header contains the positions of all shards. A shard without a position starts with the entries that are in
    /// the log now.
    async fn begin(&mut self) -> Result<(), SendError> {
        if self.sink.keeps_positions() {
            for shard in self.shards.iter_mut().filter(|shard| shard.position == LogPosition::default()) {
                shard.position = begin(&shard.store).await?;
            }
        }
        Ok(())
    }

    /// Returns shard time (ms); `None` if another process exports.
    async fn may_export(&mut self, at: usize) -> Result<Option<i64>, SendError> {
        if self.sink.keeps_positions() {
            return Ok(Some(self.shards[at].store.now_ms().await?));
        }
        let stored_position = self.shards[at].stored_position.clone();
        match self.checkpoint(at, &stored_position, &stored_position).await? {
            Checkpoint::Done { now_ms } => Ok(Some(now_ms)),
            Checkpoint::Stale { now_ms, position } => {
                self.adopt(at, position);
                Ok(Some(now_ms))
            }
            Checkpoint::Held => {
                if !std::mem::replace(&mut self.has_logged_standby, true) {
                    tracing::info!(name = self.name, "another process exports under this name; on standby");
                }
                Ok(None)
            }
        }
    }

    fn adopt(&mut self, at: usize, position: String) {
        let shard = &mut self.shards[at];
        shard.position = position.parse().unwrap_or_else(|error| {
            tracing::error!(%error, "export restarts from the beginning; entries are exported again");
            LogPosition::default()
        });
        shard.stored_position = position;
    }

    async fn checkpoint(&self, at: usize, before: &str, after: &str) -> Result<Checkpoint, StoreError> {
        let follower = Follower { name: &self.name, process: &self.process, lease_ms: LEASE_MS };
        self.shards[at].store.checkpoint(follower, before, after).await
    }

    async fn send(&mut self, batch: &LogBatch) -> Result<u64, SendError> {
        if self.sink.wants_header() {
            for shard in &self.shards {
                self.header.keys.extend(shard.store.seal_keys().await?);
            }
            let first = self.shards.first();
            self.header.made_ms = match first {
                Some(shard) => shard.store.now_ms().await?,
                None => 0,
            };
            let follows = self.shards.iter().map(|shard| (shard.store.shard(), shard.position.to_string()));
            self.header.follows = follows.collect::<BTreeMap<_, _>>();
        }
        self.sink.send(&self.header, batch).await
    }

    fn record_batch(&self, batch: &LogBatch, refused: u64) {
        self.metrics.exported(batch.entries());
        self.metrics.export_refused(refused);
        let Some(lost) = batch.lost() else { return };
        self.metrics.trimmed_unexported(lost.entries);
        tracing::error!(
            shard = lost.shard,
            entries = lost.entries,
            after = lost.after,
            before = lost.before.as_deref().unwrap_or("the end"),
            recreated = lost.recreated,
            "audit entries were trimmed before export"
        );
    }
}
