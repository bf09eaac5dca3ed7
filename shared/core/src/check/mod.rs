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

use tickfleet_model::{ConsumerId, limits};

use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName};
use crate::record::Stored;
use crate::recovery::reap::end_soon;
use crate::settings::drain::{self, DrainFlag};
use crate::transaction::{CounterKey, Guard, SetKey, TimerRule, Transaction, Write};
use crate::turn::state::EndReason;
use crate::turn::{State, Turn};
use crate::view::{Query, Undecided, Value, View};
use crate::workers::{self, Consumer};

const MEMBERS_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Turn(TurnName),
    TurnTimer(TurnName),
    ThrottleQueue(CounterKey),
    Consumer(ConsumerId),
    DrainedWorker(String),
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
    /// The consumer's entries would be reaped too late.
    LeaseTooLong {
        ends_ms: i64,
    },
    /// The consumer is not in the set, or has another score. If it crashed, no reaper would find it.
    ConsumerUnlisted,
    WorkerNotDrained,
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
            Self::LeaseTooLong { .. } => "lease_too_long",
            Self::ConsumerUnlisted => "consumer_unlisted",
            Self::WorkerNotDrained => "worker_not_drained",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Check {
    pub subject: Subject,
    pub mend: bool,
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
            Subject::Consumer(consumer) => check_consumer(consumer, view, now_ms, &mut findings)?,
            Subject::DrainedWorker(worker) => check_drained(worker, view, &mut findings)?,
        }
        let Findings { faults, transaction } = findings;
        Ok(if faults.is_empty() || !self.mend { Step::Return(faults) } else { Step::Commit(transaction, faults) })
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
        end_soon(findings.report(Fault::SliceLost), name, turn, &[], reason, now_ms);
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

fn check_consumer(consumer: &ConsumerId, view: &View, now_ms: i64, findings: &mut Findings) -> Result<(), Undecided> {
    let key = workers::key(consumer.as_str());
    let name = consumer.as_str();
    let Some(stored) = view.record::<Consumer>(&key)? else { return Ok(()) };
    let Stored { value: mut record, version, .. } = stored;
    let score = view.score(&workers::consumers(), name)?;
    findings.transaction.guard(Guard::Version(key.clone(), version));
    // A heartbeat may make a lease an eighth longer than configured.
    let lease_max_ms = i64::try_from(limits::LEASE_MS_MAX).unwrap_or(i64::MAX / 2);
    let latest_ms = now_ms + lease_max_ms + lease_max_ms / 8;
    let ends_ms = record.lease_ends_ms;
    if ends_ms > latest_ms {
        record.lease_ends_ms = now_ms + record.lease_ms.clamp(0, lease_max_ms);
        let lifetime_ms = record.lease_ends_ms - now_ms + workers::SILENT_MS;
        findings.report(Fault::LeaseTooLong { ends_ms }).put_for(&key, &record, lifetime_ms);
    }
    // A reaper removes a consumer with an ended lease from the set, so such a consumer may be missing.
    let is_due = record.lease_ends_ms > now_ms || score.is_some();
    let listed = record.lease_ends_ms.max(0).unsigned_abs();
    if is_due && score != Some(listed) {
        let add = Write::AddMember { set: workers::consumers(), member: name.into(), score: listed, queue_of: None };
        findings.report(Fault::ConsumerUnlisted).write(add);
    }
    Ok(())
}

fn check_drained(worker: &str, view: &View, findings: &mut Findings) -> Result<(), Undecided> {
    let is_listed = view.score(&drain::drained(), worker)?.is_some();
    let stored: Option<Stored<DrainFlag>> = view.record(&drain::key(worker))?;
    let is_drained = matches!(&stored, Some(Stored { value: DrainFlag::Drained { .. }, .. }));
    if is_listed && !is_drained {
        let leave = Write::RemoveMember { set: drain::drained(), member: worker.into(), queue_of: None };
        findings.report(Fault::WorkerNotDrained).guard_read(&drain::key(worker), stored.as_ref()).write(leave);
    }
    Ok(())
}

