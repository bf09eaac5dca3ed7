//! The outcomes of each transition, and the guards that they need.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use tickfleet_core::keys::{self, limits};
use tickfleet_core::mutants;
use tickfleet_core::recovery::epoch::{JournaledOutcome, ReportBegunCall};
use tickfleet_core::recovery::inbound::TakenInbound;
use tickfleet_core::turn::admit::{AdmitRefusal, AdmitResult};
use tickfleet_core::turn::advance::AdvanceResult;
use tickfleet_core::turn::end::{RenderedCall, return_permits};
use tickfleet_core::turn::limit::{Generations, LimitDecision, WindowKind};
use tickfleet_core::turn::reject::{Reject, Rejected, RejectedTenant};
use tickfleet_core::turn::release::{QueueHead, Rearm, ReleaseResult};
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::turn::submit::{Inbound, Submitted};
use tickfleet_core::turn::throttle::throttle;
use tickfleet_core::turn::{Cancellation, Head, State, Turn};
use tickfleet_core::{CounterKey, EntryId, Query, Record, RecordKey, StreamKey, Transaction, View, Write};
use tickfleet_model::limit::OnReach;
use tickfleet_model::{Call, InboxName, RejectionCode, TenantId};
use tickfleet_store::seam::{Store, run_with};

use crate::block_on;
use crate::fleet::{BEGIN_MS, Fleet, TICK_MS, Table, call, ended, head, release, resolved, turn_name};

const LATER_MS: i64 = BEGIN_MS + 1_000_000_000;
const FIXED: WindowKind = WindowKind::Fixed { length_ms: 60_000 };

fn kelly() -> Head {
    head("kelly", LATER_MS)
}

fn others(calls: usize) -> Vec<Call> {
    vec![call("other", ""); calls]
}

fn tick_of_kelly() -> CounterKey {
    CounterKey::new(limits::TICK, "acme:kelly")
}

async fn inbound(fleet: &mut Fleet) -> EntryId {
    assert_eq!(fleet.submit(None, "{}").await, Submitted::Accepted);
    fleet.take(1).await.remove(0)
}

async fn arrive(fleet: &mut Fleet, head: Head, calls: Vec<Call>) -> (tickfleet_core::keys::TurnName, AdmitResult) {
    let entry = inbound(fleet).await;
    let name = turn_name(&format!("t{entry}"));
    (name, fleet.admit(&(entry, head, calls)).await)
}

fn dispatched(calls: usize) -> AdmitResult {
    AdmitResult::Advanced(AdvanceResult::Dispatched { calls, resumed: false })
}

fn waits_for(admitted: &AdmitResult) -> &str {
    match admitted {
        AdmitResult::Advanced(AdvanceResult::Throttled { counter, .. }) => &counter.limit,
        other => panic!("{other:?}"),
    }
}

async fn reply(fleet: &Fleet, name: &tickfleet_core::keys::TurnName) -> String {
    fleet.finished(name).await.expect("it has not ended").reply
}

#[test]
fn an_accepted_id_is_never_refused() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(10, 100)).await;
        fleet.bounds.turns_max = 1;
        assert_eq!(fleet.submit(Some(("a", "d")), "{}").await, Submitted::Accepted);
        assert_eq!(fleet.submit(Some(("a", "d")), "{}").await, Submitted::Duplicate, "although the stream is full");
        assert_eq!(fleet.submit(Some(("a", "other")), "{}").await, Submitted::Conflict);
        assert_eq!(fleet.submit(Some(("b", "d")), "{}").await, Submitted::QueueFull);
        let entry = fleet.take(1).await.remove(0);
        assert_eq!(fleet.admit_as(&(entry, kelly(), others(1)), Some("a")).await, dispatched(1));
        assert_eq!(fleet.submit(Some(("a", "d")), "{}").await, Submitted::Duplicate);
        fleet.work(1).await;
        assert_eq!(fleet.submit(Some(("a", "d")), "{}").await, Submitted::Duplicate);
        assert_eq!(fleet.submit(Some(("a", "other")), "{}").await, Submitted::Conflict);
    });
}

