//! Circuit breakers of tools. Each process has its own breakers: its own network may be the cause of failures, and
//! asking Redis costs time. Failures of one tenant stop only that tenant's calls, because the arguments may be the
//! cause.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_model::retry::breaker::{Breaker, BreakerPermit, BreakerRejection, BreakerSettings};
use tickfleet_model::{CallId, TenantId};
use tickfleet_ops::metrics::{BreakerEvent, Metrics};
use tokio::time::Instant;

use crate::calls::attempt::HandlerEnd;
use crate::tools::ToolFailure;

/// The number of tenants that have their own breaker for a failing tool. Failures of further tenants count only for the
/// tool.
const TENANTS_MAX: usize = 1_000;
/// During a trial, other calls check again after the breaker's open time divided by this number.
const RECHECKS_PER_COOLDOWN: u32 = 4;

/// Clones share their state.
#[derive(Debug, Clone)]
pub struct Breakers {
    settings: Option<BreakerSettings>,
    tools: Arc<Mutex<HashMap<String, ToolBreakers>>>,
    since: Instant,
}

#[derive(Debug, Default)]
struct ToolBreakers {
    /// Counts the failures of all tenants. One tenant contributes at most half of the failures that open this breaker.
    all: Breaker,
    of_tenants: HashMap<TenantId, Breaker>,
    /// The duration of the longest of the attempts that failed in a row.
    slowest: Duration,
}

/// If the permit is dropped without a report, the call counts neither as success nor as failure.
#[derive(Debug)]
pub(crate) struct CallPermit<'a> {
    breakers: &'a Breakers,
    tool: &'a str,
    tenant: &'a TenantId,
    /// The permits for the whole tool and for the tenant. `None` if breakers are disabled, or after a report.
    given: Option<(BreakerPermit, BreakerPermit)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenBreaker {
    pub(crate) left: Duration,
    pub(crate) settings: BreakerSettings,
    pub(crate) slowest: Duration,
}

impl OpenBreaker {
    /// Spreads the checks over half of the open time, so that a recovered tool does not receive all calls at once.
    pub(crate) fn recheck_after(&self, call: &CallId) -> Duration {
        let spread = self.settings.cooldown / 2;
        let place = crc32fast::hash(call.to_string().as_bytes());
        self.left + spread.mul_f64(f64::from(place) / f64::from(u32::MAX))
    }

    pub(crate) fn why(&self, tool: &str) -> String {
        format!("{tool} failed {} times in a row", self.settings.failures_max)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolHealth {
    Responds,
    /// Only for a failure that would affect other calls too.
    Failed,
    Unknown,
}

impl Breakers {
    #[must_use]
    pub fn new(settings: Option<BreakerSettings>) -> Self {
        Self { settings, tools: Arc::default(), since: Instant::now() }
    }

    pub(crate) fn permit<'a>(
        &'a self,
        tool: &'a str,
        tenant: &'a TenantId,
        metrics: &Metrics,
    ) -> Result<CallPermit<'a>, OpenBreaker> {
        const AS_ALWAYS: BreakerPermit = BreakerPermit { is_trial: false };
        let permit = |given| CallPermit { breakers: self, tool, tenant, given };
        let Some(settings) = self.settings else { return Ok(permit(None)) };
        let now = self.since.elapsed();
        let mut tools = self.tools.lock();
        let Some(of_tool) = tools.get_mut(tool) else { return Ok(permit(Some((AS_ALWAYS, AS_ALWAYS)))) };
        let slowest = of_tool.slowest;
        let open_breaker = |rejection| OpenBreaker {
            left: match rejection {
                BreakerRejection::Open(left) => left,
                BreakerRejection::TrialInProgress => settings.cooldown / RECHECKS_PER_COOLDOWN,
            },
            settings,
            slowest,
        };
        let all = of_tool.all.acquire(now).map_err(open_breaker)?;
        let own = of_tool.of_tenants.get_mut(tenant).map_or(Ok(AS_ALWAYS), |own| own.acquire(now));
        let own = own.map_err(|rejection| {
            of_tool.all.release(all);
            open_breaker(rejection)
        })?;
        if all.is_trial || own.is_trial {
            metrics.breaker(tool, BreakerEvent::Tried);
        }
        Ok(permit(Some((all, own))))
    }
}

