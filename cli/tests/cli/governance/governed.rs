//! Tests the read cache and the loop breaker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Path as Part;
use axum::http::StatusCode;
use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use crate::support::binary::DevFleet;
use crate::support::serve::serve;

#[derive(Clone, Default)]
struct Service {
    asked: Arc<AtomicUsize>,
}

impl Service {
    async fn start(&self) -> String {
        let quotes = self.clone();
        let failing = self.clone();
        let router = Router::new()
            .route(
                "/quote/{symbol}",
                axum::routing::get(async move |Part(symbol): Part<String>| {
                    let number = quotes.asked.fetch_add(1, Ordering::SeqCst) + 1;
                    axum::Json(json!({"symbol": symbol, "number": number}))
                }),
            )
            .route(
                "/same/{symbol}",
                axum::routing::get(async move |Part(symbol): Part<String>| {
                    failing.asked.fetch_add(1, Ordering::SeqCst);
                    if symbol == "none" {
                        return (StatusCode::NOT_FOUND, axum::Json(json!({"error": "no such symbol"})));
                    }
                    (StatusCode::OK, axum::Json(json!({"symbol": symbol})))
                }),
            );
        format!("http://{}", serve(router).await)
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

struct GovernedFleet {
    fleet: DevFleet,
    dir: String,
    _folder: tempfile::TempDir,
    _redis: RedisServer,
}

impl GovernedFleet {
    async fn start(service: &str, settings: &str) -> Self {
        let redis = RedisServer::start().await;
        let folder = tempfile::tempdir().unwrap();
        let tool = |path: &str, cache: &str| {
            format!(
                "{{description: Looks., effect: read, {cache} input_schema: {{type: object, required: [symbol], properties: \
                 {{symbol: {{type: string, description: Which.}}, day: {{type: number, description: When.}}}}}}, \
                 http: {{method: GET, base_url: '{service}', path: '/{path}/{{{{symbol}}}}', allow_private: [127.0.0.1]}}}}"
            )
        };
        let shared = "cache: {ttl: 1h},";
        let own = "cache: {ttl: 1h, per: agent},";
        let tools = [
            ("quote", tool("quote", shared)),
            ("own_quote", tool("quote", own)),
            ("short_quote", tool("quote", "cache: {ttl: 1s},")),
            ("kept", tool("same", shared)),
            ("same", tool("same", "")),
        ];
        let lines: Vec<String> = tools.iter().map(|(name, tool)| format!("  {name}: {tool}\n")).collect();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("tools.yaml", &format!("tools:\n{}", lines.concat()));
        write("agents.yaml", "agents: {kelly: {}, fran: {}, few: {max_actions_per_day: 1}}\n");
        write("tenants.yaml", "tenants: {demo: {}, other: {}}\n");
        let rows = tools.map(|(name, _)| format!("  {name}: {{everyone: true}}\n")).concat();
        let quote = "  quote: {agents: [kelly, few]}\n";
        write("permissions.yaml", &format!("permissions:\n{}", rows.replace("  quote: {everyone: true}\n", quote)));
        write("tickfleet.yaml", settings);
        let dir = folder.path().to_str().unwrap().to_owned();
        let url = redis.url();
        let fleet = DevFleet::start(&["--config", &dir, "--redis-url", &url]);
        Self { fleet, dir, _folder: folder, _redis: redis }
    }

    fn run(&self, args: &[&str]) -> crate::support::binary::CommandOutput {
        self.fleet.run(&[&["--config", &self.dir], args].concat())
    }

    fn call(&self, tenant: &str, agent: &str, call: &Value) -> Value {
        let args = ["--config", &self.dir, "submit", "--tenant", tenant, "--agent", agent, "-", "--wait", "--json"];
        let said = self.fleet.run_with(&args, &call.to_string());
        said.json()["results"][0].clone()
    }

    fn look(&self, agent: &str, tool: &str, symbol: &str) -> Value {
        self.call("demo", agent, &json!({"calls": [{"name": tool, "arguments": {"symbol": symbol}}]}))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_reads_hit_the_cache_but_still_need_permission_and_caps() {
    let service = Service::default();
    let governed = GovernedFleet::start(&service.start().await, "{}\n").await;
    let first = governed.look("kelly", "quote", "ACME");
    assert_eq!((&first["output"]["number"], &first["cached"]), (&json!(1), &Value::Null), "{first}");
    let asked = |arguments: &str, context: Value| {
        let call = json!({"name": "quote", "arguments": arguments});
        governed.call("demo", "kelly", &json!({"calls": [call], "user_context": context}))
    };
    let again = governed.look("kelly", "quote", "ACME");
    assert_eq!((&again["output"], &again["attempts"]), (&first["output"], &json!(0)), "{again}");
    assert_eq!(again["cached"]["call"], first["call"], "{again}");
    assert!(again["cached"]["age_ms"].is_u64(), "{again}");
    // The result can depend on the user, but not on the spelling of the arguments.
    let kim = json!({"id": "kim"});
    let for_kim = asked(r#"{"symbol": "ACME", "day": 1}"#, kim.clone());
    assert_eq!((&for_kim["output"]["number"], &for_kim["cached"]), (&json!(2), &Value::Null), "{for_kim}");
    let for_kim = asked(r#"{"day": 1.0, "symbol": "ACME"}"#, kim);
    assert_eq!(for_kim["output"]["number"], 2, "{for_kim}");
    assert_eq!(asked(r#"{"symbol": "ACME", "day": 1}"#, json!({"id": "ada"}))["output"]["number"], 3);
    let elsewhere = json!({"calls": [{"name": "quote", "arguments": {"symbol": "ACME"}}]});
    assert_eq!(governed.call("other", "kelly", &elsewhere)["output"]["number"], 4);
    let own =
        ["kelly", "fran", "fran"].map(|agent| governed.look(agent, "own_quote", "ACME")["output"]["number"].clone());
    assert_eq!(own, [5, 6, 6].map(Value::from));
    assert_eq!(governed.look("fran", "quote", "ACME")["outcome"], "denied");
    let capped = ["ok", "daily_cap_reached"].map(|outcome| (governed.look("few", "quote", "ACME"), outcome));
    capped.iter().for_each(|(result, outcome)| assert_eq!(result["outcome"], *outcome, "{result}"));
    assert_eq!(capped[0].0["output"]["number"], 1, "{}", capped[0].0);
    assert_eq!(service.asked(), 6);
    for asked in [7, 8] {
        assert_eq!(governed.look("kelly", "kept", "none")["outcome"], "permanent");
        assert_eq!(service.asked(), asked);
    }
    let number = || governed.look("kelly", "short_quote", "ACME")["output"]["number"].as_u64().unwrap();
    let before = number();
    while number() == before {}
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reply_explain_and_the_audit_log_report_a_cache_hit() {
    let service = Service::default();
    let governed = GovernedFleet::start(&service.start().await, "{}\n").await;
    let function = json!({"name": "quote", "arguments": "{\"symbol\":\"ACME\"}"});
    let turn = json!({"tool_calls": [{"id": "c", "type": "function", "function": function}]}).to_string();
    let submit = |id: &str| {
        let args =
            ["--config", &governed.dir, "submit", "--tenant", "demo", "--agent", "kelly", "-", "--wait", "--json"];
        governed.fleet.run_with(&[&args[..], &["--turn-id", id]].concat(), &turn).exits(0).json()
    };
    let reported = |reply: &Value| reply["messages"][0]["content"].as_str().unwrap().to_owned();
    let plain = reported(&submit("first"));
    assert!(!plain.contains("not called again"), "{plain}");
    let kept = reported(&submit("second"));
    assert!(kept.contains("\"number\":1") && kept.contains("the tool was not called again"), "{kept}");
    let said = governed.run(&["explain", "demo:second"]).exits(0);
    said.says("Call /0 got the cached answer of first/0").says("its tool was not called");
    let story = governed.run(&["explain", "demo:second", "--json"]).exits(0).json();
    assert_eq!(story["results"][0]["cached"]["call"], "first/0", "{story}");
    assert_eq!(story["audit"]["entries"][0]["meta"]["cached"]["call"], "first/0", "{story}");
    assert_eq!(service.asked(), 1);
}

const REPEATED_CALLS: &str = include_str!("../../../../docs/snippets/shop-governed/tickfleet.yaml");

#[tokio::test(flavor = "multi_thread")]
async fn the_loop_breaker_warns_and_then_rejects_repeated_calls() {
    let service = Service::default();
    let governed = GovernedFleet::start(&service.start().await, REPEATED_CALLS).await;
    let same = json!({"name": "same", "arguments": {"symbol": "ACME"}});
    let all = |agent: &str, calls: Vec<Value>| {
        let args = ["--config", &governed.dir, "submit", "--tenant", "demo", "--agent", agent, "-", "--wait", "--json"];
        let reply = governed.fleet.run_with(&args, &json!({"calls": calls}).to_string()).json();
        reply["results"].as_array().unwrap().clone()
    };
    let calls = all("kelly", vec![same.clone(); 7]);
    let notes: Vec<Option<&str>> = calls.iter().map(|call| call["note"].as_str()).collect();
    assert!(notes[..2].iter().all(Option::is_none) && notes[2..5].iter().all(Option::is_some), "{calls:#?}");
    assert!(notes[2].unwrap().contains("You have made the same call 3 times in a row"), "{notes:?}");
    assert!(notes[4].unwrap().contains("It is denied until"), "{notes:?}");
    for refused in &calls[5..] {
        assert_eq!((&refused["outcome"], &refused["error"]["details"]["reason"]), (&json!("denied"), &json!("loop")));
    }
    assert_eq!(service.asked(), 5);
    assert_eq!(governed.look("fran", "same", "ACME")["outcome"], "ok");
    let moving = |symbol: &str| json!({"name": "own_quote", "arguments": {"symbol": symbol}});
    let others = ["1", "2", "3", "4"].into_iter().flat_map(|symbol| [moving(symbol), json!({"name": "list_tools"})]);
    let others = all("kelly", others.collect());
    assert!(others.iter().all(|call| call["outcome"] == "ok" && call["note"].is_null()), "{others:#?}");
    let wrong = all("kelly", vec![json!({"name": "nope"}); 3]);
    assert!(wrong[2]["note"].is_string() && wrong[1]["note"].is_null(), "{wrong:#?}");
    let args = ["submit", "--tenant", "demo", "--agent", "kelly", "--turn-id", "again", "--wait"];
    governed.run(&[&args[..], &["--call", "same {\"symbol\":\"ACME\"}"]].concat()).exits(1);
    governed
        .run(&["explain", "demo:again"])
        .exits(0)
        .says("The loop breaker denied call /0")
        .says("It may run again at");
}
