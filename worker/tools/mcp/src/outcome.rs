//! The meaning of a server's answer: output, a refusal, or something that may pass.

use std::error::Error;
use std::time::Duration;

use rmcp::model::{CallToolResult, ContentBlock, ErrorCode, ErrorData, ResourceContents, ServerResult};
use rmcp::service::ServiceError;
use rmcp::transport::streamable_http_client::StreamableHttpError;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_model::{Effect, limits};

use super::bounded;
use tickfleet_tools::Secrets;
use tickfleet_tools::{ToolFailure, ToolOutput, wording};

/// Bytes of a name or media type that is passed on.
const WORD_BYTES_MAX: usize = 200;

/// A failure, and whether the connection that it came on should be made anew.
pub(super) struct Failed {
    pub(super) failure: ToolFailure,
    pub(super) stale: bool,
}

/// A refusal for good, its message bounded.
pub(super) fn permanent(message: &str) -> ToolFailure {
    ToolFailure::Permanent { message: wording::cut(message, limits::ERROR_BYTES_MAX), details: None }
}

/// The refusal to call a tool whose definition is not the pinned one.
pub(super) fn quarantined(own: &str, what: &str, changed: &[&str]) -> ToolFailure {
    let message = format!(
        "The tool '{}' is quarantined: {what}. It was not called. An operator has to look at it and pin it again; use \
         another tool.",
        wording::cut(own, WORD_BYTES_MAX)
    );
    let details = json!({ "reason": "quarantined", "changed": changed });
    ToolFailure::Permanent { message: wording::cut(&message, limits::ERROR_BYTES_MAX), details: Some(details) }
}

/// The output in an answer: the structured content where there is one, else the content in words.
///
/// # Errors
/// The tool's own refusal; an answer of another kind.
pub(super) fn output(answer: ServerResult, effect: Effect, secrets: &Secrets) -> Result<ToolOutput, ToolFailure> {
    let result = match answer {
        ServerResult::CallToolResult(result) => result,
        other => return Err(no_result(&other, effect)),
    };
    if result.is_error == Some(true) {
        let said = secrets.scrub(&words(&result));
        let said = if said.trim().is_empty() { "The tool failed without saying why." } else { said.trim() };
        return Err(permanent(said));
    }
    let (text, content_type) = match &result.structured_content {
        // Deeper JSON than our own readers accept would make the reply unreadable: it travels as text.
        Some(value) if depth(value) <= limits::JSON_DEPTH_MAX => (value.to_string(), "application/json"),
        Some(value) => (Value::from(value.to_string()).to_string(), "text/plain"),
        None => (Value::from(words(&result)).to_string(), "text/plain"),
    };
    let json = RawValue::from_string(secrets.scrub(&text));
    let json = json.map_err(|e| ToolFailure::Internal { message: format!("not JSON after scrubbing: {e}") })?;
    Ok(ToolOutput { json, content_type })
}

/// The failure that an answer makes which is no result of a tool. A server that asks for more input may have begun, too.
fn no_result(answer: &ServerResult, effect: Effect) -> ToolFailure {
    let what = match answer {
        ServerResult::InputRequiredResult(_) => "in a way that is not supported: it asks for more input",
        ServerResult::CreateTaskResult(_) => "in a way that is not supported: it made a task of the call",
        ServerResult::EmptyResult(_) => "with an empty result",
        ServerResult::CustomResult(result) if result.0.is_null() => "with null in place of a result",
        _ => "with something that is no result of a tool",
    };
    unread(format!("The MCP server answered {what}."), effect)
}

/// The failure that an answer makes which does not say what was done, and would not the next time either: final, but for
/// a tool that must not run twice. Of that, final means that nothing was done.
fn unread(message: String, effect: Effect) -> ToolFailure {
    if effect == Effect::Once { lost(message) } else { permanent(&message) }
}