#[test]
fn an_entry_fences_a_slow_scheduler() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(10, 100)).await;
        let entry = inbound(&mut fleet).await;
        let turn = (entry, kelly(), others(1));
        assert_eq!(fleet.admit(&turn).await, dispatched(1));
        assert_eq!(fleet.admit(&turn).await, AdmitResult::Refused(AdmitRefusal::Conflict));
        fleet.work(1).await;
        assert_eq!(fleet.admit(&turn).await, AdmitResult::NotHeld);
    });
}

#[test]
fn a_turn_canceled_before_arrival_ends_at_once() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(10, 100)).await;
        let entry = inbound(&mut fleet).await;
        let name = turn_name(&format!("t{entry}"));
        let cancel = Cancellation { reason: "no longer needed".into(), admitted_ms: None };
        fleet.write(vec![Write::Put { key: name.cancellation(), content: cancel.encode(), ttl_ms: None }]).await;
        let admitted = fleet.admit(&(entry, kelly(), others(2))).await;
        assert_eq!(ended(&admitted), Some(&EndReason::Canceled));
        let finished = fleet.finished(&name).await.unwrap();
        assert_eq!(finished.canceled.as_deref(), Some("no longer needed"));
        assert_eq!(finished.reply.matches("Canceled").count(), 2);
        assert_eq!(fleet.counter(limits::TICK, "acme:kelly").await.used, 0);
        assert_eq!(fleet.counter(limits::UNFINISHED, "acme").await.used, 0);
    });
}

#[test]
fn an_expired_turn_ends_at_once() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(10, 100)).await;
        let entry = inbound(&mut fleet).await;
        // The scheduler's view is from before the deadline.
        fleet.clock.step(20);
        let turn = (entry, head("kelly", BEGIN_MS + 10), others(1));
        let admitted = fleet.admit(&turn).await;
        assert_eq!(ended(&admitted), Some(&EndReason::Expired));
    });
}

#[test]
fn an_expired_turn_ends_one_lease_after_a_restart() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(10, 100)).await;
        let entry = inbound(&mut fleet).await;
        fleet.clock.step(1);
        // The scheduler's view is from before the restart.
        fleet.store.restart().await.unwrap();
        let turn = (entry.clone(), head("kelly", BEGIN_MS), others(1));
        let admitted = fleet.admit(&turn).await;
        assert_eq!(ended(&admitted), Some(&EndReason::Expired));
        let turn = fleet.turn(&turn_name(&format!("t{entry}"))).await.map(|turn| turn.state);
        let due_ms = BEGIN_MS + 1 + fleet.bounds.lease_ms;
        assert_eq!(turn, Some(State::Ending { reason: EndReason::Expired, due_ms }));
    });
}

#[test]
fn no_call_is_refused_within_the_lease_after_a_restart() {
    block_on(async {
        let mut table = Table::new(10, 100);
        table.resolved_limits = vec![resolved("pay", 100, FIXED, OnReach::Wait)];
        let mut fleet = Fleet::new(table).await;
        let entry = inbound(&mut fleet).await;
        fleet.clock.step(1);
        fleet.store.restart().await.unwrap();
        let turn = (entry.clone(), kelly(), vec![call("pay", "much"), call("other", "")]);
        let admitted = fleet.admit(&turn).await;
        assert_eq!(waits_for(&admitted), "pay");
        let name = turn_name(&format!("t{entry}"));
        assert_eq!(fleet.turn(&name).await.map(|turn| turn.position), Some(0), "a worker may report that it ran");
        fleet.clock.step(fleet.bounds.lease_ms);
        fleet.release().await;
        assert_eq!(fleet.turn(&name).await.map(|turn| turn.position), Some(1));
        assert_eq!(fleet.dispatched.len(), 1, "the second call");
    });
}

