//! Tests providers over HTTP, against a stub that rejects what the real providers reject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod strict;

use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use serde_json::json;
use tickfleet_models::{
    ChatMessage, FailureClass, ModelChain, ModelFailure, ModelRequest, Provider, ProviderApi, ProviderSettings,
    StopReason, TokenUsage, ToolCall, ToolDefinition,
};

use strict::{KEY, Reply, StandIn};

const APIS: [ProviderApi; 4] =
    [ProviderApi::OpenAi, ProviderApi::Responses, ProviderApi::Anthropic, ProviderApi::Gemini];

fn provider(api: ProviderApi, base: &str, name: &str) -> Arc<Provider> {
    made(settings(api, base, name))
}

fn made(settings: ProviderSettings) -> Arc<Provider> {
    tickfleet_outbound::install_crypto_provider();
    Arc::new(Provider::new(settings).unwrap())
}

fn settings(api: ProviderApi, base: &str, name: &str) -> ProviderSettings {
    ProviderSettings {
        name: name.to_owned(),
        api,
        base_url: base.to_owned(),
        key: Some(SecretString::from(KEY.to_owned())),
        model: "test-model".to_owned(),
        function_calling: true,
        allow_private: ["127.0.0.1".to_owned()].into(),
        timeout: Duration::from_secs(20),
    }
}

fn tool(name: &str) -> ToolDefinition {
    ToolDefinition { name: name.into(), description: "Posts.".into(), parameters: json!({ "type": "object" }) }
}

fn asking() -> ModelRequest {
    ModelRequest {
        system: "You are Kelly.".into(),
        messages: vec![ChatMessage::User("Post it.".into())],
        tools: vec![tool("post_to_x"), tool("search_x")],
        tokens_max: 500,
        temperature: Some(0.2),
        ..ModelRequest::default()
    }
}

/// Returns a request with the results of `calls`. The second call has failed.
fn continued(calls: Vec<ToolCall>) -> ModelRequest {
    let mut request = asking();
    let results = calls.iter().enumerate().map(|(index, call)| ChatMessage::Result {
        id: call.id.clone(),
        tool: call.tool.clone(),
        content: "done".into(),
        is_error: index == 1,
    });
    let results: Vec<_> = results.collect();
    request.messages.push(ChatMessage::Model { text: "I post.".into(), calls });
    request.messages.extend(results);
    request
}

#[tokio::test]
async fn each_provider_accepts_a_conversation_with_calls_and_results() {
    for api in APIS {
        let server = StandIn::start(api, vec![Reply::Calls, Reply::Words("Posted.")]).await;
        let models = ModelChain::new(vec![provider(api, &server.base, "one")]);
        let first = models.ask_one(0, &asking()).await.unwrap();
        assert_eq!((first.stop, first.calls.len()), (StopReason::Calls, 2), "{api:?}");
        assert_eq!(first.usage, TokenUsage { input: 10, output: 5 }, "{api:?}");
        assert_eq!(first.calls[0].id, "call_1_0", "{api:?}");
        assert!(first.calls[0].arguments.contains("12345678901234567890123"), "{api:?}: no digit is lost");
        let mut then = continued(first.calls);
        then.answer_only = true;
        let last = models.ask_one(0, &then).await.unwrap();
        assert_eq!((last.stop, last.text.as_str()), (StopReason::Answer, "Posted."), "{api:?}");
    }
}

#[tokio::test]
async fn a_conversation_continues_with_another_provider() {
    for (at, from) in APIS.into_iter().enumerate() {
        let to = APIS[(at + 1) % APIS.len()];
        let first = StandIn::start(from, vec![Reply::Calls]).await;
        let second = StandIn::start(to, vec![Reply::Words("Done by the other.")]).await;
        let models = ModelChain::new(vec![provider(from, &first.base, "one"), provider(to, &second.base, "two")]);
        let calls = models.ask_one(0, &asking()).await.unwrap().calls;
        // A conversation with another provider lacks the signature that Gemini requires.
        let answer = models.ask_one(1, &continued(calls)).await.unwrap();
        assert_eq!(answer.text, "Done by the other.", "{from:?} {to:?}");
    }
}

