//! Sign-in to X. A refresh token is valid only once, and the next one must survive the end of workers.

use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;
use tickfleet_tests::fleet::{Fleet, Plan};

use super::stand_in::{ACCESS, CLIENT, FaultyResponse, REFRESH, StandIn};
use super::{outcomes, plan, reported, run};

fn plan_of(x: &StandIn) -> Plan {
    let refresh = format!("{REFRESH}0");
    let variables = [
        ("X_BASE_URL", x.base.as_str()),
        ("TICKFLEET_ALLOW_PRIVATE", "127.0.0.1"),
        ("X_REFRESH_TOKEN", &refresh),
        ("X_CLIENT_ID", CLIENT.0),
        ("X_CLIENT_SECRET", CLIENT.1),
    ];
    plan(&variables, |_| {})
}

fn post(content: &str) -> (&'static str, Value) {
    ("post_to_x", json!({ "content": content }))
}

fn search() -> (&'static str, Value) {
    ("search_x", json!({"query": "x"}))
}

fn sign_ins(x: &StandIn) -> (u64, u64) {
    let seen = x.seen.lock().unwrap();
    (seen.granted, seen.reused)
}

async fn renewal_is_over(fleet: &Fleet) {
    let mut connection = fleet.server.connection().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*:grant:*:renewal").query_async(&mut connection).await.unwrap();
    assert_eq!(keys.len(), 1);
    redis::cmd("DEL").arg(&keys[0]).query_async::<()>(&mut connection).await.unwrap();
}

#[tokio::test]
async fn many_calls_on_many_workers_sign_in_once() {
    let x = StandIn::start().await;
    let mut fleet = Fleet::start(Plan { workers: 3, ..plan_of(&x) }).await;
    for n in 0..12 {
        let call = json!({"name": if n % 2 == 0 { "search_x" } else { "post_to_x" },
            "arguments": if n % 2 == 0 { search().1 } else { post(&format!("post {n}")).1 }});
        fleet.submit_turn(json!({"tenant": "atlas-ux", "agent": "kelly", "calls": [call]})).await;
    }
    for _ in 0..12 {
        let reply = fleet.reply_in("atlas-ux:box", tickfleet_tests::fleet::PATIENCE).await.expect("a reply");
        assert_eq!(reply["results"][0]["outcome"], "ok", "{reply:#}");
    }
    assert_eq!((sign_ins(&x), x.posts()), ((1, 0), 6));
    fleet.stop().await;
}

#[tokio::test]
async fn a_rejected_token_is_renewed_and_the_request_repeated() {
    let x = StandIn::start().await;
    let mut fleet = Fleet::start(plan_of(&x)).await;
    assert_eq!(outcomes(&run(&mut fleet, "kelly", &[post("one")]).await), ["ok"]);
    renewal_is_over(&fleet).await;
    x.seen.lock().unwrap().revoked = Some(format!("{ACCESS}1"));
    x.asked();
    let results = run(&mut fleet, "kelly", &[post("two")]).await;
    assert_eq!((outcomes(&results), &results[0]["attempts"]), (vec!["ok"], &json!(1)), "{results:#?}");
    assert_eq!(x.asked(), ["POST /2/tweets", "POST /2/oauth2/token", "POST /2/tweets"]);
    assert_eq!((sign_ins(&x), x.posts()), ((2, 0), 2));
    fleet.stop().await;
}

#[tokio::test]
async fn the_next_refresh_token_survives_workers_and_is_unreadable_in_redis() {
    let x = StandIn::start().await;
    let server = RedisServer::start().await;
    let mut fleet = Fleet::start_on(server, plan_of(&x)).await;
    assert_eq!(outcomes(&run(&mut fleet, "kelly", &[post("one")]).await), ["ok"]);
    let kept = fleet.everything().await;
    for secret in [ACCESS, REFRESH, CLIENT.1] {
        assert!(!kept.contains(secret), "{secret} is in Redis");
    }
    fleet.drain_worker().await;
    fleet.add_worker();
    assert_eq!(outcomes(&run(&mut fleet, "kelly", &[post("two")]).await), ["ok"]);
    assert_eq!(sign_ins(&x), (1, 0));
    renewal_is_over(&fleet).await;
    x.seen.lock().unwrap().revoked = Some(format!("{ACCESS}1"));
    fleet.drain_worker().await;
    fleet.add_worker();
    assert_eq!(outcomes(&run(&mut fleet, "kelly", &[post("three")]).await), ["ok"]);
    assert_eq!(sign_ins(&x), (2, 0));
    fleet.stop().await;
}

#[tokio::test]
async fn a_failed_sign_in_is_reported_and_posts_nothing() {
    let x = StandIn::start().await;
    let mut fleet = Fleet::start(plan_of(&x)).await;
    x.trouble(
        "/2/oauth2/token",
        FaultyResponse::status(400, json!({"error": "invalid_grant", "error_description": REFRESH})),
    );
    let results = run(&mut fleet, "kelly", &[post("never")]).await;
    assert_eq!(outcomes(&results), ["permanent"], "{results:#?}");
    assert!(reported(&results[0]).contains("could not sign in") && reported(&results[0]).contains("invalid_grant"));
    assert!(!reported(&results[0]).contains(REFRESH));
    assert_eq!(x.posts(), 0);
    fleet.stop().await;
}