#[test]
fn a_restart_blocks_the_current_tick_and_permits_for_a_lease() {
    block_on(async {
        let mut table = Table::new(10, 100);
        table.resolved_limits = vec![resolved("browse", 2, WindowKind::Concurrency, OnReach::Wait)];
        let mut fleet = Fleet::new(table).await;
        arrive(&mut fleet, kelly(), others(1)).await;
        fleet.clock.step(1);
        fleet.store.restart().await.unwrap();
        let (_, admitted) = arrive(&mut fleet, kelly(), others(1)).await;
        assert_eq!(waits_for(&admitted), limits::TICK);
        fleet.clock.step(TICK_MS);
        fleet.release().await;
        assert_eq!(fleet.dispatched.len(), 2, "the next tick is open");
        let (_, admitted) = arrive(&mut fleet, head("robin", LATER_MS), vec![call("browse", "")]).await;
        assert_eq!(waits_for(&admitted), "browse");
        fleet.clock.step(fleet.bounds.lease_ms);
        fleet.release().await;
        assert_eq!(fleet.dispatched.len(), 3);
    });
}

#[test]
fn a_scheduler_with_a_stale_policy_admits_nothing() {
    block_on(async {
        let mut table = Table::new(10, 100);
        table.generations = Generations { policy: 4, settings: 0 };
        let mut fleet = Fleet::new(table).await;
        fleet.write(vec![Write::PolicyGeneration(5)]).await;
        assert_eq!(arrive(&mut fleet, kelly(), others(1)).await.1, AdmitResult::PolicyStale);
    });
}

#[test]
fn a_tenant_does_not_exceed_its_bounds() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(10, 100)).await;
        fleet.bounds.tenant_turns_max = 1;
        assert_eq!(arrive(&mut fleet, kelly(), others(1)).await.1, dispatched(1));
        let full = AdmitResult::Refused(AdmitRefusal::TenantQueueFull);
        assert_eq!(arrive(&mut fleet, kelly(), others(1)).await.1, full);
        fleet.bounds.tenant_turns_max = 9;
        fleet.bounds.tenant_bytes_max = fleet.counter(limits::BYTES, "acme").await.used + 2;
        assert_eq!(arrive(&mut fleet, kelly(), others(1)).await.1, full);
    });
}

#[test]
fn a_release_from_a_stale_record_repeats_no_calls() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(2, 100)).await;
        let (name, admitted) = arrive(&mut fleet, kelly(), others(6)).await;
        assert_eq!(admitted, dispatched(2));
        fleet.work(1).await;
        let mut stale = View::default();
        let parts = (2..6).map(tickfleet_core::turn::end::parts::call).collect();
        for query in [Query::Record(name.record()), Query::Parts(name.record(), parts)] {
            stale.insert(query.clone(), fleet.query(query).await);
        }
        fleet.clock.step(TICK_MS);
        fleet.release().await;
        fleet.work(1).await;
        fleet.clock.step(TICK_MS);
        let release = release(&tick_of_kelly(), &name, &fleet.table, &fleet.bounds);
        run_with(&fleet.store, &fleet.versions, fleet.shard, &mut stale, &[release]).await.unwrap();
        assert_eq!(fleet.turn(&name).await.unwrap().position, 4);
    });
}

#[test]
fn a_tenants_daily_cap_counts_the_calls_of_all_agents() {
    block_on(async {
        let mut table = Table::new(10, 100);
        table.caps.tenant_calls_per_day = Some(3);
        let mut fleet = Fleet::new(table).await;
        assert_eq!(arrive(&mut fleet, kelly(), others(2)).await.1, dispatched(2));
        assert_eq!(arrive(&mut fleet, head("robin", LATER_MS), others(2)).await.1, dispatched(1));
        let (_, admitted) = arrive(&mut fleet, kelly(), others(1)).await;
        assert!(matches!(ended(&admitted), Some(EndReason::DailyCapReached { .. })));
    });
}

