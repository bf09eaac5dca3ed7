//! A gateway rejects callers above their rate, and work for full queues.

use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use super::{Gateway, HttpResponse, LOOKS, add_key, echo, received};
use crate::support::binary::DevFleet;
use crate::support::process::{Process, pause};

const OVER: &str = "request rate limit exceeded; rejecting the caller's requests";

/// In seconds.
fn retry_after(answer: &HttpResponse) -> u64 {
    let value = answer.head.lines().find_map(|line| line.strip_prefix("retry-after: "));
    value.unwrap_or_else(|| panic!("no Retry-After: {answer:?}")).trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_over_its_rate_gets_retry_after_and_affects_no_other_key() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.yaml");
    let conf = folder.path().join("conf");
    std::fs::create_dir(&conf).unwrap();
    let bounded = ["--id", "bounded", "--tenant", "demo", "--verb", "read", "--rate", "1", "--burst", "3"];
    let bounded = add_key(&keys, &bounded);
    let free = add_key(&keys, &["--id", "free", "--tenant", "demo"]);
    let (process, port) = Process::start_gateway(&keys, &conf, &redis.url());
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
    for looks in 0.. {
        if gateway.get(&bounded, "/v1/turns/none").status == 404 {
            break;
        }
        assert!(looks < LOOKS, "who has waited is let through");
        pause();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_returns_429_and_accepts_the_request_after_it_drains() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let conf = folder.path().join("conf");
    std::fs::create_dir(&conf).unwrap();
    std::fs::write(conf.join("tickfleet.yaml"), "queues: {turns_max: 3, tenant_turns_max: 3, tenant_ready_max: 3}\n")
        .unwrap();
    std::fs::write(conf.join("permissions.yaml"), "permissions: {echo: {everyone: true}}\n").unwrap();
    std::fs::write(conf.join("agents.yaml"), "agents: {kelly: {}}\n").unwrap();
    let keys = folder.path().join("keys.yaml");
    let key = add_key(&keys, &["--id", "shop", "--tenant", "demo"]);
    let config = ["--config", conf.to_str().unwrap()];
    let gateway = Gateway::start_with(&redis.url(), &keys, &config);

    // No scheduler is running, so submitted turns wait.
    let submit =
        |id: &str| gateway.ask_with(&key, "POST", "/v1/turns", &format!("idempotency-key: {id}\r\n"), &echo("hi"));
    for id in ["a", "b", "c"] {
        assert_eq!(submit(id).status, 202, "{id}");
    }
    let full = submit("d");
    assert_eq!((full.status, full.code().as_str(), retry_after(&full)), (429, "queue_full", 1), "{full:?}");
    assert_eq!(submit("a").json()["duplicate"], true, "what was taken in is never refused");
    let head = "content-type: application/json\r\naccept: application/json, text/event-stream\r\nmcp-protocol-version: 2025-11-25\r\n";
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hi"}}});
    let reported = gateway.ask_with(&key, "POST", "/v1/agents/kelly/mcp", head, &call).json();
    let words = reported["result"]["content"][0]["text"].as_str().unwrap_or_default();
    assert!(reported["result"]["isError"] == true && words.contains("Nothing ran. Retry"), "{reported}");

    let _fleet = DevFleet::start(&["--redis-url", &redis.url(), config[0], config[1]]);
    // Until these turns have ended, the gateway may reject the next turn because of another limit.
    for id in ["a", "b", "c"] {
        assert_eq!(gateway.get(&key, &format!("/v1/turns/{id}?wait=60")).status, 200, "{id}");
    }
    for looks in 0.. {
        let again = submit("d");
        if again.status == 202 {
            break;
        }
        assert!(again.status == 429 && looks < LOOKS, "{again:?}");
        pause();
    }
    assert_eq!(gateway.get(&key, "/v1/turns/d?wait=60").status, 200);
}
