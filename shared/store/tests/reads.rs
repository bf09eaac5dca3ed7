//! Reads of a shard in memory, as people and exporters see it.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value as Json, json};
use tickfleet_core::keys::{self, limits};
use tickfleet_core::turn::Turn;
use tickfleet_core::workers::{Heartbeat, Role, Slots};
use tickfleet_core::{CounterKey, Transaction, Write};
use tickfleet_model::{AgentId, ConsumerId, TenantId};
use tickfleet_store::seam::TakeRequest;
use tickfleet_store::seam::memory::MemoryStore;
use tickfleet_store::{AuditSearch, Store, StoreOptions, TurnName, TurnView, Watch};

struct Shard {
    store: Store,
}

impl Shard {
    fn new() -> Self {
        Self { store: Store::in_memory(MemoryStore::default(), 0, Arc::new(StoreOptions::default())) }
    }

    async fn write(&self, write: impl FnOnce(&mut Transaction)) {
        let mut transaction = Transaction::new(self.store.versions().draw());
        write(&mut transaction);
        let batch = self.store.seam().commit(&[transaction]).await.unwrap();
        batch.results.into_iter().for_each(|result| drop(result.unwrap()));
    }

    async fn turn(&self, id: &str, state: Json) -> TurnName {
        let name = TurnName::parse(&format!("acme:{id}")).unwrap();
        let turn: Turn = serde_json::from_value(json!({
            "h": {"ag": "kelly", "dl": 9_000, "dg": "d", "n": 2},
            "q": {"r": "normal"}, "pl": 1, "t": 500, "b": 10, "s": state,
        }))
        .unwrap();
        self.write(|transaction| {
            transaction.put(&name.record(), &turn);
        })
        .await;
        name
    }

    async fn now_ms(&self) -> i64 {
        self.store.now_ms().await.unwrap()
    }
}

fn tenant() -> TenantId {
    TenantId::new("acme").unwrap()
}

fn part(text: &str) -> Bytes {
    Bytes::from(text.to_owned())
}

#[tokio::test]
async fn a_throttled_turn_shows_its_queue_counter_and_calls() {
    let shard = Shard::new();
    let counter = CounterKey::new("mails", "acme:u1");
    let state = json!({"s": "throttled", "counter": ["mails", "acme:u1"], "since_ms": 500});
    let name = shard.turn("t1", state).await;
    shard
        .write(|transaction| {
            let call = json!({"position": 0, "tool_call_id": null, "tool": "send", "arguments": "{}"});
            transaction.write(Write::PutPart(name.record(), "c0".into(), part(&call.to_string())));
            let set = keys::throttle_queue(&counter);
            let member = name.to_string().into();
            transaction.write(Write::AddMember { set, member, score: 1, queue_of: Some(counter.clone()) });
            transaction.write(Write::Add { counter: counter.clone(), amount: 3, ends_ms: None });
            transaction.timer(keys::throttle_timer(&counter), 7_000, tickfleet_core::TimerRule::Set);
            transaction.timer(name.timer(), 9_000, tickfleet_core::TimerRule::Set);
        })
        .await;
    let TurnView::Live(live) = shard.store.turn_view(&name).await.unwrap() else { panic!("the turn is under way") };
    assert_eq!((live.timer_ms, live.throttle_due_ms, live.holder.clone()), (Some(9_000), Some(7_000), None));
    assert!(live.first_call().is_some_and(|call| call.contains("send")));
    let budget = shard.store.budget("kelly", &name, Some(&counter)).await.unwrap();
    assert_eq!((budget.ahead_on_lane, budget.counter.map(|counter| counter.held)), (Some(0), Some(3)));
    let stand = shard.store.followed_turns(&[(name.clone(), 0)]).await.unwrap().remove(0).unwrap().unwrap();
    assert_eq!((stand.due_ms, stand.is_held), (Some(7_000), false));
    assert_eq!(shard.store.throttled_turn(&name).await.unwrap().unwrap().due_ms, Some(7_000));
    assert_eq!(shard.store.scan_turns(Some(&tenant()), 0).await.unwrap(), (0, vec![name.clone()]));
    assert_eq!(shard.store.are_under_way(std::slice::from_ref(&name)).await.unwrap(), [true]);
    let view = Watch::new(shard.store.clone()).poll().await.unwrap();
    assert_eq!((view.timers, view.throttle_queues.len(), view.throttle_queues_whole), (2, 1, true));
    assert_eq!((view.throttle_queues[0].limit.as_deref(), view.throttle_queues[0].turns), (Some("mails"), 1));
    let unknown = TurnName::parse("acme:other").unwrap();
    assert!(matches!(shard.store.turn_view(&unknown).await.unwrap(), TurnView::Unknown));
}