#[test]
fn a_resumed_slice_retakes_permits_without_debiting_the_tick_again() {
    block_on(async {
        let mut table = Table::new(10, 100);
        table.resolved_limits = vec![resolved("browse", 1, WindowKind::Concurrency, OnReach::Wait)];
        let mut fleet = Fleet::new(table).await;
        let (name, _) = arrive(&mut fleet, kelly(), vec![call("browse", ""), call("other", "")]).await;
        let mut turn = fleet.turn(&name).await.unwrap();
        let mut park = Transaction::new(fleet.versions.draw());
        return_permits(&mut park, &turn, BEGIN_MS);
        turn.permits.clear();
        let browse = CounterKey::new("browse", "all");
        throttle(&mut park, &name, &mut turn, browse.clone(), BEGIN_MS, BEGIN_MS);
        let call = |at| {
            let text = Bytes::from_static(br#"{"t":"browse","a":""}"#);
            Write::PutPart(name.record(), tickfleet_core::turn::end::parts::call(at), text)
        };
        park.writes.extend([call(0), call(1)]);
        park.write(Write::Add { counter: CounterKey::new(limits::IN_FLIGHT, "acme"), amount: -1, ends_ms: None });
        fleet.store.commit(&[park]).await.unwrap().results.remove(0).unwrap();
        assert_eq!(fleet.counter("browse", "all").await.used, 0);
        fleet.release().await;
        let turn = fleet.turn(&name).await.unwrap();
        assert_eq!((turn.state, turn.permits, turn.debited), (State::Ready { upto: 2 }, vec![(browse, 1)], 2));
        assert_eq!(fleet.counter(limits::TICK, "acme:kelly").await.used, 2, "they were debited before");
        assert_eq!(fleet.counter(limits::IN_FLIGHT, "acme").await.used, 1);
    });
}

async fn put_task(fleet: &Fleet, budget: u64, agent: &str) {
    let task = format!(
        r#"{{"h":{{"ag":"{agent}","dl":{LATER_MS},"dg":"","n":1}},"q":{{"r":"normal"}},"pl":1,"t":0,"b":0,
        "k":{{"bu":{budget}}},"s":{{"s":"running","upto":1}}}}"#
    );
    let task: Turn = serde_json::from_str(&task).unwrap();
    let put = Write::Put { key: turn_name("job").record(), content: task.encode(), ttl_ms: None };
    fleet.write(vec![put]).await;
}

fn under_task() -> Head {
    let task = tickfleet_model::TaskId::new("job").unwrap();
    Head { task: Some((task, tickfleet_model::TaskGrant::default())), ..kelly() }
}

#[test]
fn a_turn_under_a_task_debits_its_budget_and_ends_with_it() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(10, 100)).await;
        let unknown = AdmitResult::Refused(AdmitRefusal::UnknownTask);
        assert_eq!(arrive(&mut fleet, under_task(), others(1)).await.1, unknown);
        put_task(&fleet, 2, "robin").await;
        assert_eq!(arrive(&mut fleet, under_task(), others(1)).await.1, unknown, "the task of another agent");
        put_task(&fleet, 2, "kelly").await;
        let (name, admitted) = arrive(&mut fleet, under_task(), others(3)).await;
        assert_eq!(admitted, dispatched(2));
        assert_eq!(fleet.members(turn_name("job").descendants(), None).await, [name.turn.to_string()]);
        fleet.work(1).await;
        fleet.release().await;
        assert!(reply(&fleet, &name).await.contains("\"ok 1\",\"TaskBudgetReached 2\""));
        assert!(fleet.members(turn_name("job").descendants(), None).await.is_empty());

        put_task(&fleet, 9, "kelly").await;
        fleet.write(vec![Write::DeleteCounter(CounterKey::new(limits::TASK, "acme:job"))]).await;
        fleet.bounds.tenant_in_flight_max = 0;
        let (name, admitted) = arrive(&mut fleet, under_task(), others(1)).await;
        assert_eq!(waits_for(&admitted), limits::IN_FLIGHT);
        fleet.write(vec![Write::Delete(turn_name("job").record())]).await;
        fleet.clock.step(1_000);
        fleet.release().await;
        let finished = fleet.finished(&name).await.unwrap();
        assert_eq!(finished.reason, Some(EndReason::Canceled));
        assert_eq!(finished.canceled.as_deref(), Some("the task that it ran under has ended"));
    });
}

