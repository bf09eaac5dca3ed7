//! Facts of sessions. A call waits for a running call that can set a needed fact.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_model::policy::{Fact, FactChange, FactCondition, FactRow, FactScope, RuleMode, TenantPolicy, ToolGrant};
use tickfleet_model::{Effect, Outcome, Policy, TenantId, TurnId};
use tickfleet_store::{TurnName, TurnView};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::killable::KillableProcess;
use tickfleet_tools::{ToolError, TypedTool};
use tokio::sync::Semaphore;

pub(crate) fn change(fact: &str) -> FactChange {
    FactChange { fact: Fact::parse(fact).unwrap(), on: [Outcome::Ok].into(), kept_ms: 3_600_000 }
}

pub(crate) fn condition(fact: &str) -> FactCondition {
    FactCondition { fact: Fact::parse(fact).unwrap(), mode: RuleMode::Enforce, message: None }
}

pub(crate) fn row(facts: FactRow) -> ToolGrant {
    ToolGrant { everyone: true, facts, ..ToolGrant::default() }
}

/// `order` needs and uses up a quote. `pay` is denied after `mail`, until `trust` clears the fact.
fn with_facts(policy: &mut Policy) {
    let rows = [
        ("quote", FactRow { sets: vec![change("quoted(/item)")], ..FactRow::default() }),
        ("mail", FactRow { sets: vec![change("read_untrusted")], ..FactRow::default() }),
        (
            "order",
            FactRow {
                require: vec![condition("quoted(/item)")],
                clears: vec![change("quoted(/item)")],
                ..FactRow::default()
            },
        ),
        ("pay", FactRow { forbid: vec![condition("read_untrusted")], ..FactRow::default() }),
        ("trust", FactRow { clears: vec![change("read_untrusted")], ..FactRow::default() }),
        (
            "watch",
            FactRow {
                forbid: vec![FactCondition { mode: RuleMode::Shadow, ..condition("read_untrusted") }],
                ..FactRow::default()
            },
        ),
        ("of_agent", FactRow { sets: vec![change("read_untrusted")], of: FactScope::Agent, ..FactRow::default() }),
        ("wire", FactRow { forbid: vec![condition("read_untrusted")], of: FactScope::Agent, ..FactRow::default() }),
        ("look", FactRow::default()),
        (
            "refund",
            FactRow { forbid: vec![condition("refunded")], sets: vec![change("refunded")], ..FactRow::default() },
        ),
    ];
    for (tool, facts) in rows {
        policy.permissions.matrix.insert(tool.into(), row(facts));
    }
    policy.tenants.insert(TenantId::new("bolt").unwrap(), TenantPolicy::default());
}

/// Tools wait here if their argument `gate` is true.
#[derive(Clone)]
struct Gate {
    /// One permit for each tool that has reached the gate.
    came: Arc<Semaphore>,
    /// One permit for each tool that may pass the gate.
    open: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Self {
        Self { came: Arc::new(Semaphore::new(0)), open: Arc::new(Semaphore::new(0)) }
    }

    async fn reached(&self) {
        tokio::time::timeout(Duration::from_secs(60), self.came.acquire()).await.unwrap().unwrap().forget();
    }
}

fn tool(name: &'static str, effect: Effect, gate: &Gate) -> TypedTool {
    let gate = gate.clone();
    TypedTool::new(name, "A tool.", effect, move |_, arguments: Value| {
        let gate = gate.clone();
        async move {
            if arguments["gate"] == true {
                gate.came.add_permits(1);
                gate.open.acquire().await.map_err(ToolError::internal)?.forget();
            }
            match arguments["end"].as_str() {
                Some("refuses") => Err(ToolError::Permanent("No.".into())),
                Some("breaks") => Err(ToolError::internal("it broke")),
                _ => Ok(json!({"done": name})),
            }
        }
    })
}

