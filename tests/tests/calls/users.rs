//! Users of Redis with the rights of one role: what they need they may, and of the rest what Redis can tell apart they may
//! not.

use serde_json::json;
use tickfleet_client::Client;
use tickfleet_model::{ConsumerId, Effect, TenantId, TurnId};
use tickfleet_protocol::parse_turn;
use tickfleet_store::fields::turn as turn_fields;
use tickfleet_store::{Begin, HandBack, Queue, Returned, Store, StoreError, TurnName};
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan, users};
use tickfleet_tests::inspect::outcomes;
use tickfleet_tools::{ToolError, TypedTool};

/// A payment that is known again.
fn pay() -> TypedTool {
    let pay =
        TypedTool::new("pay", "Pays.", Effect::Once, |_, _: serde_json::Value| async { Ok::<_, ToolError>(json!({})) });
    pay.effect_key(&["/to"], std::time::Duration::from_secs(60))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_works_with_the_rights_of_its_roles_and_nobody_is_refused() {
    let plan = Plan { users: true, workers: 2, tools: vec![pay()], ..Plan::default() };
    let mut fleet = Fleet::start(plan).await;
    let more = vec![("echo", json!({"text": "x"})); 12];
    for calls in [
        vec![("echo", json!({"text": "hi"})), ("nope", json!({})), ("fail_once", json!({}))],
        vec![
            ("pay", json!({"to": "kim"})),
            ("pay", json!({"to": "kim"})),
            ("fail", json!({"outcomes": ["transient", "ok"]})),
        ],
        // More than a tick's: lanes and timers.
        more,
        vec![("delegate_task", json!({"target_agent": "kelly", "task_description": "Look."}))],
    ] {
        fleet.submit(&calls).await;
        let reply = fleet.reply().await;
        assert_eq!(outcomes(&reply).len(), calls.len(), "{reply:#}");
    }
    fleet.submit_turn(json!({"turn_id": "late", "calls": [{"name": "sleep", "arguments": {"ms": 30_000}}]})).await;
    fleet.leased().await;
    let late = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new("late").unwrap() };
    let operator = Store::open(&fleet.url_of("operator"), 0, fleet.plan().store.clone().into()).unwrap();
    operator.cancel(&late, "no longer wanted").await.unwrap();
    assert_eq!(outcomes(&fleet.reply().await), ["cancelled"]);
    fleet.stop().await;
}

fn refused<T: std::fmt::Debug>(what: &str, answer: Result<T, StoreError>) {
    let error = answer.expect_err(what);
    let said = error.to_string();
    let by_acl =
        ["NOPERM", "ACL failure in script", "The user executing the script", "no permissions", "No permissions"];
    assert!(by_acl.iter().any(|words| said.contains(words)), "{what}: {said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_submits_and_reads_and_does_nothing_that_is_a_workers() {
    let mut fleet = Fleet::start(Plan { users: true, ..Plan::default() }).await;
    let options = fleet.plan().store.clone();
    let turn = |id: &str| {
        let call = json!({"name": "echo", "arguments": {"text": "hi"}});
        let turn = json!({"tenant": "acme", "agent": "kelly", "reply_to": "box", "turn_id": id, "calls": [call]});
        parse_turn(turn.to_string().as_bytes()).unwrap()
    };
    for role in ["producer", "gateway"] {
        let client = Client::connect(&fleet.url_of(role), options.clone()).await.unwrap();
        client.submit(turn(role)).await.unwrap();
        assert_eq!(outcomes(&fleet.try_reply(PATIENCE).await.unwrap()), ["ok"], "{role}");
        let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new(role).unwrap() };
        client.reply(&name).await.unwrap();
    }
    let mut connection = fleet.server.connection().await;
    users::assert_nobody_was_refused(&mut connection).await;

    let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new("t1").unwrap() };
    let key = fleet.store.keys().turn(&name);
    let in_a_day = (fleet.store.now_ms().await.unwrap() + 86_400_000).to_string();
    let record = [(turn_fields::FENCE, "1-1"), (turn_fields::DEADLINE_MS, in_a_day.as_str())];
    let command = redis::cmd("HSET").arg(key).arg(&record).to_owned();
    let () = command.query_async(&mut connection).await.unwrap();
    let begin = |nonce: Option<&str>| Begin {
        name: name.clone(),
        fence: "1-1".into(),
        position: 0,
        nonce: nonce.map(str::to_owned),
        digest: String::new(),
        knows: None,
    };
    for role in ["producer", "onlooker"] {
        let store = Store::open(&fleet.url_of(role), 0, options.clone().into()).unwrap();
        let back = HandBack {
            name: name.clone(),
            fence: "1-1".into(),
            queue: Queue::parse("ready:normal").unwrap(),
            why: Returned::Unsent,
        };
        refused("begin", store.begin(&[begin(Some("n"))]).await);
        refused("hand_back", store.hand_back(&[back]).await);
        refused("beat", store.beat(&ConsumerId::new("w").unwrap()).await);
        refused("cancel", store.cancel(&name, "why").await);
        let mut reader = store.reader(&ConsumerId::new("w").unwrap(), PATIENCE);
        refused("read", reader.take("ready:normal", 1).await);
    }
    // A gateway cancels, and so writes what a worker writes; the queues of workers are not its to read.
    let gateway = Store::open(&fleet.url_of("gateway"), 0, options.clone().into()).unwrap();
    let mut reader = gateway.reader(&ConsumerId::new("w").unwrap(), PATIENCE);
    refused("read", reader.take("ready:normal", 1).await);
    let onlooker = Client::connect(&fleet.url_of("onlooker"), options).await;
    if let Ok(client) = onlooker {
        client.submit(turn("looked")).await.unwrap_err();
    }
    let gone = redis::cmd("DEL").arg(fleet.store.keys().turn(&name)).to_owned();
    let () = gone.query_async(&mut connection).await.unwrap();
    let () = redis::cmd("ACL").arg("LOG").arg("RESET").query_async(&mut connection).await.unwrap();
    fleet.stop().await;
}