/// A runtime may still hold a canceled task until its lease ends.
#[test]
fn no_turn_begins_under_a_canceled_task() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(10, 100)).await;
        put_task(&fleet, 9, "kelly").await;
        let cancel = |admitted_ms| Write::Put {
            key: turn_name("job").cancellation(),
            content: Cancellation { reason: "no".into(), admitted_ms: Some(admitted_ms) }.encode(),
            ttl_ms: None,
        };
        fleet.write(vec![cancel(1)]).await;
        let (_, admitted) = arrive(&mut fleet, under_task(), others(1)).await;
        assert_eq!(admitted, dispatched(1), "an earlier task of this ID was canceled");
        fleet.write(vec![cancel(0)]).await;
        let (_, admitted) = arrive(&mut fleet, under_task(), others(1)).await;
        assert_eq!(admitted, AdmitResult::Refused(AdmitRefusal::UnknownTask));
    });
}

#[test]
fn an_inner_call_of_an_ended_turn_does_not_run() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(10, 100)).await;
        let entry = inbound(&mut fleet).await;
        let admitted = fleet.admit_as(&(entry, kelly(), others(1)), Some("gone.0.call-1")).await;
        assert_eq!(ended(&admitted), Some(&EndReason::Canceled));
        let (outer, _) = arrive(&mut fleet, kelly(), others(1)).await;
        let inner = format!("{}.0.call-1", outer.turn);
        let entry = inbound(&mut fleet).await;
        assert_eq!(fleet.admit_as(&(entry, kelly(), others(1)), Some(&inner)).await, dispatched(1));
        assert_eq!(fleet.members(outer.descendants(), None).await, [inner]);
    });
}

#[test]
fn a_waiting_turn_ends_when_its_agent_is_removed() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(1, 100)).await;
        arrive(&mut fleet, kelly(), others(1)).await;
        let (name, admitted) = arrive(&mut fleet, kelly(), others(2)).await;
        assert_eq!(waits_for(&admitted), limits::TICK);
        let mut table = Table::new(1, 100);
        table.fixed = Some(LimitDecision::AgentRemoved);
        fleet.table = Arc::new(table);
        fleet.clock.step(TICK_MS);
        fleet.release().await;
        assert_eq!(fleet.finished(&name).await.unwrap().reason, Some(EndReason::AgentRemoved));
    });
}

#[test]
fn turns_leave_a_throttle_queue_in_order() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(1, 100)).await;
        arrive(&mut fleet, kelly(), others(1)).await;
        let (first, _) = arrive(&mut fleet, kelly(), others(1)).await;
        let (second, _) = arrive(&mut fleet, kelly(), others(1)).await;
        fleet.clock.step(TICK_MS);
        let (bounds, table) = (fleet.bounds.clone(), Arc::clone(&fleet.table));
        let released = fleet.run(&[release(&tick_of_kelly(), &second, &table, &bounds)]).await;
        assert_eq!(released, [ReleaseResult::Behind]);
        assert_eq!(waits_for(&arrive(&mut fleet, kelly(), others(1)).await.1), limits::TICK, "behind the queue");
        fleet.release().await;
        assert_eq!(fleet.dispatched[1..], [first]);
    });
}

