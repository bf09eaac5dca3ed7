//! Tests HTTP tools with real servers on this machine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request as Incoming, State};
use axum::response::{IntoResponse, Response as Answer};
use serde_json::{Value, json};
use tickfleet_model::{AgentId, CallId, TenantId, TurnId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

#[path = "tests_answers.rs"]
mod answers;
#[path = "tests_oauth2.rs"]
mod oauth2;

#[derive(Clone, Default)]
struct Service {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Service {
    async fn start(answers: impl IntoIterator<Item = Answer>) -> (Self, String) {
        let service = Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() };
        let router = Router::new().fallback(Self::answer).with_state(service.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (service, address)
    }

    async fn answer(State(service): State<Self>, request: Incoming) -> Answer {
        let (head, body) = request.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let mut headers: Vec<String> =
            head.headers.iter().map(|(n, v)| format!("{n}: {}", String::from_utf8_lossy(v.as_bytes()))).collect();
        headers.sort();
        let seen =
            format!("{} {}\n{}\n\n{}", head.method, head.uri, headers.join("\n"), String::from_utf8_lossy(&body));
        service.seen.lock().unwrap().push(seen);
        service.answers.lock().unwrap().pop_front().unwrap_or_else(|| axum::Json(json!({"ok": true})).into_response())
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

async fn raw_server<F, R>(serve: F) -> String
where
    F: Fn(TcpStream) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

async fn read_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
}

fn context(attempt: u32) -> CallContext {
    let call = CallId { turn: TurnId::new("t1").unwrap(), position: 0 };
    let context = CallContext::new(TenantId::new("acme").unwrap(), AgentId::new("kelly").unwrap(), call);
    CallContext { attempt, ..context }
}

fn arguments(value: Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(&value).unwrap()
}

fn environment() -> Environment {
    Environment::of([("BOT", "12:secret/token"), ("KEY", "key-secret")])
}

fn tool_for(def: Value, effect: Effect) -> Result<HttpTool, DeclarationError> {
    tickfleet_outbound::install_crypto_provider();
    HttpTool::new(&serde_json::from_value(def).unwrap(), effect, &environment(), &HttpClients::default())
}

/// A tool that may call `address`. `more` is merged into the declaration.
fn get(address: &str, more: Value) -> HttpTool {
    tool_for(with(address, "GET", more), Effect::Read).unwrap()
}

fn with(address: &str, method: &str, more: Value) -> Value {
    let mut def =
        json!({"method": method, "base_url": format!("http://{address}"), "path": "/", "allow_private": [address]});
    def.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    def
}

async fn call(tool: &HttpTool, args: Value) -> Result<ToolOutput, ToolFailure> {
    tool.call(&context(1), &arguments(args)).await
}

fn status(status: u16, headers: &[(&'static str, &str)], body: &str) -> Answer {
    let mut answer = (axum::http::StatusCode::from_u16(status).unwrap(), body.to_owned()).into_response();
    for (name, value) in headers {
        answer.headers_mut().insert(*name, value.parse().unwrap());
    }
    answer
}

fn message(result: Result<ToolOutput, ToolFailure>) -> String {
    match result {
        Err(ToolFailure::Ended { message, .. } | ToolFailure::Transient { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

/// True if the transient failure certainly had no effect. `None` for a permanent failure.
fn transient(result: Result<ToolOutput, ToolFailure>) -> Option<bool> {
    match result {
        Err(ToolFailure::Transient { not_executed, .. }) => Some(not_executed),
        Err(ToolFailure::Ended { .. }) => None,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_call_renders_its_templates_into_a_request() {
    let (service, address) = Service::start([]).await;
    let def = json!({
        "base_url": format!("http://{address}/v1/"), "path": "/bot${TOKEN}/users/{{a}}",
        "query": {"q": "{{b}}", "page": "{{c}}"}, "headers": {"X-Key": "k ${KEY}", "X-C": "{{c}}"},
        "body": {"n": "{{n}}", "c": "{{c}}", "text": "Hi {{a}}"}, "idempotency_header": "Idempotency-Key",
        "secrets": {"TOKEN": {"env": "BOT"}, "KEY": {"env": "KEY"}}
    });
    let tool = tool_for(with(&address, "POST", def), Effect::Once).unwrap();
    let args = r#"{"a":"x?#","b":"1&2=3","n":123456789012345678901}"#;
    let output = tool.call(&context(1), &RawValue::from_string(args.into()).unwrap()).await.unwrap();
    assert_eq!((output.json.get(), output.content_type), (r#"{"ok":true}"#, "application/json"));
    let seen = service.seen().remove(0);
    assert!(seen.starts_with("POST /v1/bot12:secret%2Ftoken/users/x%3F%23?q=1%262%3D3\n"), "{seen}");
    assert!(seen.ends_with("\n\n{\"n\":123456789012345678901,\"text\":\"Hi x?#\"}"), "{seen}");
    for header in ["idempotency-key: key-1", "x-key: k key-secret", "content-type: application/json"] {
        assert!(seen.contains(header), "{seen}");
    }
    assert!(!seen.contains("x-c:") && !seen.contains("accept-encoding"), "{seen}");
}

#[tokio::test]
async fn an_unsafe_argument_rejects_the_call_before_sending() {
    let (service, address) = Service::start([]).await;
    let tool = get(&address, json!({"path": "/users/{{a}}/profile", "headers": {"X-B": "{{b}}"}}));
    for args in [
        json!({"a": ".."}),
        json!({"a": "../admin"}),
        json!({"a": "c7/admin"}),
        json!({"a": "c7%2fadmin"}),
        json!({"a": ""}),
        json!({"a": null}),
        json!({"a": "x", "b": "1\r\nX-Evil: 1"}),
    ] {
        assert_eq!(transient(call(&tool, args).await), None);
    }
    assert!(service.seen().is_empty());
}

#[tokio::test]
async fn an_error_status_becomes_an_outcome_with_the_service_message() {
    let limited = r#"{"ok":false,"description":"Too Many Requests","parameters":{"retry_after":12}}"#;
    let answers = [
        status(429, &[], limited),
        status(503, &[("retry-after", "3")], ""),
        status(404, &[], "{\"message\":\"gone\"}"),
    ];
    let (_, address) = Service::start(answers).await;
    let tool = get(&address, json!({}));
    match call(&tool, json!({})).await {
        Err(ToolFailure::Transient { message, retry_after, not_executed: true }) => {
            assert_eq!((retry_after.unwrap().as_secs(), message.contains("Too Many Requests")), (12, true));
        }
        other => panic!("{other:?}"),
    }
    match call(&tool, json!({})).await {
        Err(ToolFailure::Transient { retry_after, not_executed: false, .. }) => {
            assert_eq!(retry_after.unwrap().as_secs(), 3)
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(message(call(&tool, json!({})).await), "The service answered with status 404: gone");
}

#[tokio::test]
async fn every_response_body_becomes_json() {
    let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
    let binary = (axum::http::StatusCode::OK, [("content-type", "image/png")], vec![0xff, 0xfe]).into_response();
    let answers = [status(200, &[], "plain \"text\""), status(204, &[], ""), status(200, &[], &deep), binary];
    let (_, address) = Service::start(answers).await;
    let tool = get(&address, json!({}));
    let mut outputs = Vec::new();
    for _ in 0..4 {
        let output = call(&tool, json!({})).await.unwrap();
        outputs.push((output.json.get().to_owned(), output.content_type));
    }
    assert_eq!(outputs[0], (r#""plain \"text\"""#.to_owned(), "text/plain"));
    assert_eq!(outputs[1].0, "null");
    assert_eq!(outputs[2], (format!("\"{deep}\""), "text/plain"));
    assert!(outputs[3].0.contains("image/png"), "{:?}", outputs[3]);
}

#[tokio::test]
async fn a_response_redacts_secrets_and_a_missing_secret_is_named() {
    let echo = r#"{"url":"/bot12:secret\/token/x","message":"bad token 12%3Asecret%2Ftoken"}"#;
    let (service, address) = Service::start([status(200, &[], echo), status(400, &[], echo)]).await;
    let def = json!({"path": "/bot${TOKEN}/x", "secrets": {"TOKEN": {"env": "BOT"}}});
    let tool = get(&address, def);
    let output = call(&tool, json!({})).await.unwrap();
    assert_eq!(output.json.get(), r#"{"url":"/bot[REDACTED]/x","message":"bad token [REDACTED]"}"#);
    assert!(message(call(&tool, json!({})).await).ends_with(": bad token [REDACTED]"));
    assert!(!format!("{tool:?}").contains("secret"));

    let tool = get(&address, json!({"headers": {"X": "${GONE}"}, "secrets": {"GONE": {"env": "NOT_SET"}}}));
    assert_eq!(tool.missing_secret(), Some("GONE"));
    match call(&tool, json!({})).await {
        Err(ToolFailure::NotConfigured { message }) => assert_eq!(message, "The secret 'GONE' is missing."),
        other => panic!("{other:?}"),
    }
    assert_eq!(service.seen().len(), 2, "nothing was sent without its secret");
}

#[tokio::test]
async fn a_private_host_is_rejected_unless_allowed() {
    let (service, address) = Service::start([]).await;
    let port = address.rsplit(':').next().unwrap();
    let local = format!("http://localhost:{port}");
    let tool = |allow: Value| get(&address, json!({"base_url": local, "allow_private": allow}));
    for refused in [json!([]), json!(["localhost:1"]), json!(["other"]), json!(["10.0.0.0/8"])] {
        let refusal = message(call(&tool(refused), json!({})).await);
        assert!(refusal.contains("'localhost' is a loopback address"), "{refusal}");
    }
    assert!(service.seen().is_empty());
    for allowed in [json!(["localhost"]), json!([format!("localhost:{port}")]), json!(["127.0.0.0/8,::1"])] {
        assert!(call(&tool(allowed), json!({})).await.is_ok());
    }
    let literal = tool_for(with(&address, "GET", json!({"allow_private": []})), Effect::Read);
    assert!(matches!(literal, Err(DeclarationError::Field { field, .. }) if field == "http.base_url"));
}

#[tokio::test]
async fn redirects_are_limited_rechecked_and_never_followed_for_once_tools() {
    let to = |location: &str| status(302, &[("location", location)], "");
    let endless = || (0..9).map(|_| to("/again"));
    let (service, address) = Service::start(endless()).await;
    let tool = get(&address, json!({"redirects_max": 2}));
    assert!(message(call(&tool, json!({})).await).contains("redirect (302)"));
    assert_eq!(service.seen().len(), 3);
    let once = tool_for(with(&address, "GET", json!({"redirects_max": 2})), Effect::Once).unwrap();
    assert_eq!(transient(call(&once, json!({})).await), Some(false), "who knows what was done");
    assert_eq!(service.seen().len(), 4, "one request, no redirect");

    let (other, other_address) = Service::start([]).await;
    let port = other_address.rsplit(':').next().unwrap();
    let evil = [
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:169.254.169.254]/",
        "file:///etc/passwd",
        &format!("http://{other_address}/"),
        &format!("http://localhost:{port}/"),
    ]
    .map(to);
    let (service, address) = Service::start(evil).await;
    let tool = get(&address, json!({"redirects_max": 3}));
    for asked in 1..=5 {
        assert_eq!(transient(call(&tool, json!({})).await), None);
        assert_eq!(service.seen().len(), asked);
    }
    assert!(other.seen().is_empty(), "the port beside the named one was not reached");
}

#[tokio::test]
async fn a_redirect_to_another_origin_drops_configured_headers() {
    let (other, other_address) = Service::start([]).await;
    let (_, address) = Service::start([status(307, &[("location", &format!("http://{other_address}/x"))], "")]).await;
    let def = json!({"redirects_max": 1, "headers": {"X-Key": "${KEY}"}, "secrets": {"KEY": {"env": "KEY"}},
        "allow_private": [address, other_address], "idempotency_header": "Idempotency-Key"});
    assert!(call(&get(&address, def), json!({})).await.is_ok());
    let seen = other.seen().remove(0);
    assert!(!seen.contains("key-secret") && !seen.contains("x-key") && !seen.contains("idempotency"), "{seen}");
}

#[tokio::test]
async fn only_an_unsent_request_counts_as_not_executed() {
    // The listener was bound and dropped, so nothing listens on this port.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let refused = call(&get(&closed, json!({})), json!({})).await;
    assert_eq!(transient(refused), Some(true));

    let no_tls =
        raw_server(|mut stream| async move { stream.write_all(b"HTTP/1.1 400 No\r\n\r\n").await.unwrap() }).await;
    let handshake = call(&get(&no_tls, json!({"base_url": format!("https://{no_tls}")})), json!({})).await;
    assert_eq!(transient(handshake), Some(true));

    let unknown = get("no-such-host.invalid", json!({}));
    assert_eq!(transient(call(&unknown, json!({})).await), Some(true), "a name that does not resolve");

    let cut_after = raw_server(|mut stream| async move { read_head(&mut stream).await }).await;
    assert_eq!(transient(call(&get(&cut_after, json!({})), json!({})).await), Some(false));

    let cut_at_once = raw_server(|stream| async move { drop(stream) }).await;
    assert_eq!(transient(call(&get(&cut_at_once, json!({})), json!({})).await), Some(false), "bytes may have left");

    let half = raw_server(|mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"a\":").await.unwrap();
    });
    assert_eq!(transient(call(&get(&half.await, json!({})), json!({})).await), Some(false));

    let gibberish = raw_server(|mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"SSH-2.0-OpenSSH\r\n\r\n").await.unwrap();
    });
    assert_eq!(transient(call(&get(&gibberish.await, json!({})), json!({})).await), Some(false));
}

#[tokio::test]
async fn an_endless_response_is_read_only_up_to_its_limit() {
    let (sent, mut ended) = tokio::sync::mpsc::channel(1);
    let drip = raw_server(move |mut stream| {
        let sent = sent.clone();
        async move {
            read_head(&mut stream).await;
            let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            let mut written = stream.write_all(head).await;
            while written.is_ok() {
                written = stream.write_all(b"4\r\nabcd\r\n").await;
            }
            sent.send(()).await.unwrap();
        }
    })
    .await;
    let tool = get(&drip, json!({"response_bytes_max": 1000}));
    let text = message(call(&tool, json!({})).await);
    assert!(text.contains("request succeeded (status 200)") && text.contains("more than 1000 bytes"), "{text}");
    ended.recv().await.unwrap();

    let (_, address) = Service::start([status(200, &[], &"x".repeat(1001)), status(200, &[], &"x".repeat(1000))]).await;
    let tool = get(&address, json!({"response_bytes_max": 1000}));
    assert!(call(&tool, json!({})).await.is_err(), "announced too long");
    assert!(call(&tool, json!({})).await.is_ok(), "exactly the bound");
}

#[tokio::test]
async fn a_dropped_call_closes_its_connection() {
    let (events, mut event) = tokio::sync::mpsc::channel(2);
    let hang = raw_server(move |mut stream| {
        let events = events.clone();
        async move {
            read_head(&mut stream).await;
            events.send("asked").await.unwrap();
            assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
            events.send("hung up").await.unwrap();
        }
    })
    .await;
    let tool = get(&hang, json!({}));
    let asked = tokio::select! {
        _ = call(&tool, json!({})) => None,
        asked = event.recv() => asked,
    };
    assert_eq!((asked, event.recv().await), (Some("asked"), Some("hung up")));
}

#[test]
fn an_invalid_declaration_is_rejected_at_load_time() {
    let base = |more: Value| {
        let mut def = json!({"method": "POST", "base_url": "https://example.com", "path": "/"});
        def.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        tool_for(def, Effect::Once).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(base(json!({})), Ok(()));
    for (more, start) in [
        (json!({"base_url": "https://{{a}}.example.com"}), "http.base_url"),
        (json!({"base_url": "https://u:p@example.com"}), "http.base_url"),
        (json!({"base_url": "ftp://example.com"}), "http.base_url"),
        (json!({"base_url": "https://example.com?x=1"}), "http.base_url"),
        (json!({"base_url": "http://169.254.169.254"}), "http.base_url"),
        (json!({"allow_private": ["http://x"]}), "http.allow_private"),
        (json!({"idempotency_header": "a b"}), "http.idempotency_header"),
        (json!({"base_url": "${CRM_URL}"}), "the environment variable CRM_URL is not set"),
    ] {
        let error = base(more.clone()).unwrap_err();
        assert!(error.starts_with(start), "{more}: {error}");
    }
}
