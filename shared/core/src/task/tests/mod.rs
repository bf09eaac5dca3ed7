//! Tests of tasks on the in-memory store.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod cancel;
mod delegate;
mod external;
mod model;

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use tickfleet_model::{Priority, TaskId};

use super::cancel::{Cancel, Canceled};
use super::cascade::{Cascade, CascadeStep};
use super::delegate::{Delegate, DelegateResult, Refusal, Source};
use super::external::{
    DropExternalQueue, HandleLeaseTimer, LeaseTimerResult, ReadHeld, RenewTaskLease, RenewTaskLeaseResult,
};
use super::spend::{
    BudgetDebit, BudgetWait, Fenced, ReportedModelUse, Reserve, ReserveResult, ShortageAction, Unreserve,
};
use super::step::{AddSteps, Stepped, part};
use crate::bounds::Bounds;
use crate::decision::Decision;
use crate::keys::{self, TurnName, limits};
use crate::mutants;
use crate::recovery::inbound::TakenInbound;
use crate::section::Section;
use crate::transaction::{ConditionalDebit, CounterKey, EntryId, Guard, Transaction, Window};
use crate::trial::{Trial, admitted, call, head, named};
use crate::turn::end::{Ending, ExecutionState, GivenId, GivenState, RenderedCall, ReplyFrame, cascade_timer, parts};
use crate::turn::state::{BudgetUnit, EndReason};
use crate::turn::{Cancellation, Destination, Park, ParkReason, ParkResult, Settle, SettleResult, State, Turn};
use crate::usage::{Day, ModelUse, UsageUnit};
use crate::view::{Query, Value, View};

fn bounds() -> Bounds {
    Bounds::default()
}

fn counter(limit: &str) -> CounterKey {
    CounterKey::new(limit, "acme")
}

fn budget_of(task: &str) -> CounterKey {
    CounterKey::new(limits::TASK, format!("acme:{task}"))
}

fn task<'a>(name: &str, bounds: &'a Bounds) -> Delegate<'a> {
    Delegate {
        name: named(name),
        given: false,
        source: Source::Call,
        head: head(1),
        call: call(0),
        destination: Destination::Workers(Priority::Normal),
        budget: 10,
        parent: None,
        awaited: false,
        bounds,
    }
}

fn child<'a>(name: &str, parent: &str, budget: u64, bounds: &'a Bounds) -> Delegate<'a> {
    Delegate { parent: Some(TaskId::new(parent).unwrap()), budget, ..task(name, bounds) }
}

fn external<'a>(name: &str, bounds: &'a Bounds) -> Delegate<'a> {
    Delegate { destination: Destination::External { lease_ms: 1_000 }, ..task(name, bounds) }
}

fn inbound<'a>(trial: &mut Trial, name: &str, bounds: &'a Bounds) -> Delegate<'a> {
    trial.enqueue(&keys::tasks(), vec![("task".into(), "{}".into())]);
    let entry = trial.take(&keys::tasks(), "s1", 1).remove(0).0;
    Delegate { source: Source::Inbound(TakenInbound { id: entry, epoch: 1 }), given: true, ..task(name, bounds) }
}

struct End {
    name: TurnName,
    failed: bool,
}

impl Decision for End {
    type Output = bool;

    fn decide(&self, view: &View, context: &crate::Context) -> Result<crate::Step<bool>, crate::view::Undecided> {
        let Some(stored) = view.record::<Turn>(&self.name.record())? else { return Ok(crate::Step::Return(false)) };
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard(Guard::Version(self.name.record(), stored.version.clone()));
        let bounds = bounds();
        let frame = ReplyFrame::default();
        let ending = Ending {
            name: &self.name,
            turn: &stored.value,
            results: &[],
            new_from: 0,
            reason: self.failed.then_some(EndReason::Canceled),
            debited: &[],
            frame: &frame,
            bounds: &bounds,
            now_ms: context.now_ms,
            pressure: context.pressure,
        };
        ending.add_to(&mut transaction, view)?;
        Ok(crate::Step::Commit(transaction, true))
    }
}

fn end(trial: &mut Trial, name: &str) -> bool {
    trial.run(&End { name: named(name), failed: false })
}

fn cancel(trial: &mut Trial, name: &str, bounds: &Bounds) -> Canceled {
    trial.run(&Cancel { name: named(name), reason: "no".into(), above: None, bounds })
}

fn cascade_all(trial: &mut Trial, bounds: &Bounds) {
    for _ in 0..200 {
        let now_ms = trial.now_ms;
        let mut due = trial.timers.iter().filter(|(_, due_ms)| **due_ms <= now_ms);
        let due = due.find_map(|(timer, _)| timer.strip_prefix("cascade:").map(str::to_owned));
        let Some(due) = due else { return };
        let above = TurnName::parse(&due).unwrap();
        if let Cascade::End { members, reason } = trial.run(&CascadeStep { name: above.clone(), bounds }) {
            for name in members {
                trial.run(&Cancel { name, reason: reason.clone(), above: Some(above.clone()), bounds });
            }
        }
    }
    panic!("the cascades do not end: {:?}", trial.timers);
}

fn is_over(trial: &Trial, name: &str) -> bool {
    let name = named(name);
    let canceled = trial.stored::<Cancellation>(&name.cancellation());
    trial.turn(&name).is_none_or(|turn| {
        canceled.is_some_and(|canceled| canceled.value.is_of(&turn.value))
            && trial.timers[&*name.timer()] <= trial.now_ms
    })
}