/// The content of a result in words, a block a paragraph. What is no text is told of.
fn words(result: &CallToolResult) -> String {
    let blocks: Vec<String> = result.content.iter().map(block).collect();
    blocks.join("\n")
}

fn block(block: &ContentBlock) -> String {
    let cut = |text: &str| wording::cut(text, WORD_BYTES_MAX);
    let kind = |kind: Option<&str>| kind.map(|kind| format!(" ({})", cut(kind))).unwrap_or_default();
    // Base64 has four characters for three bytes.
    let bytes = |base64: &str| base64.len() / 4 * 3;
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => {
            format!("[an image{}, about {} bytes, not shown]", kind(Some(&image.mime_type)), bytes(&image.data))
        }
        ContentBlock::Audio(audio) => {
            format!("[a recording{}, about {} bytes, not shown]", kind(Some(&audio.mime_type)), bytes(&audio.data))
        }
        ContentBlock::ResourceLink(link) => {
            format!("[a resource: {} at {}{}]", cut(&link.name), cut(&link.uri), kind(link.mime_type.as_deref()))
        }
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
                format!("[the resource {}{}]\n{text}", cut(uri), kind(mime_type.as_deref()))
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let kind = kind(mime_type.as_deref());
                format!("[the resource {}{kind}, about {} bytes, not shown]", cut(uri), bytes(blob))
            }
            _ => "[a resource of a kind that is not supported, not shown]".to_owned(),
        },
        _ => "[content of a kind that is not supported, not shown]".to_owned(),
    }
}

/// Returns how deep values nest.
pub(super) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Returns what it means that there is no result.
pub(super) fn failure(server: &str, error: &ServiceError, effect: Effect, secrets: &Secrets) -> Failed {
    match error {
        ServiceError::McpError(error) if bounded::is_too_large(error) => {
            let most = limits::MCP_MESSAGE_BYTES_MAX;
            let message = format!(
                "The MCP server '{server}' answered with more than {most} bytes, which were not read. Ask for less at a \
                 time."
            );
            Failed { failure: unread(message, effect), stale: false }
        }
        ServiceError::McpError(error) if is_no_session(error) => Failed { failure: no_session(server), stale: true },
        ServiceError::McpError(error) => Failed { failure: answered(server, error, secrets), stale: false },
        ServiceError::TransportSend(error) => unsent(server, error.error.as_ref(), secrets),
        ServiceError::Cancelled { .. } => {
            Failed { failure: lost(format!("The MCP server '{server}' cancelled the call.")), stale: false }
        }
        // Whether the request had left by then, nobody can tell.
        _ => Failed { failure: lost(format!("The MCP server '{server}' was lost while the call ran.")), stale: true },
    }
}

fn lost(message: String) -> ToolFailure {
    ToolFailure::Transient { message, retry_after: None, not_executed: false }
}

fn not_sent(message: String, retry_after: Option<Duration>) -> ToolFailure {
    ToolFailure::Transient { message, retry_after, not_executed: true }
}

/// The transport of the TypeScript SDK answers so, before any tool is looked for, when a server has been restarted.
fn is_no_session(error: &ErrorData) -> bool {
    error.code == ErrorCode(-32000) && error.message.starts_with("Bad Request:")
}

fn no_session(server: &str) -> ToolFailure {
    not_sent(format!("The session with the MCP server '{server}' is over; the call was not run."), None)
}

/// An error that the server answered with, instead of a result. What it found wrong with the request is final; what
/// went wrong within it may have happened halfway.
fn answered(server: &str, error: &ErrorData, secrets: &Secrets) -> ToolFailure {
    /// Codes that servers use for failures of their own: -32000 for any, -32001 for a request that timed out there.
    const OWN_FAILURES: [ErrorCode; 3] = [ErrorCode::INTERNAL_ERROR, ErrorCode(-32000), ErrorCode(-32001)];
    let said = format!("The MCP server '{server}' answered with an error: {}", secrets.scrub(&error.message));
    let said = wording::cut(said.trim(), limits::ERROR_BYTES_MAX);
    if OWN_FAILURES.contains(&error.code) { lost(said) } else { permanent(&said) }
}

