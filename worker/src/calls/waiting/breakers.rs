//! Circuit breakers of tools: one that failed several times in a row is not called for a while, and its calls wait without a
//! slot; then one call tries.
//!
//! They belong to the process, not to the fleet: it may be this process' network that is at fault, and asking Redis would
//! cost every call. Failures of one tenant alone stop that tenant's calls alone: what it sends may be what the tool fails at.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_model::retry::breaker::{Breaker, BreakerPermit, BreakerRejection, BreakerSettings};
use tickfleet_model::{CallId, TenantId};
use tickfleet_ops::metrics::{BreakerEvent, Metrics};
use tokio::time::Instant;

use crate::calls::attempt::Ran;
use crate::tools::ToolFailure;

/// Tenants of a tool that are told apart while it fails; failures of further ones count for the tool alone.
const TENANTS_MAX: usize = 1_000;
/// A call that finds another one trying the tool comes back after this part of the rest.
const LOOKS_A_REST: u32 = 4;

/// The breakers of a process' tools. Cloned, they are the same.
#[derive(Debug, Clone)]
pub struct Breakers {
    /// None: every tool is called, whatever it does.
    endurance: Option<BreakerSettings>,
    tools: Arc<Mutex<HashMap<String, ToolBreakers>>>,
    since: Instant,
}

/// Those of one tool that has failed last.
#[derive(Debug, Default)]
struct ToolBreakers {
    /// Failures of all tenants in a row, of each half of those at most that open it.
    all: Breaker,
    of_tenants: HashMap<TenantId, Breaker>,
    /// The longest try of the row.
    slowest: Duration,
}

/// Leave to call a tool once. Dropped without a word, it counts for nothing.
#[derive(Debug)]
pub(crate) struct Leave<'a> {
    breakers: &'a Breakers,
    tool: &'a str,
    tenant: &'a TenantId,
    /// That of the whole tool and that of the tenant; none where no breakers are wanted, or it was given back.
    given: Option<(BreakerPermit, BreakerPermit)>,
}

/// The tool is not called now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resting {
    /// For how long.
    pub(crate) left: Duration,
    /// After how many failures it rests, and for how long each time.
    pub(crate) endurance: BreakerSettings,
    /// The longest of the tries that failed in a row.
    pub(crate) slowest: Duration,
}

impl Resting {
    /// When a call that is not sent is looked at again. Those that wait come back one after the other, within half a rest: a
    /// tool that has just come back is not asked everything at once.
    pub(crate) fn looks_again_after(&self, call: &CallId) -> Duration {
        let spread = self.endurance.rest / 2;
        let place = crc32fast::hash(call.to_string().as_bytes());
        self.left + spread.mul_f64(f64::from(place) / f64::from(u32::MAX))
    }

    /// Why it rests, for whoever looks.
    pub(crate) fn why(&self, tool: &str) -> String {
        format!("{tool} failed {} times in a row", self.endurance.failures_max)
    }
}

/// What a try says of its tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It is there.
    Answered,
    /// It failed in a way that other calls would meet, too.
    Failed,
    /// Nothing.
    Nothing,
}

impl Breakers {
    /// Breakers that open by `endurance`; none: they never open.
    #[must_use]
    pub fn new(endurance: Option<BreakerSettings>) -> Self {
        Self { endurance, tools: Arc::default(), since: Instant::now() }
    }

    /// Leave to call `tool` for `tenant` now.
    pub(crate) fn leave<'a>(
        &'a self,
        tool: &'a str,
        tenant: &'a TenantId,
        metrics: &Metrics,
    ) -> Result<Leave<'a>, Resting> {
        const AS_ALWAYS: BreakerPermit = BreakerPermit { is_trial: false };
        let leave = |given| Leave { breakers: self, tool, tenant, given };
        let Some(endurance) = self.endurance else { return Ok(leave(None)) };
        let now = self.since.elapsed();
        let mut tools = self.tools.lock();
        let Some(of_tool) = tools.get_mut(tool) else { return Ok(leave(Some((AS_ALWAYS, AS_ALWAYS)))) };
        let slowest = of_tool.slowest;
        let resting = |rests| Resting {
            left: match rests {
                BreakerRejection::Open(left) => left,
                BreakerRejection::TrialInProgress => endurance.rest / LOOKS_A_REST,
            },
            endurance,
            slowest,
        };
        let all = of_tool.all.acquire(now).map_err(resting)?;
        let own = of_tool.of_tenants.get_mut(tenant).map_or(Ok(AS_ALWAYS), |own| own.acquire(now));
        let own = own.map_err(|rests| {
            of_tool.all.release(all);
            resting(rests)
        })?;
        if all.is_trial || own.is_trial {
            metrics.breaker(tool, BreakerEvent::Tried);
        }
        Ok(leave(Some((all, own))))
    }
}

