//! A gateway's log, metrics and responses never contain keys or tokens.

use serde_json::{Value, json};

use super::fixture::GatewayFixture;
use super::provider::{CLIENT, NONCE, Provider, Registration, VERIFIER, coded};
use super::{Gateway, add_key, echo, received};
use crate::support::process::{Process, until};

const RULES: &str = "
- {name: services, claims: {azp: shop}, tenant: demo, agents: ['*'], verbs: [submit, read, cancel]}
- {name: console, claims: {aud: console}, tenant: demo, role: viewer}
- {name: slow, claims: {azp: slow}, tenant: demo, agents: ['*'], verbs: [read], rate: {per_second: 1, burst: 2}}
";

fn asked(gateway: &Gateway, secret: &str) -> String {
    let task = json!({"target_agent": "kelly", "task_description": "x"});
    let asked: [(&str, &str, Value); 14] = [
        ("POST", "/v1/turns", echo("hi")),
        ("POST", "/v1/turns?wait=0", json!({"agent": "kelly", "calls": "none"})),
        ("GET", "/v1/turns/none?wait=0", Value::Null),
        ("POST", "/v1/turns/none/cancel", Value::Null),
        ("POST", "/v1/tasks", task),
        ("GET", "/v1/tasks", Value::Null),
        ("GET", "/v1/tasks/none/events", Value::Null),
        ("GET", "/v1/agents/kelly/tools", Value::Null),
        ("POST", "/v1/agents/kelly/chat", json!({"message": "hi", "session_id": "no such:"})),
        ("GET", "/v1/operate/me", Value::Null),
        ("GET", "/v1/operate/overview", Value::Null),
        ("POST", "/v1/operate/pause", json!({})),
        ("DELETE", "/v1/turns", Value::Null),
        ("GET", "/v1/nothing", Value::Null),
    ];
    let mut reported = String::new();
    for (method, path, body) in &asked {
        let answer = gateway.ask(secret, method, path, body);
        reported += &format!("{} {}\n", answer.head, answer.body);
    }
    for (method, params) in [("tools/list", json!({})), ("tools/call", json!({"name": 7})), ("none", json!({}))] {
        reported += &gateway.mcp(secret, "kelly", method, &params).body;
    }
    let odd =
        received(gateway.send("none", "GET", "/v1/turns/none", &format!("authorization: Basic {secret}\r\n"), ""));
    reported + &odd.head + &odd.body
}

/// Returns the secrets, and the responses to failed sign-ins. Only a successful sign-in returns the token.
fn signed_in(gateway: &Gateway, provider: &Provider) -> (Vec<String>, String) {
    let complete =
        |body: &Value| gateway.ask_with("", "POST", "/console/sign-in", "content-type: application/json\r\n", body);
    let good = provider.completion(&provider.code("otto"));
    let session = complete(&good);
    assert_eq!(session.status, 200, "{session:?}");
    let token = session.json()["token"].as_str().unwrap().to_owned();
    let bodies: Vec<Value> =
        ["nonce", "late", "broken", "refused"].map(|account| provider.completion(&provider.code(account))).into();
    let answers = std::iter::once(&good).chain(&bodies).map(complete).map(|answer| {
        assert!(answer.status >= 400, "{answer:?}");
        format!("{} {}\n", answer.head, answer.body)
    });
    let answers = answers.collect();
    let codes = [good].into_iter().chain(bodies).map(|body| body["code"].as_str().unwrap().to_owned());
    let others = [VERIFIER, NONCE, &token].map(str::to_owned);
    (codes.chain(others).collect(), answers)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_or_token_appears_in_logs_metrics_or_responses() {
    let place = GatewayFixture::new(&[]).await;
    let rules = place.folder.path().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    let provider = Provider::start(place.folder.path()).await;
    let service = place.key("shop", &[]);
    let bounded = place.key("bounded", &["--rate", "1"]);
    let operator = add_key(&place.keys, &["--id", "anna", "--tenant", "*", "--role", "operator"]);
    let public = "https://fleet.example.com";
    let client_secret = "the-client-secret-0123456789";
    let redirect_uri = format!("{public}/console/");
    provider.register(Registration { redirect_uri, secret: Some(client_secret), ..Registration::default() });
    let file = place.folder.path().join("client-secret");
    std::fs::write(&file, client_secret).unwrap();
    let file = format!("file:{}", file.display());
    let sign_in = ["--oidc-client-id", CLIENT, "--oidc-client-secret", &file, "--public-url", public];
    let tokens = [&provider.accepted(rules.to_str().unwrap())[..], &sign_in].concat();
    let loud = [("TICKFLEET_LOG_LEVEL", "trace")];
    let (process, port) = Process::start_gateway_with(&place.keys, &place.conf, &place.redis.url(), &tokens, &loud);
    let gateway = Gateway::at(&format!("127.0.0.1:{port}"));

    let good = provider.token("shop@example.com", &json!({"azp": "shop"}));
    let slow = provider.token("slow@example.com", &json!({"azp": "slow", "sub": "slow"}));
    let nobody = provider.token("eve@example.com", &json!({"azp": "nobody"}));
    let late = provider.token("shop@example.com", &json!({"azp": "shop", "exp": 1_700_000_000}));
    let forged = format!("{}.{}", good.rsplit_once('.').unwrap().0, coded(&[7; 256]));
    let [wrong, cut] = [format!("tfk_{}", coded(&[7; 32])), service[..40].to_owned()];
    until("the provider's keys are read", || gateway.get(&good, "/v1/turns/none").status, |status| *status == 404);
    let secrets = [service, bounded, operator, good, slow, nobody, late, forged, wrong, cut];
    let mut reported: String = secrets.iter().map(|secret| asked(&gateway, secret)).collect();
    let (more, answers) = signed_in(&gateway, &provider);
    reported += &answers;
    let secrets = [&secrets[..], &more, &[client_secret.to_owned()]].concat();
    let metrics = process.metrics();
    for reason in ["key", "forbidden", "rate"] {
        let none = format!("tickfleet_gateway_rejected_total{{reason=\"{reason}\"}} 0");
        assert!(!metrics.contains(&none), "nothing was refused for {reason}");
    }
    assert!(
        reported.contains("rate_exceeded") && reported.contains("it has expired") && reported.contains("202 accepted")
    );
    let log = process.log();
    assert!(log.contains("\"level\":\"TRACE\"") || log.contains("\"level\":\"DEBUG\""), "it says all it can");
    for secret in &secrets {
        // The signed part and the signature of a token are also secret.
        let parts = secret.split('.').filter(|part| part.len() > 20);
        for part in parts.chain([secret.as_str()]) {
            for (what, text) in [("log", &log), ("metrics", &metrics), ("answers", &reported)] {
                assert!(!text.contains(part), "the {what} has {part}");
            }
        }
    }
}
