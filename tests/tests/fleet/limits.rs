//! Limits of the configuration. The checks use the times at which tools ran, not the counters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_core::turn::{Slice, State};
use tickfleet_core::{CounterKey, keys};
use tickfleet_model::limit::{LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};
use tickfleet_model::{Effect, Limit, Policy, Priority};
use tickfleet_store::seam::inspect::Range;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tools::{CallContext, ToolError, TypedTool};

use super::governance::start_witnessed;

const PERIOD_MS: i64 = 1_500;

fn limit(name: &str, tools: &[&str], per: &[LimitKey], bound: LimitBound) -> Limit {
    Limit {
        name: name.into(),
        matches: LimitMatch { tools: tools.iter().map(ToString::to_string).collect(), ..LimitMatch::default() },
        per: per.iter().cloned().collect::<BTreeSet<_>>(),
        bound,
        every: LimitWindow::Period(PERIOD_MS),
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: 1_000,
    }
}

fn with(policy: &mut Policy, limits: Vec<Limit>) {
    policy.defaults.calls_per_tick = 100;
    policy.limits = Arc::new(limits);
}

type Ledger = Arc<Mutex<Vec<String>>>;

#[derive(Deserialize, JsonSchema)]
struct Note {
    text: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Noted {
    is_noted: bool,
}

fn note(name: &str, ledger: &Ledger) -> TypedTool {
    let ledger = Arc::clone(ledger);
    TypedTool::new(name, "Notes.", Effect::Read, move |_: CallContext, note: Note| {
        ledger.lock().unwrap().push(note.text.unwrap_or_default());
        async { Ok::<_, ToolError>(Noted { is_noted: true }) }
    })
}

async fn start(tool: &str, ledger: &Ledger, policy: fn(&mut Policy)) -> Fleet {
    Fleet::start(Plan { tools: vec![note(tool, ledger)], policy, ..Plan::default() }).await
}

fn turn(calls: &[(&str, Value)]) -> Value {
    let calls = calls.iter().enumerate();
    let calls: Vec<Value> = calls
        .map(|(n, (name, arguments))| json!({"id": format!("c{n}"), "name": name, "arguments": arguments}))
        .collect();
    json!({ "calls": calls })
}

fn outcomes(reply: &Value) -> Vec<String> {
    let results = reply["results"].as_array().unwrap().iter();
    results.map(|result| result["error"]["code"].as_str().unwrap_or("ok").to_owned()).collect()
}

/// By the turn's user: the times (ms) at which calls of `tool` were dispatched.
async fn dispatched(fleet: &Fleet, tool: &str) -> BTreeMap<String, Vec<i64>> {
    let queue = keys::ready(Priority::Normal);
    let mut times: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (entry, fields) in fleet.store.seam().entries(&queue, &Range::oldest(1_000)).await.unwrap() {
        let at_ms: i64 = entry.as_str().split('-').next().unwrap().parse().unwrap();
        let slice = Slice::read(queue.clone(), entry, &fields).unwrap();
        let user = slice.turn.head.context.user_context.as_ref().map_or("-", |user| user.get()).to_owned();
        let calls = slice.calls.iter().filter(|call| call.tool == tool).count();
        times.entry(user).or_default().extend(std::iter::repeat_n(at_ms, calls));
    }
    times
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_per_user_counts_each_user_in_a_separate_window() {
    let ledger = Ledger::default();
    let mut fleet = start_witnessed(Plan {
        schedulers: 3,
        workers: 2,
        tools: vec![note("send", &ledger)],
        policy: |policy| with(policy, vec![limit("sends", &["send"], &[LimitKey::User], LimitBound::Calls(3))]),
        ..Plan::default()
    })
    .await;
    let users = ["ann", "bob"];
    for n in 0..6 {
        let user = users[n % 2];
        let mut turn = turn(&[("send", json!({})), ("send", json!({})), ("echo", json!({"text": "hi"}))]);
        turn["user_context"] = json!({"user_id": user});
        fleet.submit_turn(turn).await;
    }
    for _ in 0..6 {
        let reply = fleet.reply().await;
        assert_eq!(outcomes(&reply), ["ok", "ok", "ok"], "{reply}");
    }
    let times = dispatched(&fleet, "send").await;
    assert_eq!(times.len(), 2, "{times:?}");
    for (user, mut times) in times {
        times.sort_unstable();
        assert_eq!(times.len(), 6, "{user}");
        // Windows begin at an unknown offset. At least one offset must explain the times.
        let fits = |offset: i64| {
            let mut windows: BTreeMap<i64, u32> = BTreeMap::new();
            times.iter().for_each(|at| *windows.entry((at - offset).div_euclid(PERIOD_MS)).or_default() += 1);
            windows.values().all(|calls| *calls <= 3)
        };
        assert!((0..PERIOD_MS).any(fits), "{user}: {times:?}");
        assert!(times[5] - times[0] >= 1, "{user} did not wait: {times:?}");
    }
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_limit_is_not_exceeded_in_any_period() {
    let ledger = Ledger::default();
    let mut fleet = start_witnessed(Plan {
        schedulers: 3,
        workers: 2,
        tools: vec![note("send", &ledger)],
        policy: |policy| {
            let sends = limit("sends", &["send"], &[LimitKey::User], LimitBound::Calls(3));
            with(policy, vec![Limit { every: LimitWindow::Rolling(PERIOD_MS), ..sends }]);
        },
        ..Plan::default()
    })
    .await;
    for _ in 0..4 {
        let mut turn = turn(&[("send", json!({})), ("send", json!({}))]);
        turn["user_context"] = json!({"user_id": "ann"});
        fleet.submit_turn(turn).await;
    }
    for _ in 0..4 {
        let reply = fleet.reply().await;
        assert_eq!(outcomes(&reply), ["ok", "ok"], "{reply}");
    }
    let mut times: Vec<i64> = dispatched(&fleet, "send").await.into_values().flatten().collect();
    times.sort_unstable();
    assert_eq!(times.len(), 8);
    // A fixed window could admit six calls at once, around its end.
    assert!(times.windows(4).all(|four| four[3] - four[0] >= PERIOD_MS), "{times:?}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttled_turn_does_not_block_other_turns_of_its_agent() {
    let ledger = Ledger::default();
    let mut fleet = start("send", &ledger, |policy| {
        let sends = limit("sends", &["send"], &[LimitKey::Tool], LimitBound::Calls(1));
        with(policy, vec![Limit { every: LimitWindow::Day, ..sends }]);
    })
    .await;
    let first = fleet.submit(&[("send", json!({"text": "first"}))]).await;
    assert_eq!(fleet.reply().await["turn_id"], first.as_str());
    let waiting = fleet.submit(&[("send", json!({"text": "second"}))]).await;
    let other = fleet.submit(&[("echo", json!({"text": "hi"}))]).await;
    assert_eq!(fleet.reply().await["turn_id"], other.as_str());
    assert_eq!(*ledger.lock().unwrap(), ["first"]);
    let half = fleet.submit(&[("echo", json!({"text": "a"})), ("send", json!({"text": "third"}))]).await;
    fleet
        .until("both wait for the tool", async |fleet| fleet.ask::<u64>("ZCARD", "throttle:sends@send", &[]).await == 2)
        .await;
    let state = fleet.unfinished(&waiting).await.unwrap().state;
    assert!(
        matches!(&state, State::Throttled { counter, .. } if *counter == CounterKey::new("sends", "send")),
        "{state:?}"
    );
    let lane: Vec<String> = fleet.ask("ZRANGE", "throttle:sends@send", &["0", "-1"]).await;
    assert_eq!(lane, [format!("acme:{waiting}"), format!("acme:{half}")], "in the order of their admission");
    for turn in [&waiting, &half] {
        let name = tickfleet_store::TurnName::parse(&format!("acme:{turn}")).unwrap();
        fleet.store.cancel(&name, "enough").await.unwrap();
    }
    let mut reported: Vec<Vec<String>> = vec![outcomes(&fleet.reply().await), outcomes(&fleet.reply().await)];
    reported.sort();
    assert_eq!(reported, [vec!["cancelled"], vec!["ok", "cancelled"]]);
    assert_eq!(fleet.ask::<u64>("EXISTS", "throttle:sends@send", &[]).await, 0);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_rejects_single_calls_and_the_turn_continues() {
    let ledger = Ledger::default();
    let mut fleet = start("send", &ledger, |policy| {
        let sends = limit("sends", &["send"], &[LimitKey::Agent], LimitBound::Calls(1));
        with(policy, vec![Limit { every: LimitWindow::Day, on_reach: OnReach::Reject, ..sends }]);
    })
    .await;
    let send = ("send", json!({"text": "x"}));
    let echo = ("echo", json!({"text": "hi"}));
    fleet.submit(&[echo.clone(), send.clone(), send.clone(), send.clone(), echo.clone()]).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["ok", "ok", "limit_reached", "limit_reached", "ok"], "{reply}");
    let error = &reply["results"][2]["error"];
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("The limit sends (1 call per agent in a day) is used up. There is room again at "),
        "{message}"
    );
    assert!(message.ends_with("This call was not executed."), "{message}");
    assert_eq!(error["details"]["limit"], "sends");
    fleet.submit(&[send, echo]).await;
    assert_eq!(outcomes(&fleet.reply().await), ["limit_reached", "ok"], "at admission as well");
    assert_eq!(ledger.lock().unwrap().len(), 1);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equivalent_spellings_of_a_tool_name_share_one_limit() {
    let ledger = Ledger::default();
    let mut fleet = start("crm.send", &ledger, |policy| {
        let sends = limit("sends", &["crm.*"], &[LimitKey::Tool], LimitBound::Calls(1));
        with(policy, vec![Limit { every: LimitWindow::Day, on_reach: OnReach::Reject, ..sends }]);
    })
    .await;
    let spellings = ["crm_x2E_send", "crm.send", "crm_x2E_send", "_x63_rm_x2E_send", "crm_x2E__x73_end"];
    fleet.submit(&spellings.map(|name| (name, json!({"text": "x"})))).await;
    let reply = fleet.reply().await;
    let expected = ["ok", "limit_reached", "limit_reached", "unknown_tool", "unknown_tool"];
    assert_eq!(outcomes(&reply), expected, "{reply}");
    assert_eq!(ledger.lock().unwrap().len(), 1);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sum_limits_are_exact_and_reject_amounts_that_are_not_numbers() {
    let ledger = Ledger::default();
    let mut fleet = start("pay", &ledger, |policy| {
        let bound = LimitBound::Sum { argument: "/amount".into(), max: 1_000_000 };
        let spent = limit("spent", &["pay"], &[LimitKey::Argument("/to".into())], bound);
        with(policy, vec![Limit { every: LimitWindow::Day, on_reach: OnReach::Reject, ..spent }]);
    })
    .await;
    let pay = |to: &str, amount: Value| ("pay", json!({"text": to, "to": to, "amount": amount}));
    let tenths: Vec<_> = (0..11).map(|_| pay("ann@example.org", json!(0.1))).collect();
    fleet.submit(&tenths).await;
    let mut expected = vec!["ok"; 10];
    expected.push("limit_reached");
    assert_eq!(outcomes(&fleet.reply().await), expected);
    fleet
        .submit(&[
            pay("bob", json!("much")),
            pay("bob", json!(1.5)),
            pay("bob", json!(1)),
            pay("bob", json!(0.000_001)),
        ])
        .await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["invalid_arguments", "limit_reached", "ok", "limit_reached"], "{reply}");
    let message = |at: usize| reply["results"][at]["error"]["message"].as_str().unwrap().to_owned();
    assert!(message(0).contains("is not a plain number"), "{}", message(0));
    assert!(
        message(1).contains("This call alone exceeds the limit spent (1 of /amount per /to in a day)"),
        "{}",
        message(1)
    );
    let counters: Vec<String> = fleet.ask("HKEYS", "counters:spent", &[]).await;
    assert!(counters.len() == 2 && counters.iter().all(|key| !key.contains("ann")), "{counters:?}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_in_shadow_mode_only_counts() {
    let ledger = Ledger::default();
    let mut fleet = start("send", &ledger, |policy| {
        let sends = limit("sends", &[], &[LimitKey::Tenant], LimitBound::Calls(1));
        with(policy, vec![Limit { mode: LimitMode::Shadow, every: LimitWindow::Day, ..sends }]);
    })
    .await;
    fleet.submit(&[("send", json!({})), ("send", json!({}))]).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok", "ok"]);
    let metrics = fleet.metrics.render();
    assert!(metrics.contains(r#"tickfleet_limits_reached_total{action="shadow",limit="sends"} 1"#), "{metrics}");
    let audits = fleet.audits().await;
    let shadows: Vec<&Value> = audits.iter().map(|audit| &audit["meta"]["shadow"]).collect();
    let message = "the limit sends (1 call per tenant in a day) had no room for it";
    let said = json!([{"rule": "limits.sends", "reason": "limit_reached", "message": message}]);
    assert_eq!(shadows, [&Value::Null, &said], "{audits:?}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_own_limit_overrides_the_default() {
    let ledger = Ledger::default();
    let mut fleet = start("send", &ledger, |policy| {
        let sends = limit("sends", &["send"], &[LimitKey::Tenant], LimitBound::Calls(9));
        with(policy, vec![Limit { every: LimitWindow::Day, on_reach: OnReach::Reject, ..sends }]);
        let own: BTreeMap<String, String> = [("sends".to_owned(), "1".to_owned())].into();
        policy.tenants.values_mut().for_each(|tenant| tenant.limits.clone_from(&own));
    })
    .await;
    fleet.submit(&[("send", json!({})), ("send", json!({}))]).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["ok", "limit_reached"]);
    let message = reply["results"][1]["error"]["message"].as_str().unwrap();
    assert!(message.contains("sends (1 call per tenant in a day)"), "{message}");
    fleet.stop().await;
}