/// A request that HTTP brought no answer to, or a message that could not be written.
fn unsent(server: &str, error: &(dyn Error + Send + Sync + 'static), secrets: &Secrets) -> Failed {
    type Http = StreamableHttpError<reqwest::Error>;
    let of = |failure| Failed { failure, stale: true };
    match error.downcast_ref::<Http>() {
        Some(Http::Client(error)) if error.is_connect() => {
            let why = tickfleet_outbound::connect_failure(error);
            of(not_sent(format!("Could not connect to the MCP server '{server}': {why}."), None))
        }
        Some(Http::Client(error)) if error.is_builder() => {
            of(not_sent(format!("Could not connect to the MCP server '{server}'."), None))
        }
        Some(Http::SessionExpired) => of(no_session(server)),
        Some(Http::AuthRequired(_) | Http::InsufficientScope(_)) => {
            of(not_sent(format!("The MCP server '{server}' refused the fleet's credentials."), None))
        }
        Some(Http::HttpStatus(status)) => {
            let message = format!("The MCP server '{server}' answered with status {}.", status.status);
            let after = status.retry_after.as_deref().and_then(|seconds| seconds.trim().parse().ok());
            let retry_after = after.map(Duration::from_secs);
            let not_executed = status.status == 429;
            Failed { failure: ToolFailure::Transient { message, retry_after, not_executed }, stale: false }
        }
        Some(Http::UnexpectedServerResponse(said)) if is_refusal(said) => {
            let said = format!("The MCP server '{server}' refused the call: {}", secrets.scrub(said));
            Failed { failure: permanent(&said), stale: false }
        }
        _ => of(lost(format!("The connection to the MCP server '{server}' was lost before its answer."))),
    }
}

/// `HTTP 4xx …`, but those after which trying again makes sense.
fn is_refusal(said: &str) -> bool {
    let status = said.strip_prefix("HTTP ").and_then(|rest| rest.get(..3)).and_then(|code| code.parse::<u16>().ok());
    status.is_some_and(|status| (400..500).contains(&status) && !matches!(status, 408 | 425 | 429))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use std::any::TypeId;
    use std::collections::BTreeMap;

    use rmcp::transport::DynamicTransportError;
    use rmcp::transport::streamable_http_client::HttpStatusError;
    use tickfleet_config::tools::SecretRef;

    use super::*;
    use tickfleet_tools::Environment;

    async fn secrets() -> Secrets {
        let references = BTreeMap::from([("T".to_owned(), SecretRef::Env("T".into()))]);
        Secrets::resolve(&references, &Environment::of([("T", "s3cret-value")]), None).await.unwrap()
    }

    fn result(value: Value) -> ServerResult {
        ServerResult::CallToolResult(serde_json::from_value(value).unwrap())
    }

    #[tokio::test]
    async fn structured_content_is_the_output_and_other_content_is_told_in_words() {
        let secrets = secrets().await;
        let both =
            json!({"content": [{"type": "text", "text": "t"}], "structuredContent": {"b": 1, "a": "s3cret-value"}});
        let got = output(result(both), Effect::Read, &secrets).unwrap();
        assert_eq!((got.json.get(), got.content_type), (r#"{"b":1,"a":"[REDACTED]"}"#, "application/json"));
        let blocks = json!({"content": [
            {"type": "text", "text": "one s3cret-value"},
            {"type": "image", "mimeType": "image/png", "data": "AAAA"},
            {"type": "resource_link", "name": "notes", "uri": "file:///n"},
            {"type": "resource", "resource": {"uri": "file:///t", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAAAAAA"}}
        ]});
        let got = output(result(blocks), Effect::Read, &secrets).unwrap();
        let text: String = serde_json::from_str(got.json.get()).unwrap();
        assert_eq!(
            text,
            "one [REDACTED]\n[an image (image/png), about 3 bytes, not shown]\n[a resource: notes at file:///n]\n\
             [the resource file:///t]\ninside\n[the resource file:///b, about 6 bytes, not shown]"
        );
        let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
        let got = output(result(json!({"content": [], "structuredContent": deep})), Effect::Read, &secrets).unwrap();
        assert_eq!(got.content_type, "text/plain");
    }

    #[tokio::test]
    async fn a_tools_own_refusal_is_permanent_and_its_secrets_are_gone() {
        let refused = json!({"isError": true, "content": [{"type": "text", "text": "no: s3cret-value"}]});
        match output(result(refused), Effect::Once, &secrets().await) {
            Err(ToolFailure::Permanent { message, .. }) => assert_eq!(message, "no: [REDACTED]"),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn what_is_no_result_of_a_tool_does_not_say_that_nothing_was_done() {
        let secrets = secrets().await;
        let input = json!({"resultType": "input_required", "requestState": "s"});
        for (answer, said) in [
            (json!({}), "with an empty result"),
            (json!(null), "with null in place of a result"),
            (json!({"_meta": {}}), "no result of a tool"),
            (json!({"odd": true}), "no result of a tool"),
            (json!(7), "no result of a tool"),
            (input, "it asks for more input"),
        ] {
            for effect in [Effect::Once, Effect::Idempotent, Effect::Read] {
                let answer: ServerResult = serde_json::from_value(answer.clone()).unwrap();
                let (unknown, message) = match output(answer, effect, &secrets) {
                    Err(ToolFailure::Transient { message, not_executed: false, .. }) => (true, message),
                    Err(ToolFailure::Permanent { message, .. }) => (false, message),
                    other => panic!("{other:?}"),
                };
                assert_eq!(unknown, effect == Effect::Once, "{message}");
                assert!(message.contains(said), "{message}");
            }
        }
    }

    fn http(error: StreamableHttpError<reqwest::Error>) -> ServiceError {
        ServiceError::TransportSend(DynamicTransportError::from_parts("http", TypeId::of::<()>(), Box::new(error)))
    }

    #[tokio::test]
    async fn only_what_certainly_did_not_run_counts_as_not_executed() {
        let secrets = secrets().await;
        let executed = |error: ServiceError| match failure("s", &error, Effect::Once, &secrets).failure {
            ToolFailure::Transient { not_executed, .. } => Some(!not_executed),
            _ => None,
        };
        let rpc = |code| ServiceError::McpError(ErrorData::new(ErrorCode(code), "x", None));
        assert_eq!(executed(http(StreamableHttpError::SessionExpired)), Some(false));
        assert_eq!(executed(http(HttpStatusError::new(429, Some("7".into())).into())), Some(false));
        assert_eq!(executed(http(HttpStatusError::new(503, None).into())), Some(true));
        assert_eq!(executed(http(StreamableHttpError::UnexpectedEndOfStream)), Some(true));
        assert_eq!(
            executed(http(StreamableHttpError::UnexpectedServerResponse("HTTP 400 Bad Request: x".into()))),
            None
        );
        assert_eq!(executed(http(StreamableHttpError::UnexpectedServerResponse("odd".into()))), Some(true));
        assert_eq!(executed(ServiceError::TransportClosed), Some(true));
        assert_eq!(executed(rpc(-32603)), Some(true));
        assert_eq!(executed(rpc(-32000)), Some(true));
        let no_session = ErrorData::new(ErrorCode(-32000), "Bad Request: No valid session ID provided", None);
        assert_eq!(executed(ServiceError::McpError(no_session)), Some(false));
        assert_eq!(executed(rpc(-32602)), None, "what is wrong with the request is final");
    }
}
