//! Dispatches the calls of a turn after its wait.

use bytes::Bytes;

use super::due::{Case, DueResult};
use super::end::parts;
use super::parked::leave_parked;
use super::slice::dispatch;
use super::state::{Destination, EndReason, Turn};
use super::throttle::{throttle, undecided_queue};
use crate::keys::limits;
use crate::transaction::{ConditionalDebit, Conflict, CounterKey, Guard, TimerRule};
use crate::view::Undecided;

/// Delay (ms) before the next check if the tenant has too many dispatched slices.
const IN_FLIGHT_DELAY_MS: i64 = 1_000;

impl Case<'_> {
    /// No limit is debited again. A slice that returned its permits joins a throttle queue first.
    pub(super) fn resume(&mut self, upto: usize) -> Result<DueResult, Undecided> {
        let name = self.due.name;
        let now_ms = self.context.now_ms;
        let mut turn = self.stored.value.clone();
        let deadline_ms = turn.head.deadline_ms;
        if upto == turn.position {
            leave_parked(&mut self.transaction, name, &turn);
            let counter = undecided_queue(name, &turn);
            throttle(&mut self.transaction, name, &mut turn, counter, now_ms, now_ms);
            self.transaction.timer(name.timer(), deadline_ms, TimerRule::Set);
            return Ok(DueResult::Throttled);
        }
        let in_flight = CounterKey::new(limits::IN_FLIGHT, name.tenant.as_str());
        if self
            .context
            .failed(|conflict| matches!(conflict, Conflict::LimitReached { counter, .. } if *counter == in_flight))
        {
            return Ok(self.later(deadline_ms.min(now_ms + IN_FLIGHT_DELAY_MS)));
        }
        let Some(calls) = self.calls(&turn, upto)? else {
            return self.expire(EndReason::Quarantined { crashes: turn.crashes });
        };
        if turn.is_for_workers() {
            let max = self.due.bounds.tenant_in_flight_max;
            self.transaction.guard(Guard::Debit(ConditionalDebit::total(in_flight, 1, max)));
        }
        leave_parked(&mut self.transaction, name, &turn);
        dispatch(&mut self.transaction, name, &mut turn, &calls);
        // The lease of an external runtime is checked when the lease ends.
        let due_ms = match turn.destination {
            Destination::Workers(_) => deadline_ms,
            Destination::External { lease_ms } => deadline_ms.min(now_ms + lease_ms),
        };
        self.transaction.timer(name.timer(), due_ms, TimerRule::Set);
        self.transaction.dedupe_record = Some(name.record());
        Ok(DueResult::Dispatched)
    }

    fn calls(&self, turn: &Turn, upto: usize) -> Result<Option<Vec<Bytes>>, Undecided> {
        let names = (turn.position..upto).map(parts::call).collect();
        Ok(self.view.parts(&self.due.name.record(), names)?.iter().cloned().collect())
    }
}