/// The number of tools that rest, for some tenant at least.
fn resting(tools: &HashMap<String, ToolBreakers>, now: Duration) -> usize {
    let rests = |of: &&ToolBreakers| of.all.is_open(now) || of.of_tenants.values().any(|own| own.is_open(now));
    tools.values().filter(rests).count()
}

impl<'a> Leave<'a> {
    /// Leave for what breakers do not look at.
    pub(crate) const fn always(breakers: &'a Breakers, tool: &'a str, tenant: &'a TenantId) -> Self {
        Self { breakers, tool, tenant, given: None }
    }

    /// What the try said of the tool; it took so long.
    pub(crate) fn heard(mut self, heard: Heard, took: Duration, metrics: &Metrics) {
        let (Some(given), Some(endurance)) = (self.given.take(), self.breakers.endurance) else { return };
        let now = self.breakers.since.elapsed();
        let mut tools = self.breakers.tools.lock();
        match heard {
            Heard::Nothing => {
                if let Some(of_tool) = tools.get_mut(self.tool) {
                    of_tool.unsaid(self.tenant, given);
                }
            }
            Heard::Answered => {
                let Some(of_tool) = tools.get_mut(self.tool) else { return };
                of_tool.answered(self.tenant, given, now);
                if of_tool.is_new() {
                    tools.remove(self.tool);
                }
                if given.0.is_trial || given.1.is_trial {
                    tracing::info!(tool = self.tool, "circuit breaker closed; tool responds again");
                    metrics.breaker(self.tool, BreakerEvent::Closed);
                    metrics.tools_resting(resting(&tools, now));
                }
            }
            Heard::Failed => {
                let of_tool = tools.entry(self.tool.to_owned()).or_default();
                of_tool.slowest = of_tool.slowest.max(took);
                if of_tool.failed(self.tenant, given, now, endurance) {
                    let (failures, rest) = (endurance.failures_max, endurance.rest);
                    tracing::warn!(
                        tool = self.tool,
                        failures,
                        ?rest,
                        "circuit breaker open after consecutive failures; calls wait"
                    );
                    metrics.breaker(self.tool, BreakerEvent::Opened);
                    metrics.tools_resting(resting(&tools, now));
                }
            }
        }
    }
}

impl ToolBreakers {
    /// Counts a failure. Answers whether calls of somebody rest from now on that did not before.
    fn failed(
        &mut self,
        tenant: &TenantId,
        (all, own): (BreakerPermit, BreakerPermit),
        now: Duration,
        endurance: BreakerSettings,
    ) -> bool {
        let is_told_apart = self.of_tenants.len() < TENANTS_MAX || self.of_tenants.contains_key(tenant);
        let own_breaker = is_told_apart.then(|| self.of_tenants.entry(tenant.clone()).or_default());
        let of_own = own_breaker.map(|breaker| (breaker.record_failure(own, None, now, endurance), breaker.failures()));
        // One tenant alone never brings the row to its end.
        if all.is_trial || of_own.is_none_or(|(_, failures)| failures <= endurance.failures_max / 2) {
            return self.all.record_failure(all, None, now, endurance) || of_own.is_some_and(|(opened, _)| opened);
        }
        self.all.release(all);
        of_own.is_some_and(|(opened, _)| opened)
    }

    /// Forgets who has nothing against him.
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

    fn unsaid(&mut self, tenant: &TenantId, (all, own): (BreakerPermit, BreakerPermit)) {
        self.all.release(all);
        if let Some(breaker) = self.of_tenants.get_mut(tenant) {
            breaker.release(own);
        }
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let Some(given) = self.given.take() else { return };
        if let Some(of_tool) = self.breakers.tools.lock().get_mut(self.tool) {
            of_tool.unsaid(self.tenant, given);
        }
    }
}

