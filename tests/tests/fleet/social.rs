//! The tools of Telegram and X in config/tools.yaml, against a stub of both services.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tickfleet_config::{Sources, load};
use tickfleet_engine::active_policy::ActivePolicy;
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tests::inspect::outcomes;

const BOT_TOKEN: &str = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";
const USER_TOKEN: &str = "user-token-8f14e45fceea167a";
const BEARER_TOKEN: &str = "bearer-token-c9f0f895fb98ab91";

/// If no answer is set, a request succeeds.
#[derive(Default)]
struct Services {
    asked: Mutex<Vec<SocialRequest>>,
    answers: Mutex<VecDeque<(u16, Value)>>,
}

#[derive(Debug, Clone)]
struct SocialRequest {
    method: String,
    uri: String,
    authorization: String,
    body: Value,
}

impl Services {
    fn answer(&self, status: u16, body: Value) {
        self.answers.lock().unwrap().push_back((status, body));
    }

    fn asked(&self) -> Vec<SocialRequest> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

async fn serve(State(services): State<Arc<Services>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let authorization = parts.headers.get("authorization").map_or("", |v| v.to_str().unwrap()).to_owned();
    let asked = SocialRequest {
        method: parts.method.to_string(),
        uri: parts.uri.to_string(),
        authorization,
        body: body.clone(),
    };
    services.asked.lock().unwrap().push(asked);
    if let Some((status, answer)) = services.answers.lock().unwrap().pop_front() {
        return (StatusCode::from_u16(status).unwrap(), axum::Json(answer)).into_response();
    }
    let answer = match parts.uri.path() {
        "/2/tweets" => json!({"data": {"id": "1445880548472328192", "text": body["text"]}}),
        "/2/tweets/search/recent" => json!({"data": [{"id": "1", "text": "found"}], "meta": {"result_count": 1}}),
        _ => json!({"ok": true, "result": {"message_id": 77, "chat": {"id": body["chat_id"]}, "text": body["text"]}}),
    };
    axum::Json(answer).into_response()
}

const TEAM_CHAT: &str = "-1009";

async fn fleet(tokens: bool) -> (Fleet, Arc<Services>) {
    let tokens: &[(&str, &str)] = if tokens {
        &[
            ("TELEGRAM_BOT_TOKEN", BOT_TOKEN),
            ("TELEGRAM_CHAT_ID", TEAM_CHAT),
            ("X_USER_TOKEN", USER_TOKEN),
            ("X_BEARER_TOKEN", BEARER_TOKEN),
        ]
    } else {
        &[]
    };
    fleet_with(tokens).await
}

async fn fleet_with(tokens: &[(&str, &str)]) -> (Fleet, Arc<Services>) {
    let services: Arc<Services> = Arc::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let app = axum::Router::new().fallback(serve).with_state(services.clone());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let mut variables =
        vec![("TELEGRAM_BASE_URL", base.as_str()), ("X_BASE_URL", &base), ("TICKFLEET_ALLOW_PRIVATE", "127.0.0.1")];
    variables.extend(tokens);
    let variables: Vec<(String, String)> = variables.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    let loaded = load(&Sources {
        dir: None,
        environment: variables.iter().cloned().collect(),
        built_in_tools: ["delegate_task"]
            .into_iter()
            .chain(tickfleet_model::policy::TEAM_TOOLS)
            .chain(tickfleet_tools_atlas::NAMES)
            .map(String::from)
            .collect(),
        built_in_handlers: ["note"].map(String::from).into(),
        ..Sources::default()
    })
    .unwrap();
    let active = ActivePolicy {
        policy: loaded.policy,
        task_handlers: loaded.task_handlers,
        digest: loaded.digest,
        ..ActivePolicy::default()
    };
    let declared = loaded.tools;
    let environment = variables;
    let active = Some(active);
    let plan = Plan { declared, environment, active, atlas_tools: true, ..Plan::default() };
    (Fleet::start(plan).await, services)
}

async fn run(fleet: &mut Fleet, agent: &str, calls: &[(&str, Value)]) -> Value {
    let calls: Vec<Value> = calls.iter().map(|(name, args)| json!({"name": name, "arguments": args})).collect();
    fleet.submit_turn(json!({"tenant": "atlas-ux", "agent": agent, "calls": calls})).await;
    fleet.reply_in("atlas-ux:box", PATIENCE).await.expect("a reply")
}

fn telegram() -> (&'static str, Value) {
    ("send_telegram_message", json!({"chat_id": -1001234567890i64, "message": "Wir öffnen um 9 & schließen um 5."}))
}

fn post() -> (&'static str, Value) {
    ("post_to_x", json!({"content": "We are open. {{content}} ${X_USER_TOKEN}"}))
}

fn search() -> (&'static str, Value) {
    ("search_x", json!({"query": "\"exact phrase\" #tag&x=1 lang:de"}))
}

#[tokio::test]
async fn declared_tools_send_the_requests_that_each_service_expects() {
    let (mut fleet, services) = fleet(true).await;
    let reply = run(&mut fleet, "kelly", &[telegram(), post(), search()]).await;
    assert_eq!(outcomes(&reply), ["ok", "ok", "ok"], "{reply:#}");
    assert_eq!(reply["results"][0]["output"]["message_id"], 77);
    assert_eq!(reply["results"][1]["output"]["post_id"], "1445880548472328192");
    assert_eq!(reply["results"][2]["output"]["count"], 1);
    let asked = services.asked();
    let lines: Vec<String> = asked.iter().map(|a| format!("{} {}", a.method, a.uri)).collect();
    assert_eq!(lines[..2], [format!("POST /bot{BOT_TOKEN}/sendMessage"), "POST /2/tweets".to_owned()]);
    let sent = json!({"chat_id": -1001234567890i64, "text": "Wir öffnen um 9 & schließen um 5."});
    assert_eq!(asked[0].body, sent);
    assert_eq!(asked[1].authorization, format!("Bearer {USER_TOKEN}"));
    let words = json!({"text": post().1["content"]});
    assert_eq!(asked[1].body, words, "arguments are data: nothing in them is a template");
    assert_eq!(asked[2].authorization, format!("Bearer {BEARER_TOKEN}"));
    let query: Vec<&str> = lines[2].split_once('?').unwrap().1.split('&').collect();
    assert_eq!(query.len(), 5, "the argument's & and = are encoded: {query:?}");
    let reply = run(&mut fleet, "fran", &[post(), telegram()]).await;
    assert_eq!(outcomes(&reply), ["denied", "ok"]);
    fleet.stop().await;
}

#[tokio::test]
async fn declared_tools_have_the_expected_arguments() {
    let (mut fleet, services) = fleet(true).await;
    let spec = |name: &str| {
        let schema = fleet.plan().declared.tools[name].input_schema.as_ref().unwrap();
        let names: Vec<String> = schema["properties"].as_object().unwrap().keys().cloned().collect();
        (names.join(" "), schema.get("required").cloned().unwrap_or_else(|| json!([])))
    };
    assert_eq!(spec("post_to_x"), ("content media_urls".into(), json!(["content"])));
    assert_eq!(spec("send_telegram_message"), ("message chat_id".into(), json!(["message"])));
    assert_eq!(spec("search_x"), ("query max_results".into(), json!(["query"])));
    assert_eq!(spec("get_team_members"), ("role_filter status_filter".into(), json!([])));
    let to_team = json!({"message": "Hi.", "chat_id": null});
    let reply = run(&mut fleet, "kelly", &[("send_telegram_message", json!({"message": "Hi."}))]).await;
    assert_eq!(outcomes(&reply), ["ok"], "{reply:#}");
    assert_eq!(services.asked()[0].body, json!({"chat_id": TEAM_CHAT, "text": "Hi."}));
    let reply = run(&mut fleet, "kelly", &[("send_telegram_message", to_team)]).await;
    let reported = reply["results"][0]["error"]["message"].as_str().unwrap();
    assert!(reported.contains("'chat_id' must be of type"), "{reported}");
    fleet.stop().await;
}

#[tokio::test]
async fn without_a_default_chat_a_call_must_name_one() {
    let (mut fleet, services) = fleet_with(&[("TELEGRAM_BOT_TOKEN", BOT_TOKEN)]).await;
    let reply = run(&mut fleet, "kelly", &[("send_telegram_message", json!({"message": "Hi."})), telegram()]).await;
    assert_eq!(outcomes(&reply), ["invalid_arguments", "ok"], "{reply:#}");
    let reported = reply["results"][0]["error"]["message"].as_str().unwrap();
    let expected = "Invalid arguments for tool 'send_telegram_message': Argument 'chat_id' is missing, and this fleet has \
                    no default for it: give it.";
    assert_eq!(reported, expected);
    assert_eq!(services.asked().len(), 1);
    fleet.stop().await;
}

#[tokio::test]
async fn a_service_error_maps_to_an_outcome_by_status_and_effect() {
    let (mut fleet, services) = fleet(true).await;
    services.answer(
        429,
        json!({"ok": false, "description": "Too Many Requests: retry after 1", "parameters": {"retry_after": 1}}),
    );
    let reply = run(&mut fleet, "kelly", &[telegram()]).await;
    assert_eq!((outcomes(&reply), &reply["results"][0]["attempts"]), (vec!["ok"], &json!(2)));
    assert_eq!(services.asked().len(), 2);
    services.answer(403, json!({"ok": false, "description": "Forbidden: bot was kicked from the group chat"}));
    let reply = run(&mut fleet, "kelly", &[telegram()]).await;
    assert_eq!(outcomes(&reply), ["permanent"]);
    let said = reply["results"][0]["error"]["message"].as_str().unwrap();
    assert!(said.contains("bot was kicked"), "{said}");
    services.asked();
    services.answer(500, json!({"ok": false, "description": "Internal Server Error"}));
    services.answer(503, json!({"title": "Service Unavailable"}));
    let reply = run(&mut fleet, "kelly", &[telegram(), post()]).await;
    assert_eq!(outcomes(&reply), ["outcome_unknown", "outcome_unknown"]);
    assert_eq!(services.asked().len(), 2, "one request for each call");
    services.answer(503, json!({}));
    services.answer(500, json!({}));
    let reply = run(&mut fleet, "kelly", &[search()]).await;
    assert_eq!((outcomes(&reply), &reply["results"][0]["attempts"]), (vec!["ok"], &json!(3)));
    fleet.stop().await;
}

#[tokio::test]
async fn a_tool_without_its_token_reports_not_configured() {
    let (mut fleet, services) = fleet(false).await;
    let reply = run(&mut fleet, "kelly", &[telegram()]).await;
    assert_eq!(outcomes(&reply), ["permanent"]);
    for result in reply["results"].as_array().unwrap() {
        assert_eq!(result["error"]["code"], "not_configured", "{result}");
    }
    assert!(services.asked().is_empty());
    fleet.stop().await;
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn tokens_never_appear_in_replies_redis_metrics_or_logs() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone());
    // The fleet runs on the test's own thread, so this subscriber gets all events.
    let logging = tracing::subscriber::set_default(subscriber.finish());
    let (mut fleet, services) = fleet(true).await;
    let echoed = format!("no bot {BOT_TOKEN}, url http://x/bot{BOT_TOKEN}/sendMessage");
    services.answer(200, json!({"ok": true, "result": {"text": echoed}}));
    services.answer(404, json!({"ok": false, "description": echoed}));
    services.answer(500, json!({"ok": false, "description": echoed}));
    services.answer(401, json!({"title": "Unauthorized", "detail": format!("Bearer {USER_TOKEN} is not valid")}));
    let reply = run(&mut fleet, "kelly", &[telegram(), telegram(), telegram(), post()]).await;
    assert_eq!(outcomes(&reply), ["ok", "permanent", "outcome_unknown", "permanent"]);
    assert_eq!(services.asked().len(), 4);
    let kept = fleet.everything().await;
    assert!(kept.contains("tool_send_telegram_message"), "the audit log was looked at");
    let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(logged.contains("TRACE"), "{logged}");
    for token in [BOT_TOKEN, USER_TOKEN, BEARER_TOKEN, "AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"] {
        assert!(!reply.to_string().contains(token), "in the reply: {reply:#}");
        assert!(!kept.contains(token), "in Redis");
        assert!(!fleet.metrics.render().contains(token), "in the metrics");
        if let Some(at) = logged.find(token) {
            panic!("in the log: {}", &logged[at.saturating_sub(300)..at]);
        }
    }
    drop(logging);
    fleet.stop().await;
}
