//! Many turns depend on each other. No call may be denied because another turn has not set a fact yet.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_model::policy::{DefaultCaps, FactRow};
use tickfleet_model::{Effect, Policy};
use tickfleet_store::StoreOptions;
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tests::inbox::submit_all;
use tickfleet_tests::killable::KillableProcess;
use tickfleet_tools::{ToolError, TypedTool};

use crate::calls::facts::{change, condition, row};

const SESSIONS: usize = 250;
/// Each tool needs the fact that the previous tool sets.
const CHAIN: [&str; 4] = ["quote", "order", "ship", "bill"];

fn with_facts(policy: &mut Policy) {
    for (at, tool) in CHAIN.iter().enumerate() {
        let require = at.checked_sub(1).map(|before| condition(&format!("{}_done(/item)", CHAIN[before])));
        let sets = vec![change(&format!("{tool}_done(/item)"))];
        let facts = FactRow { require: require.into_iter().collect(), sets, ..FactRow::default() };
        policy.permissions.matrix.insert((*tool).into(), row(facts));
    }
}

fn plan() -> Plan {
    let tool = |name: &'static str| {
        TypedTool::new(name, "A step.", Effect::Idempotent, |_, _: Value| async {
            // The next turn must find this call running.
            tokio::time::sleep(Duration::from_millis(3)).await;
            Ok::<_, ToolError>(json!("done"))
        })
    };
    Plan {
        schedulers: 0,
        workers: 0,
        tools: CHAIN.into_iter().map(tool).collect(),
        policy: with_facts,
        agents: (0..10).map(|n| format!("a{n}")).collect(),
        caps: DefaultCaps { calls_per_tick: 10_000, max_actions_per_day: 100_000, ..DefaultCaps::default() },
        store: StoreOptions { lease_ms: 1_000, crashes_max: 20, ..StoreOptions::default() },
        ..Plan::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_cause_no_denial_among_a_thousand_dependent_turns() {
    let fleet = Fleet::start(plan()).await;
    let turns: Vec<Value> = (0..SESSIONS * CHAIN.len())
        .map(|n| {
            let session = n / CHAIN.len();
            let at = n % CHAIN.len();
            json!({"turn_id": format!("t{n}"), "tenant": "acme", "agent": format!("a{}", n % 10), "reply_to": "box",
                "session_id": format!("s{session}"),
                "calls": [{"name": CHAIN[at], "arguments": {"item": session}}]})
        })
        .collect();
    let mut parts = [KillableProcess::both(&fleet, "a"), KillableProcess::both(&fleet, "b")];
    submit_all(&fleet.server, fleet.store.keys(), &turns).await;
    let mut inbox = fleet.inbox("box").await;
    let mut answered = BTreeSet::new();
    let mut kills = 0;
    while answered.len() < turns.len() {
        let replies = inbox.next(PATIENCE).await;
        assert!(!replies.is_empty(), "{} turns are answered, then nothing for {PATIENCE:?}", answered.len());
        for reply in replies {
            assert_eq!(reply["results"][0]["outcome"], "ok", "{reply:#}");
            assert!(answered.insert(reply["turn_id"].as_str().unwrap().to_owned()), "answered twice: {reply}");
        }
        if answered.len() > (kills + 1) * turns.len() / 7 && kills < 6 {
            kills += 1;
            let other = KillableProcess::both(&fleet, &format!("after{kills}"));
            std::mem::replace(&mut parts[kills % 2], other).kill();
        }
    }
    assert_eq!(kills, 6);
    drop(parts);
    fleet.stop().await;
}