/// What a try says of its tool. A tool that says when to come again is there, and one that had less time than it is due has
/// not been given a chance.
pub(crate) fn heard(ran: &Ran, was_cut_short: bool) -> Heard {
    match ran {
        Ran::TimedOut if was_cut_short => Heard::Nothing,
        Ran::TimedOut => Heard::Failed,
        Ran::Unfit(_) | Ran::Returned(Ok(Ok(_))) => Heard::Answered,
        Ran::Returned(Ok(Err(failure))) => match failure {
            ToolFailure::Transient { retry_after: None, .. } => Heard::Failed,
            ToolFailure::Transient { .. } | ToolFailure::Permanent { .. } | ToolFailure::Waits { .. } => {
                Heard::Answered
            }
            // A bug, or no service was asked.
            ToolFailure::InvalidArguments { .. } | ToolFailure::Internal { .. } | ToolFailure::NotConfigured { .. } => {
                Heard::Nothing
            }
        },
        // A panic.
        Ran::Returned(Err(_)) | Ran::Cancelled | Ran::MustStop => Heard::Nothing,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    const ENDURANCE: BreakerSettings = BreakerSettings { failures_max: 4, rest: Duration::from_secs(10) };
    const TRY: Duration = Duration::from_millis(300);

    struct World {
        breakers: Breakers,
        metrics: Metrics,
    }

    impl World {
        fn new() -> Self {
            Self { breakers: Breakers::new(Some(ENDURANCE)), metrics: Metrics::new().unwrap() }
        }

        fn is_called(&self, tenant: &str) -> bool {
            let tenant = TenantId::new(tenant).unwrap();
            self.breakers.leave("post", &tenant, &self.metrics).is_ok()
        }

        fn hears(&self, tenant: &str, heard: Heard) {
            let tenant = TenantId::new(tenant).unwrap();
            self.breakers.leave("post", &tenant, &self.metrics).unwrap().heard(heard, TRY, &self.metrics);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_tenant_sends_stops_its_own_calls_alone() {
        let world = World::new();
        for _ in 0..ENDURANCE.failures_max {
            world.hears("acme", Heard::Failed);
        }
        assert!(!world.is_called("acme"));
        assert!(world.is_called("globex"));
        world.hears("globex", Heard::Failed);
        assert!(world.is_called("initech"), "the failures of one tenant, and one of another, are no reason");
        world.hears("globex", Heard::Failed);
        assert!(!world.is_called("initech"), "two tenants had half of them each");
        tokio::time::advance(ENDURANCE.rest).await;
        world.hears("initech", Heard::Answered);
        assert!(world.is_called("initech") && world.is_called("globex"));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_answers_in_between_is_well_and_is_forgotten() {
        let world = World::new();
        for _ in 0..3 {
            for _ in 1..ENDURANCE.failures_max {
                world.hears("acme", Heard::Failed);
            }
            world.hears("acme", Heard::Answered);
        }
        assert!(world.is_called("acme"));
        assert!(world.breakers.tools.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_that_came_to_nothing_makes_room_for_the_next() {
        let world = World::new();
        for _ in 0..ENDURANCE.failures_max {
            world.hears("acme", Heard::Failed);
        }
        tokio::time::advance(ENDURANCE.rest).await;
        let acme = TenantId::new("acme").unwrap();
        let trial = world.breakers.leave("post", &acme, &world.metrics).unwrap();
        let resting = world.breakers.leave("post", &acme, &world.metrics).unwrap_err();
        assert_eq!((resting.left, resting.slowest), (ENDURANCE.rest / LOOKS_A_REST, TRY));
        drop(trial);
        world.hears("acme", Heard::Nothing);
        world.hears("acme", Heard::Failed);
        assert!(!world.is_called("acme"));
    }

    #[test]
    fn those_that_wait_come_back_one_after_the_other() {
        let resting = Resting { left: Duration::from_secs(3), endurance: ENDURANCE, slowest: TRY };
        let call = |position| CallId { turn: tickfleet_model::TurnId::new("t1").unwrap(), position };
        let after: Vec<Duration> = (0..8).map(|position| resting.looks_again_after(&call(position))).collect();
        assert!(
            after.iter().all(|after| (Duration::from_secs(3)..=Duration::from_secs(8)).contains(after)),
            "{after:?}"
        );
        assert!(after.windows(2).all(|pair| pair[0] != pair[1]), "{after:?}");
    }
}