#[must_use]
pub fn indexes() -> [SetKey; 3] {
    [keys::timers(), workers::consumers(), drain::drained()]
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::audit::AuditEntry;
    use crate::paper::Paper;
    use crate::record::{Record, RecordText};
    use crate::settings::drain::{ChangeDrain, DrainChange};
    use crate::transaction::{EntryId, Version};
    use crate::workers::{Heartbeat, Role};

    pub(super) fn name() -> TurnName {
        TurnName::parse("acme:t1").unwrap()
    }

    pub(super) fn turn(state: &str) -> Turn {
        let text = format!(
            r#"1{{"h":{{"ag":"kelly","dl":9000,"dg":"d","n":1}},"q":{{"r":"normal"}},"pl":7,"t":1,"b":10,"s":{state}}}"#
        );
        Turn::decode(text.as_bytes()).unwrap()
    }

    fn put(shard: &mut Paper, turn: &Turn, entry: Option<&str>) {
        let entry = entry.map(EntryId::new);
        let text = RecordText::render(&Version::new("v0"), entry.as_ref(), &[], &turn.encode());
        shard.records.insert(name().record(), text);
    }

    fn mends(shard: &mut Paper, subject: &Subject, faults: &[Fault]) {
        let check = |mend| Check { subject: subject.clone(), mend };
        assert_eq!(shard.result(&check(false)), faults);
        assert_eq!(shard.result(&check(true)), faults);
        assert_eq!(shard.result(&check(false)), []);
    }

    fn counter() -> CounterKey {
        CounterKey::new("spend", "acme")
    }

    pub(super) const THROTTLED: &str = r#"{"s":"throttled","counter":["spend","acme"],"since_ms":1}"#;
    pub(super) const READY: &str = r#"{"s":"ready","upto":1}"#;

    #[test]
    fn a_check_restores_missing_timers_and_removes_orphans() {
        let mut shard = Paper::at(1_000);
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
        let mut shard = Paper::at(1_000);
        shard.timers.insert(name().timer().into(), 9_000);
        let check = Check { subject: Subject::TurnTimer(name()), mend: true };
        let decided = shard.decide(&check);
        put(&mut shard, &turn(READY), None);
        assert_eq!(shard.finish(&check, decided).result, []);
        assert_eq!(shard.timers[&*name().timer()], 9_000);
    }

    #[test]
    fn a_lost_slice_ends_its_turn() {
        let mut shard = Paper::at(1_000);
        shard.timers.insert(name().timer().into(), 9_000);
        put(&mut shard, &turn(READY), Some("5-0"));
        let check = Check { subject: Subject::Turn(name()), mend: true };
        let held = Check { mend: false, ..check.clone() };
        assert_eq!(shard.result(&held), [Fault::SliceLost]);
        assert_eq!(shard.result(&check), [Fault::SliceLost]);
        let ending: Turn = shard.record(&name().record()).unwrap();
        assert!(ending.may_have_run && matches!(ending.state, State::Ending { due_ms: 1_000, .. }));
        assert_eq!(shard.timers[&*name().timer()], 1_000);
        put(&mut shard, &turn(READY), Some("5-0"));
        let queue = turn(READY).queue(&name().tenant);
        shard.logs.insert(queue, vec![(EntryId::new("5-0"), vec![])]);
        assert_eq!(shard.result(&check), []);
    }

    #[test]
    fn a_check_repairs_throttle_queue_members_and_timers() {
        let mut shard = Paper::at(1_000);
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
        let check = Check { subject: queue.clone(), mend: true };
        put(&mut shard, &turn(READY), None);
        let decided = shard.decide(&check);
        let mut transaction = Transaction::new(shard.context().version);
        shard.commit(transaction.put(&name().record(), &turn(THROTTLED))).unwrap();
        assert_eq!(shard.finish(&check, decided).result, [], "it waits for the counter since");
        put(&mut shard, &turn(READY), None);
        mends(&mut shard, &queue, &[stranger("acme:t1")]);
        assert!(shard.set(&set).is_empty());
    }

    #[test]
    fn a_turn_released_during_a_repair_is_not_requeued() {
        let mut shard = Paper::at(1_000);
        shard.timers.insert(name().timer().into(), 9_000);
        put(&mut shard, &turn(THROTTLED), None);
        let check = Check { subject: Subject::Turn(name()), mend: true };
        let decided = shard.decide(&check);
        let mut transaction = Transaction::new(shard.context().version);
        shard.commit(transaction.put(&name().record(), &turn(READY))).unwrap();
        assert_eq!(shard.finish(&check, decided).result, []);
        assert!(shard.set(&keys::throttle_queue(&counter())).is_empty());
    }

    fn consumer() -> ConsumerId {
        ConsumerId::new("s-1-a-0").unwrap()
    }

    #[test]
    fn a_check_repairs_an_endless_lease_and_an_unlisted_consumer() {
        let mut shard = Paper::at(1_000);
        let heartbeat = Heartbeat { consumer: consumer(), role: Role::Scheduler, lease_ms: 800, policy: String::new() };
        let subject = Subject::Consumer(consumer());
        shard.run(&heartbeat);
        mends(&mut shard, &subject, &[]);
        shard.sets.clear();
        mends(&mut shard, &subject, &[Fault::ConsumerUnlisted]);
        let mut record: Consumer = shard.record(&workers::key("s-1-a-0")).unwrap();
        record.lease_ends_ms = 1 << 50;
        let mut transaction = Transaction::new(shard.context().version);
        shard.commit(transaction.put(&workers::key("s-1-a-0"), &record)).unwrap();
        let faults = [Fault::LeaseTooLong { ends_ms: 1 << 50 }, Fault::ConsumerUnlisted];
        let check = Check { subject: subject.clone(), mend: true };
        let decided = shard.decide(&check);
        shard.run(&heartbeat);
        assert_eq!(shard.finish(&check, decided).result, [], "its next heartbeat renewed it");
        let mut transaction = Transaction::new(shard.context().version);
        shard.commit(transaction.put(&workers::key("s-1-a-0"), &record)).unwrap();
        assert_eq!(shard.result(&check), faults);
        let record: Consumer = shard.record(&workers::key("s-1-a-0")).unwrap();
        assert_eq!((record.lease_ends_ms, shard.sets[&workers::consumers()]["s-1-a-0"]), (1_800, 1_800));
    }

    #[test]
    fn a_check_removes_a_drain_entry_without_its_flag() {
        let mut shard = Paper::at(1_000);
        let drain = || {
            let entry = AuditEntry { text: Bytes::from_static(b"{}"), entries_max: 10 };
            let change = DrainChange::Drain { note: Default::default(), gone: vec![], entry };
            ChangeDrain { worker: "w-1".into(), change }
        };
        shard.run(&drain());
        let subject = Subject::DrainedWorker("w-1".into());
        mends(&mut shard, &subject, &[]);
        shard.records.clear();
        mends(&mut shard, &subject, &[Fault::WorkerNotDrained]);
        shard.sets.entry(drain::drained()).or_default().insert("w-1".into(), 1);
        let check = Check { subject, mend: true };
        let decided = shard.decide(&check);
        shard.run(&drain());
        assert_eq!(shard.finish(&check, decided).result, [], "it was drained since");
        assert_eq!(shard.set(&drain::drained()), ["w-1"]);
    }
}
