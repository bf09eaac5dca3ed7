//! The requests to X, and the outcome of calls for each answer of X.

use std::sync::Arc;

use serde_json::{Value, json};
use tickfleet_model::retry::RetryDelays;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::killable::KillableProcess;
use tokio::sync::mpsc;

use super::stand_in::{ACCESS, BEARER, FaultyResponse, StandIn};
use super::{outcomes, plan, reported, run};

fn user_token() -> String {
    format!("{ACCESS}0")
}

fn plan_of(x: &StandIn) -> Plan {
    let token = user_token();
    let variables = [
        ("X_BASE_URL", x.base.as_str()),
        ("TICKFLEET_ALLOW_PRIVATE", "127.0.0.1"),
        ("X_USER_TOKEN", &token),
        ("X_BEARER_TOKEN", BEARER),
    ];
    plan(&variables, |_| {})
}

async fn fleet() -> (Fleet, StandIn) {
    let x = StandIn::start().await;
    (Fleet::start(plan_of(&x)).await, x)
}

fn post(content: &str) -> (&'static str, Value) {
    ("post_to_x", json!({ "content": content }))
}

fn search(query: &str) -> (&'static str, Value) {
    ("search_x", json!({ "query": query }))
}

#[tokio::test]
async fn a_post_is_published_once_and_returns_its_url() {
    let (mut fleet, x) = fleet().await;
    let results = run(&mut fleet, "kelly", &[post("We are open. {{content}} ${X_USER_TOKEN}")]).await;
    let metrics = json!({"impressions": 0, "likes": 0, "reposts": 0, "replies": 0, "quotes": 0});
    let id = "1445880548472328001";
    let expected = json!({"post_id": id, "post_url": format!("https://x.com/i/web/status/{id}"), "metrics": metrics});
    assert_eq!(results[0]["output"], expected, "{results:#?}");
    assert_eq!(x.seen.lock().unwrap().posts, [json!({"text": "We are open. {{content}} ${X_USER_TOKEN}"})]);
    let results = run(&mut fleet, "kelly", &[post("We are open. {{content}} ${X_USER_TOKEN}")]).await;
    assert_eq!(outcomes(&results), ["permanent"]);
    assert!(reported(&results[0]).contains("duplicate content"), "{results:#?}");
    assert_eq!(results[0]["error"]["details"]["status"], 403);
    fleet.stop().await;
}

#[tokio::test]
async fn a_search_returns_posts_with_their_authors() {
    let (mut fleet, x) = fleet().await;
    let results = run(&mut fleet, "archy", &[search("\"exact phrase\" #tag&x=1 lang:de"), search("nothing")]).await;
    assert_eq!(outcomes(&results), ["ok", "ok"], "{results:#?}");
    let found = &results[0]["output"];
    assert_eq!((&found["count"], &found["more"]), (&json!(2), &json!(true)));
    assert_eq!(found["posts"][0]["author"], json!({"id": "7", "username": "ada", "name": "Ada"}));
    assert_eq!(found["posts"][0]["metrics"]["like_count"], 3);
    assert_eq!(found["posts"][0]["url"], "https://x.com/i/web/status/2");
    assert_eq!(found["posts"][1]["author"], Value::Null, "X does not say");
    assert_eq!(results[1]["output"], json!({"posts": [], "count": 0, "more": false}));
    let asked = x.asked();
    assert!(asked[0].contains("query=%22exact+phrase%22+%23tag%26x%3D1+lang%3Ade&max_results=10&"), "{asked:?}");
    fleet.stop().await;
}

#[tokio::test]
async fn a_post_with_unknown_outcome_is_never_retried() {
    let (mut fleet, x) = fleet().await;
    x.trouble("/2/tweets", FaultyResponse::Cut);
    x.trouble("/2/tweets", FaultyResponse::status(503, json!({"title": "Service Unavailable"})));
    x.trouble("/2/tweets", FaultyResponse::Status(201, vec![], "<html>".into()));
    x.trouble("/2/tweets", FaultyResponse::status(201, json!({"data": {"id": "../1"}})));
    x.trouble("/2/tweets", FaultyResponse::Status(303, vec![("location", "/2/tweets/7".into())], String::new()));
    let calls = ["one", "two", "three", "four", "five"].map(post);
    let results = run(&mut fleet, "kelly", &calls).await;
    assert_eq!(outcomes(&results), ["outcome_unknown"; 5], "{results:#?}");
    assert_eq!(x.asked().len(), 5, "one request for each");
    fleet.stop().await;
}