fn plan(open: &Gate) -> Plan {
    let reads = ["quote", "mail", "of_agent", "watch", "look"].map(|name| tool(name, Effect::Read, open));
    let once = ["order", "pay", "trust", "refund", "wire"].map(|name| tool(name, Effect::Once, open));
    Plan {
        tools: reads.into_iter().chain(once).collect(),
        agents: vec!["kelly".into(), "fran".into()],
        policy: with_facts,
        slots: 4,
        ..Plan::default()
    }
}

fn calls(calls: &[(&str, Value)]) -> Vec<Value> {
    calls.iter().map(|(name, arguments)| json!({"name": name, "arguments": arguments})).collect()
}

fn in_session(session: &str, of: &[(&str, Value)]) -> Value {
    json!({"session_id": session, "calls": calls(of)})
}

fn outcomes(reply: &Value) -> Vec<&str> {
    reply["results"].as_array().unwrap().iter().map(|result| result["outcome"].as_str().unwrap()).collect()
}

async fn run(fleet: &mut Fleet, turn: Value) -> Value {
    fleet.submit_turn(turn).await;
    fleet.reply().await
}

/// Returns the turn for which `turn` waits.
pub(crate) async fn waits(fleet: &Fleet, turn: &str) -> String {
    let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new(turn).unwrap() };
    loop {
        if let TurnView::Live(live) = fleet.store.turn_view(&name).await.unwrap()
            && let Some(awaits) = live.turn.state.awaits()
        {
            return awaits.to_string();
        }
        // Redis does not announce the wait, so this polls.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_call_is_denied_until_its_required_fact_is_set() {
    let mut fleet = Fleet::start(plan(&Gate::new())).await;
    let item = json!({"item": "bolt"});
    let reply = run(
        &mut fleet,
        in_session(
            "s1",
            &[
                ("order", item.clone()),
                ("quote", item.clone()),
                ("order", json!({"item": "nut"})),
                ("order", item.clone()),
                ("order", item.clone()),
            ],
        ),
    )
    .await;
    assert_eq!(outcomes(&reply), ["denied", "ok", "denied", "ok", "denied"], "{reply:#}");
    let error = |at: usize| &reply["results"][at]["error"];
    let may_not = "You may not call \"order\" now: it needs the fact \"quoted(/item)\", ";
    assert_eq!(
        error(0)["message"],
        format!("{may_not}which nothing in this session has set. Call quote first."),
        "{reply:#}"
    );
    let details = &error(0)["details"];
    assert_eq!(
        (&details["reason"], &details["rule"], &details["fact"]),
        (&json!("fact_missing"), &json!("permissions.order.facts.require.quoted"), &json!("quoted(/item)"))
    );
    let cleared = error(4)["message"].as_str().unwrap();
    let by = reply["turn_id"].as_str().unwrap();
    assert!(cleared.starts_with(&format!("{may_not}which {by}/3 cleared at ")), "{cleared}");
    assert_eq!(error(4)["details"]["by"], format!("{by}/3"));
    assert_eq!(outcomes(&run(&mut fleet, in_session("s1", &[("quote", item.clone())])).await), ["ok"]);
    for (other, outcome) in [
        (json!({"session_id": "s2", "calls": calls(&[("order", item.clone())])}), "denied"),
        (json!({"agent": "fran", "calls": calls(&[("order", item.clone())])}), "denied"),
        (json!({"session_id": "s1", "agent": "fran", "calls": calls(&[("order", item.clone())])}), "ok"),
    ] {
        let reply = run(&mut fleet, other).await;
        assert_eq!(outcomes(&reply), [outcome], "{reply:#}");
    }
    assert_eq!(outcomes(&run(&mut fleet, in_session("s1", &[("quote", item.clone())])).await), ["ok"]);
    let bolt = json!({"tenant": "bolt", "session_id": "s1", "calls": calls(&[("order", item)])});
    fleet.submit_turn(bolt).await;
    let reply = fleet.reply_in("bolt:box", Duration::from_secs(60)).await.unwrap();
    assert_eq!(outcomes(&reply), ["denied"], "another tenant's session of the same name: {reply:#}");
    fleet.stop().await;
}