#[test]
fn an_unreadable_tenant_does_not_block_the_throttle_queue() {
    block_on(async {
        let mut table = Table::new(10, 100);
        table.resolved_limits = vec![resolved("mail", 1, FIXED, OnReach::Wait)];
        let resolved_limits = table.resolved_limits.clone();
        let mut fleet = Fleet::new(table).await;
        arrive(&mut fleet, kelly(), vec![call("mail", "")]).await;
        let (name, admitted) = arrive(&mut fleet, kelly(), vec![call("mail", "")]).await;
        assert_eq!(waits_for(&admitted), "mail");
        let mut table = Table::new(10, 100);
        table.fixed = Some(LimitDecision::Withheld);
        fleet.table = Arc::new(table);
        fleet.clock.step(60_000);
        fleet.release().await;
        let state = fleet.turn(&name).await.unwrap().state;
        assert!(matches!(state, State::Throttled { counter, .. } if &*counter.limit == limits::TICK));
        let mut table = Table::new(10, 100);
        table.resolved_limits = resolved_limits;
        fleet.table = Arc::new(table);
        assert_eq!(fleet.release().await.len(), 0, "it is not looked at before a second has passed");
        fleet.clock.step(1_000);
        fleet.release().await;
        assert_eq!(fleet.dispatched.len(), 2);
    });
}

#[test]
fn stale_queue_members_and_timers_of_empty_queues_are_removed() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(1, 100)).await;
        let counter = tick_of_kelly();
        let set = keys::throttle_queue(&counter);
        let join = |member: &str, score| Write::AddMember {
            set: set.clone(),
            member: member.into(),
            score,
            queue_of: Some(counter.clone()),
        };
        fleet.write(vec![join("acme:gone", 1), join("no name", 2)]).await;
        let due_ms = BEGIN_MS;
        let timer = keys::throttle_timer(&counter).into();
        fleet.write(vec![Write::Timer { name: timer, due_ms, rule: tickfleet_core::TimerRule::Set }]).await;
        assert_eq!(fleet.release().await, [(turn_name("gone"), ReleaseResult::Gone)]);
        assert!(fleet.members(set.clone(), None).await.is_empty());
        assert!(fleet.members(keys::timers(), None).await.is_empty());
        assert!(!fleet.counter(limits::TICK, "acme:kelly").await.queued);
        // A turn joins the queue after a scheduler has read the queue as empty.
        let mut stale = View::default();
        let query = Query::First { set: set.clone(), upto: None, count: 16 };
        stale.insert(query.clone(), fleet.query(query).await);
        fleet.write(vec![join("acme:late", 3)]).await;
        let rearm = [Rearm { counter: counter.clone() }];
        let (_, results) = run_with(&fleet.store, &fleet.versions, fleet.shard, &mut stale, &rearm).await.unwrap();
        assert_eq!(results[0].as_ref().unwrap().result, QueueHead::Turns(Vec::new()));
        assert_eq!(fleet.members(keys::timers(), None).await, [keys::throttle_timer(&counter)]);
    });
}

#[test]
fn a_stale_rearm_does_not_delay_a_new_first_turn() {
    block_on(async {
        let fleet = Fleet::new(Table::new(1, 100)).await;
        let counter = tick_of_kelly();
        let set = keys::throttle_queue(&counter);
        let timer = keys::throttle_timer(&counter);
        let join = |member: &str, score| {
            let set = set.clone();
            let queue_of = Some(counter.clone());
            let timer = timer.as_str().into();
            let add = Write::AddMember { set, member: member.into(), score, queue_of };
            vec![add, Write::Timer { name: timer, due_ms: BEGIN_MS, rule: tickfleet_core::TimerRule::Earlier }]
        };
        fleet.write(join("acme:b", 2)).await;
        let mut stale = View::default();
        let query = Query::First { set: set.clone(), upto: None, count: 16 };
        stale.insert(query.clone(), fleet.query(query).await);
        fleet.write(join("acme:a", 1)).await;
        let rearm = [Rearm { counter: counter.clone() }];
        run_with(&fleet.store, &fleet.versions, fleet.shard, &mut stale, &rearm).await.unwrap();
        let due = fleet.members(keys::timers(), Some(u64::try_from(BEGIN_MS).unwrap())).await;
        assert_eq!(due, std::slice::from_ref(&timer));
    });
}

