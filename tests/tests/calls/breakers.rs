//! The circuit breaker of a tool. While the breaker is open, calls use no attempt and hold no slot.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Json, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tickfleet_config::ToolsFile;
use tickfleet_model::EffectKey;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_model::retry::breaker::BreakerSettings;
use tickfleet_model::tool::{CachePer, ReadCache};
use tickfleet_store::{TurnName, TurnView, breaker_waits, failed_attempts};
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tokio::net::TcpListener;

#[derive(Debug, Clone, Copy, PartialEq)]
enum ServiceState {
    Well,
    Unavailable,
    Hangs,
}

#[derive(Clone)]
struct Service(Arc<Mutex<(ServiceState, BTreeMap<String, usize>)>>);

impl Service {
    async fn start(mood: ServiceState) -> (Self, String) {
        let service = Self(Arc::new(Mutex::new((mood, BTreeMap::new()))));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let routes = axum::Router::new().fallback(answer).with_state(service.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        (service, address)
    }

    fn becomes(&self, mood: ServiceState) {
        self.0.lock().unwrap().0 = mood;
    }

    fn asked(&self) -> BTreeMap<String, usize> {
        self.0.lock().unwrap().1.clone()
    }

    fn requests(&self) -> usize {
        self.asked().values().sum()
    }
}

async fn answer(State(service): State<Service>, Json(body): Json<Value>) -> Response {
    let mood = {
        let mut state = service.0.lock().unwrap();
        *state.1.entry(body["text"].as_str().unwrap().to_owned()).or_default() += 1;
        state.0
    };
    match mood {
        ServiceState::Well => Json(json!({"text": body["text"]})).into_response(),
        ServiceState::Unavailable => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        ServiceState::Hangs => pending().await,
    }
}

fn declared(address: &str, effect: &str, timeout: Duration) -> ToolsFile {
    let http = json!({"method": "POST", "base_url": format!("http://{address}"), "path": "/", "body": {"text": "{{text}}"},
        "allow_private": [address]});
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
    let tool = json!({"description": "Posts.", "effect": effect, "input_schema": schema, "http": http,
        "timeout_ms": timeout.as_millis() as u64});
    serde_json::from_value(json!({"tools": {"post": tool}})).unwrap()
}

fn plan(declared: ToolsFile, failures_max: u32, cooldown: Duration) -> Plan {
    Plan {
        declared,
        slots: 4,
        caps: DefaultCaps { tick_ms: 1_000, calls_per_tick: 1_000, ..DefaultCaps::default() },
        breaker: Some(BreakerSettings { failures_max, cooldown }),
        ..Plan::default()
    }
}

async fn post(fleet: &Fleet, text: &str) -> String {
    fleet.submit(&[("post", json!({"text": text}))]).await
}

fn events(fleet: &Fleet, event: &str) -> u64 {
    let line = format!("tickfleet_tool_breaker_total{{event=\"{event}\",tool=\"post\"}}");
    let text = fleet.metrics.render();
    let value = text.lines().find_map(|found| found.strip_prefix(line.as_str())).map(str::trim);
    value.and_then(|value| value.parse().ok()).unwrap_or_default()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waited = async {
        while !is_so() {
            // Metrics send no events, so this polls.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waited).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn outcome(reply: &Value) -> (&str, u64) {
    let result = &reply["results"][0];
    (result["outcome"].as_str().unwrap(), result["attempts"].as_u64().unwrap())
}

#[tokio::test]
async fn a_hanging_tool_takes_no_slots_from_other_tools() {
    const CALLS: usize = 24;
    let (service, address) = Service::start(ServiceState::Hangs).await;
    let tool = declared(&address, "read", Duration::from_millis(500));
    // The breaker stays open for longer than a call may wait.
    let mut fleet = Fleet::start(plan(tool, 3, Duration::from_millis(2_500))).await;
    for call in 0..CALLS {
        post(&fleet, &format!("call {call}")).await;
    }
    until("a call waits", || events(&fleet, "waited") > 0).await;
    let sent = service.requests();
    assert!(sent < 3 + 4, "{sent} were sent: those that failed, and those that were out with them");
    let echo = fleet.submit(&[("echo", json!({"text": "quick"}))]).await;
    let mut replies = Vec::new();
    while replies.len() < CALLS + 1 {
        replies.push(fleet.reply().await);
    }
    let at = replies.iter().position(|reply| reply["turn_id"] == echo.as_str()).unwrap();
    assert!(at < CALLS / 2, "the echo was answered behind {at} calls of a tool that is away");
    let of_tool = replies.iter().filter(|reply| reply["turn_id"] != echo.as_str());
    let ends: Vec<(&str, u64)> = of_tool.clone().map(outcome).collect();
    assert!(ends.iter().all(|(outcome, _)| *outcome == "transient"), "{ends:?}");
    let reported: Vec<&Value> = of_tool.map(|reply| &reply["results"][0]["error"]).collect();
    let rejected = reported.iter().filter(|error| error["details"]["reason"] == "breaker_open").count();
    assert!(rejected > CALLS / 2, "{reported:?}");
    assert_eq!(events(&fleet, "gave_up"), rejected as u64);
    // Without a breaker, each call would have four attempts.
    assert!(service.requests() < 2 * CALLS, "{} requests", service.requests());
    let tries: u64 = ends.iter().map(|(_, tries)| tries).sum();
    assert_eq!(tries, service.requests() as u64, "each request is a try that is told, and nothing else is");
    fleet.stop().await;
}

#[tokio::test]
async fn once_calls_wait_unsent_behind_an_open_breaker_and_then_run_once() {
    let (service, address) = Service::start(ServiceState::Unavailable).await;
    let tool = declared(&address, "once", Duration::from_secs(30));
    // The breaker must stay open until another call arrives.
    let mut fleet = Fleet::start(plan(tool, 2, Duration::from_secs(5))).await;
    for text in ["lost 1", "lost 2"] {
        post(&fleet, text).await;
        assert_eq!(outcome(&fleet.reply().await), ("outcome_unknown", 1), "a 503 may hide what was done");
    }
    let waiting = post(&fleet, "kept 1").await;
    until("it waits", || events(&fleet, "waited") > 0).await;
    service.becomes(ServiceState::Well);
    for text in ["kept 2", "kept 3", "kept 4"] {
        post(&fleet, text).await;
    }
    for _ in 0..4 {
        assert_eq!(outcome(&fleet.reply().await), ("ok", 1), "it used up no try");
    }
    assert_eq!(events(&fleet, "opened"), 1);
    assert_eq!((events(&fleet, "tried"), events(&fleet, "closed"), events(&fleet, "gave_up")), (1, 1, 0));
    assert!(service.asked().values().all(|times| *times == 1), "{:?}", service.asked());
    let ended = fleet.store.turn_view(&TurnName::parse(&format!("acme:{waiting}")).unwrap()).await.unwrap();
    let TurnView::Finished(ended) = ended else { panic!("{ended:?}") };
    let waits = breaker_waits(&ended.notes);
    assert_eq!((ended.retries, failed_attempts(&ended.notes).len(), waits.len()), (0, 0, 1), "{ended:?}");
    assert_eq!(waits[0].why, "post failed 2 times in a row");
    let text = fleet.metrics.render();
    assert!(text.contains("tickfleet_tool_breakers_open 0"), "{text}");
    fleet.stop().await;
}

#[tokio::test]
async fn without_a_circuit_breaker_every_attempt_is_sent() {
    let (service, address) = Service::start(ServiceState::Unavailable).await;
    let tool = declared(&address, "read", Duration::from_secs(30));
    let mut fleet = Fleet::start(Plan { breaker: None, ..plan(tool, 1, Duration::from_secs(60)) }).await;
    for text in ["one", "two", "three"] {
        post(&fleet, text).await;
        assert_eq!(outcome(&fleet.reply().await), ("transient", 4));
    }
    assert_eq!(service.requests(), 12);
    fleet.stop().await;
}

#[tokio::test]
async fn an_open_breaker_still_serves_cache_hits_and_repeated_effects() {
    // A read is retried, so one call opens the breaker. A `once` call has only one attempt.
    for (effect, failures_max, lost, said) in [("read", 4, 1, "cached"), ("once", 2, 2, "repeats")] {
        let (service, address) = Service::start(ServiceState::Well).await;
        let mut tool = declared(&address, effect, Duration::from_secs(30));
        let definition = tool.tools.get_mut("post").unwrap();
        if effect == "read" {
            definition.cache = Some(ReadCache { ttl_ms: 3_600_000, per: CachePer::Tenant });
        } else {
            definition.effect_key = Some(EffectKey { arguments: vec!["/text".into()], window_ms: 3_600_000 });
        }
        let mut fleet = Fleet::start(plan(tool, failures_max, Duration::from_secs(3_600))).await;
        post(&fleet, "known").await;
        assert_eq!(outcome(&fleet.reply().await), ("ok", 1));
        service.becomes(ServiceState::Unavailable);
        for call in 0..lost {
            post(&fleet, &format!("lost {call}")).await;
            assert_ne!(outcome(&fleet.reply().await).0, "ok");
        }
        assert_eq!(events(&fleet, "opened"), 1);
        post(&fleet, "known").await;
        let reply = fleet.reply().await;
        assert_eq!(outcome(&reply), ("ok", 0), "{reply}");
        assert!(!reply["results"][0][said].is_null(), "{reply}");
        assert_eq!((events(&fleet, "waited"), service.asked()["known"]), (0, 1));
        fleet.stop().await;
    }
}
