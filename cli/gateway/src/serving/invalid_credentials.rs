//! A rate limit per address for invalid keys and tokens, against guessing. A credential that was valid here before is
//! exempt: behind a proxy, all clients share one address.

use std::collections::HashSet;
use std::mem::take;

use axum::http::request::Parts;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::connections::RequestConnection;
use super::peer::Peer;
use crate::problem::Problem;
use crate::rates::{Allowances, RateExceeded};
use crate::verbs::Rate;

/// The cache always keeps the latest half of this number of credentials.
const KNOWN_MAX: usize = 20_000;

fn peer_of(parts: &Parts) -> Option<Peer> {
    RequestConnection::of(parts).map(RequestConnection::peer)
}

#[derive(Debug)]
pub(crate) struct InvalidCredentialLimiter {
    rate: Option<Rate>,
    wrong: Allowances<Peer>,
    good: Mutex<ValidCredentialCache>,
}

/// Hashes in two generations. When the newer generation is full, it replaces the older one.
#[derive(Debug, Default)]
struct ValidCredentialCache {
    current: HashSet<[u8; 32]>,
    previous: HashSet<[u8; 32]>,
}

impl ValidCredentialCache {
    fn add(&mut self, hash: [u8; 32]) {
        if self.current.len() >= KNOWN_MAX / 2 && !self.current.contains(&hash) {
            self.previous = take(&mut self.current);
        }
        self.current.insert(hash);
    }

    fn remove(&mut self, hash: &[u8; 32]) {
        self.current.remove(hash);
        self.previous.remove(hash);
    }

    fn has(&self, hash: &[u8; 32]) -> bool {
        self.current.contains(hash) || self.previous.contains(hash)
    }
}

impl InvalidCredentialLimiter {
    pub(crate) fn new(rate: Option<Rate>) -> Self {
        Self { rate, wrong: Allowances::default(), good: Mutex::default() }
    }

    /// 429: too many invalid credentials came from the address, and this credential was not valid here before.
    pub(crate) fn check_rate(&self, parts: &Parts, secret: &str) -> Result<(), Problem> {
        let (Some(rate), Some(peer)) = (self.rate, peer_of(parts)) else { return Ok(()) };
        if !self.wrong.is_used_up(&peer, rate) || self.good.lock().has(&Sha256::digest(secret).into()) {
            return Ok(());
        }
        self.wrong.take(peer, rate).map_err(|RateExceeded { seconds, is_log_due }| {
            if is_log_due {
                let from = peer.0;
                tracing::warn!(%from, "too many invalid API keys from this address; rejecting its requests unchecked");
            }
            Problem::too_many_wrong(seconds)
        })
    }

    pub(crate) fn knows(&self, parts: &Parts, secret: &str) {
        if self.rate.is_some() && peer_of(parts).is_some() {
            self.good.lock().add(Sha256::digest(secret).into());
        }
    }

    /// Debits the rate of the address. The credential no longer counts as valid.
    pub(crate) fn count(&self, parts: &Parts, secret: &str) {
        if let (Some(rate), Some(peer)) = (self.rate, peer_of(parts)) {
            self.good.lock().remove(&Sha256::digest(secret).into());
            _ = self.wrong.take(peer, rate);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::time::Duration;

    use axum::http::Request;
    use axum::response::IntoResponse;
    use tokio::time::advance;

    use super::super::connections::origin;
    use super::*;

    fn from(address: &str) -> Parts {
        Request::builder().extension(origin(address)).body(()).unwrap().into_parts().0
    }

    fn limiter(per_second: u32, burst: u32) -> InvalidCredentialLimiter {
        InvalidCredentialLimiter::new(Some(Rate { per_second, burst: Some(burst) }))
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_wrong_keys_are_rate_limited_but_valid_keys_pass() {
        let limiter = limiter(1, 3);
        let here = from("192.0.2.7:1000");
        limiter.knows(&here, "good");
        for _ in 0..3 {
            limiter.check_rate(&here, "wrong").unwrap();
            limiter.count(&here, "wrong");
        }
        // The limit also holds for other ports and other credentials.
        for (parts, secret) in
            [(&from("192.0.2.7:2000"), "wrong"), (&here, "other"), (&from("[::ffff:192.0.2.7]:1"), "x")]
        {
            let refused = limiter.check_rate(parts, secret).unwrap_err().into_response();
            let after: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
            assert!(refused.status() == 429 && (1..=2).contains(&after), "{secret}: {after}");
        }
        limiter.check_rate(&here, "good").unwrap();
        limiter.check_rate(&from("192.0.2.8:1000"), "wrong").unwrap();
        advance(Duration::from_secs(2)).await;
        limiter.check_rate(&here, "wrong").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_ipv6_network_shares_one_limit() {
        let limiter = limiter(1, 1);
        limiter.count(&from("[2001:db8:1:2::1]:1"), "x");
        assert!(limiter.check_rate(&from("[2001:db8:1:2:ffff::9]:1"), "x").is_err());
        limiter.check_rate(&from("[2001:db8:1:3::1]:1"), "x").unwrap();
        let unbounded = InvalidCredentialLimiter::new(None);
        for _ in 0..10_000 {
            unbounded.count(&from("192.0.2.7:1"), "x");
        }
        unbounded.check_rate(&from("192.0.2.7:1"), "x").unwrap();
        let nowhere = Request::builder().body(()).unwrap().into_parts().0;
        (0..3).for_each(|_| limiter.count(&nowhere, "x"));
        limiter.check_rate(&nowhere, "x").unwrap();
    }

    #[test]
    fn valid_credentials_are_cached_within_bounds_and_reuse_keeps_them() {
        let mut good = ValidCredentialCache::default();
        let hash = |number: usize| Sha256::digest(number.to_string()).into();
        for number in 1..=KNOWN_MAX * 2 {
            good.add(hash(number));
            if number % 1_000 == 0 {
                good.add(hash(0));
            }
        }
        assert!(good.current.len() + good.previous.len() <= KNOWN_MAX);
        assert!(good.has(&hash(0)) && good.has(&hash(KNOWN_MAX * 2)) && !good.has(&hash(1)));
    }
}
