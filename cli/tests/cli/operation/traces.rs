//! Tests traces, with a fake collector and a fake service.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Content;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use crate::support::binary::{CommandOutput, command};
use crate::support::process::Process;
use crate::support::serve::serve;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

#[derive(Clone, Default)]
struct StandIn {
    spans: Arc<Mutex<Vec<Span>>>,
    services: Arc<Mutex<Vec<String>>>,
    calls: Arc<Mutex<Vec<HeaderMap>>>,
}

impl StandIn {
    async fn start(&self) -> String {
        let collector = self.clone();
        let service = self.clone();
        let router = Router::new()
            .route("/v1/traces", axum::routing::post(async move |body: Bytes| collector.export(&body)))
            .route("/v1/chat/completions", axum::routing::post(model))
            .route(
                "/look",
                axum::routing::get(async move |headers: HeaderMap| {
                    service.calls.lock().unwrap().push(headers);
                    axum::Json(json!({"seen": true}))
                }),
            );
        format!("http://{}", serve(router).await)
    }

    fn export(&self, body: &[u8]) {
        for resource in ExportTraceServiceRequest::decode(body).unwrap().resource_spans {
            let named = resource.resource.unwrap().attributes.into_iter().find(|a| a.key == "service.name").unwrap();
            self.services.lock().unwrap().push(format!("{:?}", named.value.unwrap().value.unwrap()));
            self.spans.lock().unwrap().extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }

    fn header(&self, call: usize, name: &str) -> Option<String> {
        self.calls.lock().unwrap()[call].get(name).map(|value| value.to_str().unwrap().to_owned())
    }
}

async fn model(body: String) -> String {
    let request: Value = serde_json::from_str(&body).unwrap();
    let has_looked = request["messages"].as_array().unwrap().iter().any(|message| message["role"] == "tool");
    let call = json!([{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]);
    let message =
        if has_looked { json!({"content": "I looked."}) } else { json!({"content": null, "tool_calls": call}) };
    json!({"choices": [{"message": message, "finish_reason": "stop"}]}).to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn configure(dir: &Path, service: &str) {
    let tools = format!(
        "tools: {{look: {{description: Looks., effect: read, input_schema: {{type: object}}, \
         http: {{method: GET, base_url: '{service}', path: /look, allow_private: [127.0.0.1]}}}}}}"
    );
    std::fs::write(dir.join("tools.yaml"), tools).unwrap();
    std::fs::write(dir.join("permissions.yaml"), "permissions: {look: {everyone: true}}").unwrap();
}

async fn submit(url: &str, traceparent: &str) -> Value {
    let turn = json!({"traceparent": traceparent, "tracestate": "vendor=x", "calls": [{"name": "look"}]});
    let url = url.to_owned();
    let said = tokio::task::spawn_blocking(move || {
        let args = ["submit", "--tenant", "demo", "--agent", "kelly", "-", "--wait", "--json", "--redis-url", &url];
        CommandOutput::of(&mut command(&args), &turn.to_string())
    });
    let reply = said.await.unwrap().json();
    assert_eq!(reply["results"][0]["outcome"], "ok", "{reply}");
    reply
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_and_tool_requests_of_a_turn_belong_to_the_producers_trace() {
    let redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let stand_in = StandIn::default();
    let url = redis.url();
    let base = stand_in.start().await;
    configure(dir.path(), &base);
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", base.as_str())];
    let fleet = ["scheduler", "worker"].map(|role| Process::start_with(role, dir.path(), &url, &variables));

    let sampled = format!("00-{TRACE}-{PARENT}-01");
    assert_eq!(submit(&url, &sampled).await["traceparent"], sampled.as_str(), "the reply carries it");
    let unsampled = format!("00-{}-{PARENT}-00", "ab".repeat(16));
    submit(&url, &unsampled).await;
    assert!(submit(&url, "00-broken").await.get("traceparent").is_none(), "what is malformed is ignored");
    let ended = tokio::task::spawn_blocking(|| fleet.map(Process::stop)).await.unwrap();
    assert_eq!(ended, [Some(0), Some(0)]);

    let spans = stand_in.spans.lock().unwrap().clone();
    let of_trace = spans.iter().filter(|span| hex(&span.trace_id) == TRACE);
    let by_name: BTreeMap<&str, &Span> = of_trace.map(|span| (span.name.as_str(), span)).collect();
    let names: Vec<&str> = by_name.keys().copied().collect();
    assert_eq!(names, ["admit", "call", "http request", "slice"]);
    let parent_of = |name: &str| hex(&by_name[name].parent_span_id);
    let id_of = |name: &str| hex(&by_name[name].span_id);
    assert_eq!(parent_of("admit"), PARENT);
    for (child, parent) in [("slice", "admit"), ("call", "slice"), ("http request", "call")] {
        assert_eq!(parent_of(child), id_of(parent), "{child} is a child of {parent}");
    }
    assert_eq!(stand_in.header(0, "traceparent"), Some(format!("00-{TRACE}-{}-01", id_of("http request"))));
    assert_eq!(stand_in.header(0, "tracestate").as_deref(), Some("vendor=x"));
    assert!(stand_in.services.lock().unwrap().iter().all(|name| name.contains("\"tickfleet\"")));

    // The producer chose not to sample this trace.
    assert!(!spans.iter().any(|span| hex(&span.trace_id) == "ab".repeat(16)));
    let sent = stand_in.header(1, "traceparent").unwrap();
    assert!(sent.starts_with(&format!("00-{}-", "ab".repeat(16))) && sent.ends_with("-00"), "{sent}");
    let own: Vec<&Span> = spans.iter().filter(|span| hex(&span.trace_id) != TRACE).collect();
    assert_eq!(own.len(), 4, "{own:?}");
    assert!(own.iter().all(|span| span.trace_id == own[0].trace_id));
    assert_eq!(stand_in.header(2, "tracestate"), None, "it belonged to the broken one");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_endpoint_the_trace_context_is_passed_on_unchanged() {
    let redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let stand_in = StandIn::default();
    let url = redis.url();
    configure(dir.path(), &stand_in.start().await);
    let fleet = ["scheduler", "worker"].map(|role| Process::start(role, dir.path(), &url));
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    assert_eq!(submit(&url, &traceparent).await["traceparent"], traceparent.as_str());
    assert_eq!(stand_in.header(0, "traceparent"), Some(traceparent));
    assert_eq!(stand_in.header(0, "tracestate").as_deref(), Some("vendor=x"));
    tokio::task::spawn_blocking(|| fleet.map(Process::stop)).await.unwrap();
    assert!(stand_in.spans.lock().unwrap().is_empty());
}

/// Runs a task of a model that calls a tool. Returns the spans, and the metrics of the worker.
async fn delegated(variables: &[(&str, &str)]) -> (Vec<Span>, String) {
    let redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let stand_in = StandIn::default();
    let url = redis.url();
    let base = stand_in.start().await;
    configure(dir.path(), &base);
    let agents = "agents: {kelly: {task_handler: {llm: {system: You look.}}}}";
    std::fs::write(dir.path().join("agents.yaml"), agents).unwrap();
    let model = format!("{base}/v1");
    let own =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", base.as_str()), ("OPENAI_BASE_URL", &model), ("OPENAI_MODEL", "scripted")];
    let variables = [&own, variables].concat();
    let fleet = ["scheduler", "worker"].map(|role| Process::start_with(role, dir.path(), &url, &variables));
    let ended = tokio::task::spawn_blocking(move || {
        let args = ["delegate", "--tenant", "demo", "--to", "kelly", "Look.", "--wait", "--json", "--redis-url", &url];
        let reply = CommandOutput::of(&mut command(&args), "").json();
        assert_eq!(reply["results"][0]["output"]["answer"], "I looked.", "{reply}");
        let metrics = fleet[1].metrics();
        assert_eq!(fleet.map(Process::stop), [Some(0), Some(0)]);
        metrics
    });
    let metrics = ended.await.unwrap();
    let spans = stand_in.spans.lock().unwrap().clone();
    (spans, metrics)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_steps_of_a_model_task_are_spans_of_one_trace() {
    let (spans, _) = delegated(&[]).await;
    let delegated = spans.iter().find(|span| span.name == "delegate").unwrap();
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert!(spans.iter().all(|span| span.trace_id == delegated.trace_id), "its calls' turn belongs to it: {names:?}");
    let step = |span: &Span| {
        let value = span.attributes.iter().find(|attribute| attribute.key == "step")?.value.clone()?;
        Some(format!("{:?}", value.value?))
    };
    let mut steps: Vec<&Span> = spans.iter().filter(|span| span.name == "step").collect();
    steps.sort_by_key(|span| span.start_time_unix_nano);
    let named: Vec<String> = steps.into_iter().filter_map(step).collect();
    for (index, name) in ["plan", "execute", "execute", "validate", "plan", "answer"].into_iter().enumerate() {
        assert!(named[index].contains(name), "{named:?}");
    }
    assert_eq!(spans.iter().filter(|span| span.name == "model request").count(), 2);
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let value = span.attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?;
    Some(match value.value? {
        Content::StringValue(text) => text,
        Content::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn gen_ai_spans_use_opentelemetry_names_and_have_content_only_if_enabled() {
    for content in [false, true] {
        let content_wanted = content.to_string();
        let variables =
            [("TICKFLEET_TRACING_GEN_AI", "true"), ("TICKFLEET_TRACING_GEN_AI_CONTENT", content_wanted.as_str())];
        let (spans, metrics) = delegated(&variables).await;
        let counted = r#"gen_ai_execute_tool_duration_seconds_count{error_type="",gen_ai_tool_name="look"} 1"#;
        assert!(metrics.contains(counted), "{metrics}");

        let named = |name: &str| -> Vec<&Span> { spans.iter().filter(|span| span.name == name).collect() };
        let tool = named("execute_tool look")[0];
        let parent = spans.iter().find(|span| span.span_id == tool.parent_span_id).unwrap();
        assert_eq!(parent.name, "call", "beside our own");
        let said = ["gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.type", "gen_ai.agent.name"];
        let said = said.map(|key| attribute(tool, key).unwrap_or_default());
        assert_eq!(said, ["execute_tool", "look", "function", "kelly"]);
        assert!(attribute(tool, "gen_ai.tool.call.id").is_some_and(|id| !id.is_empty()), "{tool:?}");
        let of_content = ["gen_ai.tool.call.arguments", "gen_ai.tool.call.result"].map(|key| attribute(tool, key));
        let expected = content.then(|| ["{}", r#"{"seen":true}"#].map(|said| Some(said.to_owned())));
        assert_eq!(of_content, expected.unwrap_or([None, None]));
        let chats = named("chat scripted");
        assert_eq!(chats.len(), 2);
        let said = ["gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"];
        assert_eq!(said.map(|key| attribute(chats[0], key).unwrap()), ["chat", "openai", "scripted"]);
        let tokens = attribute(chats[0], "gen_ai.usage.input_tokens").unwrap();
        assert!(tokens.parse::<u64>().unwrap() > 0, "{tokens}");
        assert_eq!(named("model request").len(), 2);
    }
}
