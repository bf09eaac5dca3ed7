//! Checks of records against the invariants of the core, for operators and for the janitor.
//!
//! A repair by [`Check`] either arms a timer, so that a scheduler decides again, or removes a set member without a
//! subject. The repair guards the record. A check without a repair has no guards, and its reads may come from different
//! times. So a fault counts only if a second check finds it, too.
//!
//! [`TenantCounts`] compares the counters of a tenant, and [`Recount`] corrects them.

mod tenant;

pub use tenant::{Recount, TenantCounts};

use std::sync::Arc;

use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName};
use crate::record::Stored;
use crate::transaction::{CounterKey, Guard, TimerRule, Transaction, Write};
use crate::turn::expire::begin_ending;
use crate::turn::state::EndReason;
use crate::turn::{State, Turn};
use crate::view::{Query, Undecided, Value, View};

const MEMBERS_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Turn(TurnName),
    TurnTimer(TurnName),
    ThrottleQueue(CounterKey),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing ends the turn's wait.
    TurnWithoutTimer,
    /// No worker runs the slice.
    SliceLost,
    TurnNotQueued,
    TimerWithoutTurn,
    /// No scheduler checks the queue.
    QueueWithoutTimer,
    MemberNotThrottled {
        member: Arc<str>,
    },
}

