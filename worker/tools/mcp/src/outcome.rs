//! Interprets a server's response as output, permanent failure or transient failure.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use rmcp::model::{CustomResult, ErrorCode, ErrorData, ServerResult};
use rmcp::service::ServiceError;
use rmcp::transport::streamable_http_client::StreamableHttpError;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_model::{Effect, limits};

use super::{scan, wire};
use tickfleet_tools::{ContentBlock, Secrets, content_text};
use tickfleet_tools::{ToolFailure, ToolOutput, without_secrets, wording};

const WORD_BYTES_MAX: usize = 200;

/// `stale` is true if the connection should be re-established.
pub(super) struct CallFailure {
    pub(super) failure: ToolFailure,
    pub(super) stale: bool,
}

pub(super) fn permanent(message: &str) -> ToolFailure {
    ToolFailure::permanent(wording::cut(message, limits::ERROR_BYTES_MAX), None)
}

pub(super) fn quarantined(own: &str, what: &str, changed: &[&str]) -> ToolFailure {
    let message = format!(
        "The tool '{}' is quarantined: {what}. It was not called. An operator has to review it and pin it again; use \
         another tool.",
        wording::cut(own, WORD_BYTES_MAX)
    );
    let details = json!({ "reason": "quarantined", "changed": changed });
    ToolFailure::permanent(wording::cut(&message, limits::ERROR_BYTES_MAX), Some(details))
}

/// If `is_structured` is true, the tool declares an output schema, and a response must have structured content.
pub(super) fn output(
    answer: ServerResult,
    effect: Effect,
    is_structured: bool,
    secrets: &Secrets,
) -> Result<ToolOutput, ToolFailure> {
    let ServerResult::CustomResult(CustomResult(Value::String(text))) = answer else {
        return Err(no_result("with something that is not a tool result", effect));
    };
    let result = CallResult::read(&text).map_err(|what| no_result(what, effect))?;
    if result.is_error {
        let message = secrets.scrub(&content_text(&result.blocks()));
        let message = if message.trim().is_empty() { "The tool failed without saying why." } else { message.trim() };
        return Err(permanent(message));
    }
    let (text, content_type) = match result.structured {
        // The fleet's parsers cannot read deeper JSON, so deeper JSON is sent as text.
        Some(json) if scan::depth(json) <= limits::JSON_DEPTH_MAX => (scan::compact(json), "application/json"),
        Some(json) => (Value::from(scan::compact(json)).to_string(), "text/plain"),
        None if is_structured => {
            let what = "without `structuredContent`, which the tool's output schema promises";
            return Err(no_result(what, effect));
        }
        None => {
            let blocks = result.blocks();
            if blocks.iter().any(|block| matches!(block, ContentBlock::Image { .. })) {
                return without_secrets(Ok(ToolOutput::content(&blocks)), secrets);
            }
            (Value::from(content_text(&blocks)).to_string(), "text/plain")
        }
    };
    let json = RawValue::from_string(text);
    let json = json.map_err(|e| ToolFailure::Internal { message: format!("the output is not JSON: {e}") })?;
    without_secrets(Ok(ToolOutput { json, content_type }), secrets)
}

fn no_result(what: &str, effect: Effect) -> ToolFailure {
    unread(format!("The MCP server answered {what}."), effect)
}

struct CallResult<'a> {
    is_error: bool,
    content: Option<&'a str>,
    structured: Option<&'a str>,
}