fn open_count(tools: &HashMap<String, ToolBreakers>, now: Duration) -> usize {
    let has_open = |of: &&ToolBreakers| of.all.is_open(now) || of.of_tenants.values().any(|own| own.is_open(now));
    tools.values().filter(has_open).count()
}

impl<'a> CallPermit<'a> {
    pub(crate) const fn always(breakers: &'a Breakers, tool: &'a str, tenant: &'a TenantId) -> Self {
        Self { breakers, tool, tenant, given: None }
    }

    pub(crate) fn report(mut self, health: ToolHealth, took: Duration, metrics: &Metrics) {
        let (Some(given), Some(settings)) = (self.given.take(), self.breakers.settings) else { return };
        let now = self.breakers.since.elapsed();
        let mut tools = self.breakers.tools.lock();
        match health {
            ToolHealth::Unknown => {
                if let Some(of_tool) = tools.get_mut(self.tool) {
                    of_tool.release(self.tenant, given);
                }
            }
            ToolHealth::Responds => {
                let Some(of_tool) = tools.get_mut(self.tool) else { return };
                of_tool.answered(self.tenant, given, now);
                if of_tool.is_new() {
                    tools.remove(self.tool);
                }
                if given.0.is_trial || given.1.is_trial {
                    tracing::info!(tool = self.tool, "circuit breaker closed; tool responds again");
                    metrics.breaker(self.tool, BreakerEvent::Closed);
                    metrics.tool_breakers_open(open_count(&tools, now));
                }
            }
            ToolHealth::Failed => {
                let of_tool = tools.entry(self.tool.to_owned()).or_default();
                of_tool.slowest = of_tool.slowest.max(took);
                if of_tool.failed(self.tenant, given, now, settings) {
                    let failures = settings.failures_max;
                    let cooldown = settings.cooldown;
                    tracing::warn!(
                        tool = self.tool,
                        failures,
                        ?cooldown,
                        "circuit breaker open after consecutive failures; calls wait"
                    );
                    metrics.breaker(self.tool, BreakerEvent::Opened);
                    metrics.tool_breakers_open(open_count(&tools, now));
                }
            }
        }
    }
}

impl ToolBreakers {
    /// True if the failure opens a breaker that was closed.
    fn failed(
        &mut self,
        tenant: &TenantId,
        (all, own): (BreakerPermit, BreakerPermit),
        now: Duration,
        settings: BreakerSettings,
    ) -> bool {
        let has_own_breaker = self.of_tenants.len() < TENANTS_MAX || self.of_tenants.contains_key(tenant);
        let own_breaker = has_own_breaker.then(|| self.of_tenants.entry(tenant.clone()).or_default());
        let of_own = own_breaker.map(|breaker| (breaker.record_failure(own, None, now, settings), breaker.failures()));
        // A single tenant never opens the breaker of the whole tool.
        if all.is_trial || of_own.is_none_or(|(_, failures)| failures <= settings.failures_max / 2) {
            return self.all.record_failure(all, None, now, settings) || of_own.is_some_and(|(opened, _)| opened);
        }
        self.all.release(all);
        of_own.is_some_and(|(opened, _)| opened)
    }

    fn answered(&mut self, tenant: &TenantId, (all, own): (BreakerPermit, BreakerPermit), now: Duration) {
        self.all.record_success(all, now);
        if let Some(breaker) = self.of_tenants.get_mut(tenant) {
            breaker.record_success(own, now);
            if breaker.is_new() {
                self.of_tenants.remove(tenant);
            }
        }
    }

    fn is_new(&self) -> bool {
        self.all.is_new() && self.of_tenants.is_empty()
    }

    fn release(&mut self, tenant: &TenantId, (all, own): (BreakerPermit, BreakerPermit)) {
        self.all.release(all);
        if let Some(breaker) = self.of_tenants.get_mut(tenant) {
            breaker.release(own);
        }
    }
}

impl Drop for CallPermit<'_> {
    fn drop(&mut self) {
        let Some(given) = self.given.take() else { return };
        if let Some(of_tool) = self.breakers.tools.lock().get_mut(self.tool) {
            of_tool.release(self.tenant, given);
        }
    }
}

