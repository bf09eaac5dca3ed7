//! A gateway rejects callers above their rate, and work for full queues.

use serde_json::{Value, json};

use super::fixture::GatewayFixture;
use super::{Gateway, HttpResponse, echo, received};
use crate::support::process::{Process, until};

const OVER: &str = "request rate limit exceeded; rejecting the caller's requests";

/// In seconds.
fn retry_after(answer: &HttpResponse) -> u64 {
    let value = answer.head.lines().find_map(|line| line.strip_prefix("retry-after: "));
    value.unwrap_or_else(|| panic!("no Retry-After: {answer:?}")).trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_over_its_rate_gets_retry_after_and_affects_no_other_key() {
    let place = GatewayFixture::new(&[]).await;
    let bounded = place.key("bounded", &["--verb", "read", "--rate", "1", "--burst", "3"]);
    let free = place.key("free", &[]);
    let (process, port) = Process::start_gateway(&place.keys, &place.conf, &place.redis.url());
    let gateway = Gateway::at(&format!("127.0.0.1:{port}"));

    // This number of simultaneous requests exceeds the rate even on slow machines.
    let paths = ["/v1/turns/none", "/v1/tasks/none/events", "/v1/agents/kelly/tools", "/v1/operate/me"];
    let sent: Vec<_> = (0..60).map(|n| gateway.send(&bounded, "GET", paths[n % paths.len()], "", "")).collect();
    let answers: Vec<HttpResponse> = sent.into_iter().map(received).collect();
    let (over, let_through): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 429);
    assert!(let_through.len() >= 3 && over.len() > 10, "{} were let through", let_through.len());
    for answer in &over {
        assert_eq!(answer.code(), "rate_exceeded");
        assert!((1..=2).contains(&retry_after(answer)), "{answer:?}");
    }
    assert!((0..10).all(|_| gateway.get(&free, "/v1/turns/none").status == 404), "another key is not meant");
    assert_eq!(gateway.ask("", "GET", "/v1/openapi.json", &Value::Null).status, 200);
    let counted = format!("tickfleet_gateway_rejected_total{{reason=\"rate\"}} {}", over.len());
    assert!(process.metrics().lines().any(|line| line == counted), "{counted}\n{}", process.metrics());
    assert_eq!(process.says(OVER)["caller"], "the key \"bounded\"");
    assert!(process.count(OVER) <= 3 && !process.log().contains(&bounded), "{}", process.log());
    until("let through again", || gateway.get(&bounded, "/v1/turns/none").status, |status| *status == 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_returns_429_and_accepts_the_request_after_it_drains() {
    let place = GatewayFixture::new(&[
        ("tickfleet.yaml", "queues: {turns_max: 3, tenant_turns_max: 3, tenant_ready_max: 3}\n"),
        ("permissions.yaml", "permissions: {echo: {everyone: true}}\n"),
        ("agents.yaml", "agents: {kelly: {}}\n"),
    ])
    .await;
    let key = place.key("shop", &[]);
    let gateway = place.gateway();

    // No scheduler is running, so submitted turns wait.
    let submit =
        |id: &str| gateway.ask_with(&key, "POST", "/v1/turns", &format!("idempotency-key: {id}\r\n"), &echo("hi"));
    for id in ["a", "b", "c"] {
        assert_eq!(submit(id).status, 202, "{id}");
    }
    let full = submit("d");
    assert_eq!((full.status, full.code().as_str(), retry_after(&full)), (429, "queue_full", 1), "{full:?}");
    assert_eq!(submit("a").json()["duplicate"], true, "what was taken in is never refused");
    let call = json!({"name": "echo", "arguments": {"text": "hi"}});
    let reported = gateway.mcp(&key, "kelly", "tools/call", &call).json();
    let words = reported["result"]["content"][0]["text"].as_str().unwrap_or_default();
    assert!(reported["result"]["isError"] == true && words.contains("Nothing ran. Retry"), "{reported}");

    let _fleet = place.fleet();
    // Until these turns have ended, the gateway may reject the next turn because of another limit.
    for id in ["a", "b", "c"] {
        assert_eq!(gateway.get(&key, &format!("/v1/turns/{id}?wait=60")).status, 200, "{id}");
    }
    assert_eq!(until("room in the queue", || submit("d"), |again| again.status != 429).status, 202);
    assert_eq!(gateway.get(&key, "/v1/turns/d?wait=60").status, 200);
}