impl<'a> CallResult<'a> {
    fn read(text: &'a str) -> Result<Self, &'static str> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Members<'a> {
            #[serde(borrow, default)]
            content: Option<&'a RawValue>,
            #[serde(borrow, default)]
            structured_content: Option<&'a RawValue>,
            #[serde(borrow, default)]
            is_error: Option<&'a RawValue>,
            #[serde(borrow, default)]
            result_type: Option<&'a RawValue>,
            #[serde(borrow, default)]
            task: Option<&'a RawValue>,
        }
        match text {
            "null" => return Err("with null in place of a result"),
            text if scan::compact(text.get(..16).unwrap_or(text)) == "{}" => return Err("with an empty result"),
            text if !text.starts_with('{') => return Err("with something that is not a tool result"),
            _ => {}
        }
        let members: Members<'_> =
            serde_json::from_str(text).map_err(|_| "with a result that has a duplicate or invalid member")?;
        let content = members.content.map(RawValue::get).filter(|content| content.starts_with('['));
        let structured = members.structured_content.map(RawValue::get);
        // The server may already have begun to act, so the call counts as failed.
        match members.result_type.map(RawValue::get) {
            Some("\"input_required\"") => return Err("in a way that is not supported: it asks for more input"),
            Some("\"task\"") => return Err("in a way that is not supported: it made a task of the call"),
            _ if members.task.is_some() && content.is_none() && structured.is_none() => {
                return Err("in a way that is not supported: it made a task of the call");
            }
            _ => {}
        }
        let is_error = match members.is_error.map(RawValue::get) {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err("with a result whose `isError` is neither true nor false"),
        };
        if members.content.is_some() && content.is_none() {
            return Err("with a result whose `content` is not an array");
        }
        if content.is_none() && structured.is_none() && !is_error {
            return Err("with something that is not a tool result");
        }
        Ok(Self { is_error, content, structured })
    }

    /// A block that is neither text nor image becomes a text that describes the block.
    fn blocks(&self) -> Vec<ContentBlock> {
        let content = self.content.and_then(|content| serde_json::from_str::<Content>(content).ok());
        content.map(|Content(blocks)| blocks).unwrap_or_default()
    }
}

/// A parsed list of short blocks would take many times the text's size, so blocks are parsed one after another.
struct Content(Vec<ContentBlock>);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Blocks;
        impl<'de> Visitor<'de> for Blocks {
            type Value = Vec<ContentBlock>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                let mut content = Vec::new();
                let mut blocks = 0_usize;
                while blocks < limits::MCP_BLOCKS_MAX
                    && let Some(next) = from.next_element::<&RawValue>()?
                {
                    push(&mut content, block(next.get()));
                    blocks += 1;
                }
                let mut more = 0_usize;
                while from.next_element::<IgnoredAny>()?.is_some() {
                    more += 1;
                }
                if more > 0 {
                    push(&mut content, text(format!("[{more} more blocks of content, not shown]")));
                }
                Ok(content)
            }
        }
        from.deserialize_seq(Blocks).map(Content)
    }
}

fn push(content: &mut Vec<ContentBlock>, next: ContentBlock) {
    match (content.last_mut(), next) {
        (Some(ContentBlock::Text { text: last }), ContentBlock::Text { text }) => {
            last.push('\n');
            last.push_str(&text);
        }
        (_, next) => content.push(next),
    }
}

fn text(text: String) -> ContentBlock {
    ContentBlock::Text { text }
}

