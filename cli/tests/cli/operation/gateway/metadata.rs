//! The metadata of RFC 9728 names the issuer of tokens. MCP's authorization begins with this metadata.

use serde_json::{Value, json};

use super::HttpResponse;
use super::fixture::GatewayFixture;
use super::provider::Provider;

const RULES: &str = "- {name: services, claims: {azp: shop}, tenant: demo, agents: ['*'], verbs: [read]}\n";
const METADATA: &str = "/.well-known/oauth-protected-resource";

fn challenge(answer: &HttpResponse) -> String {
    assert_eq!(answer.status, 401, "{answer:?}");
    let found = answer.head.lines().find_map(|line| line.strip_prefix("www-authenticate: "));
    found.unwrap_or_else(|| panic!("no challenge: {answer:?}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_token_gets_the_address_of_the_issuer_metadata() {
    let place = GatewayFixture::new(&[]).await;
    let provider = Provider::start(place.folder.path()).await;
    let rules = place.folder.path().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    place.key("shop", &[]);
    let tokens = provider.accepted(rules.to_str().unwrap());
    let public = ["--public-url", "https://fleet.example.com"];
    let gateway = place.gateway_with(&[&tokens[..], &public].concat());

    let mcp = "/v1/agents/kelly/mcp";
    let said = challenge(&gateway.ask("", "POST", mcp, &json!({})));
    assert_eq!(
        said,
        format!("bearer error=\"invalid_token\", resource_metadata=\"https://fleet.example.com{METADATA}{mcp}\"")
    );
    let reported = gateway.get("", &format!("{METADATA}{mcp}"));
    assert!(reported.status == 200 && reported.head.contains("content-type: application/json"), "{reported:?}");
    let expected = json!({"resource": format!("https://fleet.example.com{mcp}"), "resource_name": "Tickfleet",
        "authorization_servers": [provider.url], "bearer_methods_supported": ["header"]});
    assert_eq!(reported.json(), expected);
    let said = challenge(&gateway.get("wrong", "/v1/turns/none"));
    assert!(said.ends_with(&format!("resource_metadata=\"https://fleet.example.com{METADATA}\"")), "{said}");
    assert_eq!(gateway.get("", METADATA).json()["resource"], "https://fleet.example.com");
    for path in ["/v1/turns", "/v1/agents/a%20b/mcp", "/v1/agents/kelly/tools", "/"] {
        assert_eq!(gateway.get("", &format!("{METADATA}{path}")).status, 404, "{path}");
    }

    for more in [&tokens[..], &public] {
        let gateway = place.gateway_with(more);
        assert_eq!(challenge(&gateway.ask("", "POST", mcp, &Value::Null)), "bearer");
        assert_eq!(gateway.get("", METADATA).status, 404);
    }
}