#[tokio::test]
async fn a_rate_limited_post_is_retried_after_the_reset() {
    let (mut fleet, x) = fleet().await;
    // The header has whole seconds, so the tool waits one second longer.
    let start = fleet.store.now_ms().await.unwrap();
    let reset = ("x-rate-limit-reset", (start / 1000 + 1).to_string());
    x.trouble("/2/tweets", FaultyResponse::Status(429, vec![reset], json!({"title": "Too Many Requests"}).to_string()));
    let results = run(&mut fleet, "kelly", &[post("again")]).await;
    assert_eq!((outcomes(&results), &results[0]["attempts"]), (vec!["ok"], &json!(2)), "{results:#?}");
    // A wait of 900 s is too long, so the call fails.
    let late = ("x-rate-limit-reset", (start / 1000 + 900).to_string());
    x.trouble("/2/tweets/search/recent", FaultyResponse::Status(429, vec![late], "{}".into()));
    let results = run(&mut fleet, "kelly", &[search("x")]).await;
    assert_eq!(outcomes(&results), ["transient"]);
    assert!(reported(&results[0]).contains("It allows more in "), "{results:#?}");
    assert_eq!(x.posts(), 1);
    fleet.stop().await;
}

#[tokio::test]
async fn a_search_is_retried_until_the_answer_is_valid() {
    let (mut fleet, x) = fleet().await;
    x.trouble("/2/tweets/search/recent", FaultyResponse::Cut);
    x.trouble("/2/tweets/search/recent", FaultyResponse::status(200, json!({"data": {"id": 1}})));
    let results = run(&mut fleet, "kelly", &[search("x")]).await;
    assert_eq!((outcomes(&results), &results[0]["attempts"]), (vec!["ok"], &json!(3)), "{results:#?}");
    x.trouble(
        "/2/tweets/search/recent",
        FaultyResponse::status(400, json!({"errors": [{"message": "Invalid 'query'"}]})),
    );
    let results = run(&mut fleet, "kelly", &[search("((")]).await;
    assert_eq!(outcomes(&results), ["permanent"]);
    assert!(reported(&results[0]).contains("Invalid 'query'"));
    fleet.stop().await;
}

#[tokio::test]
async fn a_rejected_fixed_token_fails_the_call_without_a_renewal() {
    let (mut fleet, x) = fleet().await;
    x.seen.lock().unwrap().revoked = Some(user_token());
    let results = run(&mut fleet, "kelly", &[post("hello")]).await;
    assert_eq!(outcomes(&results), ["permanent"]);
    assert_eq!(x.asked(), ["POST /2/tweets"]);
    fleet.stop().await;
}

#[tokio::test]
async fn without_tokens_both_tools_report_not_configured() {
    let mut fleet = Fleet::start(plan(&[], |_| {})).await;
    let results = run(&mut fleet, "kelly", &[post("x"), search("x")]).await;
    for result in &results {
        assert_eq!(result["error"]["code"], "not_configured", "{result}");
    }
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_post_is_not_repeated_after_its_worker_is_killed() {
    let x = StandIn::start().await;
    let mut plan = plan_of(&x);
    plan.workers = 0;
    plan.store.lease_ms = 1_000;
    plan.retry_delays = RetryDelays::default();
    let mut fleet = Fleet::start(plan).await;
    let (reported, mut left) = mpsc::unbounded_channel();
    x.trouble("/2/tweets", FaultyResponse::Silence(reported));
    let doomed = KillableProcess::start_as(&fleet, Arc::clone(fleet.plan()), "doomed");
    let call = json!({"name": "post_to_x", "arguments": {"content": "only once"}});
    fleet.submit_turn(json!({"tenant": "atlas-ux", "agent": "kelly", "calls": [call]})).await;
    left.recv().await.unwrap();
    doomed.kill();
    fleet.add_worker();
    let reply = fleet.reply_in("atlas-ux:box", tickfleet_tests::fleet::PATIENCE).await.expect("a reply");
    assert_eq!(reply["results"][0]["outcome"], "outcome_unknown", "{reply:#}");
    assert_eq!((x.posts(), x.asked().len()), (1, 1));
    fleet.stop().await;
}