fn block(block: &str) -> ContentBlock {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Block<'a> {
        #[serde(borrow, default, rename = "type")]
        kind: Option<&'a RawValue>,
        #[serde(borrow, default)]
        text: Option<&'a RawValue>,
        #[serde(borrow, default)]
        data: Option<&'a RawValue>,
        #[serde(borrow, default)]
        blob: Option<&'a RawValue>,
        #[serde(borrow, default)]
        mime_type: Option<&'a RawValue>,
        #[serde(borrow, default)]
        name: Option<&'a RawValue>,
        #[serde(borrow, default)]
        uri: Option<&'a RawValue>,
        #[serde(borrow, default)]
        resource: Option<&'a RawValue>,
    }
    fn parsed(text: &str) -> Option<Block<'_>> {
        text.starts_with('{').then(|| serde_json::from_str(text).ok()).flatten()
    }
    fn string(value: Option<&RawValue>) -> Option<String> {
        value.and_then(|value| serde_json::from_str(value.get()).ok())
    }
    let word = |value: Option<&RawValue>| string(value).map(|word| wording::cut(&word, WORD_BYTES_MAX));
    let words = |value| word(value).unwrap_or_default();
    let media = |value| word(value).map(|kind| format!(" ({kind})")).unwrap_or_default();
    // Base64 has four characters for three bytes. The two quotes are subtracted.
    let bytes = |base64: &RawValue| base64.get().len().saturating_sub(2) / 4 * 3;
    let unreadable = |kind: &str| format!("[a block of the type {kind:?} that could not be read, not shown]");
    let Some(read) = parsed(block) else { return text("[a block that could not be read, not shown]".to_owned()) };
    let Some(kind) = word(read.kind) else { return text("[a block without a type, not shown]".to_owned()) };
    text(match (kind.as_str(), read.data) {
        ("text", _) => string(read.text).unwrap_or_else(|| unreadable("text")),
        ("image", Some(data)) => match string(Some(data)) {
            Some(data) => return ContentBlock::image_or_note(&data, &words(read.mime_type)),
            None => unreadable("image"),
        },
        ("audio", Some(data)) => {
            format!("[a recording{}, about {} bytes, not shown]", media(read.mime_type), bytes(data))
        }
        ("resource_link", _) => {
            format!("[a resource: {} at {}{}]", words(read.name), words(read.uri), media(read.mime_type))
        }
        ("resource", _) => {
            let Some(inner) = read.resource.and_then(|inner| parsed(inner.get())) else {
                return text(unreadable("resource"));
            };
            let uri = words(inner.uri);
            let kind = media(inner.mime_type);
            match (string(inner.text), inner.blob) {
                (Some(text), _) => format!("[the resource {uri}{kind}]\n{text}"),
                (None, Some(blob)) => format!("[the resource {uri}{kind}, about {} bytes, not shown]", bytes(blob)),
                (None, None) => unreadable("resource"),
            }
        }
        ("image" | "audio", None) => unreadable(&kind),
        (kind, _) => format!("[content of the unknown type {kind:?}, not shown]"),
    })
}

/// A permanent failure would mean that nothing took effect. For a `once` tool, this is unknown, so the failure is
/// transient.
fn unread(message: String, effect: Effect) -> ToolFailure {
    if effect == Effect::Once { lost(message) } else { permanent(&message) }
}

pub(super) fn failure(server: &str, error: &ServiceError, effect: Effect, secrets: &Secrets) -> CallFailure {
    match error {
        ServiceError::McpError(error) if wire::is_unreadable(error) => {
            let why = wording::cut(&secrets.scrub(&error.message), limits::ERROR_BYTES_MAX / 2);
            let message = format!("The response of the MCP server '{server}' could not be read: {why}.");
            CallFailure { failure: unread(message, effect), stale: false }
        }
        ServiceError::McpError(error) if wire::is_too_large(error) => {
            let most = limits::MCP_MESSAGE_BYTES_MAX;
            let message = format!(
                "The MCP server '{server}' answered with more than {most} bytes, which were not read. Ask for less at a \
                 time."
            );
            CallFailure { failure: unread(message, effect), stale: false }
        }
        ServiceError::McpError(error) if is_no_session(error) => {
            CallFailure { failure: no_session(server), stale: true }
        }
        ServiceError::McpError(error) => CallFailure { failure: answered(server, error, secrets), stale: false },
        ServiceError::TransportSend(error) => unsent(server, error.error.as_ref(), secrets),
        ServiceError::Cancelled { .. } => {
            CallFailure { failure: lost(format!("The MCP server '{server}' canceled the call.")), stale: false }
        }
        // It is unknown whether the request was sent, so the call may have taken effect.
        _ => CallFailure {
            failure: lost(format!("The MCP server '{server}' was lost while the call ran.")),
            stale: true,
        },
    }
}

fn lost(message: String) -> ToolFailure {
    ToolFailure::Transient { message, retry_after: None, not_executed: false }
}

fn not_sent(message: String, retry_after: Option<Duration>) -> ToolFailure {
    ToolFailure::Transient { message, retry_after, not_executed: true }
}

