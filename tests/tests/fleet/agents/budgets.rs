//! Budgets and usage of models, compared with the answers that the model itself counted.

use tickfleet_model::limit::{LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};
use tickfleet_model::{Limit, Policy, TenantId};
use tickfleet_store::Used;
use tickfleet_tests::killable::KillableProcess;

use super::*;

const TOKENS_PER_ANSWER: u64 = 110;
/// About half of what the tasks need.
const TOKENS_MAX: u64 = 6_000;
const TASKS: usize = 100;

fn tokens(max: u64, every: LimitWindow) -> Limit {
    Limit {
        name: "tokens".into(),
        matches: LimitMatch::default(),
        per: [LimitKey::Tenant].into(),
        bound: LimitBound::Tokens(max),
        every,
        on_reach: OnReach::Reject,
        mode: LimitMode::Enforce,
        keys_max: 100,
    }
}

fn with(policy: &mut Policy, limits: Vec<Limit>) {
    policy.limits = Arc::new(limits);
}

async fn of_today(fleet: &Fleet) -> tickfleet_store::DayUsage {
    let now_ms = fleet.store.now_ms().await.unwrap();
    let (day_ms, _) = tickfleet_model::day::day_bounds(now_ms, tickfleet_model::day::zone("UTC").unwrap());
    fleet.store.usage(&TenantId::new("acme").unwrap(), &[day_ms]).await.unwrap().remove(0)
}

async fn counted(fleet: &Fleet, limit: &str) -> u64 {
    let found: Option<Vec<u8>> = fleet.ask("HGET", &format!("counters:{limit}"), &["acme"]).await;
    found.map_or(0, |packed| f64::from_le_bytes(packed[..8].try_into().unwrap()) as u64)
}

#[tokio::test]
async fn model_usage_is_counted_once_per_tenant_and_agent_even_if_the_task_fails() {
    let model = ScriptedModel::start(|asked: &ModelRequest| match (asked.system.as_str(), asked.answers()) {
        ("You are atlas.", 0) => ModelReply::call("echo", json!({"text": "hi"})),
        ("You are kelly.", _) => ModelReply::words("  "),
        _ => ModelReply::words("Done."),
    })
    .await;
    let mut fleet = Fleet::start(plan(&model, vec![])).await;
    enqueue(&fleet, task("job-1", "atlas", "Say hi.")).await;
    enqueue(&fleet, task("job-2", "kelly", "Say nothing.")).await;
    let replies: BTreeMap<String, Value> = fleet.replies(2).await;
    assert_eq!(result(&replies["job-2"])["outcome"], "transient", "{}", replies["job-2"]);
    let used =
        |requests| Used { requests, input_tokens: 100 * requests, output_tokens: 10 * requests, cost: 120 * requests };
    let asked = model.asked() as u64;
    let day = of_today(&fleet).await;
    assert_eq!((day.total, day.agents["atlas"], day.agents["kelly"]), (used(asked), used(2), used(asked - 2)));
    fleet.stop().await;
}

#[tokio::test]
async fn a_task_with_an_exhausted_budget_fails_and_names_the_limit() {
    let model = ScriptedModel::start(|asked: &ModelRequest| match asked.answers() {
        0 => ModelReply::call("echo", json!({"text": "hi"})),
        _ => ModelReply::words("Done."),
    })
    .await;
    let policy = |policy: &mut Policy| {
        with(
            policy,
            vec![Limit { bound: LimitBound::Money(5_000), name: "money".into(), ..tokens(0, LimitWindow::Day) }],
        );
    };
    let mut fleet = Fleet::start(Plan { policy, ..plan(&model, vec![]) }).await;
    let mut refused = None;
    for n in 0..60 {
        enqueue(&fleet, task(&format!("job-{n}"), "kelly", "Say hi.")).await;
        let reply = fleet.reply().await;
        let used = counted(&fleet, "money").await;
        assert_eq!(used, 120 * model.asked() as u64, "each answer is corrected to its true use");
        if result(&reply)["outcome"] != "ok" {
            refused = Some(result(&reply).clone());
            break;
        }
    }
    let refused = refused.expect("it never ends");
    let error = &refused["error"];
    assert_eq!((&refused["outcome"], &error["details"]["limit"]), (&json!("permanent"), &json!("money")), "{refused}");
    assert!(error["message"].as_str().unwrap().contains("0.005 for models per tenant in a day"), "{error}");
    assert!(error["details"]["resets_at"].as_str().unwrap().ends_with("00:00:00Z"), "{error}");
    // A request that may use more than the whole limit would wait forever, so it must be rejected.
    let small = |policy: &mut Policy| with(policy, vec![tokens(100, LimitWindow::Day)]);
    fleet.stop().await;
    let mut fleet = Fleet::start(Plan { policy: small, ..plan(&model, vec![]) }).await;
    enqueue(&fleet, task("large", "kelly", "Say hi.")).await;
    let reply = fleet.reply().await;
    assert!(result(&reply)["error"]["message"].as_str().unwrap().contains("alone may use"), "{reply}");
    fleet.stop().await;
}