/// A failure that asks for a later retry counts as a response. A timeout shows nothing if the call's time limit was
/// shorter than the tool's.
pub(crate) fn health_of(ran: &HandlerEnd, was_cut_short: bool) -> ToolHealth {
    match ran {
        HandlerEnd::TimedOut if was_cut_short => ToolHealth::Unknown,
        HandlerEnd::TimedOut => ToolHealth::Failed,
        HandlerEnd::Unfit(_) | HandlerEnd::Returned(Ok(Ok(_))) => ToolHealth::Responds,
        HandlerEnd::Returned(Ok(Err(failure))) => match failure {
            ToolFailure::Transient { retry_after: None, .. } => ToolHealth::Failed,
            ToolFailure::Transient { .. } | ToolFailure::Ended { .. } | ToolFailure::Waits { .. } => {
                ToolHealth::Responds
            }
            // The cause is a bug, or no service was called.
            ToolFailure::InvalidArguments { .. } | ToolFailure::Internal { .. } | ToolFailure::NotConfigured { .. } => {
                ToolHealth::Unknown
            }
        },
        HandlerEnd::Returned(Err(_)) | HandlerEnd::Cancelled | HandlerEnd::MustStop => ToolHealth::Unknown,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    const SETTINGS: BreakerSettings = BreakerSettings { failures_max: 4, cooldown: Duration::from_secs(10) };
    const TRY: Duration = Duration::from_millis(300);

    struct World {
        breakers: Breakers,
        metrics: Metrics,
    }

    impl World {
        fn new() -> Self {
            Self { breakers: Breakers::new(Some(SETTINGS)), metrics: Metrics::new().unwrap() }
        }

        fn is_called(&self, tenant: &str) -> bool {
            let tenant = TenantId::new(tenant).unwrap();
            self.breakers.permit("post", &tenant, &self.metrics).is_ok()
        }

        fn report(&self, tenant: &str, health: ToolHealth) {
            let tenant = TenantId::new(tenant).unwrap();
            self.breakers.permit("post", &tenant, &self.metrics).unwrap().report(health, TRY, &self.metrics);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_one_tenant_open_the_breaker_only_for_that_tenant() {
        let world = World::new();
        for _ in 0..SETTINGS.failures_max {
            world.report("acme", ToolHealth::Failed);
        }
        assert!(!world.is_called("acme"));
        assert!(world.is_called("globex"));
        world.report("globex", ToolHealth::Failed);
        assert!(world.is_called("initech"), "the failures of one tenant, and one of another, are no reason");
        world.report("globex", ToolHealth::Failed);
        assert!(!world.is_called("initech"), "two tenants had half of them each");
        tokio::time::advance(SETTINGS.cooldown).await;
        world.report("initech", ToolHealth::Responds);
        assert!(world.is_called("initech") && world.is_called("globex"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_resets_and_removes_the_breaker() {
        let world = World::new();
        for _ in 0..3 {
            for _ in 1..SETTINGS.failures_max {
                world.report("acme", ToolHealth::Failed);
            }
            world.report("acme", ToolHealth::Responds);
        }
        assert!(world.is_called("acme"));
        assert!(world.breakers.tools.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_inconclusive_trial_allows_the_next_trial() {
        let world = World::new();
        for _ in 0..SETTINGS.failures_max {
            world.report("acme", ToolHealth::Failed);
        }
        tokio::time::advance(SETTINGS.cooldown).await;
        let acme = TenantId::new("acme").unwrap();
        let trial = world.breakers.permit("post", &acme, &world.metrics).unwrap();
        let open_breaker = world.breakers.permit("post", &acme, &world.metrics).unwrap_err();
        assert_eq!((open_breaker.left, open_breaker.slowest), (SETTINGS.cooldown / RECHECKS_PER_COOLDOWN, TRY));
        drop(trial);
        world.report("acme", ToolHealth::Unknown);
        world.report("acme", ToolHealth::Failed);
        assert!(!world.is_called("acme"));
    }

    #[test]
    fn rechecks_of_an_open_breaker_are_staggered() {
        let open_breaker = OpenBreaker { left: Duration::from_secs(3), settings: SETTINGS, slowest: TRY };
        let call = |position| CallId { turn: tickfleet_model::TurnId::new("t1").unwrap(), position };
        let after: Vec<Duration> = (0..8).map(|position| open_breaker.recheck_after(&call(position))).collect();
        assert!(
            after.iter().all(|after| (Duration::from_secs(3)..=Duration::from_secs(8)).contains(after)),
            "{after:?}"
        );
        assert!(after.windows(2).all(|pair| pair[0] != pair[1]), "{after:?}");
    }
}
