//! No label names a tenant, agent, turn or task, because the number of such values is unbounded. Only the labels `tool`
//! and `rule` have values from outside, and `tool_labels.rs` bounds the number of these values.

mod breakers;
mod builder;
mod catalogue;
mod durable;
mod export;
mod gateway;
mod governance;
mod labels;
mod live;
mod models;
#[cfg(test)]
mod page;
mod redis_connections;
mod sandbox;
#[cfg(test)]
mod tests;
mod tool_labels;

use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry, TextEncoder,
};
use tokio::time::Instant;

use self::builder::MetricBuilder;
pub use self::builder::ProcessRole;
use self::catalogue as c;
pub use self::gateway::GatewayMetrics;
use self::governance::GovernanceMetrics;
pub use self::labels::{
    ApprovalEvent, BreakerEvent, CachedRead, Decision, LimitAction, LoopAction, NotificationResult, RuleAction,
    WorkStage,
};
pub use self::live::McpServer;
use self::live::{McpServers, SlotProbes, WorstLag};
use self::models::ModelMetrics;
use self::redis_connections::{RedisConnectionMetrics, RedisServerMetrics};
use self::sandbox::SandboxMetrics;
use self::tool_labels::ToolLabels;
use tickfleet_model::{Outcome, RejectionCode};
use tickfleet_store::Observer;

const DIGEST_DIGITS: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Backlog {
    /// Entries, turns or slices, depending on the stage.
    pub count: u64,
    /// Age of the oldest entry, turn or slice. `None` if the stage is empty.
    pub oldest: Option<Duration>,
}

/// A stage without work is absent from the scrape.
pub type Backlogs = Vec<(WorkStage, Backlog)>;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct RedisScrape {
    pub backlog: Backlogs,
    /// Bytes.
    pub memory_used: u64,
    /// Bytes; 0 without a limit.
    pub memory_max: u64,
    /// True if a shard rejects new work because memory is nearly full.
    pub pressure: bool,
    /// Age of the oldest unsealed audit entry. `None` if no entry waits for a seal.
    pub unsealed: Option<Duration>,
    /// Since the epoch.
    pub shard_times_ms: Vec<i64>,
}

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    tools: ToolLabels,
    inbound: IntCounterVec,
    turns_admitted: IntCounterVec,
    calls_admitted: IntCounter,
    governance: GovernanceMetrics,
    pub gateway: GatewayMetrics,
    turns_rejected: IntCounterVec,
    released: IntCounter,
    promoted: IntCounter,
    tick_lag: Gauge,
    tick_lags: WorstLag,
    tick_seconds: Histogram,
    backlog: GaugeVec,
    oldest_age: GaugeVec,
    schedule_to_start: Histogram,
    turn_seconds: Histogram,
    calls: IntCounterVec,
    call_seconds: HistogramVec,
    retries: IntCounterVec,
    leases_lost: IntCounterVec,
    reaped: IntCounter,
    fenced: IntCounterVec,
    quarantined: IntCounter,
    dead: IntCounterVec,
    slots: IntGauge,
    slots_busy: IntGauge,
    slots_now: SlotProbes,
    mcp_up: GaugeVec,
    mcp_quarantined: GaugeVec,
    mcp_now: McpServers,
    sandbox: SandboxMetrics,
    models: ModelMetrics,
    redis_commands: IntCounterVec,
    redis_seconds: HistogramVec,
    redis_errors: IntCounterVec,
    redis: RedisConnectionMetrics,
    server: RedisServerMetrics,
    policy_stale: IntCounter,
    clock_jumps: IntCounter,
    epoch_changes: IntCounter,
    state_lost: IntCounter,
    loop_progress: GaugeVec,
    config_info: GaugeVec,
    config_generation: IntGauge,
    /// Belongs to the generation in `config_generation`.
    config_digest: Mutex<String>,
    config_agents: IntGauge,
    config_tenants: IntGauge,
    tool_lists_omitted: IntGauge,
    config_reloads: IntCounterVec,
    config_successful: IntGauge,
    config_loaded: Gauge,
}

impl Metrics {
    /// Each `Metrics` has its own registry, so that a process or a test can have several.
    pub fn new() -> Result<Self, prometheus::Error> {
        Self::of(ProcessRole::Both)
    }