/// True if the server does not know the session. After a restart, a server with the TypeScript SDK's transport returns
/// this error before it looks for the tool.
fn is_no_session(error: &ErrorData) -> bool {
    error.code == ErrorCode(-32000) && error.message.starts_with("Bad Request:")
}

fn no_session(server: &str) -> ToolFailure {
    not_sent(format!("The session with the MCP server '{server}' has ended; the call was not run."), None)
}

/// An error about the request is permanent. After a failure of the server, the call may have partly taken effect.
fn answered(server: &str, error: &ErrorData, secrets: &Secrets) -> ToolFailure {
    /// The codes of a server's own failures. Servers use -32000 for any failure, and -32001 for a timeout.
    const OWN_FAILURES: [ErrorCode; 3] = [ErrorCode::INTERNAL_ERROR, ErrorCode(-32000), ErrorCode(-32001)];
    let message = format!("The MCP server '{server}' answered with an error: {}", secrets.scrub(&error.message));
    let message = wording::cut(message.trim(), limits::ERROR_BYTES_MAX);
    if OWN_FAILURES.contains(&error.code) { lost(message) } else { permanent(&message) }
}

fn unsent(server: &str, error: &(dyn Error + Send + Sync + 'static), secrets: &Secrets) -> CallFailure {
    type Http = StreamableHttpError<reqwest::Error>;
    let of = |failure| CallFailure { failure, stale: true };
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
            CallFailure { failure: ToolFailure::Transient { message, retry_after, not_executed }, stale: false }
        }
        Some(Http::UnexpectedServerResponse(message)) if is_refusal(message) => {
            let message = format!("The MCP server '{server}' refused the call: {}", secrets.scrub(message));
            CallFailure { failure: permanent(&message), stale: false }
        }
        _ => of(lost(format!("The connection to the MCP server '{server}' was lost before its answer."))),
    }
}