#[test]
fn a_rejected_message_is_a_dead_letter_with_a_reply_and_frees_its_own_id() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(10, 100)).await;
        fleet.submit(Some(("a", "d")), "{}").await;
        let entry = fleet.take(1).await.remove(0);
        let bounds = fleet.bounds.clone();
        let epoch = fleet.shard.epoch;
        let taken = |entry: &EntryId| TakenInbound { id: entry.clone(), epoch };
        let reject = || {
            let tenant = TenantId::new("acme").unwrap();
            let reply = Some((InboxName::new("box").unwrap(), Bytes::from_static(b"{}")));
            Reject {
                from: Inbound::Turns,
                entry: taken(&entry),
                reason: RejectionCode::UnknownAgent,
                raw: Bytes::from_static(b"raw"),
                tenant: Some(RejectedTenant::Known { tenant, reply }),
                given: Some((turn_name("a"), "d".to_owned())),
                turn: None,
                bounds: &bounds,
            }
        };
        assert_eq!(fleet.run(&[reject()]).await[0], Rejected::Done { replied: true });
        assert_eq!(fleet.run(&[reject()]).await[0], Rejected::NotHeld);
        assert_eq!(fleet.entries(keys::dead()).await, 1);
        assert_eq!(fleet.entries(StreamKey::new("replies:acme:box")).await, 1);
        assert_eq!(fleet.submit(Some(("a", "other")), "{}").await, Submitted::Accepted, "the ID is free again");
        fleet.submit(None, "{}").await;
        let [own, foreign] = fleet.take(2).await.try_into().unwrap();
        let absent = || Some(RejectedTenant::Absent(TenantId::new("nobody").unwrap()));
        let other = Reject { entry: taken(&foreign), tenant: absent(), ..reject() };
        assert_eq!(fleet.run(&[other]).await[0], Rejected::Done { replied: false });
        assert_eq!(
            fleet.submit(Some(("a", "other")), "{}").await,
            Submitted::Duplicate,
            "the ID of other content stays"
        );
        let given = Some((turn_name("a"), "other".to_owned()));
        let reject = Reject { entry: taken(&own), tenant: absent(), given, ..reject() };
        assert_eq!(fleet.run(&[reject]).await[0], Rejected::Done { replied: false });
        assert_eq!(fleet.submit(Some(("a", "new")), "{}").await, Submitted::Accepted, "the ID is free again");
        let note = fleet.query(Query::Record(RecordKey::new("absent:nobody"))).await;
        assert!(matches!(note, tickfleet_core::Value::Record(Some(_))));
    });
}

/// After a restart that lost entries, the store may give the ID of a lost entry to another entry.
#[test]
fn an_inbound_entry_is_decided_only_in_its_epoch() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(10, 100)).await;
        fleet.submit(Some(("a", "d")), "{}").await;
        let entry = fleet.take(1).await.remove(0);
        let message = (entry, kelly(), others(1));
        fleet.taken_epoch = Some(fleet.shard.epoch);
        fleet.store.restart().await.unwrap();
        let admitted = fleet.admit_as(&message, Some("a")).await;
        assert_eq!(admitted, AdmitResult::NotHeld);
        fleet.taken_epoch = None;
        let taken_again = fleet.admit_as(&message, Some("a")).await;
        assert!(matches!(taken_again, AdmitResult::Advanced(_)), "{taken_again:?}");
    });
}