    /// Fails on mistakes in the catalogue, for example two metrics with the same name.
    pub fn of(role: ProcessRole) -> Result<Self, prometheus::Error> {
        let builder = MetricBuilder::new(role, &c::BUILD_INFO)?;
        let config_successful = builder.gauge(&c::CONFIG_SUCCESSFUL)?;
        config_successful.set(1);
        Ok(Self {
            tools: ToolLabels::default(),
            inbound: builder.counters(&c::INBOUND_ENTRIES)?,
            turns_admitted: builder.counters(&c::TURNS_ADMITTED)?,
            calls_admitted: builder.counter(&c::CALLS_ADMITTED)?,
            governance: GovernanceMetrics::register(&builder)?,
            gateway: GatewayMetrics::register(&builder)?,
            turns_rejected: builder.counters(&c::TURNS_REJECTED)?,
            released: builder.counter(&c::RELEASED)?,
            promoted: builder.counter(&c::PROMOTED)?,
            tick_lag: builder.float(&c::TICK_LAG)?,
            tick_lags: WorstLag::default(),
            tick_seconds: builder.histogram(&c::TICK_DURATION)?,
            backlog: builder.gauges(&c::BACKLOG)?,
            oldest_age: builder.gauges(&c::OLDEST_AGE)?,
            schedule_to_start: builder.histogram(&c::SCHEDULE_TO_START)?,
            turn_seconds: builder.histogram(&c::TURN_DURATION)?,
            calls: builder.counters(&c::CALLS)?,
            call_seconds: builder.histograms(&c::CALL_DURATION)?,
            retries: builder.counters(&c::RETRIES)?,
            leases_lost: builder.counters(&c::LEASES_LOST)?,
            reaped: builder.counter(&c::REAPED)?,
            fenced: builder.counters(&c::FENCED)?,
            quarantined: builder.counter(&c::QUARANTINED)?,
            dead: builder.counters(&c::DEAD)?,
            slots: builder.gauge(&c::SLOTS)?,
            slots_busy: builder.gauge(&c::SLOTS_BUSY)?,
            slots_now: SlotProbes::default(),
            mcp_up: builder.gauges(&c::MCP_SERVER_UP)?,
            mcp_quarantined: builder.gauges(&c::MCP_QUARANTINED)?,
            mcp_now: McpServers::default(),
            sandbox: SandboxMetrics::register(&builder)?,
            models: ModelMetrics::register(&builder)?,
            redis_commands: builder.counters(&c::REDIS_COMMANDS)?,
            redis_seconds: builder.histograms(&c::REDIS_DURATION)?,
            redis_errors: builder.counters(&c::REDIS_ERRORS)?,
            redis: RedisConnectionMetrics::register(&builder)?,
            server: RedisServerMetrics::register(&builder)?,
            policy_stale: builder.counter(&c::POLICY_STALE)?,
            clock_jumps: builder.counter(&c::CLOCK_JUMPS)?,
            epoch_changes: builder.counter(&c::EPOCH_CHANGES)?,
            state_lost: builder.counter(&c::STATE_LOST)?,
            loop_progress: builder.gauges(&c::LOOP_PROGRESS)?,
            config_info: builder.gauges(&c::CONFIG_INFO)?,
            config_generation: builder.gauge(&c::CONFIG_GENERATION)?,
            config_digest: Mutex::default(),
            tool_lists_omitted: builder.gauge(&c::TOOL_LISTS_OMITTED)?,
            config_agents: builder.gauge(&c::CONFIG_AGENTS)?,
            config_tenants: builder.gauge(&c::CONFIG_TENANTS)?,
            config_reloads: builder.counters(&c::CONFIG_RELOADS)?,
            config_successful,
            config_loaded: builder.float(&c::CONFIG_RELOADED)?,
            registry: builder.registry,
        })
    }
}

impl Metrics {
    /// `stream` is `turns` or `tasks`.
    pub fn inbound(&self, stream: &'static str, entries: u64) {
        self.inbound.with_label_values(&[labels::known(&labels::STREAMS, stream)]).inc_by(entries);
    }

    pub fn admitted(&self, decision: Decision, turns: u64) {
        self.turns_admitted.with_label_values(&[decision.as_str()]).inc_by(turns);
    }

    pub fn calls_admitted(&self, calls: u64) {
        self.calls_admitted.inc_by(calls);
    }

    pub fn refused(&self, code: &str) {
        self.turns_rejected.with_label_values(&[labels::known(&RejectionCode::WORDS, code)]).inc();
    }

    pub fn dead(&self, reason: &str) {
        self.dead.with_label_values(&[labels::known(&RejectionCode::WORDS, reason)]).inc();
    }
}

