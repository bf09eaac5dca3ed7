//! Tests tokens of an identity provider at a running gateway. Tokens must work even while the provider is unavailable.

use serde_json::{Value, json};

use super::super::operators::{count, verbs};
use super::fixture::GatewayFixture;
use super::provider::{Provider, coded};
use super::{Gateway, until};

const RULES: &str = "
- {name: watch, claims: {groups: watch}, tenant: '*', role: viewer}
- {name: operate, claims: {groups: operate}, tenant: '*', role: operator}
- {name: decide, claims: {groups: decide}, tenant: '*', role: approver, approver_claim: approver}
- {name: services, claims: {azp: shop}, tenant_claim: tenant, agents_claim: agents, verbs: [submit, read, cancel]}
";

const PERMISSIONS: &str = "permissions:
  echo: {everyone: true}
  fail: {agents: [kelly], rules: [{name: ask, require: 'false', otherwise: ask}]}
approvers: {ann: {roles: [finance]}}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_token_grants_the_access_defined_by_rules_about_its_claims() {
    let place = GatewayFixture::new(&[
        ("permissions.yaml", PERMISSIONS),
        ("agents.yaml", "agents: {kelly: {}, fran: {}}\n"),
        ("tenants.yaml", "tenants: {demo: {}, acme: {}}\n"),
    ])
    .await;
    let rules = place.folder.path().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    let provider = Provider::start(place.folder.path()).await;
    place.key("taken@example.com", &[]);
    let fleet = place.fleet();
    let gateway = place.gateway_with(&provider.accepted(rules.to_str().unwrap()));
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
    let called = gateway.mcp(&shop, "kelly", "tools/call", &echo);
    assert_eq!(called.json()["result"]["structuredContent"]["text"], "over MCP", "{called:?}");
    assert_eq!(gateway.mcp(&shop, "fran", "tools/list", &json!({})).status, 403);

    let forged = format!("{}.{}", shop.rsplit_once('.').unwrap().0, coded(&[7; 256]));
    assert_eq!(gateway.get(&forged, "/v1/turns/t1").status, 401);
    assert_eq!(gateway.mcp(&forged, "kelly", "tools/list", &json!({})).status, 401);
    let nothing = provider.token("eve@example.com", &json!({"groups": ["staff"]}));
    assert_eq!(gateway.get(&nothing, "/v1/operate/me").code(), "forbidden", "nothing is granted by default");
    let taken = provider.token("taken@example.com", &json!({"groups": ["operate"]}));
    assert_eq!(gateway.get(&taken, "/v1/operate/me").code(), "forbidden", "nobody comes to have the name of a key");

    provider.serving.abort();
    let held = ["submit", "--tenant", "demo", "--agent", "kelly", "--turn-id", "held", "--call", "fail"];
    fleet.run(&[&["--config", place.conf.to_str().unwrap()], held.as_slice()].concat()).exits(0);
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
    let is_asked = |seen: &Value| seen["items"][0]["id"].is_string();
    let seen = until("an approval", || gateway.get(viewer, "/v1/operate/approvals").json(), is_asked);
    let approval = format!("demo:{}", seen["items"][0]["id"].as_str().unwrap());
    let decided =
        gateway.ask(approver, "POST", &format!("/v1/operate/approvals/{approval}/deny"), &json!({"reason": "no"}));
    assert_eq!(decided.status, 200, "{decided:?}");
}
