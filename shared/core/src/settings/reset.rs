//! Resets one counter of a limit to zero.
//!
//! The end of the counter's window does not change. A rolling counter is deleted, and its next debit starts from zero.

use crate::audit::AuditAppend;
use crate::counters::is_rolling;
use crate::decision::{Context, Decision, Step};
use crate::keys::{throttle_queue, throttle_timer};
use crate::transaction::{CounterKey, TimerRule, Transaction, Write};
use crate::view::{Query, Undecided, Value, View};

#[derive(Debug, Clone)]
pub struct ResetLimit {
    pub counter: CounterKey,
    /// `meta` receives `used_before` and `window_ends_ms`.
    pub entry: AuditAppend,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResetCounter {
    /// 0 if the window has ended.
    pub used: u64,
    /// 0 without a window.
    pub ends_ms: i64,
    pub waiting: u64,
}

impl ResetLimit {
    /// Removing the empty member changes no queue, but marks the new counter as queued if turns wait for it.
    fn start_again(&self, transaction: &mut Transaction) {
        transaction.write(Write::DeleteCounter(self.counter.clone())).write(Write::RemoveMember {
            set: throttle_queue(&self.counter),
            member: "".into(),
            queue_of: Some(self.counter.clone()),
        });
    }
}

impl Decision for ResetLimit {
    /// `None` if the counter does not exist.
    type Output = Option<ResetCounter>;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Counter(self.counter.clone()), Query::Size(throttle_queue(&self.counter))]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Self::Output>, Undecided> {
        let Value::Counter(Some(state)) = view.get(&Query::Counter(self.counter.clone()))? else {
            return Ok(Step::Return(None));
        };
        let Value::Size(waiting) = view.get(&Query::Size(throttle_queue(&self.counter)))? else {
            return Ok(Step::Return(None));
        };
        let has_ended = state.ends_ms > 0 && state.ends_ms <= context.now_ms;
        let used = if has_ended { 0 } else { state.used };
        let counter = ResetCounter { used, ends_ms: state.ends_ms, waiting: *waiting };
        let mut transaction = Transaction::new(context.version.clone());
        if is_rolling(state) {
            self.start_again(&mut transaction);
        } else {
            // `Restart` subtracts `used` instead of setting the counter to 0, so debits after the read survive. If a
            // new window has opened, `ends_ms` differs, and nothing is subtracted.
            let amount = used;
            let ends_ms = state.ends_ms;
            transaction.write(Write::Restart { counter: self.counter.clone(), amount, ends_ms });
        }
        transaction.timer(throttle_timer(&self.counter), context.now_ms, TimerRule::Wake);
        let meta = [("used_before", counter.used.to_string()), ("window_ends_ms", counter.ends_ms.to_string())];
        self.entry.with_meta(&meta).append_to(&mut transaction);
        Ok(Step::Commit(transaction, Some(counter)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;
    use crate::transaction::CounterState;
    use crate::trial::Trial;

    fn reset() -> ResetLimit {
        let entry = AuditAppend { text: r#"{"meta":{"limit":"spend"}}"#.into(), entries_max: 10 };
        ResetLimit { counter: CounterKey::new("spend", "acme"), entry }
    }

    #[test]
    fn a_reset_zeroes_a_counter_and_wakes_its_throttle_queue() {
        let mut shard = Trial::at(1_000);
        assert_eq!(shard.run(&reset()), None);
        let counter = reset().counter;
        shard.counters.insert(counter.clone(), CounterState { used: 7, ends_ms: 5_000, began_ms: 1, queued: true });
        shard.timers.insert(throttle_timer(&counter).into(), 5_000);
        shard.sets.entry(throttle_queue(&counter)).or_default().insert("acme:t".into(), 1);
        assert_eq!(shard.run(&reset()), Some(ResetCounter { used: 7, ends_ms: 5_000, waiting: 1 }));
        assert_eq!(shard.counters[&counter], CounterState { used: 0, ends_ms: 5_000, began_ms: 1_000, queued: true });
        assert_eq!(shard.timers[&*throttle_timer(&counter)], 1_000);
        let text = &shard.log(&keys::audit())[0].1[0].1;
        let entry: serde_json::Value = serde_json::from_slice(text).unwrap();
        assert_eq!(entry["meta"], serde_json::json!({ "limit": "spend", "used_before": 7, "window_ends_ms": 5_000 }));
    }

    #[test]
    fn a_reset_keeps_debits_after_its_read() {
        let mut shard = Trial::at(1_000);
        let counter = reset().counter;
        shard.counters.insert(counter.clone(), CounterState { used: 7, ends_ms: 5_000, began_ms: 1, queued: false });
        let decided = shard.step(&reset());
        shard.counters.get_mut(&counter).unwrap().used = 9;
        shard.finish(&reset(), decided);
        assert_eq!(shard.counters[&counter].used, 2);
        let decided = shard.step(&reset());
        shard.counters.insert(counter.clone(), CounterState { used: 3, ends_ms: 9_000, began_ms: 1, queued: false });
        shard.finish(&reset(), decided);
        assert_eq!(shard.counters[&counter].used, 3, "another window has opened");
    }
    #[test]
    fn a_rolling_counter_restarts_and_keeps_its_queue() {
        let mut shard = Trial::at(1_000);
        let counter = reset().counter;
        for waits in [true, false] {
            shard
                .counters
                .insert(counter.clone(), CounterState { used: 7, ends_ms: 5_000, began_ms: 0, queued: waits });
            let queue = shard.sets.entry(throttle_queue(&counter)).or_default();
            queue.clear();
            queue.extend(waits.then(|| ("acme:t".into(), 1)));
            assert_eq!(shard.run(&reset()).map(|was| was.used), Some(7));
            let left = waits.then(|| CounterState { queued: true, ..CounterState::default() });
            assert_eq!(shard.counters.get(&counter).copied(), left);
        }
    }
}