impl Fault {
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::TurnWithoutTimer => "turn_without_timer",
            Self::SliceLost => "slice_lost",
            Self::TurnNotQueued => "turn_not_queued",
            Self::TimerWithoutTurn => "timer_without_turn",
            Self::QueueWithoutTimer => "queue_without_timer",
            Self::MemberNotThrottled { .. } => "member_not_throttled",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Check {
    pub subject: Subject,
    pub apply_repairs: bool,
}

struct Findings {
    faults: Vec<Fault>,
    transaction: Transaction,
}

impl Findings {
    fn report(&mut self, fault: Fault) -> &mut Transaction {
        self.faults.push(fault);
        &mut self.transaction
    }
}

impl Decision for Check {
    type Output = Vec<Fault>;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Vec<Fault>>, Undecided> {
        let mut findings = Findings { faults: Vec::new(), transaction: Transaction::new(context.version.clone()) };
        let now_ms = context.now_ms;
        match &self.subject {
            Subject::Turn(name) => check_turn(name, view, now_ms, &mut findings)?,
            Subject::TurnTimer(name) => check_timer(name, view, &mut findings)?,
            Subject::ThrottleQueue(counter) => check_queue(counter, view, now_ms, &mut findings)?,
        }
        let Findings { faults, transaction } = findings;
        Ok(if faults.is_empty() || !self.apply_repairs {
            Step::Return(faults)
        } else {
            Step::Commit(transaction, faults)
        })
    }
}

fn check_turn(name: &TurnName, view: &View, now_ms: i64, findings: &mut Findings) -> Result<(), Undecided> {
    let Some(stored) = view.record::<Turn>(&name.record())? else { return Ok(()) };
    let has_timer = view.score(&keys::timers(), &name.timer())?.is_some();
    findings.transaction.guard(Guard::Version(name.record(), stored.version.clone()));
    if !has_timer {
        findings.report(Fault::TurnWithoutTimer).timer(name.timer(), now_ms, TimerRule::Earlier);
    }
    if is_slice_lost(name, &stored, view)? {
        // The results are lost with the slice, so its calls may have run.
        let reason = EndReason::Quarantined { crashes: stored.value.crashes };
        let turn = Turn { may_have_run: true, ..stored.value.clone() };
        begin_ending(findings.report(Fault::SliceLost), name, turn, reason, &[], now_ms, now_ms);
    }
    if let State::Throttled { counter, .. } = &stored.value.state {
        let set = keys::throttle_queue(counter);
        let member = name.to_string();
        if view.score(&set, &member)?.is_none() {
            let score = stored.value.place;
            let queue_of = Some(counter.clone());
            let add = Write::AddMember { set, member: member.into(), score, queue_of };
            findings.report(Fault::TurnNotQueued).write(add);
        }
    }
    Ok(())
}

/// False while a consumer holds the entry, because this consumer ends the slice itself.
fn is_slice_lost(name: &TurnName, stored: &Stored<Turn>, view: &View) -> Result<bool, Undecided> {
    let Some(entry) = stored.in_flight_entry() else { return Ok(false) };
    let queue = stored.value.queue(&name.tenant);
    Ok(view.entry(&queue, entry)?.is_none() && view.holder(&queue, entry)?.is_none())
}

fn check_timer(name: &TurnName, view: &View, findings: &mut Findings) -> Result<(), Undecided> {
    let is_armed = view.score(&keys::timers(), &name.timer())?.is_some();
    if is_armed && view.get(&Query::Record(name.record()))? == &Value::Record(None) {
        let transaction = findings.report(Fault::TimerWithoutTurn);
        transaction.guard(Guard::Absent(name.record())).write(Write::ClearTimer(name.timer().into()));
    }
    Ok(())
}

fn check_queue(counter: &CounterKey, view: &View, now_ms: i64, findings: &mut Findings) -> Result<(), Undecided> {
    let set = keys::throttle_queue(counter);
    let timer = keys::throttle_timer(counter);
    let members: Vec<Arc<str>> =
        view.first(&set, None, MEMBERS_MAX)?.iter().map(|(member, _)| member.clone()).collect();
    if !members.is_empty() && view.score(&keys::timers(), &timer)?.is_none() {
        findings.report(Fault::QueueWithoutTimer).timer(timer, now_ms, TimerRule::Earlier);
    }
    for member in members {
        let leave = Write::RemoveMember { set: set.clone(), member: member.clone(), queue_of: Some(counter.clone()) };
        let Some(name) = TurnName::parse(&member) else {
            findings.report(Fault::MemberNotThrottled { member }).write(leave);
            continue;
        };
        let stored: Option<Stored<Turn>> = view.record(&name.record())?;
        let waits_for = stored.as_ref().and_then(|stored| match &stored.value.state {
            State::Throttled { counter, .. } => Some(counter),
            _ => None,
        });
        if waits_for != Some(counter) {
            let transaction = findings.report(Fault::MemberNotThrottled { member });
            transaction.guard_read(&name.record(), stored.as_ref()).write(leave);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Record, RecordText};
    use crate::transaction::{EntryId, Version};
    use crate::trial::Trial;

    pub(super) fn name() -> TurnName {
        TurnName::parse("acme:t1").unwrap()
    }

    pub(super) fn turn(state: &str) -> Turn {
        let text = format!(
            r#"1{{"h":{{"ag":"kelly","dl":9000,"dg":"d","n":1}},"q":{{"r":"normal"}},"pl":7,"t":1,"b":10,"s":{state}}}"#
        );
        Turn::decode(text.as_bytes()).unwrap()
    }

    fn put(shard: &mut Trial, turn: &Turn, entry: Option<&str>) {
        let entry = entry.map(EntryId::new);
        let text = RecordText::render(&Version::new("v0"), entry.as_ref(), &[], &turn.encode());
        shard.records.insert(name().record(), text);
    }

    fn mends(shard: &mut Trial, subject: &Subject, faults: &[Fault]) {
        let check = |apply_repairs| Check { subject: subject.clone(), apply_repairs };
        assert_eq!(shard.run(&check(false)), faults);
        assert_eq!(shard.run(&check(true)), faults);
        assert_eq!(shard.run(&check(false)), []);
    }

    fn counter() -> CounterKey {
        CounterKey::new("spend", "acme")
    }

    pub(super) const THROTTLED: &str = r#"{"s":"throttled","counter":["spend","acme"],"since_ms":1}"#;
    pub(super) const READY: &str = r#"{"s":"ready","upto":1}"#;

    #[test]
    fn a_check_restores_missing_timers_and_removes_orphans() {
        let mut shard = Trial::at(1_000);
        put(&mut shard, &turn(READY), None);
        mends(&mut shard, &Subject::Turn(name()), &[Fault::TurnWithoutTimer]);
        assert_eq!(shard.timers[&*name().timer()], 1_000);
        mends(&mut shard, &Subject::TurnTimer(name()), &[]);
        shard.records.clear();
        mends(&mut shard, &Subject::Turn(name()), &[]);
        mends(&mut shard, &Subject::TurnTimer(name()), &[Fault::TimerWithoutTurn]);
        assert!(shard.timers.is_empty());
    }

    #[test]
    fn a_turn_admitted_during_a_repair_keeps_its_timer() {
        let mut shard = Trial::at(1_000);
        shard.timers.insert(name().timer().into(), 9_000);
        let check = Check { subject: Subject::TurnTimer(name()), apply_repairs: true };
        let decided = shard.step(&check);
        put(&mut shard, &turn(READY), None);
        assert_eq!(shard.finish(&check, decided).result, []);
        assert_eq!(shard.timers[&*name().timer()], 9_000);
    }

    #[test]
    fn a_lost_slice_ends_its_turn() {
        let mut shard = Trial::at(1_000);
        shard.timers.insert(name().timer().into(), 9_000);
        put(&mut shard, &turn(READY), Some("5-0"));
        let check = Check { subject: Subject::Turn(name()), apply_repairs: true };
        let held = Check { apply_repairs: false, ..check.clone() };
        assert_eq!(shard.run(&held), [Fault::SliceLost]);
        assert_eq!(shard.run(&check), [Fault::SliceLost]);
        let ending: Turn = shard.record(&name().record()).unwrap();
        assert!(ending.may_have_run && matches!(ending.state, State::Ending { due_ms: 1_000, .. }));
        assert_eq!(shard.timers[&*name().timer()], 1_000);
        let entry = shard.enqueue(&turn(READY).queue(&name().tenant), vec![]);
        put(&mut shard, &turn(READY), Some(entry.as_str()));
        assert_eq!(shard.run(&check), []);
    }

    #[test]
    fn a_check_repairs_throttle_queue_members_and_timers() {
        let mut shard = Trial::at(1_000);
        let set = keys::throttle_queue(&counter());
        shard.timers.insert(name().timer().into(), 9_000);
        put(&mut shard, &turn(THROTTLED), None);
        mends(&mut shard, &Subject::Turn(name()), &[Fault::TurnNotQueued]);
        assert_eq!(shard.sets[&set]["acme:t1"], 7);
        let queue = Subject::ThrottleQueue(counter());
        mends(&mut shard, &queue, &[Fault::QueueWithoutTimer]);
        let stranger = |member: &str| Fault::MemberNotThrottled { member: member.into() };
        shard.sets.entry(set.clone()).or_default().insert("acme:gone".into(), 1);
        mends(&mut shard, &queue, &[stranger("acme:gone")]);
        let check = Check { subject: queue.clone(), apply_repairs: true };
        put(&mut shard, &turn(READY), None);
        let decided = shard.step(&check);
        let mut transaction = Transaction::new(shard.context().version);
        shard.commit(transaction.put(&name().record(), &turn(THROTTLED))).unwrap();
        assert_eq!(shard.finish(&check, decided).result, [], "it waits for the counter since");
        put(&mut shard, &turn(READY), None);
        mends(&mut shard, &queue, &[stranger("acme:t1")]);
        assert!(shard.members(&set).is_empty());
    }

    #[test]
    fn a_turn_released_during_a_repair_is_not_requeued() {
        let mut shard = Trial::at(1_000);
        shard.timers.insert(name().timer().into(), 9_000);
        put(&mut shard, &turn(THROTTLED), None);
        let check = Check { subject: Subject::Turn(name()), apply_repairs: true };
        let decided = shard.step(&check);
        let mut transaction = Transaction::new(shard.context().version);
        shard.commit(transaction.put(&name().record(), &turn(READY))).unwrap();
        assert_eq!(shard.finish(&check, decided).result, []);
        assert!(shard.members(&keys::throttle_queue(&counter())).is_empty());
    }
}
