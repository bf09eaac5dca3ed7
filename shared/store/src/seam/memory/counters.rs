//! Counters: how their windows open, when a counter accepts a debit, and how the debit changes the counter.

use tickfleet_core::record::Debited;
use tickfleet_core::{ConditionalDebit, CounterState, Window};

/// A restart may lose the last debits. A fixed window of at most this length then accepts no more debits. A longer
/// window still accepts debits, because calls would otherwise wait up to a day.
const LOST_WINDOW_MAX_MS: i64 = 60_000;

/// The time (ms) at which an amount expires, and the amount. The earliest first.
pub type Buckets = Vec<(i64, u64)>;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counter {
    pub state: CounterState,
    pub buckets: Option<Buckets>,
}

#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub now_ms: i64,
    /// In shard time; 0 for the first epoch.
    pub epoch_began_ms: i64,
    pub lease_ms: i64,
}

pub struct Debit {
    pub counter: Counter,
    pub debited: Debited,
    pub refused: Option<CounterState>,
}

impl Counter {
    pub fn debit(&self, debit: &ConditionalDebit, moment: Moment) -> Debit {
        let mut counter = self.opened(&debit.window, moment.now_ms);
        let refused = counter.refusal(debit, moment);
        let leaves_ms = counter.add_debit(debit, moment.now_ms);
        let CounterState { used, began_ms, .. } = counter.state;
        let debited = Debited { used, ends_ms: leaves_ms, began_ms };
        Debit { debited, counter, refused }
    }

    /// `None` if the limit permits the debit.
    fn refusal(&self, debit: &ConditionalDebit, moment: Moment) -> Option<CounterState> {
        let mut state = self.state;
        if let Some(ends_ms) = self.blocked(&debit.window, moment) {
            state.used = state.used.max(debit.max);
            state.ends_ms = ends_ms;
        }
        let behind = debit.behind_queue && state.queued;
        let fits = debit.max.checked_sub(state.used).is_some_and(|left| debit.amount <= left);
        (behind || !fits).then_some(state)
    }

    /// After a restart, a fixed window that may have lost debits is blocked until its end. Permits are blocked until
    /// the end of the lease. `None` if the counter is not blocked.
    fn blocked(&self, window: &Window, moment: Moment) -> Option<i64> {
        let began = moment.epoch_began_ms;
        match window {
            Window::Fixed { length_ms, .. }
                if began > 0 && *length_ms <= LOST_WINDOW_MAX_MS && self.state.began_ms <= began =>
            {
                Some(self.state.ends_ms)
            }
            Window::Concurrency if began > 0 && moment.now_ms < began + moment.lease_ms => {
                Some(began + moment.lease_ms)
            }
            _ => None,
        }
    }

    fn opened(&self, window: &Window, now_ms: i64) -> Self {
        let rolling = matches!(window, Window::Rolling { .. });
        // If the configuration changed the kind of the window, the counters start from zero.
        let again = CounterState { queued: self.state.queued, ..CounterState::default() };
        let state = if rolling == self.buckets.is_some() { self.state } else { again };
        match window {
            Window::Rolling { .. } => self.without_left(now_ms),
            _ => Self { state: state.opened(window, now_ms), buckets: None },
        }
    }

    fn without_left(&self, now_ms: i64) -> Self {
        let buckets = self.buckets.iter().flatten().copied().filter(|(leaves_ms, _)| *leaves_ms > now_ms).collect();
        let mut counter = Self { state: self.state, buckets: Some(buckets) };
        counter.sum_up();
        counter
    }

    /// Returns when the amount expires. Without buckets, it expires at the end of the window.
    fn add_debit(&mut self, debit: &ConditionalDebit, now_ms: i64) -> i64 {
        let (Window::Rolling { length_ms }, Some(buckets)) = (&debit.window, &mut self.buckets) else {
            self.state.used = self.state.used.saturating_add(debit.amount);
            return self.state.ends_ms;
        };
        let width_ms = (length_ms.max(&1) + 7) / 8;
        let leaves_ms = ((now_ms.div_euclid(width_ms) + 1) * width_ms).saturating_add(*length_ms);
        if debit.amount > 0 {
            match buckets.binary_search_by_key(&leaves_ms, |bucket| bucket.0) {
                Ok(at) => {
                    if let Some(bucket) = buckets.get_mut(at) {
                        bucket.1 = bucket.1.saturating_add(debit.amount);
                    }
                }
                Err(at) => buckets.insert(at, (leaves_ms, debit.amount)),
            }
        }
        self.sum_up();
        leaves_ms
    }

    /// `amount` can be negative, and the limit does not bound the result. With `ends_ms`, changes only the window or
    /// bucket that ends at this time.
    pub fn add(&mut self, amount: i64, ends_ms: Option<i64>) {
        let added = |used: u64| used.saturating_add_signed(amount);
        if let Some(buckets) = &mut self.buckets {
            let bucket = match ends_ms {
                Some(ends_ms) => buckets.iter_mut().find(|bucket| bucket.0 == ends_ms),
                None => buckets.last_mut(),
            };
            if let Some(bucket) = bucket {
                bucket.1 = added(bucket.1);
            }
            self.sum_up();
        } else if ends_ms.is_none_or(|ends_ms| ends_ms == self.state.ends_ms) {
            self.state.used = added(self.state.used);
        }
    }

    /// The window that ends at `ends_ms` begins again now, without `amount`. False if the counter has another window,
    /// or is rolling.
    pub fn restart(&mut self, amount: u64, ends_ms: i64, now_ms: i64) -> bool {
        if self.buckets.is_some() || self.state.ends_ms != ends_ms {
            return false;
        }
        self.state.used = self.state.used.saturating_sub(amount);
        self.state.began_ms = now_ms;
        true
    }

    fn sum_up(&mut self) {
        let buckets = self.buckets.as_deref().unwrap_or_default();
        self.state.used = buckets.iter().fold(0, |sum: u64, bucket| sum.saturating_add(bucket.1));
        self.state.ends_ms = buckets.first().map_or(0, |bucket| bucket.0);
        self.state.began_ms = 0;
    }
}