#[tokio::test]
async fn a_forbidden_fact_denies_a_call_until_cleared_except_in_shadow_mode() {
    let mut fleet = Fleet::start(plan(&Gate::new())).await;
    let of = [("pay", json!({})), ("mail", json!({})), ("pay", json!({})), ("watch", json!({}))];
    let reply = run(&mut fleet, json!({"calls": calls(&of), "tool_call_audits": true})).await;
    assert_eq!(outcomes(&reply), ["ok", "ok", "denied", "ok"], "{reply:#}");
    let error = &reply["results"][2]["error"];
    let by = format!("{}/1", reply["turn_id"].as_str().unwrap());
    let message = error["message"].as_str().unwrap();
    let begin = "You may not call \"pay\" now: it is not allowed with the fact \"read_untrusted\", which ";
    assert!(message.starts_with(&format!("{begin}{by} set at ")), "{message}");
    assert!(message.ends_with(". Call trust first."), "{message}");
    assert_eq!((&error["details"]["reason"], &error["details"]["by"]), (&json!("fact_forbidden"), &json!(by)));
    let shadow = &reply["tool_call_audits"][3]["meta"]["shadow"];
    assert_eq!(shadow[0]["rule"], "permissions.watch.facts.forbid.read_untrusted", "{reply:#}");
    let reply =
        run(&mut fleet, json!({"calls": calls(&[("pay", json!({})), ("trust", json!({})), ("pay", json!({}))])})).await;
    assert_eq!(outcomes(&reply), ["denied", "ok", "ok"], "{reply:#}");
    fleet.stop().await;
}

#[tokio::test]
async fn agent_facts_apply_in_every_session() {
    let mut fleet = Fleet::start(plan(&Gate::new())).await;
    let read = in_session("s1", &[("mail", json!({})), ("of_agent", json!({})), ("pay", json!({}))]);
    assert_eq!(outcomes(&run(&mut fleet, read).await), ["ok", "ok", "denied"]);
    let both = calls(&[("pay", json!({})), ("wire", json!({}))]);
    for (turn, expected) in [
        (json!({"session_id": "s1", "calls": both}), ["denied", "denied"]),
        (json!({"session_id": "s2", "calls": both}), ["ok", "denied"]),
        (json!({"session_id": "s2", "agent": "fran", "calls": both}), ["ok", "ok"]),
    ] {
        let reply = run(&mut fleet, turn).await;
        assert_eq!(outcomes(&reply), expected, "{reply:#}");
    }
    fleet.stop().await;
}

#[tokio::test]
async fn a_failed_call_sets_no_fact_and_an_unknown_call_only_forbids() {
    let mut fleet = Fleet::start(plan(&Gate::new())).await;
    let refused = [("mail", json!({"end": "refuses"})), ("pay", json!({}))];
    assert_eq!(outcomes(&run(&mut fleet, in_session("s1", &refused)).await), ["permanent", "ok"]);
    let unknown = [("mail", json!({})), ("trust", json!({"end": "breaks"})), ("pay", json!({}))];
    let reply = run(&mut fleet, in_session("s2", &unknown)).await;
    assert_eq!(outcomes(&reply), ["ok", "outcome_unknown", "denied"], "{reply:#}");
    let why = reply["results"][2]["error"]["message"].as_str().unwrap();
    assert!(why.contains("may have set at"), "{why}");
    let item = |end: &str| json!({"item": "bolt", "end": end});
    let unknown = [("quote", item("")), ("order", item("breaks")), ("order", item(""))];
    let reply = run(&mut fleet, in_session("s3", &unknown)).await;
    assert_eq!(outcomes(&reply), ["ok", "outcome_unknown", "denied"], "{reply:#}");
    fleet.stop().await;
}