/// True for statuses from 400 to 499, except 408, 425 and 429: after these, a retry is useful.
fn is_refusal(response: &str) -> bool {
    let status =
        response.strip_prefix("HTTP ").and_then(|rest| rest.get(..3)).and_then(|code| code.parse::<u16>().ok());
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
        ServerResult::CustomResult(CustomResult(Value::String(value.to_string())))
    }

    async fn output_of(text: &str) -> Result<ToolOutput, ToolFailure> {
        let answer = ServerResult::CustomResult(CustomResult(Value::String(text.to_owned())));
        output(answer, Effect::Read, false, &secrets().await)
    }

    #[tokio::test]
    async fn a_result_keeps_every_digit_and_limits_its_content_blocks() {
        let text = r#"{"content": [], "structuredContent": {"n": 1180591620717411303424, "x": 1.10, "y": 1e400}}"#;
        let got = output_of(text).await.unwrap();
        assert_eq!(got.json.get(), r#"{"n":1180591620717411303424,"x":1.10,"y":1e400}"#);
        let many = format!(
            r#"{{"content":[{}{{"type":"text","text":"last"}}]}}"#,
            r#"{"type":"text","text":"x"},"#.repeat(1_500)
        );
        let text: String = serde_json::from_str(output_of(&many).await.unwrap().json.get()).unwrap();
        assert!(text.ends_with("\n[501 more blocks of content, not shown]"), "{}", text.len());
    }

    #[tokio::test]
    async fn unknown_or_malformed_content_is_described() {
        let blocks = json!({"content": [
            {"type": "text", "text": "one"}, {"type": "video", "data": "AAAA"}, {"type": "text"}, {"text": "x"}, 7,
            {"type": "image"}, {"type": "resource", "resource": 1}
        ]});
        let text: String = serde_json::from_str(output_of(&blocks.to_string()).await.unwrap().json.get()).unwrap();
        assert_eq!(
            text,
            "one\n[content of the unknown type \"video\", not shown]\n[a block of the type \"text\" that could not be \
             read, not shown]\n[a block without a type, not shown]\n[a block that could not be read, not shown]\n[a block \
             of the type \"image\" that could not be read, not shown]\n[a block of the type \"resource\" that could not be \
             read, not shown]"
        );
    }

    #[tokio::test]
    async fn structured_content_is_returned_and_other_content_is_described() {
        let secrets = secrets().await;
        let both =
            json!({"content": [{"type": "text", "text": "t"}], "structuredContent": {"b": 1, "a": "s3cret-value"}});
        let got = output(result(both), Effect::Read, true, &secrets).unwrap();
        assert_eq!((got.json.get(), got.content_type), (r#"{"b":1,"a":"[REDACTED]"}"#, "application/json"));
        let blocks = json!({"content": [
            {"type": "text", "text": "one s3cret-value"},
            {"type": "image", "mimeType": "image/png", "data": "AAAA"},
            {"type": "resource_link", "name": "notes", "uri": "file:///n"},
            {"type": "resource", "resource": {"uri": "file:///t", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAAAAAA"}}
        ]});
        let got = output(result(blocks), Effect::Read, false, &secrets).unwrap();
        let text: String = serde_json::from_str(got.json.get()).unwrap();
        assert_eq!(
            text,
            "one [REDACTED]\n[an image (image/png), about 3 bytes, in a format that models cannot read, not shown]\n[a resource: notes at file:///n]\n\
             [the resource file:///t]\ninside\n[the resource file:///b, about 6 bytes, not shown]"
        );
        let image = json!({"type": "image", "mimeType": "image/jpeg", "data": "iVBORw0KGgo="});
        let text = |text: &str| json!({"type": "text", "text": text});
        let blocks = json!({"content": [text("one"), text("s3cret-value"), image, {"type": "audio", "data": "AAAA"}]});
        let got = output(result(blocks), Effect::Read, false, &secrets).unwrap();
        let image = json!({"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"});
        let expected = json!([text("one\n[REDACTED]"), image, text("[a recording, about 3 bytes, not shown]")]);
        assert_eq!(serde_json::from_str::<Value>(got.json.get()).unwrap(), expected);
        assert_eq!(got.content_type, tickfleet_tools::CONTENT_BLOCKS);
        let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
        let got =
            output(result(json!({"content": [], "structuredContent": deep})), Effect::Read, true, &secrets).unwrap();
        assert_eq!(got.content_type, "text/plain");
    }

    #[tokio::test]
    async fn a_tool_error_is_permanent_and_redacts_secrets() {
        let refused = json!({"isError": true, "content": [{"type": "text", "text": "no: s3cret-value"}]});
        match output(result(refused), Effect::Once, true, &secrets().await) {
            Err(ToolFailure::Ended { message, .. }) => assert_eq!(message, "no: [REDACTED]"),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn an_invalid_result_never_counts_as_not_executed() {
        let secrets = secrets().await;
        let input = json!({"resultType": "input_required", "requestState": "s"});
        for (answer, expected) in [
            (json!({}), "with an empty result"),
            (json!(null), "with null in place of a result"),
            (json!({"content": []}), "without `structuredContent`"),
            (json!({"content": {}}), "whose `content` is not an array"),
            (json!({"content": [], "isError": "no"}), "whose `isError` is neither"),
            (json!({"_meta": {}}), "is not a tool result"),
            (json!({"odd": true}), "is not a tool result"),
            (json!(7), "is not a tool result"),
            (input, "it asks for more input"),
        ] {
            for effect in [Effect::Once, Effect::Idempotent, Effect::Read] {
                let (unknown, message) = match output(result(answer.clone()), effect, true, &secrets) {
                    Err(ToolFailure::Transient { message, not_executed: false, .. }) => (true, message),
                    Err(ToolFailure::Ended { message, .. }) => (false, message),
                    other => panic!("{other:?}"),
                };
                assert_eq!(unknown, effect == Effect::Once, "{message}");
                assert!(message.contains(expected), "{message}");
            }
        }
    }

    fn http(error: StreamableHttpError<reqwest::Error>) -> ServiceError {
        ServiceError::TransportSend(DynamicTransportError::from_parts("http", TypeId::of::<()>(), Box::new(error)))
    }

    #[tokio::test]
    async fn only_a_provably_unexecuted_call_counts_as_not_executed() {
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
