//! A rate limit per address for invalid keys and tokens, so that keys cannot be tried at the speed of the gateway. A
//! credential that was valid here before is exempt: behind a proxy all clients share one address, and a client that
//! tries keys must not block the others.

use std::collections::HashSet;
use std::mem::take;

use axum::http::request::Parts;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::connections::Origin;
use super::peer::Peer;
use crate::problem::Problem;
use crate::rates::{Allowances, Over};
use crate::verbs::Rate;

/// Maximum valid credentials that are remembered. The latest half of this number is always kept.
const KNOWN_MAX: usize = 20_000;

/// The address of a request; `None` if unknown, as for a request that did not come over a network.
fn sent(parts: &Parts) -> Option<Peer> {
    Origin::of(parts).map(Origin::peer)
}

/// Limits invalid keys and tokens per address.
#[derive(Debug)]
pub(crate) struct Strangers {
    /// `None` for no limit.
    rate: Option<Rate>,
    wrong: Allowances<Peer>,
    good: Mutex<Good>,
}

/// Hashes of valid credentials in two generations. When the newer one is full, it replaces the older one.
#[derive(Debug, Default)]
struct Good {
    lately: HashSet<[u8; 32]>,
    before: HashSet<[u8; 32]>,
}

impl Good {
    fn add(&mut self, hash: [u8; 32]) {
        if self.lately.len() >= KNOWN_MAX / 2 && !self.lately.contains(&hash) {
            self.before = take(&mut self.lately);
        }
        self.lately.insert(hash);
    }

    fn remove(&mut self, hash: &[u8; 32]) {
        self.lately.remove(hash);
        self.before.remove(hash);
    }

    fn has(&self, hash: &[u8; 32]) -> bool {
        self.lately.contains(hash) || self.before.contains(hash)
    }
}

impl Strangers {
    pub(crate) fn new(rate: Option<Rate>) -> Self {
        Self { rate, wrong: Allowances::default(), good: Mutex::default() }
    }

    /// Decides whether the credential of a request is checked at all.
    ///
    /// # Errors
    /// 429: too many invalid credentials came from this address, and this one was not valid here before.
    pub(crate) fn let_pass(&self, parts: &Parts, secret: &str) -> Result<(), Problem> {
        let (Some(rate), Some(peer)) = (self.rate, sent(parts)) else { return Ok(()) };
        if !self.wrong.is_used_up(&peer, rate) || self.good.lock().has(&Sha256::digest(secret).into()) {
            return Ok(());
        }
        self.wrong.take(peer, rate).map_err(|Over { seconds, is_news }| {
            if is_news {
                let from = peer.0;
                tracing::warn!(%from, "too many invalid API keys from this address; rejecting its requests unchecked");
            }
            Problem::too_many_wrong(seconds)
        })
    }

    /// Records that the credential is valid.
    pub(crate) fn knows(&self, parts: &Parts, secret: &str) {
        if self.rate.is_some() && sent(parts).is_some() {
            self.good.lock().add(Sha256::digest(secret).into());
        }
    }

    /// Records that the credential is invalid, or is no longer valid.
    pub(crate) fn count(&self, parts: &Parts, secret: &str) {
        if let (Some(rate), Some(peer)) = (self.rate, sent(parts)) {
            self.good.lock().remove(&Sha256::digest(secret).into());
            // If the allowance is used up, the next credential is not checked.
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

    fn strangers(per_second: u32, burst: u32) -> Strangers {
        Strangers::new(Some(Rate { per_second, burst: Some(burst) }))
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_wrong_keys_is_looked_at_so_often_and_holds_up_nobody_with_a_key_that_was_good() {
        let (strangers, here) = (strangers(1, 3), from("192.0.2.7:1000"));
        strangers.knows(&here, "good");
        for _ in 0..3 {
            strangers.let_pass(&here, "wrong").unwrap();
            strangers.count(&here, "wrong");
        }
        // The limit applies to any port, and to any credential not yet known as valid. Otherwise a valid one could be
        // found by trying.
        for (parts, secret) in
            [(&from("192.0.2.7:2000"), "wrong"), (&here, "other"), (&from("[::ffff:192.0.2.7]:1"), "x")]
        {
            let refused = strangers.let_pass(parts, secret).unwrap_err().into_response();
            let after: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
            assert!(refused.status() == 429 && (1..=2).contains(&after), "{secret}: {after}");
        }
        strangers.let_pass(&here, "good").unwrap();
        strangers.let_pass(&from("192.0.2.8:1000"), "wrong").unwrap();
        advance(Duration::from_secs(2)).await;
        strangers.let_pass(&here, "wrong").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn all_of_a_network_of_ipv6_is_one_and_where_nothing_is_bounded_nothing_is_counted() {
        let strangers = strangers(1, 1);
        strangers.count(&from("[2001:db8:1:2::1]:1"), "x");
        assert!(strangers.let_pass(&from("[2001:db8:1:2:ffff::9]:1"), "x").is_err());
        strangers.let_pass(&from("[2001:db8:1:3::1]:1"), "x").unwrap();
        let unbounded = Strangers::new(None);
        for _ in 0..10_000 {
            unbounded.count(&from("192.0.2.7:1"), "x");
        }
        unbounded.let_pass(&from("192.0.2.7:1"), "x").unwrap();
        // A request whose address is unknown is not limited.
        let nowhere = Request::builder().body(()).unwrap().into_parts().0;
        (0..3).for_each(|_| strangers.count(&nowhere, "x"));
        strangers.let_pass(&nowhere, "x").unwrap();
    }

    #[test]
    fn what_was_good_is_remembered_within_bounds_and_what_comes_again_longest() {
        let mut good = Good::default();
        let hash = |number: usize| Sha256::digest(number.to_string()).into();
        for number in 1..=KNOWN_MAX * 2 {
            good.add(hash(number));
            if number % 1_000 == 0 {
                good.add(hash(0));
            }
        }
        assert!(good.lately.len() + good.before.len() <= KNOWN_MAX);
        assert!(good.has(&hash(0)) && good.has(&hash(KNOWN_MAX * 2)) && !good.has(&hash(1)));
    }
}