#[tokio::test]
async fn a_held_slice_shows_its_holder_and_its_calls() {
    let shard = Shard::new();
    let name = TurnName::parse("acme:t1").unwrap();
    let turn: Turn = serde_json::from_value(json!({
        "h": {"ag": "kelly", "dl": 9_000, "dg": "d", "n": 2},
        "q": {"r": "normal"}, "pl": 1, "t": 500, "b": 10, "s": {"s": "ready", "upto": 2},
    }))
    .unwrap();
    let queue = turn.queue(&name.tenant);
    shard
        .write(|transaction| {
            let fields = [("c", "first"), ("c", "second")].map(|(field, text)| (field.into(), part(text)));
            transaction.write(Write::Enqueue(queue.clone(), fields.to_vec())).put(&name.record(), &turn);
        })
        .await;
    let take = TakeRequest { consumer: "w-1".into(), queues: vec![queue], count: 1, wait_ms: 0 };
    shard.store.seam().take(&take).await.unwrap();
    let TurnView::Live(live) = shard.store.turn_view(&name).await.unwrap() else { panic!("the turn is under way") };
    assert_eq!((live.holder.as_deref(), live.next_call()), (Some("w-1"), Some("first")));
    assert!(live.held_ms.is_some());
    let load = shard.store.fleet_load().await.unwrap();
    assert_eq!((load.in_flight, load.read), (1, Some(1)));
    let backlog = shard.store.backlog(&[], &[]).await.unwrap();
    assert_eq!((backlog.running, backlog.ready), (1, 0));
}

#[tokio::test]
async fn counters_show_what_agents_and_tenants_have_used() {
    let shard = Shard::new();
    let agent = AgentId::new("kelly").unwrap();
    let add = |transaction: &mut Transaction, limit: &str, counter: &str, amount| {
        transaction.write(Write::Add { counter: CounterKey::new(limit, counter), amount, ends_ms: None });
    };
    shard
        .write(|transaction| {
            add(transaction, limits::TICK, "acme:kelly", 3);
            add(transaction, limits::DAY, "acme:kelly", 8);
            add(transaction, limits::UNFINISHED, "acme", 2);
            add(transaction, limits::IN_FLIGHT, "acme", 1);
        })
        .await;
    let standing = shard.store.tenant_usage(&tenant(), std::slice::from_ref(&agent)).await.unwrap();
    assert_eq!((standing.unfinished, standing.in_flight), (2, 1));
    assert_eq!((standing.agents[0].tick_used, standing.agents[0].day_used), (3, 8));
    let (budgets, complete) = shard.store.budgets(10).await.unwrap();
    assert_eq!((budgets["acme:kelly"], complete), (standing.agents[0], true));
    assert_eq!(shard.store.budgets_of(&["acme:kelly".into(), "acme:bob".into()]).await.unwrap().len(), 1);
    let backlog = shard.store.backlog(&[tenant()], &[]).await.unwrap();
    assert_eq!(backlog.parked, 1, "one turn is neither out nor parked");
}

#[tokio::test]
async fn consumers_show_their_leases_and_slots() {
    let shard = Shard::new();
    let role = Role::Worker { worker: "w-1".into(), slots: Slots { busy: 1, all: 4 } };
    let consumer = ConsumerId::new("w-1-abc-0").unwrap();
    let heartbeat = Heartbeat { consumer, role, lease_ms: 10_000, policy: "abc".into() };
    shard.store.decide(heartbeat).await.unwrap();
    let nodes = shard.store.nodes(shard.now_ms().await).await.unwrap();
    assert_eq!(nodes.len(), 1);
    assert!(nodes[0].lease_left_ms > 0 && nodes[0].slots == Some(Slots { busy: 1, all: 4 }));
    assert_eq!(shard.store.fleet_load().await.unwrap().slots, 4);
    let facts = shard.store.facts().await.unwrap();
    assert_eq!(facts.policies.get("w-1-abc-0").map(String::as_str), Some("abc"));
    assert!(!facts.used, "nobody has announced a policy");
    assert!(shard.store.nodes(shard.now_ms().await + 1_000_000).await.unwrap().is_empty(), "gone for long");
}

#[tokio::test]
async fn logs_are_read_in_both_directions_and_searched() {
    let shard = Shard::new();
    for number in 0..3 {
        let text = format!(r#"{{"tenant":"acme","turn":"t1","call":"t1/{number}"}}"#);
        shard
            .write(|transaction| {
                let fields = vec![("audit".into(), part(&text))];
                transaction.write(Write::Append { log: keys::audit(), fields, max_entries: 100 });
            })
            .await;
    }
    let page = shard.store.log_page("0-0", 2).await.unwrap();
    assert_eq!((page.entries.len(), page.added, page.length), (2, 3, 3));
    assert_eq!(page.first.as_ref(), Some(&page.entries[0].id));
    let newest = shard.store.log_entries_back("+", "-", 1).await.unwrap();
    assert!(newest[0].text.contains("t1/2"));
    let after = shard.store.log_entries(&format!("({}", page.entries[1].id), "+", 10).await.unwrap();
    assert_eq!(after, newest);
    assert_eq!(shard.store.log_entries_back(&format!("({}", newest[0].id), "-", 10).await.unwrap().len(), 2);
    let name = TurnName::parse("acme:t1").unwrap();
    let search = AuditSearch {
        from_ms: 0,
        until_ms: i64::MAX,
        likely_ms: vec![0],
        from_the_end: false,
        position: Some(1),
        expected: Some(1),
        read_max: 10,
    };
    let found = shard.store.audit_of(&name, &search).await.unwrap();
    assert!(found.complete && found.entries.len() == 1 && found.entries[0].contains("t1/1"));
    assert!(shard.store.dead_letters(5).await.unwrap().is_empty());
    assert_eq!(shard.store.unsealed_ms().await.unwrap() / 60_000, 0);
}