#[tokio::test]
async fn a_call_waits_without_a_slot_for_a_running_call_that_may_set_its_fact() {
    let gate = Gate::new();
    let mut fleet = Fleet::start(Plan { slots: 2, ..plan(&gate) }).await;
    let turn = |id: &str, of: &[(&str, Value)]| json!({"turn_id": id, "session_id": "s", "calls": calls(of)});
    fleet.submit_turn(turn("t1", &[("quote", json!({"item": 1, "gate": true}))])).await;
    fleet.submit_turn(turn("t2", &[("order", json!({"item": 1}))])).await;
    assert_eq!(waits(&fleet, "t2").await, "t1");
    let other = run(&mut fleet, turn("t3", &[("order", json!({"item": 2})), ("pay", json!({}))])).await;
    assert_eq!(outcomes(&other), ["denied", "ok"], "{other:#}");
    gate.open.add_permits(1);
    let one = fleet.reply().await;
    let two = fleet.reply().await;
    assert_eq!((outcomes(&one), outcomes(&two)), (vec!["ok"], vec!["ok"]), "{one:#} {two:#}");
    fleet.submit_turn(turn("t4", &[("mail", json!({"gate": true}))])).await;
    gate.reached().await;
    gate.reached().await;
    fleet.submit_turn(turn("t5", &[("pay", json!({}))])).await;
    assert_eq!(waits(&fleet, "t5").await, "t4");
    gate.open.add_permits(1);
    for _ in 0..2 {
        let reply = fleet.reply().await;
        let expected = if reply["turn_id"] == "t4" { "ok" } else { "denied" };
        assert_eq!(outcomes(&reply), [expected], "{reply:#}");
    }
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_waits_for_a_redelivered_read_that_sets_its_fact() {
    let gate = Gate::new();
    let mut fleet = Fleet::start(Plan { workers: 0, ..plan(&gate) }).await;
    let turn = |id: &str, of: &[(&str, Value)]| json!({"turn_id": id, "session_id": "s", "calls": calls(of)});
    let doomed = KillableProcess::start(&fleet, "doomed");
    fleet.submit_turn(turn("t1", &[("mail", json!({"gate": true}))])).await;
    gate.reached().await;
    fleet.submit_turn(turn("t2", &[("pay", json!({}))])).await;
    assert_eq!(waits(&fleet, "t2").await, "t1");
    doomed.kill();
    gate.open.add_permits(1);
    let survivor = KillableProcess::start(&fleet, "survivor");
    for _ in 0..2 {
        let reply = fleet.reply().await;
        let expected = if reply["turn_id"] == "t1" { "ok" } else { "denied" };
        assert_eq!(outcomes(&reply), [expected], "{reply:#}");
    }
    drop(survivor);
    fleet.stop().await;
}

#[tokio::test]
async fn a_turn_waits_for_a_running_later_turn_that_may_change_its_facts() {
    let gate = Gate::new();
    let mut fleet = Fleet::start(plan(&gate)).await;
    let item = json!({"item": 1});
    let quoted = run(&mut fleet, in_session("orders", &[("quote", item.clone())])).await;
    assert_eq!(outcomes(&quoted), ["ok"], "{quoted:#}");
    for (session, tool, reason) in [("orders", "order", "fact_missing"), ("refunds", "refund", "fact_forbidden")] {
        let turn = |id: &str, of: &[(&str, Value)]| json!({"turn_id": format!("{tool}-{id}"), "session_id": session, "calls": calls(of)});
        let first = turn("1", &[("look", json!({"gate": true})), (tool, item.clone())]);
        fleet.submit_turn(first).await;
        gate.reached().await;
        fleet.submit_turn(turn("2", &[(tool, json!({"item": 1, "gate": true}))])).await;
        gate.reached().await;
        // The semaphore is fair, so the first turn gets the permit.
        gate.open.add_permits(1);
        let waits = tokio::time::timeout(Duration::from_secs(20), waits(&fleet, &format!("{tool}-1"))).await;
        assert_eq!(waits.as_deref(), Ok(&*format!("{tool}-2")), "{tool}: it does not wait");
        gate.open.add_permits(1);
        for _ in 0..2 {
            let reply = fleet.reply().await;
            let is_first = reply["turn_id"] == format!("{tool}-1");
            let expected = if is_first { vec!["ok", "denied"] } else { vec!["ok"] };
            assert_eq!(outcomes(&reply), expected, "{reply:#}");
            assert!(!is_first || reply["results"][1]["error"]["details"]["reason"] == reason, "{reply:#}");
        }
    }
    fleet.stop().await;
}
