//! Request rates of keys and tokens in this process. Caps in Redis bound agents, independent of how their turns arrive.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::problem::Problem;
use crate::verbs::{CallerIdentity, Grant, Rate};

/// Bounds the memory for allowances: each takes a few hundred bytes.
const CALLERS_MAX: usize = 100_000;
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Uses the generic cell rate algorithm: an allowance is stored as the instant at which it is full again.
#[derive(Debug)]
pub(crate) struct Allowances<N> {
    of: Mutex<HashMap<N, Allowance>>,
}

impl<N> Default for Allowances<N> {
    fn default() -> Self {
        Self { of: Mutex::default() }
    }
}

#[derive(Debug)]
struct Allowance {
    whole_at: Instant,
    logged_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateExceeded {
    pub(crate) seconds: u64,
    /// False if the log reported the used-up allowance in the last minute.
    pub(crate) is_log_due: bool,
}

impl<N: Eq + Hash> Allowances<N> {
    pub(crate) fn take(&self, name: N, rate: Rate) -> Result<(), RateExceeded> {
        let now = Instant::now();
        let mut all = self.of.lock();
        make_room(&mut all, now);
        let allowance = all.entry(name).or_insert_with(|| Allowance { whole_at: now, logged_at: None });
        allowance.whole_at = allowance.used(rate, now);
        let used_up = allowance.whole_at + one(rate);
        match over(used_up, rate, now) {
            None => {
                allowance.whole_at = used_up;
                Ok(())
            }
            Some(seconds) => {
                let is_log_due =
                    allowance.logged_at.is_none_or(|logged_at| now.duration_since(logged_at) >= LOG_INTERVAL);
                if is_log_due {
                    allowance.logged_at = Some(now);
                }
                Err(RateExceeded { seconds, is_log_due })
            }
        }
    }

    pub(crate) fn is_used_up(&self, name: &N, rate: Rate) -> bool {
        let now = Instant::now();
        let whole_at = self.of.lock().get(name).map(|allowance| allowance.used(rate, now));
        whole_at.is_some_and(|whole_at| over(whole_at + one(rate), rate, now).is_some())
    }
}

impl Allowance {
    /// Earlier use at a lower rate must not delay a caller longer than one full refill at `rate`.
    fn used(&self, rate: Rate, now: Instant) -> Instant {
        self.whole_at.clamp(now, now + one(rate) * rate.burst_size())
    }
}

fn one(rate: Rate) -> Duration {
    Duration::from_secs(1) / rate.per_second.max(1)
}

/// Returns the seconds until the allowance permits a request; `None` if it is permitted now. `whole_at` includes this
/// request.
fn over(whole_at: Instant, rate: Rate, now: Instant) -> Option<u64> {
    let over = whole_at.saturating_duration_since(now).saturating_sub(one(rate) * rate.burst_size());
    (!over.is_zero()).then(|| over.as_secs() + 1)
}

#[derive(Debug, Default)]
pub(crate) struct RequestRates {
    callers: Allowances<CallerIdentity>,
}

impl RequestRates {
    pub(crate) fn take(&self, grant: &Grant) -> Result<(), Problem> {
        let Some(rate) = grant.rate else { return Ok(()) };
        self.callers.take(grant.holder(), rate).map_err(|over| {
            let per_second = rate.per_second;
            if over.is_log_due {
                tracing::warn!(
                    caller = grant.named(),
                    per_second,
                    "request rate limit exceeded; rejecting the caller's requests"
                );
            }
            Problem::over_rate(&grant.named(), per_second, over.seconds)
        })
    }
}

/// Removes allowances that are nearly full, if there are too many. Callers without an allowance start with a full one.
fn make_room<N: Eq + Hash>(all: &mut HashMap<N, Allowance>, now: Instant) {
    if all.len() < CALLERS_MAX {
        return;
    }
    all.retain(|_, allowance| allowance.whole_at > now);
    if all.len() > CALLERS_MAX / 2 {
        let mut whole: Vec<Instant> = all.values().map(|allowance| allowance.whole_at).collect();
        let (_, middle, _) = whole.select_nth_unstable(CALLERS_MAX / 4);
        let middle = *middle;
        all.retain(|_, allowance| allowance.whole_at > middle);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use axum::response::IntoResponse;
    use tokio::time::advance;

    use super::*;
    use crate::verbs::{CredentialKind, TenantScope, Verb};

    fn grant(id: &str, credential: CredentialKind, rate: Option<Rate>) -> Grant {
        let tenant = TenantScope::One(tickfleet_model::TenantId::new("demo").unwrap());
        let agents = vec!["*".into()];
        let verbs = [Verb::Read].into();
        Grant { id: id.into(), credential, tenant, agents, verbs, approver: None, rate, expires: None }
    }

    fn rate(per_second: u32, burst: u32) -> Option<Rate> {
        Some(Rate { per_second, burst: Some(burst) })
    }

    fn taken(rates: &RequestRates, grant: &Grant, tries: usize) -> usize {
        (0..tries).filter(|_| rates.take(grant).is_ok()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn each_caller_has_its_own_burst_and_rate() {
        let rates = RequestRates::default();
        let (shop, till) =
            (grant("shop", CredentialKind::Key, rate(2, 5)), grant("till", CredentialKind::Key, rate(2, 5)));
        assert_eq!(taken(&rates, &shop, 20), 5);
        assert_eq!(taken(&rates, &till, 20), 5, "another's allowance is its own");
        assert_eq!(taken(&rates, &grant("shop", CredentialKind::Token, rate(2, 5)), 20), 5, "a token is no key");
        for _ in 0..10 {
            advance(Duration::from_millis(500)).await;
            assert_eq!(taken(&rates, &shop, 20), 1);
        }
        advance(Duration::from_secs(3_600)).await;
        assert_eq!(taken(&rates, &shop, 20), 5, "never more than the burst, however long nobody came");
        let faster = grant("shop", CredentialKind::Key, rate(100, 3));
        assert_eq!(taken(&rates, &faster, 100), 0, "what was used up stays so");
        advance(Duration::from_millis(10)).await;
        assert_eq!(taken(&rates, &faster, 100), 1);
        assert_eq!(taken(&rates, &grant("shop", CredentialKind::Key, None), 1_000), 1_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_limited_caller_gets_the_rate_and_a_retry_time() {
        let rates = RequestRates::default();
        let shop = grant("shop", CredentialKind::Key, rate(1, 1));
        rates.take(&shop).unwrap();
        let refused = rates.take(&shop).unwrap_err();
        assert_eq!(refused.summary(), ("the key \"shop\" may send 1 requests a second; retry after Retry-After", true));
        let answer = refused.into_response();
        let after: u64 = answer.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert_eq!(answer.status(), 429);
        advance(Duration::from_secs(after)).await;
        assert!(rates.take(&shop).is_ok(), "after that time it is let through");
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_tracked_callers_is_bounded() {
        let rates = RequestRates::default();
        for number in 0..CALLERS_MAX + 10 {
            rates.take(&grant(&number.to_string(), CredentialKind::Token, rate(1, 10))).unwrap();
            if number % 1_000 == 0 {
                advance(Duration::from_micros(1)).await;
            }
        }
        assert!(rates.callers.of.lock().len() < CALLERS_MAX);
    }
}