#[tokio::test]
async fn provider_errors_are_classified_and_contain_no_key() {
    let message = |text: &str| json!({ "error": { "message": text } });
    let spent = json!({ "error": { "message": "You exceeded your quota", "code": "insufficient_quota" } });
    let delay = json!({ "error": { "message": "slow", "details": [{ "retryDelay": "7s" }] } });
    let table = [
        (
            401,
            message(&format!("Incorrect API key provided: {KEY}")),
            ModelFailure::Unauthorized,
            FailureClass::Permanent,
        ),
        (400, message("bad"), ModelFailure::BadRequest, FailureClass::Permanent),
        (404, message("no model"), ModelFailure::NotFound, FailureClass::Permanent),
        (429, spent, ModelFailure::QuotaSpent, FailureClass::Exhausted),
        (529, message("Overloaded"), ModelFailure::Unavailable, FailureClass::Transient),
        (429, delay, ModelFailure::RateLimited, FailureClass::Transient),
    ];
    for (status, body, failure, class) in table {
        let server = StandIn::start(ProviderApi::OpenAi, vec![Reply::Status(status, body, "")]).await;
        let models = ModelChain::new(vec![provider(ProviderApi::OpenAi, &server.base, "one")]);
        let error = models.ask_one(0, &asking()).await.unwrap_err();
        assert_eq!((error.failure, error.class()), (failure, class), "{error}");
        assert!(!error.to_string().contains(KEY) && !format!("{error:?}").contains(KEY), "{error}");
        assert_eq!(error.retry_after, (failure == ModelFailure::RateLimited).then_some(Duration::from_secs(7)));
    }
}

#[tokio::test]
async fn a_provider_is_not_called_during_its_requested_pause() {
    let server = StandIn::start(ProviderApi::Anthropic, vec![Reply::Status(429, json!({}), "60")]).await;
    let models = ModelChain::new(vec![provider(ProviderApi::Anthropic, &server.base, "one")]);
    assert_eq!(models.ask_one(0, &asking()).await.unwrap_err().retry_after, Some(Duration::from_secs(60)));
    assert_eq!(models.ask_one(0, &asking()).await.unwrap_err().failure, ModelFailure::BreakerOpen);
    assert_eq!(server.asked(), 1);
}

#[tokio::test]
async fn malformed_and_oversized_answers_fail() {
    // After parsing, each of these values takes seventy bytes of memory.
    let dense = Box::leak(format!("[{}0]", "0,".repeat(300_000)).into_boxed_str());
    let table = [
        (Reply::Raw("<html>"), ModelFailure::Malformed),
        (Reply::Endless, ModelFailure::TooLarge),
        (Reply::Raw(dense), ModelFailure::TooLarge),
        (Reply::Raw("{}"), ModelFailure::Malformed),
    ];
    for api in APIS {
        for (reply, failure) in &table {
            let server = StandIn::start(api, vec![reply.clone()]).await;
            let models = ModelChain::new(vec![provider(api, &server.base, "one")]);
            let error = models.ask_one(0, &asking()).await.unwrap_err();
            assert_eq!(error.failure, *failure, "{api:?}: {error}");
        }
    }
}

#[tokio::test]
async fn a_model_without_function_calling_plans_in_text() {
    let planned = r#"{"tool": "post_to_x", "reason": "asked", "arguments": {"text": "hi"}}"#;
    let none = r#"{"tool": "none", "reason": "done", "arguments": {}}"#;
    let server =
        StandIn::start(ProviderApi::OpenAi, vec![Reply::Words(planned), Reply::Words("All done."), Reply::Words(none)])
            .await;
    let settings = ProviderSettings { function_calling: false, ..settings(ProviderApi::OpenAi, &server.base, "plain") };
    let models = ModelChain::new(vec![made(settings)]);
    let first = models.ask_one(0, &asking()).await.unwrap();
    assert_eq!((first.stop, first.calls[0].tool.as_str()), (StopReason::Calls, "post_to_x"));
    assert_eq!(first.calls[0].arguments, r#"{"text": "hi"}"#);
    let then = continued(first.calls);
    assert_eq!(models.ask_one(0, &then).await.unwrap().text, "All done.");
    let seen = server.last();
    assert!(seen.get("tools").is_none(), "{seen}");
    assert!(seen.to_string().contains("<tool_result tool_name="), "{seen}");
    assert_eq!(models.ask_one(0, &then).await.unwrap().stop, StopReason::Answer, "none is no call");
}

#[test]
fn an_invalid_request_does_not_pass_its_check() {
    let call = ToolCall { id: "a".into(), tool: "search_x".into(), arguments: "{}".into(), signature: None };
    let mut unanswered = asking();
    unanswered.messages.push(ChatMessage::Model { text: String::new(), calls: vec![call.clone()] });
    let mut between = unanswered.clone();
    between.messages.push(ChatMessage::User("And?".into()));
    let mut stray = asking();
    stray.messages.push(ChatMessage::Result {
        id: "a".into(),
        tool: call.tool,
        content: String::new(),
        is_error: false,
    });
    let named = ModelRequest { tools: vec![tool("x.y")], ..asking() };
    let twice = ModelRequest { tools: vec![tool("x"), tool("x")], ..asking() };
    let empty = ModelRequest { messages: Vec::new(), ..asking() };
    for wrong in [unanswered, between, stray, named, twice, empty] {
        assert!(wrong.check().is_err(), "{wrong:?}");
    }
}
