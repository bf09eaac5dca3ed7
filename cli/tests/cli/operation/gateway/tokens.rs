//! Tests tokens of an identity provider at a running gateway. Tokens must work even while the provider is unavailable.

use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use super::super::operators::{count, verbs};
use super::provider::{Provider, coded};
use super::{DevFleet, Gateway, HttpResponse, LOOKS, add_key, pause};

const RULES: &str = "
- {name: watch, claims: {groups: watch}, tenant: '*', role: viewer}
- {name: operate, claims: {groups: operate}, tenant: '*', role: operator}
- {name: decide, claims: {groups: decide}, tenant: '*', role: approver, approver_claim: approver}
- {name: services, claims: {azp: shop}, tenant_claim: tenant, agents_claim: agents, verbs: [submit, read, cancel]}
";

struct TokenFleet {
    fleet: DevFleet,
    gateway: Gateway,
    provider: Provider,
    folder: tempfile::TempDir,
    _redis: RedisServer,
}

async fn world() -> TokenFleet {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let conf = folder.path().join("conf");
    std::fs::create_dir(&conf).unwrap();
    let permissions = "permissions:
  echo: {everyone: true}
  fail: {agents: [kelly], rules: [{name: ask, require: 'false', otherwise: ask}]}
approvers: {ann: {roles: [finance]}}
";
    for (name, text) in [
        ("permissions.yaml", permissions),
        ("agents.yaml", "agents: {kelly: {}, fran: {}}\n"),
        ("tenants.yaml", "tenants: {demo: {}, acme: {}}\n"),
        ("rules.yaml", RULES),
    ] {
        std::fs::write(conf.join(name), text).unwrap();
    }
    let rules = folder.path().join("rules.yaml");
    std::fs::rename(conf.join("rules.yaml"), &rules).unwrap();
    let provider = Provider::start(folder.path()).await;
    let keys = folder.path().join("keys.yaml");
    add_key(&keys, &["--id", "taken@example.com", "--tenant", "demo"]);
    let conf = conf.to_str().unwrap();
    let url = redis.url();
    let fleet = DevFleet::start(&["--config", conf, "--redis-url", &url]);
    let rules = rules.to_str().unwrap();
    let tokens = [
        "--oidc-issuer",
        &provider.url,
        "--oidc-audience",
        "fleet",
        "--oidc-rules",
        rules,
        "--oidc-name-claim",
        "email",
    ];
    let gateway = Gateway::start_with(&url, &keys, &[&["--config", conf], tokens.as_slice()].concat());
    TokenFleet { fleet, gateway, provider, folder, _redis: redis }
}

pub(super) fn mcp(gateway: &Gateway, token: &str, agent: &str, method: &str, params: &Value) -> HttpResponse {
    let head = "content-type: application/json\r\naccept: application/json, text/event-stream\r\nmcp-protocol-version: 2025-11-25\r\n";
    let request = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    gateway.ask_with(token, "POST", &format!("/v1/agents/{agent}/mcp"), head, &request)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_grants_the_access_defined_by_rules_about_its_claims() {
    let TokenFleet { fleet, gateway, provider, folder, _redis } = world().await;
    let service = |tenant: &str| json!({"azp": "shop", "tenant": tenant, "agents": ["kelly"]});
    let shop = provider.token("shop@example.com", &service("demo"));
    let acme = provider.token("shop@example.com", &service("acme"));
    let [viewer, operator, approver] = [
        ("vera@example.com", json!({"groups": ["staff", "watch"]})),
        ("otto@example.com", json!({"groups": ["operate"]})),
        ("ann@example.com", json!({"groups": ["decide"], "approver": "ann"})),
    ]
    .map(|(email, claims)| provider.token(email, &claims));

    let turn = |agent: &str| json!({"agent": agent, "turn_id": "t1", "calls": [{"name": "echo", "arguments": {"text": "hi"}}]});
    let answer = gateway.ask(&shop, "POST", "/v1/turns?wait=60", &turn("kelly"));
    assert_eq!((answer.status, &answer.json()["results"][0]["output"]["text"]), (200, &json!("hi")), "{answer:?}");
    assert_eq!(gateway.ask(&shop, "POST", "/v1/turns", &turn("fran")).code(), "forbidden");
    assert_eq!(gateway.get(&acme, "/v1/turns/t1").status, 404, "another tenant's turn is not there");
    let echo = json!({"name": "echo", "arguments": {"text": "over MCP"}});
    let called = mcp(&gateway, &shop, "kelly", "tools/call", &echo);
    assert_eq!(called.json()["result"]["structuredContent"]["text"], "over MCP", "{called:?}");
    assert_eq!(mcp(&gateway, &shop, "fran", "tools/list", &json!({})).status, 403);

    let forged = format!("{}.{}", shop.rsplit_once('.').unwrap().0, coded(&[7; 256]));
    assert_eq!(gateway.get(&forged, "/v1/turns/t1").status, 401);
    assert_eq!(mcp(&gateway, &forged, "kelly", "tools/list", &json!({})).status, 401);
    let nothing = provider.token("eve@example.com", &json!({"groups": ["staff"]}));
    assert_eq!(gateway.get(&nothing, "/v1/operate/me").code(), "forbidden", "nothing is granted by default");
    let taken = provider.token("taken@example.com", &json!({"groups": ["operate"]}));
    assert_eq!(gateway.get(&taken, "/v1/operate/me").code(), "forbidden", "nobody comes to have the name of a key");

    provider.serving.abort();
    let conf = folder.path().join("conf").display().to_string();
    let held = ["submit", "--tenant", "demo", "--agent", "kelly", "--turn-id", "held", "--call", "fail"];
    fleet.run(&[&["--config", &conf], held.as_slice()].concat()).exits(0);
    operated(&gateway, &shop, [&viewer, &operator, &approver]);
}

fn operated(gateway: &Gateway, service: &str, [viewer, operator, approver]: [&String; 3]) {
    for (method, path, body, roles) in &verbs("demo:0", "call-0-1-0", "worker-1") {
        for (token, may) in [viewer, operator, approver].into_iter().zip(roles) {
            if !may {
                assert_eq!(gateway.ask(token, method, path, body).code(), "forbidden", "{method} {path}");
            }
        }
        assert_eq!(gateway.ask(service, method, path, body).code(), "forbidden", "{method} {path}");
    }
    let me = gateway.get(approver, "/v1/operate/me").json();
    assert_eq!((&me["id"], &me["approver"]), (&json!("ann@example.com"), &json!("ann")), "{me}");
    assert!(me["expires"].is_string(), "{me}");
    let whom = json!({"tenant": "demo", "agent": "fran", "reason": "a try"});
    assert_eq!(gateway.ask(operator, "POST", "/v1/operate/pause", &whom).status, 200);
    let pauses = gateway.get(viewer, "/v1/operate/pauses").json();
    assert_eq!((count(&pauses, "pauses"), &pauses["pauses"][0]["by"]), (1, &json!("otto@example.com")), "{pauses}");
    let approval = asked(gateway, viewer);
    let decided =
        gateway.ask(approver, "POST", &format!("/v1/operate/approvals/{approval}/deny"), &json!({"reason": "no"}));
    assert_eq!(decided.status, 200, "{decided:?}");
}

fn asked(gateway: &Gateway, token: &str) -> String {
    for _ in 0..LOOKS {
        let seen = gateway.get(token, "/v1/operate/approvals").json();
        if let Some(id) = seen["approvals"][0]["id"].as_str() {
            return format!("demo:{id}");
        }
        pause();
    }
    panic!("no approval was asked for within two minutes");
}
