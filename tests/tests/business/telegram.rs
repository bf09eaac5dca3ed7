//! Telegram's tools. The stub of the service behaves as Telegram documents.

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tickfleet_tests::fleet::Fleet;

use super::stand_in::{ACCESS, BOT_TOKEN, FaultyResponse, StandIn};
use super::{outcomes, plan, reported, run};

async fn fleet() -> (Fleet, StandIn) {
    fleet_with(&[("TELEGRAM_CHAT_ID", "-1009")]).await
}

async fn fleet_with(more: &[(&str, &str)]) -> (Fleet, StandIn) {
    let services = StandIn::start().await;
    let variables = [
        ("TELEGRAM_BASE_URL", services.base.as_str()),
        ("X_BASE_URL", &services.base),
        ("TICKFLEET_ALLOW_PRIVATE", "127.0.0.1"),
        ("TELEGRAM_BOT_TOKEN", BOT_TOKEN),
    ];
    (Fleet::start(plan(&[&variables, more].concat(), |_| {})).await, services)
}

fn message(arguments: Value) -> (&'static str, Value) {
    ("send_telegram_message", arguments)
}

const PATH: &str = "/bot110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/sendMessage";

#[tokio::test]
async fn a_message_goes_to_the_teams_chat_unless_another_is_named() {
    let (mut fleet, services) = fleet().await;
    let calls = [
        message(json!({"message": "To the team."})),
        message(json!({"message": "To a channel.", "chat_id": "@news"})),
        message(json!({"message": "To a group.", "chat_id": -1001234567890i64})),
    ];
    let results = run(&mut fleet, "penny", &calls).await;
    assert_eq!(outcomes(&results), ["ok"; 3], "{results:#?}");
    assert_eq!(results[0]["output"]["message_id"], 77);
    let chats: Vec<Value> = services.seen.lock().unwrap().messages.iter().map(|sent| sent["chat_id"].clone()).collect();
    assert_eq!(chats, [json!("-1009"), json!("@news"), json!(-1001234567890i64)]);
    fleet.stop().await;
}

#[tokio::test]
async fn telegram_errors_are_quoted_and_retries_obey_retry_after() {
    let (mut fleet, services) = fleet().await;
    let to = |chat: &str| message(json!({"message": "Hi.", "chat_id": chat}));
    let results = run(&mut fleet, "penny", &[to("@nobody"), to("@kicked")]).await;
    assert_eq!(outcomes(&results), ["permanent", "permanent"]);
    assert!(reported(&results[0]).contains("chat not found") && reported(&results[1]).contains("bot was kicked"));
    let flood = |wait_s: u32| {
        let description = format!("Too Many Requests: retry after {wait_s}");
        let parameters = json!({"retry_after": wait_s});
        FaultyResponse::status(
            429,
            json!({"ok": false, "error_code": 429, "description": description, "parameters": parameters}),
        )
    };
    services.trouble(PATH, flood(1));
    let results = run(&mut fleet, "penny", &[to("@news")]).await;
    assert_eq!((outcomes(&results), &results[0]["attempts"]), (vec!["ok"], &json!(2)));
    // A wait of 900 s is too long, so the call fails.
    services.trouble(PATH, flood(900));
    let results = run(&mut fleet, "penny", &[to("@news")]).await;
    assert_eq!((outcomes(&results), &results[0]["attempts"]), (vec!["transient"], &json!(1)));
    assert_eq!(services.seen.lock().unwrap().messages.len(), 1);
    fleet.stop().await;
}

#[tokio::test]
async fn a_not_ok_answer_fails_the_call_despite_status_200() {
    let (mut fleet, services) = fleet().await;
    services.trouble(
        PATH,
        FaultyResponse::status(200, json!({"ok": false, "description": "Bad Request: group chat was upgraded"})),
    );
    services.trouble(PATH, FaultyResponse::Cut);
    let hi = || message(json!({"message": "Hi."}));
    let results = run(&mut fleet, "penny", &[hi(), hi()]).await;
    assert_eq!(outcomes(&results), ["permanent", "outcome_unknown"], "{results:#?}");
    assert!(reported(&results[0]).contains("group chat was upgraded"));
    fleet.stop().await;
}

#[tokio::test]
async fn without_a_default_chat_a_call_must_name_one() {
    let (mut fleet, services) = fleet_with(&[]).await;
    let results = run(&mut fleet, "kelly", &[message(json!({"message": "Hi."}))]).await;
    assert_eq!(outcomes(&results), ["invalid_arguments"], "{results:#?}");
    assert!(reported(&results[0]).ends_with("'chat_id' is missing, and this fleet has no default for it: give it."));
    assert!(services.asked().is_empty());
    fleet.stop().await;
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn tokens_never_appear_in_replies_redis_metrics_or_logs() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone());
    // The fleet runs on the test's own thread, so this subscriber gets all events.
    let logging = tracing::subscriber::set_default(subscriber.finish());
    let user_token = format!("{ACCESS}0");
    let (mut fleet, services) = fleet_with(&[("TELEGRAM_CHAT_ID", "-1009"), ("X_USER_TOKEN", &user_token)]).await;
    let echoed = format!("no bot {BOT_TOKEN}, url http://x{PATH}");
    services.trouble(PATH, FaultyResponse::status(200, json!({"ok": true, "result": {"text": echoed}})));
    services.trouble(PATH, FaultyResponse::status(404, json!({"ok": false, "description": echoed})));
    services.trouble(PATH, FaultyResponse::status(500, json!({"ok": false, "description": echoed})));
    let invalid = json!({"title": "Unauthorized", "detail": format!("Bearer {user_token} is not valid")});
    services.trouble("/2/tweets", FaultyResponse::status(401, invalid));
    let hi = || message(json!({"message": "Hi."}));
    let post = ("post_to_x", json!({"content": "Hi."}));
    let results = run(&mut fleet, "kelly", &[hi(), hi(), hi(), post]).await;
    assert_eq!(outcomes(&results), ["ok", "permanent", "outcome_unknown", "permanent"], "{results:#?}");
    let kept = fleet.everything().await;
    assert!(kept.contains("tool_send_telegram_message"), "the audit log was looked at");
    let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(logged.contains("TRACE"), "{logged}");
    let reply = json!(results).to_string();
    let metrics = fleet.metrics.render();
    for token in [BOT_TOKEN, &user_token, "AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"] {
        for (place, text) in [("reply", &reply), ("Redis", &kept), ("metrics", &metrics), ("log", &logged)] {
            assert!(!text.contains(token), "{token} is in the {place}");
        }
    }
    drop(logging);
    fleet.stop().await;
}