#[tokio::test]
async fn a_waiting_task_runs_once_other_requests_return_unused_budget() {
    let model =
        ScriptedModel::start(|_: &ModelRequest| ModelReply::Slow(Duration::from_millis(300), "Done.".into())).await;
    // A request may use some 2,000 tokens, so at most two requests run at once. Each uses 110, so all fit into one day.
    let policy = |policy: &mut Policy| {
        with(policy, vec![Limit { on_reach: OnReach::Wait, ..tokens(4_000, LimitWindow::Day) }]);
    };
    let mut fleet = Fleet::start(Plan { policy, ..plan(&model, vec![]) }).await;
    for n in 0..6 {
        enqueue(&fleet, task(&format!("job-{n}"), "kelly", "Say hi.")).await;
    }
    let replies: BTreeMap<String, Value> = fleet.replies(6).await;
    assert!(replies.values().all(|reply| result(reply)["outcome"] == "ok"), "{replies:?}");
    assert_eq!(counted(&fleet, "tokens").await, 6 * TOKENS_PER_ANSWER);
    let waits = fleet.metrics.render();
    assert!(waits.contains(r#"limits_reached_total{action="wait",limit="tokens"}"#), "{waits}");
    fleet.stop().await;
}

#[tokio::test]
async fn a_budget_in_shadow_mode_counts_but_does_not_block() {
    let model = ScriptedModel::start(|_: &ModelRequest| ModelReply::words("Done.")).await;
    let policy = |policy: &mut Policy| {
        with(policy, vec![Limit { mode: LimitMode::Shadow, ..tokens(100, LimitWindow::Task) }]);
    };
    let mut fleet = Fleet::start(Plan { policy, ..plan(&model, vec![]) }).await;
    enqueue(&fleet, task("job-1", "kelly", "Say hi.")).await;
    let reply = fleet.reply().await;
    assert_eq!(result(&reply)["outcome"], "ok", "{reply}");
    let page = fleet.metrics.render();
    assert!(page.contains(r#"limits_reached_total{action="shadow",limit="tokens"} 1"#), "{page}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_is_not_exceeded_when_workers_are_killed() {
    let model =
        ScriptedModel::start(|_: &ModelRequest| ModelReply::Slow(Duration::from_millis(40), "Done.".into())).await;
    let policy = |policy: &mut Policy| with(policy, vec![tokens(TOKENS_MAX, LimitWindow::Day)]);
    let mut plan = Plan { policy, workers: 0, slots: 4, standard_tools: false, ..plan(&model, vec![]) };
    // Lets a request use only slightly more tokens than it needs.
    for handler in plan.handlers.values_mut() {
        let TaskHandlerDef::Llm(def) = handler else { continue };
        def.tokens_max = 100;
    }
    let mut fleet = Fleet::start(plan).await;
    for n in 0..TASKS {
        enqueue(&fleet, task(&format!("job-{n}"), if n % 2 == 0 { "kelly" } else { "atlas" }, "Say hi.")).await;
    }
    let survivor = KillableProcess::start(&fleet, "survivor");
    for n in 0..6 {
        let doomed = KillableProcess::start(&fleet, &format!("doomed-{n}"));
        let before = model.asked();
        let sent = async {
            while model.asked() < before + 3 {
                // The model only counts requests and gives no signal, so this polls.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(2), sent).await;
        doomed.kill();
    }
    let replies: BTreeMap<String, Value> = fleet.replies(TASKS).await;
    let outcomes = |word: &str| replies.values().filter(|reply| result(reply)["outcome"] == word).count();
    let ok = outcomes("ok");
    let refused = outcomes("permanent");
    let answered = model.seen().len() as u64 * TOKENS_PER_ANSWER;
    assert!(answered <= TOKENS_MAX, "{answered} tokens were answered, {TOKENS_MAX} are allowed");
    assert!(ok > 0 && refused > 0, "{ok} done, {refused} refused: {replies:?}");
    assert!(counted(&fleet, "tokens").await >= answered, "what may have been paid for counts as paid for");
    drop(survivor);
    fleet.stop().await;
}