impl Metrics {
    pub fn released(&self, slices: u64, calls: u64) {
        self.released.inc_by(slices);
        self.calls_admitted.inc_by(calls);
    }

    pub fn promoted(&self, slices: u64) {
        self.promoted.inc_by(slices);
    }

    /// `lag` is the delay of the throttle queue that was due first.
    pub fn ticked(&self, shard: u32, took: Duration, lag: Duration) {
        self.tick_seconds.observe(took.as_secs_f64());
        self.tick_lags.record(shard, lag, Instant::now());
    }

    pub fn reaped(&self, entries: u64) {
        self.reaped.inc_by(entries);
    }

    pub fn quarantined(&self, slices: u64) {
        self.quarantined.inc_by(slices);
    }

    /// The lease ended although the holder was alive. `holder` is `scheduler`, `worker` or `external`.
    pub fn lease_lost(&self, holder: &'static str) {
        self.leases_lost.with_label_values(&[labels::known(&labels::HOLDERS, holder)]).inc();
    }
}

impl Metrics {
    pub fn tools_known<'a>(&self, tools: impl IntoIterator<Item = &'a str>) {
        for tool in tools {
            let tool = self.tools.label(tool, Outcome::Ok);
            for outcome in Outcome::ALL {
                self.calls.with_label_values(&[&*tool, outcome.as_str()]).inc_by(0);
            }
        }
    }

    /// `waited` is the time until a worker began the slice.
    pub fn started(&self, waited: Duration) {
        self.schedule_to_start.observe(waited.as_secs_f64());
    }

    pub fn turn_ended(&self, took: Duration) {
        self.turn_seconds.observe(took.as_secs_f64());
    }

    /// `executed` is the duration of the last attempt; `None` if the handler never ran.
    pub fn call_ended(&self, tool: &str, outcome: Outcome, executed: Option<Duration>) {
        let tool = self.tools.label(tool, outcome);
        self.calls.with_label_values(&[&*tool, outcome.as_str()]).inc();
        if let Some(executed) = executed {
            self.call_seconds.with_label_values(&[&*tool]).observe(executed.as_secs_f64());
        }
    }

    /// For a call that ended without a worker. `tool` is `None` if the tool is not configured.
    pub fn call_not_run(&self, tool: Option<&str>, outcome: Outcome) {
        let tool = self.tools.known_label(tool);
        self.calls.with_label_values(&[&*tool, outcome.as_str()]).inc();
    }

    pub fn retried(&self, reason: &'static str) {
        self.retries.with_label_values(&[labels::known(&labels::RETRIES, reason)]).inc();
    }

    /// Another process had taken over the slice. `verb` names the rejected write.
    pub fn fenced(&self, verb: &'static str) {
        self.fenced.with_label_values(&[labels::known(&labels::FENCED, verb)]).inc();
    }

    /// `busy_and_all` is called at each scrape; `None` removes the worker. The gauges are sums over the workers of the
    /// process.
    pub fn watch_slots(&self, busy_and_all: impl Fn() -> Option<(usize, usize)> + Send + Sync + 'static) {
        self.slots_now.watch(busy_and_all);
    }

    /// `servers` is called at each scrape.
    pub fn watch_mcp(&self, servers: impl Fn() -> Vec<McpServer> + Send + Sync + 'static) {
        self.mcp_now.watch(servers);
    }
}

impl Metrics {
    /// `took` is `None` for a blocking read.
    pub fn redis_answered(&self, verb: &'static str, took: Option<Duration>) {
        let verb = labels::known(&labels::VERBS, verb);
        self.redis_commands.with_label_values(&[verb]).inc();
        if let Some(took) = took {
            self.redis_seconds.with_label_values(&[verb]).observe(took.as_secs_f64());
        }
    }

    pub fn redis_error(&self, verb: &'static str) {
        self.redis_errors.with_label_values(&[labels::known(&labels::VERBS, verb)]).inc();
    }

    /// Without a response (`None`), the values are removed: an old value would hide the outage, and 0 would be wrong.
    pub fn scraped(&self, scraped: Option<&RedisScrape>) {
        self.backlog(scraped.map_or(&[], |scraped| &scraped.backlog));
        self.unsealed_age(scraped.and_then(|scraped| scraped.unsealed));
        self.server.scraped(scraped);
    }