/// A restart loses the admission of a turn that has already run calls. The fleet's limits would refuse the turn now.
#[test]
fn a_turn_with_calls_run_before_a_restart_is_not_rejected() {
    block_on(async {
        for reason in ["bounds", "agent", "task"] {
            let mut table = Table::new(10, 100);
            let mut under = kelly();
            match reason {
                "agent" => table.fixed = Some(LimitDecision::AgentRemoved),
                "task" => under = under_task(),
                _ => {}
            }
            let mut fleet = Fleet::new(table).await;
            fleet.bounds.tenant_turns_max = u64::from(reason != "bounds");
            fleet.submit(Some(("a", "d")), "{}").await;
            let entry = fleet.take(1).await.remove(0);
            fleet.store.restart().await.unwrap();
            fleet.shard = fleet.store.shard().await.unwrap();
            let message = (entry.clone(), under, others(1));
            let refused = fleet.admit_as(&message, Some("a")).await;
            let AdmitResult::Refused(refusal) = refused else { panic!("{reason}: {refused:?}") };
            let bounds = fleet.bounds.clone();
            let reject = Reject {
                from: Inbound::Turns,
                entry: TakenInbound { id: entry, epoch: fleet.shard.epoch },
                reason: refusal.code(),
                raw: Bytes::from_static(b"raw"),
                tenant: None,
                given: Some((turn_name("a"), "d".to_owned())),
                turn: Some((turn_name("a"), "d".to_owned())),
                bounds: &bounds,
            };
            let Rejected::Later(at_ms) = fleet.run(&[reject]).await[0] else { panic!("{reason}: rejected") };
            let mark = ReportBegunCall {
                name: turn_name("a"),
                digest: "d".to_owned(),
                position: 0,
                by: "w1.1".to_owned(),
                once: true,
                outcome: JournaledOutcome::Ended(Box::new(RenderedCall {
                    result: "\"paid\"".into(),
                    ..RenderedCall::default()
                })),
                keep_ms: 100_000,
            };
            fleet.run(&[mark]).await;
            fleet.clock.step(at_ms - fleet.shard.now_ms);
            fleet.shard = fleet.store.shard().await.unwrap();
            let admitted = fleet.admit_as(&message, Some("a")).await;
            match reason {
                "bounds" => assert_eq!(admitted, dispatched(1)),
                _ => {
                    assert!(
                        matches!(admitted, AdmitResult::Advanced(AdvanceResult::Ended { .. })),
                        "{reason}: {admitted:?}"
                    );
                    assert!(reply(&fleet, &turn_name("a")).await.contains("[\"paid\"]"), "{reason}");
                }
            }
        }
    });
}

#[test]
fn outcomes_detect_missing_guards() {
    let guards: [(&str, fn()); 15] = [
        ("refusals_read_recovered_calls", a_turn_with_calls_run_before_a_restart_is_not_rejected),
        ("an_inbound_entry_is_of_its_epoch", an_inbound_entry_is_decided_only_in_its_epoch),
        ("refuse_waits_for_the_lease", no_call_is_refused_within_the_lease_after_a_restart),
        ("admit_bounds_the_tenant", a_tenant_does_not_exceed_its_bounds),
        ("admit_holds_the_entry", an_entry_fences_a_slow_scheduler),
        ("admit_knows_the_cancel", a_turn_canceled_before_arrival_ends_at_once),
        ("admit_knows_the_cancel_of_the_task", no_turn_begins_under_a_canceled_task),
        ("dispatch_before_the_deadline", an_expired_turn_ends_at_once),
        ("end_waits_for_the_lease", an_expired_turn_ends_one_lease_after_a_restart),
        ("limits_guard_the_generation", a_scheduler_with_a_stale_policy_admits_nothing),
        ("rearm_guards_the_first", a_stale_rearm_does_not_delay_a_new_first_turn),
        ("reject_keeps_the_id_of_another", a_rejected_message_is_a_dead_letter_with_a_reply_and_frees_its_own_id),
        ("release_in_order", turns_leave_a_throttle_queue_in_order),
        ("release_guards_the_version", a_release_from_a_stale_record_repeats_no_calls),
        ("submit_knows_the_id", an_accepted_id_is_never_refused),
    ];
    for (mutant, test) in guards {
        let failed = catch_unwind(AssertUnwindSafe(|| mutants::with(mutant, test))).is_err();
        assert!(failed, "{mutant}");
    }
}
