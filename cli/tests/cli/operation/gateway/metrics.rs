//! Tests the metrics and probes of a gateway, including while Redis is unavailable.

use serde_json::Value;

use super::fixture::GatewayFixture;
use super::{Gateway, echo};
use crate::support::process::{Process, until};

fn until_measured(process: &Process, line: &str) {
    until(line, || process.metrics(), |metrics| metrics.lines().any(|found| found == line));
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_requests_and_report_that_redis_is_down() {
    let mut place = GatewayFixture::new(&[]).await;
    let key = place.key("shop", &[]);
    let (process, port) = Process::start_gateway(&place.keys, &place.conf, &place.redis.url());
    let gateway = Gateway::at(&format!("127.0.0.1:{port}"));
    for probe in ["/startupz", "/livez", "/readyz"] {
        assert!(process.answer(probe).starts_with("HTTP/1.1 200"), "{probe}");
    }
    // No fleet is running, so the turn waits.
    assert_eq!(gateway.ask_with(&key, "POST", "/v1/turns", "idempotency-key: waits\r\n", &echo("hi")).status, 202);
    assert_eq!(gateway.get("tfk_none", "/v1/turns/waits").status, 401);
    assert_eq!(gateway.get(&key, "/v1/operate/turns").status, 403);
    assert_eq!(gateway.get(&key, "/v1/nothing").status, 404);
    let waits = gateway.send(&key, "GET", "/v1/turns/waits?wait=60", "", "");
    until_measured(&process, "tickfleet_gateway_waiting 1");
    drop(waits);
    for line in [
        "tickfleet_gateway_requests_total{request=\"reply_wait\",status=\"client_closed\"} 1",
        "tickfleet_gateway_waiting 0",
        "tickfleet_gateway_requests_total{request=\"submit\",status=\"2xx\"} 1",
        "tickfleet_gateway_requests_total{request=\"reply\",status=\"4xx\"} 1",
        "tickfleet_gateway_requests_total{request=\"view\",status=\"4xx\"} 1",
        "tickfleet_gateway_requests_total{request=\"other\",status=\"4xx\"} 1",
        "tickfleet_gateway_request_duration_seconds_count{request=\"submit\"} 1",
        "tickfleet_gateway_rejected_total{reason=\"key\"} 1",
        "tickfleet_gateway_rejected_total{reason=\"forbidden\"} 1",
        "tickfleet_redis_up 1",
    ] {
        until_measured(&process, line);
    }
    let metrics = process.metrics();
    let commits =
        metrics.lines().find_map(|line| line.strip_prefix("tickfleet_redis_commands_total{verb=\"commit\"} "));
    assert!(commits.is_some_and(|commits| commits != "0"), "{metrics}");
    place.redis.kill9();
    let failed = gateway.ask(&key, "POST", "/v1/turns", &echo("lost"));
    assert_eq!((failed.status, failed.code().as_str()), (503, "unavailable"));
    until_measured(&process, "tickfleet_gateway_requests_total{request=\"submit\",status=\"5xx\"} 1");
    until_measured(&process, "tickfleet_gateway_rejected_total{reason=\"unavailable\"} 1");
    until_measured(&process, "tickfleet_redis_up 0");
    assert!(
        process.answer("/readyz").starts_with("HTTP/1.1 503") && process.answer("/livez").starts_with("HTTP/1.1 200")
    );
    assert_eq!(gateway.ask("", "GET", "/v1/openapi.json", &Value::Null).status, 200);
    assert_eq!(process.stop(), Some(0));
}