    fn backlog(&self, places: &[(WorkStage, Backlog)]) {
        for gone in WorkStage::ALL.iter().filter(|place| !places.iter().any(|(known, _)| known == *place)) {
            // An error only means that the stage had no series.
            let _ = self.backlog.remove_label_values(&[gone.as_str()]);
            let _ = self.oldest_age.remove_label_values(&[gone.as_str()]);
        }
        for (place, backlog) in places {
            self.backlog.with_label_values(&[place.as_str()]).set(wide(backlog.count));
            let age = backlog.oldest.unwrap_or_default().as_secs_f64();
            self.oldest_age.with_label_values(&[place.as_str()]).set(age);
        }
    }

    pub fn policy_stale(&self) {
        self.policy_stale.inc();
    }

    pub fn clock_jumped(&self) {
        self.clock_jumps.inc();
    }

    pub fn epoch_changed(&self) {
        self.epoch_changes.inc();
    }

    pub fn state_lost(&self) {
        self.state_lost.inc();
    }
}

impl Metrics {
    /// In seconds since the epoch. A loop that has ended is removed, because it would look stalled.
    pub fn loops(&self, advanced_seconds: impl IntoIterator<Item = (&'static str, f64)>) {
        self.loop_progress.reset();
        for (name, seconds) in advanced_seconds {
            self.loop_progress.with_label_values(&[name]).set(seconds);
        }
    }

    /// Each shard counts generations separately, and the gauge shows the highest. 0 means unknown.
    pub fn config_in_force(&self, digest: &str, generation: u64) {
        let digits: String = digest.chars().take(DIGEST_DIGITS).collect();
        // Removes the series of the previous configuration.
        self.config_info.reset();
        self.config_info.with_label_values(&[digits.as_str()]).set(1.0);
        let generation = i64::try_from(generation).unwrap_or(i64::MAX);
        let mut known = self.config_digest.lock();
        let highest = if *known == digits { generation.max(self.config_generation.get()) } else { generation };
        self.config_generation.set(highest);
        *known = digits;
        drop(known);
        if self.config_loaded.get() == 0.0 {
            self.config_loaded.set(seconds_since_epoch());
        }
    }

    pub fn tool_lists_omitted(&self, agents: usize) {
        self.tool_lists_omitted.set(i64::try_from(agents).unwrap_or(i64::MAX));
    }

    pub fn config_admits(&self, agents: usize, tenants: usize) {
        self.config_agents.set(i64::try_from(agents).unwrap_or(i64::MAX));
        self.config_tenants.set(i64::try_from(tenants).unwrap_or(i64::MAX));
    }

    pub fn config_reloaded(&self, ok: bool) {
        let [taken, rejected] = labels::RELOADS;
        self.config_reloads.with_label_values(&[if ok { taken } else { rejected }]).inc();
        self.config_successful.set(i64::from(ok));
        if ok {
            self.config_loaded.set(seconds_since_epoch());
        }
    }

    /// A metric that cannot be encoded is left out and logged.
    #[must_use]
    pub fn render(&self) -> String {
        let (busy, all) = self.slots_now.sum();
        self.slots_busy.set(busy);
        self.slots.set(all);
        self.tick_lag.set(self.tick_lags.worst().as_secs_f64());
        self.redis.read();
        self.gateway.read();
        // Removes servers that are no longer configured.
        self.mcp_up.reset();
        self.mcp_quarantined.reset();
        for McpServer { name, up, quarantined } in self.mcp_now.now() {
            self.mcp_up.with_label_values(&[&name]).set(f64::from(u8::from(up)));
            self.mcp_quarantined.with_label_values(&[&name]).set(quarantined as f64);
        }
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "a metric cannot be written");
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Observer for Metrics {
    fn answered(&self, verb: &'static str, took: Option<Duration>) {
        self.redis_answered(verb, took);
    }

    fn failed(&self, verb: &'static str) {
        self.redis_error(verb);
    }

    fn primary_search_ended(&self, what: &str, found: Option<&str>) {
        self.primary_searched(what, found);
    }

    fn redirected(&self, answer: &'static str) {
        self.redis_redirected(answer);
    }
}

/// A plain gauge cannot be removed, so a gauge that can be absent is a vector without labels.
const fn none() -> &'static [&'static str] {
    &[]
}

#[allow(clippy::cast_precision_loss, reason = "no Redis has more than 2^53 bytes")]
const fn wide(count: u64) -> f64 {
    count as f64
}

#[allow(clippy::disallowed_methods, reason = "Prometheus wants a time stamp of its own world; nothing decides by it")]
pub(super) fn seconds_since_epoch() -> f64 {
    std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
