//! Telegram's tools. The stub of the service behaves as Telegram documents.

use serde_json::{Value, json};
use tickfleet_tests::fleet::Fleet;

use super::stand_in::{BOT_TOKEN, FaultyResponse, StandIn};
use super::{outcomes, plan, reported, run};

async fn fleet() -> (Fleet, StandIn) {
    let services = StandIn::start().await;
    let variables = [
        ("TELEGRAM_BASE_URL", services.base.as_str()),
        ("TICKFLEET_ALLOW_PRIVATE", "127.0.0.1"),
        ("TELEGRAM_BOT_TOKEN", BOT_TOKEN),
        ("TELEGRAM_CHAT_ID", "-1009"),
    ];
    (Fleet::start(plan(&variables, |_| {})).await, services)
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
